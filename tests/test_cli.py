"""The command line: finding commands, exit codes, one sentence for what a user can mend, and a quick start."""

from __future__ import annotations

import errno
import io
import os
import subprocess
import sys
import types
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from hone import cli
from hone.config.rl import RLConfig
from hone.errors import RankLost, UserError

RL = ["rl", "--model.name", "hone/tiny"]


def run(*command: str | Path, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(part) for part in command], capture_output=True, text=True, env={**os.environ, **env})


@pytest.fixture
def rl_command(monkeypatch: pytest.MonkeyPatch) -> types.SimpleNamespace:
    """Stands in for `hone.commands.rl`: `action` is what its `run` does."""
    command = types.SimpleNamespace(action=lambda config: 0, configs=[])

    def run(config: RLConfig) -> int:
        command.configs.append(config)
        result = command.action(config)
        if isinstance(result, BaseException):
            raise result
        return result

    monkeypatch.setitem(sys.modules, "hone.commands.rl", types.SimpleNamespace(run=run))
    return command


def test_a_command_gets_its_typed_config_and_gives_the_exit_code(rl_command, monkeypatch) -> None:
    rl_command.action = lambda config: 7
    assert cli.main([*RL, "--max-steps", "3"]) == 7
    monkeypatch.setattr(sys, "argv", [*RL, "--seed", "5"])
    assert cli.rl() == 7, "the bare script calls the same"
    first, second = rl_command.configs
    assert isinstance(first, RLConfig) and (first.max_steps, second.seed) == (3, 5)


def test_characters_that_the_terminal_lacks_are_written_with_backslashes(rl_command, monkeypatch) -> None:
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="ascii", write_through=True))
    rl_command.action = lambda config: print("Wie spät?") or 0
    assert cli.main(RL) == 0 and written.getvalue() == b"Wie sp\\xe4t?\n"


def test_what_a_user_can_mend_is_one_sentence_and_exit_code_2(rl_command, capsys) -> None:
    rl_command.action = lambda config: UserError("the folder x has no weights: point model.name at another")
    assert cli.main(RL) == 2
    assert capsys.readouterr().err == "error: the folder x has no weights: point model.name at another\n"
    assert cli.main([*RL, "--max-steps", "many"]) == 2
    captured = capsys.readouterr()
    assert captured.err == "error: max_steps is 'many' (--max-steps), but should be a valid integer\n"
    assert captured.out == ""


@pytest.mark.parametrize("words", ["", "--max-steps 3", "--orchestrator.env.id reverse-text"])
def test_rl_without_a_model_or_a_config_prints_its_short_help_and_runs_nothing(rl_command, words, capsys) -> None:
    assert cli.main(["rl", *words.split()]) == 2
    captured = capsys.readouterr()
    assert captured.out.startswith("usage: hone rl ") and "--orchestrator.env.id" in captured.out
    assert captured.err.startswith("error: there is neither a model nor a config file") and rl_command.configs == []


def test_ctrl_c_is_130_and_a_bug_keeps_its_traceback(rl_command) -> None:
    rl_command.action = lambda config: KeyboardInterrupt()
    assert cli.main(RL) == 130
    rl_command.action = lambda config: AssertionError("a bug")
    with pytest.raises(AssertionError):
        cli.main(RL)


@pytest.mark.parametrize("group", ["", "runs "])
def test_hone_alone_lists_the_commands_and_a_group_its_own(group: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(group.split()) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"usage: hone {group}COMMAND ...\n")
    listed = {line.split("  ")[1] for line in out.splitlines() if line.startswith("  ")}
    assert listed - {"runs"} == {name for name in cli.commands() if name.startswith("runs ") == bool(group)}
    assert cli.main([*group.split(), "--help"]) == 0
    assert capsys.readouterr().out == out


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ("evl", "hone has no command 'evl': did you mean `hone eval`?"),
        ("xyzzy", "there are quickstart, examples, init-model, fetch-model, init-env, sft, rl"),
        ("runs lst", "did you mean `hone runs list`?"),
        ("runs xyzzy", "there are runs list, runs show, runs stop, "),
        ("run", "did you mean `hone runs`?"),
    ],
)
def test_an_unknown_command_names_the_nearest(words: str, hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(words.split()) == 2
    assert hint in capsys.readouterr().err


def test_every_installed_script_is_a_function_of_the_command_line() -> None:
    scripts = [script for script in entry_points(group="console_scripts") if script.value.startswith("hone.cli:")]
    assert {script.name for script in scripts} > {"hone", "sft", "rl", "inference", "vf-eval"}
    assert all(callable(script.load()) for script in scripts)


def test_a_reader_that_leaves_is_no_error() -> None:
    script = f"'{sys.executable}' -m hone.cli rl --help | head -n 1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True)
    assert done.stderr == "" and done.returncode in (0, 141)
    assert done.stdout.startswith("usage: ")


def test_a_lost_rank_gives_one_line_that_says_how_to_go_on(capsys):
    def lose() -> int:
        raise RankLost

    assert cli._guarded(lose) == 1
    lines = capsys.readouterr().err.splitlines()
    assert (
        len(lines) == 1 and lines[0].startswith("error: another rank of this run has ended") and "--resume" in lines[0]
    )


@pytest.mark.parametrize(
    ("number", "file", "sentence"),
    [
        (errno.ENOSPC, "out/a.json", "error: the disk is full (out/a.json): free some space\n"),
        (errno.EROFS, "out/.tmp-hone-new-a", "error: the file system is read-only (out/a): make it writable\n"),
        (errno.EACCES, "a", "error: it is not permitted to read or write (a): change its permissions\n"),
        (errno.ENOSPC, None, "error: the disk is full: free some space\n"),
    ],
)
def test_what_the_disk_refuses_is_one_sentence(rl_command, capsys, number, file, sentence) -> None:
    rl_command.action = lambda config: OSError(number, os.strerror(number), file)
    assert cli.main(["rl", "--model.name", "hone/tiny"]) == 2
    assert capsys.readouterr().err == sentence
    rl_command.action = lambda config: FileNotFoundError(errno.ENOENT, "a bug", "a")
    with pytest.raises(FileNotFoundError):
        cli.main(["rl", "--model.name", "hone/tiny"])
