"""`--help` shows every field with its docstring, type and default."""

from __future__ import annotations

import pytest

from hone.config.base import BaseConfig
from hone.config.eval import EvalConfig
from hone.config.help import render
from hone.config.init_model import InitModelConfig
from hone.config.parse import parse
from hone.config.reproduce import RegradeConfig
from hone.config.rl import RLConfig
from hone.config.runs import RunsAttachConfig, RunsLedgerConfig, RunsListConfig, RunsShowConfig, RunsStopConfig
from hone.config.schema import flag, walk
from hone.config.sft import SFTConfig

CONFIGS = [RLConfig, SFTConfig, EvalConfig, InitModelConfig]
CONFIGS += [RunsListConfig, RunsShowConfig, RunsStopConfig, RunsAttachConfig, RunsLedgerConfig]


@pytest.fixture(autouse=True)
def _wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")


@pytest.mark.parametrize("cls", CONFIGS)
def test_every_field_has_a_docstring_and_is_shown_with_it(cls: type[BaseConfig]) -> None:
    page = " ".join(render(cls, "prog").split())
    for key in walk(cls):
        holder = cls
        for name in key.path[:-1]:
            holder = next(k.section for k in walk(holder) if k.path == (name,))
            assert holder is not None
        description = holder.model_fields[key.path[-1]].description
        assert description, f"{cls.__name__}: {key.path} has no docstring"
        shown = flag(key.path).replace("--", "--[no-]") if key.type is bool else flag(key.path)
        assert key.section or shown in page, key.path
        assert " ".join(description.split()) in page, key.path


def test_types_defaults_and_short_flags() -> None:
    lines = render(RLConfig, "rl").splitlines()
    assert "  --trainer.optim.lr FLOAT        Peak learning rate. [1e-06]" in lines
    assert "  --orchestrator.rollouts-per-example INT" in lines
    assert any(line.startswith("  --[no-]deterministic ") for line in lines)
    assert any(line.startswith("ckpt: ") and "[bare --ckpt: on with defaults]" in line for line in lines)
    assert sum("--trainer.model" in line for line in lines) == 1
    assert "  -n, --num-examples INT          Held-out examples. [5]" in render(EvalConfig, "eval").splitlines()
    assert "  --optim.lr FLOAT                Peak learning rate. [2e-05]" in render(SFTConfig, "sft").splitlines()
    assert max(map(len, lines)) <= 120


def test_fields_whose_names_python_has_taken_and_sections_named_by_a_key() -> None:
    lines = render(RegradeConfig, "hone regrade").splitlines()
    assert any(line.startswith("  --from STR ") for line in lines)
    assert any(line.startswith("  --json.file PATH ") for line in lines)
    assert "env: The task that grades. [--env ID: that env.id]" in lines
    assert max(map(len, lines)) <= 120


def test_a_command_without_sections_says_nothing_of_them() -> None:
    page = render(RunsShowConfig, "hone runs show")
    assert page.startswith("usage: hone runs show RUN [@ FILE.toml ...] [--KEY VALUE ...]\n") and "section" not in page
    assert "[--SECTION @ FILE.toml ...]" in render(RLConfig, "rl")


def test_help_prints_and_ends(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parse(RLConfig, ["--max-steps", "x", "--help"], "hone rl")
    assert caught.value.code == 0
    assert capsys.readouterr().out.startswith("usage: hone rl [@ FILE.toml ...]")
