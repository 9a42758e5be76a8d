"""`hone replay RUN`: retrain from the recorded rollouts, and check that the weights are equal.

hone replay outputs
hone replay outputs --output-dir version_40
"""

from __future__ import annotations

import shlex
import time

from hone import trust
from hone.commands.status import Status, print_labelled
from hone.errors import UserError
from hone.extensions.reproduce import machine
from hone.extensions.reproduce.config import ReplayConfig
from hone.extensions.reproduce.execution import Rebuilt
from hone.extensions.reproduce.rebuild import open_run, read_config, rebuild
from hone.extensions.reproduce.replay import Replayed, replay
from hone.loops.parts import card
from hone.runs import Run, provenance
from hone.runs.files import is_complete, new_dir
from hone.runs.outputs import refuse_inside_run
from hone.runs.provenance import most_ranks
from hone.runs.summary import status_of
from hone.trainer.export import add_tokenizer, save_weights


def run(config: ReplayConfig) -> int:
    """Replay; return 0 if everything came out equal, 1 if not, 3 if this machine may compute other numbers."""
    recorded = open_run(config.run)
    with trust.opened_run(recorded.path, recorded.info, config.trust_local_task, config.reward):
        return replay_run(recorded, config)


def replay_run(recorded: Run, config: ReplayConfig) -> int:
    folder = config.output_dir
    path, kind, quoted = recorded.path, recorded.info["kind"], shlex.quote(str(recorded.path))
    if kind != "rl":
        raise UserError(
            f"{path} is a run of `hone {kind}`, which has no rollouts to replay: `hone verify {quoted}` executes its "
            "steps again from its data"
        )
    if other_numerics := provenance.other_numerics(recorded.info):
        print_labelled("verdict", f"not comparable: {other_numerics}")
        return 3
    read_config(recorded)
    if folder is not None:
        if folder.exists() and (not folder.is_dir() or (any(folder.iterdir()) and not is_complete(folder))):
            raise UserError(f"{folder} holds other files: choose an empty or new --output-dir")
        refuse_inside_run(folder, "--output-dir")
    rebuilt = rebuild(recorded, config.model, replay_only=True)
    start, until = span(recorded, rebuilt)
    print_labelled("run", f"{path}: {status_of(recorded.info, None)}, {recorded.info['id']}")
    print_labelled("replaying", f"steps {start} to {until - 1} from {rebuilt.name(start)}; no environment, no sampling")
    status, began = Status(), time.monotonic()
    result = replay(rebuilt, start, until, lambda step: status(f"replaying step {step} of {until - 1}"))
    status.clear()
    seconds = time.monotonic() - began
    print_labelled("replayed", f"{result.reached - start} steps in {seconds:.1f} s, to version {result.reached}")
    code = report(recorded, rebuilt, result)
    if folder is not None:
        with new_dir(folder) as fresh:
            save_weights(fresh, rebuilt.trainer.model)
            add_tokenizer(fresh, rebuilt.renderer, card(rebuilt.config, result.reached))
        print_labelled("weights", f"version {result.reached}, as replayed: {folder}")
    if code == 1:
        print_labelled("next", f"hone verify {quoted}   (names files that were changed)")
    return code


def span(recorded: Run, rebuilt: Rebuilt) -> tuple[int, int]:
    """Return (first version, version to reach). Raises UserError if a step between these versions is not recorded."""
    path, updates = recorded.path, rebuilt.records.updates
    if not updates:
        raise UserError(f"{path} has not recorded a single step, so there is nothing to replay")
    last = updates[-1] + 1
    start = min((version for version in rebuilt.loadable if version < last), default=None)
    if start is None:
        drifted = f"at step {rebuilt.first} the run was resumed with --allow-drift"
        why = drifted if rebuilt.first else rebuilt.missing_model
        raise UserError(f"{path} has no intact checkpoint before version {last}, and no usable initial model ({why})")
    if missing := sorted({*range(start, last)} - rebuilt.records.rollout_steps):
        raise UserError(f"{path} has no rollouts of step {missing[0]}: restore them from another copy of the run")
    return start, last


def report(recorded: Run, rebuilt: Rebuilt, result: Replayed) -> int:
    limit = rebuilt.limit
    if result.same and limit:
        ranks = f"the run was trained on {most_ranks(recorded.info)} ranks, this is one process"
        print_labelled("verdict", f"equal within {limit:g}: {ranks}")
    elif result.same:
        equal = "equal: every update has the run's metrics and weights; fingerprint"
        print_labelled("verdict", f"{equal} {result.fingerprint}")
    if result.same:
        if result.matched:
            print_labelled("equal to", ", ".join(result.matched))
        return 0
    what, step = f"{result.missed} differs from the result of the recorded rollouts", result.reached - 1
    if result.difference is not None:
        what, step = result.difference.sentence("the run", "the replay"), result.difference.step
    reasons = machine.differences(recorded.info, rebuilt.machine, ranks=False)
    reasons += machine.inexact(recorded.info, step, sampling=False)
    print_labelled("verdict", f"{'not comparable' if reasons else 'differs'}: {what}")
    if reasons:
        print_labelled("", "which proves nothing, because these differ from the run's:", *reasons)
    return 3 if reasons else 1
