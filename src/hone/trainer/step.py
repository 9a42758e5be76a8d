"""The train step: forward and backward over micro-batches, one optimiser update.

Every micro-batch's loss is divided by the step's global token count, so splitting a batch never changes its gradient,
among micro-batches or among ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from hone.algorithms.losses import Objective
from hone.model.decoder import Decoder
from hone.model.head import HEAD_CACHE_BYTES
from hone.trainer.fingerprint import fingerprint
from hone.trainer.logprobs import token_logprobs
from hone.trainer.optim import Optimizer
from hone.trainer.parallel import ALONE, Ranks, drop_gradients, reduce_gradients, release, share_of
from hone.trainer.schedule import lr_at
from hone.trainer.token_stats import TokenStats
from hone.types import PackedBatch

if TYPE_CHECKING:
    from hone.config.shared import OptimConfig, SchedulerConfig


class Trainer:
    """Owns the optimiser of `model` and the step counter (= the policy version: updates so far, skipped ones included).

    `reference`, if given, is the frozen model of the KL term. `temperature` is the sampler's: the ratio compares the
    distributions that the tokens were really drawn from. `interrupt` is called before each micro-batch; what it raises
    ends the step (or evaluation) there, with weights, optimiser and counter as they were before it. With
    `record_tokens`, `token_stats` has what the last step computed of each token.

    On several `ranks` model and reference are in shards (`parallel.shard`) before they come here. All ranks call
    `step`, `evaluate`, `fingerprint` and `load_tensors` together, each with its own micro-batches (equally many, see
    `packing.deal`), and get the same results; of `interrupt`, rank 0's is asked, and what it raises is raised on all.
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
        head_cache_bytes: int = HEAD_CACHE_BYTES,
        checkpointing: str = "none",
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
        self.head_cache_bytes = head_cache_bytes
        self.interrupt = lambda: None
        self.version = 0
        self._tokens: list[tuple[PackedBatch, torch.Tensor, torch.Tensor]] = []

    @property
    def lr(self) -> float:
        """Learning rate of the next update."""
        return lr_at(self.version, self.optimizer.config.lr, self.scheduler, self.max_steps)

    def step(self, micro_batches: Sequence[PackedBatch]) -> dict[str, float]:
        """Take one update on the micro-batches of one step (all carry the same `num_loss_tokens`, the step's
        denominator).

        Returns loss, entropy (nats), grad_norm (before clipping), lr and the objective's statistics, as means over loss
        tokens. Without micro-batches or loss tokens, or with a gradient that is not finite, the weights stay as they
        are, the counter and the schedule go on, and `optimizer/skipped` is 1.
        """
        self._tokens.clear()
        try:
            parts = []
            for batch in self._uninterrupted(micro_batches):
                reduce_gradients(self.model, last=batch is micro_batches[-1])
                parts.append(self._accumulate(batch))
            sums = _summed(_read(parts))
        except BaseException:
            drop_gradients(self.model)
            self.optimizer.clear()
            raise
        sums = _summed(self.ranks.collect(sums))
        metrics = {"lr": self.lr}
        if sums:
            metrics["grad_norm"] = self.optimizer.step(self.lr)
            self.model.refresh()
            count = micro_batches[0].num_loss_tokens
            metrics |= {name: v if name.endswith("/max") else v / count for name, v in sums.items()}
        else:
            self.optimizer.clear()
        finite = metrics.get("grad_norm", float("nan")) < float("inf")
        metrics["optimizer/skipped"] = 0.0 if finite else 1.0
        self.version += 1
        return metrics

    def _uninterrupted(self, micro_batches: Iterable[PackedBatch]) -> Iterable[PackedBatch]:
        """Yield the micro-batches, until `interrupt` raises."""
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
        """Add one micro-batch's gradient; returns its summed statistics, which the host does not wait for."""
        indices_M = batch.loss_indices
        if self.ranks.alone and not len(indices_M):
            return {}
        batch = self._with_reference(batch, indices_M)
        logprobs_M, entropies_M = token_logprobs(self.model, batch, indices_M, self.temperature, self.head_cache_bytes)
        entropies_M = entropies_M.detach()
        if not len(indices_M):
            logprobs_M.sum().backward()  # a gradient of zeros: the other ranks wait for this one's
            return {}
        loss, sums = self.objective(logprobs_M, batch, indices_M)
        (loss / batch.num_loss_tokens).backward()
        if self.record_tokens:
            self._tokens.append((batch, entropies_M, logprobs_M.detach()))
        return {"loss": loss.detach(), "entropy": entropies_M.sum(), **sums}

    def token_stats(self) -> TokenStats | None:
        """Return what the last step computed of its tokens, micro-batch by micro-batch; None without `record_tokens`.

        On several ranks all call it, and rank 0 gets those of all, the others None.
        """
        if not self.record_tokens:
            return None
        parts = self.ranks.gather(TokenStats.joined([TokenStats.of_batch(*tokens) for tokens in self._tokens]))
        return None if parts is None else TokenStats.joined(parts)

    @torch.no_grad()
    def _with_reference(self, batch: PackedBatch, indices_M: torch.Tensor) -> PackedBatch:
        if self.reference is None:
            return batch
        ref_logprobs = torch.zeros_like(batch.sampling_logprobs)
        ref_logprobs[indices_M] = token_logprobs(self.reference, batch, indices_M, self.temperature)[0]
        release(self.reference)
        return replace(batch, ref_logprobs=ref_logprobs)

    @torch.no_grad()
    def evaluate(self, micro_batches: Sequence[PackedBatch]) -> float:
        """Compute the mean objective per loss token, without an update (validation loss)."""
        losses = []
        for batch in self._uninterrupted(micro_batches):
            logprobs_M, _ = token_logprobs(self.model, batch, batch.loss_indices, self.temperature)
            if len(batch.loss_indices):
                losses.append({"loss": self.objective(logprobs_M, batch, batch.loss_indices)[0]})
        release(self.model)
        total = _summed(_read(losses)).get("loss", 0.0)
        return sum(self.ranks.collect(total)) / micro_batches[0].num_loss_tokens

    def fingerprint(self) -> str:
        """Return 16 hex digits that tell this version of the policy from any other."""
        return fingerprint(dict(self.model.named_parameters()), self.ranks)

    def tensors(self) -> dict[str, dict[str, torch.Tensor]]:
        """Return everything an exact resume needs, as named tensors: model and optimiser; in shards, if they are."""
        model = {name: p.detach() for name, p in self.model.named_parameters()}
        return {"model": model, "optimizer": self.optimizer.state()}

    @torch.no_grad()
    def load_tensors(self, tensors: dict[str, dict[str, torch.Tensor]], version: int) -> None:
        """Restore what `tensors` returned at `version`, bit for bit, on any number of ranks."""
        self.optimizer.clear()
        for name, param in self.model.named_parameters():
            param.copy_(share_of(tensors["model"][name], param))
        self.model.refresh()
        self.optimizer.load_state(tensors["optimizer"])
        self.version = version


def _read(parts: Sequence[Mapping[str, torch.Tensor]]) -> list[dict[str, float]]:
    """Return the statistics as numbers: the one time that the host waits for a GPU."""
    values = [value.double() for part in parts for value in part.values()]
    numbers = iter(torch.stack(values).tolist() if values else [])
    return [{name: next(numbers) for name in part} for part in parts]


def _summed(parts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Return statistics of parts of a step as those of all: sums, and the largest of what is named `…/max`."""
    sums: dict[str, float] = {}
    for part in parts:
        for name, value in part.items():
            sums[name] = max(sums.get(name, 0.0), value) if name.endswith("/max") else sums.get(name, 0.0) + value
    return sums
