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
"""Wall time of grading a text may be this many times its processor time: then a grader that sleeps is ended."""
_NOT_ISOLATED = Finding(
    "not-isolated",
    Verdict.NOTE,
    "what may hang a grader, or be executed by one, was not tried: no other process can load this task",
    "load it by its id, with arguments that JSON can hold",
)
_EXPLAINS = {
    "always-right": {"false-positive", "garbage-paid", "inversion", "no-signal"},
    "nondeterministic": {
        "reference", "false-negative", "growth", "false-positive", "garbage-paid", "always-right",
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
    """Audit a task in full, on `num_examples` examples of `split`, drawn by `seed`.

    All functions of the task run in worker processes, also those marked `inline`; a text may take `timeout` seconds.
    If no other process can load the task, texts hostile to a grader are left out. `max_tokens` limits a completion,
    `count_tokens` measures a text. `allows` are intended findings, and why, besides the task's own
    (`Environment.audit_allows`). `more` are further checks, as of a model. Raises UserError if the task has no data.
    """
    began = time.perf_counter()
    isolated, env.isolated = env.isolated, True
    limits, env.limits = env.limits, Limits(timeout=timeout, backstop=BACKSTOP)
    try:
        prober = Prober(env, subjects_of(env, num_examples, seed, split), seed)
        progress("the reference")
        reference, probes = check_reference(prober)
        checks = [reference if env.has_workers else _with(reference, [*reference.findings, _NOT_ISOLATED])]
        if _is_gradable(probes):
            for other in env.splits:
                if probes and other != split:
                    check, _ = check_reference(Prober(env, subjects_of(env, num_examples, seed, other), seed))
                    summary = f"{check.summary}, of the {other} split"
                    checks.append(replace(check, name=f"{other} split", summary=summary))
            checks += _check_rewards(prober, probes, env.has_workers, progress)
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
    return _report(env, checks, facts, allows or {}, began)


def audit_before_training(
    env: Environment,
    *,
    seed: int = 0,
    max_tokens: int | None = None,
    count_tokens: Callable[[str], int] | None = None,
) -> Report:
    """Audit a task in short: nothing that hangs a sound grader or is run by an unsound one, and no fresh processes."""
    began = time.perf_counter()
    prober = Prober(env, subjects_of(env, FAST_REFERENCES, seed), seed)
    reference, probes = check_reference(prober)
    checks = [reference]
    prober = replace(prober, subjects=prober.distinct[:FAST_EXAMPLES])
    if _is_gradable(probes):
        probes = [probe for probe in probes if probe.text.subject in prober.subjects]
        checks += _check_rewards(prober, probes, False, lambda words: None)
        checks.append(check_instructions(prober, max_tokens, count_tokens))
    facts = {"examples": len(prober.subjects), "texts": len(probes), "split": "train", "seed": seed, "part": "fast"}
    return _report(env, checks, facts, {}, began)


def _is_gradable(references: Sequence[Probe]) -> bool:
    """Return False if no reference got a reward: then there is nothing to try beyond them."""
    return not references or not all(probe.failed for probe in references)


def _check_rewards(prober: Prober, probes: list[Probe], hostile: bool, progress: Callable[[str], None]) -> list[Check]:
    """Check the rewards; `probes` holds those of the references, and gets the others added."""
    checks = []
    if any(probe.correct for probe in probes):
        progress("harmless styles")
        check, made = check_restylings(prober, probes)
        checks.append(check)
        probes += made
    progress("exploits")
    check, made = check_exploits(prober, hostile, probes)
    probes += made
    progress("the best of a wrong answer, the worst of a right one")
    return [*checks, check, check_inversion(prober, probes)]


def _report(
    env: Environment, checks: Sequence[Check], facts: dict[str, Any], allows: Mapping[str, str], began: float
) -> Report:
    unused = {name.replace("_", "-") for name in allows}
    unused -= {key for check in checks for finding in check.findings for key in _keys(finding)}
    report = allowing(Report(env.id, tuple(checks), facts), {**env.audit_allows, **allows})
    explained = set().union(*(_EXPLAINS[name] for name in report.names() & _EXPLAINS.keys()))
    checks = [_with(check, [f for f in check.findings if f.name not in explained]) for check in report.checks]
    if unused:
        title = f"allowed, but not found: {', '.join(sorted(unused))}"
        remedy = "compare with the names of the findings, or leave it out"
        checks[0] = _with(checks[0], [*checks[0].findings, Finding("unused-allow", Verdict.NOTE, title, remedy)])
    return replace(report, checks=tuple(checks), seconds=time.perf_counter() - began)


def _with(check: Check, findings: Sequence[Finding]) -> Check:
    return replace(check, findings=tuple(findings))


def _keys(finding: Finding) -> list[str]:
    """Return what a finding, and each text of it, is allowed by."""
    return [name.replace("_", "-") for name in (finding.name, *(f"{finding.name}:{what}" for what in finding.what))]


def allowing(report: Report, allows: Mapping[str, str]) -> Report:
    """Return the report with the findings that are meant so, by their names, as notes that say why."""
    allowed = {name.replace("_", "-"): reason for name, reason in allows.items()}  # the command line makes _ of a dash
    checks = [_with(check, [_allow(finding, allowed) for finding in check.findings]) for check in report.checks]
    return replace(report, checks=tuple(checks))


def _allow(finding: Finding, allowed: Mapping[str, str]) -> Finding:
    """Return the finding as a note, if all of it is allowed; else without its allowed texts."""
    if finding.verdict in (Verdict.PASS, Verdict.NOTE):
        return finding
    name, *keys = _keys(finding)
    reasons = {what: allowed[key] for what, key in zip(finding.what, keys, strict=True) if key in allowed}
    if name in allowed or (reasons and len(reasons) == len(finding.what)):
        reason = allowed.get(name) or "; ".join(dict.fromkeys(reasons.values()))
        return replace(finding, verdict=Verdict.NOTE, allowed=reason)
    if not reasons:
        return finding
    left = tuple(what for what in finding.what if what not in reasons)
    return replace(finding, what=left, title=f"{finding.title} (allowed: {', '.join(reasons)})")
