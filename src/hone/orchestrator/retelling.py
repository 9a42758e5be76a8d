"""A policy that says again what was recorded: everything around the sampling can then be executed anew."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from hone.inference.types import Completion, SamplingParams
from hone.model.chat import ChatRenderer
from hone.orchestrator.colocated import trajectory
from hone.orchestrator.types import Request
from hone.types import Trajectory


class RecordedPolicy:
    """Version `version` of a policy, which chooses the tokens that it chose in `recorded`, by sample id.

    With `lag`, a token is of the version that is recorded, if that is one of the `lag` before, and not a later one.
    To a turn that was not recorded (an environment that answers where it said nothing) it says nothing but the end.
    """

    def __init__(self, recorded: Mapping[str, Trajectory], renderer: ChatRenderer, version: int, lag: int = 0) -> None:
        self._recorded, self._renderer, self._version, self._lag = recorded, renderer, version, lag

    def sample(self, requests: Sequence[Request], sampling: SamplingParams) -> list[Trajectory]:
        return [self._told(request, self._recorded[request.sample_id]) for request in requests]

    def _told(self, request: Request, recorded: Trajectory) -> Trajectory:
        chosen, versions = self._turn(request, recorded)
        return trajectory(request, chosen, versions, self._renderer)

    def _turn(self, request: Request, recorded: Trajectory) -> tuple[Completion, list[int]]:
        indices = np.flatnonzero(recorded.sampled_mask)
        turns = np.split(indices, np.flatnonzero(np.diff(indices) > 1) + 1)
        if request.turn >= len(turns):
            return Completion([self._renderer.end_of_turn_id], [0.0], "stop"), [self._version]
        of_turn = turns[request.turn]
        versions = recorded.versions[of_turn].clip(self._version - self._lag, self._version).tolist()
        ids, logprobs = recorded.token_ids[of_turn].tolist(), recorded.logprobs[of_turn].tolist()
        reason = recorded.stop_reason
        if recorded.state is not None and request.turn < len(turns) - 1:
            reason = "stop"
        elif recorded.state is not None and reason == "length" and ids[-1] in self._renderer.stop_ids:
            reason = "stop"  # it was the environment's answer that left no room
        return Completion(ids, logprobs, reason), versions
