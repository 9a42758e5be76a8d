"""`hone COMMAND ...`: finds the command, parses its typed config, calls `hone.commands.COMMAND.run(config)`."""

from __future__ import annotations

import os
import sys
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
    "sft": Command("hone.config.sft", "SFTConfig", "hone.commands.sft", "imitate a data set or demonstrations"),
    "rl": Command("hone.config.rl", "RLConfig", "hone.commands.rl", "reinforce with a verifiable reward"),
    "eval": Command("hone.config.eval", "EvalConfig", "hone.commands.eval", "measure a model on held-out examples"),
}


def main(argv: list[str] | None = None) -> int:
    """The console script `hone`. Returns the exit code."""
    argv = sys.argv[1:] if argv is None else argv
    if not argv or argv[0] in ("-h", "--help", "help"):
        return _guarded(_print_commands)
    if argv[0] == "--version":
        return _guarded(lambda: print(f"hone {__version__}"))
    if argv[0] not in COMMANDS:
        close = get_close_matches(argv[0], COMMANDS, n=1, cutoff=0.5)
        hint = f"did you mean `hone {close[0]}`?" if close else f"there are {', '.join(COMMANDS)}"
        return _fail(f"hone has no command {argv[0]!r}: {hint}")
    return call(argv[0], argv[1:], f"hone {argv[0]}")


def sft() -> int:
    """The console script `sft`."""
    return call("sft", sys.argv[1:], "sft")


def rl() -> int:
    """The console script `rl`."""
    return call("rl", sys.argv[1:], "rl")


def vf_eval() -> int:
    """The console script `vf-eval`."""
    return call("eval", sys.argv[1:], "vf-eval")


def call(name: str, argv: list[str], prog: str) -> int:
    """Run one command. Returns its exit code; 2 for what a user can mend, said in one sentence; 130 for Ctrl-C."""
    command = COMMANDS[name]

    def run() -> int:
        from hone.config.parse import parse

        config = parse(getattr(import_module(command.config_module), command.config_class), argv, prog)
        prepare_process()
        return import_module(command.module).run(config)

    return _guarded(run)


def prepare_process() -> None:
    """Set what libraries read when they are imported; what the user has set stays."""
    # libgomp's threads spin while they wait: with one busy neighbour that makes a small product over 20 times slower.
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


def _guarded(action) -> int:
    """The exit code of `action`, whatever ends it short of a bug."""
    try:
        code = action() or 0
        sys.stdout.flush()
        return code
    except UserError as error:
        return _fail(str(error))
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader has left (`| head`): nothing to say, and nothing for the interpreter's last flush to trip over.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141


def _fail(sentence: str) -> int:
    print(f"error: {sentence}", file=sys.stderr)
    return 2


def _print_commands() -> None:
    print("usage: hone COMMAND ...\n\nReinforcement learning with verifiable rewards, reproducible to the bit.\n")
    for name, command in COMMANDS.items():
        print(f"  {name:<12}{command.summary}")
    print(
        "\n`hone COMMAND --help` lists a command's keys. A config file is given as `@ FILE.toml`; flags win over files."
    )


if __name__ == "__main__":
    sys.exit(main())
