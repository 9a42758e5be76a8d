"""A study of real runs, of a step or two each: shared stages, failures, going on, the files that come of it."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

import hone
from hone.cli import main
from hone.config.parse import from_settings
from hone.config.study import StudyConfig
from hone.errors import UserError
from hone.runs import Run
from hone.studies.cells import cells_of, runs_of, task_of
from hone.studies.running import tasks_of

ROOT = Path(__file__).resolve().parents[2]
FILES = {name: str(ROOT / "examples/reverse_text" / file) for name, file in
         (("sft", "tiny_sft.toml"), ("rl", "tiny.toml"))}  # fmt: skip
SMALL = {"sft.settings": {"max_steps": 2, "data": {"batch_size": 4}}, "eval.num_examples": 6, "seeds": 1}
RL = {"orchestrator": {"batch_size": 16, "rollouts_per_example": 4, "eval": "None"}}


def study(tmp_path: Path, **settings: object) -> StudyConfig:
    return from_settings(StudyConfig, None, {**FILES, "output_dir": str(tmp_path / "study"), **settings})


def test_a_grid_has_each_combination_and_cells_share_equal_stages(tmp_path: Path) -> None:
    grid = {
        "grid.sft": {"max_steps": [2, 4]},
        "grid.rl": {"max_steps": [0, 3], "trainer": {"optim": {"lr": [1e-4, 2e-4]}}},
    }
    config = study(tmp_path, **grid, seeds=2)
    cells = cells_of(config)
    assert len(cells) == 8 and cells[-1].name == "sft.max_steps 4, rl.max_steps 3, lr 0.0002"
    assert cells[-1].settings == {"sft.max_steps": 4, "rl.max_steps": 3, "rl.trainer.optim.lr": 2e-4}
    chain = list(runs_of(cells[-1].stages[1]))
    assert [(one.kind, one.seed, one.config.max_steps) for one in chain] == [("sft", 1, 4), ("rl", 1, 3)]
    kinds = [task.kind for task in tasks_of(config, cells).values()]
    assert {kind: kinds.count(kind) for kind in ("sft", "rl", "eval")} == {"sft": 4, "rl": 8, "eval": 12}
    task = task_of(config, cells)
    assert task.id == "reverse-text" and "demo_noise" not in task.args


def test_what_a_stage_is_called_depends_on_all_that_it_is_made_of(tmp_path: Path) -> None:
    def ids(**settings: object) -> list[str]:
        (cell,) = cells_of(study(tmp_path, cells=[{"name": "a"}], seeds=1, **settings))
        return [stage.id for stage in runs_of(cell.stages[0])]

    sft, rl = ids()
    assert ids() == [sft, rl]
    assert ids(**{"rl.settings": {"max_steps": 7}})[0] == sft != ids(**{"sft.settings": {"max_steps": 7}})[0]
    assert rl not in (ids(**{"sft.settings": {"max_steps": 7}})[1], ids(model="hone/other")[1])


BAD = {
    "a study has no stage": {"sft": None, "rl": None, "cells": [{"name": "a"}]},
    "either a grid or a list of cells": {},
    "two cells are called 'a'": {"cells": [{"name": "a"}, {"name": "a"}]},
    "did you mean trainer.optim.lr": {"cells": [{"name": "a", "rl": {"trainer": {"optim": {"lrr": 1}}}}]},
    "should be a list of values": {"grid.rl": {"max_steps": 3}},
    "baseline = 'b' is no cell: there are 'a'": {"cells": [{"name": "a"}], "baseline": "b"},
    "has max_steps = 0 in each of its stages": {
        "cells": [{"name": "a", "sft": {"max_steps": 0}, "rl": {"max_steps": 0}}]
    },
    "x = 'rl.max_steps' must be a number that each cell sets": {"cells": [{"name": "a"}], "x": "rl.max_steps"},
    "give a number of seeds": {"cells": [{"name": "a"}], "seeds": [1, 1]},
}


@pytest.mark.parametrize("words", BAD)
def test_what_is_wrong_is_said_before_anything_runs(tmp_path: Path, words: str) -> None:
    given = {key: value for key, value in (FILES | BAD[words]).items() if value is not None}
    with pytest.raises(UserError) as error:
        cells_of(from_settings(StudyConfig, None, {"output_dir": str(tmp_path / "study"), **given}))
    assert words in str(error.value)
    assert not (tmp_path / "study").exists()


@pytest.fixture
def ran(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> tuple[Path, str]:
    """A study with three cells, the last of which fails, as a command; what it printed."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "study.toml").write_text(
        f'output_dir = "out"\nseeds = 1\n[sft]\nfile = "{FILES["sft"]}"\n'
        "[sft.settings]\nmax_steps = 2\ndata.batch_size = 4\n"
        f'[rl]\nfile = "{FILES["rl"]}"\n[rl.settings]\n'
        'orchestrator = {batch_size = 16, rollouts_per_example = 4, eval = "None"}\n'
        '[eval]\nnum_examples = 6\n[[cells]]\nname = "SFT alone"\nrl.max_steps = 0\n'
        '[[cells]]\nname = "one step"\nrl.max_steps = 1\n'
        '[[cells]]\nname = "no room"\nrl = {max_steps = 1, seq_len = 20, orchestrator.sampling.max_tokens = 4}\n'
    )
    assert main(["study", "@", "study.toml"]) == 1
    return tmp_path / "out", capsys.readouterr().out


def test_a_failed_cell_does_not_end_it_and_what_is_done_is_not_done_again(
    ran: tuple[Path, str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out, printed = ran
    assert "STUDY: 3 cells x 1 seed: 1 of sft, 2 of rl, 3 of eval" in printed
    assert "rl of no room, seed 0: FAILED, exit code 2: error: " in printed
    assert "eval of no room, seed 0 (it needs rl of no room, seed 0, which failed)" in printed
    table = (out / "results.csv").read_bytes()
    rows = list(csv.DictReader(table.decode().splitlines()))
    assert [(row["cell"], row["rl.max_steps"], row["held_out"]) for row in rows] == [
        ("SFT alone", "0", "6"), ("one step", "1", "6"),
    ]  # fmt: skip
    ids = {folder.name: Run(folder).info["id"] for folder in (out / "runs").iterdir() if (folder / "run.json").exists()}
    assert len(ids) == 2, "both cells have the same run of SFT"
    (gone,) = [folder for folder in (out / "evals").iterdir() if folder.is_dir() and folder.name.startswith("rl")]
    (gone / "run.json").unlink()  # as if it had been killed
    assert main(["study", "@", "study.toml"]) == 1
    assert "3 of 6 runs are done already." in capsys.readouterr().out
    assert ids == {folder: Run(out / "runs" / folder).info["id"] for folder in ids}
    assert (out / "results.csv").read_bytes() == table
    page = (out / "study.html").read_text()
    assert "<svg" in page and "<script" not in page and "SFT alone" in page and (out / "curves.png").exists()
    assert "| SFT alone | 1 |" in (out / "study.md").read_text()


def test_a_budget_leaves_runs_out_and_says_so(tmp_path: Path) -> None:
    settings = SMALL | {"cells": [{"name": "a", "rl": {"max_steps": 0}}], "budget.hours": 1e-9}
    found = hone.study(**FILES, output_dir=str(tmp_path / "study"), **settings)  # type: ignore[arg-type]
    assert len(found.outcome.left) == 2 and found.results.missing
    assert (tmp_path / "study" / "study.html").exists()
