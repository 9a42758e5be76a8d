"""`RL` in a program's own hands: the bytes of the command, and a run that can be resumed whatever happens."""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
from present import NO_AUDIT
from run_folders import exact_files

from hone.loops.rl import RL
from hone.runs import Run
from hone.runs.settings import about

COMMAND = ["rl", *NO_AUDIT]
SETTINGS = {
    "max_steps": 4,
    "seq_len": 64,
    "orchestrator.env.args": {"num_train_examples": 99},
    "orchestrator.batch_size": 8,
    "orchestrator.rollouts_per_example": 4,
    "orchestrator.sampling.max_tokens": 12,
    "orchestrator.eval.interval": 2,
    "orchestrator.eval.num_examples": 4,
    "trainer.optim.lr": 1e-3,
}
NO_ARGS = {"orchestrator.env.args": {}}


def resumed(out: Path, settings: dict) -> Path:
    with RL(**settings, output_dir=out, resume=True) as rl:
        rl.train()
    return out


def test_the_loop_in_ones_own_hands_has_the_bytes_of_the_command(settings, by_command, tmp_path):
    steps = []
    with RL(**settings, output_dir=tmp_path / "out") as rl:
        while not rl.done:
            groups = rl.sample()
            steps.append((rl.version, [group.draw for group in groups], rl.update(groups)["reward/mean"]))
    lines = [json.loads(line) for line in (by_command / "metrics.jsonl").read_text().splitlines()]
    assert steps == [(i, [2 * i, 2 * i + 1], lines[i]["reward/mean"]) for i in range(4)]
    assert exact_files(tmp_path / "out") == exact_files(by_command) and len(exact_files(by_command)) == 4 + 4 + 4 + 3
    assert rl.ending == "done" and Run(tmp_path / "out").info["status"] == "done"


@pytest.mark.needs("alarms", "audit", "split", "viewer")
def test_settings_that_decide_nothing_change_no_byte(settings, by_command, tmp_path):
    others = {"ckpt.interval": 3, "ckpt.background": False, "stop.metric": "reward/mean", "stop.above": 9.0}
    others |= {"budget.hours": 9, "grace_seconds": 9, "alarms.window": 3, "alarms.action": "off", "gap.action": "warn"}
    others |= {"report": False, "display": "plain", "audit": False, "restarts": 1, "transport.max_tokens": 9}
    others |= {"predict": ["reward/mean@2 > 0 p=0.9"], "orchestrator.grading.workers": 1, "inference.port": 9000}
    others |= {"orchestrator.grading.timeout": 60, "orchestrator.client.timeout": 9}
    assert {about(name).decides for name in others} == {"nothing"}
    with RL(**settings, **others, output_dir=tmp_path / "out") as rl:
        rl.train()
    assert exact_files(tmp_path / "out") == exact_files(by_command)


GRADED_APART = """
import zlib

from hone.environments import Rubric, SingleTurnEnv


def checksum(completion, prompt):
    return zlib.crc32(f"{prompt} {completion}".encode()) % 1000 / 1000


def load_environment():
    rows = [{"question": f"question {i}"} for i in range(8)]
    return SingleTurnEnv(rubric=Rubric([checksum]), dataset=rows, eval_dataset=rows)
"""


def test_what_is_graded_while_others_are_sampled_changes_no_byte(settings, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "graded_apart", raising=False)
    Path("graded_apart.py").write_text(GRADED_APART)
    task = NO_ARGS | {"orchestrator.env.id": "graded-apart", "orchestrator.grading.workers": 2}
    for out in ("after", "while"):
        with RL(**settings | task, output_dir=out) as rl:
            if out == "after":
                rl.env.early_grading = lambda *_: nullcontext()
            rl.train()
    assert exact_files(Path("while")) == exact_files(Path("after"))
    assert len({row["reward"] for step in range(4) for row in Run("while").rollouts(step).to_pylist()}) > 16


def test_an_error_of_the_block_leaves_a_run_that_can_be_resumed(settings, by_command, tmp_path):
    with pytest.raises(ZeroDivisionError), RL(**settings, output_dir=tmp_path / "out") as rl:
        rl.step()
        rl.step()
        rl.sample()
        1 / 0  # noqa: B018
    info = Run(tmp_path / "out").info
    assert info["status"] == "failed" and info["failure"] == "ZeroDivisionError: division by zero"
    assert Run(tmp_path / "out").checkpoints.steps() == [2]
    assert exact_files(resumed(tmp_path / "out", settings)) == exact_files(by_command)
    assert "failure" not in Run(tmp_path / "out").info
