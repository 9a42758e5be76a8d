"""The command line: finding commands, exit codes, one sentence for what a user can mend, and a quick start."""

from __future__ import annotations

import os
import shutil
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


def test_hone_alone_lists_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 0
    out = capsys.readouterr().out
    for name, command in cli.COMMANDS.items():
        assert f"  {name:<14}{command.summary}\n" in out or " " in name
    words = ", ".join(name.split()[1] for name in cli.COMMANDS if name.startswith("runs "))
    assert words.startswith("list, show, stop") and words.endswith("ledger, predictions")
    assert f"  runs          look at runs, and end one: {words}\n" in out
    assert cli.main(["--help"]) == 0
    assert capsys.readouterr().out == out
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"hone {__version__}\n"


def test_a_group_alone_lists_its_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["runs"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("usage: hone runs COMMAND ...\n")
    for name, command in cli.COMMANDS.items():
        assert (f"  {name:<18}{command.summary}\n" in out) == name.startswith("runs ")
    assert cli.main(["runs", "--help"]) == 0
    assert capsys.readouterr().out == out


def test_a_command_of_two_words_gets_the_words_after_them(monkeypatch: pytest.MonkeyPatch) -> None:
    configs = []
    module = types.ModuleType("hone.commands.runs")
    module.__dict__["run"] = lambda config: configs.append(config) or 3
    monkeypatch.setitem(sys.modules, "hone.commands.runs", module)
    assert cli.main(["runs", "show", "outputs/a", "--events", "2"]) == 3
    assert (configs[0].run, configs[0].events) == ("outputs/a", 2)


def test_an_unknown_command_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["evl"]) == 2
    assert capsys.readouterr().err == "error: hone has no command 'evl': did you mean `hone eval`?\n"
    assert cli.main(["xyzzy"]) == 2
    assert "there are quickstart, examples, init-model, init-env, sft, rl" in capsys.readouterr().err
    assert cli.main(["runs", "lst"]) == 2
    assert capsys.readouterr().err == "error: hone has no command 'runs lst': did you mean `hone runs list`?\n"
    assert cli.main(["runs", "xyzzy"]) == 2
    assert "there are list, show, stop, " in capsys.readouterr().err
    assert cli.main(["run"]) == 2
    assert "did you mean `hone runs`?" in capsys.readouterr().err


@pytest.mark.parametrize("name", list(cli.COMMANDS))
def test_every_command_has_its_config_and_its_module(name: str) -> None:
    module = ROOT / "src" / "hone" / "commands" / f"{name.split()[0].replace('-', '_')}.py"
    assert "def run(" in module.read_text() and cli.COMMANDS[name].config().__doc__


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


@pytest.mark.skipif(shutil.which("uv", path=str(BIN)) is None, reason="uv is not in the environment")
def test_uv_run_in_the_made_environment() -> None:
    env = {"UV_NO_SYNC": "1", "UV_OFFLINE": "1", "UV_PROJECT_ENVIRONMENT": str(BIN.parent)}
    done = subprocess.run(
        [BIN / "uv", "run", "sft", "--help"], capture_output=True, text=True, cwd=ROOT, env={**os.environ, **env}
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("usage: sft ")
