"""The servers of a run: which gets a request, which weights each has, and what happens when one is lost.

    fleet = Fleet([server, other])
    fleet.load(1, folder)
    answers = fleet.ask(bodies)

A request goes to the server with the fewest tokens left to sample. One of several that is gone is left out; its
requests go to the others, under the same ids and keys. It is looked for again at every call, and given the weights
before it samples. Where there is but one, its loss ends the run, or the process, which the launcher starts again.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hone.errors import Halt
from hone.inference.client import Gone, Served, ServerClient
from hone.orchestrator.reach import Server

CONNECTIONS = 256
"""Most requests that a server has at once; each is a group, and an open file."""
LOOK = 0.5
"""Seconds between two looks for a server, when none is there."""
Heard = Callable[[int, Any, int], None]
"""Gets an answer as it comes: the number of its request, itself, and the version that its server had at the call."""


@dataclass(frozen=True)
class Loaded:
    """The weights a server last got: a version, from a folder; `instance` names the process that took it."""

    version: int = 0
    path: str | None = None
    instance: str | None = None


@dataclass(eq=False)
class Member:
    """One of the servers. `tokens` have been asked of it and not sampled yet; `lost` is why it is left out."""

    server: Server
    loaded: Loaded = Loaded()
    tokens: int = 0
    lost: Gone | None = None


class Fleet:
    """All servers, of one backend. Another thread may call `load` while `ask` is at work.

    `changes` are the losses and returns that nobody has taken note of yet. Raises Halt when all are gone for as long as
    a request may take, or when one samples from weights that this run did not give it.
    """

    def __init__(self, servers: Sequence[Server], say: Callable[[str], None] = print) -> None:
        self.members = [Member(server) for server in servers]
        self.say = say
        self.latest = Loaded()
        self.changes: list[dict[str, Any]] = []
        self._given: Mapping[int, str | None] = {0: None}
        self._giving = threading.Lock()

    @property
    def alone(self) -> bool:
        return len(self.members) == 1

    @property
    def backend(self) -> str:
        return self.members[0].server.backend

    def load(self, version: int, path: Path) -> None:
        """Have all servers take the weights in `path`."""
        folder = str(path.resolve())
        # First: tokens of it may come before the answer. The weights that a server began with do not count any more.
        self._given = {v: given for v, given in self._given.items() if given} | {version: folder}
        with self._giving:
            self.latest = Loaded(version, folder)
            asyncio.run(self._load())

    def ask(self, bodies: Sequence[dict[str, Any]], heard: Heard = lambda number, answer, version: None) -> list[Any]:
        """Return the answers, if their servers had weights given from here, also after the last answer."""
        return asyncio.run(_Call(self, len(bodies)).answers(bodies, heard))

    def ask_each(self, body: dict[str, Any]) -> list[Any]:
        """Return the answer of each server that is there."""
        return asyncio.run(_Call(self, 1).answers_of_each(body))

    def lose(self, member: Member, gone: Gone) -> None:
        """Leave a server out. Raises `gone` if it is the only one."""
        if self.alone:
            raise gone
        if member.lost is None:
            self.say(f"{member.server.name} is lost ({gone}): the others do what it had to")
            self.changes.append({"server": member.server.endpoint.url, "change": "lost", "cause": str(gone)})
        member.lost = gone

    async def give(self, member: Member, client: ServerClient) -> None:
        """Give a server the latest weights; one that was left out samples from then on."""
        await client.post("/update_weights", {"path": self.latest.path, "version": self.latest.version})
        served = await served_by(member, client)
        member.loaded = replace(self.latest, instance=served and served.instance)
        if member.lost is not None:
            member.lost = None
            self.say(f"{member.server.name} is back, and has version {self.latest.version} of the weights")
            self.changes.append({"server": member.server.endpoint.url, "change": "back"})

    def check(self, member: Member, served: Served | None, begun: Loaded) -> None:
        """Raise Halt unless a server has weights from here, and is the process that had them when a call began."""
        name = member.server.name
        if begun.path is not None and _is_new(served, begun):
            raise Halt(f"{name} was started anew, and has not been given the weights")
        if served is None or served.policy_path not in self._given.values():
            version, path = (None, None) if served is None else (served.policy_version, served.policy_path)
            raise Halt(
                f"{name} samples from version {version} of the weights ({path}), not {begun.version} ({begun.path}): "
                "another run uses it"
            )

    def gave(self, version: int) -> bool:
        """Return True if `version` of the weights is from here."""
        return version in self._given

    async def _load(self) -> None:
        async def load(member: Member) -> None:
            async with ServerClient(member.server.endpoint) as client:
                await self.give(member, client)

        there = [member for member in self.members if member.lost is None]
        ended = await asyncio.gather(*map(load, there), return_exceptions=True)
        for member, error in zip(there, ended, strict=True):
            if isinstance(error, Gone):
                self.lose(member, error)
            elif error is not None:
                raise error


class _Call:
    """One call of `ask`: its connections, and what each server had been given when it began."""

    def __init__(self, fleet: Fleet, requests: int) -> None:
        self.fleet, self.requests = fleet, requests
        self.begun: dict[Member, Loaded] = {}
        self.clients: dict[Member, ServerClient] = {}
        self._looking = asyncio.Lock()

    async def answers(self, bodies: Sequence[dict[str, Any]], heard: Heard) -> list[Any]:
        async with AsyncExitStack() as stack:
            await self._begin(stack)
            answers = await asyncio.gather(*(self._answer(n, body, heard) for n, body in enumerate(bodies)))
            for member, begun in self.begun.items():
                if member.lost is None:
                    self.fleet.check(member, await served_by(member, self.clients[member]), begun)
            return answers

    async def answers_of_each(self, body: dict[str, Any]) -> list[Any]:
        async with AsyncExitStack() as stack:
            await self._begin(stack)
            answers = []
            for member in [member for member in self.fleet.members if member.lost is None]:
                try:
                    answers.append(await self._post(member, body))
                    self.fleet.check(member, await served_by(member, self.clients[member]), self.begun[member])
                except Gone as gone:
                    self.fleet.lose(member, gone)
            return answers

    async def _begin(self, stack: AsyncExitStack) -> None:
        for member in self.fleet.members:
            endpoint = replace(member.server.endpoint, concurrency=min(self.requests, CONNECTIONS))
            # Of several, the others are the next try.
            endpoint = endpoint if self.fleet.alone else replace(endpoint, max_retries=0)
            self.clients[member] = await stack.enter_async_context(ServerClient(endpoint))
        if not self.fleet.alone and self.fleet.latest.path is not None:
            await asyncio.gather(*map(self._look_at, self.fleet.members))
        self.begun = {member: member.loaded for member in self.fleet.members if member.lost is None}

    async def _look_at(self, member: Member) -> None:
        """See whether a server is there, and give it the weights if it is another process than had them."""
        client = self.clients[member]
        try:
            served = await served_by(member, client)
            if member.lost is not None or _is_new(served, member.loaded):
                await asyncio.to_thread(self.fleet._giving.acquire)
                try:
                    await self.fleet.give(member, client)
                finally:
                    self.fleet._giving.release()
                self.begun[member] = member.loaded
        except Gone as gone:
            self.fleet.lose(member, gone)

    async def _answer(self, number: int, body: dict[str, Any], heard: Heard) -> Any:
        """Return one server's answer, of as many as are lost meanwhile."""
        tokens = body["max_tokens"] * body.get("n", 1)
        while True:
            member = await self._least_loaded()
            member.tokens += tokens
            try:
                answer = await self._post(member, body)
            except Gone as gone:
                self.fleet.lose(member, gone)
                continue
            finally:
                member.tokens -= tokens
            heard(number, answer, self.begun[member].version)
            return answer

    async def _least_loaded(self) -> Member:
        """Return the server with the fewest tokens to sample; if all are lost, the first that comes back."""
        members, began = self.fleet.members, time.monotonic()
        while not (there := [member for member in members if member.lost is None]):
            lost = members[0].lost
            if lost is not None and time.monotonic() - began > members[0].server.endpoint.timeout:
                raise lost
            async with self._looking:
                if all(member.lost for member in members):
                    await asyncio.sleep(LOOK)
                    await asyncio.gather(*map(self._look_at, members))
        return min(there, key=lambda member: member.tokens)

    async def _post(self, member: Member, body: dict[str, Any]) -> Any:
        """Return a server's answer; raise an error in its tokens before the other answers have come."""
        client = self.clients[member]
        answer = await client.post("/v1/completions", body)
        with readable(member.server, "versions of its tokens"):
            versions = {v for choice in answer["choices"] for v in choice.get("policy_versions") or ()}
        for version in versions:
            if not self.fleet.gave(version):
                self.fleet.check(member, await served_by(member, client), self.begun[member])
                raise Halt(
                    f"{member.server.name} sampled from version {version} of the weights, which this run did not give "
                    "it: another run uses it"
                )
        return answer


async def served_by(member: Member, client: ServerClient) -> Served | None:
    """Return what a server says of the model that it is to serve."""
    return next((entry for entry in await client.models() if entry.id == member.server.model), None)


def _is_new(served: Served | None, loaded: Loaded) -> bool:
    return served is not None and (served.policy_path is None or served.instance != loaded.instance)


@contextmanager
def readable(server: Server, what: str) -> Iterator[None]:
    """Halt if an answer lacks `what`, or has it in another form."""
    try:
        yield
    except (KeyError, IndexError, TypeError, ValueError, AssertionError) as error:
        raise Halt(f"{server.name} gave an answer without the {what} ({type(error).__name__}: {error})") from error
