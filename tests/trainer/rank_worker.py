"""What the tests run on each rank. Results go to files in the folder they are given."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.utils._python_dispatch import TorchDispatchMode

from hone.algorithms.losses import policy_objective, sft_objective
from hone.config.rl import CorrectionConfig, LossConfig, OrchestratorConfig, TrainerConfig
from hone.config.shared import InitConfig, LoraConfig, OptimConfig, SchedulerConfig
from hone.errors import RankLost, UserError
from hone.loops.parts import batch_use
from hone.model import head
from hone.model.lora import start_adapter
from hone.model.presets import random_decoder, tiny_config
from hone.runs.signals import StepAbandoned
from hone.trainer import parallel
from hone.trainer.export import save_policy
from hone.trainer.packing import Batch, Sequence, deal
from hone.trainer.parallel import Ranks, shard, whole
from hone.trainer.parts import load_part, save_part
from hone.trainer.ranked import RankedTrainer
from hone.trainer.step import Trainer

# Some parameters have four rows, so that the last of three ranks has none of them.
CONFIG = tiny_config(InitConfig(layers=2, hidden=24, heads=2, kv_heads=1, head_dim=4, intermediate=40))
UNTIED = dataclasses.replace(CONFIG, tie_word_embeddings=False)
STEPS = 4

CASES = {
    "fp32": ("fp32", CONFIG, "sft"),
    "fp32 chunked head": ("fp32", CONFIG, "sft"),
    "fp32 policy": ("fp32", CONFIG, "rl"),
    "bf16_linear policy untied": ("bf16_linear", UNTIED, "rl"),
    "bf16": ("bf16", CONFIG, "sft"),
    "fp32 several updates": ("fp32", CONFIG, "several updates"),
    "fp32 lora": ("fp32", CONFIG, "sft"),
    "bf16_linear lora policy": ("bf16_linear", UNTIED, "rl"),
    "bf16 lora 4bit policy": ("bf16", CONFIG, "rl"),
}
SEVERAL = TrainerConfig(
    loss=LossConfig(kl_coef=0.1, kl_estimator="k1", kl_in="reward", reference_interval=2),
    correction=CorrectionConfig(type="token"),
    updates_per_batch=2,
    minibatches=2,
)


def sequences(step: int, count: int = 7) -> list[Sequence]:
    """Pairs of completions of one prompt, of different lengths, with advantages of both signs."""
    random = np.random.default_rng(step)
    made = []
    for i in range(count):
        prompt = np.random.default_rng([step, i // 2]).integers(3, 90, 6 + i // 2)
        ids = np.concatenate([prompt, random.integers(3, 90, 5 + 4 * i)])
        mask = np.arange(len(ids)) >= len(prompt)
        logprobs_T = np.where(mask, -5.0, 0.0).astype(np.float32)
        made.append(Sequence(ids, mask, logprobs_T, 1.0 - 0.3 * i, i // 2, i % 2, reward=1.0 - 0.3 * i))
    return made


def make_trainer(ranks: Ranks, case: str = "fp32") -> Trainer:
    precision, config, kind = CASES[case]
    lora = LoraConfig(rank=3, base="4bit" if "4bit" in case else None) if "lora" in case else None
    model = random_decoder(config, seed=1, precision=precision, lora=lora)
    reference = random_decoder(config, seed=2, precision=precision) if kind != "sft" else None
    if lora:
        start_adapter(model, 1)
        reference = reference and model
    for one in dict.fromkeys(filter(None, (model, reference))):
        shard(one, ranks)
    settings = {"rl": TrainerConfig(loss=LossConfig(kl_coef=0.1)), "several updates": SEVERAL}.get(kind)
    objective = policy_objective(settings.loss, settings.correction) if settings else sft_objective
    optim, scheduler = OptimConfig(lr=1e-2, weight_decay=0.1), SchedulerConfig(type="cosine", warmup_steps=2)
    orch = OrchestratorConfig(rollouts_per_example=2, batch_size=2)
    use, temperature = batch_use(settings or TrainerConfig(), orch), 0.8 if settings else 1.0
    return Trainer(model, optim, scheduler, 10, objective, temperature, reference, ranks, use=use)


def steps(trainer: Trainer, first: int, count: int, rl: bool = False) -> list[dict[str, float]]:
    lines = []
    for step in range(first, first + count):
        # Step 1 has one sequence, for several ranks; step 2 none that carries loss.
        some = sequences(step, 1 if step == 1 else 7)
        if step == 2:
            some = [dataclasses.replace(s, loss_mask=np.zeros(len(s), dtype=np.bool_)) for s in some]
        lines.append(trainer.step(trainer.deal(Batch(some), 60, rl)))
    return lines


def weights(trainer: Trainer) -> dict[str, torch.Tensor]:
    return {name: whole(p.detach()).clone() for name, p in trainer.model.trained.items()}


def write(ranks: Ranks, folder: Path, name: str, value: object) -> None:
    """Each rank's `value`, as JSON."""
    (folder / f"{name}.{ranks.world}.{ranks.rank}.json").write_text(json.dumps(value))


