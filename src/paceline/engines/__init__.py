"""Rollout engines behind `ports.rollout`."""
