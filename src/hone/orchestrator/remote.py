"""A policy behind a server: hone's own, or vLLM. It samples over HTTP, and takes the trainer's weights from a folder.

    policy = ServerPolicy(reach(endpoint, ...), renderer, eos_ids, spool)
    policy.load(0)

hone's server gets the groups of a step in one request, so that they begin together, unless they are long; and the key
of each completion, so its tokens are those of an engine in this process, up to the rounding of differently shaped
products. vLLM gets a request for each group, with a seed of the first (the key's upper 31 bits), and
seeds the others of the group by counting on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hone.errors import Halt
from hone.inference.client import Served, ServerClient
from hone.inference.types import Completion, SamplingParams
from hone.model.chat import ChatRenderer
from hone.orchestrator.colocated import trajectory
from hone.orchestrator.reach import Server
from hone.orchestrator.types import Request
from hone.trainer.export import Spool
from hone.types import Trajectory

CONNECTIONS = 256
"""Most requests that a server has at once; each is a group, and an open file."""
AT_ONCE, TOKENS_AT_ONCE = 256, 2**15
"""Most completions, and tokens of them, that one request asks hone's server for, if they are not of one group."""


class Restarted(Halt):
    """The server is not the process that was given the weights: it was started anew, and has to be given them again."""


@dataclass(frozen=True)
class _Loaded:
    """What a server was given last: a version, from a folder; `instance` names the process that took it."""

    version: int = 0
    path: str | None = None
    instance: str | None = None


