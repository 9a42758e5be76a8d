"""A policy behind a server: hone's own, or vLLM. It samples over HTTP, and takes the trainer's weights from a folder.

    policy = ServerPolicy(reach(endpoint, ...), renderer, eos_ids, spool)
    policy.load(0)

The server gets a request for each group. hone's gets the key of each completion, so its tokens are those of an engine
in this process, up to the rounding of differently shaped products. vLLM gets a seed of the first (the key's upper 31
bits), and seeds the others of the group by counting on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

from hone.errors import Halt
from hone.inference.client import Served, ServerClient
from hone.inference.types import Completion, SamplingParams
from hone.model.chat import ChatRenderer
from hone.orchestrator.colocated import trajectory
from hone.orchestrator.reach import Server, scores
from hone.orchestrator.types import Finished, Request
from hone.trainer.export import Spool
from hone.types import Kept, Trajectory

CONNECTIONS = 256
"""Most requests that a server has at once; each is a group, and an open file."""


@dataclass(frozen=True)
class _Loaded:
    """The weights a server last got: a version, from a folder; `instance` names the process that took it."""

    version: int = 0
    path: str | None = None
    instance: str | None = None


class ServerPolicy:
    """Samples from a server. `load` has the server take weights from a folder; without one, those of `spool`'s model.

    Another thread may call `load` while `sample` is at work: a token may then be of any version that was loaded; the
    caller decides which are too old. If the server does not name it (vLLM), all tokens of a call count as of the
    version at its beginning, the oldest possible. `eos_ids` end a completion, as the stop ids of `renderer` do.
    Raises Halt when the server is gone, was started anew, or samples from weights that this run did not give it.
    """

    def __init__(
        self, server: Server, renderer: ChatRenderer, eos_ids: Sequence[int], spool: Spool | None = None
    ) -> None:
        self.server, self.renderer, self.spool = server, renderer, spool
        self._ends = (*renderer.stop_ids, *eos_ids)
        self._loaded = _Loaded()
        self._given: Mapping[int, str | None] = {0: None}

    @property
    def version(self) -> int:
        return self._loaded.version

    def sample(
        self, requests: Sequence[Request], sampling: SamplingParams, finished: Finished | None = None
    ) -> list[Trajectory]:
        """Sample one trajectory per request, with the prompt that the server reports."""
        begun, rollouts = self._loaded, dict[int, Trajectory]()
        members = list(enumerate(requests))
        groups = [list(group) for _, group in groupby(members, lambda one: (one[1].prompt_ids, one[1].max_tokens))]
        if self.server.backend == "vllm" and sampling.greedy:  # it refuses n > 1 then
            groups = [[member] for member in members]

        def end(number: int, answer: Any) -> None:
            group = groups[number]
            with self._readable("ids and logprobs of its tokens"):
                ordered = sorted(answer["choices"], key=lambda choice: choice["index"])
                choices = [_read(choice, sampling.keeps_ids) for choice in ordered]
                assert len(choices) == len(group), f"{len(choices)} completions of {len(group)}"
            for (index, request), (prompt_ids, completion, versions) in zip(group, choices, strict=True):
                versions = versions or [begun.version] * len(completion.token_ids)
                asked = replace(request, prompt_ids=prompt_ids)
                rollouts[index] = trajectory(asked, completion, versions, self.renderer, sampling.stop_strings)
                if finished is not None:
                    finished(index, rollouts[index])

        asyncio.run(
            self._ask([self._body([request for _, request in group], sampling) for group in groups], begun, end)
        )
        return [rollouts[index] for index in range(len(requests))]

    def load(self, version: int, path: Path | None = None) -> None:
        """Have the server take the weights in `path`, or the trainer's."""
        if path is None:
            assert self.spool is not None, "there is no model here to take the weights of"
            path = self.spool.put(version)
        folder = str(path.resolve())
        # First: tokens of it may come before the answer. The weights that the server began with do not count any more.
        self._given = {v: given for v, given in self._given.items() if given} | {version: folder}

        async def update() -> Served | None:
            async with ServerClient(self.server.endpoint) as client:
                await client.post("/update_weights", {"path": folder, "version": version})
                return await self._served(client)

        served = asyncio.run(update())
        self._loaded = _Loaded(version, folder, served and served.instance)

    def score(self, sequences: Sequence[Sequence[int]], temperature: float) -> list[list[float]]:
        """Return the server's logprobs; NaN where it can't compute them: vLLM does so at temperature 1 only."""
        if self.server.backend == "vllm" and temperature != 1:
            return [[float("nan")] * (len(ids) - 1) for ids in sequences]
        (answer,) = asyncio.run(self._ask([self.server.scoring(sequences, temperature)], self._loaded))
        with self._readable("logprobs of the prompt"):
            return scores(answer, sequences)

    async def _ask(
        self,
        bodies: Sequence[dict[str, Any]],
        begun: _Loaded,
        heard: Callable[[int, Any], None] = lambda number, answer: None,
    ) -> list[Any]:
        """Return the answers, if the server had weights given from here, also after the last answer.

        `begun`: what it had been given when the call began. `heard` gets each answer as it comes, and its number.
        """
        endpoint = replace(self.server.endpoint, concurrency=min(len(bodies), CONNECTIONS))
        async with ServerClient(endpoint) as client:
            posts = (self._post(client, body, begun, partial(heard, number)) for number, body in enumerate(bodies))
            answers = await asyncio.gather(*posts)
            self._check_server(await self._served(client), begun)
            return answers

    async def _post(
        self, client: ServerClient, body: dict[str, Any], begun: _Loaded, heard: Callable[[Any], None]
    ) -> Any:
        """Return the answer; raise an error in its tokens before the other answers have come."""
        answer = await client.post("/v1/completions", body)
        with self._readable("versions of its tokens"):
            versions = {v for choice in answer["choices"] for v in choice.get("policy_versions") or ()}
        for version in versions:
            if version not in self._given:
                self._check_server(await self._served(client), begun)
                raise Halt(
                    f"{self.server.name} sampled from version {version} of the weights, which this run did not "
                    "give it: another run uses it"
                )
        heard(answer)
        return answer

    async def _served(self, client: ServerClient) -> Served | None:
        return next((entry for entry in await client.models() if entry.id == self.server.model), None)

    def _check_server(self, served: Served | None, begun: _Loaded) -> None:
        restarted = served is not None and (served.policy_path is None or served.instance != begun.instance)
        if begun.path is not None and restarted:
            raise Halt(f"{self.server.name} was started anew, and has not been given the weights")
        if served is None or served.policy_path not in self._given.values():
            version, path = (None, None) if served is None else (served.policy_version, served.policy_path)
            raise Halt(
                f"{self.server.name} samples from version {version} of the weights ({path}), not {begun.version} "
                f"({begun.path}): another run uses it"
            )

    def _body(self, group: Sequence[Request], sampling: SamplingParams) -> dict[str, Any]:
        first, ends = group[0], () if sampling.ignore_eos else self._ends
        body = {
            "model": self.server.model,
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
        hones = self.server.backend == "hone"
        return body | ({"key": [request.key for request in group]} if hones else {"seed": first.key >> 33})

    @contextmanager
    def _readable(self, what: str) -> Iterator[None]:
        """Halt if an answer lacks `what`, or has it in another form."""
        try:
            yield
        except (KeyError, IndexError, TypeError, ValueError, AssertionError) as error:
            raise Halt(
                f"{self.server.name} gave an answer without the {what} ({type(error).__name__}: {error})"
            ) from error


def _read(choice: dict[str, Any], with_kept: bool) -> tuple[tuple[int, ...], Completion, list[int] | None]:
    """Read a choice: the prompt's ids, the completion, and its tokens' versions, if the server knows them."""
    kept = Kept.of(choice["kept_ids"]) if with_kept else None
    completion = Completion(choice["token_ids"], choice["logprobs"]["token_logprobs"], choice["finish_reason"], kept)
    assert completion.stop_reason in ("stop", "length"), f"it ended by {completion.stop_reason}"
    return tuple(choice["prompt_token_ids"]), completion, choice.get("policy_versions")
