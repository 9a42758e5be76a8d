"""The numbers of an evaluation, in words and with their units."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from hone.runs.progress import percent

_WORDS = (
    (r"reward/mean", "reward, mean"),
    (r"reward/std", "reward, standard deviation"),
    (r"reward/(.+)/mean", r"{} (a component of the reward), mean"),
    (r"ci95/(low|high)", r"reward, 95 % interval, {} end"),
    (r"exact", "correct"),
    (r"exact/ci95/(low|high)", r"correct, 95 % interval, {} end"),
    (r"pass@(\d+)", r"pass@{} (at least one of {} completions correct)"),
    (r"outcome/(.+)", r"outcome {}"),
    (r"completion/truncated", "truncated"),
    (r"completion/length/mean", "length, mean"),
    (r"turns/mean", "turns of a conversation, mean"),
)
"""What the end of a metric's name stands for."""
_SHARES = re.compile(r"exact|pass@|outcome/|completion/truncated")


class Value(NamedTuple):
    """A number of an evaluation: what it is, the number with its unit, and the metric it is read from."""

    words: str
    text: str
    metric: str


def values(metrics: Mapping[str, float | None]) -> list[Value]:
    """The metrics `eval/ENV/…` in their order; those of other names as they are."""
    return [_value(name, number) for name, number in metrics.items()]


def _value(metric: str, number: float | None) -> Value:
    name = metric.split("/", 2)[2] if metric.count("/") > 1 and metric.startswith("eval/") else ""
    for pattern, words in _WORDS:
        if found := re.fullmatch(pattern, name):
            part = found[1].replace("_", " ") if found.lastindex else ""
            return Value(words.replace("{}", part), _text(name, number), metric)
    return Value(metric, "–" if number is None else f"{number:.6g}", metric)


def _text(name: str, number: float | None) -> str:
    if number is None:
        return "–"
    if _SHARES.match(name):
        return percent(number)
    return f"{number:.1f} tokens" if name == "completion/length/mean" else f"{number:.3f}"
