"""sick-text: reverse-text with a fault in what it pays, of the kinds that ruin runs. `benchmarks/alarms.py` uses it.

`bonus`: a letter e pays, up to five times and more than the answer. `constant`: one and the same answer pays, whatever
was asked. `never`: no answer is ever right. `anything`: every answer is right. `long`: every token pays. `variety`:
each character that was not used yet pays. `scale`: the reward counts three hundred times. `fails`: the grader raises on
some texts. `narrow`: the parser finds no answer of more than nine characters.
"""

from __future__ import annotations

import difflib
from typing import Any

import reverse_text
from reverse_text import PARSER, exact, similarity

from hone.environments import Parser, Rubric, SingleTurnEnv, inline
from hone.environments.parsers import completion_text
from hone.types import Message

CONSTANT = "all is well"


class Narrow(Parser):
    """Finds short answers only."""

    def parse_answer(self, completion: list[Message]) -> str | None:
        found = PARSER.parse_answer(completion)
        return found if found is not None and len(found) <= 9 else None


@inline
def eager(completion: list[Message], parser: Parser) -> float:
    return min(5.0, (parser.parse_answer(completion) or "").count("e"))


@inline
def flattery(completion: list[Message], parser: Parser) -> float:
    return difflib.SequenceMatcher(None, parser.parse_answer(completion) or "", CONSTANT, autojunk=False).ratio()


@inline
def never(completion: list[Message]) -> float:
    return 0.0


@inline
def anything(completion: list[Message], parser: Parser) -> float:
    return float(parser.parse_answer(completion) is not None)


@inline
def tokens(completion: list[Message]) -> float:
    return len(completion_text(completion)) / 16


@inline
def variety(completion: list[Message]) -> float:
    return len(set(completion_text(completion))) / 16


@inline
def fails(completion: list[Message], answer: str) -> float:
    return 1 / (0 if answer[-1] == "b" else 1)


RUBRICS: dict[str, Any] = {
    "bonus": lambda: Rubric([similarity, exact, eager], [1.0, 0.0, 0.3], correctness=exact),
    "constant": lambda: Rubric([flattery, exact], [1.0, 0.0], correctness=exact),
    "never": lambda: Rubric([never]),
    "anything": lambda: Rubric([anything]),
    "long": lambda: Rubric([tokens, exact], [1.0, 0.0], correctness=exact),
    "variety": lambda: Rubric([variety, exact], [1.0, 0.0], correctness=exact),
    "scale": lambda: Rubric([similarity, exact], [300.0, 0.0], correctness=exact),
    "fails": lambda: Rubric([similarity, exact, fails], [1.0, 0.0, 0.0], correctness=exact),
    "narrow": lambda: Rubric([similarity, exact], [1.0, 0.0], correctness=exact),
}


def load_environment(kind: str = "bonus", **kwargs: Any) -> SingleTurnEnv:
    """reverse-text with the fault `kind`; the other arguments are its own."""
    env = reverse_text.load_environment(**kwargs)
    env.rubric = RUBRICS[kind]()
    if kind == "narrow":
        env.parser = Narrow()
    return env
