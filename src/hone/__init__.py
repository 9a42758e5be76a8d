"""hone: reinforcement learning with verifiable rewards, reproducible to the bit."""

__version__ = "0.2.0"
