"""The SFT loop: what it minimises, what it logs, when it validates and saves."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch

from hone.cli import main
from hone.config.sft import SFTDataConfig
from hone.environments.data import load_rows
from hone.model.chat import load_renderer
from hone.trainer.sft_data import Limit, hold_out_rows, validation_set

# ---- the loop, through the command ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run_of(tiny_model_dir, tmp_path_factory):
    """Runs `hone sft` on 24 short rows; returns its output directory."""
    data = tmp_path_factory.mktemp("data") / "words.jsonl"
    words = ["stone", "river", "cloud", "amber", "night", "eagle", "linen", "orbit"]
    rows = [{"prompt": f"{a}{i}", "completion": f"{i}{a[::-1]}"} for a in words for i in range(3)]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))

    def run(*flags: str) -> Path:
        out = tmp_path_factory.mktemp("run")
        base = f"--model.name {tiny_model_dir} --data.path {data} --data.seq-len 128 --output-dir {out} --optim.lr 2e-3"
        assert main(["sft", *base.split(), "--display", "none", *flags]) == 0
        return out

    return run


def metrics(out: Path) -> list[dict]:
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def test_it_learns_and_logs_one_line_per_step(run_of):
    out = run_of("--max-steps", "40", "--data.batch-size", "8", "--data.no-pack", "--scheduler.warmup-steps", "4")
    lines = metrics(out)
    assert [line["step"] for line in lines] == list(range(40))
    assert lines[-1]["loss"] < 0.6 * lines[0]["loss"]
    assert [line["lr"] for line in lines[:5]] == pytest.approx([0.0005, 0.001, 0.0015, 0.002, 0.002])
    assert [line["examples/total"] for line in lines] == [8 * (i + 1) for i in range(40)]
    assert lines[2]["epoch"] == 1.0
    assert lines[2]["tokens/total"] == 3 * lines[0]["tokens/total"], "all rows are equally long here"
    assert all(line["grad_norm"] > 0 for line in lines)
    assert not any("time" in name or name.endswith("/s") for line in lines for name in line)
    timings = [json.loads(line) for line in (out / "timings.jsonl").read_text().splitlines()]
    assert [line["step"] for line in timings] == list(range(40))
    assert all(line["tokens/s"] > 0 and line["time/train"] > 0 for line in timings)
    assert json.loads((out / "run.json").read_text())["status"] == "done"
    assert [path.name for path in (out / "weights").iterdir()] == ["step_40"]
    assert list((out / "checkpoints").glob("*")) == []


def test_the_weights_have_in_transformers_the_validation_loss_that_was_logged(run_of, tiny_model_dir):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    out = run_of("--max-steps", "3", "--val.interval", "3", "--val.fraction", "0.9", "--precision", "fp32")
    data = tomllib.loads((out / "config.toml").read_text())["data"]
    folder = out / "weights" / "step_3"
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    renderer = load_renderer(str(tiny_model_dir))
    _, held_out = hold_out_rows(load_rows(data["path"]), 0.9, seed=0)
    total, count = 0.0, 0
    for sequence in validation_set(held_out, renderer, Limit(SFTDataConfig(**data), 1024), 256):
        ids = torch.from_numpy(sequence.token_ids.astype(np.int64))
        with torch.no_grad():
            logprobs = model(ids[None]).logits[0].log_softmax(-1)
        where = np.flatnonzero(sequence.loss_mask)
        total -= float(logprobs[where - 1, ids[where]].sum())
        count += len(where)
    assert metrics(out)[-1]["val/loss"] == pytest.approx(total / count, abs=1e-4)
    assert tokenizer.decode(renderer.prompt_ids([{"role": "user", "content": "abc"}])).count("abc") == 1
