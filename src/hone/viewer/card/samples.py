"""Completions to look at: the best, the worst, the median one and one by chance, of the last evaluation or step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hone import rng
from hone.runs import Run
from hone.runs.checked import parse_json
from hone.viewer.card.evaluations import FAILED, Row
from hone.viewer.conversation import Call, Turn, turns

LONGEST = 4_000
"""Characters of a text that a card shows."""
_COLUMNS = (
    *("example_id", "sample_id", "reward", "components", "outcome", "detail", "stop_reason", "prompt", "text"),
    *("answer", "completion", "sampled_mask"),
)


@dataclass(frozen=True)
class Sample:
    """One completion. `name` says why it is shown; `parts` are (component, value, weight), the weight None where it is
    not known.
    """

    name: str
    row: Row
    parts: Sequence[tuple[str, float, float | None]]

    @property
    def prompt(self) -> str:
        return "\n\n".join(map(_told, turns(self.row["prompt"], sampled=False)))

    @property
    def completion(self) -> str:
        """Its text; of several turns each message with its role, and its calls of tools."""
        said = turns(self.row["completion"])
        return said[0].text if len(said) == 1 and not said[0].calls else "\n\n".join(map(_told, said))

    @property
    def answer(self) -> str:
        return str(self.row["answer"])

    @property
    def facts(self) -> str:
        """Reward, outcome, how it ended, tokens, and which example it is of, in a line."""
        row, words = self.row, []
        words.append("not graded" if row["reward"] is None else f"reward {row['reward']:.4g}")
        words += [str(row["outcome"]).replace("_", " ")]
        words += ["cut off by the length limit"] if row["stop_reason"] == "length" else []
        words += [f"{row['completion_tokens']} tokens"] if row.get("completion_tokens") is not None else []
        return ", ".join([*words, f"example {row['example_id']}"])

    @property
    def breakdown(self) -> str:
        """The components of its reward: `similarity 0.93 (weight 1), exact 0 (weight 0)`."""
        told = (f"{name} {value:.4g}" + (f" (weight {w:g})" if w is not None else "") for name, value, w in self.parts)
        return ", ".join(told)


def chosen(rows: Sequence[Row], weights: Mapping[str, float], seed: int) -> list[Sample]:
    """Best, worst and median by reward (of equals the first), and one by chance, which `seed` decides; no row twice."""
    graded = [row for row in rows if row["outcome"] not in FAILED]
    if not graded:
        return []
    order = sorted(range(len(graded)), key=lambda i: graded[i]["reward"])
    best = max(range(len(graded)), key=lambda i: graded[i]["reward"])
    any_one = int(rng.stream(seed, "card", "sample").integers(len(graded)))
    picks = {"best": best, "worst": order[0], "median": order[len(order) // 2], "random": any_one}
    shown: dict[int, str] = {}
    for name, index in picks.items():
        shown[index] = f"{shown[index]}, {name}" if index in shown else name
    return [named(name, graded[index], weights) for index, name in shown.items()]


def named(name: str, row: Row, weights: Mapping[str, float]) -> Sample:
    """The completion of a row, shown for the reason `name`."""
    return Sample(name, row, [(part, value, weights.get(part)) for part, value in row["components"].items()])


def rows_of_step(run: Run, step: int) -> list[Row]:
    """The completions of a training step, with the keys of an evaluation's that samples need."""
    table = run.rollouts(step, _COLUMNS)
    return [_row(row) for row in table.to_pylist()]


def _row(row: dict[str, Any]) -> Row:
    turns = row["completion"]
    return {
        "example_id": row["example_id"],
        "prompt": parse_json(row["prompt"]),
        "completion": parse_json(turns) if turns else [{"role": "assistant", "content": row["text"]}],
        "answer": row["answer"] or "",
        "reward": row["reward"],
        "components": dict(row["components"] or ()),
        "outcome": row["outcome"],
        "detail": row["detail"] or "",
        "stop_reason": row["stop_reason"],
        "completion_tokens": sum(row["sampled_mask"]),
    }


def _told(turn: Turn) -> str:
    calls = [f"[calls {call.name} {call.raw or _named(call)}]" for call in turn.calls]
    return "\n".join([f"{turn.role}: {turn.text}", *calls])


def _named(call: Call) -> str:
    return ", ".join(f"{name}: {value}" for name, value in call.arguments)
