"""Rollouts that are sampled again as they were recorded, with an environment that answers anew."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from hone.inference.text import before_stop
from hone.inference.types import Completion, SamplingParams
from hone.model.chat import ChatRenderer
from hone.orchestrator.colocated import segment_of
from hone.orchestrator.conversations import roll_out
from hone.orchestrator.groups import GroupSampler
from hone.orchestrator.types import Finished, Request
from hone.types import Example, Rollout, Segment, ragged, where


def resample_recorded(
    sampler: GroupSampler,
    examples: Sequence[Example],
    draws: Sequence[int],
    step: int,
    recorded: Sequence[Rollout],
) -> list[Rollout]:
    """Return what `sampler.sample` gives if the policy is version `step` and chooses the tokens of `recorded`.

    If versions may change meanwhile, each token gets its recorded one. Raises ValueError if `recorded` has another
    number of them.
    """
    places = sampler.maker.places(draws, step)
    rollouts = {"{}-{}-{}".format(*place): one for place, one in zip(places, recorded, strict=True)}
    lag = sampler.config.orchestrator.max_async_level
    policy = RecordedPolicy(rollouts, sampler.maker.renderer, step, lag)
    return roll_out(sampler.env, policy, sampler.maker, examples, draws, step, sampler.sampling)


class RecordedPolicy:
    """A `Sampler` that repeats what was `recorded`, by sample id, as version `version` of a policy.

    A token gets its recorded version, clipped to the `lag` versions before this one and this one. A turn that was not
    recorded (the environment answers where it did not before) is answered with an end token alone.
    """

    def __init__(self, recorded: Mapping[str, Rollout], renderer: ChatRenderer, version: int, lag: int = 0) -> None:
        self._recorded, self._renderer, self._version, self._lag = recorded, renderer, version, lag

    def sample(
        self, requests: Sequence[Request], sampling: SamplingParams, finished: Finished | None = None
    ) -> list[Segment]:
        turns = []
        for index, request in enumerate(requests):
            turn = self._turn(request, self._recorded[request.sample_id], sampling.stop_strings)
            turns.append(segment_of(request, *turn, self._renderer, sampling.stop_strings))
            if finished is not None:
                finished(index, turns[index])
        return turns

    def _turn(self, request: Request, rollout: Rollout, stops: Sequence[str]) -> tuple[Completion, list[int]]:
        """Return the completion that was recorded for the request, and the versions of its tokens."""
        recorded = rollout.first
        indices = np.flatnonzero(recorded.sampled_mask)
        turns = np.split(indices, np.flatnonzero(np.diff(indices) > 1) + 1)
        if request.turn >= len(turns):
            return Completion([self._renderer.end_of_turn_id], [0.0], "stop"), [self._version]
        turn = turns[request.turn]
        versions = recorded.versions[turn].clip(self._version - self._lag, self._version).tolist()
        ids, logprobs = recorded.token_ids[turn].tolist(), recorded.logprobs[turn].tolist()
        reason = recorded.stop_reason
        if rollout.state is not None and request.turn < len(turns) - 1:
            reason = "stop"
        elif rollout.state is not None and reason == "length" and self._ended(ids, stops):
            reason = "stop"  # it was the environment's answer that left no room
        columns = where(recorded.columns, np.isin(np.arange(len(recorded)), turn))
        return Completion(ids, logprobs, reason, ragged(columns, "candidates")), versions

    def _ended(self, ids: list[int], stops: Sequence[str]) -> bool:
        """Return True if a turn ended by itself: by an end token, or by a text."""
        text = self._renderer.decode(ids)
        return ids[-1] in self._renderer.stop_ids or before_stop(text, stops) != text
