"""guessing: find a digit; the environment says whether it is higher or lower. A task of several turns, for tests.

The reward is 1 for the digit, and less the farther the last guess is away. What the environment adds to its hint is
drawn from the rollout's own seed. `slow` seconds pass before each answer, less with each turn; `broken` is a text that
makes the environment fail when it is guessed, `endless` one that it never gets over; with `patience` the model is told
of that. `wordy` repeats the hint.
"""

from __future__ import annotations

import re
import time
from typing import Any

import numpy as np

from hone.environments import MultiTurnEnv, Rubric
from hone.grading import GraderFailure
from hone.rng import stream
from hone.types import Example, Message

HINTS = ("cold", "cool", "warm")


def correctness(completion: list[Message], answer: str) -> float:
    """1 if the last guess is right, else less by a tenth for each digit that it is away; 0 without a guess."""
    guess = guess_of([m for m in completion if m["role"] == "assistant"][-1])
    return 0.0 if guess is None else 1.0 - abs(guess - int(answer)) / 10


def guesses(state: dict[str, Any]) -> float:
    return float(len(state["guesses"]))


def guess_of(message: Message) -> int | None:
    found = re.match(r"[0-9]", message["content"])
    return int(found[0]) if found else None


class Guessing(MultiTurnEnv):
    def __init__(self, slow: float, broken: str, endless: str, patience: bool, wordy: int, **kwargs: Any) -> None:
        rows = [{"prompt": f"Guess {name}", "answer": str(i % 10)} for i, name in enumerate("abcdefghijklmnopqrst")]
        rubric = Rubric([correctness, guesses], [1.0, 0.0])
        super().__init__(rubric=rubric, dataset=rows[:16], eval_dataset=rows[16:], **kwargs)
        self.slow, self.broken, self.endless, self.is_patient, self.wordy = slow, broken, endless, patience, wordy

    def initial_state(self, example: Example, seed: int) -> dict[str, Any]:
        return super().initial_state(example, seed) | {"guesses": []}

    def env_response(self, messages: list[Message], state: dict[str, Any]) -> list[Message]:
        guess, wanted = guess_of(messages[-1]), int(state["answer"])
        state["guesses"].append(guess)
        if str(guess) == self.broken:
            raise ValueError(f"no guess of {guess} is wanted")
        while str(guess) == self.endless:
            pass
        if self.slow:
            time.sleep(self.slow / len(state["guesses"]) * (1 + (guess or 0)))
        if guess == wanted:
            return []
        hint = "guess!" if guess is None else "higher" if guess < wanted else "lower"
        mood = HINTS[int(stream(state["seed"], len(state["guesses"])).integers(len(HINTS)))]
        return [{"role": "user", "content": " ".join([f"{mood}, {hint}"] * self.wordy)}]

    def failed_response(self, messages: list[Message], failure: GraderFailure) -> list[Message] | None:
        return [{"role": "user", "content": "no answer"}] if self.is_patient else None

    def demonstrate(self, example: Example, rng: np.random.Generator) -> str:
        return str(rng.integers(10))


def load_environment(
    max_turns: int = 3,
    slow: float = 0.0,
    broken: str = "",
    endless: str = "",
    patience: bool = False,
    wordy: int = 1,
) -> Guessing:
    return Guessing(slow, broken, endless, patience, wordy, id="guessing", max_turns=max_turns)
