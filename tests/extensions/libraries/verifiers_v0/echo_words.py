"""One turn: write a word again."""

from __future__ import annotations

import verifiers as vf
from datasets import Dataset

WORDS = ["stone", "river", "cloud", "ember", "quill", "maple", "onion", "pearl", "raven", "tiger"]


def same(completion, answer) -> float:
    reply = completion[-1]["content"]
    if reply == "raise":
        raise RuntimeError("no such word")
    return float("nan") if reply == "nan" else float(reply == answer)


async def as_long(completion, answer, **kwargs) -> float:
    return float(len(completion[-1]["content"]) == len(answer))


def rows(words):
    return Dataset.from_list([{"question": f"Write {word}", "answer": word} for word in words])


def load_environment():
    rubric = vf.Rubric(funcs=[same, as_long], weights=[1.0, 0.5])
    shown, held_out = rows(WORDS[:8]), rows(WORDS[8:])
    return vf.SingleTurnEnv(dataset=shown, eval_dataset=held_out, system_prompt="You copy.", rubric=rubric)
