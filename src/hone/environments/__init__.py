"""Environments: what a task is. The names here are the stable Python API."""

from hone.environments.data import generated_rows, hold_out, load_rows, train_and_eval
from hone.environments.environment import Environment, SingleTurnEnv
from hone.environments.loading import load_environment
from hone.environments.multi_turn import MultiTurnEnv
from hone.environments.numbers import LastNumberParser, NumberParser, read_number, same_number
from hone.environments.parsers import AnswerParser, Parser, TagParser
from hone.environments.rubric import Range, Rubric, answer_rubric, inline
from hone.environments.tools import ToolEnv, arguments_of, calls_of
from hone.types import Example, Outcome, Score

__all__ = [
    "AnswerParser",
    "Environment",
    "Example",
    "LastNumberParser",
    "MultiTurnEnv",
    "NumberParser",
    "Outcome",
    "Parser",
    "Range",
    "Rubric",
    "Score",
    "SingleTurnEnv",
    "TagParser",
    "ToolEnv",
    "answer_rubric",
    "arguments_of",
    "calls_of",
    "generated_rows",
    "hold_out",
    "inline",
    "load_environment",
    "load_rows",
    "read_number",
    "same_number",
    "train_and_eval",
]
