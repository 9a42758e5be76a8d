"""What tests of rollouts that verifiers makes share: a policy whose words are scripted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from hone.extensions.libraries.verifiers import Episodes
from hone.inference.conversations import RolloutSettings, roll_out
from hone.inference.policy import Request
from hone.inference.types import Completion, SamplingParams
from hone.loops.colocated import segment_of
from hone.model.chat import load_renderer
from hone.types import Rollout, Segment

RENDERER = load_renderer("hone/tiny")
Says = Callable[[list[dict[str, Any]]], str]


class Scripted:
    """A policy that says what `says` makes of a request's messages."""

    def __init__(self, says: Says) -> None:
        self.says = says

    def sample(self, requests: Sequence[Request], sampling: SamplingParams, finished: Any = None) -> list[Segment]:
        return [self._answer(request) for request in requests]

    def _answer(self, request: Request) -> Segment:
        ids = [*RENDERER.tokenizer.encode(self.says(request.messages)).ids, RENDERER.stop_ids[0]]
        completion = Completion(token_ids=ids, logprobs=[-0.5] * len(ids), stop_reason="stop")
        return segment_of(request, completion, [0] * len(ids), RENDERER)


def played(env: Episodes, says: Says, rollouts: int = 1, index: int = 0) -> list[Rollout]:
    settings = RolloutSettings(RENDERER, rollouts, 2048, 200, 0, "rollout")
    return roll_out(env, Scripted(says), settings, [env.example(index=index)], [0], 0, SamplingParams())  # type: ignore[arg-type]
