"""The benchmarks run, on a toy of their workloads."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import grading
import pytest
import sampling
import torch
from gpu import run as gpu_run


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
