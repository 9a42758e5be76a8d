"""Keys that hone has no more: a file's values that changed nothing are dropped, all else is refused with a remedy."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
import tomli_w

from hone.config.base import BaseConfig
from hone.config.parse import CONFIG_OF, from_settings, parse
from hone.config.retired import RETIRED
from hone.config.rl import RLConfig
from hone.config.sft import SFTConfig
from hone.errors import UserError
from hone.extensions.planning.config import PlanConfig
from hone.extensions.reproduce.config import RegradeConfig, ReplayConfig
from hone.extensions.server.config import ServeConfig
from hone.extensions.studies.config import StudyConfig
from hone.extensions.viewer.config import ViewConfig
from hone.runs.settings import changes, flat, read_toml, run_toml

HARMLESS = [
    (RLConfig, "push_to_hub", 'push_to_hub = "None"'),
    (SFTConfig, "push_to_hub", 'push_to_hub = "None"\ndata.name = "x"'),
    (RLConfig, "orchestrator.refill.cut", "orchestrator.refill.cut = 0.0"),
    (RLConfig, "orchestrator.grading.overlap", "orchestrator.grading.overlap = false"),
    (PlanConfig, "plan.gbit", "gbit = 10.0"),
    (ViewConfig, "view.chat", "chat = []"),
    (ViewConfig, "view.api_key_var", 'api_key_var = "None"'),
    (RLConfig, "trainer.loss.tau_positive", "trainer.loss.tau_positive = 1.0"),
    (RLConfig, "trainer.loss.tau_negative", "trainer.loss.tau_negative = 1.05"),
    (ServeConfig, "serve.prefill_tokens", "prefill_tokens = 2048"),
    (ServeConfig, "serve.prefix_gib", "prefix_gib = 0.5"),
    (RegradeConfig, "regrade.check", "check = 256"),
    (RegradeConfig, "regrade.every", "every = 1"),
    (ReplayConfig, "replay.to_step", 'to_step = "None"'),
    (StudyConfig, "study.first_seed", 'first_seed = 0\nrl.file = "a.toml"\n[[cells]]\nname = "a"'),
    (StudyConfig, "study.x", 'x = "None"\nrl.file = "a.toml"\n[[cells]]\nname = "a"'),
]
"""(config, key of RETIRED, line of a file that is dropped)."""
FILES = [
    (RLConfig, "push_to_hub", 'push_to_hub = "me/model"'),
    (SFTConfig, "push_to_hub", '[push_to_hub]\nrepo = "me/model"'),
    (RLConfig, "orchestrator.refill.cut", "orchestrator.refill.cut = 0.25"),
    (RLConfig, "orchestrator.grading.overlap", 'orchestrator.grading.overlap = "late"'),
    (PlanConfig, "plan.gbit", "gbit = 100"),
    (ViewConfig, "view.chat", 'chat = ["http://localhost:8000/v1"]'),
    (ViewConfig, "view.api_key_var", 'api_key_var = "KEY"'),
    (RLConfig, "trainer.loss.tau_positive", "trainer.loss.tau_positive = 2.0"),
    (RLConfig, "trainer.loss.tau_negative", "trainer.loss.tau_negative = 3"),
    (ServeConfig, "serve.prefill_tokens", "prefill_tokens = 512"),
    (ServeConfig, "serve.prefix_gib", "prefix_gib = 0"),
    (RegradeConfig, "regrade.check", "check = 0"),
    (RegradeConfig, "regrade.every", "every = 2"),
    (ReplayConfig, "replay.to_step", "to_step = 40"),
    (StudyConfig, "study.first_seed", "first_seed = 3"),
    (StudyConfig, "study.x", 'x = "rl.max_steps"'),
]
"""(config, key of RETIRED, line of a file that is refused)."""
FLAGS = [
    (RLConfig, "push_to_hub", "--push-to-hub me/model"),
    (RLConfig, "push_to_hub", "--no-push-to-hub"),
    (SFTConfig, "push_to_hub", "--push-to-hub.strategy every_save"),
    (SFTConfig, "push_to_hub", "--push-to-hub.no-private"),
    (RLConfig, "orchestrator.refill.cut", "--orchestrator.refill.cut 0.0"),
    (RLConfig, "orchestrator.grading.overlap", "--no-orchestrator.grading.overlap"),
    (PlanConfig, "push_to_hub", "--push-to-hub me/model"),
    (PlanConfig, "plan.gbit", "--gbit 100"),
    (ViewConfig, "view.chat", "--chat http://localhost:8000/v1"),
    (ViewConfig, "view.api_key_var", "--api-key-var KEY"),
    (RLConfig, "trainer.loss.tau_positive", "--trainer.loss.tau-positive 1"),
    (RLConfig, "trainer.loss.tau_negative", "--trainer.loss.tau-negative 1.05"),
    (ServeConfig, "serve.prefill_tokens", "--prefill-tokens 2048"),
    (ServeConfig, "serve.prefix_gib", "--prefix-gib 1"),
    (RegradeConfig, "regrade.check", "--check 20"),
    (RegradeConfig, "regrade.every", "--every 2"),
    (ReplayConfig, "replay.to_step", "--to-step 40"),
    (StudyConfig, "study.first_seed", "--first-seed 3"),
    (StudyConfig, "study.x", "--x rl.max_steps"),
]
"""(config, key of RETIRED, flags that are refused)."""


def test_each_retired_key_is_tried() -> None:
    for table in (HARMLESS, FILES, FLAGS):
        assert {name for _, name, _ in table} == RETIRED.keys()


@pytest.mark.parametrize(("cls", "name", "line"), HARMLESS)
def test_a_value_that_changed_nothing_is_dropped(cls: type[BaseConfig], name: str, line: str, tmp_path: Path) -> None:
    (tmp_path / "old.toml").write_text(f"{line}\n")
    tree = parse(cls, ["@", str(tmp_path / "old.toml")], "hone").model_dump(exclude_unset=True)
    assert name.rpartition(".")[2] not in tree


@pytest.mark.parametrize(("cls", "name", "line"), FILES)
def test_another_value_is_refused(cls: type[BaseConfig], name: str, line: str, tmp_path: Path) -> None:
    file = tmp_path / "old.toml"
    file.write_text(f"{line}\n")
    with pytest.raises(UserError) as caught:
        parse(cls, ["@", str(file)], "hone")
    assert f" in {file}: {RETIRED[name].instead}" in str(caught.value)


@pytest.mark.parametrize(("cls", "name", "words"), FLAGS)
def test_a_flag_is_refused(cls: type[BaseConfig], name: str, words: str) -> None:
    with pytest.raises(UserError) as caught:
        parse(cls, words.split(), "hone")
    assert str(caught.value) == f"{words.split()[0]}: {RETIRED[name].instead}"


@pytest.mark.parametrize("name", ["push_to_hub", "push_to_hub.repo"])
def test_a_keyword_is_refused(name: str) -> None:
    with pytest.raises(UserError) as caught:
        from_settings(RLConfig, None, {name: "me/model"})
    assert str(caught.value) == f"{name}: {RETIRED['push_to_hub'].instead}"


def test_a_key_of_one_command_is_not_retired_for_another() -> None:
    with pytest.raises(UserError, match="did you mean --"):
        parse(RLConfig, ["--api-key-var", "KEY"], "hone rl")


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
