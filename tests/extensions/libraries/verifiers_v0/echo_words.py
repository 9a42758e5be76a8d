"""One turn: write a word again. `broken` says what is wrong with it."""

from __future__ import annotations

import asyncio

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


def best_of(completions, answers) -> list[float]:
    return [0.0 for _ in completions]


class Bonus(vf.Rubric):
    """Computes the reward itself, which is not the sum of its functions."""

    async def score_rollout(self, state):
        await super().score_rollout(state)
        state["reward"] += 10.0


class Slow(vf.SingleTurnEnv):
    async def setup_state(self, state):
        await asyncio.sleep(1000)


def rows(words, polite):
    return Dataset.from_list([{"question": f"Write {word}" + ", please" * polite, "answer": word} for word in words])


def load_environment(polite: bool = False, broken: str = "", own_eval: bool = True):
    rubric = (Bonus if broken == "bonus" else vf.Rubric)(funcs=[same, as_long], weights=[1.0, 0.5])
    if broken == "group":
        rubric.add_reward_func(best_of)
    if broken == "none":
        rubric = None
    held_out = {"eval_dataset": rows(WORDS[8:], polite)} if own_eval else {}
    kind = Slow if broken == "slow" else vf.SingleTurnEnv
    timeout = {"timeout_seconds": 0.5} if broken == "slow" else {}
    shown = rows(WORDS[:8] if own_eval else WORDS, polite)
    return kind(dataset=shown, system_prompt="You copy.", rubric=rubric, **held_out, **timeout)
