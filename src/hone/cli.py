"""`hone COMMAND ...`: finds the command, parses its typed config, calls `hone.commands.COMMAND.run(config)`."""

from __future__ import annotations

import errno
import os
import signal
import sys
import time
import traceback
from difflib import get_close_matches
from importlib import import_module
from typing import NamedTuple

from hone import __version__
from hone.errors import UserError


class Command(NamedTuple):
    """Where a command's config class and its `run(config) -> exit code` are found, and its line in `hone --help`."""

    config_module: str
    config_class: str
    module: str
    summary: str


COMMANDS = {
    "init-model": Command(
        "hone.config.init_model", "InitModelConfig", "hone.commands.init_model", "write a small model made from nothing"
    ),
    "init-env": Command(
        "hone.config.init_env", "InitEnvConfig", "hone.commands.init_env", "write a task of your own to start from"
    ),
    "sft": Command("hone.config.sft", "SFTConfig", "hone.commands.sft", "imitate a data set or demonstrations"),
    "rl": Command("hone.config.rl", "RLConfig", "hone.commands.rl", "reinforce with a verifiable reward"),
    "trainer": Command(
        "hone.config.roles", "TrainerRole", "hone.commands.trainer", "the trainer's part of `rl` in several processes"
    ),
    "orchestrator": Command(
        "hone.config.roles", "OrchestratorRole", "hone.commands.orchestrator", "the driver of `rl` in several processes"
    ),
    "eval": Command("hone.config.eval", "EvalConfig", "hone.commands.eval", "measure a model on held-out examples"),
    "inference": Command(
        "hone.config.inference", "ServeConfig", "hone.commands.inference", "serve a model over the OpenAI protocol"
    ),
    "plan": Command(
        "hone.config.plan", "PlanConfig", "hone.commands.plan", "what a run will do, take and cost, before it starts"
    ),
    "audit": Command(
        "hone.config.audit", "AuditConfig", "hone.commands.audit", "find a broken reward, or chat template, beforehand"
    ),
    "replay": Command(
        "hone.config.reproduce", "ReplayConfig", "hone.commands.replay", "retrain a run from its recorded rollouts"
    ),
    "verify": Command(
        "hone.config.reproduce", "VerifyConfig", "hone.commands.verify", "check a run: its files, and steps done again"
    ),
    "diff": Command(
        "hone.config.reproduce", "DiffConfig", "hone.commands.diff", "where two runs part: step and quantity"
    ),
    "regrade": Command(
        "hone.config.reproduce",
        "RegradeConfig",
        "hone.commands.regrade",
        "grade a run's completions with another grader",
    ),
    "view": Command(
        "hone.config.view", "ViewConfig", "hone.commands.view", "look at runs in a browser: curves, and their samples"
    ),
    "report": Command(
        "hone.config.report", "ReportConfig", "hone.commands.report", "the run card: what came of a run, and how sure"
    ),
    "doctor": Command(
        "hone.config.doctor", "DoctorConfig", "hone.commands.doctor", "what is wrong on this machine, and what mends it"
    ),
    "runs list": Command(
        "hone.config.runs", "RunsListConfig", "hone.commands.runs_list", "all runs under a folder, and how they stand"
    ),
    "runs show": Command(
        "hone.config.runs", "RunsShowConfig", "hone.commands.runs_show", "one page on a run, and what to do next"
    ),
    "runs stop": Command(
        "hone.config.runs", "RunsStopConfig", "hone.commands.runs_stop", "end a run that is at work, saved"
    ),
    "runs continue": Command(
        "hone.config.runs", "RunsContinueConfig", "hone.commands.runs_continue", "let a run that is paused go on"
    ),
    "runs attach": Command(
        "hone.config.runs", "RunsAttachConfig", "hone.commands.runs_attach", "watch a run that is at work"
    ),
    "runs ledger": Command(
        "hone.config.runs", "RunsLedgerConfig", "hone.commands.runs_ledger", "what became of every draw of a run"
    ),
    "runs predictions": Command(
        "hone.config.runs",
        "RunsPredictionsConfig",
        "hone.commands.runs_predictions",
        "what you predicted, and how well: Brier score and calibration",
    ),
}
"""By name; commands of two words form a group, which its first word alone lists."""

RANKED = ("sft", "trainer")
"""Commands that torchrun starts several processes of, its ranks."""

GROUPS = {"runs": "look at runs, and end one"}
"""Line of a group in `hone --help`."""


def main(argv: list[str] | None = None) -> int:
    """The console script `hone`. Returns the exit code."""
    argv = sys.argv[1:] if argv is None else argv
    if not argv or argv[0] in ("-h", "--help", "help"):
        return _guarded(_print_commands)
    if argv[0] == "--version":
        return _guarded(lambda: print(f"hone {__version__}"))
    if argv[0] in GROUPS and argv[1:] in ([], ["-h"], ["--help"]):
        return _guarded(lambda: _print_group(argv[0]))
    words = 2 if argv[0] in GROUPS else 1
    name = " ".join(argv[:words])
    if name not in COMMANDS:
        return _fail(f"hone has no command {name!r}: {_nearest(name)}")
    return call(name, argv[words:], f"hone {name}")


