"""Runs whose sampler is up to two versions ahead, for real: stopped, with a grader that breaks, slowed down.

- Batches that are on their way when a run ends are trained on, recorded and part of what is saved: a resume makes the
  rest, each draw once.
- Whoever is slow shows as idle time of the others; what waits stays bounded.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from split_runs import HOLD, Run, draws, free_port, records

pytestmark = pytest.mark.split

STEPS, PROMPTS = 12, 3
TASK = '''
"""reverse-text, with a grader that is slow, or breaks, while a file says so."""

import time
from pathlib import Path

import reverse_text
from hone.environments import Rubric


def similarity(completion, answer, parser):
    wait_while_held()
    if Path(FOLDER, "broken").exists():
        raise ValueError("the grader is broken")
    if Path(FOLDER, "slow").exists():
        time.sleep(0.25)
    return reverse_text.similarity(completion, answer, parser)


def load_environment():
    env = reverse_text.load_environment()
    env.rubric = Rubric([similarity])
    return env
'''


@pytest.fixture
def begin(warm: Path, tmp_path: Path) -> Iterator[Callable[..., Run]]:
    """Starts a run in `tmp_path`, two versions apart, whose processes are all gone after the test."""
    (tmp_path / "moody.py").write_text(f"FOLDER = {str(tmp_path)!r}\n{HOLD}\n{TASK}")
    begun: list[Run] = []

    def start(*argv: str) -> Run:
        begun.append(Run(list(argv), tmp_path / "out"))
        return begun[-1]

    yield start
    for run in begun:
        run.kill()


@pytest.fixture
def ahead(warm: Path) -> list[str]:
    return [
        *("--model.name", str(warm), "--max-steps", str(STEPS), "--seed", "3", "--precision", "fp32", "--no-audit"),
        *("--seq-len", "96", "--ckpt.interval", "5", "--trainer.optim.lr", "1e-3", "--display", "plain"),
        *("--orchestrator.batch-size", str(4 * PROMPTS), "--orchestrator.rollouts-per-example", "4"),
        *("--orchestrator.sampling.max-tokens", "16", "--orchestrator.env.id", "moody"),
        *("--orchestrator.eval.interval", "4", "--orchestrator.eval.num-examples", "4"),
        *("--mode", "split", "--orchestrator.max-async-level", "2", "--inference.port", str(free_port())),
    ]


def consumed_once(out: Path, *more: str) -> None:
    """The run is done: a line for each step, each draw in one state, and nothing left of what was on its way."""
    assert [line["step"] for line in records(out / "metrics.jsonl")] == list(range(STEPS + 1))
    states = draws(out)
    assert sum(states.values()) == STEPS * PROMPTS and set(states) <= {"trained", "filtered", *more}, states
    assert not (out / ".transport").exists() and (out / "weights" / f"step_{STEPS}" / "model.safetensors").exists()
    assert [path for path in out.rglob(".tmp-hone-*")] == []


def evaluated(out: Path) -> list[int]:
    return [line["step"] for line in records(out / "metrics.jsonl") if "eval/reverse-text/reward/mean" in line]


def test_ctrl_c_saves_what_was_on_its_way_and_a_resume_makes_the_rest(begin, ahead):
    run = begin(*ahead)
    run.hold()
    run.at_step(2)
    run.signal(signal.SIGINT)
    run.let_go()
    assert run.ended() == 130, run.said
    (stopped,) = map(int, re.findall(rf"^Stopped after (\d+) of {STEPS} steps", run.said, re.MULTILINE))
    assert [line["step"] for line in records(run.out / "metrics.jsonl")] == list(range(stopped))
    assert sum(draws(run.out).values()) == stopped * PROMPTS
    assert (run.out / "weights" / f"step_{stopped}" / "model.safetensors").exists()
    again = begin("@", "out/config.toml", "--resume")
    assert again.ended() == 0, again.said
    assert f"Resuming out at step {stopped}." in again.said
    consumed_once(run.out)
    assert set(evaluated(run.out)) <= {0, 4, 8, STEPS}


def test_a_grader_that_breaks_ends_the_run_with_its_state_saved(begin, ahead, tmp_path):
    """All that is on its way then fails as well; the run still ends at once, and goes on once that is mended."""
    run = begin(*ahead)
    run.hold()
    run.at_step(2)
    (tmp_path / "broken").touch()
    run.let_go()
    assert run.ended() == 2, run.said
    (step,) = map(int, re.findall(r"every completion of step (\d+) failed in the grader", run.said)[-1:])
    (saved,) = re.findall(r"Saved: out/checkpoints/step_(\d+);", run.said)
    assert step < int(saved) <= step + 3 and run.said.count("error: ") == 1
    assert set(evaluated(run.out)) <= {0, 4, 8}
    (tmp_path / "broken").unlink()
    again = begin("@", "out/config.toml", "--resume")
    assert again.ended() == 0, again.said
    consumed_once(run.out, "failed")
