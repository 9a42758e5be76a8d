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
MEASURES = ("strict", "lenient", "strict reward", "lenient reward", "gap", "reward gap")


@dataclass(frozen=True)
class Answer:
    """What was found in a completion that is worth more than the task gave for it: the kind of place it stood in, the
    reward of a completion that says that in the task's form, and whether the task calls that correct.
    """

    kind: str
    reward: float
    correct: bool


@dataclass(frozen=True)
class Leniency:
    """What was read generously. `examples` are those, of `asked`, of which all completions were; `found` has for each
    evaluation (by its key) what was found. `why_not`: why nothing was measured.
    """

    why_not: str = ""
    examples: frozenset[int] = frozenset()
    found: Mapping[str, Mapping[Place, Answer]] = field(default_factory=dict)
    asked: int = 0

    def record(self) -> dict[str, Any]:
        """Return it as JSON; `from_record` reads it."""
        if self.why_not:
            return {"why_not": self.why_not}
        found = {
            key: [[*place, one.kind, one.reward, one.correct] for place, one in sorted(places.items())]
            for key, places in self.found.items()
        }
        return {"examples": sorted(self.examples), "asked": self.asked, "found": found}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Leniency:
        """Return what `record` gave. KeyError, TypeError or ValueError for something else."""
        if "why_not" in record:
            return cls(str(record["why_not"]))
        found = {
            key: {(int(e), int(r)): Answer(str(kind), float(reward), bool(right)) for e, r, kind, reward, right in rows}
            for key, rows in record["found"].items()
        }
        return cls("", frozenset(map(int, record["examples"])), found, int(record["asked"]))

    def measures(self, one: Evaluated) -> dict[str, Values]:
        """Return for each example: `strict` and `lenient`, the share of completions that is correct; `strict reward`
        and `lenient reward`, their mean; and by how much the lenient ones are more: `gap`, `reward gap`.
        """
        found = self.found[one.key]
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
            for gap, of in (("gap", ""), ("reward gap", " reward")):
                measured[gap][example] = measured[f"lenient{of}"][example] - measured[f"strict{of}"][example]
        return dict(measured)


def gains(reading: Leniency, first: Evaluated, last: Evaluated, seed: int) -> dict[str, Change]:
    """Return each of `MEASURES` before and after. The change of a lenient one is the gain in skill; minus that of its
    gap, the gain in format; together they are the change of the strict one.
    """
    before, after = reading.measures(first), reading.measures(last)
    return changes({name: (before[name], after[name]) for name in before}, seed, MEASURES[:2])


def level(reading: Leniency, one: Evaluated, seed: int) -> dict[str, Level]:
    """Return the same of one evaluation."""
    return levels(reading.measures(one), seed, MEASURES[:2])
