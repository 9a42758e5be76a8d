"""Strict against lenient: what was measured of it, and what it says. `lenient` measures.

Strict is the task's own verdict on a completion. Lenient reads the same completion generously: it is correct if the
task calls it so, or an answer that is found in it, put into the form that the task asks for. What training changed of
the lenient score is skill; what it changed of the gap between the two is format.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hone.viewer.card.evaluations import Evaluated, is_correct
from hone.viewer.card.paired import Change, Level, Values, changes, levels

Place = tuple[int, int]
"""A completion: its example and its rollout."""
SHARES = ("lenient", "strict")


@dataclass(frozen=True)
class Found:
    """What the lenient reader found in a completion that is worth more than the task gave for it: the kind of place it
    stood in, the reward of a completion that says that in the task's form, and whether the task calls that correct.
    """

    kind: str
    reward: float
    correct: bool


@dataclass(frozen=True)
class Leniency:
    """What was read generously. `examples` are those of which all completions were; `found` has for each evaluation (by
    `key_of` its version) what was found. `why_not`: why nothing was measured.
    """

    why_not: str = ""
    examples: frozenset[int] = frozenset()
    found: Mapping[str, Mapping[Place, Found]] = field(default_factory=dict)
    asked: int = 0
    """Examples that there were."""

    def record(self) -> dict[str, Any]:
        """As JSON; `of_record` reads it."""
        if self.why_not:
            return {"why_not": self.why_not}
        found = {
            key: [[*place, one.kind, one.reward, one.correct] for place, one in sorted(places.items())]
            for key, places in self.found.items()
        }
        return {"examples": sorted(self.examples), "asked": self.asked, "found": found}

    @classmethod
    def of_record(cls, record: Mapping[str, Any]) -> Leniency:
        """What `record` gave. KeyError, TypeError or ValueError for something else."""
        if "why_not" in record:
            return cls(str(record["why_not"]))
        found = {
            key: {
                (int(e), int(r)): Found(str(kind), float(reward), bool(right)) for e, r, kind, reward, right in places
            }
            for key, places in record["found"].items()
        }
        return cls("", frozenset(map(int, record["examples"])), found, int(record["asked"]))

    def measures(self, one: Evaluated) -> dict[str, Values]:
        """For each example: `strict` and `lenient`, the share of its completions that is correct; `strict reward` and
        `lenient reward`, their mean; and by how much the lenient ones are more: `gap`, `reward gap`.
        """
        found = self.found[key_of(one.step)]
        measured: dict[str, dict[int, float]] = {name: {} for name in MEASURES}
        for example, rows in one.by_example.items():
            if example not in self.examples:
                continue
            read = [found.get((example, row["rollout"])) for row in rows]
            hits = [is_correct(row) for row in rows]
            better = [hit or (other is not None and other.correct) for hit, other in zip(hits, read, strict=True)]
            paid = [row["reward"] for row in rows]
            more = [max(reward, other.reward) if other else reward for reward, other in zip(paid, read, strict=True)]
            for name, values in zip(MEASURES, (hits, better, paid, more), strict=False):
                measured[name][example] = sum(values) / len(values)
            measured["gap"][example] = measured["lenient"][example] - measured["strict"][example]
            gap = measured["lenient reward"][example] - measured["strict reward"][example]
            measured["reward gap"][example] = gap
        return {name: values for name, values in measured.items()}


MEASURES = ("strict", "lenient", "strict reward", "lenient reward", "gap", "reward gap")


def key_of(step: int | None) -> str:
    """The name of an evaluation in a record."""
    return "results" if step is None else str(step)


def gains(reading: Leniency, first: Evaluated, last: Evaluated, seed: int) -> dict[str, Change]:
    """Each of `MEASURES` before and after. The change of a lenient one is the gain in skill; minus that of its gap, the
    gain in format; together they are the change of the strict one.
    """
    before, after = reading.measures(first), reading.measures(last)
    return changes({name: (before[name], after[name]) for name in before}, seed, SHARES)


def level(reading: Leniency, one: Evaluated, seed: int) -> dict[str, Level]:
    """The same of one evaluation."""
    return levels(reading.measures(one), seed, SHARES)