class ServerPolicy:
    """Samples from a server. `load` writes the weights to `spool`, and has the server take them from there.

    `eos_ids` end a completion, as the stop ids of `renderer` do. Halt when the server is gone, or samples from other
    weights than it was given.
    """

    def __init__(
        self, server: Server, renderer: ChatRenderer, eos_ids: Sequence[int], spool: Spool | None = None
    ) -> None:
        self.server = server
        self.renderer = renderer
        self.spool = spool
        self.idle_seconds: float | None = None
        """How long the server has had nothing to sample since it started, as it said last; None if it does not say."""
        self._ends = (*renderer.stop_ids, *eos_ids)
        self._loaded = _Loaded()

    @property
    def version(self) -> int:
        return self._loaded.version

    def sample(self, requests: Sequence[Request], sampling: SamplingParams) -> list[Trajectory]:
        """One trajectory per request, with the prompt that the server says it had."""
        begun = self._loaded
        alone = self.server.backend == "vllm" and sampling.greedy  # it refuses n > 1 then
        groups = list(_groups(requests, 1 if alone else len(requests)))
        asked = list(_together(groups)) if self.server.backend == "hone" else [[group] for group in groups]
        answers = asyncio.run(self._ask([self._body(of_one, sampling) for of_one in asked], begun))
        return [
            trajectory
            for of_one, answer in zip(asked, answers, strict=True)
            for trajectory in self._trajectories([r for group in of_one for r in group], answer, begun)
        ]

    def load(self, version: int, path: Path | None = None) -> None:
        """Has the server take the weights in `path`, or the trainer's."""
        if path is None:
            assert self.spool is not None, "there is no model here to take the weights of"
            path = self.spool.put(version)
        self._loaded = asyncio.run(self._update(version, str(path.resolve())))

    async def _update(self, version: int, folder: str) -> _Loaded:
        async with ServerClient(self.server.endpoint) as client:
            await client.post("/update_weights", {"path": folder, "version": version})
            found = await self._served(client)
        return _Loaded(version, folder, found and found.instance)

    def score(self, sequences: Sequence[Sequence[int]], temperature: float) -> list[list[float]]:
        """The sampler's logprobs; NaN where the server can't tell: vLLM's are of temperature 1, whatever is asked."""
        if self.server.backend == "vllm" and temperature != 1:
            return [[float("nan")] * (len(ids) - 1) for ids in sequences]
        body = {
            "model": self.server.model,
            "prompt": [list(ids) for ids in sequences],
            "max_tokens": 1 if self.server.backend == "vllm" else 0,
            "temperature": temperature,
            "prompt_logprobs": 0,
        }
        (answer,) = asyncio.run(self._ask([body], self._loaded))
        with self._readable("logprobs of the prompt"):
            entries = [choice["prompt_logprobs"][1:] for choice in answer["choices"]]
            return [
                [float(entry[str(token)]["logprob"]) for token, entry in zip(ids[1:], of_ids, strict=True)]
                for ids, of_ids in zip(sequences, entries, strict=True)
            ]

    async def _ask(self, bodies: Sequence[dict[str, Any]], begun: _Loaded) -> list[Any]:
        """The answers; Halt unless the server says that its weights are those that it was given.

        `begun`: what it had been given when the call began.
        """
        endpoint = replace(self.server.endpoint, concurrency=min(len(bodies), CONNECTIONS))
        async with ServerClient(endpoint) as client:
            answers = await asyncio.gather(*(self._post(client, body, begun) for body in bodies))
            # After the answers: no other weights can have come in between, for only `load` brings ours back.
            self._check_server(await self._served(client), begun)
        return answers

    async def _post(self, client: ServerClient, body: dict[str, Any], begun: _Loaded) -> Any:
        return await client.post("/v1/completions", body)

    async def _served(self, client: ServerClient) -> Served | None:
        found = next((entry for entry in await client.models() if entry.id == self.server.model), None)
        self.idle_seconds = found and found.idle_seconds
        return found

    def _check_server(self, found: Served | None, begun: _Loaded) -> None:
        self._check_weights(found and found.policy_version, found and found.policy_path, begun)

    def _check_weights(self, version: int | None, path: str | None, begun: _Loaded) -> None:
        if (version, path) != (begun.version, begun.path):
            raise Halt(f"{self._other_weights(version, path, begun)}: it was started anew, or another run uses it")

    def _other_weights(self, version: int | None, path: str | None, begun: _Loaded) -> str:
        first = "those that it began with"
        return (
            f"{self.server.words} samples from version {version} of the weights ({path or first}), not "
            f"{begun.version} ({begun.path or first})"
        )

    def _body(self, groups: Sequence[Sequence[Request]], sampling: SamplingParams) -> dict[str, Any]:
        first = groups[0][0]
        prompts = [list(group[0].prompt_ids) for group in groups]
        ends = () if sampling.ignore_eos else self._ends
        body = {
            "model": self.server.model,
            "prompt": prompts if len(groups) > 1 else prompts[0],
            "n": len(groups[0]),
            "max_tokens": first.max_tokens,
            "temperature": 0.0 if sampling.greedy else sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "min_p": sampling.min_p,
            "logprobs": 0,
            "return_token_ids": True,
            # All that ends a completion is named, so that it does not depend on the server's own opinion of the model.
            "ignore_eos": True,
            "stop_token_ids": sorted({*ends, *(stop for stop in sampling.stop if isinstance(stop, int))}),
            "stop": [stop for stop in sampling.stop if isinstance(stop, str)],
        }
        hones = self.server.backend == "hone"
        return body | ({"key": [r.key for group in groups for r in group]} if hones else {"seed": first.key >> 33})

    def _trajectories(self, requests: Sequence[Request], answer: Any, begun: _Loaded) -> Iterator[Trajectory]:
        with self._readable("ids and logprobs of its tokens"):
            told = [_told(choice) for choice in sorted(answer["choices"], key=lambda choice: choice["index"])]
            assert len(told) == len(requests), f"{len(told)} completions of {len(requests)}"
        for request, (prompt_ids, completion, versions) in zip(requests, told, strict=True):
            versions = versions or [begun.version] * len(completion.token_ids)
            self._check_tokens(versions, begun)
            yield trajectory(replace(request, prompt_ids=prompt_ids), completion, versions, self.renderer)

    def _check_tokens(self, versions: Sequence[int], begun: _Loaded) -> None:
        self._check_weights(next((v for v in versions if v != begun.version), begun.version), begun.path, begun)

    @contextmanager
    def _readable(self, what: str) -> Iterator[None]:
        """Halt if an answer lacks `what`, or has it in another form."""
        try:
            yield
        except (KeyError, IndexError, TypeError, ValueError, AssertionError) as error:
            raise Halt(
                f"{self.server.words} gave an answer without the {what} ({type(error).__name__}: {error})"
            ) from error


