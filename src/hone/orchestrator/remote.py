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
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from hone.errors import Halt
from hone.inference.client import Gone, Served, ServerClient
from hone.inference.types import Completion, SamplingParams
from hone.model.chat import ChatRenderer
from hone.orchestrator.colocated import trajectory
from hone.orchestrator.reach import Server, wait_for_server
from hone.orchestrator.types import Request
from hone.trainer.export import Spool
from hone.types import Trajectory

CONNECTIONS = 256
"""Most requests that a server has at once; each is a group, and an open file."""
AT_ONCE, TOKENS_AT_ONCE = 256, 2**15
"""Most completions, and tokens of them, that one request asks hone's server for, if they are not of one group."""

T = TypeVar("T")


class Restarted(Halt):
    """The server is not the process that was given the weights: it was started anew, and has to be given them again."""


@dataclass(frozen=True)
class _Loaded:
    """What a server was given last: a version, from a folder; `instance` names the process that took it."""

    version: int = 0
    path: str | None = None
    instance: str | None = None


class ServerPolicy:
    """Samples from a server. `load` has the server take weights from a folder; without one, those of `spool`'s model.

    Another thread may call `load` while `sample` is at work: a token may then be of any version that was loaded; which
    are too old is the caller's to say. Where the server does not name it (vLLM), all tokens of a call count as of the
    version at its beginning, the oldest that they can be. `eos_ids` end a completion, as the stop ids of `renderer` do.
    Raises Gone when the server is gone, Restarted when it was started anew, and Halt when it samples from weights that
    it was not given from here.
    """

    def __init__(
        self, server: Server, renderer: ChatRenderer, eos_ids: Sequence[int], spool: Spool | None = None
    ) -> None:
        self.server, self.renderer, self.spool = server, renderer, spool
        self.idle_seconds: float | None = None
        """How long the server has had nothing to sample since it started, as of its last answer; None if unknown."""
        self._ends = (*renderer.stop_ids, *eos_ids)
        self._loaded = _Loaded()
        self._given: Mapping[int, str | None] = {0: None}

    @property
    def version(self) -> int:
        return self._loaded.version

    def sample(self, requests: Sequence[Request], sampling: SamplingParams) -> list[Trajectory]:
        """One trajectory per request, with the prompt that the server answers it had."""
        begun = self._loaded
        alone = self.server.backend == "vllm" and sampling.greedy  # it refuses n > 1 then
        groups = list(_groups(requests, 1 if alone else len(requests)))
        calls = list(_together(groups)) if self.server.backend == "hone" else [[group] for group in groups]
        answers = asyncio.run(self._ask([self._body(call, sampling) for call in calls], begun))
        return [
            trajectory
            for call, answer in zip(calls, answers, strict=True)
            for trajectory in self._trajectories([request for group in call for request in group], answer, begun)
        ]

    def load(self, version: int, path: Path | None = None) -> None:
        """Have the server take the weights in `path`, or the trainer's."""
        if path is None:
            assert self.spool is not None, "there is no model here to take the weights of"
            path = self.spool.put(version)
        self._loaded = asyncio.run(self._update(version, str(path.resolve())))

    async def _update(self, version: int, folder: str) -> _Loaded:
        # First: tokens of it may come before the answer. The weights that the server began with do not count any more.
        self._given = {v: path for v, path in self._given.items() if path} | {version: folder}
        async with ServerClient(self.server.endpoint) as client:
            await client.post("/update_weights", {"path": folder, "version": version})
            served = await self._served(client)
        return _Loaded(version, folder, served and served.instance)

    def score(self, sequences: Sequence[Sequence[int]], temperature: float) -> list[list[float]]:
        """The sampler's logprobs; NaN where the server can't tell: vLLM's are of temperature 1, whatever is asked."""
        vllm = self.server.backend == "vllm"
        if vllm and temperature != 1:
            return [[float("nan")] * (len(ids) - 1) for ids in sequences]
        prompts = [list(ids) for ids in sequences]
        body = {"model": self.server.model, "prompt": prompts, "max_tokens": 1 if vllm else 0}
        body |= {"temperature": temperature, "prompt_logprobs": 0}
        (answer,) = asyncio.run(self._ask([body], self._loaded))
        with self._readable("logprobs of the prompt"):
            entries = [choice["prompt_logprobs"][1:] for choice in answer["choices"]]
            return [
                [float(entry[str(token)]["logprob"]) for token, entry in zip(ids[1:], row, strict=True)]
                for ids, row in zip(sequences, entries, strict=True)
            ]

    async def _ask(self, bodies: Sequence[dict[str, Any]], begun: _Loaded) -> list[Any]:
        """Return the answers, if the server has weights that it was given from here, also after the last of them.

        `begun`: what it had been given when the call began.
        """
        endpoint = replace(self.server.endpoint, concurrency=min(len(bodies), CONNECTIONS))
        async with ServerClient(endpoint) as client:
            answers = await asyncio.gather(*(self._post(client, body, begun) for body in bodies))
            self._check_server(await self._served(client), begun)
            return answers

    async def _post(self, client: ServerClient, body: dict[str, Any], begun: _Loaded) -> Any:
        """Return the answer; what is wrong with its tokens is raised before the other answers have come."""
        answer = await client.post("/v1/completions", body)
        with self._readable("versions of its tokens"):
            versions = {v for choice in answer["choices"] for v in choice.get("policy_versions") or ()}
        for version in versions:
            if version not in self._given:
                self._check_server(await self._served(client), begun)
                raise Halt(
                    f"{self.server.words} sampled from version {version} of the weights, which it was not given from "
                    "here: another run uses it"
                )
        return answer

    async def _served(self, client: ServerClient) -> Served | None:
        served = next((entry for entry in await client.models() if entry.id == self.server.model), None)
        self.idle_seconds = served and served.idle_seconds
        return served

    def _check_server(self, served: Served | None, begun: _Loaded) -> None:
        restarted = served is not None and (served.policy_path is None or served.instance != begun.instance)
        if begun.path is not None and restarted:
            raise Restarted(f"{self.server.words} was started anew, and has not been given the weights")
        if served is None or served.policy_path not in self._given.values():
            version, path = (None, None) if served is None else (served.policy_version, served.policy_path)
            raise Halt(
                f"{self.server.words} samples from version {version} of the weights ({path}), not {begun.version} "
                f"({begun.path}): another run uses it"
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
            # All that ends a completion is named, so that it does not depend on the server's own view of the model.
            "ignore_eos": True,
            "stop_token_ids": sorted({*ends, *(stop for stop in sampling.stop if isinstance(stop, int))}),
            "stop": [stop for stop in sampling.stop if isinstance(stop, str)],
        }
        hones = self.server.backend == "hone"
        return body | ({"key": [r.key for group in groups for r in group]} if hones else {"seed": first.key >> 33})

    def _trajectories(self, requests: Sequence[Request], answer: Any, begun: _Loaded) -> Iterator[Trajectory]:
        with self._readable("ids and logprobs of its tokens"):
            choices = [_read(choice) for choice in sorted(answer["choices"], key=lambda choice: choice["index"])]
            assert len(choices) == len(requests), f"{len(choices)} completions of {len(requests)}"
        for request, (prompt_ids, completion, versions) in zip(requests, choices, strict=True):
            versions = versions or [begun.version] * len(completion.token_ids)
            yield trajectory(replace(request, prompt_ids=prompt_ids), completion, versions, self.renderer)

    @contextmanager
    def _readable(self, what: str) -> Iterator[None]:
        """Halt if an answer lacks `what`, or has it in another form."""
        try:
            yield
        except (KeyError, IndexError, TypeError, ValueError, AssertionError) as error:
            raise Halt(
                f"{self.server.words} gave an answer without the {what} ({type(error).__name__}: {error})"
            ) from error


