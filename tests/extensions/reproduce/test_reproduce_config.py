"""The words of `hone regrade` and `hone diff`: sections that one word turns on, and two that stand without a flag."""

from __future__ import annotations

from pathlib import Path

import pytest

from hone.config.help import render
from hone.config.parse import parse
from hone.extensions.reproduce.config import DiffConfig, RegradeConfig


@pytest.mark.parametrize(
    ("cls", "line", "key", "value"),
    [
        (RegradeConfig, "--env gsm8k --env.args.mode sparse", "env.args", {"mode": "sparse"}),
        (RegradeConfig, "@ env.toml --env.args.mode sparse", "env.id", "gsm8k"),
        (RegradeConfig, "--json --steps 0:2", "as_json.file", None),
        (RegradeConfig, "outputs/a --json a.json", "as_json.file", Path("a.json")),
        (DiffConfig, "one two", "b", "two"),
    ],
)
def test_a_line_sets_a_key(cls: type, line: str, key: str, value: object, here: Path) -> None:
    (here / "env.toml").write_text('env = "gsm8k"\n')
    config = parse(cls, line.split(), "prog")
    for name in key.split("."):
        config = getattr(config, name)
    assert config == value


def test_help_says_how_a_section_is_turned_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    assert "env: The task that grades. [--env ID: that env.id]" in render(RegradeConfig, "prog", "all").splitlines()
