"""The benchmarks run, on a toy of their workloads, and the limits that they state are those of the arithmetic."""

from __future__ import annotations

import json
import runpy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import algorithms
import families
import gap_depth
import grading
import lora
import numpy as np
import parser_drift
import pytest
import sampling
import torch
from gpu import measures
from gpu import run as gpu_run
from limits import sampling_limits

from hone.config.shared import InitConfig
from hone.model.decoder import Decoder
from hone.model.presets import tiny_config
from hone.runs import Run

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


def test_speedups_count_the_fastest_of_the_others_in_each_round() -> None:
    rounds = [
        {"hone_bf16": 30.0, "vllm_a": 10.0, "vllm_b": 5.0, "vllm_a_no_logprobs": 20.0},
        {"hone_bf16": 30.0, "vllm_a": 10.0, "vllm_b": 15.0, "vllm_a_no_logprobs": 30.0},
        {"hone_bf16": 50.0, "vllm_a": 10.0, "vllm_b": 5.0, "vllm_a_no_logprobs": 40.0},
    ]
    assert sampling.speedups(rounds, "hone_bf16", "vllm") == {
        "hone_bf16_vs_vllm": 3.0,
        "hone_bf16_vs_vllm_no_logprobs": 1.25,
    }
    assert sampling.speedups(rounds, "hone_bf16", "transformers") == {}


def test_grading(run) -> None:
    result = run(grading.main, "--quick", "--cases", "math", "startup")
    row = result["math"]["answers_per_second"]
    assert result["math"]["rounds"] == 1 and min(row.values()) > 0
    assert result["math"]["one_worker_vs_plain"] == pytest.approx(row["pool_one"] / row["plain_one"], rel=1e-5)
    assert result["math"]["speedup_vs_plain"] == pytest.approx(row["pool_all"] / row["plain_all"], rel=1e-5)
    assert result["startup"]["pool"]["round_trip_microseconds"] > 0


def test_grading_compares_each_answer_once() -> None:
    assert len({pair for turn in range(3) for pair in grading.workload(100, turn)}) == 300


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU to measure")
def test_without_a_gpu_nothing_is_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu_run.main(["--out", str(tmp_path / "out")]) == gpu_run.NO_GPU
    assert "torch finds no device cuda here" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []


def test_a_stage_that_is_ended_is_recorded(tmp_path: Path) -> None:
    """Here before it has begun; the stages on a fake GPU are in tests/device."""
    args = SimpleNamespace(out=tmp_path / "out", device="cpu", tiny=True)
    assert gpu_run.Runner(cast(Any, args), tmp_path).run("parity", seconds=0)
    record = json.loads((tmp_path / "out" / "gpu.json").read_text())
    assert record["stages"]["parity"]["status"] == "out of time"


def test_a_gpu_that_is_lost_on_the_way_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class ExitStatus:
        """A stage's process; the third finds no GPU."""

        pid, codes = -1, iter([0, 0, gpu_run.NO_GPU])

        def __init__(self, *args: object, **kwargs: object) -> None:
            self.code = next(self.codes)

        def wait(self, seconds: float | None = None) -> int:
            return self.code

    monkeypatch.setattr(gpu_run.subprocess, "Popen", ExitStatus)
    monkeypatch.setattr(gpu_run.Runner, "end_child", lambda self: None)
    monkeypatch.setattr(gpu_run, "revision", lambda: None)
    monkeypatch.setattr(gpu_run, "work_folder", lambda: None)
    assert gpu_run.main(["--out", str(tmp_path), "--stages", "modes", "resume", "quickstart"]) == 1
    stages = json.loads((tmp_path / "gpu.json").read_text())["stages"]
    assert stages["resume"]["exit_code"] == gpu_run.NO_GPU and stages["resume"]["status"] == "failed"


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

    monkeypatch.setattr(gpu_run.time, "monotonic", lambda: clock.now)
    monkeypatch.setattr(gpu_run.Runner, "run", run)
    monkeypatch.setattr(gpu_run, "revision", lambda: None)
    assert gpu_run.main(["--out", str(tmp_path)]) == 0
    order = list(gpu_run.STAGES)
    assert [name.split()[0] for name in order[:5]] == ["parity", "sampling", "training", "rl", "update"]
    assert all(name.split()[0] in ("compiled", "modes", "resume") for name in order[11:])
    assert began == order[: len(order) - left_out] and clock.now - 1000 <= gpu_run.SECONDS <= 480
    stages = json.loads((tmp_path / "gpu.json").read_text())["stages"] if left_out else {}
    assert [name for name, stage in stages.items() if stage["status"] == "left out"] == order[len(began) :]


