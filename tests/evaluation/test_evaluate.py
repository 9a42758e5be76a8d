from __future__ import annotations

import errno
import json
import os
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from hone import rng
from hone.config.eval import EvalConfig
from hone.environments import Range, Rubric, SingleTurnEnv, TagParser
from hone.errors import UserError
from hone.evaluation.intervals import bounded_interval, mean_interval
from hone.evaluation.loop import evaluate
from hone.evaluation.report import show_sample
from hone.evaluation.result import EvalResult
from hone.evaluation.saving import results_folder, save_results
from hone.inference.types import SamplingParams
from hone.terminal import printable
from hone.types import Segment

TAGS = TagParser("t")


class Renderer:
    """Prompts as one token per character."""

    def note(self, where, messages, tools=None, key=None):
        pass

    def prompt_ids(self, messages, tools=None):
        return [ord(c) for m in messages for c in m["content"]]


class Scripted:
    """Says for completion (example, rollout) what `script` says; remembers its requests."""

    def __init__(self, script, version=3):
        self.script, self.version = script, version
        self.requests, self.calls = [], []

    def sample(self, requests, sampling, finished=None):
        self.calls.append((len(requests), sampling))
        self.requests += requests
        return [self._turn(request) for request in requests]

    def _turn(self, request):
        _, draw, rollout = map(int, request.sample_id.split("-"))
        text, stop_reason = self.script(draw, rollout)
        sampled, prompt = len(text) or 1, len(request.prompt_ids)
        return Segment(
            np.arange(prompt + sampled, dtype=np.int64),
            np.repeat([False, True], [prompt, sampled]),
            np.zeros(prompt + sampled, dtype=np.float32),
            np.repeat([-1, self.version], [prompt, sampled]).astype(np.int32),
            [*request.messages, {"role": "assistant", "content": text}],
            stop_reason,
        )


def right(completion, answer, parser):
    given = parser.parse_answer(completion)
    if given == "boom":
        raise RuntimeError("the grader fell over")
    return float(given == answer)


def bonus(completion):
    return 1.0 if "please" in completion[-1]["content"] else None


def make_env(n=4) -> SingleTurnEnv:
    rows = [{"question": f"q{i}", "answer": str(i)} for i in range(n)]
    return SingleTurnEnv(rubric=Rubric([right, bonus], [1.0, 0.5]), parser=TAGS, eval_dataset=rows, id="toy")


def run(script, env=None, n=4, r=2, version=3, policy=None, **kwargs) -> tuple[EvalResult, Scripted]:
    policy = policy or Scripted(script, version)
    settings = {"sampling": SamplingParams(temperature=0.5), "max_tokens": 10, "seq_len": 100, "seed": 7} | kwargs
    result = evaluate(
        policy, env or make_env(), num_examples=n, rollouts_per_example=r, renderer=Renderer(), **settings
    )
    return result, policy


SCRIPT = {
    (0, 0): ("<t>0</t>", "stop"),
    (0, 1): ("please <t>9</t>", "stop"),
    (1, 0): ("<t>1</t>", "stop"),
    (1, 1): ("<t>1</t>", "length"),
    (2, 0): ("<t>boom</t>", "stop"),
    (2, 1): ("<t>2", "length"),
    (3, 0): ("three", "stop"),
    (3, 1): ("<t>4</t>", "stop"),
}


def scripted(draw, rollout):
    return SCRIPT[draw, rollout]


def test_metrics_of_a_known_set_of_completions():
    metrics = run(scripted)[0].metrics()
    rewards = [1.0, 0.5, 1.0, 1.0, 0.0, 0.0, 0.0]  # without the one whose grading failed
    lengths = [len(text) for text, _ in SCRIPT.values()]
    interval = bounded_interval([np.array(v) for v in ([1.0, 0.5], [1.0, 1.0], [0.0], [0.0, 0.0])], 0.0, 1.5)
    expected = {
        "reward/mean": np.mean(rewards),
        "reward/std": np.std(rewards),
        "reward/right/mean": 3 / 7,
        "reward/bonus/mean": 1.0,
        "ci95/low": interval.low,
        "ci95/high": interval.high,
        "correct": 3 / 7,
        "pass@1": (0.5 + 1 + 0 + 0) / 4,
        "pass@2": (1 + 1 + 0) / 3,
        "outcome/correct": 3 / 8,
        "outcome/wrong": 2 / 8,
        "outcome/truncated": 1 / 8,
        "outcome/unparsable": 1 / 8,
        "outcome/grader_error": 1 / 8,
        "outcome/grader_timeout": 0.0,
        "completion/length/mean": np.mean(lengths),
        "completion/truncated": 2 / 8,
    }
    for name, value in expected.items():
        assert metrics.pop(f"eval/toy/{name}") == pytest.approx(value), name
    assert set(metrics) == {"eval/toy/correct/ci95/low", "eval/toy/correct/ci95/high"}


