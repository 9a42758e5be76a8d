"""The servers of a run: chooses a server for each request, tracks the servers' weights, and handles lost servers.

    fleet = Fleet([server, other])
    fleet.load(1, folder)
    answers = fleet.ask(bodies)

A request goes to the server with the fewest tokens left to sample. If one of several servers is lost, the others get
its requests, with the same ids and keys. Every call first checks if lost servers are back, and sends these the weights.
If the only server is lost, the run ends. Under the launcher only this process ends, and the launcher restarts it.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hone.client import ResponseTimeout, ServerUnavailable
from hone.errors import Halt
from hone.inference.client import ServedModel, ServerClient
from hone.loops.reach import Server

CONNECTIONS = 256
"""Maximum concurrent requests to a server. A request samples one group and needs an open file."""
LOOK = 0.5
"""Seconds between checks if a server is back, while all servers are lost."""
PROBE_SECONDS = 3.0
"""Seconds that a lost server has to answer such a check."""
Carry = Callable[[int, Path], None]
"""Called with a server's number and a weights folder: copies the folder to that server, or raises ServerUnavailable."""
OnAnswer = Callable[[int, Any, Server, int], None]
"""Called for each answer with: request's number, answer, server, the oldest version that may have sampled it."""


@dataclass(frozen=True)
class Loaded:
    """The weights that a server loaded last, from the folder `path`. `instance` identifies the server's process."""

    version: int = 0
    path: str | None = None
    instance: str | None = None


@dataclass(eq=False)
class Member:
    """A server. `tokens` are requested, but not sampled yet. `lost` is the error that excludes the server, or None."""

    server: Server
    loaded: Loaded = Loaded()
    tokens: int = 0
    lost: Halt | None = None


class Fleet:
    """The servers of a run, all of one backend. Another thread may call `load` and `ask_each` while `ask` runs.

    `changes` has the losses and returns of servers that are not recorded yet. `carry` copies weights to other machines.
    `absent` has the numbers of servers that are not up yet. Raises Halt if all servers are lost for longer than a
    request's timeout, or if a server samples from weights that this run did not send.
    """

    def __init__(
        self,
        servers: Sequence[Server],
        say: Callable[[str], None] = print,
        carry: Carry = lambda number, path: None,
        absent: Collection[int] = (),
    ) -> None:
        later = Halt("no server is up yet")
        self.members = [Member(server, lost=later if n in absent else None) for n, server in enumerate(servers)]
        self.say, self.carry = say, carry
        self.latest = Loaded()
        self.changes: list[dict[str, Any]] = []
        self.versions: Mapping[int, str | None] = {0: None}
        """Version → the folder that was sent to servers; None for the initial weights."""
        self.update_lock = threading.Lock()
        """Held by a thread while it sends weights."""
        self._changing = threading.Lock()

    @property
    def single(self) -> bool:
        return len(self.members) == 1

    @property
    def backend(self) -> str:
        return self.members[0].server.backend

    @property
    def present(self) -> list[Member]:
        return [member for member in self.members if member.lost is None]

    def load(self, version: int, path: Path) -> None:
        folder = str(path.resolve())
        # First: tokens of it may come before the answer. The weights that a server began with do not count any more.
        self.versions = {v: given for v, given in self.versions.items() if given} | {version: folder}
        with self.update_lock:
            self.latest = Loaded(version, folder)
            asyncio.run(self._load())

    def ask(
        self, bodies: Sequence[dict[str, Any]], on_answer: OnAnswer = lambda number, answer, server, version: None
    ) -> list[Any]:
        """Return the answers in the order of `bodies`. Raises Halt if a server samples from another run's weights."""
        return asyncio.run(_Call(self, len(bodies)).answers(bodies, on_answer))

    def ask_each(self, body: dict[str, Any]) -> list[Any]:
        return asyncio.run(_Call(self, 1).answers_of_each(body))

    def mark_lost(self, member: Member, error: Halt) -> None:
        if self.single:
            raise error
        with self._changing:
            known, member.lost = member.lost, error
            if known is None:
                self.changes.append({"server": member.server.endpoint.url, "change": "lost", "cause": str(error)})
        if known is None:
            self.say(f"{member.server.name} is lost ({error}): its requests go to the others")

    async def send_weights(self, member: Member, client: ServerClient) -> None:
        assert self.latest.path is not None
        await asyncio.to_thread(self.carry, self.members.index(member), Path(self.latest.path))
        await client.post("/update_weights", {"path": self.latest.path, "version": self.latest.version})
        served = await served_by(member, client)
        member.loaded = replace(self.latest, instance=served and served.instance)
        with self._changing:
            known, member.lost = member.lost, None
            if known is not None:
                self.changes.append({"server": member.server.endpoint.url, "change": "back"})
        if known is not None:
            self.say(f"{member.server.name} is back, and has version {self.latest.version} of the weights")

    def check(self, member: Member, served: ServedModel | None, began: Loaded) -> None:
        """Raise Halt unless the server has weights of this run and was not restarted since the call began."""
        name = member.server.name
        if began.path is not None and _is_new(served, began):
            raise Halt(f"{name} was restarted and lacks this run's weights")
        if served is None or served.policy_path not in self.versions.values():
            version, path = (None, None) if served is None else (served.policy_version, served.policy_path)
            raise Halt(
                f"{name} samples from version {version} of the weights ({path}), not {began.version} ({began.path}): "
                "another run uses this server"
            )

    async def _load(self) -> None:
        async def load(member: Member) -> None:
            async with ServerClient(member.server.endpoint) as client:
                await self.send_weights(member, client)

        present = self.present
        ended = await asyncio.gather(*map(load, present), return_exceptions=True)
        for member, error in zip(present, ended, strict=True):
            if isinstance(error, ServerUnavailable | ResponseTimeout):
                self.mark_lost(member, error)
            elif error is not None:
                raise error


