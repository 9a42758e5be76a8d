"""Runs with recorded evaluations, made by hand: what a card of them says is known."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import made_runs

from hone.runs.rollouts import write_evaluation

INFO: dict[str, Any] = made_runs.INFO | {
    "seed": 3,
    "command": ["/bin/hone", "rl", "@", "a.toml"],
    "git": None,
    "versions": {"hone-rl": "0.1.0", "torch": "2.13.0", "python": "3.11"},
    "hardware": {"cpu": "A CPU", "cores": 2, "memory_gib": 8.0, "gpu": None},
    "reward_weights": {"format": 0.1, "correctness": 0.9},
}
CONFIG = """max_steps = 4
seed = 3

[model]
name = "some/model"

[orchestrator]
batch_size = 8
rollouts_per_example = 4

[orchestrator.env]
id = "char-count"
"""


def row(example: int, rollout: int, text: str, outcome: str, reward: float | None) -> dict[str, Any]:
    """A line of an evaluation's samples: of char-count, whose answer is always 3."""
    return {
        "example": example,
        "rollout": rollout,
        "example_id": f"ex{example:04d}",
        "prompt": [{"role": "user", "content": f"How many? ({example})"}],
        "completion": [{"role": "assistant", "content": text}],
        "answer": "3",
        "info": {},
        "reward": reward,
        "components": {} if reward is None else {"format": float(reward > 0), "correctness": float(reward == 1)},
        "outcome": outcome,
        "detail": "",
        "stop_reason": "stop",
        "prompt_tokens": 10,
        "completion_tokens": 5,
    }


RIGHT, WRONG = ("<answer>3</answer>", "correct", 1.0), ("<answer>4</answer>", "wrong", 0.1)
BARE, LOST = ("The answer is 3.", "unparsable", 0.0), ("I do not know.", "unparsable", 0.0)


def evaluation(kinds: list[tuple[str, str, float | None]], rollouts: int = 1) -> list[dict[str, Any]]:
    """The rows of completions in order, `rollouts` of each example."""
    return [row(i // rollouts, i % rollouts, *kind) for i, kind in enumerate(kinds)]


def make_run(folder: Path, evaluations: dict[int, list[dict[str, Any]]], steps: int = 4, **facts: Any) -> Path:
    """A run of `hone rl` with these samples of evaluations, by version."""
    folder.mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps(INFO | facts))
    (folder / "config.toml").write_text(CONFIG)
    for version, rows in evaluations.items():
        write_evaluation(folder, version, rows)
    lines: list[dict[str, Any]] = [
        {"step": s, "reward/mean": 0.1 * s, "completion/length/mean": 5.0, "tokens/total": 80 * s} for s in range(steps)
    ]
    for version, rows in evaluations.items():
        rewards = [r["reward"] for r in rows if r["reward"] is not None]
        shown = {"eval/char-count/reward/mean": sum(rewards) / len(rewards)}
        if version < steps:
            lines[version] |= shown
        else:
            lines.append({"step": version} | shown)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    timings = [{"step": s, "time/step": 1.5, "time/total": 1.5 * (s + 1)} for s in range(steps)]
    (folder / "timings.jsonl").write_text("".join(json.dumps(line) + "\n" for line in timings))
    (folder / "events.jsonl").write_text('{"kind": "start", "step": 0, "time": "2026-01-01T00:00:00+00:00"}\n')
    (folder / "hashes.jsonl").write_text('{"step": 4, "weights": "abc123", "metrics": null, "rollouts": null}\n')
    return folder
