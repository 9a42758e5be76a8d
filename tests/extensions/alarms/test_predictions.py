"""Predictions: what is refused before anything is touched, what is fixed, what a resume and a branch make of them, and
how they are scored.
"""

import json

import pytest

from hone.config.rl import OnlineEvalConfig, OrchestratorConfig, RLConfig
from hone.config.shared import ResumeConfig
from hone.errors import UserError
from hone.extensions.alarms import predictions
from hone.extensions.alarms.predictions import Predictions, read
from hone.runs import Run
from hone.runs.display import make_display
from hone.runs.progress import Progress
from hone.runs.writer import RunWriter

EVAL = OrchestratorConfig(eval=OnlineEvalConfig(interval=3, rollouts_per_example=4))


def config(folder="unused", *predict: str, **settings) -> RLConfig:
    facts = {"output_dir": folder, "max_steps": 8, "display": "plain", "orchestrator": EVAL, "predict": list(predict)}
    return RLConfig(**facts | settings)


def start(folder, *predict: str, **settings) -> RunWriter:
    made, observer = config(folder, *predict, **settings), Predictions()
    observer.check_config(made)
    return RunWriter.start(made, "rl", ["hone", "rl"], observers=[make_display("plain", Progress("rl", 8)), observer])


def take(run: RunWriter, first: int, last: int, save: int | None = None) -> None:
    """Steps whose reward is a tenth of their number; a checkpoint at `save`."""
    for step in range(first, last):
        if step == save and step > first:
            with run.weights_dir(step) as folder:
                (folder / "model.safetensors").write_text(f"version {step}")
            run.save_checkpoint(step, {"model": {}}, {"step": step})
        run.rollouts(step, [{"step": step}])
        run.log_step(step, {"reward/mean": step / 10})


def refused(*texts: str, **settings) -> str:
    with pytest.raises(UserError) as error:
        read(config("unused", *texts, **settings), "reverse-text")
    return str(error.value)


def state_of(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("reward/mean@4 > 0.6", "can't be read: write METRIC@STEP OP NUMBER p=PROB"),
        ("reward/mean@4 > 0.6 p=80%", "can't be read"),
        ("reward/mean@4 = 0.6 p=0.8", "can't be read"),
        ("reward/mean@4 > 1e999 p=0.5", "can't be read"),
        ("reward/mean@4 > 0.6 p=1", "write p=0.99 or p=0.01"),
        ("reward/mean@8 > 0.6 p=0.8", "max_steps = 8, and reward/mean is not written at 8: predict it at 7"),
        ("eval/reverse-text/correct@4 > 0.6 p=0.8", "is not written at 4: predict it at 3"),
        ("reward@4 > 0.6 p=0.8", "reward is no metric of `rl`: did you mean reward/mean?"),
        ("eval/countdown/reward/mean@3 > 0.6 p=0.8", "did you mean eval/reverse-text/reward/mean?"),
        ("tokens/s@3 > 100 p=0.8", "comes from a clock"),
        ("zzzz@3 > 100 p=0.8", "there are reward/mean, "),
    ],
)  # fmt: skip
def test_what_can_not_be_predicted(text, words):
    sentence = refused(text)
    assert sentence.startswith(f'--predict "{text}"') and words in sentence and "\n" not in sentence


def test_fixed_before_the_first_step_and_scored_at_the_end(tmp_path, capsys):
    texts = ["reward/mean@4 > 0.3 p=0.8", "reward/mean@5 >= 0.6 p=0.9", "eval/x/correct@end < 1 p=0.25"]
    run = start(tmp_path, *texts)
    made = json.loads((tmp_path / "run.json").read_text())["predictions"]
    assert [entry["step"] for entry in made["entries"]] == [4, 5, 8] and len(made["sha256"]) == 64
    assert "outcomes" not in made
    assert f"Predicted: {'; '.join(texts)} (fixed by SHA-256 {made['sha256'][:12]}…)" in capsys.readouterr().out
    events = Run(tmp_path).events()
    assert [(e["kind"], e["step"]) for e in events] == [("start", 0), ("predicted", 0)]
    assert events[1]["sha256"] == made["sha256"]
    with run:
        take(run, 0, 8)
        run.log_step(8, {"eval/x/correct": 0.5})
    info = Run(tmp_path).info
    assert [o["outcome"] for o in info["predictions"]["outcomes"]] == [True, False, True]
    assert [o["value"] for o in info["predictions"]["outcomes"]] == [0.4, 0.5, 0.5]
    assert [o["brier"] for o in info["predictions"]["outcomes"]] == pytest.approx([0.04, 0.81, 0.5625])
    assert info["predictions"]["brier"] == pytest.approx((0.04 + 0.81 + 0.5625) / 3, abs=1e-6)
    assert {k: v for k, v in Run(tmp_path).events()[-1].items() if k != "time"} == {
        **{"kind": "predictions", "step": None, "true": 2, "false": 1, "undecided": 0, "brier": 0.470833}
    }
    assert info["predictions"]["sha256"] == made["sha256"] and predictions.problem(info, tmp_path) == ""
    lines = list(predictions.in_words(info, tmp_path))
    assert lines[0] == "3 of 3 decided, Brier score 0.471 (0 is perfect; always saying 0.5 gets 0.25)"
    assert lines[2].split() == ["false", "reward/mean@5", ">=", "0.6", "p=0.9", "was", "0.5"]


