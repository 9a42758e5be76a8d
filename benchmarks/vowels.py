"""vowels: say vowels. The reward is their share, so that a model of random weights has something to learn at once."""

from __future__ import annotations

from hone.environments import Rubric, SingleTurnEnv, inline
from hone.types import Message

PROMPTS = [{"question": f"Say vowels, verse {number}.", "answer": ""} for number in range(256)]


@inline
def share(completion: list[Message]) -> float:
    """Vowels among the characters."""
    text = completion[-1]["content"]
    return sum(letter in "aeiou" for letter in text) / max(1, len(text))


def load_environment() -> SingleTurnEnv:
    return SingleTurnEnv(dataset=PROMPTS[:192], eval_dataset=PROMPTS[192:], rubric=Rubric([share], [1.0]))
