"""paceline: reinforcement learning on verifiable rewards for language models, with the schedule as a value."""

__version__ = "0.1.0"
