"""The audit of a task: what its reward does with right answers in every style, and with wrong ones that know tricks.

    report = audit_environment(load_environment("gsm8k"))
    report.verdict, report.names()  # fail, {"growth"}

Checks go from the reference over its restylings and the exploits to what follows from all of them: the inversion table,
the signal. The fast part, which `rl` runs before step 0, leaves out what may hang or be executed, what needs fresh
processes, and the model.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from hone.audit.behaviour import check_behaviour
from hone.audit.failures import listed
from hone.audit.instructions import check_instructions
from hone.audit.inversion import check_inversion
from hone.audit.probes import Probe, Prober, subjects_of
from hone.audit.report import Check, Finding, Report, Verdict
from hone.audit.reward import check_exploits, check_reference, check_restylings
from hone.audit.statistics import check_signal
from hone.environments import Environment
from hone.environments.workers import Limits

FAST_REFERENCES, FAST_EXAMPLES = 32, 4
"""Examples whose reference is tried before training, and those that are tried with other texts too."""
BACKSTOP = 3.0
"""By the clock, grading a text may take this many times its processor time: a grader that sleeps is ended then."""
_NOT_ISOLATED = Finding(
    "not-isolated",
    Verdict.NOTE,
    "what may hang a grader, or be executed by one, was not tried: no other process can load this task",
    "load it by its id, with arguments that JSON can hold",
)
_EXPLAINS = {
    "always-right": {"false-positive", "garbage-paid", "inversion", "no-signal"},
    "nondeterministic": {
        "reference", "false-negative", "growth", "style-costs", "false-positive", "garbage-paid", "always-right",
        "inversion", "range", "global-state", "order-dependent", "no-signal", "unsteady",
    },
}  # fmt: skip
"""Findings that follow from another one that fails: they are left out beside it."""


def audit_environment(
    env: Environment,
    *,
    num_examples: int = 32,
    seed: int = 0,
    split: str = "train",
    timeout: float = 2.0,
    max_tokens: int | None = None,
    count_tokens: Callable[[str], int] | None = None,
    allows: Mapping[str, str] | None = None,
    more: Sequence[Callable[[], Check]] = (),
    progress: Callable[[str], None] = lambda words: None,
) -> Report:
    """The full audit, on `num_examples` examples of `split`, drawn by `seed`.

    All functions of the task run in worker processes, also those marked `inline`; a text may take `timeout` seconds.
    Where no other process can load the task, what is hostile to a grader is left out.
    `max_tokens` and `count_tokens` say what a completion may be long, and how long a text is. `allows` are findings
    that are meant so, and why, besides the task's own (`Environment.audit_allows`). `more` are further checks, such as
    of a model. Raises UserError for a task without data.
    """
    began = time.perf_counter()
    isolated, env.isolated = env.isolated, True
    limits, env.limits = env.limits, Limits(timeout=timeout, backstop=BACKSTOP)
    try:
        prober = Prober(env, subjects_of(env, num_examples, seed, split), seed)
        progress("the reference")
        reference, probes = check_reference(prober)
        checks = [reference]
        if not env.has_workers:
            checks[0] = _with(reference, [*reference.findings, _NOT_ISOLATED])
        if _gradable(probes):
            checks += [
                _references_of(env, other, num_examples, seed) for other in env.splits if probes and other != split
            ]
            checks += _of_rewards(prober, probes, env.has_workers, progress)
            progress("the signal")
            checks.append(check_signal(prober, probes))
            progress("the instructions")
            checks.append(check_instructions(prober, max_tokens, count_tokens))
            progress("fresh processes")
            checks.append(check_behaviour(env, prober.subjects))
            checks += [check() for check in more]
    finally:
        env.close_workers()
        env.isolated = isolated
        env.limits = limits
    facts = {"examples": len(prober.subjects), "texts": len(probes), "split": split, "seed": seed, "part": "full"}
    return _report(env, checks, facts, allows, began)


def audit_before_training(
    env: Environment,
    *,
    seed: int = 0,
    max_tokens: int | None = None,
    count_tokens: Callable[[str], int] | None = None,
) -> Report:
    """The fast part: nothing that hangs a sound grader or is executed by an unsound one, and no fresh processes."""
    began = time.perf_counter()
    prober = Prober(env, subjects_of(env, FAST_REFERENCES, seed), seed)
    reference, probes = check_reference(prober)
    checks = [reference]
    prober = replace(prober, subjects=prober.distinct[:FAST_EXAMPLES])
    if _gradable(probes):
        probes = [probe for probe in probes if probe.text.subject in prober.subjects]
        checks += _of_rewards(prober, probes, False, lambda words: None)
        checks.append(check_instructions(prober, max_tokens, count_tokens))
    facts = {"examples": len(prober.subjects), "texts": len(probes), "split": "train", "seed": seed, "part": "fast"}
    return _report(env, checks, facts, None, began)


def _references_of(env: Environment, split: str, num_examples: int, seed: int) -> Check:
    """The references of another split: its answers may be written in another way."""
    check, _ = check_reference(Prober(env, subjects_of(env, num_examples, seed, split), seed))
    return replace(check, name=f"{split} split", summary=f"{check.summary}, of the {split} split")


def _gradable(references: Sequence[Probe]) -> bool:
    """Whether there is anything to try beyond the references: not where none of them got a reward."""
    return not references or not all(probe.failed for probe in references)


def _of_rewards(prober: Prober, probes: list[Probe], hostile: bool, progress: Callable[[str], None]) -> list[Check]:
    """The checks of what is paid for what; `probes`, those of the references, get the others added."""
    checks = []
    if any(probe.correct for probe in probes):
        progress("harmless styles")
        checks.append(_kept(check_restylings(prober, probes), probes))
    progress("exploits")
    checks.append(_kept(check_exploits(prober, hostile, probes), probes))
    progress("the best of a wrong answer, the worst of a right one")
    checks.append(check_inversion(prober, probes))
    return checks


def _kept(result: tuple[Check, list[Probe]], probes: list[Probe]) -> Check:
    """The check; its probes join the others."""
    check, made = result
    probes += made
    return check


def _report(
    env: Environment, checks: Sequence[Check], facts: dict[str, Any], allows: Mapping[str, str] | None, began: float
) -> Report:
    found = [finding for check in checks for finding in check.findings]
    allowed = _by_key({**env.audit_allows, **(allows or {})})
    checks = _once([_with(check, [allow(finding, allowed) for finding in check.findings]) for check in checks])
    failing = {finding.name for check in checks for finding in check.findings if finding.verdict is Verdict.FAIL}
    explained = set().union(*(_EXPLAINS[name] for name in failing & _EXPLAINS.keys()))
    checks = [_with(check, [f for f in check.findings if f.name not in explained]) for check in checks]
    if unused := _by_key(allows or {}).keys() - {key for finding in found for key in _keys(finding)}:
        checks[0] = _with(checks[0], [*checks[0].findings, _unused(sorted(unused))])
    return Report(env.id, tuple(checks), facts, time.perf_counter() - began)


def allowing(report: Report, allows: Mapping[str, str]) -> Report:
    """The report with the findings as notes that are meant so, by their names, and why."""
    allowed = _by_key(allows)
    checks = [_with(check, [allow(finding, allowed) for finding in check.findings]) for check in report.checks]
    return replace(report, checks=tuple(checks))


def _with(check: Check, findings: Sequence[Finding]) -> Check:
    return replace(check, findings=tuple(findings))


def _once(checks: Sequence[Check]) -> list[Check]:
    """The checks with one finding of the texts that the grader raises at, and one of those that it hangs at: in the
    first check that came upon any.
    """
    joined: dict[str, Finding] = {}
    for check in checks:
        for finding in filter(_in_many, check.findings):
            first = joined.get(finding.name)
            joined[finding.name] = finding if first is None else _joined(first, finding, check.name)
    return [
        _with(
            check,
            [joined.pop(f.name) if _in_many(f) else f for f in check.findings if not _in_many(f) or f.name in joined],
        )
        for check in checks
    ]


def _in_many(finding: Finding) -> bool:
    """Whether this is about texts, and may have been found in several checks."""
    return finding.name in ("raises", "hangs") and bool(finding.what) and finding.verdict is Verdict.FAIL


def _joined(one: Finding, other: Finding, check: str) -> Finding:
    """The finding with the texts of another one, from the check of this name."""
    more = [what for what in other.what if what not in one.what]
    title = f"{one.title}; and in {check}: {listed(more)}" if more else one.title
    return replace(one, title=title, what=(*one.what, *more), shown=one.shown + other.shown)


def _by_key(allows: Mapping[str, str]) -> dict[str, str]:
    """Allowed findings by name; the command line makes `_` of a dash."""
    return {name.replace("_", "-"): reason for name, reason in allows.items()}


def _keys(finding: Finding) -> list[str]:
    """What a finding, and each text of it, is allowed by."""
    return [name.replace("_", "-") for name in (finding.name, *(f"{finding.name}:{what}" for what in finding.what))]


def _unused(names: Sequence[str]) -> Finding:
    title = f"allowed, but not found: {', '.join(names)}"
    return Finding("unused-allow", Verdict.NOTE, title, "compare with the names of the findings, or leave it out")


def allow(finding: Finding, allowed: Mapping[str, str]) -> Finding:
    """The finding as a note, if it is allowed as a whole; else without those of its texts that are. Names in `allowed`
    have dashes.
    """
    if finding.verdict in (Verdict.PASS, Verdict.NOTE):
        return finding
    name, *keys = _keys(finding)
    reason = allowed.get(name)
    reasons = {what: allowed[key] for what, key in zip(finding.what, keys, strict=True) if key in allowed}
    if reason is None and reasons and len(reasons) == len(finding.what):
        reason = "; ".join(dict.fromkeys(reasons.values()))
    if reason is not None:
        return replace(finding, verdict=Verdict.NOTE, allowed=reason)
    if not reasons:
        return finding
    left = tuple(what for what in finding.what if what not in reasons)
    return replace(finding, what=left, title=f"{finding.title} (allowed: {', '.join(reasons)})")
