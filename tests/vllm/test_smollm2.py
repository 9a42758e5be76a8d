"""A real pretrained model behind vLLM: its logprobs are those of the trainer, also in conversations with a tool."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hone.cli import main
from hone.runs import Run

pytestmark = pytest.mark.vllm


def test_it_talks_with_a_tool_and_its_logprobs_are_the_trainers(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["fetch-model", "smollm2-135m", "smollm2"]) == 0
    base = "--model.name smollm2 --inference.backend vllm --inference.kv-gib 0.5 --max-steps 1 --seq-len 512 --no-audit"
    base += " --orchestrator.env.id calculator --orchestrator.batch-size 8 --orchestrator.rollouts-per-example 4"
    base += " --orchestrator.sampling.max-tokens 40 --display plain --output-dir out --trainer.optim.lr 1e-5"
    assert main(["rl", *base.split()]) == 0
    (line, *_) = [json.loads(text) for text in (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()]
    assert line["canary/verdict"] == 0 and 0 < line["logprob_gap/mean"] < 0.02
    rows = Run(tmp_path / "out").rollouts(0).to_pylist()
    assert len(rows) == 8 and all(row["versions"][-1] == 0 for row in rows)
