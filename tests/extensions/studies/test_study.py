"""A study of real runs, of a step or two each: shared stages, failures, going on, the files that come of it."""

from __future__ import annotations

import csv
import itertools
import json
import os
import signal
from pathlib import Path

import pytest
from samples_made import BARE, RIGHT, WRONG, evaluation, make_run

import hone
from hone.cli import main
from hone.config.eval import EvalConfig
from hone.config.parse import from_settings
from hone.config.rl import RLConfig
from hone.config.shared import GradingConfig
from hone.errors import UserError
from hone.extensions.studies.cells import cells_of, runs_of, task_of
from hone.extensions.studies.config import StudyConfig
from hone.extensions.studies.report import write_report
from hone.extensions.studies.results import COSTS, SeedResult, compared, right_leniently
from hone.extensions.studies.running import Tasks, beside
from hone.extensions.studies.study import Study
from hone.runs import Run

ROOT = Path(__file__).resolve().parents[3]
FILES = {name: str(ROOT / "examples/reverse_text" / file) for name, file in
         (("sft", "tiny_sft.toml"), ("rl", "tiny.toml"))}  # fmt: skip
SMALL = {"sft.settings": {"max_steps": 2, "data": {"batch_size": 4}}, "eval.num_examples": 6, "seeds": 1}


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
    kinds = [task.kind for task in Tasks(config, cells).values()]
    assert {kind: kinds.count(kind) for kind in ("sft", "rl", "eval")} == {"sft": 4, "rl": 8, "eval": 12}
    task = task_of(config, cells)
    assert task.id == "reverse-text" and "demo_noise" not in task.args


def test_a_cell_is_evaluated_with_the_prompt_that_it_was_trained_with(tmp_path: Path) -> None:
    cells = [{"name": "hint", "rl": {"max_steps": 0}}]
    cells += [{"name": "none", "rl": {"max_steps": 0}, "eval_args": {"system_prompt": ""}}]
    config = study(tmp_path, cells=cells, seeds=1, **{"eval.env": {"id": "reverse-text", "args": {"max_chars": 9}}})
    assert cells_of(config)[1].settings["eval.env.args.system_prompt"] == ""
    tasks = [task for task in Tasks(config, cells_of(config)).values()]
    assert [task.kind for task in tasks] == ["sft", "eval", "eval"], "both have the same run"
    assert [task.config.env_args for task in tasks[1:]] == [{"max_chars": 9}, {"max_chars": 9, "system_prompt": ""}]


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
    "two cells are called 'max_steps 2'": {"grid.rl": {"max_steps": [2, 2]}},
    "rl.seed is set by the study": {"cells": [{"name": "a", "rl": {"seed": 1}}]},
    "sft.budget.hours is set by the study": {"cells": [{"name": "a"}], "sft.settings": {"budget": {"hours": 1}}},
    "RL starts from SFT's weights: leave out rl.model.name": {"cells": [{"name": "a", "rl": {"model": "m"}}]},
    "did you mean trainer.optim.lr": {"cells": [{"name": "a", "rl": {"trainer": {"optim": {"lrr": 1}}}}]},
    "should be a list of values": {"grid.rl": {"max_steps": 3}},
    "baseline = 'b' is no cell: cells are 'a'": {"cells": [{"name": "a"}], "baseline": "b"},
    "has max_steps = 0 in all stages": {"cells": [{"name": "a", "sft": {"max_steps": 0}, "rl": {"max_steps": 0}}]},
    "cells[0].name is missing": {"cells": [{"rl": {"max_steps": 1}}]},
    "'a\\x1b' should be one line of printable text": {"cells": [{"name": "a\x1b"}]},
    "'a\\n| b' should be one line of printable text": {"cells": [{"name": "a\n| b"}]},
    "set eval.env to the task for the evaluation": {
        "cells": [{"name": "a"}, {"name": "b", "rl": {"orchestrator": {"env": {"id": "countdown"}}}}]
    },
}


@pytest.mark.parametrize("words", BAD)
def test_what_is_wrong_is_said_before_anything_runs(tmp_path: Path, words: str) -> None:
    given = {key: value for key, value in (FILES | BAD[words]).items() if value is not None}
    with pytest.raises(UserError) as error:
        config = from_settings(StudyConfig, None, {"output_dir": str(tmp_path / "study"), **given})
        Tasks(config, cells_of(config))
    assert words in str(error.value)
    assert not (tmp_path / "study").exists()