def test_what_is_not_installed_is_left_out() -> None:
    bench = SimpleNamespace(figures={})
    measures.vllm(cast(Any, bench), "qwen3-0.6b")
    assert bench.figures == {"left out": "vLLM is not installed"}


def test_flops_of_a_train_step_and_bytes_of_a_decode_step() -> None:
    """Two segments of 5 and 3 tokens, of which 4 and 2 carry loss; a batch of 3 rows with 7 tokens each."""
    matrices = LAYERS - 2 * 2 * 10  # without norms
    assert measures.step_flops(TOY, [5, 3]) == 6 * (matrices * 8 + HEAD * 6 + 2 * 8 * (25 + 9))
    for precision, low, high in (("fp32", 4, 4), ("bf16_linear", 2, 4), ("bf16", 2, 2)):
        step = matrices * low + HEAD * high + 3 * 7 * 2 * 2 * 4 * high
        assert measures.bandwidth_limit(Decoder(TOY, precision), 3, 7, 0.5) == pytest.approx(3 / (step / 0.5e9))


def test_the_table_of_gpus() -> None:
    """A stage without figures leaves its rows; of the engine's variants the fastest one's figure counts."""
    table = runpy.run_path(str(Path(gpu_run.ROOT) / "scripts" / "gpu_table.py"))
    variants = {"plain": (100, 0.1), "graphs": (4000, 0.6), "compiled": (0, 0)}
    batch = {name: {"tokens_per_second": rate, "share_of_limit": share} for name, (rate, share) in variants.items()}
    batch["compiled"] = {"error": "RuntimeError"}
    theirs = {"default": {"tokens_per_second": 400}}
    gap = {"2": {"bf16": {"plain": {"within": True}, "graphs": {"error": "RuntimeError"}}}}
    stages = {
        "parity": {"status": "failed", "figures": {"gap": gap}},
        "sampling qwen3-0.6b": {"figures": {"batches": {"128": batch}}},
        "transformers qwen3-0.6b": {"figures": {"batches": {"128": theirs}}},
        "rl qwen3-0.6b": {"figures": {"steps": {"bf16": {"error": "RuntimeError"}}}, "peak_memory_bytes": 3 * 2**30},
        "resume": {"status": "failed", "figures": {"error": "AssertionError"}},
    }
    cells = [line.split(" | ")[-1] for line in table["rows"]([{"gpu": "NVIDIA X", "stages": stages}])]
    named = dict(zip([row[0] for row in table["ROWS"]], cells[2:], strict=True))
    found = {name: cell for name, cell in named.items() if cell != "not measured |"}
    assert found == {
        "gaps of engine and trainer within their bounds": "1 of 2 |",
        "sampling, 0.6B, batch 128": "4,000 tokens/s |",
        "share of the bandwidth limit in sampling, 0.6B, batch 128": "60 % |",
        "sampling against transformers' `generate`, 0.6B, batch 128": "10.0 × |",
        "peak memory, RL of 0.6B": "3 GiB |",
    }
    assert cells[0] == "NVIDIA X |"


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


def test_the_table_of_algorithms() -> None:
    """Pooled over seeds, with an interval over examples, which are the same for all seeds; steps are a median."""
    rising = [0.5] * 5 + [0.95] * 20
    cells = [
        {"algorithm": "grpo", "seed": seed, "rewards": rewards, "correct": 0.5, "lr": 3e-4, "seconds_per_step": 0.3}
        for seed, rewards in enumerate([[1.0, 0.5, 1.0], [0.9, 0.6, 0.7], [1.0, 0.6, 0.9]])
    ]
    curves = [rising, [0.1] * 25, [0.5, *rising]]
    found = algorithms.summary([cell | {"curve": curve} for cell, curve in zip(cells, curves, strict=True)])
    assert found["steps_to"] == [14, None, 15]  # of ten rewards 9 are 0.95: their mean is 0.905
    means = np.array([2.9, 1.7, 2.6]) / 3
    half = 4.302653 * means.std(ddof=1) / 3**0.5
    assert (found["reward"], found["ci95/high"]) == (pytest.approx(0.8), pytest.approx(0.8 + half, abs=1e-5))
    start = algorithms.summary(cells) | {"reward": 0.4}
    rows = algorithms.table({"algorithms": {"after SFT": start, "grpo": found}}).splitlines()[2:]
    assert rows[0].startswith("| after SFT | 0.400 (") and rows[0].endswith(" | 0.733 | 50 % | — |  |")
    assert rows[1] == f"| `grpo` | 0.800 ({0.8 - half:.3f} to {0.8 + half:.3f}) | 0.733 | 50 % | 15 | 0.30 |"


