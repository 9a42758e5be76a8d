"""Environments: what a task is. The names here are the stable Python API."""

from hone.environments.data import generated_rows, hold_out, load_rows
from hone.environments.environment import Environment, SingleTurnEnv
from hone.environments.loading import load_environment
from hone.environments.parsers import Parser, TagParser
from hone.environments.rubric import Range, Rubric
from hone.types import Example, Outcome, Score

__all__ = [
    "Environment",
    "Example",
    "Outcome",
    "Parser",
    "Range",
    "Rubric",
    "Score",
    "SingleTurnEnv",
    "TagParser",
    "generated_rows",
    "hold_out",
    "load_environment",
    "load_rows",
]
