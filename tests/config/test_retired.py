"""Keys that hone has no more: a file's values that changed nothing are dropped, all else is refused with a remedy."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
import tomli_w

from hone.config.base import BaseConfig
from hone.config.parse import CONFIG_OF, parse
from hone.config.retired import RETIRED
from hone.config.rl import RLConfig
from hone.config.sft import SFTConfig
from hone.errors import UserError
from hone.extensions.server.config import ServeConfig
from hone.runs.settings import changes, flat, read_toml, run_toml

OVERLAP = "orchestrator.grading.overlap"
KEYS = [
    (RLConfig, "push_to_hub", 'push_to_hub = "None"', 'push_to_hub = "me/model"'),
    (SFTConfig, "push_to_hub", 'push_to_hub = "None"\ndata.name = "x"', '[push_to_hub]\nrepo = "me/model"'),
    (RLConfig, "orchestrator.refill.cut", "orchestrator.refill.cut = 0.0", "orchestrator.refill.cut = 0.25"),
    (RLConfig, OVERLAP, f"{OVERLAP} = false", f'{OVERLAP} = "late"'),
    (RLConfig, "trainer.loss.tau_positive", "trainer.loss.tau_positive = 1.0", "trainer.loss.tau_positive = 2.0"),
    (RLConfig, "trainer.loss.tau_negative", "trainer.loss.tau_negative = 1.05", "trainer.loss.tau_negative = 3"),
    (ServeConfig, "serve.prefill_tokens", "prefill_tokens = 2048", "prefill_tokens = 512"),
    (ServeConfig, "serve.prefix_gib", "prefix_gib = 0.5", "prefix_gib = 0"),
]
"""(config, key of RETIRED, lines of a file that are dropped, lines that are refused)."""


def test_each_retired_key_is_tried() -> None:
    assert {name for _, name, *_ in KEYS} == RETIRED.keys()


@pytest.mark.parametrize(("cls", "name", "dropped", "refused"), KEYS)
def test_a_value_that_changed_nothing_is_dropped_and_another_refused(
    cls: type[BaseConfig], name: str, dropped: str, refused: str, tmp_path: Path
) -> None:
    file = tmp_path / "old.toml"
    file.write_text(f"{dropped}\n")
    assert name.rpartition(".")[2] not in parse(cls, ["@", str(file)], "hone").model_dump(exclude_unset=True)
    file.write_text(f"{refused}\n")
    with pytest.raises(UserError, match=re.escape(f" in {file}: {RETIRED[name].instead}")):
        parse(cls, ["@", str(file)], "hone")


def test_a_run_that_has_a_harmless_value_is_read_as_if_it_had_none_and_another_is_shown(tmp_path: Path) -> None:
    config, file = parse(RLConfig, ["--orchestrator.refill", "--model.name", "hone/tiny"], "rl"), tmp_path / "a.toml"
    table = tomllib.loads(run_toml(config, "rl"))
    for cut, overlap in ((0.0, True), (0, False), (0.0, "None"), (0.25, "None")):
        table["orchestrator"]["refill"]["cut"], table["orchestrator"]["grading"]["overlap"] = cut, overlap
        file.write_text(f"{CONFIG_OF}rl\n{tomli_w.dumps(table)}")
        settings = flat(read_toml(file))
        assert "orchestrator.grading.overlap" not in settings
        assert settings.get("orchestrator.refill.cut", 0) == cut
        assert cut or (parse(RLConfig, ["@", str(file)], "rl") == config and changes(settings, config, {}) == [])
