"""`hone verify RUN`: are its files as they were written, and do random steps of it come out equal when done again?

hone verify outputs --steps 3
"""

from __future__ import annotations

import secrets
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hone.commands.rebuild import Rebuilt, exported_parameters, open_run, read_config, rebuild, this_machine
from hone.commands.status import Status
from hone.config.reproduce import VerifyConfig
from hone.reproduce import integrity, machine
from hone.reproduce.certificate import write_certificate
from hone.reproduce.verify import EXIT_CODES, StepCheck, Verification, check_steps, choose
from hone.runs import Run
from hone.trainer.fingerprint import fingerprint

_SHOWN = 12
"""Damaged files, and differences between machines, that are listed; the certificate has all."""


def run(config: VerifyConfig) -> int:
    """Verifies and writes the certificate; returns 0 (verified), 1 (differs, damaged) or 3 (not comparable)."""
    recorded = open_run(config.run)
    info = recorded.info
    print(f"run           {recorded.path}: hone {info['kind']}, {info['status']}, {info['id']}")
    verification, here = verify(recorded, config)
    path = write_certificate(recorded, verification, here)
    for note in verification.notes:
        print(f"note          {note}")
    for line in verdict_lines(verification):
        print(line)
    print(f"certificate   {path}")
    if command := _next(verification, config, recorded.path):
        print(f"next          {command}")
    return EXIT_CODES[verification.verdict]


def verify(recorded: Run, config: VerifyConfig) -> tuple[Verification, dict[str, Any]]:
    """(what was found, the facts about this machine); prints how far it is."""
    precision = read_config(recorded).precision
    status = Status()
    checked = integrity.check(recorded, fingerprint, lambda folder: exported_parameters(folder, precision), status)
    status.clear()
    counts = ", ".join(f"{count} {what}" for what, count in checked.counts.items() if count)
    found = f"{len(checked.damages)} damaged" if checked.damages else "all as they were written"
    print(f"files         {counts}: {found}")
    verification = Verification("damaged" if checked.damages else "verified", checked)
    verification.notes += [
        f"the run says itself that it is inexact: {cause}" for cause in machine.inexact(recorded.info)
    ]
    if not checked.hashed:
        verification.notes.append("the run has no hashes.jsonl: nothing tells whether its metrics and rollouts changed")
    if checked.damages or not config.steps:
        if checked.damages and config.steps:
            verification.notes.append("no step was executed again, for the files are not those of the run")
        return verification, this_machine()
    rebuilt = rebuild(recorded, config.model, files_checked=True)
    execute(recorded, rebuilt, config, verification)
    return verification, rebuilt.machine


def execute(recorded: Run, rebuilt: Rebuilt, config: VerifyConfig, verification: Verification) -> None:
    """Executes randomly chosen steps again, as far as they can be, and sets the verdict."""
    versions = rebuilt.versions
    updates = versions.records.updates
    candidates = [step for step in updates if versions.nearest(step) is not None]
    verification.candidates = candidates
    verification.reasons = machine.differences(recorded.info, rebuilt.machine) + machine.inexact(recorded.info)
    if not candidates:
        verification.verdict = "not comparable"
        problem = rebuilt.without and f"{rebuilt.without}, and it has no checkpoint; say where the model is by --model"
        verification.reasons = [f"no step can be executed again: {problem or 'the run recorded none'}"]
        return
    if rebuilt.without and candidates[0] > updates[0]:
        earlier = f"steps {updates[0]} to {candidates[0] - 1} can't be executed again"
        verification.notes.append(f"{earlier}: {rebuilt.without}; say where it is by --model")
    verification.seed = secrets.randbits(32) if config.seed is None else config.seed
    steps = choose(candidates, config.steps, verification.seed)
    print(
        f"steps         {', '.join(map(str, steps))}: chosen out of {len(candidates)} with --seed {verification.seed}"
    )
    status = Status()

    def replaying(step: int) -> None:
        status(f"replaying step {step}")

    def repeating(step: int) -> None:
        status(f"executing step {step} again")

    def ended(check: StepCheck) -> None:
        status.clear()
        way = f"from {check.start}" + (f", {check.replayed} replayed" if check.replayed else "")
        outcome = "equal" if check.difference is None else "differs"
        print(f"step {check.step:<9}{outcome} ({way}, {check.seconds:.1f} s)", flush=True)

    check_steps(verification, versions, steps, ended, replaying, repeating)


def verdict_lines(verification: Verification) -> list[str]:
    """The verdict and what stands behind it, in words."""
    verdict, checked = verification.verdict, verification.checked
    head = f"verdict       {verdict}: "
    if verdict == "damaged":
        return [head + "files of the run are not as they were written", *_listed(checked.damages)]
    found, reasons = verification.difference, _listed(verification.reasons)
    if verdict == "verified":
        if not verification.steps:
            return [head + "all files are as they were written; no step was executed again"]
        count = len(verification.steps)
        what = "1 step came" if count == 1 else f"{count} steps came"
        lines = [head + f"all files are as they were written, and {what} out equal, bit for bit"]
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


def _listed(items: Sequence[object]) -> list[str]:
    more = [f"  and {len(items) - _SHOWN} more, in the certificate"] if len(items) > _SHOWN else []
    return [*(f"  {item}" for item in items[:_SHOWN]), *more]


def _next(verification: Verification, config: VerifyConfig, path: Path) -> str:
    """The command that would say more."""
    run_name = shlex.quote(str(path))
    done, possible = len(verification.steps), len(verification.candidates)
    if verification.verdict == "verified" and done < possible:
        return f"hone verify {run_name} --steps {min(possible, max(10, 2 * done))}"
    if verification.verdict == "differs":
        return f"hone replay {run_name}"
    return ""