@pytest.mark.long
def test_algorithms(tmp_path: Path) -> None:
    """A toy of all runs. What is done is not done again, unless it is another number of steps."""
    out, work = tmp_path / "out.json", tmp_path / "work"
    flags = ["--algorithms", "defaults", "grpo", "--seeds", "1", "--sft-steps", "2", "--examples", "4"]
    flags += ["--work", str(work), "--out", str(out), "--steps"]
    algorithms.main([*flags, "2"])
    found = json.loads(out.read_text())
    assert list(found["algorithms"]) == ["after SFT", "defaults", "grpo"]
    assert [len(found["algorithms"]["grpo"]["steps_to"]), found["algorithms"]["grpo"]["lr"]] == [1, 3e-4]
    ids = {name: Run(work / f"{name}-0").info["id"] for name in ("after-SFT", "defaults", "grpo")}
    algorithms.main([*flags, "2"])
    assert json.loads(out.read_text()) == found
    assert ids == {name: Run(work / f"{name}-0").info["id"] for name in ids}
    assert Run(work / "grpo-0").config["algorithm"] == "grpo" and "algorithm" not in Run(work / "defaults-0").config


@pytest.mark.long
def test_lora(tmp_path: Path) -> None:
    flags = ["--seeds", "1", "--sft-steps", "2", "--steps", "2", "--examples", "4", "--work", str(tmp_path / "work")]
    lora.main([*flags, "--out", str(tmp_path / "out.json")])
    found = json.loads((tmp_path / "out.json").read_text())
    assert list(found["ways"]) == list(lora.WAYS) and all(len(of["steps_to"]) == 1 for of in found["ways"].values())
    trained = Run(tmp_path / "work/rank-8,-base-in-4-bits-0").config["model"]["lora"]
    assert (trained["rank"], trained["base"]) == (8, "4bit")
    of_bytes = [of["bytes"] for of in found["ways"].values()]
    assert of_bytes == sorted(of_bytes, reverse=True)


@pytest.mark.long
def test_families(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    families.main(["--families", "mistral", "--max-steps", "2", "--work", str(tmp_path), "--out", str(out)])
    found = json.loads(out.read_text())["families"]["mistral"]
    assert found["parameters"] == 493184 and {*found["sft"], *found["rl"]} == {"reward/mean", "correct"}


def test_parser_drift(tmp_path: Path) -> None:
    """The three commands and the record; what a trained model shows is in tests/test_recorded.py."""
    out = tmp_path / "out.json"
    flags = ["--seeds", "3", "--max-steps", "2", "--work", str(tmp_path / "work"), "--out", str(out)]
    parser_drift.main(flags)
    (found,) = json.loads(out.read_text())["runs"]
    assert found["seed"] == 3 and [point["step"] for point in found["curve"]] == [0, 1]
    assert found["regrade"]["completions"] == found["regrade"]["check"]["completions"] == 256
    assert found["regrade"]["check"]["same"] == 256 and "growth" in found["audit"]


def test_gaps_by_depth_are_of_rounding_and_larger_with_a_gpus_attention(monkeypatch):
    monkeypatch.setattr(gap_depth, "JOBS", 2)
    monkeypatch.setattr(gap_depth, "TOKENS", 12)
    found = gap_depth.random_models((2,), (0,), 128)["2"]
    assert all(of["tokens"] >= 12 for of in found.values())
    means = {name: of["mean"] for name, of in found.items()}
    assert 0 < means["fp32"] < 1e-5 < means["bf16_linear"] < means["bf16_linear on a GPU"] < 0.1
    assert means["bf16"] < 5e-3  # 2.3e-3 where a CPU takes products of bf16 in fp32, below 1e-3 elsewhere
    assert 1e-3 < means["bf16 on a GPU"] < 0.1
