"""calculator: multiply two numbers of two digits, with a tool that does it. The smallest task with tools.

    hone eval calculator -m outputs/calculator-rl/weights/step_60 -n 20

The model calls `multiply(a, b)`, sees the product and gives it in `<answer>` tags (or in `\\boxed{}`, or after
`ANSWER:`). An answer is worth 0.1 if it is well-formed, and 1 if it is right. There are 8,100 problems; a tenth of them
is held out for evaluation. At `demo_noise` 1 the teacher of demonstrations copies a number wrong one time in three.

`call_bonus` also pays for each call of the tool, as published recipes did. From about 0.1 on calls alone can earn more
than a right answer, and `hone audit` fails; `studies/tool_bonus.toml` shows what a policy makes of it.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np
from pydantic import Field

from hone.environments import (
    NumberParser,
    Rubric,
    ToolEnv,
    answer_rubric,
    calls_of,
    hold_out,
    inline,
    read_number,
)
from hone.environments.data import Row, Rows
from hone.environments.rubric import format
from hone.types import Example, Message

PARSER = NumberParser()
NUMBERS = range(10, 100)


@inline
def multiply(a: int, b: int) -> int:
    """Multiplies two numbers.

    Args:
        a: The first number.
        b: The second number.
    """
    return a * b


@inline
def correctness(completion: list[Message], answer: str) -> float:
    """Return 1 if the number is right, else 0."""
    return float(PARSER.value(completion) == read_number(answer))


@inline
def calls(completion: list[Message]) -> float:
    """Return how often the tool was called."""
    return float(sum(len(calls_of(message)) for message in completion))


class Calculator(ToolEnv):
    """Rows have `a` and `b`."""

    def __init__(self, *, demo_noise: float, call_bonus: float, max_turns: int) -> None:
        rubric = answer_rubric(correctness)
        if call_bonus:
            rubric = Rubric([format, correctness, calls], [0.1, 0.9, call_bonus], correctness=correctness)
        super().__init__(
            id="calculator",
            tools=[multiply],
            max_turns=max_turns,
            parser=PARSER,
            rubric=rubric,
            dataset=lambda: _problems()[0],
            eval_dataset=lambda: _problems()[1],
        )
        self.demo_noise = demo_noise

    def format_row(self, row: Row) -> Row:
        a, b = int(row["a"]), int(row["b"])
        return {"question": f"{a} * {b}?", "answer": str(a * b), "info": {"a": a, "b": b}}

    def reference(self, example: Example) -> list[Message]:
        return self._with(example.info["a"], example.info["b"])

    def demonstrate(self, example: Example, rng: np.random.Generator) -> list[Message]:
        """Return the reference as a careless teacher would write it."""
        slips = rng.random() < self.demo_noise / 3
        return self._with(int(rng.choice(NUMBERS)) if slips else example.info["a"], example.info["b"])

    def _with(self, a: int, b: int) -> list[Message]:
        """Return the call, its answer, and that as the model's own."""
        call = self.called("multiply", a=a, b=b)
        return [*call, {"role": "assistant", "content": PARSER.wrap(call[-1]["content"])}]


def load_environment(
    demo_noise: Annotated[float, Field(ge=0, le=3)] = 0.0,
    call_bonus: Annotated[float, Field(ge=0)] = 0.0,
    max_turns: int = 3,
) -> Calculator:
    """Return the task of all products of two numbers from 10 to 99, in at most `max_turns` messages of the model.

    Each call of the tool earns `call_bonus`, beside what the answer earns.
    """
    return Calculator(demo_noise=demo_noise, call_bonus=call_bonus, max_turns=max_turns)


def _problems() -> tuple[Rows, Rows]:
    """Return the problems to train on, and those held out."""
    rows = [{"a": a, "b": b} for a in NUMBERS for b in NUMBERS]
    return hold_out(
        Rows(rows, lambda i: f"problem {i} of calculator", generated=True), lambda row: f"{row['a']} {row['b']}"
    )
