"""The virtual-time driver of the core."""