class UpdatingPolicy(ServerPolicy):
    """Samples while the weights change: another thread may call `load` while `sample` is at work.

    A token may be of any version that was loaded; which are too old is the caller's to say. A server that does not tell
    (vLLM) leaves it open which: all tokens of a call then count as of the version at its beginning, the oldest that
    they can be. Nothing of a call is of use that met a server which was started anew (Restarted), or none (Gone): load
    the weights again, and sample again.
    """

    def __init__(self, server: Server, renderer: ChatRenderer, eos_ids: Sequence[int]) -> None:
        super().__init__(server, renderer, eos_ids)
        self._given: dict[int, str] = {}

    async def _update(self, version: int, folder: str) -> _Loaded:
        self._given = self._given | {version: folder}  # first: its tokens may come before the server's word
        return await super()._update(version, folder)

    async def _post(self, client: ServerClient, body: dict[str, Any], begun: _Loaded) -> Any:
        """The answer; what is wrong with its tokens is known before the other answers have come."""
        answer = await super()._post(client, body, begun)
        with self._readable("versions of its tokens"):
            versions = [v for choice in answer["choices"] for v in choice.get("policy_versions") or ()]
        if any(v not in self._given for v in versions):
            self._check_server(await self._served(client), begun)
            self._check_tokens(versions, begun)
        return answer

    def _check_server(self, found: Served | None, begun: _Loaded) -> None:
        if found is not None and (found.policy_path is None or found.instance != begun.instance):
            raise Restarted(f"{self.server.words} was started anew, and has not been given the weights")
        if found is None or found.policy_path not in self._given.values():
            told = (None, None) if found is None else (found.policy_version, found.policy_path)
            raise Halt(f"{self._other_weights(*told, begun)}: another run uses it")

    def _check_tokens(self, versions: Sequence[int], begun: _Loaded) -> None:
        for version in versions:
            if version not in self._given:
                raise Halt(
                    f"{self.server.words} sampled from version {version} of the weights, which it was not given from "
                    "here: another run uses it"
                )


def _told(choice: dict[str, Any]) -> tuple[tuple[int, ...], Completion, list[int] | None]:
    """What a choice says: the prompt's ids, the completion, and its tokens' versions, if the server knows them."""
    completion = Completion(choice["token_ids"], choice["logprobs"]["token_logprobs"], choice["finish_reason"])
    assert completion.stop_reason in ("stop", "length"), f"it ended by {completion.stop_reason}"
    return tuple(choice["prompt_token_ids"]), completion, choice.get("policy_versions")


def _groups(requests: Sequence[Request], most: int) -> Iterator[list[Request]]:
    """Neighbours that ask for the same, at most `most` at a time."""
    group: list[Request] = []
    for request in requests:
        same = group and (group[0].prompt_ids, group[0].max_tokens) == (request.prompt_ids, request.max_tokens)
        if group and (not same or len(group) == most):
            yield group
            group = []
        group.append(request)
    if group:
        yield group


def _together(groups: Sequence[list[Request]]) -> Iterator[list[list[Request]]]:
    """Neighbours that one request can ask for: of one size and one limit, and not too much of it."""
    several: list[list[Request]] = []
    for group in groups:
        size, limit = len(group), group[0].max_tokens
        same = several and (len(several[0]), several[0][0].max_tokens) == (size, limit)
        total = (len(several) + 1) * size
        if several and not (same and total <= AT_ONCE and total * limit <= TOKENS_AT_ONCE):
            yield several
            several = []
        several.append(group)
    if several:
        yield several
