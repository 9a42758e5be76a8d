"""What the machine decides where a config leaves it open: by the memory free at a fresh start, and never again."""

from __future__ import annotations

import json
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
import torch

from hone.config.base import walk
from hone.config.parse import parse
from hone.config.rl import RLConfig
from hone.config.sft import SFTConfig
from hone.errors import UserError
from hone.hardware import MARGIN
from hone.inference.memory import GIB, kv_bytes_per_token
from hone.loops import machine
from hone.loops.machine import Machine, resolve
from hone.loops.memory import memory
from hone.model.config import DecoderConfig
from hone.model.shape import KNOWN
from hone.runs.settings import run_toml
from hone.trainer.memory import longest

MODEL = KNOWN["qwen3-0.6b"]
APART = "--no-inference.cuda-graphs"
"""Training and sampling take turns in memory."""
FIXED = ("--trainer.micro-batch-tokens", 16384, "--trainer.head-cache-bytes", 2**29)
LENGTHS = ("--seq-len", "2048", "--orchestrator.sampling.max-tokens", "1024")
ONE, ALL = (rows * 2048 * kv_bytes_per_token(MODEL, "bf16_linear", "cuda") for rows in (1, 200))
"""Bytes of one sequence at its limit, and of an evaluation of 200."""


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> Any:
    def set_free(gib: float) -> None:
        monkeypatch.setattr(machine, "free_memory", lambda device: int(gib * GIB))

    monkeypatch.setattr(machine, "share_of_cores", lambda processes: 12)
    monkeypatch.setattr("hone.loops.memory.find_spec", lambda name: name)  # torchao is installed
    monkeypatch.setattr("hone.loops.memory.ram", lambda: (64 * GIB, 64 * GIB))
    return set_free


def rl(*flags: object) -> RLConfig:
    return parse(RLConfig, [*LENGTHS, "--orchestrator.eval.num-examples", "200", *map(str, flags)], "rl")


def needs(config: RLConfig, phase: str) -> float:
    return sum(memory(config, MODEL, "cuda", *longest(config)).of(phase).values()) / GIB


def resolved(config: Any, model: DecoderConfig, device: str, **more: Any) -> Any:
    return resolve(config, Machine(model, device, **more))


def decided(config: RLConfig) -> tuple[Any, ...]:
    assert config.inference.kv_gib is not None
    return config.threads, config.deterministic, config.trainer.micro_batch_tokens, config.trainer.checkpointing


def test_with_room_nothing_is_computed_twice_and_all_sequences_are_sampled_at_once(free: Any) -> None:
    free(500)
    config = resolved(rl(), MODEL, "cuda:1")
    assert decided(config) == (12, False, 16384, "none")
    assert config.inference.kv_gib == pytest.approx(ALL / GIB, abs=2**-10)
    on_cpu = resolved(rl(), MODEL, "cpu")
    assert decided(on_cpu) == (12, True, 4096, "none") and on_cpu.inference.kv_gib == 4


@pytest.mark.parametrize(
    ("gib", "chosen"),
    [
        (100, (16384, "none", "fp32", False, True)),
        (60, (8192, "none", "fp32", False, True)),
        (36, (4096, "layer", "fp32", False, True)),
        (34, (2048, "none", "fp32", False, False)),
        (32, (4096, "layer", "fp32", False, False)),
        (23.5, (2048, "selective", "8bit", False, False)),
        (22, (4096, "layer", "8bit", False, False)),
        (17, (2048, "layer", "fp32", True, False)),
    ],
)
def test_a_gpu_that_is_small_has_what_costs_least_first(
    gib: float, chosen: tuple, free: Any, monkeypatch: pytest.MonkeyPatch, capsys: Any, tmp_path: Path
) -> None:
    """Smaller micro-batches, checkpointing, no graphs; then moments of 8 bits; then the optimiser on the host."""
    shape = KNOWN["qwen2.5-1.5b"]
    monkeypatch.setattr(machine, "ram", lambda: (64 * GIB, 64 * GIB))

    def settings(config: RLConfig) -> tuple:
        trainer, optim = config.trainer, config.trainer.optim
        graphs = config.inference.cuda_graphs
        return trainer.micro_batch_tokens, trainer.checkpointing, optim.state, optim.offload, graphs

    free(gib)
    config = resolved(rl(), shape, "cuda")
    assert settings(config) == chosen
    assert memory(config, shape, "cuda", *longest(config)).total <= gib * GIB
    printed = capsys.readouterr().out
    assert printed.startswith(f"micro_batch_tokens {chosen[0]:,}" if gib < 100 else "") and "Warning" not in printed
    assert printed == "" or f"16,384 tokens would take 72.1 of {gib * (1 - MARGIN):.1f} GiB" in printed
    run = run_of(tmp_path / "run", config, "rl")
    free(500)
    again = resolved(rl("--output-dir", run, "--resume"), shape, "cpu")
    assert settings(again) == chosen and again.trainer.head_cache_bytes == config.trainer.head_cache_bytes