def training(ranks: Ranks, folder: Path) -> None:
    """Some steps and an evaluation of every case."""
    torch.use_deterministic_algorithms(True)
    results = {}
    for case, (_, _, kind) in CASES.items():
        head.CPU_LOGITS = head.MAX_LOGITS = CONFIG.vocab_size * 7 if "chunked" in case else 2**23
        trainer = make_trainer(ranks, case)
        trainer.record_tokens = True
        before = trainer.fingerprint()
        lines = steps(trainer, 0, STEPS, kind != "sft")
        shown = trainer.token_stats()
        loss = trainer.evaluate(deal(sequences(9), 60, "cpu", False, ranks)) if kind == "sft" else 0.0
        # The fingerprint of shards, and that of the same weights when they are whole.
        from hone.trainer.fingerprint import fingerprint

        prints = [before, trainer.fingerprint(), fingerprint(weights(trainer))]
        assert (shown is not None) == ranks.first
        found = shown.by_completion() if shown else {}
        tokens = ranks.agree(sorted((*of, *map(np.ndarray.tolist, values)) for of, values in found.items()))
        results[case] = {"lines": lines, "loss": loss, "fingerprints": prints, "tokens": tokens}
    write(ranks, folder, "training", results)


BIASED = dataclasses.replace(UNTIED, family="qwen2", qkv_bias=True, mlp_bias=True)


class Collectives(TorchDispatchMode):
    """Counts collectives and the bytes that this rank gives to them, by name."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[str, list[int]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "c10d" and ("allgather_base" in str(func) or "reduce_scatter_base" in str(func)):
            count = self.found.setdefault(func.__name__.split(".")[0].strip("_"), [0, 0])
            count[0] += 1
            count[1] += args[1].numel() * args[1].element_size()
        return func(*args, **(kwargs or {}))


def gathering(ranks: Ranks, folder: Path) -> None:
    """Two steps of three micro-batches in each way to gather and to reduce; also after a step that was given up."""
    torch.use_deterministic_algorithms(True)
    half, most = parallel._GatherInBf16, parallel.WHOLE_GRADIENT_BYTES

    class Plain(half):
        def __init__(self, layer: nn.Module) -> None:
            super().__init__(layer)
            self.halves_any = False

    class Turned(half):
        """FSDP lays the parameters in another order."""

        def __init__(self, layer: nn.Module) -> None:
            parallel._fsdp_params(layer).reverse()  # pyright: ignore[reportAttributeAccessIssue]
            super().__init__(layer)

    results = {}
    for name, config in (("biased", BIASED), ("normed", UNTIED)):
        CASES[name] = ("bf16_linear", config, "sft")
        for way, gather, limit in (
            ("now", half, most),
            ("fp32", Plain, most),
            ("turned", Turned, most),
            ("each", half, 0),
            ("given up", half, most),
        ):
            parallel._GatherInBf16, parallel.WHOLE_GRADIENT_BYTES = gather, limit
            trainer, batches = make_trainer(ranks, name), deal(sequences(0), 20, "cpu", False, ranks)
            with torch.no_grad():  # norms and biases that bf16 can't hold
                for parameter in trainer.model.parameters():
                    if parameter.ndim == 1:
                        parameter.add_(1 / 3)
            if way == "given up":
                trainer.interrupt = partial(give_up, iter([None, None, StepAbandoned()]))
                with suppress(StepAbandoned):
                    trainer.step(batches)
                trainer.interrupt = lambda: None
            with Collectives() as counted:
                trainer.step(batches)
            trainer.step(batches)
            after = {n: p.tolist() for n, p in weights(trainer).items()}
            results[f"{name} {way}"] = {"sent": counted.found, "weights": after, "micro-batches": len(batches)}
    write(ranks, folder, "gathering", results)


def give_up(errors: Iterator[BaseException | None]) -> None:
    """Raise the next of the errors, if it is one."""
    if error := next(errors):
        raise error


SAVED = ("bf16", "bf16 lora 4bit policy")
"""The cases that are saved: the first one's weights have fp32 masters in the optimiser."""


def saving(ranks: Ranks, folder: Path) -> None:
    """Two steps, a checkpoint of version 2 and its weights, then two more; of each case."""
    prints = {}
    for case in SAVED:
        trainer = make_trainer(ranks, case)
        for at in (0, 2):
            part = folder / f"{case}.{ranks.world}.{at}"
            part.mkdir(exist_ok=True)
            ranks.barrier()
            save_part(part, trainer)
            steps(trainer, at, 2)
        save_policy(trainer, folder / f"{case}.{ranks.world}.hf", max_bytes=20_000)
        prints[case] = trainer.fingerprint()
    write(ranks, folder, "saved", prints)


