"""`hone verify RUN`: check its files against their hashes, and execute random steps again.

hone verify outputs --steps 3
"""

from __future__ import annotations

import secrets
import shlex

from hone import trust
from hone.commands.status import Status, print_labelled
from hone.environments import services
from hone.errors import UserError
from hone.extensions.reproduce import integrity, machine
from hone.extensions.reproduce.config import VerifyConfig
from hone.extensions.reproduce.execution import Rebuilt, why_not_resampled
from hone.extensions.reproduce.rebuild import exported_parameters, open_run, read_precision, rebuild
from hone.extensions.reproduce.verify import (
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
"""Number of damaged files, or machine differences, to list. The certificate lists all."""


def run(config: VerifyConfig) -> int:
    """Verify and write the certificate; return the exit code of the verdict."""
    recorded = open_run(config.run)
    with trust.opened_run(recorded.path, recorded.info, config.trust_local_task, config.reward):
        return verify(recorded, config)


def verify(recorded: Run, config: VerifyConfig) -> int:
    info, here, precision = recorded.info, machine.this_machine, read_precision(recorded)
    print_labelled("run", f"{recorded.path}: hone {info['kind']}, {status_of(info, None)}, {info['id']}")
    status = Status()
    by = recorded.config.get("model", {}).get("implementation", "auto")
    checked = integrity.check(recorded, fingerprint, lambda folder: exported_parameters(folder, precision, by), status)
    status.clear()
    counts = ", ".join(f"{count} {what}" for what, count in checked.counts.items() if count)
    found = f"{len(checked.damages)} damaged" if checked.damages else "all files fit their hashes"
    print_labelled("files", f"{counts or 'none'}: {found}")
    verification = Verification("damaged" if checked.damages else "files only", checked)
    notes = verification.notes
    notes += [f"the run itself says that it is not reproducible: {cause}" for cause in machine.inexact(info)]
    if checked.damages and config.steps:
        notes.append("no step was executed again, because the run's files have changed")
    elif config.steps and (other_numerics := provenance.other_numerics(info)):
        verification.verdict, verification.reasons = "not comparable", [other_numerics]
    elif config.steps:
        rebuilt = rebuild(recorded, config.model, files_checked=True)
        services.record_in(recorded.path, "only")
        execute(recorded, rebuilt, config, verification)
        here = lambda: rebuilt.machine  # noqa: E731
    elif open_steps := unhashed_steps(checked):
        notes.append(f"the files of step {open_steps[-1]} have no hash: only executing it again can check them")
    verdict = verification.verdict
    try:
        certificate = str(verification.write_certificate(recorded, here()))
    except UserError as error:  # the verdict stands without it
        certificate = f"none: {error}"
    for note in notes:
        print_labelled("note", note)
    print_labelled("verdict", f"{verdict}: {explain(verification)}")
    executed = verification.steps or verification.evaluation
    listed = checked.damages if verdict == "damaged" else verification.reasons if executed else []
    for item in listed[:SHOWN]:
        print(f"  {item}")
    if len(listed) > SHOWN:
        print(f"  and {len(listed) - SHOWN} more, in the certificate")
    print_labelled("certificate", certificate)
    following = {"files only": "verify --steps 3", "differs": "replay"}
    if verdict in following:
        print_labelled("next", f"hone {following[verdict]} {shlex.quote(str(recorded.path))}")
    return EXIT_CODES[verdict]


def execute(recorded: Run, rebuilt: Rebuilt, config: VerifyConfig, verification: Verification) -> None:
    """Execute randomly chosen steps again, if possible, and set the verdict."""
    notes = verification.notes
    evaluated, unhashed = _last_evaluation(recorded, rebuilt), unhashed_steps(verification.checked)
    taken = sorted({*rebuilt.records.updates, *unhashed} - {rebuilt.records.last_evaluation})
    verification.candidates = candidates = [step for step in taken if rebuilt.nearest(step) is not None]
    verification.reasons = machine.differences(recorded.info, rebuilt.machine, ranks=False)
    verification.resampled, verification.regraded = rebuilt.resamples, rebuilt.regrades
    verification.limit = rebuilt.limit
    where = f"{rebuilt.missing_model}; give its place with --model"
    if rebuilt.first:
        where = f"at step {rebuilt.first} the run was resumed with --allow-drift, and config.toml is for later steps"
    lost = [step for step in taken if step not in (*candidates, evaluated)]
    if lost and candidates:
        notes.append(f"steps {lost[0]} to {lost[-1]} can't be executed again: {where}")
    if unchecked := [step for step in unhashed if step in lost]:
        notes.append(f"the files of step {unchecked[0]} can't be checked: they have no hash")
    if not verification.resampled:
        if rebuilt.regrades:
            why = why_not_resampled(rebuilt.config, recorded)
            anew = "recorded completions are graded and trained on again"
        else:
            why = "a program made the rollouts of this run, and is not run again"
            anew = "recorded rollouts are trained on again, with their recorded rewards"
        notes.append(f"{why}: {anew}; evaluations and the canary are not checked")
    elif not rebuilt.evaluates and rebuilt.records.last_evaluation is not None:
        notes.append("a program makes the evaluations of this run, and is not run again: they are not checked")
    if getattr(rebuilt.config, "teacher", None) is not None:
        notes.append("the teacher's scores of tokens are taken from the records")
    if verification.limit:
        ranks = f"the run was trained on up to {most_ranks(recorded.info)} ranks"
        notes.append(f"{ranks}: training counts as equal up to a relative difference of {verification.limit:g}")
    steps: list[int] = []
    if candidates:
        verification.seed = secrets.randbits(32) if config.seed is None else config.seed
        steps = choose_steps(candidates, config.steps, verification.seed)
        chosen = f"chosen out of {len(candidates)} with --seed {verification.seed}"
        more = [step for step in unhashed if step in candidates and step not in steps]
        chosen += f"; and {', '.join(map(str, more))}, which have no hash yet" if more else ""
        print_labelled("steps", f"{', '.join(map(str, steps))}: {chosen}")
        steps = sorted([*steps, *more])
    status = Status()

    def on_end(check: StepCheck) -> None:
        status.clear()
        way = f"from {check.start}" + (f", {check.replayed} replayed" if check.replayed else "")
        outcome = "equal" if check.difference is None else "differs"
        what = "at the end" if check.is_evaluation else f"step {check.step}"
        print_labelled(what, f"{outcome} ({way}, {check.seconds:.1f} s)")

    check_steps(
        verification,
        rebuilt,
        steps,
        evaluated,
        on_end,
        on_replay=lambda step: status(f"replaying step {step}"),
        on_repeat=lambda step: status(f"executing step {step} again"),
    )
    if not steps and verification.difference is None:
        verification.verdict = "not comparable"
        problem = f"{where}, and there is no checkpoint" if taken else "the run recorded none"
        verification.reasons = [f"no step can be executed again: {problem}"]


def _last_evaluation(recorded: Run, rebuilt: Rebuilt) -> int | None:
    """Return the version of the run's last evaluation, recorded or due; None if it can't be repeated."""
    updates = rebuilt.records.updates
    if not (rebuilt.resamples and rebuilt.evaluates):
        return None
    version = rebuilt.records.last_evaluation
    if version is None and recorded.info["status"] in WITH_EVALUATION and updates:
        version = updates[-1] + 1
    return version if version is not None and rebuilt.nearest(version) is not None else None


def explain(verification: Verification) -> str:
    verdict, found, steps = verification.verdict, verification.difference, verification.steps
    if verdict == "damaged":
        return "files of the run do not fit their hashes"
    if verdict == "files only":
        return (
            "all files fit their hashes; no step was executed again, so completions, scores or weights may be made up"
        )
    if verdict == "verified":
        what = f"{len(steps)} step{'s' if len(steps) > 1 else ''}"
        what += " and the evaluation at the end" if verification.evaluation else ""
        recorded = "completions" if verification.regraded else "completions and rewards"
        from_recorded = "" if verification.resampled else f" from their recorded {recorded}"
        exactly = f"up to {verification.limit:g}" if verification.limit else "bit for bit"
        although = ", although these differ from the run's:" if verification.reasons else ""
        return f"all files fit their hashes, and {what} came out equal{from_recorded}, {exactly}{although}"
    if found is None:
        return verification.reasons[0]
    if verdict == "not comparable":
        return f"{found.sentence()}\n  which proves nothing, because these differ from the run's:"
    same = "machine, versions and sources are as in the run"
    return f"{found.sentence()}\n  {same}: the run's record was changed, or something in the run can't be repeated"
