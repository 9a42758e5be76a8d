"""`hone COMMAND ...`: finds the command in a table, parses its config, and calls its function with the config."""

from __future__ import annotations

import atexit
import errno
import io
import os
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from hone import __version__
from hone.errors import RankLost, UserError, called_from
from hone.extension import Command, gathered, lacking
from hone.hardware import has_gpu_driver
from hone.terminal import hanging, raw, safe_output

COMMANDS = {
    "quickstart": Command("make and train a tiny model in minutes", "init.QuickstartConfig", "quickstart.run"),
    "examples": Command("list or copy the recipes of hone", "init.ExamplesConfig", "quickstart.examples"),
    "init-model": Command("write a small model with random weights", "init.InitModelConfig", "init_model.run"),
    "fetch-model": Command("write a small pretrained model to start from", "init.FetchModelConfig", "fetch_model.run"),
    "init-env": Command("write a task to start from", "init.InitEnvConfig", "init_env.run"),
    "sft": Command("fine-tune on a data set or demonstrations", "sft.SFTConfig", "training.sft"),
    "rl": Command("train by RL with a verifiable reward", "rl.RLConfig", "rl.run"),
    "eval": Command("evaluate a model on held-out examples", "eval.EvalConfig", "eval.run"),
    "runs list": Command("list the runs under a folder", "runs.RunsListConfig", "runs.list_runs"),
    "runs show": Command("print one page on a run, and next commands", "runs.RunsShowConfig", "runs.show"),
    "runs stop": Command("save and end a running run", "runs.RunsStopConfig", "runs.stop"),
    "runs continue": Command("let a paused run go on", "runs.RunsContinueConfig", "runs.go_on"),
    "runs attach": Command("watch a running run", "runs.RunsAttachConfig", "runs.attach"),
    "runs ledger": Command("list the outcome of each prompt drawn", "runs.RunsLedgerConfig", "runs.ledger"),
    "runs rm": Command("delete a run, after asking", "runs.RunsRmConfig", "runs.remove"),
}


def commands() -> dict[str, Command]:
    return gathered("COMMANDS", COMMANDS)


