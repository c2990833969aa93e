"""Metric sinks behind `ports.data.Tracker`."""