def test_a_resume_goes_on_with_them(tmp_path):
    texts = ["reward/mean@2 > 0.1 p=0.8", "reward/mean@end > 0.6 p=0.6"]
    RunWriter.start(config(tmp_path, *texts), "rl", ["hone", "rl"]).finish("stopped")  # killed before they were entered
    assert "predictions" not in Run(tmp_path).info
    run = start(tmp_path, *texts, resume=ResumeConfig())
    with run:
        take(run, 0, 5, save=4)
        run.finish("stopped")
    assert [o["outcome"] for o in Run(tmp_path).info["predictions"]["outcomes"]] == [True, None]
    first = Run(tmp_path).info["predictions"]["sha256"]
    for again in ([], ["reward/mean@end >.6 p=.60", texts[0]]):  # none, and the same in other words and order
        run = start(tmp_path, *again, resume=ResumeConfig())
        assert run.start_step == 4 and Run(tmp_path).config["predict"] == texts
        take(run, 4, 6)
        run.finish("stopped")
    with start(tmp_path, resume=ResumeConfig(), max_steps=20) as run:  # `end` stays what it was
        take(run, 4, 20)
    info = Run(tmp_path).info
    assert [o["outcome"] for o in info["predictions"]["outcomes"]] == [True, True]
    assert info["predictions"]["entries"][1]["step"] == 7 and info["predictions"]["sha256"] == first
    assert [e["kind"] for e in Run(tmp_path).events()].count("predicted") == 1


@pytest.mark.parametrize("begun", [[], ["reward/mean@2 > 0.1 p=0.8"]])
def test_others_after_the_first_step_are_refused(tmp_path, begun):
    run = start(tmp_path, *begun)
    take(run, 0, 5, save=4)
    run.finish("stopped")
    before = state_of(tmp_path)
    with pytest.raises(UserError) as error:
        start(tmp_path, "reward/mean@2 > 0.1 p=0.99", resume=ResumeConfig())
    words = 'with "reward/mean@2 > 0.1 p=0.8"' if begun else "without any"
    assert str(error.value) == (
        f"{tmp_path} started {words}, and predictions are made before step 0: leave out --predict, or give the same"
    )
    assert state_of(tmp_path) == before


def test_a_branch_starts_without(tmp_path):
    texts = ["reward/mean@2 > 0.1 p=0.8"]
    run = start(tmp_path / "a", *texts)
    take(run, 0, 8, save=4)
    run.finish("done")
    branch = {"resume": ResumeConfig(dir=tmp_path / "a")}
    with start(tmp_path / "b", *texts, **branch) as run:
        take(run, 4, 6, save=5)
    assert "predictions" not in Run(tmp_path / "b").info and Run(tmp_path / "b").config["predict"] == []
    assert predictions.problem(Run(tmp_path / "b").info, tmp_path / "b") == ""
    start(tmp_path / "b", *texts, **branch).finish("stopped")  # the command again
    with pytest.raises(UserError, match="the branch begins at step 4: predict a later step"):
        start(tmp_path / "c", "reward/mean@3 > 0.9 p=0.5", **branch)
    assert not (tmp_path / "c" / "run.json").exists()
    with start(tmp_path / "c", *texts, "reward/mean@6 > 0.9 p=0.5", **branch) as run:
        take(run, 4, 8)
    info = Run(tmp_path / "c").info
    assert [o["outcome"] for o in info["predictions"]["outcomes"]] == [False]
    assert predictions.problem(info, tmp_path / "c") == ""
