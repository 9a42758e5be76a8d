"""Run directories: what the training loops write, and how it is read back. A leaf: it imports none of hone's rooms."""

from hone.runs.reader import Run

__all__ = ["Run"]