@pytest.mark.parametrize(
    ("ranges", "high"),
    [
        ({}, 1.0),
        ({"right": Range(right=(1.0, 1.0), wrong=(-1.0, 0.0))}, 1.0),
        ({"right": Range((0.5, 9.0), (0.0, 0.0))}, 9),
    ],
)
def test_the_interval_of_a_reward_does_not_leave_what_the_reward_can_be(ranges, high):
    rows = [{"question": str(i), "answer": "a"} for i in range(8)]
    env = SingleTurnEnv(rubric=Rubric([right], ranges=ranges), parser=TAGS, eval_dataset=rows, id="toy")
    result = run(lambda draw, rollout: ("<t>a</t>" if draw else "<t>b</t>", "stop"), env, n=8, r=1)[0]
    metrics, t_high = result.metrics(), mean_interval([result.rewards[i : i + 1] for i in range(8)]).high
    assert metrics["eval/toy/reward/mean"] == 7 / 8 and t_high > 1.0
    low, top = (metrics[f"eval/toy/ci95/{end}"] for end in ("low", "high"))
    assert result.reward_range[1] == high and low < 7 / 8 < top
    assert top <= 1.0 if high == 1.0 else top == t_high, "what rewards were seen is not the range of the reward"


def test_randomness_is_keyed_by_seed_version_example_and_rollout():
    _, policy = run(scripted, n=2, version=5)
    assert [r.key for r in policy.requests] == [rng.key(7, "eval", 5, d, s) for d in range(2) for s in range(2)]
    assert [r.prompt_ids for r in policy.requests] == [(113, 48)] * 2 + [(113, 49)] * 2
    assert policy.calls[0][1].temperature == 0.5


def test_graders_that_draw_are_keyed_by_the_evaluations_seed():
    def luck(rng):
        return rng.random()

    env = SingleTurnEnv(rubric=Rubric([luck]), parser=TAGS, eval_dataset=[{"question": "q", "answer": "0"}], id="toy")
    (sample,) = run(lambda draw, rollout: ("<t>0</t>", "stop"), env, n=1, r=1, version=5, seed=9)[0].samples
    assert sample.score.reward == rng.stream(9, "grader", sample.example.id, "5-0-0", "luck").random()


def test_completions_fit_the_sequence_length():
    _, policy = run(scripted, max_tokens=None, seq_len=9)
    assert {r.max_tokens for r in policy.requests} == {7}
    assert {r.max_tokens for r in run(scripted, max_tokens=5, seq_len=9)[1].requests} == {5}
    with pytest.raises(UserError, match="seq_len"):
        run(scripted, seq_len=2)


def test_batches_hold_whole_examples_and_report_progress(monkeypatch: pytest.MonkeyPatch):
    at_once, _ = run(scripted)
    monkeypatch.setattr("hone.evaluation.loop.BATCH", 5)
    seen = []
    result, policy = run(scripted, progress=lambda done, total: seen.append((done, total)))
    assert [size for size, _ in policy.calls] == [4, 4]
    assert seen == [(2, 4), (4, 4)]
    assert [sample.row() for sample in result.samples] == [sample.row() for sample in at_once.samples]


def shown(draw) -> str:
    out = StringIO()
    draw(Console(file=out, width=120, highlight=False))
    return out.getvalue()


def test_model_output_cannot_steer_the_terminal_or_the_markup():
    evil = "\x1b[2J[bold]x[/bold]\x07"
    assert printable(evil + "\na") == "\\x1b[2J[bold]x[/bold]\\x07\na"
    result, _ = run(lambda draw, rollout: (evil, "stop"))
    text = shown(lambda console: show_sample(console, result.samples[0]))
    assert "assistant: \\x1b[2J[bold]x[/bold]\\x07" in text


def test_a_page_of_earlier_results_goes_with_them(tmp_path: Path):
    result, config = run(scripted)[0], EvalConfig(env="toy", model="some/model", output_dir=tmp_path / "out")
    for _ in range(2):
        folder = results_folder(config)
        save_results(folder, config, result, ["hone", "eval"], {})
        assert not (folder / "report.html").exists()
        (folder / "report.html").write_text("of the first")


def test_what_is_not_an_evaluation_is_left_alone(tmp_path: Path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match=r"not a run of hone \(notes.txt\)"):
        results_folder(EvalConfig(output_dir=tmp_path))
    (tmp_path / "run.json").write_text(json.dumps({"format": "hone-run-1", "id": "x", "kind": "rl"}))
    with pytest.raises(UserError, match="holds a run of `hone rl`"):
        results_folder(EvalConfig(output_dir=tmp_path))


def test_what_the_disk_does_not_take_is_saved_elsewhere_and_the_earlier_results_stay(tmp_path: Path, monkeypatch):
    result, _ = run(scripted)
    config = EvalConfig(env="toy", model="some/model", output_dir=tmp_path / "out", max_tokens=10)
    save_results(tmp_path / "out", config, result, ["first"], {})
    (tmp_path / "out" / "report.html").write_text("of the first")
    before = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    with monkeypatch.context() as full:
        sync = os.fsync

        def fsync(file: int) -> None:
            if "out/.tmp-hone-new-metadata.json" in os.readlink(f"/proc/self/fd/{file}"):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            sync(file)

        full.setattr("os.fsync", fsync)
        with pytest.raises(UserError, match=r"^the disk is full \(.*metadata.json\): free some space") as caught:
            save_results(tmp_path / "out", config, result, ["second"], {})
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == before
    (place,) = scratch.iterdir()
    assert f"The results are in {place}: move them" in str(caught.value)
    assert (place / "results.jsonl").read_bytes() == before["results.jsonl"]
    assert json.loads((place / "run.json").read_text())["command"] == ["second"]