def test_a_failed_cell_does_not_end_it_and_what_is_done_is_not_done_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "study.toml").write_text(
        f'output_dir = "out"\nseeds = 1\n[sft]\nfile = "{FILES["sft"]}"\n'
        "[sft.settings]\nmax_steps = 2\ndata.batch_size = 4\n"
        f'[rl]\nfile = "{FILES["rl"]}"\n[rl.settings]\n'
        'orchestrator = {batch_size = 16, rollouts_per_example = 4, eval = "None"}\n'
        '[eval]\nnum_examples = 6\nlenient = true\n[[cells]]\nname = "SFT alone"\nrl.max_steps = 0\n'
        '[[cells]]\nname = "one step"\nrl.max_steps = 1\n'
        '[[cells]]\nname = "no room"\nrl = {max_steps = 1, seq_len = 20, orchestrator.sampling.max_tokens = 4}\n'
    )
    assert main(["study", "@", "study.toml"]) == 1
    out, printed = tmp_path / "out", capsys.readouterr().out
    assert "STUDY: 3 cells x 1 seed: 1 of sft, 2 of rl, 3 of eval" in printed
    assert "rl of no room, seed 0: FAILED, it exited with code 2 (reverse-text (train), row " in printed
    assert "eval of no room, seed 0 (it needs rl of no room, seed 0, which failed)" in printed
    table = (out / "results.csv").read_bytes()
    rows = list(csv.DictReader(table.decode().splitlines()))
    assert [(row["cell"], row["rl.max_steps"], row["held_out"]) for row in rows] == [
        ("SFT alone", "0", "6"), ("one step", "1", "6"),
    ]  # fmt: skip
    cards = [json.loads(file.read_text())["measures"] for file in sorted((out / "evals").glob("*/report.json"))]
    assert sorted((row["right"], row["lenient"]) for row in rows) == sorted(
        tuple(f"{card[how]['mean']:.6f}" for how in ("strict", "lenient")) for card in cards
    )
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
    assert "| SFT alone | 1 x 6 |" in (out / "study.md").read_text()


