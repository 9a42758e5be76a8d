"""Environments define tasks. The names here are the stable Python API."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from hone.environments.data import generated_rows, hold_out, load_rows, train_and_eval
from hone.environments.environment import Environment, SingleTurnEnv
from hone.environments.loading import load_environment
from hone.environments.multi_turn import MultiTurnEnv
from hone.environments.parsers import AnswerParser, Parser, TagParser
from hone.environments.rubric import Range, Rubric, answer_rubric, inline
from hone.types import Example, Outcome, Score

if TYPE_CHECKING:
    from hone.environments.numbers import LastNumberParser, NumberParser, read_number, same_number
    from hone.environments.tools import ToolEnv, arguments_of, calls_of

_MODULES: dict[str, str] = dict.fromkeys(("LastNumberParser", "NumberParser", "read_number", "same_number"), "numbers")
_MODULES |= dict.fromkeys(("ToolEnv", "arguments_of", "calls_of"), "tools")
"""The module of each name that few tasks need; it is imported at first use."""
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


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
