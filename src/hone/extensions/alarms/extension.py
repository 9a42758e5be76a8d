"""Grades some completions of a run again, while it trains."""

from hone.extension import Watch

OBSERVERS = {"reward check": Watch(60, "reward_check.observer", __name__)}
