"""Trainers behind `ports.training`."""