def test_a_folder_in_which_a_study_could_not_begin_is_taken_and_any_other_is_left_alone(tmp_path: Path) -> None:
    config = study(tmp_path, cells=[{"name": "a"}])
    config.output_dir.mkdir()
    for name in (".hone.lock", ".tmp-hone-new-study.toml"):
        (config.output_dir / name).touch()
    Study(config)
    (config.output_dir / "notes.txt").touch()
    with pytest.raises(UserError, match="holds files but no study"):
        Study(config)


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_ends_a_study_with_its_exit_code_and_the_report(signum, code, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(
        "hone.extensions.studies.running.Runner._start_what_may", lambda self: os.kill(os.getpid(), signum)
    )
    (tmp_path / "study.toml").write_text(f'[rl]\nfile = "{FILES["rl"]}"\n[[cells]]\nname = "a"\n')
    assert main(["study", "@", str(tmp_path / "study.toml"), "--output-dir", str(tmp_path / "out")]) == code
    assert (tmp_path / "out" / "study.html").exists()


def test_servers_of_runs_side_by_side_have_ports_of_their_own() -> None:
    several = RLConfig.model_validate({"mode": "split", "inference": {"port": 9000, "replicas": 2}})
    assert [beside(several, place).inference.port for place in range(3)] == [9000, 9100, 9200]
    for config in (RLConfig(), EvalConfig(env="reverse-text", model="hone/tiny")):
        assert beside(config, 2) is config


def test_a_budget_leaves_runs_out_and_says_so(tmp_path: Path) -> None:
    settings = SMALL | {"cells": [{"name": "a", "rl": {"max_steps": 0}}], "budget.hours": 1e-12}
    found = hone.study(**FILES, output_dir=str(tmp_path / "study"), **settings)  # type: ignore[arg-type]
    assert len(found.outcome.left) == 2 and set(found.results.missing.values()) == {"not run yet"}
    assert (tmp_path / "study" / "study.html").exists()


def reverse_text_with(tmp_path: Path, change: str) -> None:
    """Write the task `changed`: reverse-text, with a line of code that changes `env`."""
    (tmp_path / "environments").mkdir()
    (tmp_path / "environments" / "changed.py").write_text(
        "from hone.environments import Rubric\nfrom reverse_text import load_environment as original\n\n\n"
        "def raises(completion):\n"
        f"    raise ValueError('no')\n\n\ndef load_environment():\n    env = original()\n    {change}\n    return env\n"
    )


def test_an_evaluation_that_could_not_be_graded_is_no_result_and_is_done_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    reverse_text_with(tmp_path, "env.rubric = Rubric([raises], correctness=raises)")
    settings = SMALL | {"cells": [{"name": "a", "rl": {"max_steps": 0}}], "eval.env": "changed"}
    for _ in range(2):
        found = hone.study(**FILES, output_dir=str(tmp_path / "study"), **settings)  # type: ignore[arg-type]
        assert list(found.results.missing) == ["eval of a, seed 0"] and found.results.rows[0].seeds == []
    (log,) = (tmp_path / "study" / "evals").glob("*.log")
    assert "no completion could be graded" in log.read_text()


def test_ctrl_c_ends_what_is_at_work_and_the_report_is_written(tmp_path: Path) -> None:
    settings = SMALL | {"cells": [{"name": "a", "rl": {"max_steps": 0}}], "sft.settings": {"max_steps": 5000}}
    study = Study(from_settings(StudyConfig, None, {**FILES, "output_dir": str(tmp_path / "study"), **settings}))
    begun: list[int] = []

    def status(words: str) -> None:
        for file in (tmp_path / "study" / "runs").glob("*/run.json"):
            begun.append(json.loads(file.read_text())["pid"])
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        study.run(status=status)
    with pytest.raises(ProcessLookupError):
        os.kill(begun[0], 0)
    assert study.page.exists() and study.outcome.left and "not run yet" in str(study.results.missing)


def test_what_is_right_leniently_is_read_once_and_in_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(tmp_path / "run", {4: evaluation([RIGHT] * 2 + [BARE] * 3 + [WRONG] * 5)})
    assert right_leniently(run, GradingConfig(), reads=False) is None
    assert right_leniently(run, GradingConfig()) == pytest.approx(0.5)
    with monkeypatch.context() as patched:
        patched.setattr("hone.extensions.viewer.card.lenient.read_recorded", None)
        assert right_leniently(run, GradingConfig()) == pytest.approx(0.5)
    record = json.loads((run / "report.json").read_text())
    record["lenient"]["examples"].pop()  # as if the time had not been enough
    (run / "report.json").write_text(json.dumps(record))
    assert right_leniently(run, GradingConfig(), reads=False) is None
    assert right_leniently(run, GradingConfig()) == pytest.approx(0.5)
    gone = make_run(tmp_path / "gone", {4: evaluation([RIGHT] * 5)})
    (gone / "config.toml").write_text((gone / "config.toml").read_text().replace("char-count", "no-such-task"))
    assert right_leniently(gone, GradingConfig()) is None


MARKUP = "a | $b$ and $c <script>alert(1)</script>"
NAMES = ("SFT 100", "SFT 400", MARKUP, "_late")


def test_results_of_three_seeds_are_compared_and_shown(tmp_path: Path) -> None:
    """Of results as they would be read; names hold what markdown, HTML and matplotlib would take for markup."""
    steps = {"SFT 100": (100, 0), "SFT 400": (400, 0), MARKUP: (100, 50), "_late": (200, 50)}
    cells = [{"name": name, "sft": {"max_steps": a}, "rl": {"max_steps": b}} for name, (a, b) in steps.items()]
    config = study(tmp_path, cells=cells, **{"eval.lenient": True})
    level = dict(zip(NAMES, (0.2, 0.4, 0.5, 0.0), strict=True))
    tokens = dict(zip(NAMES, (1000, 4000, 2000, 9000), strict=True))

    def result(name: str, seed: int) -> SeedResult:
        values = {example: level[name] + 0.01 * example + 0.001 * seed for example in range(5)}
        costs = dict.fromkeys(COSTS, float(tokens[name]))
        last = "rl" if steps[name][1] else "sft"
        return SeedResult(seed, values, level[name], costs, [0.1, 0.2, 0.3], last, 0.3 + level[name] / 2)

    measured = {name: [result(name, seed) for seed in range(3)] for name in NAMES}
    measured["_late"] = [result("_late", 7)]  # a seed that the baseline does not have
    found = compared(config, cells_of(config), measured, {"rl of _late, seed 0": "it exited with code 1"})
    assert [row.effect and row.effect.verdict for row in found.rows] == [None, "helps", "helps", None]
    assert found.rows[2].effect is not None and found.rows[2].effect.mean == pytest.approx(0.3)
    (equal, *_) = [one for one in found.equal if one.cost == "tokens"]
    assert (equal.cell, equal.sft_alone) == (NAMES[2], pytest.approx(0.3 + 0.021)), "half way from 1000 to 4000"
    assert [one.sft_alone for one in found.equal if one.cell == "_late"] == [None] * 3
    (tmp_path / "study").mkdir()
    write_report(found)
    page, text, table = (tmp_path / "study" / name for name in ("study.html", "study.md", "results.csv"))
    rows = {row["cell"]: row for row in csv.DictReader(table.read_text().splitlines())}
    assert rows[NAMES[2]]["reward"] == f"{0.5 + 0.02 + 0.002:.6f}" and rows["_late"]["seed"] == "7"
    lines = text.read_text().splitlines()
    shown = r"a \| $b$ and $c &lt;script>alert(1)&lt;/script>"
    assert any(line.startswith(f"| {shown} | 3 x 5 | 0.521 |") for line in lines)
    assert "| SFT 100 | 3 x 5 | 0.200 | 0.400 |  |  |  |" in lines
    assert "| SFT 400 | 3 x 5 | 0.400 | 0.500 | +0.200 | +0.100 | 50 % |" in lines
    assert "| _late | 0 | – | – | – | – | – |" in lines
    assert "| _late | 1 x 5 | 0.027 | 0.027 | 0.027 |  |  |  |  |  | no seed shared with the baseline |" in lines
    assert all("| n |" in head for head, below in itertools.pairwise(lines) if below.startswith("|---"))
    assert "- Missing runs: failed: rl of _late, seed 0 (it exited with code 1)." in lines
    assert "a | $b$ and $c &lt;script&gt;" in page.read_text() and (tmp_path / "study" / "effects.png").exists()
    for file in (page, text, *(tmp_path / "study").glob("*.svg")):
        assert "<script" not in file.read_text()
