"""Run directories: what the training loops write, and how it is read back. It imports no room but `config`."""

from hone.runs.reader import Run

__all__ = ["Run"]
