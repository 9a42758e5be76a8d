"""The policy of colocated mode: the engine on the trainer's own parameters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from hone.inference.engine import Engine
from hone.inference.types import Completion, Job, SamplingParams
from hone.model.chat import ChatRenderer
from hone.orchestrator.types import Request
from hone.types import Trajectory


class EnginePolicy:
    """Samples in process. `version` is asked at each call: the weights are the trainer's, so always current."""

    def __init__(self, engine: Engine, renderer: ChatRenderer, version: Callable[[], int] = lambda: 0) -> None:
        self.engine = engine
        self.renderer = renderer
        self._version = version

    @property
    def version(self) -> int:
        return self._version()

    def sample(self, requests: Sequence[Request], sampling: SamplingParams) -> list[Trajectory]:
        """One trajectory per request; stops at the end-of-turn tokens of the chat template as well as at eos."""
        ends = () if sampling.ignore_eos else self.renderer.stop_ids
        params = replace(sampling, stop=tuple({*sampling.stop, *ends}))
        jobs = [Job(r.prompt_ids, r.key, r.max_tokens) for r in requests]
        completions = self.engine.run(jobs, params)
        version = self.version
        return [
            trajectory(r, c, [version] * len(c.token_ids), self.renderer)
            for r, c in zip(requests, completions, strict=True)
        ]

    def load(self, version: int, path: Path | None = None) -> None:
        """The weights are the trainer's and already there: forgets what was computed with older ones."""
        assert path is None, "the engine in this process samples with the trainer's own parameters"
        self.engine.weights_changed(version)

    def score(self, sequences: Sequence[Sequence[int]], temperature: float) -> list[list[float]]:
        return self.engine.score(sequences, temperature)


def trajectory(request: Request, completion: Completion, versions: Sequence[int], renderer: ChatRenderer) -> Trajectory:
    """The completion of a request; `versions` are those of the policy that sampled each of its tokens.

    Its text starts with the tag that the chat template opened for it, if it did: a grader must see what is thought.
    """
    prompt, sampled = len(request.prompt_ids), len(completion.token_ids)
    text = renderer.opened_by_template + renderer.decode(completion.token_ids)
    return Trajectory(
        token_ids=np.array([*request.prompt_ids, *completion.token_ids], dtype=np.int64),
        sampled_mask=np.repeat([False, True], [prompt, sampled]),
        logprobs=np.concatenate([np.zeros(prompt), completion.logprobs]).astype(np.float32),
        versions=np.array([-1] * prompt + list(versions), dtype=np.int32),
        messages=[*request.messages, {"role": "assistant", "content": text}],
        stop_reason=completion.stop_reason,
        sample_id=request.sample_id,
    )