def loading(ranks: Ranks, folder: Path) -> None:
    """Continues from the checkpoints of every number of ranks that there are, twice each, into a used trainer."""
    results: dict[str, dict[str, Any]] = {case: {} for case in SAVED}
    for case, found in results.items():
        trainer = make_trainer(ranks, case)
        for world in (1, 2, 3):
            for at in (2, 0):
                load_part(folder / f"{case}.{world}.{at}", trainer, at)
                loaded = trainer.fingerprint()
                lines = steps(trainer, at, 4 - at)
                found[f"{world}.{at}"] = {"loaded": loaded, "after": trainer.fingerprint(), "lines": lines}
    write(ranks, folder, "loading", results)


def checkpointing(ranks: Ranks, folder: Path) -> None:
    """The weights before and after two steps, in each mode."""
    results = {}
    for case in ("fp32 policy", "bf16_linear policy untied", "bf16"):
        for mode in ("none", "layer", "selective"):
            trainer = make_trainer(ranks, case)
            trainer.model.set_checkpointing(mode)
            before = trainer.fingerprint()
            lines = steps(trainer, 0, 2, rl=True)
            results.setdefault(case, {})[mode] = [before, trainer.fingerprint(), lines]
    write(ranks, folder, "checkpointing", results)


def failing(ranks: Ranks, folder: Path) -> int:
    """Rank 0 alone fails, in the middle of a step ("step" is the folder's name) or of an export."""

    def make() -> Trainer:
        trainer = make_trainer(ranks)
        objective = trainer.objective

        def out_of_memory(*_: object) -> Any:
            raise MemoryError("no more")

        trainer.objective = out_of_memory if ranks.first and folder.name == "step" else objective
        return trainer

    trainer = RankedTrainer(ranks, make, 60)
    if not ranks.first:
        code = trainer.follow()
        write(ranks, folder, "failing", code)
        return code
    with trainer:
        trainer.start()
        if folder.name == "step":
            trainer.step(Batch(sequences(0)))
        (folder / "weights").write_text("a file where the folder should be")
        trainer.save_policy(folder / "weights")
    return 0


def losing(ranks: Ranks, folder: Path) -> None:
    """Rank 1 is killed while the others are blocked in what fails for no lost rank, as a kernel of NCCL is."""

    def make() -> Trainer:
        if ranks.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        threading.Event().wait()
        raise AssertionError

    trainer = RankedTrainer(ranks, make)
    if ranks.first:
        trainer.start()
    trainer.follow()


def refusing(ranks: Ranks, folder: Path) -> None:
    """`hone trainer` where rank 1 alone can't settle on its config, and where no rank may have what it asks for."""
    from hone.extensions.split.commands import trainer as trainer_command
    from hone.extensions.split.config import TrainerRole

    def resolve(config: TrainerRole, _: object) -> TrainerRole:
        if ranks.rank == 1:
            raise UserError("no such folder here")
        return config

    trainer_command.resolve, errors = resolve, []  # pyright: ignore[reportAttributeAccessIssue]
    for optim in ({}, {"offload": True}):
        config = TrainerRole.model_validate({"model": {"name": "hone/tiny"}, "trainer": {"optim": optim}})
        try:
            trainer_command._serve(config, "cpu", ranks)
        except UserError as error:
            errors.append(str(error))
    write(ranks, folder, "refusing", errors)


def lost_between(ranks: Ranks, folder: Path) -> None:
    """Rank 1 is killed between two calls: rank 0, which does something else then, is told by the next."""
    trainer = RankedTrainer(ranks, lambda: make_trainer(ranks))
    pid = ranks.collect(os.getpid())[1]
    if not ranks.first:
        trainer.follow()
    trainer.start()
    os.kill(pid, signal.SIGKILL)
    assert ranks.watchdog is not None
    for thread in ranks.watchdog._threads:
        thread.join()
    try:
        trainer.fingerprint()
    except RankLost as error:
        write(ranks, folder, "between", str(error))


def full_disk(ranks: Ranks, folder: Path) -> None:
    """A checkpoint that rank 1 can't write."""
    trainer = make_trainer(ranks)
    if ranks.rank == 1:
        FileSystemWriter.write_data = _no_space  # pyright: ignore[reportAttributeAccessIssue]
    try:
        save_part(folder, trainer)
    except OSError as error:
        write(ranks, folder, "full disk", error.errno)


def _no_space(*_: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def listens(ranks: Ranks, folder: Path) -> None:
    """Write the addresses, in hexadecimal as the kernel has them, on which this rank listens."""
    inodes = {os.readlink(link)[8:-1] for link in Path("/proc/self/fd").iterdir() if link.is_symlink()}
    lines = [line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()]
    found = [words[1].split(":")[0] for words in lines if words[3] == "0A" and words[9] in inodes]
    (folder / f"{ranks.rank}.json").write_text(json.dumps(found))
