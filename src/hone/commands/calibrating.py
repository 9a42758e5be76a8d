"""The process of a calibration (`hone plan --calibrate`): the run's real path, with `hone.planning`'s loop in it.

    python -m hone.commands.calibrating PIPE SECONDS PARENT   with the pickled config on standard input

Not a command of its own: `hone.planning.calibration` starts it, so that what runs out of memory is this process. What
libraries read of the environment when they are imported it has from there.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pickle
import signal
import sys
from pathlib import Path

OUT_OF_MEMORY = 3
"""Exit code; the line that says so is in the pipe."""
_PR_SET_PDEATHSIG = 1


def main(pipe: int, seconds: float, parent: int) -> int:
    """Measures; returns the exit code: 0, 2 for what a user can mend (said on stderr), 3 for out of memory."""
    _die_with(parent)
    _die_first()
    config = pickle.load(sys.stdin.buffer)

    from hone.config.rl import RLConfig
    from hone.errors import UserError
    from hone.planning.calibration_stages import Stages
    from hone.runs.budget import process_seconds
    from hone.runs.faults import is_out_of_memory

    stages = Stages(pipe, seconds - process_seconds())
    stages.enter("load")
    try:
        if isinstance(config, RLConfig):
            from hone.commands.rl import watched
            from hone.planning.calibration_rl import RLTrial, one_batch

            evals = config.orchestrator.eval
            trial = RLTrial(stages, evals.num_examples if evals else 0)
            with watched(one_batch(config)) as run, run.inside():
                trial.measure(run)
        else:
            from hone.commands.sft import watched
            from hone.planning.calibration_sft import SFTTrial

            trial = SFTTrial(stages)
            with watched(config) as run, run.inside():
                trial.measure(run)
    except BaseException as error:
        causes = [error]
        while (cause := causes[-1].__cause__ or causes[-1].__context__) is not None and cause not in causes:
            causes.append(cause)
        if memory := next((cause for cause in causes if is_out_of_memory(cause)), None):
            stages.tell(out_of_memory=str(memory).strip().splitlines()[0] if str(memory).strip() else "no memory")
            return OUT_OF_MEMORY
        if isinstance(error, UserError):
            print(f"error: {error}", file=sys.stderr)
            return 2
        raise
    stages.tell(result=trial.result)
    return run.exit_code


def _die_with(parent: int) -> None:
    """Ends this process with the one that started it, however that ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def _die_first() -> None:
    """Where memory runs out, the system ends this process rather than another one."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])))
