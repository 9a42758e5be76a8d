"""Sampler and trainer in one process: they share the parameters without copies, and take turns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from hone.algorithms.gap import Gap
from hone.config.rl import RLConfig
from hone.environments import Environment
from hone.inference.engine import Engine
from hone.inference.memory import GIB, KV_GIB, PREFIX_SHARE
from hone.inference.policy import Finished, Policy, Request
from hone.inference.text import before_stop
from hone.inference.types import Completion, Job, SamplingParams
from hone.loops.updates import Update, Updates
from hone.model.chat import ChatRenderer
from hone.trainer.export import save_weights
from hone.trainer.packing import Batch
from hone.trainer.step import Trainer
from hone.types import Columns, Segment, joined

if TYPE_CHECKING:
    from hone.loops.canary import Canary
    from hone.runs.checkpoint import Tensors
    from hone.runs.saving import Saver


class EnginePolicy(Policy):
    """A `Policy` with an engine in this process. `version` is the version of the trainer's weights."""

    def __init__(self, engine: Engine, renderer: ChatRenderer, version: Callable[[], int] = lambda: 0) -> None:
        self.engine, self.renderer = engine, renderer
        self._version = version

    @property
    def version(self) -> int:
        return self._version()

    def sample(
        self, requests: Sequence[Request], sampling: SamplingParams, finished: Finished | None = None
    ) -> list[Segment]:
        """Sample one turn per request. A turn ends at the chat template's end-of-turn tokens or at eos."""
        ends = () if sampling.ignore_eos else self.renderer.stop_ids
        params = replace(sampling, stop=tuple({*sampling.stop, *ends}))
        version, turns = self.version, dict[int, Segment]()

        def end(index: int, completion: Completion) -> None:
            versions = [version] * len(completion.token_ids)
            stops = sampling.stop_strings
            turns[index] = segment_of(requests[index], completion, versions, self.renderer, stops)
            if finished is not None:
                finished(index, turns[index])

        self.engine.run([Job(r.prompt_ids, r.key, r.max_tokens) for r in requests], params, end)
        return [turns[index] for index in range(len(requests))]

    def load(self, version: int, path: Path | None = None) -> None:
        """Drop the caches computed with older weights. The engine has the new weights already."""
        assert path is None, "the engine in this process samples with the trainer's own parameters"
        self.engine.weights_changed(version)

    def score(self, sequences: Sequence[Sequence[int]], temperature: float) -> list[list[float]]:
        return self.engine.score(sequences, temperature)


def new_policy(config: RLConfig, envs: Sequence[Environment], trainer: Trainer, renderer: ChatRenderer) -> EnginePolicy:
    settings = config.inference
    kv_bytes = int((settings.kv_gib or KV_GIB) * GIB)
    engine = Engine(
        trainer.model,
        kv_bytes=kv_bytes,
        prefix_bytes=max(prefix_bytes(env, kv_bytes) for env in envs),
        batch_invariant=settings.batch_invariant,
        cuda_graphs=bool(settings.cuda_graphs),
        tokenizer=renderer.tokenizer,
    )
    return EnginePolicy(engine, renderer, lambda: trainer.version)


def prefix_bytes(env: Environment, kv_bytes: int) -> int:
    """Return the prefix cache's bytes: 0 for single turns, as only later turns repeat the conversation so far."""
    return int(PREFIX_SHARE * kv_bytes) if env.max_turns > 1 else 0


def segment_of(
    request: Request,
    completion: Completion,
    versions: Sequence[int],
    renderer: ChatRenderer,
    stops: Sequence[str] = (),
) -> Segment:
    """Make the segment of a request's completion. `versions` has the policy version of each sampled token.

    If the chat template opened a thinking tag, the text starts with this tag, so that graders see the thoughts. The
    text ends before a stop string, but the segment keeps the tokens of the stop string, to train on them.
    """
    prompt, sampled = len(request.prompt_ids), len(completion.token_ids)
    text = renderer.opened_by_template + before_stop(renderer.decode(completion.token_ids), stops)
    columns: Columns = {} if completion.candidates is None else {"candidates": completion.candidates}
    return Segment(
        token_ids=np.array([*request.prompt_ids, *completion.token_ids], dtype=np.int64),
        sampled_mask=np.repeat([False, True], [prompt, sampled]),
        logprobs=np.concatenate([np.zeros(prompt), completion.logprobs]).astype(np.float32),
        versions=np.array([-1] * prompt + list(versions), dtype=np.int32),
        messages=[*request.messages, {"role": "assistant", "content": text}],
        stop_reason=completion.stop_reason,
        columns=joined([(prompt, {}), (sampled, columns)]),
    )


class LocalTrainer(Updates):
    """A trainer in this process. `put` trains, in micro-batches of `micro_batch_tokens` (None: device's default)."""

    ready = True

    def __init__(
        self,
        trainer: Trainer,
        micro_batch_tokens: int | None,
        policy: Policy | None = None,
        canary: Canary | None = None,
        phase: Callable[[str], AbstractContextManager[None]] = lambda name: nullcontext(),
    ) -> None:
        self.trainer, self.micro_batch_tokens = trainer, micro_batch_tokens
        self._policy, self._canary, self._phase = policy, canary, phase
        self._update: Update | None = None

    @property
    def version(self) -> int:
        return self.trainer.version - (self._update is not None)

    def start(self, saver: Saver) -> None:
        self.trainer.interrupt = saver.stop.check

    def put(self, step: int, batch: Batch) -> None:
        weights = self.trainer.fingerprint()
        with self._phase("train"):
            if self._policy is not None:
                self._policy.sleep()
            metrics = self.trainer.step(self.trainer.deal(batch, self.micro_batch_tokens, share_prompts=True))
        self._update = Update(metrics, weights, token_stats=self.trainer.token_stats())

    def take(self) -> Update:
        update, self._update = self._update, None
        assert update is not None, "call put before take"
        return update

    def publish(self, version: int) -> Gap | None:
        if self._policy is not None:
            self._policy.load(version)
        return None if self._canary is None else self._canary.measure()

    def snapshot(self, checkpoint: bool) -> tuple[Tensors, Path | None]:
        return self.trainer.tensors(), None

    def export(self, folder: Path, version: int, parameters: Mapping[str, torch.Tensor]) -> None:
        save_weights(folder, self.trainer.model, parameters)

    def fingerprint(self) -> str:
        return self.trainer.fingerprint()
