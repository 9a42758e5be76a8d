"""The benchmarks run, on a toy of their workloads, and the limits that they state are those of the arithmetic."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grading
import pytest
import sampling
import torch
from gpu import measures
from gpu import run as gpu_run
from limits import sampling_limits

from hone.config.shared import InitConfig
from hone.model.decoder import Decoder
from hone.model.presets import tiny_config

SIZE = InitConfig(hidden=10, intermediate=20, heads=2, kv_heads=1, head_dim=4)
TOY = replace(tiny_config(SIZE, 100), family="llama", qk_norm=False)
LAYERS, HEAD = 2 * (10 * (8 + 4 + 4) + 8 * 10 + 3 * 10 * 20 + 2 * 10), 100 * 10


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """(benchmark's main, flags) -> what it wrote, which is also what it showed last."""

    def of(main: Callable[[list[str]], None], *flags: str) -> dict:
        out = tmp_path / "results" / "out.json"
        main([*flags, "--out", str(out)])
        result = json.loads(out.read_text())
        assert capsys.readouterr().out.endswith(out.read_text())
        return result

    return of


def test_sampling(run) -> None:
    flags = ("--quick", "--vllm-modes", "--cases", "tiny", "large", "group", "--threads", "1")
    result = run(sampling.main, *flags)
    tiny, large, group = result["tiny"], result["large_1"], result["group"]
    assert set(tiny["tokens_per_second"]) == {"hone_fp32", "hone_bf16_linear", "transformers_float32"}
    assert set(large["tokens_per_second"]) == {"hone_bf16", "transformers_bfloat16"}
    row = tiny["tokens_per_second"]
    assert tiny["rounds"] == 1 and min(row.values()) > 0
    ratio = pytest.approx(row["hone_fp32"] / row["transformers_float32"], rel=1e-5)
    assert tiny["speedup"] == {"hone_fp32_vs_transformers_float32": ratio}
    for case, precisions in ((tiny, {"fp32", "bf16_linear"}), (large, {"bf16"})):
        assert set(case["limits_tokens_per_second"]) == precisions
    for precision in ("fp32", "bf16_linear"):
        seconds = group[precision]["seconds"]
        assert group[precision]["cheaper"] == pytest.approx(seconds["separate"] / seconds["shared"], rel=1e-5)
        limits = group[precision]["limits_seconds"]
        assert (
            0 < limits["shared"]["arithmetic"] < limits["separate"]["arithmetic"] and limits["shared"]["bandwidth"] > 0
        )


def test_grading(run) -> None:
    result = run(grading.main, "--quick", "--cases", "math", "startup")
    row = result["math"]["answers_per_second"]
    assert result["math"]["rounds"] == 1 and min(row.values()) > 0
    assert result["math"]["one_worker_vs_plain"] == pytest.approx(row["pool_one"] / row["plain_one"], rel=1e-5)
    assert result["math"]["speedup_vs_plain"] == pytest.approx(row["pool_all"] / row["plain_all"], rel=1e-5)
    assert result["startup"]["pool"]["round_trip_microseconds"] > 0


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU to measure")
def test_without_a_gpu_nothing_is_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu_run.main(["--out", str(tmp_path / "out")]) == gpu_run.NO_GPU
    assert "torch finds no device cuda here" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("share", "left_out"), [(0.5, 0), (1.0, 6), (1.5, 6)])
def test_what_matters_most_is_measured_first_and_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, share: float, left_out: int
) -> None:
    """By a clock that each stage moves by this share of its time, but never beyond the end that it was given."""
    clock, began = SimpleNamespace(now=1000.0), []

    def run(self: Any, name: str, seconds: float) -> bool:
        began.append(name)
        clock.now += min(seconds, share * gpu_run.STAGES[name].seconds)
        return True

    # Not time.monotonic itself, by which the event loops of this process sleep.
    monkeypatch.setattr(gpu_run, "time", SimpleNamespace(monotonic=lambda: clock.now))
    monkeypatch.setattr(gpu_run.Runner, "run", run)
    monkeypatch.setattr(gpu_run, "revision", lambda: None)
    assert gpu_run.main(["--out", str(tmp_path)]) == 0
    order = list(gpu_run.STAGES)
    assert [name.split()[0] for name in order[:5]] == ["parity", "sampling", "training", "rl", "update"]
    assert all(name.split()[0] in ("compiled", "modes", "resume") for name in order[11:])
    assert began == order[: len(order) - left_out] and clock.now - 1000 <= gpu_run.SECONDS <= 480
    stages = json.loads((tmp_path / "gpu.json").read_text())["stages"] if left_out else {}
    assert [name for name, stage in stages.items() if stage["status"] == "left out"] == order[len(began) :]


def test_flops_of_a_train_step_and_bytes_of_a_decode_step() -> None:
    """Two segments of 5 and 3 tokens, of which 4 and 2 carry loss; a batch of 3 rows with 7 tokens each."""
    matrices = LAYERS - 2 * 2 * 10  # without norms
    assert measures.step_flops(TOY, [5, 3]) == 6 * (matrices * 8 + HEAD * 6 + 2 * 8 * (25 + 9))
    for precision, low, high in (("fp32", 4, 4), ("bf16_linear", 2, 4), ("bf16", 2, 2)):
        step = matrices * low + HEAD * high + 3 * 7 * 2 * 2 * 4 * high
        assert measures.bandwidth_limit(Decoder(TOY, precision), 3, 7, 0.5) == pytest.approx(3 / (step / 0.5e9))


@pytest.mark.parametrize(
    ("precision", "seconds", "weight_bytes", "kv_bytes"),
    [
        ("fp32", (2 * LAYERS * 27 + 2 * HEAD * 24 + 4 * 8 * 2 * 150) / 1e9, 4 * (LAYERS + HEAD), 4),
        ("bf16_linear", (LAYERS * 27 + 2 * HEAD * 24 + 4 * 8 * 2 * 150) / 1e9, 2 * LAYERS + 4 * HEAD, 4),
        ("bf16", (2 * LAYERS * 27 + 2 * HEAD * 24 + 4 * 8 * 2 * 150) / 2e9, 2 * (LAYERS + HEAD), 2),
    ],
)
def test_limits(precision: str, seconds: float, weight_bytes: int, kv_bytes: int) -> None:
    """3 prompts of 2 tokens, 8 new ones: 3 · (2 + 8 - 1) tokens go through the layers, 3 · 8 are sampled."""
    rates = {"float32": 1.0, "bfloat16": 2.0}
    found = sampling_limits(TOY, precision, 3, 2, 8, rates, 0.5)
    assert found["arithmetic"] == pytest.approx(24 / seconds)
    kv = 3 * (2 + 8 / 2) * 2 * 2 * 4 * kv_bytes
    assert found["bandwidth"] == pytest.approx(3 / ((weight_bytes + kv) / 0.5e9))
    untied = replace(TOY, tie_word_embeddings=False)
    assert sampling_limits(untied, precision, 3, 2, 8, rates, 0.5) == found, "embeddings are looked up"
