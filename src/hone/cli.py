"""`hone COMMAND ...`: finds the command in a table, parses its typed config, calls `run(config)` of its module."""

from __future__ import annotations

import atexit
import errno
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from difflib import get_close_matches
from functools import partial
from importlib import import_module
from typing import Any, NamedTuple

from hone import __version__
from hone.errors import UserError


class Command(NamedTuple):
    """A line of `hone --help`, and where the command's config class is, below hone.config.

    Its first word is the module in hone.commands whose `run(config) -> exit code` does the work.
    """

    summary: str
    config_class: str

    def config(self) -> Any:
        """Import the class of the config."""
        module, name = self.config_class.split(".")
        return getattr(import_module(f"hone.config.{module}"), name)


COMMANDS = {
    "quickstart": Command("a tiny model from nothing, in minutes", "init.QuickstartConfig"),
    "examples": Command("list or copy the recipes of hone", "init.ExamplesConfig"),
    "init-model": Command("write a small model made from nothing", "init.InitModelConfig"),
    "init-env": Command("write a task of your own to start from", "init.InitEnvConfig"),
    "sft": Command("imitate a data set or demonstrations", "sft.SFTConfig"),
    "rl": Command("reinforce with a verifiable reward", "rl.RLConfig"),
    "trainer": Command("the trainer's part of `rl` in several processes", "rl.TrainerRole"),
    "orchestrator": Command("the driver of `rl` in several processes", "rl.OrchestratorRole"),
    "eval": Command("measure a model on held-out examples", "eval.EvalConfig"),
    "inference": Command("serve a model over the OpenAI protocol", "inference.ServeConfig"),
    "plan": Command("what a run will do, take and cost, before it starts", "plan.PlanConfig"),
    "audit": Command("find a broken reward, or chat template, beforehand", "audit.AuditConfig"),
    "replay": Command("retrain a run from its recorded rollouts", "reproduce.ReplayConfig"),
    "verify": Command("check a run: its files, and steps done again", "reproduce.VerifyConfig"),
    "diff": Command("where two runs part: step and quantity", "reproduce.DiffConfig"),
    "regrade": Command("grade a run's completions with another grader", "reproduce.RegradeConfig"),
    "view": Command("look at runs in a browser: curves, and their samples", "view.ViewConfig"),
    "report": Command("the run card: what came of a run, and how sure", "report.ReportConfig"),
    "doctor": Command("what is wrong on this machine, and what mends it", "plan.DoctorConfig"),
    "runs list": Command("all runs under a folder, and how they stand", "runs.RunsListConfig"),
    "runs show": Command("one page on a run, and what to do next", "runs.RunsShowConfig"),
    "runs stop": Command("end a run that is at work, saved", "runs.RunsStopConfig"),
    "runs continue": Command("let a run that is paused go on", "runs.RunsContinueConfig"),
    "runs attach": Command("watch a run that is at work", "runs.RunsAttachConfig"),
    "runs ledger": Command("what became of every draw of a run", "runs.RunsLedgerConfig"),
    "runs predictions": Command("what you predicted, and how well the probabilities fit", "runs.RunsPredictionsConfig"),
}
"""By name; commands of two words form a group, which its first word alone lists."""
GROUPS = {"runs": "look at runs, and end one"}
"""Line of a group in `hone --help`."""
RANKED = ("sft", "trainer")
"""Commands that torchrun starts several processes of, its ranks."""


def main(argv: list[str] | None = None) -> int:
    """The console script `hone`. Returns the exit code."""
    argv = sys.argv[1:] if argv is None else argv
    if not argv or argv[0] in ("-h", "--help", "help"):
        return _guarded(_print_commands)
    if argv[0] == "--version":
        return _guarded(lambda: print(f"hone {__version__}"))
    if argv[0] in GROUPS and argv[1:] in ([], ["-h"], ["--help"]):
        return _guarded(lambda: _print_commands(argv[0]))
    words = 2 if argv[0] in GROUPS else 1
    name = " ".join(argv[:words])
    if name not in COMMANDS:
        return _fail(f"hone has no command {name!r}: {_nearest(name)}")
    return call(name, argv[words:], f"hone {name}")


def script(name: str, prog: str = "") -> int:
    """Run a command under the name of its own console script. Returns the exit code."""
    return call(name, sys.argv[1:], prog or name)


sft, rl, inference = partial(script, "sft"), partial(script, "rl"), partial(script, "inference")
trainer, orchestrator = partial(script, "trainer"), partial(script, "orchestrator")
vf_eval = partial(script, "eval", "vf-eval")


