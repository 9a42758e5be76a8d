"""`hone verify RUN`: do its files fit their hashes and each other, and do random steps come out equal when done again?

hone verify outputs --steps 3
"""

from __future__ import annotations

import secrets
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hone.commands.rebuild import (
    Rebuilt,
    exported_parameters,
    not_resampled,
    open_run,
    read_precision,
    rebuild,
    this_machine,
)
from hone.commands.status import Status
from hone.config.reproduce import VerifyConfig
from hone.errors import UserError
from hone.reproduce import integrity, machine
from hone.reproduce.certificate import write_certificate
from hone.reproduce.derived import check_derived
from hone.reproduce.integrity import Checked
from hone.reproduce.records import Records
from hone.reproduce.verify import (
    EXIT_CODES,
    WITH_EVALUATION,
    StepCheck,
    Verification,
    check_steps,
    choose,
    unhashed_steps,
)
from hone.runs import Run, provenance
from hone.runs.ranks import most_ranks
from hone.runs.summary import standing
from hone.trainer.fingerprint import fingerprint

_UNSEEN = "  only executing steps again finds completions, scores or weights that were made up with hashes to fit"
_SHOWN = 12
"""Damaged files, and differences between machines, that are listed; the certificate has all."""


def run(config: VerifyConfig) -> int:
    """Verifies and writes the certificate; returns the exit code of its verdict."""
    recorded = open_run(config.run)
    info = recorded.info
    print(f"run           {recorded.path}: hone {info['kind']}, {standing(recorded.info, None)}, {info['id']}")
    verification, here = verify(recorded, config)
    for note in verification.notes:
        print(f"note          {note}")
    for line in verdict_lines(verification):
        print(line)
    try:
        print(f"certificate   {write_certificate(recorded, verification, here)}")
    except UserError as error:  # the verdict stands without it
        print(f"certificate   none: {error}")
    if command := _next(verification, config, recorded.path):
        print(f"next          {command}")
    return EXIT_CODES[verification.verdict]


def verify(recorded: Run, config: VerifyConfig) -> tuple[Verification, dict[str, Any]]:
    """(what was found, the facts about this machine); prints how far it is."""
    precision = read_precision(recorded)
    status = Status()
    checked = integrity.check(recorded, fingerprint, lambda folder: exported_parameters(folder, precision), status)
    other_numerics = provenance.other_numerics(recorded.info)
    if other_numerics is None:
        check_derived(Records(recorded), checked, status)
    status.clear()
    counts = ", ".join(f"{count} {what}" for what, count in checked.counts.items() if count)
    found = f"{len(checked.damages)} damaged" if checked.damages else f"{_covered(checked)} fit their hashes"
    print(f"files         {counts or 'none'}: {found}")
    verification = Verification("damaged" if checked.damages else "files only", checked)
    verification.notes += [
        f"the run says itself that it is inexact: {cause}" for cause in machine.inexact(recorded.info)
    ]
    if not checked.hashed and not checked.damages:
        verification.notes.append(
            "hashes.jsonl does not cover the run: nothing tells whether its metrics and rollouts changed"
        )
    if other_numerics:
        verification.notes.append(f"rewards, advantages and metrics were not recomputed: {other_numerics}")
    if checked.damages and config.steps:
        verification.notes.append("no step was executed again, for the files are not those of the run")
    elif config.steps and other_numerics:
        verification.verdict, verification.reasons = "not comparable", [other_numerics]
    elif config.steps:
        rebuilt = rebuild(recorded, config.model, files_checked=True, trust_local_task=config.trust_local_task)
        execute(recorded, rebuilt, config, verification)
        return verification, rebuilt.machine
    elif open_steps := unhashed_steps(checked):
        verification.notes.append(f"what step {open_steps[-1]} wrote has no hash: only executing it again would tell")
    return verification, this_machine()


