"""The audit of a task: tests its reward with right answers in many styles, and with known reward hacks.

    report = audit_environment(load_environment("gsm8k"))
    report.verdict, report.names()  # fail, {"growth"}

Before step 0, `hone rl` runs only the fast part. It leaves out texts that may hang a grader or run code, checks in
fresh processes, and checks of a model.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from hone.environments import Environment
from hone.environments.environment import Limits
from hone.extensions.audit.behaviour import check_behaviour
from hone.extensions.audit.instructions import check_instructions
from hone.extensions.audit.inversion import check_inversion
from hone.extensions.audit.probes import Prober, subjects_of, with_derived
from hone.extensions.audit.report import Check, Finding, Report, Verdict
from hone.extensions.audit.reward import check_exploits, check_reference, check_restylings
from hone.extensions.audit.statistics import check_signal

FAST_REFERENCES, FAST_EXAMPLES = 32, 4
"""Number of examples in the fast part: for references, and for all other texts."""
BACKSTOP = 3.0
"""Wall-time limit of grading a text, as a multiple of its processor-time limit. It stops a grader that sleeps."""
_NOT_TRIED = "texts that may hang a grader or run code were not tried"
_NOT_ISOLATED = Check(
    "isolation",
    "no other process can load this task",
    (Finding("not-isolated", Verdict.NOTE, _NOT_TRIED, "load the task by its id, with arguments that JSON can hold"),),
)
_EXPLAINS = {
    "always-right": {"false-positive", "garbage-paid", "inversion", "no-signal"},
    "nondeterministic": {
        "reference", "false-negative", "growth", "strict", "false-positive", "garbage-paid", "always-right",
        "inversion", "range", "no-signal",
    },
}  # fmt: skip
"""For each cause, the findings that it explains. They are omitted if the cause is found and not allowed."""


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

    All functions of the task run in worker processes, even `inline` ones. Grading a text may take `timeout` seconds.
    If no other process can load the task, texts that may hang a grader or run code are left out. `max_tokens` is the
    limit of a completion, and `count_tokens` measures references to compare with it. `allows` maps intended findings to
    reasons, in addition to `Environment.audit_allows`. `more` are further checks, such as a check of a model. Raises
    UserError if the task has no data.
    """
    began = time.perf_counter()
    isolated, env.isolated = env.isolated, True
    limits, env.limits = env.limits, Limits(timeout=timeout, backstop=BACKSTOP)
    try:
        prober = with_derived(Prober(env, subjects_of(env, num_examples, seed, split), seed))
        progress("the reference")
        reference = check_reference(prober)
        checks = [reference] if env.has_workers else [reference, _NOT_ISOLATED]
        for other in env.splits:
            if other != split and any(not probe.failed for probe in prober.references):
                check = check_reference(with_derived(Prober(env, subjects_of(env, num_examples, seed, other), seed)))
                checks.append(replace(check, name=f"{other} split", summary=f"{check.summary}, of the {other} split"))
        checks += _further_checks(prober, True, max_tokens, count_tokens, progress)
        checks += [check() for check in more]
    finally:
        env.close_workers()
        env.isolated = isolated
        env.limits = limits
    return _report(prober, checks, {"split": split, "seed": seed, "part": "full"}, allows or {}, began)


def audit_before_training(
    env: Environment,
    *,
    seed: int = 0,
    max_tokens: int | None = None,
    count_tokens: Callable[[str], int] | None = None,
) -> Report:
    """Audit a task quickly: without checks in fresh processes, and without texts that may hang a grader or run code."""
    began = time.perf_counter()
    prober = with_derived(Prober(env, subjects_of(env, FAST_REFERENCES, seed), seed))
    reference = check_reference(prober)
    few = prober.distinct[:FAST_EXAMPLES]
    prober = replace(prober, subjects=few, graded=[probe for probe in prober.graded if probe.text.subject in few])
    checks = [reference, *_further_checks(prober, False, max_tokens, count_tokens)]
    facts = {"split": "train", "seed": seed, "part": "fast", "failed": sum(probe.failed for probe in prober.graded)}
    return _report(prober, checks, facts, {}, began)


