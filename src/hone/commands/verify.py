"""`hone verify RUN`: do its files fit their hashes, and do random steps come out equal when done again?

hone verify outputs --steps 3
"""

from __future__ import annotations

import secrets
import shlex
from collections.abc import Sequence
from typing import Any

from hone.commands.status import Status
from hone.config.reproduce import VerifyConfig
from hone.errors import UserError
from hone.reproduce import integrity, machine
from hone.reproduce.rebuild import Rebuilt, exported_parameters, open_run, read_precision, rebuild, why_not_resampled
from hone.reproduce.verify import (
    EXIT_CODES,
    WITH_EVALUATION,
    StepCheck,
    Verification,
    check_steps,
    choose_steps,
    unhashed_steps,
)
from hone.runs import Run, provenance
from hone.runs.provenance import most_ranks
from hone.runs.summary import status_of
from hone.trainer.fingerprint import fingerprint

SHOWN = 12
"""Damaged files, and differences between machines, that are listed; the certificate has all."""


def run(config: VerifyConfig) -> int:
    """Verify and write the certificate; return the exit code of the verdict."""
    recorded = open_run(config.run)
    info = recorded.info
    print(f"run           {recorded.path}: hone {info['kind']}, {status_of(info, None)}, {info['id']}")
    verification, here = verify(recorded, config)
    for note in verification.notes:
        print(f"note          {note}")
    for line in verdict_lines(verification):
        print(line)
    try:
        print(f"certificate   {verification.write_certificate(recorded, here)}")
    except UserError as error:  # the verdict stands without it
        print(f"certificate   none: {error}")
    quoted, done, possible = shlex.quote(str(recorded.path)), len(verification.steps), len(verification.candidates)
    if verification.verdict == "verified" and done < possible:
        print(f"next          hone verify {quoted} --steps {min(possible, max(10, 2 * done))}")
    elif verification.verdict in ("files only", "differs"):
        print(f"next          hone {'replay' if verification.verdict == 'differs' else 'verify --steps 3'} {quoted}")
    return EXIT_CODES[verification.verdict]


def verify(recorded: Run, config: VerifyConfig) -> tuple[Verification, dict[str, Any]]:
    """Return what was found, and the facts about this machine; print how far it is."""
    precision, info = read_precision(recorded), recorded.info
    status = Status()
    checked = integrity.check(recorded, fingerprint, lambda folder: exported_parameters(folder, precision), status)
    status.clear()
    counts = ", ".join(f"{count} {what}" for what, count in checked.counts.items() if count)
    found = f"{len(checked.damages)} damaged" if checked.damages else "all files fit their hashes"
    print(f"files         {counts or 'none'}: {found}")
    verification = Verification("damaged" if checked.damages else "files only", checked)
    notes = verification.notes
    notes += [f"the run itself says that it is not reproducible: {cause}" for cause in machine.inexact(info)]
    other_numerics = provenance.other_numerics(info)
    if checked.damages and config.steps:
        notes.append("no step was executed again, for the files are not those of the run")
    elif config.steps and other_numerics:
        verification.verdict, verification.reasons = "not comparable", [other_numerics]
    elif config.steps:
        rebuilt = rebuild(recorded, config.model, files_checked=True, trust_local_task=config.trust_local_task)
        execute(recorded, rebuilt, config, verification)
        return verification, rebuilt.machine
    elif open_steps := unhashed_steps(checked):
        notes.append(f"what step {open_steps[-1]} wrote has no hash: only executing it again would tell")
    return verification, machine.this_machine()


