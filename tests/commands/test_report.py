"""`hone report`, and the card at the end of `rl` and `sft`: in which states of a run, and that none fails for it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from recorded import Bench
from refusals import fails
from run_folders import held, make_run, snapshot
from samples_made import BARE, RIGHT, WRONG, evaluation
from samples_made import make_run as make_evaluated

from hone.cli import main
from hone.runs import Run
from hone.viewer.card.files import PAGE, RECORD

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
    return bench.rl("finished", "--no-audit")


def facts(folder: Path) -> dict:
    return json.loads((folder / "report.json").read_text())


def test_a_run_ends_with_its_card(finished):
    assert all((finished / name).stat().st_size > 1000 for name in CARD)
    card, run = facts(finished), Run(finished)
    assert card["versions"] == [0, 6] and card["run"]["id"] == run.info["id"]
    assert card["changes"]["reward"]["examples"] == 4
    assert card["changes"]["reward"]["after"]["mean"] == run.metrics()["eval/parity/reward/mean"].to_pylist()[-1]
    assert card["lenient"]["examples"] == [0, 1, 2, 3] and set(card["lenient"]["found"]) == {"0", "6"}
    assert card["run"]["status"] == run.info["status"] == "done"
    assert f"<td>{run.info['id']}</td>" in (finished / "report.html").read_text()


def test_sft_ends_with_one_of_its_losses(bench):
    card = facts(bench.sft("sft"))
    assert (
        card["verdict"][0].startswith("Training loss, mean of 3 steps: ") and "Validation loss: " in card["verdict"][1]
    )


def test_a_resume_writes_it_anew_and_without_report_none_is_left(bench, finished):
    shutil.copytree(finished, bench.folder / "longer")
    bench.hone("rl", "@", "longer/config.toml", "--output-dir", "longer", "--max-steps", "8", "--resume")
    assert facts(bench.folder / "longer")["steps"] == {"done": 8, "planned": 8}
    bench.hone("rl", "@", "longer/config.toml", "--output-dir", "longer", "--max-steps", "9", "--resume", "--no-report")
    assert not [name for name in CARD if (bench.folder / "longer" / name).exists()]


def test_a_card_that_fails_does_not_fail_the_run(bench, monkeypatch, capsys):
    def fails_to(*args, **kwargs):
        raise RuntimeError("no card today")

    monkeypatch.setattr("hone.viewer.card.facts.facts_of", fails_to)
    run = bench.rl("failing", "--no-audit", "--display", "plain")
    said = capsys.readouterr().out
    assert "The card could not be written (RuntimeError: no card today): hone report failing writes it." in said
    assert Run(run).info["status"] == "done" and "no card today" in (run / "logs" / "rl.log").read_text()


def test_one_that_is_interrupted_is_left_out(bench, monkeypatch, capsys):
    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr("hone.viewer.card.files.write_card", interrupted)
    run = bench.rl("hurried", "--no-audit", "--display", "plain")
    assert "The card was left out: hone report hurried writes it." in capsys.readouterr().out
    assert Run(run).info["status"] == "done"


def test_the_report_of_a_run_says_what_the_card_says(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    evaluations = {0: evaluation([RIGHT] * 4 + [BARE] * 36), 4: evaluation([RIGHT] * 30 + [WRONG] * 10)}
    make_evaluated(Path("run"), evaluations)
    assert main(["report", "run"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("RL on char-count: run (done, 4 of 4 steps)\n\nBetter on the same 40 held-out")
    assert "Of +0.68 reward, -0.2" in said and "is skill and +0.90 (" in said
    assert "- This is one seed (3)" in said and said.endswith("Wrote run/report.html, run/report.json\n")
    first = {name: (Path("run") / name).read_text() for name in CARD}
    assert main(["report", "run", "--no-lenient"]) == 0  # what was read is still true
    assert "is skill and +0.90 (" in capsys.readouterr().out
    again = json.loads((Path("run") / "report.json").read_text())
    assert again["changes"] == json.loads(first["report.json"])["changes"]


def test_json_prints_the_facts_and_writes_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    make_evaluated(Path("run"), {0: evaluation([RIGHT, WRONG] * 5), 4: evaluation([RIGHT] * 10)})
    before = snapshot(Path("run"))
    assert main(["report", "run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["turned"]["right"] == 5 and snapshot(Path("run")) == before


def test_output_leaves_the_run_as_it_is(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    make_evaluated(Path("run"), {0: evaluation([RIGHT, WRONG] * 5), 4: evaluation([RIGHT] * 10)})
    before = snapshot(Path("run"))
    assert main(["report", "run", "--output", "cards/today"]) == 0
    assert sorted(path.name for path in Path("cards/today").iterdir()) == sorted(CARD)
    assert snapshot(Path("run")) == before
    fails(
        capsys, main(["report", "run", "--output", "run/logs"]), "run/logs lies in the run", "choose another --output"
    )
    Path("file").touch()
    fails(capsys, main(["report", "run", "--output", "file"]), "file can't be written", "choose another folder")
    assert main(["report", "run", "--output", "run"]) == 0 and (Path("run") / "report.html").is_file()


def test_output_overwrites_the_card_of_the_same_run_alone(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    make_evaluated(Path("run"), {0: evaluation([RIGHT, WRONG] * 5), 4: evaluation([RIGHT] * 10)})
    make_evaluated(Path("other"), {}, id="id-b")
    assert main(["report", "run", "--output", "card"]) == 0 and main(["report", "run", "--output", "card"]) == 0
    before = snapshot(Path("card"))
    words = "card/report.html is not the card of other", "another --output"
    fails(capsys, main(["report", "other", "--output", "card"]), *words)
    assert snapshot(Path("card")) == before
    Path("site").mkdir()
    Path("site/report.html").write_text("mine")
    fails(capsys, main(["report", "run", "--output", "site"]), "site/report.html is not the card of run")
    assert [file.name for file in Path("site").iterdir()] == ["report.html"]
    assert main(["report", "run", "--output", "site", "--json"]) == 0


@pytest.mark.parametrize("status", ["running", "interrupted", "failed", "stopped"])
@pytest.mark.parametrize("kind", ["rl", "sft"])
def test_a_run_in_any_state_has_a_card(status, kind, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    make_run(Path("run"), status, kind=kind, steps=2)
    assert main(["report", "run"]) == 0
    said = capsys.readouterr().out
    words = {"running": "killed after 2 of 4 steps", "stopped": "ended before its last step"}
    assert words.get(status, f"{status} after 2 of 4 steps") in said


def test_a_run_at_work_has_a_card_and_goes_on(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    make_run(Path("run"), "running", steps=2)
    with held(Path("run")) as process:
        assert main(["report", "run"]) == 0
        assert process.poll() is None
    assert "at work on step 3 of 4" in capsys.readouterr().out


def test_what_can_not_be_reported_is_said(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    fails(capsys, main(["report", "nothing"]), "nothing")
    make_run(Path("run"))
    (Path("run") / "run.json").write_text("{")
    fails(capsys, main(["report", "run"]), "run.json is damaged")


def test_a_run_whose_task_is_gone_or_changed_says_so(bench, finished, capsys):
    other = bench.folder / "moved"
    shutil.copytree(finished, other)
    text = (other / "config.toml").read_text().replace('id = "parity"', 'id = "gone-task"')
    (other / "config.toml").write_text(text)
    for name in CARD:
        (other / name).unlink()
    bench.hone("report", "moved")
    assert "gone" in facts(other)["lenient"]["why_not"]
    shutil.copytree(finished, bench.folder / "edited")
    task = bench.folder / "environments" / "parity.py"
    kept = task.read_text()
    try:
        task.write_text(kept + "\n# edited\n")
        bench.hone("report", "edited")
    finally:
        task.write_text(kept)
    assert "--trust-local-task" in facts(bench.folder / "edited")["lenient"]["why_not"]


@pytest.mark.parametrize(("edit", "flags", "words"), [
    (("@inline\ndef parity", "async def parity"), (), "reward functions might ask a service, or hang"),
    (("@inline\n", ""), ("--orchestrator.grading.workers", "0"), "reward functions might ask a service, or hang"),
])  # fmt: skip
def test_graders_that_cost_or_can_not_be_ended_are_not_asked_at_the_end(bench, edit, flags, words):
    name = f"careful{len(flags)}"
    (bench.folder / "environments" / f"{name}.py").write_text(TASK.replace(*edit))
    base = ["rl", "--model.name", "model", "--output-dir", name, "--max-steps", "2", "--display", "none", "--no-audit"]
    base += ["--precision", "fp32", "--seq-len", "48", "--orchestrator.env.id", name]
    base += ["--orchestrator.batch-size", "8", "--orchestrator.rollouts-per-example", "4"]
    base += ["--orchestrator.sampling.max-tokens", "10", "--orchestrator.eval.num-examples", "4"]
    bench.hone(*base, *flags)
    reason = facts(bench.folder / name)["lenient"]["why_not"]
    assert words in reason and reason.endswith(f"hone report {name} reads it")
    bench.hone("report", name)
    assert facts(bench.folder / name)["lenient"]["examples"] == [0, 1, 2, 3]
