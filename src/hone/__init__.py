"""hone: reinforcement learning with verifiable rewards, in numbers that can be reproduced and rewards that can be explained."""

__version__ = "0.1.0"
