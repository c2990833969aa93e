"""The asyncio driver of the core: performs commands over worker processes and returns events."""
