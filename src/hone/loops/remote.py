"""A policy on servers of one kind. It samples over HTTP, and the servers load the trainer's weights from a folder.

    policy = ServerPolicy([connect_to_server(endpoint, ...)], renderer, eos_ids, spool)
    policy.load(0)

A server gets one request per group. hone's server gets the key of each completion, so it samples the same tokens as an
engine in this process, up to rounding. Another server gets one seed, the upper 31 bits of the first completion's key,
and adds 1 for each further completion.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

from hone.client import HONE
from hone.inference.policy import Finished, Policy, Request
from hone.inference.types import Completion, SamplingParams
from hone.loops.colocated import segment_of
from hone.loops.fleet import Fleet, readable
from hone.loops.reach import Server, are_logprobs, scores
from hone.model.chat import ChatRenderer
from hone.trainer.export import Spool
from hone.types import Ragged, Segment


class ServerPolicy(Policy):
    """Samples from servers. `load` makes the servers load a folder, by default one with the weights of `spool`'s model.

    Another thread may call `load` during `sample`. A token may then come from any loaded version, and the caller
    decides which versions are too old. If a server reports no versions, all its tokens of a call get the version at the
    start of the call, the oldest possible. A completion ends at `eos_ids` and the stop ids of `renderer`. Raises Halt
    if no server is left, or if a server samples from weights that this run did not send.
    """

    def __init__(
        self,
        servers: Fleet | Sequence[Server],
        renderer: ChatRenderer,
        eos_ids: Sequence[int],
        spool: Spool | None = None,
    ) -> None:
        self.fleet = servers if isinstance(servers, Fleet) else Fleet(servers)
        self.renderer, self.spool = renderer, spool
        self._ends = (*renderer.stop_ids, *eos_ids)

    @property
    def version(self) -> int:
        return self.fleet.latest.version

    def sample(
        self, requests: Sequence[Request], sampling: SamplingParams, finished: Finished | None = None
    ) -> list[Segment]:
        """Sample one turn per request. Turns have the prompt ids that the server reports."""
        turns = dict[int, Segment]()
        members = list(enumerate(requests))
        groups = [list(group) for _, group in groupby(members, lambda one: (one[1].prompt_ids, one[1].max_tokens))]
        if self.fleet.backend != HONE and sampling.greedy:  # it may refuse n > 1 then
            groups = [[member] for member in members]

        def end(number: int, answer: Any, server: Server, version: int) -> None:
            group = groups[number]
            with readable(server, "ids and logprobs of its tokens"):
                ordered = sorted(answer["choices"], key=lambda choice: choice["index"])
                choices = [_read(choice, sampling.keeps_ids) for choice in ordered]
                assert len(choices) == len(group), f"{len(choices)} completions of {len(group)}"
            for (index, request), (prompt_ids, completion, versions) in zip(group, choices, strict=True):
                versions = versions or [version] * len(completion.token_ids)
                asked = replace(request, prompt_ids=prompt_ids)
                turns[index] = segment_of(asked, completion, versions, self.renderer, sampling.stop_strings)
                if finished is not None:
                    finished(index, turns[index])

        self.fleet.ask([self._body([request for _, request in group], sampling) for group in groups], end)
        return [turns[index] for index in range(len(requests))]

    def load(self, version: int, path: Path | None = None) -> None:
        if path is None:
            assert self.spool is not None, "there is no model here to take the weights of"
            path = self.spool.put(version)
        self.fleet.load(version, path)

    def score(self, sequences: Sequence[Sequence[int]], temperature: float) -> list[list[float]]:
        """Return a server's logprobs. They are NaN at temperatures other than 1, unless the server is hone's."""
        if self._scores_nothing(temperature):
            return [[float("nan")] * (len(ids) - 1) for ids in sequences]
        (answer,) = self.fleet.ask([self._server.scoring(sequences, temperature)])
        with readable(self._server, "logprobs of the prompt"):
            return scores(answer, sequences)

    def scores_of_each(self, ids: Sequence[int], temperature: float) -> list[list[float]]:
        if self._scores_nothing(temperature):
            return []
        answers = self.fleet.ask_each(self._server.scoring([ids], temperature))
        with readable(self._server, "logprobs of the prompt"):
            return [scores(answer, [ids])[0] for answer in answers]

    @property
    def _server(self) -> Server:
        return self.fleet.members[0].server

    def _scores_nothing(self, temperature: float) -> bool:
        return self.fleet.backend != HONE and temperature != 1

    def _body(self, group: Sequence[Request], sampling: SamplingParams) -> dict[str, Any]:
        first, ends = group[0], () if sampling.ignore_eos else self._ends
        body = {
            "prompt": list(first.prompt_ids),
            "n": len(group),
            "max_tokens": first.max_tokens,
            "temperature": 0.0 if sampling.greedy else sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "min_p": sampling.min_p,
            "logprobs": 0,
            "return_token_ids": True,
            # All that ends a completion is named, so that it does not depend on the server's own view of the model.
            "ignore_eos": True,
            "stop_token_ids": sorted({*ends, *(stop for stop in sampling.stop if isinstance(stop, int))}),
            "stop": list(sampling.stop_strings),
        }
        if sampling.keeps_ids:
            body["return_kept_ids"] = True
        hones = self.fleet.backend == HONE
        return body | ({"key": [request.key for request in group]} if hones else {"seed": first.key >> 33})


def _read(choice: dict[str, Any], with_candidates: bool) -> tuple[tuple[int, ...], Completion, list[int] | None]:
    """Return a choice's prompt ids, its completion, and the versions of its tokens if the server reports them."""
    candidates = Ragged.of(choice["kept_ids"]) if with_candidates else None
    logprobs = choice["logprobs"]["token_logprobs"]
    completion = Completion(choice["token_ids"], logprobs, choice["finish_reason"], candidates)
    assert completion.stop_reason in ("stop", "length"), f"it ended by {completion.stop_reason}"
    assert are_logprobs(completion.logprobs), "a logprob is not finite, or above 0"
    assert all(0 <= token < 2**31 for token in completion.token_ids), "a token has no id"
    return tuple(choice["prompt_token_ids"]), completion, choice.get("policy_versions")
