"""What right and wrong answers earn in all, by declared ranges and by texts that were graded, part by part."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from hone.audit.playing import Script
from hone.audit.probes import Probe
from hone.environments import Rubric
from hone.types import Outcome


@dataclass(frozen=True)
class Total:
    """The reward of a right or a wrong answer: what each component contributes, and the text that earned it.

    `declared`: the components whose part follows from their declared range; `probe` is the text for the others, None
    if all are declared.
    """

    parts: dict[str, float]
    probe: Probe | None
    declared: frozenset[str] = field(default_factory=frozenset)

    @property
    def reward(self) -> float:
        return sum(self.parts.values())

    @property
    def source(self) -> str:
        if not self.declared:
            return "found"
        return "declared" if self.probe is None else "partly declared"

    @property
    def answered(self) -> bool:
        """Whether there is an answer, right or wrong."""
        return self.probe is None or self.probe.score.outcome in (Outcome.CORRECT, Outcome.WRONG)

    @property
    def words(self) -> int:
        return 0 if self.probe is None else words_of(self.probe)


def most_telling(total: Total) -> tuple[float, bool, int]:
    """Orders totals of wrong answers: of those that earn the same, the one that says most in the fewest words."""
    return total.reward, total.answered, -total.words


def contribution(weight: float, values: tuple[float, float]) -> tuple[float, float]:
    """What a component of this range adds to the reward, the least first. A negative weight swaps the ends."""
    if weight == 0:
        return 0.0, 0.0
    low, high = sorted(weight * value for value in values)
    return low, high


def totals_of(rubric: Rubric, probes: Sequence[Probe], right_answers: bool) -> Iterable[Total]:
    """Rewards of right answers (the least that each can be) or of wrong ones (the most).

    Those of the texts as they are; and those of the declared ranges, each with what the components without one got
    in one text.
    """
    end = 0 if right_answers else 1
    declared = {
        name: contribution(rubric.weights[name], given.right if right_answers else given.wrong)[end]
        for name, given in rubric.ranges.items()
    }
    if declared.keys() == rubric.funcs.keys():
        yield Total(declared, None, frozenset(declared))
    elif declared:
        for probe in probes:
            if right_answers or probe.score.outcome is Outcome.WRONG:
                yield Total(_parts(probe) | declared, probe, frozenset(declared))
    for probe in probes:
        yield Total(_parts(probe), probe)


def _parts(probe: Probe) -> dict[str, float]:
    return {name: probe.score.weights[name] * value for name, value in probe.score.components.items()}


def component_line(rubric: Rubric, name: str, right: Sequence[Probe], wrong: Sequence[Probe]) -> dict[str, Any]:
    """The line of the table about a component."""
    line: dict[str, Any] = {"name": name, "weight": rubric.weights[name], "decides": name == rubric.correctness}
    for kind, probes in (("right", right), ("wrong", wrong)):
        declared, values = rubric.ranges.get(name), _found(name, probes)
        if declared is not None:
            low, high = getattr(declared, kind)
        elif values:
            low, high = values[0].score.components[name], values[-1].score.components[name]
        else:
            line[kind] = None
            continue
        least, most = contribution(rubric.weights[name], (low, high))
        line[kind] = {
            "low": low,
            "high": high,
            "source": "declared" if declared is not None else "found",
            "adds": [least, most],
            "shown": [_brief(values[0]), _brief(values[-1])] if values else [],
        }
    return line


def _found(name: str, probes: Sequence[Probe]) -> list[Probe]:
    """The texts for which a component said something, by what it said."""
    with_value = [probe for probe in probes if name in probe.score.components]
    return sorted(with_value, key=lambda probe: probe.score.components[name])


def _brief(probe: Probe) -> str:
    return f"{probe.name} (example {probe.text.subject.example.id})"


def as_figures(total: Total | None) -> dict[str, Any] | None:
    if total is None:
        return None
    return {
        "reward": total.reward,
        "parts": total.parts,
        "source": total.source,
        "shown": _brief(total.probe) if total.probe is not None else None,
    }


def words_of(probe: Probe) -> int:
    return sum(len(text.split()) for text in _said(probe.text.completion))


def _said(completion: Script) -> list[str]:
    if isinstance(completion, str):
        return [completion]
    return [str(message.get("content") or "") for message in completion if message.get("role") == "assistant"]
