"""One rank of `scaling.py`'s measurement: rates of this machine, then train steps and a publication, bytes counted.

Runs in a network namespace of its own, so that what passes its loopback is the ranks' traffic and nothing else.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from limits import gemm_gflops

from hone import rng
from hone.composition.machine import configure
from hone.config.rl import RLConfig
from hone.model.hf import load_model
from hone.planning.lengths import Lengths
from hone.trainer.export import save_policy
from hone.trainer.objectives import policy_objective
from hone.trainer.packing import Sequence, deal
from hone.trainer.parallel import Ranks, joined, shard
from hone.trainer.parts import save_part
from hone.trainer.step import Trainer

WIRE_BYTES = 32 * 2**20
ROUNDS = 3


def sent() -> int:
    """Bytes that have passed the loopback since it is there, headers included."""
    (line,) = [line for line in Path("/proc/net/dev").read_text().splitlines() if line.strip().startswith("lo:")]
    return int(line.split(":")[1].split()[8])


def counted(ranks: Ranks, work: Callable[[], Any]) -> tuple[float, int]:
    """(seconds until all ranks are done, bytes that all of them sent)"""
    ranks.barrier()
    before, began = sent(), time.perf_counter()
    work()
    seconds = time.perf_counter() - began
    ranks.barrier()
    return max(ranks.collect(seconds)), ranks.agree(sent() - before)


def rates(ranks: Ranks) -> dict[str, float]:
    """What this machine does while all ranks are at it: FLOP/s of square products, bytes/s of a copy, and bytes/s that
    a rank receives in an all-gather.
    """
    ranks.barrier()
    found = {"fp32": gemm_gflops(torch.float32) * 1e9, "bf16": gemm_gflops(torch.bfloat16) * 1e9}
    source = torch.ones(WIRE_BYTES // 4)
    target = torch.empty_like(source)
    found["copy"] = 2 * source.nbytes / _median(ranks, lambda: target.copy_(source), 5)
    if not ranks.alone:
        own, parts = source[: len(source) // ranks.world].clone(), list(target.chunk(ranks.world))
        seconds = _median(ranks, lambda: torch.distributed.all_gather(parts, own), 5)
        found["wire"] = source.nbytes * (ranks.world - 1) / ranks.world / seconds
    return {name: min(ranks.collect(rate)) for name, rate in found.items()}


def _median(ranks: Ranks, work: Callable[[], Any], repeats: int) -> float:
    work()
    times = []
    for _ in range(repeats):
        ranks.barrier()
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return median(times)


def batch(config: RLConfig, lengths: Lengths, vocab: int) -> list[Sequence]:
    """A step's sequences, all of these lengths."""
    orch, made = config.orchestrator, []
    for index in range(orch.batch_size):
        group, sample = divmod(index, orch.rollouts_per_example)
        prompt = rng.stream(0, "prompt", group).integers(3, vocab, lengths.prompt)
        ids = np.concatenate([prompt, rng.stream(0, "completion", index).integers(3, vocab, lengths.completion)])
        mask = np.arange(len(ids)) >= lengths.prompt
        logprobs = np.where(mask, np.float32(-5), np.float32(0))
        made.append(Sequence(ids, mask, logprobs, np.zeros(len(ids)), 1.0 - sample, group, sample))
    return made


def measure(ranks: Ranks, config: RLConfig, lengths: Lengths, folder: Path) -> dict[str, Any]:
    """A step and a publication that don't count, then rounds that do, each between two looks at what the machine does
    just now; a checkpoint.
    """
    torch.manual_seed(0)
    model = load_model(config.model.name, precision=config.precision, init=config.model.init)
    sequences = batch(config, lengths, model.config.vocab_size)
    canary = sequences[0].token_ids
    shard(model, ranks)
    trainer = Trainer(
        model,
        config.trainer.optim,
        config.trainer.scheduler,
        config.max_steps,
        policy_objective(config.trainer.loss),
        ranks=ranks,
    )
    micro_batches = deal(sequences, config.trainer.micro_batch_tokens, "cpu", True, ranks)

    def publish() -> None:
        from hone.trainer.logprobs import sequence_logprobs

        save_policy(folder / "weights", trainer)
        sequence_logprobs(trainer.model, canary.tolist(), 1.0)

    trainer.step(micro_batches)
    publish()
    rounds = []
    for _ in range(ROUNDS):
        around = [rates(ranks)]
        seconds, amount = counted(ranks, lambda: trainer.step(micro_batches))
        around.append(rates(ranks))
        written, gathered = counted(ranks, publish)
        found = {name: (around[0][name] + around[1][name]) / 2 for name in around[0]}
        rounds.append({"rates": found, "step": {"seconds": seconds, "bytes": amount}})
        rounds[-1]["publish"] = {"seconds": written, "bytes": gathered}
    part = folder / "checkpoint"
    part.mkdir(exist_ok=True)
    save_part(part, trainer)
    ranks.barrier()
    return {
        "rounds": rounds,
        "micro_batches": len(micro_batches),
        "weights_bytes": _size(folder / "weights", "*.safetensors"),
        "checkpoint_bytes": _size(part, "**/*"),
    }


def _size(folder: Path, pattern: str) -> int:
    return sum(path.stat().st_size for path in folder.glob(pattern) if path.is_file())


def main() -> None:
    """`scaling_worker.py TASK.json FOLDER`: the task has `config` and `lengths`; rank 0 writes FOLDER/result.json."""
    task, folder = json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2])
    configure(1, 0)
    with joined("cpu") as ranks:
        result = measure(ranks, RLConfig.model_validate(task["config"]), Lengths(**task["lengths"]), folder)
        if ranks.first:
            (folder / "result.json").write_text(json.dumps(result))


if __name__ == "__main__":
    try:
        main()
    except BaseException:
        traceback.print_exc()
        os._exit(1)