def main(argv: list[str] | None = None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    if argv[:1] == ["--version"]:
        return _guarded(lambda: print(f"hone {__version__}"))
    group = "runs " if argv[:1] == ["runs"] else ""
    words = argv[1:] if group else argv
    try:
        known = commands()
    except UserError as error:
        return _fail(str(error))
    listed = {name: command.summary for name, command in known.items() if name.startswith("runs ") == bool(group)}
    if not group:
        listed["runs"] = f"look at runs, or end one: {', '.join(n[5:] for n in known if n.startswith('runs '))}"
    if not words or words[0] in ("-h", "--help", "help"):
        return _guarded(lambda: _print_commands(group, listed))
    name = group + words[0]
    if name in known:
        return call(name, words[1:], f"hone {name}")
    from difflib import get_close_matches  # 1 ms that other commands save, as imports below do

    close = get_close_matches(name, listed, n=1, cutoff=0.7 if group else 0.5)
    hint = f"did you mean `hone {close[0]}`?" if close else f"there are {', '.join(listed)}"
    hint = lacking("COMMANDS", name) or hint
    return _fail(f"hone has no command {name!r}: {hint}")


def script(name: str, prog: str = "") -> int:
    return call(name, sys.argv[1:], prog or name)


sft, rl, inference = partial(script, "sft"), partial(script, "rl"), partial(script, "inference")
trainer, orchestrator = partial(script, "trainer"), partial(script, "orchestrator")
vf_eval = partial(script, "eval", "vf-eval")


def call(name: str, argv: list[str], prog: str) -> int:
    """Run one command. Return its exit code: 2 after an error that the user can fix, 130 after Ctrl-C.

    A process that joined other ranks exits here, without the interpreter's shutdown. After an error, the shutdown would
    wait for the other ranks; without an error, a thread of gloo or of a checkpoint may abort the process.
    """
    ranked = name in ("sft", "trainer") and int(os.environ.get("WORLD_SIZE") or 1) > 1
    try:
        code = _guarded(lambda: _run(name, argv, prog), ranked and int(os.environ.get("RANK") or 0) > 0)
        if (outputs := sys.modules.get("hone.runs.outputs")) is not None:
            outputs.delete_unused()
    except BaseException:
        if not _is_among_ranks():
            sys.excepthook = _print_traceback
            raise
        _print_traceback(*sys.exc_info())
        code = 1
    else:
        if not _is_among_ranks():
            return code
        atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _run(name: str, argv: list[str], prog: str) -> int:
    from hone.commands import detach

    if (command := commands().get(name)) is None:
        why = lacking("COMMANDS", name) or "install the extension that brings it"
        raise UserError(f"hone has no command {name!r}: {why}")
    try:
        from hone.config.parse import parse
    except ImportError:
        if not command.bare:
            raise
        return command.load(f"commands.{command.bare}")(argv)
    detach.end_with_launcher()
    _check_text(argv)
    config_class = command.config()
    config = parse(config_class, argv, prog)
    if name == "rl" and "model" not in config.model_fields_set and not any(word.startswith("@") for word in argv):
        from hone.config.help import render

        print(render(config_class, prog))
        raise UserError(
            f"there is neither a model nor a config file: use `{prog} @ FILE.toml` or `--model.name MODEL` (hone/tiny "
            "is a small random model to try things with)"
        )
    if getattr(config, "detach", False):
        if not detach.in_background():
            return detach.start(name, argv)
        detach.enter()
    prepare_process()
    return command.load(f"commands.{command.function}")(config)


def prepare_process() -> None:
    """Give default values to environment variables that libraries read at import, and call `write_backslashes`."""
    write_backslashes()
    # Spins of libgomp's threads while they wait for work. Sampling from 0.6B parameters on two cores (tokens/s,
    # alone / beside a busy process): 1000 80 / 50, 3000 92 / 42, 10000 95 / 32, 300000 (its default) 102 / 24.
    os.environ.setdefault("GOMP_SPINCOUNT", "3000")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    # cuBLAS reads it at its first product, before a config can ask for deterministic kernels.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    if has_gpu_driver() and not any(name.endswith("_ALLOC_CONF") for name in os.environ):
        # Memory that was freed in blocks of many sizes is used again; torch has it on Linux only.
        os.environ["PYTORCH_ALLOC_CONF"] = "expandable_segments:True"


def write_backslashes() -> None:
    """Make stdout and stderr write an escape such as `\\xfc` for a character that their encoding lacks."""
    for stream in map(raw, (sys.stdout, sys.stderr)):
        if isinstance(stream, io.TextIOWrapper) and stream.errors in ("strict", "surrogateescape"):
            stream.reconfigure(errors="backslashreplace")


def _check_text(argv: list[str]) -> None:
    """Raise UserError for an argument that is not text, because a run's files hold UTF-8."""
    for word in argv:
        try:
            word.encode()
        except UnicodeEncodeError:
            raise UserError(
                f"{word!a} is not text in {sys.getfilesystemencoding()}: set PYTHONUTF8=1, or use a name in UTF-8"
            ) from None


def _is_among_ranks() -> bool:
    parallel = sys.modules.get("hone.trainer.parallel")
    return parallel is not None and parallel.has_joined


@safe_output()
@called_from(python=False)
def _guarded(action: Callable[[], int | None], quiet: bool = False) -> int:
    """Run `action`; return its exit code or an error's; only bugs raise. `quiet`: leave UserErrors to rank 0."""
    write_backslashes()
    try:
        code = action() or 0
        sys.stdout.flush()
        return code
    except UserError as error:
        if not quiet:
            return _fail(str(error))
        # torchrun ends all ranks as soon as one has ended: rank 0 needs time to come to the same error.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(1)
        return 2
    except RankLost as error:
        _fail(str(error))
        return 1
    except KeyboardInterrupt:
        return 130
    except OSError as error:
        if error.errno not in (errno.EPIPE, errno.EIO) or error.filename is not None:
            from hone.runs.signals import disk_sentence

            if (sentence := disk_sentence(error)) is None:
                raise
            return _fail(sentence)
        # The reader or the terminal has left: nothing to say, and nothing for the last flush to trip over.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141


def _fail(sentence: str) -> int:
    from hone.redaction import redact

    print(f"error: {hanging(redact(sentence))}", file=sys.stderr)
    return 2


@safe_output()
def _print_traceback(*error: Any) -> None:
    import traceback

    from hone.redaction import redact

    print(redact("".join(traceback.format_exception(*error))), end="", file=sys.stderr)


def _print_commands(group: str, listed: dict[str, str]) -> None:
    about = "Look at runs, or end one." if group else "Reinforcement learning with verifiable rewards."
    print(f"usage: hone {group}COMMAND ...\n\n{about}\n")
    width = max(map(len, listed)) + 2
    for name, summary in listed.items():
        print(f"  {name:<{width}}{summary}")
    print(
        f"\n`hone {group}COMMAND --help` lists its keys. Flags win over files (`@ FILE.toml`). Version: hone --version"
    )


if __name__ == "__main__":
    sys.exit(main())