class _Call:
    """One call of `ask`: its connections, and the weights that each server had at its first request."""

    def __init__(self, fleet: Fleet, requests: int) -> None:
        self.fleet, self.requests = fleet, requests
        self.began: dict[Member, Loaded] = {}
        self.clients: dict[Member, ServerClient] = {}
        self._looking = asyncio.Lock()

    async def answers(self, bodies: Sequence[dict[str, Any]], on_answer: OnAnswer) -> list[Any]:
        async with AsyncExitStack() as stack:
            await self._connect(stack)
            tasks = [asyncio.create_task(self._answer(n, body, on_answer)) for n, body in enumerate(bodies)]
            try:
                answers = await asyncio.gather(*tasks)
            finally:  # after an error: the others must not take the end of their connections for a loss
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
            for member in self.began:
                await self._check(member)
            return answers

    async def answers_of_each(self, body: dict[str, Any]) -> list[Any]:
        async with AsyncExitStack() as stack:
            await self._connect(stack)
            answers = []
            for member in self.fleet.present:
                try:
                    answers.append(await self._post(member, body))
                except (ServerUnavailable, ResponseTimeout) as error:
                    self.fleet.mark_lost(member, error)
                else:
                    await self._check(member)
            return answers

    async def _connect(self, stack: AsyncExitStack) -> None:
        for member in self.fleet.members:
            endpoint = replace(member.server.endpoint, concurrency=min(self.requests, CONNECTIONS))
            self.clients[member] = await stack.enter_async_context(ServerClient(endpoint))
        if not self.fleet.single and self.fleet.latest.path is not None:
            await asyncio.gather(*map(self._probe, self.fleet.members))

    async def _probe(self, member: Member) -> None:
        """Check that a server answers. If it was lost or restarted, send it the weights."""
        try:
            if member.lost is None:
                served = await served_by(member, self.clients[member])
            else:
                impatient = replace(member.server.endpoint, timeout=PROBE_SECONDS, max_retries=0)
                async with ServerClient(impatient) as client:
                    served = await served_by(member, client)
            if member.lost is None and not _is_new(served, member.loaded):
                return
            while not self.fleet.update_lock.acquire(blocking=False):
                await asyncio.sleep(0.02)
            try:
                await self.fleet.send_weights(member, self.clients[member])
            finally:
                self.fleet.update_lock.release()
        except (ServerUnavailable, ResponseTimeout) as error:
            self.fleet.mark_lost(member, error)

    async def _check(self, member: Member) -> None:
        several, began = not self.fleet.single, self.began[member]
        try:
            served = await served_by(member, self.clients[member])
        except (ServerUnavailable, ResponseTimeout) as error:
            self.fleet.mark_lost(member, error)
            return
        if several and _is_new(served, member.loaded):  # after its answers
            self.fleet.mark_lost(member, ServerUnavailable(f"{member.server.name} was started anew", None))
        else:
            self.fleet.check(member, served, member.loaded if several else began)

    async def _answer(self, number: int, body: dict[str, Any], on_answer: OnAnswer) -> Any:
        tokens, failed = body["max_tokens"] * body.get("n", 1), set[Member]()
        while True:
            member = await self._least_loaded(failed)
            member.tokens += tokens
            try:
                answer = await self._post(member, body)
            except (ServerUnavailable, ResponseTimeout) as error:
                if isinstance(error, ServerUnavailable) and error.status is not None:  # it is there
                    failed.add(member)
                    if failed.issuperset(self.fleet.members):
                        raise
                else:
                    self.fleet.mark_lost(member, error)
                continue
            finally:
                member.tokens -= tokens
            on_answer(number, answer, member.server, self.began[member].version)
            return answer

    async def _least_loaded(self, but: set[Member]) -> Member:
        """Return the server with the fewest tokens left, but none of `but`. If all are lost, wait until one returns."""
        members, started = [member for member in self.fleet.members if member not in but], time.monotonic()
        while not (present := [member for member in members if member.lost is None]):
            lost = members[0].lost
            if lost is not None and time.monotonic() - started > members[0].server.endpoint.timeout:
                raise lost
            async with self._looking:
                if all(member.lost for member in members):
                    await asyncio.sleep(LOOK)
                    await asyncio.gather(*map(self._probe, members))
        return min(present, key=lambda member: member.tokens)

    async def _post(self, member: Member, body: dict[str, Any]) -> Any:
        """Return the answer. Raises ServerUnavailable if one of several servers restarted: it may lack the weights."""
        client, server, loaded = self.clients[member], member.server, member.loaded
        began = self.began.setdefault(member, loaded)
        answer = await client.post("/v1/completions", body | {"model": server.model})
        if not self.fleet.single and loaded.path is not None and _is_new(await served_by(member, client), loaded):
            raise ServerUnavailable(f"{server.name} was started anew", None)
        with readable(server, "versions of its tokens"):
            versions = {v for choice in answer["choices"] for v in choice.get("policy_versions") or ()}
        for version in versions:
            if version not in self.fleet.versions:
                self.fleet.check(member, await served_by(member, client), began)
                raise Halt(
                    f"{server.name} sampled from version {version} of the weights, which this run did not send: "
                    "another run uses this server"
                )
        return answer


async def served_by(member: Member, client: ServerClient) -> ServedModel | None:
    return next((entry for entry in await client.models() if entry.id == member.server.model), None)


def _is_new(served: ServedModel | None, loaded: Loaded) -> bool:
    return served is not None and (served.policy_path is None or served.instance != loaded.instance)


@contextmanager
def readable(server: Server, what: str) -> Iterator[None]:
    """Raise Halt if the block fails to read `what` from a server's answer."""
    try:
        yield
    except (KeyError, IndexError, TypeError, ValueError, AssertionError) as error:
        raise Halt(f"{server.name} gave an answer without the {what} ({type(error).__name__}: {error})") from error
