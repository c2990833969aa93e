"""Rewards: how answers are judged."""
