"""Keys that hone has no more: values that changed nothing are dropped from files, others get a sentence."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from hone.config.parse import CONFIG_OF, from_settings, parse
from hone.config.rl import RLConfig
from hone.errors import UserError
from hone.runs.settings import changes, flat, read_toml, run_toml

KEYS: list[tuple[str, tuple[Any, ...], Any, str]] = [
    ("orchestrator.refill.cut", (0.0, 0), 0.25, "waits for all its rollouts"),
    ("orchestrator.grading.overlap", (True, False, "None"), "late", "graded when it ends"),
]
"""Key, values that changed nothing, another one, and words of the sentence."""


def write(file: Path, config: RLConfig, key: str, value: Any) -> None:
    """Write the config.toml of an older run, which has this key too."""
    table = tomllib.loads(run_toml(config, "rl"))
    *sections, name = key.split(".")
    holder = table
    for section in sections:
        holder = holder.setdefault(section, {})
    holder[name] = value
    file.write_text(f"{CONFIG_OF}rl\n{tomli_w.dumps(table)}")


@pytest.mark.parametrize(("key", "harmless", "other", "words"), KEYS)
def test_a_key_that_is_gone(key: str, harmless: tuple[Any, ...], other: Any, words: str, tmp_path: Path) -> None:
    config, file = parse(RLConfig, ["--orchestrator.refill", "--model.name", "hone/tiny"], "rl"), tmp_path / "a.toml"
    for value in harmless:
        write(file, config, key, value)
        assert parse(RLConfig, ["@", str(file)], "rl") == config
        settings = flat(read_toml(file))
        assert key not in settings and changes(settings, config, {}) == []
    write(file, config, key, other)
    assert flat(read_toml(file))[key] == other, "a run that had it is shown with it"
    with pytest.raises(UserError, match=f"^{key} is .* in {file}: .*{words}"):
        parse(RLConfig, ["@", str(file)], "rl")
    with pytest.raises(UserError, match=f"^--{key}: .*{words}"):
        parse(RLConfig, [f"--{key}", str(other)], "rl")
    with pytest.raises(UserError, match=f"^{key}: .*{words}"):
        from_settings(RLConfig, None, {key: other})
