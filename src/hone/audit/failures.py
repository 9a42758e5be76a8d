"""What findings are made of: the texts that they show, and those of graders that fail."""

from __future__ import annotations

from collections.abc import Sequence

from hone.audit.probes import Probe, Prober
from hone.audit.report import Finding, Shown, Verdict
from hone.grading import last_line
from hone.types import Outcome

SHOWN = 3
"""How many texts a finding shows."""


def failures(probes: Sequence[Probe]) -> list[Finding]:
    """At most one finding `raises` and one `hangs` for all of the probes."""
    total = len(probes)
    found = []
    raised = [probe for probe in probes if probe.score.outcome is Outcome.GRADER_ERROR]
    hung = [probe for probe in probes if probe.score.outcome is Outcome.GRADER_TIMEOUT]
    if raised:
        names = tuple(dict.fromkeys(probe.name for probe in raised))
        reason = last_line(raised[0].score.detail)
        found.append(
            Finding(
                "raises",
                Verdict.FAIL,
                f"the grader fails on {len(raised)} of {total} texts ({listed(names)}): {reason}",
                "return 0.0 for what cannot be read, whatever a model writes; such a sample has no reward and is lost",
                names,
                shown(raised, "a reward, be it 0"),
            )
        )
    if hung:
        names = tuple(dict.fromkeys(probe.name for probe in hung))
        seconds = max(probe.score.seconds for probe in hung)
        took = f", after {seconds:.1f} s" if seconds else ""
        found.append(
            Finding(
                "hangs",
                Verdict.FAIL,
                f"the grader was stopped at {len(names)} {'text' if len(names) == 1 else 'texts'}{took}: "
                f"{listed(names)}; {last_line(hung[0].score.detail)}",
                "limit what the grader computes: no eval of a model's text, no powers of powers, no regular expression "
                "that tries all ways to split a text",
                names,
                shown(hung, "a reward within milliseconds"),
            )
        )
    return found


def is_steady(prober: Prober, probes: Sequence[Probe], most: int = 8) -> bool:
    """Whether texts are graded now as they were before: one of each name, the first ones."""
    firsts = {probe.name: probe for probe in reversed([probe for probe in probes if not probe.failed])}
    before = list(firsts.values())[-most:]
    again = prober.grade([probe.text for probe in before])
    return all(
        (old.score.outcome, old.score.reward) == (new.score.outcome, new.score.reward)
        for old, new in zip(before, again, strict=False)
    )


def unsteady(prober: Prober, probes: Sequence[Probe]) -> list[Finding]:
    """That nothing can be said, for the same text is graded in two ways; once for all that the prober grades."""
    if prober.unsteady:
        return []
    prober.unsteady = True
    title = "the same text was graded in two ways, so that nothing can be said about what is paid for what"
    remedy = "let the reward depend on the completion and the example alone: no clock, no draws, no memory"
    return [Finding("unsteady", Verdict.WARN, title, remedy, (), shown(probes, "the same reward each time"))]


def shown(probes: Sequence[Probe], expected: str) -> tuple[Shown, ...]:
    """Up to three of the probes to look at: short texts first, and of different names where there are."""
    ordered = sorted(probes, key=lambda probe: len(str(probe.text.completion)))
    firsts: dict[str, Probe] = {}
    for probe in ordered:
        firsts.setdefault(probe.name, probe)
    rest = [probe for probe in ordered if firsts[probe.name] is not probe]
    return tuple(probe.shown(expected) for probe in [*firsts.values(), *rest][:SHOWN])


def listed(names: Sequence[str], most: int = 6) -> str:
    """The first names, and how many more there are."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")