def test_what_is_set_stays(free: Any) -> None:
    free(500)
    flags = ("--threads", 3, "--deterministic", "--trainer.micro-batch-tokens", 99, "--trainer.checkpointing", "layer")
    config = resolved(rl(*flags, "--inference.kv-gib", 2), MODEL, "cuda")
    assert (*decided(config), config.inference.kv_gib) == (3, True, 99, "layer", 2)


def test_a_server_on_the_same_gpu_is_left_its_memory_however_far_it_has_come(
    free: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    split = rl("--mode", "split", "--inference.kv-gib", 6, *FIXED)
    step = needs(rl("--trainer.checkpointing", "none", APART), "training")
    server = (4 + 2) * MODEL.parameters / GIB - 2 * MODEL.embedding / GIB + 6 + 2  # casts of all but the embedding
    monkeypatch.setenv("HONE_SHARES_GPU", "1")
    for more, chosen in ((0.1, "none"), (-0.1, "selective")):
        total = int(((step / (1 - MARGIN)) + server + more) * GIB)
        for now in (1, total):
            monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device, now=now, total=total: (now, total))
            assert resolved(split, MODEL, "cuda").trainer.checkpointing == chosen
    monkeypatch.delenv("HONE_SHARES_GPU")
    free(500)
    assert resolved(split, MODEL, "cuda").trainer.checkpointing == "none"