def call(name: str, argv: list[str], prog: str) -> int:
    """Run one command. Returns its exit code; 2 after one sentence on what a user can mend; 130 for Ctrl-C."""
    if name not in RANKED:
        return _guarded(lambda: _run(name, argv, prog))
    follows = int(os.environ.get("WORLD_SIZE") or 1) > 1 and int(os.environ.get("RANK") or 0) > 0
    try:
        code = _guarded(lambda: _run(name, argv, prog), quiet=follows)
    except BaseException:
        if _is_among_ranks():
            traceback.print_exc()
            _end_at_once(1)
        raise
    if _is_among_ranks():
        atexit._run_exitfuncs()
        _end_at_once(code)
    return code


def _run(name: str, argv: list[str], prog: str) -> int:
    from hone.commands import detach

    try:
        from hone.config.parse import parse
    except ImportError:
        if name != "doctor":
            raise
        from hone.commands import doctor  # it needs the standard library only, and says what is missing

        return doctor.run_without_config(argv)
    detach.end_with_launcher()
    config = parse(COMMANDS[name].config(), argv, prog)
    if getattr(config, "detach", False):
        if not detach.in_background():
            return detach.start(name, argv)
        detach.enter()
    prepare_process()
    return import_module(f"hone.commands.{name.split()[0].replace('-', '_')}").run(config)


def prepare_process() -> None:
    """Set what libraries read when they are imported; what the user has set stays."""
    # How long libgomp's threads spin while they wait for work. Sampling from 0.6B parameters on two cores (tokens/s,
    # alone / beside a busy process): 1000 80 / 50, 3000 92 / 42, 10000 95 / 32, 300000 (its default) 102 / 24.
    os.environ.setdefault("GOMP_SPINCOUNT", "3000")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


def _is_among_ranks() -> bool:
    """Return True if this process joined other ranks, whether or not it has left them."""
    parallel = sys.modules.get("hone.trainer.parallel")
    return parallel is not None and parallel.has_joined


def _end_at_once(code: int) -> None:
    """End without the interpreter's own end: after an error it would wait for other ranks, and they for that end; else
    it may abort over a thread of gloo or of a checkpoint.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _guarded(action: Callable[[], int | None], quiet: bool = False) -> int:
    """Return the exit code of `action`, whatever ends it short of a bug. `quiet`: rank 0 says what was wrong."""
    try:
        code = action() or 0
        sys.stdout.flush()
        return code
    except UserError as error:
        if not quiet:
            return _fail(str(error))
        _let_the_first_rank_speak()
        return 2
    except KeyboardInterrupt:
        return 130
    except OSError as error:
        if error.errno not in (errno.EPIPE, errno.EIO) or error.filename is not None:
            raise
        # The reader or the terminal has left: nothing to say, and nothing for the last flush to trip over.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141


def _let_the_first_rank_speak() -> None:
    """Wait until rank 0 comes to the same error: torchrun ends all ranks as soon as one has ended."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(1)


def _fail(sentence: str) -> int:
    print(f"error: {sentence}", file=sys.stderr)
    return 2


def _nearest(name: str) -> str:
    """Return what may have been meant by a command that does not exist."""
    prefix = f"{name.split()[0]} " if " " in name else ""
    known = [other.removeprefix(prefix) for other in [*COMMANDS, *GROUPS] if other.startswith(prefix)]
    known = [other for other in known if " " not in other]
    close = get_close_matches(name.split()[-1], known, n=1, cutoff=0.5)
    return f"did you mean `hone {prefix}{close[0]}`?" if close else f"there are {', '.join(known)}"


def _print_commands(group: str = "") -> None:
    """Print all commands, or those of a group."""
    words = f" {group}" if group else ""
    about = GROUPS.get(group, "reinforcement learning with verifiable rewards, reproducible to the bit")
    print(f"usage: hone{words} COMMAND ...\n\n{about[0].upper()}{about[1:]}.\n")
    lines = {name: command.summary for name, command in COMMANDS.items() if name.rpartition(" ")[0] == group}
    for other, summary in GROUPS.items() if not group else ():
        lines[other] = f"{summary}: {', '.join(name.split()[1] for name in COMMANDS if name.startswith(f'{other} '))}"
    width = max(map(len, lines)) + 2
    for name, summary in lines.items():
        print(f"  {name:<{width}}{summary}")
    files = "" if group else " A config file is given as `@ FILE.toml`; flags win over files."
    print(f"\n`hone{words} COMMAND --help` lists a command's keys.{files}")


if __name__ == "__main__":
    sys.exit(main())
