"""A policy that repeats recorded completions, while the environment answers and grades again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from hone.errors import UserError
from hone.inference.policy import Finished, Request
from hone.inference.text import before_stop
from hone.inference.types import Completion, SamplingParams
from hone.loops.colocated import segment_of
from hone.model.chat import ChatRenderer
from hone.types import Rollout, Segment, ragged, where


class RecordedPolicy:
    """A `Policy` that repeats `recorded` completions (by sample id), as if `version` had sampled them. The versions of
    tokens are clipped to `version` - `lag` … `version`. A turn that was not recorded becomes an end token. `sample`
    raises UserError for a sample that was not recorded.
    """

    def __init__(self, recorded: Mapping[str, Rollout], renderer: ChatRenderer, version: int = 0, lag: int = 0) -> None:
        self.recorded, self.version = recorded, version
        self._renderer, self._lag = renderer, lag

    def load(self, version: int, path: Path | None = None) -> None: ...

    def sleep(self) -> None: ...

    def score(self, sequences: Sequence[Sequence[int]], temperature: float) -> list[list[float]]:
        raise AssertionError("no logprobs of other tokens are recorded")

    def sample(
        self, requests: Sequence[Request], sampling: SamplingParams, finished: Finished | None = None
    ) -> list[Segment]:
        turns = []
        if missing := [request.sample_id for request in requests if request.sample_id not in self.recorded]:
            raise UserError(f"the run lacks completion {missing[0]}: compare the run with a copy")
        for index, request in enumerate(requests):
            turn = self._turn(request, self.recorded[request.sample_id], sampling.stop_strings)
            turns.append(segment_of(request, *turn, self._renderer, sampling.stop_strings))
            if finished is not None:
                finished(index, turns[index])
        return turns

    def _turn(self, request: Request, rollout: Rollout, stops: Sequence[str]) -> tuple[Completion, list[int]]:
        recorded = rollout.first
        indices = np.flatnonzero(recorded.sampled_mask)
        turns = np.split(indices, np.flatnonzero(np.diff(indices) > 1) + 1)
        if request.turn >= len(turns):
            return Completion([self._renderer.end_of_turn_id], [0.0], "stop"), [self.version]
        turn = turns[request.turn]
        versions = recorded.versions[turn].clip(self.version - self._lag, self.version).tolist()
        ids, logprobs = recorded.token_ids[turn].tolist(), recorded.logprobs[turn].tolist()
        reason = recorded.stop_reason
        if request.turn < len(turns) - 1:
            reason = "stop"
        elif (rollout.state is not None or len(turns) > 1) and reason == "length" and self._ended(ids, stops):
            reason = "stop"  # it was the environment's answer that left no room
        columns = where(recorded.columns, np.isin(np.arange(len(recorded)), turn))
        return Completion(ids, logprobs, reason, ragged(columns, "candidates")), versions

    def _ended(self, ids: list[int], stops: Sequence[str]) -> bool:
        text = self._renderer.decode(ids)
        return ids[-1] in self._renderer.stop_ids or before_stop(text, stops) != text