def _nearest(name: str) -> str:
    """What may have been meant by a command that does not exist."""
    group = name.split()[0] if " " in name else ""
    of_group = {other.removeprefix(f"{group} "): other for other in COMMANDS if other.startswith(f"{group} ")}
    known = of_group if group in GROUPS else {other: other for other in [*COMMANDS, *GROUPS] if " " not in other}
    close = get_close_matches(name.split()[-1], known, n=1, cutoff=0.5)
    return f"did you mean `hone {known[close[0]]}`?" if close else f"there are {', '.join(known)}"


def sft() -> int:
    """The console script `sft`."""
    return call("sft", sys.argv[1:], "sft")


def rl() -> int:
    """The console script `rl`."""
    return call("rl", sys.argv[1:], "rl")


def trainer() -> int:
    """The console script `trainer`."""
    return call("trainer", sys.argv[1:], "trainer")


def orchestrator() -> int:
    """The console script `orchestrator`."""
    return call("orchestrator", sys.argv[1:], "orchestrator")


def inference() -> int:
    """The console script `inference`."""
    return call("inference", sys.argv[1:], "inference")


def vf_eval() -> int:
    """The console script `vf-eval`."""
    return call("eval", sys.argv[1:], "vf-eval")


def call(name: str, argv: list[str], prog: str) -> int:
    """Run one command. Returns its exit code; 2 for what a user can mend, said in one sentence; 130 for Ctrl-C."""
    command = COMMANDS[name]

    def run() -> int:
        from hone.commands import launched

        try:
            from hone.config.parse import parse
        except ImportError:
            if name != "doctor":
                raise
            from hone.commands import doctor  # it needs the standard library only, and says what is missing

            return doctor.run_without_config(argv)
        launched.enter()
        config = parse(getattr(import_module(command.config_module), command.config_class), argv, prog)
        if getattr(config, "detach", False):
            from hone.commands import detach

            if not detach.in_background():
                return detach.start(name, argv)
            detach.enter()
        prepare_process()
        return import_module(command.module).run(config)

    if name not in RANKED:
        return _guarded(run)
    try:
        code = _guarded(run, quiet=_follows())
    except BaseException:
        if _is_among_ranks():
            traceback.print_exc()
            _end_at_once(1)
        raise
    if _is_among_ranks():
        _end_at_once(code)
    return code


def _is_among_ranks() -> bool:
    """Whether this process has open connections to other ranks: after an error, for else they were closed."""
    distributed = sys.modules.get("torch.distributed")
    return distributed is not None and distributed.is_available() and distributed.is_initialized()


def _end_at_once(code: int) -> None:
    """The interpreter's own end would wait for what is under way with other ranks, and they for that end."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _follows() -> bool:
    """Whether torchrun started this process as another rank than the first, which speaks for all."""
    return int(os.environ.get("WORLD_SIZE") or 1) > 1 and int(os.environ.get("RANK") or 0) > 0


def prepare_process() -> None:
    """Set what libraries read when they are imported; what the user has set stays."""
    # How long libgomp's threads spin while they wait for work. Sampling from 0.6B parameters on two cores (tokens/s,
    # alone / beside a busy process): 1000 80 / 50, 3000 92 / 42, 10000 95 / 32, 300000 (its default) 102 / 24.
    os.environ.setdefault("GOMP_SPINCOUNT", "3000")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


def _guarded(action, quiet: bool = False) -> int:
    """The exit code of `action`, whatever ends it short of a bug. `quiet`: another process says what was wrong."""
    try:
        code = action() or 0
        sys.stdout.flush()
        return code
    except UserError as error:
        if quiet:
            _let_the_first_rank_speak()
            return 2
        return _fail(str(error))
    except KeyboardInterrupt:
        return 130
    except OSError as error:
        if error.errno not in (errno.EPIPE, errno.EIO) or error.filename is not None:
            raise
        # The reader or the terminal has left: nothing to say, and nothing for the last flush to trip over.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141


def _let_the_first_rank_speak() -> None:
    """Lets it come to the same error: torchrun ends all ranks as soon as one has ended."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(1)


def _fail(sentence: str) -> int:
    print(f"error: {sentence}", file=sys.stderr)
    return 2


def _print_commands() -> None:
    print("usage: hone COMMAND ...\n\nReinforcement learning with verifiable rewards, reproducible to the bit.\n")
    lines = {name: command.summary for name, command in COMMANDS.items() if " " not in name}
    for group, summary in GROUPS.items():
        second = ", ".join(name.split()[1] for name in COMMANDS if name.startswith(f"{group} "))
        lines[group] = f"{summary}: {second}"
    _print_lines(lines)
    print(
        "\n`hone COMMAND --help` lists a command's keys. A config file is given as `@ FILE.toml`; flags win over files."
    )


def _print_group(group: str) -> None:
    print(f"usage: hone {group} COMMAND ...\n\n{GROUPS[group].capitalize()}.\n")
    _print_lines({name: command.summary for name, command in COMMANDS.items() if name.startswith(f"{group} ")})
    print(f"\n`hone {group} COMMAND --help` lists a command's keys.")


def _print_lines(lines: dict[str, str]) -> None:
    width = max(map(len, lines)) + 2
    for name, summary in lines.items():
        print(f"  {name:<{width}}{summary}")


if __name__ == "__main__":
    sys.exit(main())
