"""A few completions of a step, for a table that people read."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

COLUMNS = ("step", "prompt", "completion", "reward", "components", "outcome", "advantage")
"""Of the tables that trackers get."""
TEXT = 4000
"""Longest text in a cell, in characters."""


def chosen(rows: Sequence[dict[str, Any]], count: int) -> list[list[Any]]:
    """At most `count` of a step's rollout rows (`hone.runs.rollouts.schema`) as rows of `COLUMNS`, in their order.

    The best, the worst and the median by reward, then one of each outcome (the rarest first), then spread evenly over
    the rewards. No two of one group while there are others to take. The same rows give the same choice.
    """
    return [_cells(rows[index]) for index in sorted(_pick(rows, count))]


def _pick(rows: Sequence[dict[str, Any]], count: int) -> list[int]:
    graded = [index for index in range(len(rows)) if rows[index]["reward"] is not None]
    by_reward = sorted(graded, key=lambda index: -rows[index]["reward"])  # stable: the first of equals
    failed = [index for index in range(len(rows)) if rows[index]["reward"] is None]
    outcomes: dict[str, list[int]] = {}
    for index in [*by_reward, *failed]:
        outcomes.setdefault(rows[index]["outcome"], []).append(index)
    wanted: list[list[int]] = []
    if by_reward:
        wanted += [by_reward, by_reward[::-1], _around(by_reward, len(by_reward) // 2)]
    wanted += sorted(outcomes.values(), key=len)
    spread = max(1, len(by_reward) // max(1, count))
    wanted += [_around(by_reward, place) for place in range(0, len(by_reward), spread)] + [failed]

    picked: list[int] = []
    groups: set[Any] = set()
    for candidates in wanted:
        left = [index for index in candidates if index not in picked]
        if not left or len(picked) == count:
            continue
        index = next((index for index in _equals(rows, left) if rows[index]["group"] not in groups), left[0])
        picked.append(index)
        groups.add(rows[index]["group"])
    return picked


def _around(order: list[int], place: int) -> list[int]:
    """`order`, from `place` on, then what is before it."""
    return order[place:] + order[:place]


def _equals(rows: Sequence[dict[str, Any]], candidates: list[int]) -> list[int]:
    """Those of the candidates that are as good as the first: of its reward and outcome."""
    first = rows[candidates[0]]
    return [i for i in candidates if (rows[i]["reward"], rows[i]["outcome"]) == (first["reward"], first["outcome"])]


def _cells(row: dict[str, Any]) -> list[Any]:
    components = row["components"]
    values = dict(components.items() if isinstance(components, dict) else components)
    cells = {
        "step": row["step"],
        "prompt": cut(_conversation(row["prompt"])),
        "completion": cut(_conversation(row["completion"]) if row.get("completion") else row["text"]),
        "reward": None if row["reward"] is None else round(float(row["reward"]), 6),
        "components": ", ".join(f"{name} {value:.6g}" for name, value in values.items()),
        "outcome": row["outcome"],
        "advantage": round(float(row["advantage"]), 6),
    }
    return [cells[name] for name in COLUMNS]


def _conversation(messages: str) -> str:
    """Messages (JSON) as text: `role: content`, with an empty line between two."""
    parts = []
    for message in json.loads(messages):
        calls = message.get("tool_calls")
        text = "\n".join(part for part in (message.get("content") or "", json.dumps(calls) if calls else "") if part)
        parts.append(f"{message['role']}: {text}")
    return "\n\n".join(parts)


def cut(text: str) -> str:
    """The text; of a long one beginning and end, with a mark that says how much is left out."""
    if len(text) <= TEXT:
        return text
    half = TEXT // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half} characters left out ...]\n{text[-half:]}"
