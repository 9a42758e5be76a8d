"""`--help` shows what most people set, `--help all` every field with its docstring."""

from __future__ import annotations

import pytest

from hone.cli import commands
from hone.config.base import walk
from hone.config.eval import EvalConfig
from hone.config.help import render
from hone.config.rl import RLConfig
from hone.config.sft import SFTConfig
from hone.errors import UserError


@pytest.fixture(autouse=True)
def _wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")


def flags_in(page: str) -> list[str]:
    lines = [line.split()[0].replace("[no-]", "") for line in page.splitlines() if line.startswith("  -")]
    return [word for word in lines if word != "-h,"]


@pytest.mark.parametrize("name", list(commands()))
def test_every_field_has_a_docstring_and_is_shown_with_it(name: str) -> None:
    cls = commands()[name].config()
    lines = render(cls, f"hone {name}", "all").splitlines()
    page = " ".join(" ".join(lines).split())
    assert page.startswith(f"usage: hone {name} ") and max(map(len, lines)) <= 120 and "CONFIG " not in page
    assert render(cls, f"hone {name}").startswith(f"usage: hone {name} ")
    sections: dict[tuple[str, ...], type] = {(): cls}
    for key in walk(cls):
        description = sections[key.path[:-1]].model_fields[key.path[-1]].description
        assert description, f"{cls.__name__}: {key.path} has no docstring"
        assert " ".join(description.split()) in page, key.path
        if key.section:
            sections[key.path] = key.section


def test_help_alone_shows_what_most_people_set() -> None:
    page = render(RLConfig, "rl")
    assert 35 <= len(flags_in(page)) <= 50
    for name in ("--model.name", "--trainer.optim.lr", "--orchestrator.batch-size", "--reward", "--ckpt"):
        assert flags_in(page).count(name) == 1
    assert "\nTraining:\n" in page and "--trainer.optim.eps" not in page
    assert "`rl --help all`" in page and "`rl --help SECTION` (model, ckpt, " in page
    assert len(flags_in(render(SFTConfig, "sft"))) < 45
    assert flags_in(render(EvalConfig, "eval")) == flags_in(render(EvalConfig, "eval", "all"))


def test_help_of_a_section_shows_all_of_it() -> None:
    page = render(RLConfig, "rl", "trainer")
    assert {name.split(".")[0] for name in flags_in(page)} == {"--trainer"}
    assert {"--trainer.ranks", "--trainer.optim.eps", "--trainer.loss.kl-coef"} <= set(flags_in(page))
    assert "Also takes these top-level keys: model, max_steps" in " ".join(page.split())
    assert set(flags_in(render(RLConfig, "rl", "trainer.loss"))) < set(flags_in(page))
    with pytest.raises(UserError, match="no such section or key; did you mean trainer"):
        render(RLConfig, "rl", "traner")