def execute(recorded: Run, rebuilt: Rebuilt, config: VerifyConfig, verification: Verification) -> None:
    """Executes randomly chosen steps again, as far as they can be, and sets the verdict."""
    versions = rebuilt.versions
    evaluated = _last_evaluation(recorded, rebuilt)
    updates, unhashed = versions.records.updates, unhashed_steps(verification.checked)
    taken = sorted({*updates, *unhashed} - {versions.records.last_evaluation})
    candidates = [step for step in taken if versions.nearest(step) is not None]
    verification.candidates = candidates
    verification.reasons = machine.differences(recorded.info, rebuilt.machine, ranks=False)
    verification.resampled = versions.execution.resamples
    verification.tolerance = versions.tolerance and versions.tolerance.limit
    if versions.first:
        verification.notes.append(
            f"steps before {versions.first} can't be executed again: the run was resumed there with --allow-drift, and "
            "config.toml has the settings from then on"
        )
    elif rebuilt.without and candidates and candidates[0] > taken[0]:
        earlier = f"steps {taken[0]} to {candidates[0] - 1} can't be executed again"
        verification.notes.append(f"{earlier}: {rebuilt.without}; say where it is by --model")
    if lost := [step for step in unhashed if step not in (*candidates, evaluated)]:
        verification.notes.append(
            f"step {lost[0]} can't be executed again, so nothing tells whether what it wrote changed"
        )
    if not versions.execution.resamples:
        verification.notes.append(
            f"{not_resampled(rebuilt.config, recorded)}: those that are recorded are graded and trained on anew; "
            "evaluations and the canary are left aside"
        )
    if versions.tolerance is not None:
        verification.notes.append(
            f"it was trained on up to {most_ranks(recorded.info)} ranks: what training gives counts as equal up to "
            f"{versions.tolerance.limit:g} of its size"
        )
    steps = _steps(verification, config, unhashed)
    status = Status()

    def replaying(step: int) -> None:
        status(f"replaying step {step}")

    def repeating(step: int) -> None:
        status(f"executing step {step} again" if step != evaluated else "evaluating the last version again")

    def ended(check: StepCheck) -> None:
        status.clear()
        way = f"from {check.start}" + (f", {check.replayed} replayed" if check.replayed else "")
        outcome = "equal" if check.difference is None else "differs"
        what = "evaluation" if check.is_evaluation else f"step {check.step}"
        print(f"{what:<14}{outcome} ({way}, {check.seconds:.1f} s)", flush=True)

    check_steps(verification, versions, steps, evaluated, ended, replaying, repeating)
    if not steps and verification.difference is None:
        verification.verdict = "not comparable"
        problem = rebuilt.without and f"{rebuilt.without}, and it has no checkpoint; say where the model is by --model"
        verification.reasons = [f"no step can be executed again: {problem or 'the run recorded none'}"]


def _steps(verification: Verification, config: VerifyConfig, unhashed: list[int]) -> list[int]:
    """The steps to execute again: some by chance, and those of which only that tells anything."""
    candidates = verification.candidates
    if not candidates:
        return []
    verification.seed = secrets.randbits(32) if config.seed is None else config.seed
    chosen = choose(candidates, config.steps, verification.seed)
    more = [step for step in unhashed if step in candidates and step not in chosen]
    print(
        f"steps         {', '.join(map(str, chosen))}: chosen out of {len(candidates)} with --seed {verification.seed}"
        + (f"; and {', '.join(map(str, more))}, which the run had not yet hashed" if more else "")
    )
    return sorted([*chosen, *more])


def _last_evaluation(recorded: Run, rebuilt: Rebuilt) -> int | None:
    """The version whose evaluation ends the run, if it has one, or should have, and the version can be reached."""
    versions, updates = rebuilt.versions, rebuilt.versions.records.updates
    if not versions.execution.resamples:
        return None
    version = versions.records.last_evaluation
    if version is None and recorded.info["status"] in WITH_EVALUATION and versions.execution.evaluates and updates:
        version = updates[-1] + 1
    return version if version is not None and versions.nearest(version) is not None else None


def verdict_lines(verification: Verification) -> list[str]:
    """The verdict and what stands behind it, in words."""
    verdict, checked = verification.verdict, verification.checked
    head = f"verdict       {verdict}: "
    if verdict == "damaged":
        return [head + "files of the run do not fit their hashes or each other", *_listed(checked.damages)]
    found, reasons = verification.difference, _listed(verification.reasons)
    files = f"{_covered(checked)} fit their hashes"
    if verdict == "files only":
        return [head + f"{files}; no step was executed again", _UNSEEN]
    if verdict == "verified":
        count = len(verification.steps)
        what = "1 step" if count == 1 else f"{count} steps"
        what += " and the last evaluation" if verification.evaluation else ""
        from_recorded = "" if verification.resampled else " from their recorded completions"
        exactly = f"up to {verification.tolerance:g}" if verification.tolerance else "bit for bit"
        lines = [head + f"{files}, and {what} came out equal{from_recorded}, {exactly}"]
        return (
            lines + (["  although these are not as they were for the run:"] if verification.reasons else []) + reasons
        )
    if found is None:
        return [head + verification.reasons[0]]
    if verdict == "not comparable":
        return [
            head + found.sentence(),
            "  which proves nothing, for these are not as they were for the run:",
            *reasons,
        ]
    return [
        head + found.sentence(),
        "  machine, versions and sources are those of the run: so its record was changed, or something in it can't be",
        "  repeated, such as a reward function that asks a clock or the network",
    ]


def _covered(checked: Checked) -> str:
    """Which files there are hashes of."""
    return "all files" if checked.hashed else "checkpoints and weights"


def _listed(items: Sequence[object]) -> list[str]:
    more = [f"  and {len(items) - _SHOWN} more, in the certificate"] if len(items) > _SHOWN else []
    return [*(f"  {item}" for item in items[:_SHOWN]), *more]


def _next(verification: Verification, config: VerifyConfig, path: Path) -> str:
    """The command that would say more."""
    run_name = shlex.quote(str(path))
    done, possible = len(verification.steps), len(verification.candidates)
    if verification.verdict == "verified" and done < possible:
        return f"hone verify {run_name} --steps {min(possible, max(10, 2 * done))}"
    if verification.verdict == "files only":
        return f"hone verify {run_name} --steps 3"
    if verification.verdict == "differs":
        return f"hone replay {run_name}"
    return ""