def _read(choice: dict[str, Any]) -> tuple[tuple[int, ...], Completion, list[int] | None]:
    """Read a choice: the prompt's ids, the completion, and its tokens' versions, if the server knows them."""
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


class SteadyPolicy:
    """The policy of a server that may die and come back, up to `most` times. Any thread may call it.

    `patience` is how many seconds it may be away; `say` is called with a sentence when it is gone, `returned` with its
    reason when it is back, with the weights that it was given last. Halt if it does not come back.
    """

    def __init__(
        self,
        policy: ServerPolicy,
        most: int,
        patience: float,
        say: Callable[[str], None],
        returned: Callable[[str], None],
    ) -> None:
        self.policy, self.most, self.patience = policy, most, patience
        self._say, self._returned = say, returned
        self._newest: tuple[int, Path] | None = None
        self._lock = threading.Lock()
        """Held while the server is given weights, or waited for: older ones never come after newer ones."""
        self._losses = 0
        self._left = False

    @property
    def version(self) -> int:
        return self.policy.version

    def sample(self, requests: Sequence[Request], sampling: SamplingParams) -> list[Trajectory]:
        return self._steadily(lambda: self.policy.sample(requests, sampling))

    def load(self, version: int, path: Path | None = None) -> None:
        assert path is not None, "the weights are the trainer's, in a folder"
        self._newest = version, path
        self._steadily(self._give)

    def score(self, sequences: Sequence[Sequence[int]], temperature: float) -> list[list[float]]:
        return self._steadily(lambda: self.policy.score(sequences, temperature))

    def leave(self) -> None:
        """Wait for the server no more: whatever finds it gone from now on, or waits for it, fails."""
        self._left = True

    def _give(self) -> None:
        with self._lock:
            if self._newest is not None:
                self.policy.load(*self._newest)

    def _steadily(self, call: Callable[[], T]) -> T:
        while True:
            losses = self._losses
            try:
                return call()
            except (Gone, Restarted) as loss:
                self._recover(str(loss), losses)

    def _recover(self, reason: str, losses: int) -> None:
        """Wait for the server, and give it the weights; once for all threads that found it gone."""

        def check_left() -> None:
            if self._left:
                raise Halt(reason)

        with self._lock:
            if self._losses != losses:
                return
            if losses >= self.most:
                raise Halt(f"{reason}, for the {losses + 1}. time (restarts = {self.most})")
            self._say(f"{reason}: waiting for it")
            wait_for_server(self.policy.server.endpoint, self.patience, self._say, check_left)
            self._losses += 1
            self._returned(reason)
            with suppress(Gone, Restarted):  # again; the call will find that out
                if self._newest is not None:
                    self.policy.load(*self._newest)
