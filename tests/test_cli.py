"""The command line: finding commands, exit codes, one sentence for what a user can mend, and a quick start."""

from __future__ import annotations

import os
import subprocess
import sys
import types
from pathlib import Path

import pytest

from hone import __version__, cli
from hone.config.rl import RLConfig
from hone.errors import UserError

ROOT = Path(__file__).parent.parent
BIN = Path(sys.executable).parent


def run(*command: str | Path, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(part) for part in command], capture_output=True, text=True, env={**os.environ, **env})


@pytest.fixture
def rl_command(monkeypatch: pytest.MonkeyPatch) -> types.SimpleNamespace:
    """Stands in for `hone.commands.rl`: `action` is what its `run` does."""
    command = types.SimpleNamespace(action=lambda config: 0, configs=[])
    module = types.ModuleType("hone.commands.rl")

    def run(config: RLConfig) -> int:
        command.configs.append(config)
        return command.action(config)

    module.__dict__["run"] = run
    monkeypatch.setitem(sys.modules, "hone.commands.rl", module)
    return command


def raising(error: BaseException):
    def action(_config: RLConfig) -> int:
        raise error

    return action


def test_a_command_gets_its_typed_config_and_gives_the_exit_code(rl_command: types.SimpleNamespace) -> None:
    rl_command.action = lambda config: 7
    assert cli.main(["rl", "--max-steps", "3"]) == 7
    (config,) = rl_command.configs
    assert isinstance(config, RLConfig) and config.max_steps == 3


def test_the_bare_script_calls_the_same(rl_command: types.SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["rl", "--seed", "5"])
    assert cli.rl() == 0
    assert rl_command.configs[0].seed == 5


def test_what_a_user_can_mend_is_one_sentence_and_exit_code_2(
    rl_command: types.SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    rl_command.action = raising(UserError("the folder x has no weights: point model.name at another"))
    assert cli.main(["rl"]) == 2
    assert capsys.readouterr().err == "error: the folder x has no weights: point model.name at another\n"
    assert cli.main(["rl", "--max-steps", "many"]) == 2
    captured = capsys.readouterr()
    assert captured.err == "error: max_steps is 'many' (--max-steps), but should be a valid integer\n"
    assert captured.out == ""


def test_ctrl_c_is_130_and_a_bug_keeps_its_traceback(rl_command: types.SimpleNamespace) -> None:
    rl_command.action = raising(KeyboardInterrupt())
    assert cli.main(["rl"]) == 130
    rl_command.action = raising(AssertionError("a bug"))
    with pytest.raises(AssertionError):
        cli.main(["rl"])


def test_what_libraries_read_at_import_is_set_before_the_command_and_never_overridden(
    rl_command: types.SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[str | None, str | None]] = []

    def action(_config: RLConfig) -> int:
        seen.append((os.environ.get("GOMP_SPINCOUNT"), os.environ.get("TOKENIZERS_PARALLELISM")))
        return 0

    rl_command.action = action
    monkeypatch.delenv("GOMP_SPINCOUNT")
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "true")
    assert cli.main(["rl"]) == 0
    assert seen == [("3000", "true")]


@pytest.mark.parametrize("group", ["", "runs "])
def test_hone_alone_lists_the_commands_and_a_group_its_own(group: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(group.split()) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"usage: hone {group}COMMAND ...\n")
    listed = {line.split("  ")[1] for line in out.splitlines() if line.startswith("  ")}
    assert listed - {"runs"} == {name for name in cli.COMMANDS if name.startswith("runs ") == bool(group)}
    assert cli.main([*group.split(), "--help"]) == 0
    assert capsys.readouterr().out == out


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"hone {__version__}\n"


def test_a_command_of_two_words_gets_the_words_after_them(monkeypatch: pytest.MonkeyPatch) -> None:
    configs = []
    module = types.ModuleType("hone.commands.runs")
    module.__dict__["show"] = lambda config: configs.append(config) or 3
    monkeypatch.setitem(sys.modules, "hone.commands.runs", module)
    assert cli.main(["runs", "show", "outputs/a", "--events", "2"]) == 3
    assert (configs[0].run, configs[0].events) == ("outputs/a", 2)


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ("evl", "hone has no command 'evl': did you mean `hone eval`?"),
        ("xyzzy", "there are quickstart, examples, init-model, init-env, sft, rl"),
        ("runs lst", "did you mean `hone runs list`?"),
        ("runs xyzzy", "there are runs list, runs show, runs stop, "),
        ("run", "did you mean `hone runs`?"),
    ],
)
def test_an_unknown_command_names_the_nearest(words: str, hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(words.split()) == 2
    assert hint in capsys.readouterr().err


@pytest.mark.parametrize("name", list(cli.COMMANDS))
def test_every_command_has_its_config_and_its_function(name: str) -> None:
    module, _, function = cli.COMMANDS[name].function.partition(".")
    source = (ROOT / "src" / "hone" / "commands" / f"{module}.py").read_text()
    assert f"\ndef {function}(" in source and cli.COMMANDS[name].config().__doc__


@pytest.mark.parametrize("script", ["hone", "sft", "rl", "inference", "vf-eval"])
def test_the_installed_scripts(script: str) -> None:
    done = run(BIN / script, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"usage: {script} ")


def test_an_error_in_a_real_process_has_no_traceback() -> None:
    done = run(BIN / "rl", "@", "missing.toml")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: config file missing.toml does not exist\n"


def test_a_reader_that_leaves_is_no_error() -> None:
    script = f"'{sys.executable}' -m hone.cli rl --help | head -n 1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True)
    assert done.stderr == "" and done.returncode in (0, 141)
    assert done.stdout.startswith("usage: ")


def test_the_task_is_importable_by_its_id() -> None:
    done = run(sys.executable, "-c", "import reverse_text; print(callable(reverse_text.load_environment))")
    assert done.stdout == "True\n", done.stderr
