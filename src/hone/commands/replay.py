"""`hone replay RUN`: retrain from the recorded rollouts, and see whether the same weights come out.

hone replay outputs
hone replay outputs --to-step 40 --output-dir version_40
"""

from __future__ import annotations

import shlex
import time
from pathlib import Path

from hone.commands.rebuild import Rebuilt, exported_parameters, open_run, read_config, rebuild
from hone.commands.status import Status
from hone.composition.parts import card
from hone.config.reproduce import ReplayConfig
from hone.config.rl import RLConfig
from hone.errors import UserError
from hone.reproduce import machine
from hone.reproduce.replay import Replayed, replay
from hone.runs import Run, provenance
from hone.runs.files import is_complete, new_dir
from hone.runs.outputs import refuse_inside_run
from hone.runs.ranks import most_ranks
from hone.runs.summary import standing
from hone.trainer.export import export_weights


def run(config: ReplayConfig) -> int:
    """Replays; returns 0 if everything came out equal, 1 if not, 3 if it need not on this machine."""
    recorded = open_run(config.run)
    quoted = shlex.quote(str(recorded.path))
    if recorded.info["kind"] != "rl":
        raise UserError(
            f"{recorded.path} is a run of `hone {recorded.info['kind']}`, which has no rollouts to replay: "
            f"`hone verify {quoted}` executes its steps again from its data"
        )
    if other_numerics := provenance.other_numerics(recorded.info):
        print(f"verdict       not comparable: {other_numerics}")
        return 3
    read_config(recorded)
    if config.output_dir is not None:
        check_output(config.output_dir)
    rebuilt = rebuild(recorded, config.model, replay_only=True)
    start, until = span(recorded, rebuilt, config)
    versions = rebuilt.versions
    print(f"run           {recorded.path}: {standing(recorded.info, None)}, {recorded.info['id']}")
    print(f"replaying     steps {start} to {until - 1} from {versions.name(start)}; no environment, no sampling")
    status, began = Status(), time.monotonic()
    result = replay(
        versions,
        start,
        until,
        lambda folder: exported_parameters(folder, rebuilt.config.precision),
        lambda step: status(f"replaying step {step} of {until - 1}"),
    )
    status.clear()
    seconds = time.monotonic() - began
    print(f"replayed      {result.reached - start} steps in {seconds:.1f} s, to version {result.reached}")
    code = _report(recorded, rebuilt, result)
    if config.output_dir is not None:
        _export(rebuilt, result.reached, config.output_dir)
        print(f"weights       version {result.reached}, as replayed: {config.output_dir}")
    if code == 1:
        print(f"next          hone verify {quoted}   (names files that were changed)")
    return code


def span(recorded: Run, rebuilt: Rebuilt, config: ReplayConfig) -> tuple[int, int]:
    """(version to begin with, version to reach). UserError if there is no way from one to the other."""
    versions, updates = rebuilt.versions, rebuilt.versions.records.updates
    if not updates:
        raise UserError(f"{recorded.path} has not recorded a single step, so there is nothing to replay")
    last = updates[-1] + 1
    start = min((version for version in versions.loadable if version < last), default=None)
    if start is None:
        drifted = f"at step {versions.first} the run was resumed with --allow-drift"
        why = drifted if versions.first else rebuilt.without
        raise UserError(
            f"{recorded.path} has no version to begin a replay with: no intact checkpoint of a version before "
            f"{last}, and not the initial model ({why})"
        )
    until = last if config.to_step is None else config.to_step
    if not start < until <= last:
        raise UserError(f"--to-step {until} must be after version {start}, where the replay begins, and at most {last}")
    missing = sorted({*range(start, until)} - versions.records.rollout_steps)
    if missing:
        raise UserError(
            f"{recorded.path} has no rollouts of step {missing[0]}: replay up to there (--to-step {missing[0]})"
        )
    return start, until


def check_output(folder: Path) -> None:
    """UserError if weights written there would replace something, or lie inside a run."""
    if folder.exists() and (not folder.is_dir() or (any(folder.iterdir()) and not is_complete(folder))):
        raise UserError(f"{folder} holds something else: choose an empty or new --output-dir")
    refuse_inside_run(folder, "--output-dir")


def _report(recorded: Run, rebuilt: Rebuilt, result: Replayed) -> int:
    """Says how it came out; returns the exit code."""
    if result.same:
        _report_equal(recorded, rebuilt, result)
        return 0
    if result.difference is not None:
        what = result.difference.sentence("the run", "the replay")
    else:
        what = f"{result.missed} is not what the recorded rollouts lead to"
    # A version is inexact for what was so in the steps before it.
    step = result.reached - 1 if result.difference is None else result.difference.step
    inexact = machine.inexact(recorded.info, step, sampling=False)
    reasons = machine.differences(recorded.info, rebuilt.machine, ranks=False) + inexact
    if not reasons:
        print(f"verdict       differs: {what}")
        if rebuilt.versions.tolerance is not None:
            print(f"  (rounding adds up over the steps since {rebuilt.versions.came_from}, on another number of ranks)")
        return 1
    print(f"verdict       not comparable: {what}\n  which proves nothing, for these are not as they were for the run:")
    print("\n".join(f"  {reason}" for reason in reasons))
    return 3


def _report_equal(recorded: Run, rebuilt: Rebuilt, result: Replayed) -> None:
    if tolerance := rebuilt.versions.tolerance:
        ranks = most_ranks(recorded.info)
        print(
            f"verdict       equal within {tolerance.limit:g}: the run was trained on {ranks} ranks, this is one process"
        )
        print(f"furthest      {tolerance.largest}, of its size")
    else:
        known = rebuilt.versions.records.recorded_fingerprint(result.reached) is not None
        weights = f"version {result.reached} has the recorded fingerprint {result.fingerprint}"
        if not known:
            weights = f"version {result.reached} has the fingerprint {result.fingerprint}, which the run did not record"
        print(f"verdict       equal: every update's metrics and weights are those of the run; {weights}")
    if result.matched:
        print(f"{'close to' if tolerance else 'equal to'}      {', '.join(result.matched)}")


def _export(rebuilt: Rebuilt, version: int, folder: Path) -> None:
    config = rebuilt.config
    assert isinstance(config, RLConfig)
    with new_dir(folder) as fresh:
        export_weights(fresh, rebuilt.versions.execution.trainer.model, rebuilt.renderer, card(config, version))
