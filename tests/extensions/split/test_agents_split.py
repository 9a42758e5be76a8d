"""Agents in mode split: with servers in processes of their own, in lock-step, a run has the bytes of one process."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from split_runs import Run

from hone.processes import free_port

pytestmark = pytest.mark.split
AGENT = """
import json, sys
from openai import OpenAI

example, client = json.load(sys.stdin), OpenAI()
first = client.chat.completions.create(model="m", messages=example["prompt"]).choices[0].message
messages = [*example["prompt"], first.model_dump(exclude_none=True), {"role": "user", "content": "More"}]
second = client.chat.completions.create(model="m", messages=messages).choices[0].message
other = client.chat.completions.create(model="m", messages=[{"role": "user", "content": "Other"}]).choices[0].message
print(json.dumps({"letters": sum(c.isalpha() for c in first.content + other.content) / 10}))
"""


def test_an_agent_in_mode_split_makes_the_bytes_of_one_process(tmp_path: Path):
    (tmp_path / "agent.py").write_text(AGENT)
    rows = [{"prompt": f"{i} + 1", "answer": str(i + 1)} for i in range(20)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    flags = ["--agent-command", f"{sys.executable} agent.py", "--data", "rows.jsonl", "--model.name", "hone/tiny"]
    flags += ["--max-steps", "2", "--seq-len", "160", "--orchestrator.batch-size", "8", "--display", "none"]
    flags += ["--orchestrator.rollouts-per-example", "4", "--orchestrator.sampling.max-tokens", "6"]
    flags += ["--inference.batch-invariant", "--trainer.optim.lr", "1e-3", "--no-report"]
    split = Run([*flags, "--mode", "split", "--inference.port", str(free_port())], tmp_path / "split")
    assert split.ended() == 0, split.output
    alone = Run(flags, tmp_path / "alone")
    assert alone.ended() == 0, alone.output
    names = ["metrics.jsonl", "rollouts/step_000000.parquet", "rollouts/step_000001.parquet"]
    assert all((split.out / name).read_bytes() == (alone.out / name).read_bytes() for name in names)