def test_what_is_offloaded_needs_room_on_the_host(
    free: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    free(500)
    for gib, words in ((64, ""), (4, "Warning: trainer.optim.offload takes ")):
        monkeypatch.setattr(machine, "ram", lambda gib=gib: (64 * GIB, gib * GIB))
        resolved(rl("--trainer.optim.offload"), MODEL, "cuda")
        shown = capsys.readouterr().out
        assert shown.startswith(words) and shown.count("\n") == bool(words)
    resolved(rl(), MODEL, "cuda")
    assert capsys.readouterr().out == ""


def run_of(folder: Path, config: RLConfig | SFTConfig, kind: str) -> Path:
    folder.mkdir()
    facts = {"format": "hone-run-1", "id": "r", "kind": kind, "status": "stopped"}
    (folder / "run.json").write_text(json.dumps(facts))
    (folder / "config.toml").write_text(run_toml(config, kind))
    return folder


def test_a_cpu_that_is_slow_in_bf16_trains_in_fp32_unless_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("hone.loops.memory.takes_products_in_fp32", lambda device: device == "cpu")
    monkeypatch.setattr(machine, "free_memory", lambda device: 500 * GIB)
    assert resolved(rl("--precision", "bf16"), MODEL, "cpu").precision == "bf16"
    assert resolved(rl(), MODEL, "cuda").precision == "bf16_linear"
    run = run_of(tmp_path / "run", config := resolved(rl(), MODEL, "cpu"), "rl")
    monkeypatch.undo()
    assert config.precision == "fp32"
    assert resolved(rl("--output-dir", run, "--resume"), MODEL, "cpu").precision == "fp32"


@pytest.mark.parametrize(
    ("before", "now", "why"),
    [
        ("threads = 12", 'threads = "x"', "(threads = 'x': Input should be a valid integer)"),
        ("threads = 12", "threads = 0", "(threads = 0: Input should be greater than or equal to 1)"),
        ('checkpointing = "none"', 'checkpointing = "some"', "(trainer.checkpointing = 'some': "),
        ("micro_batch_tokens = 16384", "micro_batch_tokens = -1", "(trainer.micro_batch_tokens = -1: "),
    ],
)
def test_a_damaged_choice_is_named(before: str, now: str, why: str, free: Any, tmp_path: Path) -> None:
    free(500)
    file = run_of(tmp_path / "run", resolved(rl(), MODEL, "cuda"), "rl") / "config.toml"
    assert before in file.read_text()
    file.write_text(file.read_text().replace(before, now))
    with pytest.raises(UserError) as error:
        resolved(rl("--output-dir", file.parent, "--resume"), MODEL, "cuda")
    assert str(error.value).startswith(f"{file} is damaged {why}") and "\n" not in str(error.value)


def test_a_run_of_an_older_hone_keeps_the_defaults_of_then(free: Any, tmp_path: Path) -> None:
    free(12)
    old = run_of(tmp_path / "run", rl("--no-deterministic"), "rl")
    config = resolved(rl("--output-dir", old, "--resume"), MODEL, "cpu")
    assert (config.threads, config.trainer.checkpointing, config.inference.kv_gib) == (None, None, None)
    assert config.deterministic is False


def test_sft_decides_its_own(free: Any, tmp_path: Path) -> None:
    flags = ["--data.path", "x.jsonl", "--output-dir", str(tmp_path / "run")]
    free(500)
    config = resolved(parse(SFTConfig, flags, "sft"), MODEL, "cuda")
    assert (config.data.micro_batch_tokens, config.checkpointing, config.threads) == (16384, "none", 12)
    run_of(tmp_path / "run", config, "sft")
    free(1)
    again = resolved(parse(SFTConfig, [*flags, "--resume"], "sft"), MODEL, "cpu")
    assert (config.head_cache_bytes, again.head_cache_bytes) == (5 * GIB, 5 * GIB)
    assert (again.data.micro_batch_tokens, again.checkpointing, again.threads) == (16384, "none", 12)


@pytest.mark.parametrize("kind", [RLConfig, SFTConfig])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_machine_decides_every_key_that_says_so_and_no_other(kind: type, device: str, free: Any) -> None:
    free(500)
    config = kind(precision="bf16", **({"data": {"path": "x.jsonl"}} if kind is SFTConfig else {}))
    final = resolved(config, MODEL, device)
    for key in walk(kind):
        before, after = (reduce(lambda at, name: getattr(at, name, None), key.path, one) for one in (config, final))
        if key.section is None:
            assert (before is None and after is not None) if key.meta.from_machine else before == after, key.path


def test_what_graphs_keep_has_room_while_the_trainer_works(free: Any) -> None:
    kept = rl("--trainer.checkpointing", "none", "--inference.cuda-graphs", *FIXED)
    for gib in (60, 50):
        free(gib)
        config = resolved(kept, MODEL, "cuda")
        both = [needs(config, phase) for phase in ("training", "sampling")]
        assert ONE < (config.inference.kv_gib or 0) * GIB < ALL
        assert 0.85 * gib < max(both) <= (1 - MARGIN) * gib
    # Room for a train step beside a cache of 4 GiB, but not for graphs and their logits too.
    free((needs(rl("--trainer.checkpointing", "layer", APART), "training") + 4.2) / (1 - MARGIN))
    lean = resolved(rl(*FIXED), MODEL, "cuda")
    assert (lean.trainer.checkpointing, lean.inference.cuda_graphs) == ("layer", False)
    assert (lean.inference.kv_gib or 0) >= 4


@pytest.mark.parametrize(
    ("flags", "device", "lag"),
    [
        (("--mode", "split"), "cuda", 1),
        (("--mode", "split"), "cuda:1", 1),
        (("--mode", "split"), "cpu", 0),
        ((), "cuda", 0),
        (("--mode", "split", "--deterministic"), "cuda", 0),
        (("--mode", "split", "--inference.batch-invariant"), "cuda", 0),
        (("--mode", "split", "--orchestrator.max-async-level", 0), "cuda", 0),
        (("--mode", "split", "--orchestrator.max-async-level", 2), "cpu", 2),
    ],
)
def test_the_sampler_may_lag_a_version_on_gpus_of_its_own(flags, device: str, lag: int, free: Any, tmp_path: Path):
    free(500)
    config = resolved(rl(*flags), MODEL, device)
    assert config.orchestrator.max_async_level == config.orchestrator.lag == lag
    run = run_of(tmp_path / "run", config, "rl")
    for other in ("cpu", "cuda"):
        again = resolved(rl("--output-dir", run, "--resume", *flags), MODEL, other)
        assert again.orchestrator.max_async_level == lag
