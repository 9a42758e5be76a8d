"""Predictions: what is refused before anything is touched, what is fixed, and how they are scored."""

import json

import pytest

from hone.config.rl import OnlineEvalConfig, OrchestratorConfig, RLConfig
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


def take(run: RunWriter, steps: int) -> None:
    """Steps whose reward is a tenth of their number."""
    for step in range(steps):
        run.rollouts(step, [{"step": step}])
        run.log_step(step, {"reward/mean": step / 10})


def refused(*texts: str, **settings) -> str:
    with pytest.raises(UserError) as error:
        read(config("unused", *texts, **settings), "reverse-text")
    return str(error.value)


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
        take(run, 8)
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
