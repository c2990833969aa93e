"""The command line; `wire` is the only composition root."""
