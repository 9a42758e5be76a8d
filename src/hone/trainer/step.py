"""The train step: forward and backward passes over micro-batches, then an optimiser update.

Token weights refer to the whole step, so micro-batches and ranks do not change the gradient. A batch may get several
updates: one for each minibatch in each of `updates_per_batch` passes, all with the same old policy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING

import torch

from hone.algorithms.losses.objective import Objective
from hone.hardware import HEAD_CACHE_BYTES
from hone.model.decoder import Decoder
from hone.trainer.fingerprint import fingerprint
from hone.trainer.heap import Heap
from hone.trainer.kl_reward import RewardKL, with_kl_in_reward
from hone.trainer.logprobs import token_logprobs
from hone.trainer.optim import Optimizer
from hone.trainer.packing import Batch, deal
from hone.trainer.packing import Sequence as Packed
from hone.trainer.parallel import ALONE, Ranks, drop_gradients, reduce_gradients, release, share_of
from hone.trainer.schedule import lr_at
from hone.trainer.token_stats import TokenStats
from hone.types import PackedBatch

if TYPE_CHECKING:
    from hone.config.shared import OptimConfig, SchedulerConfig


@dataclass(frozen=True)
class BatchUse:
    """Use of a step's batch. `keeps_old`: the old policy is the trainer's before the first update, not the sampler's.

    The policy is copied to the reference every `reference_interval` steps.
    """

    updates_per_batch: int = 1
    minibatches: int = 1
    keeps_old: bool = False
    kl_in_reward: RewardKL | None = None
    reference_interval: int | None = None

    @property
    def updates(self) -> int:
        return self.updates_per_batch * self.minibatches


ONE_UPDATE = BatchUse()


class Trainer:
    """Owns the optimiser of `model` and the policy's `version`, which counts all steps, also skipped steps.

    `reference`, if given, is the reference model of the KL; with LoRA it may be `model`, used with the adapter off.
    `temperature` must be the sampler's, so that the ratio compares the distributions that tokens are drawn from.
    `weigh` sets the tokens' weights in the loss, which are equal by default. Rank 0 calls `interrupt` before each
    micro-batch of `evaluate` and of a step's first update. If `interrupt` raises, all ranks raise its error, and
    weights, optimiser and version stay as before the step. `token_stats` needs `record_tokens`.

    For several `ranks`, first shard model and reference (`parallel.shard`). All ranks must call `step`, `evaluate`,
    `fingerprint` and `load_tensors` together, with equal numbers of micro-batches, and get the same results.
    """

    interrupt: Callable[[], None]
    record_tokens = False

    def __init__(
        self,
        model: Decoder,
        optim: OptimConfig,
        scheduler: SchedulerConfig,
        max_steps: int,
        objective: Objective,
        temperature: float = 1.0,
        reference: Decoder | None = None,
        ranks: Ranks = ALONE,
        head_cache_bytes: int | None = None,
        checkpointing: str = "none",
        use: BatchUse = ONE_UPDATE,
        weigh: Callable[[Batch], list[Packed]] | None = None,
    ) -> None:
        self.model = model
        model.set_checkpointing(checkpointing)
        self.ranks = ranks
        self.optimizer = Optimizer(model, optim)
        self.scheduler = scheduler
        self.max_steps = max_steps
        self.objective = objective
        self.temperature = temperature
        self.reference = reference
        self.head_cache_bytes = HEAD_CACHE_BYTES if head_cache_bytes is None else head_cache_bytes
        self.use, self.weigh = use, weigh
        self.interrupt = lambda: None
        self.version = 0
        self._heap = Heap()
        self._recording = False
        self._tokens: list[tuple[PackedBatch, torch.Tensor, torch.Tensor]] = []

    @property
    def lr(self) -> float:
        return lr_at(self.version, self.optimizer.config.lr, self.scheduler, self.max_steps)

    def deal(self, batch: Batch, micro_batch_tokens: int | None, share_prompts: bool) -> list[PackedBatch]:
        sequences = self.weigh(batch) if self.weigh is not None else batch.sequences
        device = self.model.device
        return deal(sequences, micro_batch_tokens, device, share_prompts, self.ranks, self.use.minibatches)

    @torch.enable_grad()  # a reward function of this process may have switched gradients off
    def step(self, micro_batches: Sequence[PackedBatch]) -> dict[str, float]:
        """Take one step: in each pass, one update for each minibatch.

        Returns loss, entropy (nats), grad_norm (before clipping), lr and the objective's statistics, as means over loss
        tokens and updates. An update is skipped if it has no loss tokens or if its gradient is not finite. Then weights
        stay, but version and schedule advance. `optimizer/skipped` is the share of skipped updates.
        """
        self._tokens.clear()
        metrics, parts, norms = {"lr": self.lr}, list[dict[str, torch.Tensor]](), list[float]()
        try:
            minibatches = [list(part) for _, part in groupby(self._prepared(micro_batches), lambda b: b.minibatch)]
            counts_here = [sum(len(batch.loss_indices) for batch in part) for part in minibatches]
            tokens = [sum(counts) for counts in zip(*self.ranks.collect(counts_here), strict=True)]
            for number in range(self.use.updates_per_batch):
                self._recording = self.record_tokens and number == 0
                for part in (part for part, count in zip(minibatches, tokens, strict=True) if count):
                    found, norm = self._update(part, first=not norms)
                    parts, norms = parts + found, [*norms, norm]
            sums = _summed(self.ranks.collect(_summed(_read(parts))))
        except BaseException:
            drop_gradients(self.model)
            self.optimizer.clear()
            raise
        if norms:
            count, first = sum(tokens) * self.use.updates_per_batch, next(filter(None, tokens))
            metrics["grad_norm"] = sum(norms) / len(norms)
            metrics |= {name: v if name.endswith("/max") else v / count for name, v in sums.items()}
            metrics["loss"] = sums["loss"] / len(norms)  # its tokens are weighed already
            if "logprob_gap/mean" in sums:
                metrics["logprob_gap/mean"] = sums["logprob_gap/mean"] / first
        finite = [norm < float("inf") for norm in norms] or [False]
        metrics["optimizer/skipped"] = 1 - sum(finite) / len(finite)
        self.version += 1
        interval = self.use.reference_interval
        if self.reference is not None and interval and self.version % interval == 0:
            self._follow()
        return metrics

    def _update(self, micro_batches: Sequence[PackedBatch], first: bool) -> tuple[list[dict[str, torch.Tensor]], float]:
        """Update the weights; return micro-batches' statistics (`logprob_gap/` only if `first`) and the gradient's
        norm.
        """
        parts = []
        for batch in self._uninterrupted(micro_batches) if first else micro_batches:
            reduce_gradients(self.model, last=batch is micro_batches[-1])
            found = self._accumulate(batch)
            parts.append({name: v for name, v in found.items() if first or not name.startswith("logprob_gap/")})
            self._heap.trim()
        norm = self.optimizer.step(self.lr)
        self.model.refresh()
        return parts, norm

    def _uninterrupted(self, micro_batches: Iterable[PackedBatch]) -> Iterable[PackedBatch]:
        for batch in micro_batches:
            raised = None
            if self.ranks.first:
                try:
                    self.interrupt()
                except BaseException as error:
                    raised = error
            if (raised := self.ranks.agree(raised)) is not None:
                raise raised
            yield batch

    def _accumulate(self, batch: PackedBatch) -> dict[str, torch.Tensor]:
        """Add the gradient of a micro-batch; return its statistics as sums. Does not wait for a GPU."""
        indices_M = batch.loss_indices
        if self.ranks.alone and not len(indices_M):
            return {}
        logprobs_M, entropies_M = token_logprobs(self.model, batch, indices_M, self.temperature, self.head_cache_bytes)
        if not len(indices_M):
            logprobs_M.sum().backward()  # a gradient of zeros: the other ranks wait for this one's
            return {}
        loss, sums = self.objective(logprobs_M, entropies_M, batch, indices_M)
        loss.backward()
        entropies_M = entropies_M.detach()
        if self._recording:
            self._tokens.append((batch, entropies_M, logprobs_M.detach()))
        return {"loss": loss.detach(), "entropy": entropies_M.sum(), **sums}

    def _prepared(self, micro_batches: Sequence[PackedBatch]) -> list[PackedBatch]:
        """Return the micro-batches with old and reference logprobs, and with the KL in the reward, if needed."""
        prepared = list(micro_batches)
        if self.use.keeps_old and self.use.updates > 1:
            prepared = [replace(batch, old_logprobs=self._logprobs_by(self.model, batch)) for batch in prepared]
        if self.reference is not None:
            with self.reference.disable_adapter():
                prepared = [replace(batch, ref_logprobs=self._logprobs_by(self.reference, batch)) for batch in prepared]
            if self.use.kl_in_reward is not None:
                prepared = with_kl_in_reward(prepared, self.use.kl_in_reward, self.ranks)
        return prepared

    @torch.no_grad()
    def _logprobs_by(self, model: Decoder, batch: PackedBatch) -> torch.Tensor:
        """Return a batch's logprobs `[N]`, which are 0 for tokens without loss."""
        logprobs_N = torch.zeros_like(batch.sampling_logprobs)
        logprobs_N[batch.loss_indices] = token_logprobs(model, batch, batch.loss_indices, self.temperature)[0]
        release(model)
        return logprobs_N

    @torch.no_grad()
    def _follow(self) -> None:
        assert self.reference is not None
        for reference, current in zip(self.reference.parameters(), self.model.parameters(), strict=True):
            reference.copy_(current)
        self.reference.refresh()

    def token_stats(self) -> TokenStats | None:
        """Return statistics of the last step's tokens, before its first update, on rank 0. All ranks call this."""
        if not self.record_tokens:
            return None
        parts = self.ranks.gather(TokenStats.joined([TokenStats.of_batch(*tokens) for tokens in self._tokens]))
        return None if parts is None else TokenStats.joined(parts)

    @torch.no_grad()
    def evaluate(self, micro_batches: Sequence[PackedBatch]) -> float:
        """Return the validation loss: the mean objective per loss token, without an update."""
        losses = []
        for batch in self._uninterrupted(micro_batches):
            found = token_logprobs(self.model, batch, batch.loss_indices, self.temperature)
            if len(batch.loss_indices):
                losses.append({"loss": self.objective(*found, batch, batch.loss_indices)[0]})
        release(self.model)
        return sum(self.ranks.collect(_summed(_read(losses)).get("loss", 0.0)))

    def fingerprint(self) -> str:
        return fingerprint(self.model.trained, self.ranks)

    def tensors(self) -> dict[str, dict[str, torch.Tensor]]:
        """Return the tensors for an exact resume: trained weights and optimiser state, sharded like the model."""
        tensors = {"model": _weights(self.model), "optimizer": self.optimizer.state()}
        if self.reference is not None and self.use.reference_interval:
            tensors["reference"] = _weights(self.reference)
        return tensors

    @torch.no_grad()
    def load_tensors(self, tensors: dict[str, dict[str, torch.Tensor]], version: int) -> None:
        """Restore what `tensors` returned at `version`, bit for bit, on any number of ranks."""
        self.optimizer.clear()
        models = {"model": self.model} | ({"reference": self.reference} if "reference" in tensors else {})
        for kind, model in models.items():
            assert model is not None, "a reference that follows the policy is in the checkpoint"
            for name, param in model.trained.items():
                param.copy_(share_of(tensors[kind][name], param))
            model.refresh()
        self.optimizer.load_state(tensors["optimizer"])
        self.version = version


def _weights(model: Decoder) -> dict[str, torch.Tensor]:
    return {name: p.detach() for name, p in model.trained.items()}


def _read(parts: Sequence[Mapping[str, torch.Tensor]]) -> list[dict[str, float]]:
    """Return the statistics as numbers. This waits for the GPU."""
    values = [value.double() for part in parts for value in part.values()]
    numbers = iter(torch.stack(values).tolist() if values else [])
    return [{name: next(numbers) for name in part} for part in parts]


def _summed(parts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Sum each statistic over the parts of a step. If its name ends in `/max`, take the largest value instead."""
    sums: dict[str, float] = {}
    for part in parts:
        for name, value in part.items():
            sums[name] = max(sums.get(name, 0.0), value) if name.endswith("/max") else sums.get(name, 0.0) + value
    return sums