def _further_checks(
    prober: Prober,
    full: bool,
    max_tokens: int | None,
    count_tokens: Callable[[str], int] | None,
    progress: Callable[[str], None] = lambda words: None,
) -> list[Check]:
    """Run the remaining checks; return [] if grading failed for every reference."""
    env, references = prober.env, prober.references
    if references and all(probe.failed for probe in references):
        return []
    any_right = any(probe.correct for probe in references)
    steps: list[tuple[str, Callable[[], Check], bool]] = [
        ("harmless styles", lambda: check_restylings(prober), any_right),
        ("exploits", lambda: check_exploits(prober, full and env.has_workers), True),
        ("the best wrong and the worst right answer", lambda: check_inversion(prober), True),
        ("the signal", lambda: check_signal(prober), full),
        ("the instructions", lambda: check_instructions(prober, max_tokens, count_tokens), True),
        ("fresh processes", lambda: check_behaviour(env, prober.subjects), full),
    ]
    checks = []
    for words, check, wanted in steps:
        if wanted:
            progress(words)
            checks.append(check())
    return checks


def _report(
    prober: Prober, checks: Sequence[Check], facts: dict[str, Any], allows: Mapping[str, str], began: float
) -> Report:
    """Return the report: allowed findings become notes, and explained findings are omitted."""
    facts = {"examples": len(prober.subjects), "texts": len(prober.graded), **facts}
    facts |= {"reference": prober.form} if prober.form else {}
    report = Report(prober.env.label, tuple(checks), facts)
    known = {key for finding in report.findings for key in (finding.name, *_keys(finding))}
    report = allowing(report, {**prober.env.audit_allows, **allows})
    causes = (report.names() | report.names(Verdict.WARN)) & _EXPLAINS.keys()
    explained = set().union(*(_EXPLAINS[name] for name in causes))
    report = _with(report, lambda found: found if found.name not in explained else None)
    if unused := {name.replace("_", "-") for name in allows} - known:
        title = f"allowed, but not found: {', '.join(sorted(unused))}"
        remedy = "compare the name with the findings, or leave it out"
        check = Check("allowed", title, (Finding("unused-allow", Verdict.NOTE, title, remedy),))
        report = replace(report, checks=(*report.checks, check))
    return replace(report, seconds=time.perf_counter() - began)


def _with(report: Report, change: Callable[[Finding], Finding | None]) -> Report:
    changed = [(check, [new for old in check.findings if (new := change(old))]) for check in report.checks]
    return replace(report, checks=tuple(replace(check, findings=tuple(findings)) for check, findings in changed))


def _keys(finding: Finding) -> list[str]:
    """Return the key in `allows` (`NAME:WHAT`) for each text of a finding."""
    return [f"{finding.name}:{what}".replace("_", "-") for what in finding.what]


def allowing(report: Report, allows: Mapping[str, str]) -> Report:
    """Turn allowed findings into notes with the reason. If only some texts of a finding are allowed, drop the texts."""
    # The command line turns dashes into underscores.
    allowed = {name.replace("_", "-"): reason for name, reason in allows.items()}

    def allow(finding: Finding) -> Finding:
        pairs = zip(finding.what, _keys(finding), strict=True)
        reasons = {what: allowed[key] for what, key in pairs if key in allowed}
        if finding.verdict in (Verdict.PASS, Verdict.NOTE) or not (reasons or finding.name in allowed):
            return finding
        left = tuple(what for what in finding.what if what not in reasons)
        if finding.name in allowed or not left:
            reason = allowed.get(finding.name) or "; ".join(dict.fromkeys(reasons.values()))
            return replace(finding, verdict=Verdict.NOTE, allowed=reason)
        return replace(finding, what=left, title=f"{finding.title} (allowed: {', '.join(reasons)})")

    return _with(report, allow)