def execute(recorded: Run, rebuilt: Rebuilt, config: VerifyConfig, verification: Verification) -> None:
    """Execute randomly chosen steps again, as far as they can be, and set the verdict."""
    versions = rebuilt.versions
    evaluated = _last_evaluation(recorded, rebuilt)
    updates, unhashed = versions.records.updates, unhashed_steps(verification.checked)
    taken = sorted({*updates, *unhashed} - {versions.records.last_evaluation})
    candidates = [step for step in taken if versions.nearest(step) is not None]
    verification.candidates = candidates
    verification.reasons = machine.differences(recorded.info, rebuilt.machine, ranks=False)
    verification.resampled = versions.execution.resamples
    verification.tolerance = versions.tolerance and versions.tolerance.limit
    notes = verification.notes
    if versions.first:
        notes.append(
            f"steps before {versions.first} can't be executed again: the run was resumed there with --allow-drift, and "
            "config.toml has the settings from then on"
        )
    elif rebuilt.missing_model and candidates and candidates[0] > taken[0]:
        earlier = f"steps {taken[0]} to {candidates[0] - 1} can't be executed again"
        notes.append(f"{earlier}: {rebuilt.missing_model}; say where it is by --model")
    if lost := [step for step in unhashed if step not in (*candidates, evaluated)]:
        notes.append(f"step {lost[0]} can't be executed again, so nothing tells whether what it wrote changed")
    if not versions.execution.resamples:
        notes.append(
            f"{why_not_resampled(rebuilt.config, recorded)}: those that are recorded are graded and trained on anew; "
            "evaluations and the canary are left aside"
        )
    if versions.tolerance is not None:
        notes.append(
            f"it was trained on up to {most_ranks(recorded.info)} ranks: what training gives counts as equal up to "
            f"{versions.tolerance.limit:g} of its size"
        )
    steps: list[int] = []
    if candidates:
        verification.seed = secrets.randbits(32) if config.seed is None else config.seed
        steps = choose_steps(candidates, config.steps, verification.seed)
        more = [step for step in unhashed if step in candidates and step not in steps]
        print(
            f"steps         {', '.join(map(str, steps))}: chosen out of {len(candidates)} with --seed "
            f"{verification.seed}" + (f"; and {', '.join(map(str, more))}, which have no hash yet" if more else "")
        )
        steps = sorted([*steps, *more])
    status = Status()

    def on_end(check: StepCheck) -> None:
        status.clear()
        way = f"from {check.start}" + (f", {check.replayed} replayed" if check.replayed else "")
        outcome = "equal" if check.difference is None else "differs"
        what = "evaluation" if check.is_evaluation else f"step {check.step}"
        print(f"{what:<14}{outcome} ({way}, {check.seconds:.1f} s)", flush=True)

    check_steps(
        verification,
        versions,
        steps,
        evaluated,
        on_end,
        lambda step: status(f"replaying step {step}"),
        lambda step: status(
            f"executing step {step} again" if step != evaluated else "evaluating the last version again"
        ),
    )
    if not steps and verification.difference is None:
        verification.verdict, problem = "not comparable", "the run recorded none"
        if rebuilt.missing_model:
            problem = f"{rebuilt.missing_model}, and it has no checkpoint; say where the model is by --model"
        verification.reasons = [f"no step can be executed again: {problem}"]


def _last_evaluation(recorded: Run, rebuilt: Rebuilt) -> int | None:
    """Return the version whose evaluation ends the run, if it has one, or should have, and it can be reached."""
    versions, updates = rebuilt.versions, rebuilt.versions.records.updates
    if not versions.execution.resamples:
        return None
    version = versions.records.last_evaluation
    if version is None and recorded.info["status"] in WITH_EVALUATION and versions.execution.evaluates and updates:
        version = updates[-1] + 1
    return version if version is not None and versions.nearest(version) is not None else None


def verdict_lines(verification: Verification) -> list[str]:
    """Format the verdict and what it rests on."""
    verdict, head = verification.verdict, f"verdict       {verification.verdict}: "
    if verdict == "damaged":
        return [head + "files of the run do not fit their hashes", *_listed(verification.checked.damages)]
    found, reasons = verification.difference, _listed(verification.reasons)
    if verdict == "files only":
        unseen = (
            "  only executing steps again finds completions, scores or weights that were made up with hashes to fit"
        )
        return [head + "all files fit their hashes; no step was executed again", unseen]
    if verdict == "verified":
        count = len(verification.steps)
        what = "1 step" if count == 1 else f"{count} steps"
        what += " and the last evaluation" if verification.evaluation else ""
        from_recorded = "" if verification.resampled else " from their recorded completions"
        exactly = f"up to {verification.tolerance:g}" if verification.tolerance else "bit for bit"
        although = ["  although these are not as they were for the run:", *reasons] if reasons else []
        return [head + f"all files fit their hashes, and {what} came out equal{from_recorded}, {exactly}", *although]
    if found is None:
        return [head + verification.reasons[0]]
    if verdict == "not comparable":
        why = "  which proves nothing, for these are not as they were for the run:"
        return [head + found.sentence(), why, *reasons]
    return [
        head + found.sentence(),
        "  machine, versions and sources are those of the run: so its record was changed, or something in it can't be",
        "  repeated, such as a reward function that asks a clock or the network",
    ]


def _listed(items: Sequence[object]) -> list[str]:
    more = [f"  and {len(items) - SHOWN} more, in the certificate"] if len(items) > SHOWN else []
    return [*(f"  {item}" for item in items[:SHOWN]), *more]
