"""`hone report`, and the card at the end of `rl` and `sft`: in which states of a run, and that none fails for it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from recorded import Bench
from refusals import fails
from run_folders import make_run, snapshot
from samples_made import BARE, RIGHT, WRONG, evaluation
from samples_made import make_run as make_evaluated

from hone.cli import main
from hone.extensions.viewer.card.files import PAGE, RECORD
from hone.runs import Run

CARD = (PAGE, RECORD)
TASK = '''
from hone.environments import Rubric, SingleTurnEnv, TagParser, inline

PARSER = TagParser("answer")


def load_environment():
    """A right answer is whatever has an even number of characters in its tags, or none."""
    rows = [{"question": f"q{i}", "answer": "ab"} for i in range(8)]
    return Even(rubric=Rubric([parity, right], [1.0, 0.0], correctness=right), parser=PARSER, dataset=rows,
                eval_dataset=rows[:4])


class Even(SingleTurnEnv):
    def reference(self, example):
        return PARSER.wrap(example.answer)


@inline
def parity(completion) -> float:
    return (len(completion[-1]["content"]) % 2) / 1


@inline
def right(completion, answer, parser) -> float:
    return float(parser.parse_answer(completion) == answer)
'''


@pytest.fixture(scope="module")
def bench(tmp_path_factory, tiny_model_dir) -> Bench:
    return Bench(tmp_path_factory.mktemp("bench"), tiny_model_dir, TASK)


@pytest.fixture(scope="module")
def finished(bench) -> Path:
    return bench.rl("finished", "--max-steps", "3")


def facts(folder: Path) -> dict:
    return json.loads((folder / "report.json").read_text())


def test_a_run_ends_with_its_card(finished):
    assert all((finished / name).stat().st_size > 1000 for name in CARD)
    card, run = facts(finished), Run(finished)
    assert card["versions"] == [0, 3] and card["run"]["id"] == run.info["id"]
    assert card["changes"]["reward"]["examples"] == 4
    assert card["changes"]["reward"]["after"]["mean"] == run.metrics()["eval/parity/reward/mean"].to_pylist()[-1]
    assert card["lenient"]["examples"] == [0, 1, 2, 3] and set(card["lenient"]["found"]) == {"0", "3"}
    assert card["run"]["status"] == run.info["status"] == "done"
    assert f"<td>{run.info['id']}</td>" in (finished / "report.html").read_text()


def test_a_resume_writes_it_anew_and_without_report_none_is_left(bench, finished):
    run = shutil.copytree(finished, bench.folder / "longer")
    again = ("rl", "@", "longer/config.toml", "--output-dir", "longer", "--resume")
    bench.hone(*again, "--max-steps", "4")
    assert facts(run)["steps"] == {"done": 4, "planned": 4}
    bench.hone(*again, "--max-steps", "5", "--no-report")
    assert not [name for name in CARD if (run / name).exists()]


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (RuntimeError("no card today"), "The card could not be written (RuntimeError: no card today)"),
        (KeyboardInterrupt(), "The card was left out"),
    ],
)
def test_a_card_that_fails_does_not_fail_the_run(bench, monkeypatch, capsys, error, words):
    def raising(*args, **kwargs):
        raise error

    monkeypatch.setattr("hone.extensions.viewer.card.facts.facts_of", raising)
    run = bench.rl("failing", "--max-steps", "1", "--display", "plain")
    assert f"{words}: hone report failing writes it." in capsys.readouterr().out
    assert Run(run).info["status"] == "done"


@pytest.fixture
def made(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    make_evaluated(Path("run"), {0: evaluation([RIGHT] * 4 + [BARE] * 36), 4: evaluation([RIGHT] * 30 + [WRONG] * 10)})
    return Path("run")


def test_the_report_of_a_run_says_what_the_card_says(made, capsys):
    assert main(["report", "run"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("RL on char-count: run (done, 4 of 4 steps)\n\nBetter on the same 40 held-out")
    assert "Of +0.68 reward, -0.2" in text and "is skill and +0.90 (" in text
    assert "- This is one seed (3)" in text and text.endswith("Wrote run/report.html, run/report.json\n")
    changes = facts(made)["changes"]
    assert main(["report", "run", "--no-lenient"]) == 0 and facts(made)["changes"] == changes, "it is still true"


def test_json_prints_the_facts_and_writes_nothing(made, capsys):
    before = snapshot(made)
    assert main(["report", "run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["turned"]["right"] == 26 and snapshot(made) == before


def test_output_leaves_the_run_as_it_is_and_overwrites_the_card_of_the_same_run_alone(made, capsys):
    make_evaluated(Path("other"), {}, id="id-b")
    before = snapshot(made)
    for _ in range(2):
        assert main(["report", "run", "--output", "cards/today"]) == 0
    assert sorted(path.name for path in Path("cards/today").iterdir()) == sorted(CARD) and snapshot(made) == before
    written = snapshot(Path("cards/today"))
    Path("file").touch()
    for run, output, words in {
        ("run", "run/logs", "run/logs lies in the run"),
        ("run", "file", "file can't be written"),
        ("other", "cards/today", "cards/today/report.html is not the card of other"),
    }:
        fails(capsys, main(["report", run, "--output", output]), words, "another")
    assert snapshot(Path("cards/today")) == written


@pytest.mark.parametrize("status", ["running", "interrupted", "failed", "stopped"])
@pytest.mark.parametrize("kind", ["rl", "sft"])
def test_a_run_in_any_state_has_a_card(status, kind, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    make_run(Path("run"), status, kind=kind, steps=2)
    assert main(["report", "run"]) == 0
    words = {"running": "killed after 2 of 4 steps", "stopped": "ended before its last step"}
    assert words.get(status, f"{status} after 2 of 4 steps") in capsys.readouterr().out


def test_a_grader_that_may_cost_is_not_asked_at_the_end(bench):
    (bench.folder / "environments" / "careful.py").write_text(TASK.replace("@inline\ndef parity", "async def parity"))
    run = bench.rl("careful", "--max-steps", "1", "--orchestrator.env.id", "careful")
    reason = facts(run)["lenient"]["why_not"]
    assert reason == "reward functions might ask a service, or hang: hone report careful reads it"
    bench.hone("report", "careful")
    assert facts(run)["lenient"]["examples"] == [0, 1, 2, 3]
