"""The configuration: one strict typed tree, inert and light (no torch, no numpy)."""
