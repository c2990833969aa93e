"""A run as a picture, from the events and commands of one lineage: a trace for Perfetto, or one SVG (docs/design/timeline.md)."""
