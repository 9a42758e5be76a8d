"""One request at work: its samples, fed by the engine's thread, and the text that each of them has by now."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from tokenizers import Tokenizer

from hone.inference.server.service import Service
from hone.inference.text import Detokenizer, StopStrings
from hone.inference.types import Job, Token


@dataclass(frozen=True)
class Delta:
    """What one sample has gained: `text` without stop string and end of turn, its tokens, and why it ended, if it did.

    `stop`: the stop string that ended it.
    """

    index: int
    text: str
    tokens: list[Token]
    finish_reason: str | None
    stop: str | None


class Sample:
    """The text of one sample, as its tokens come."""

    def __init__(self, index: int, tokenizer: Tokenizer, stops: Sequence[str]) -> None:
        self.index = index
        self.finished = False
        self._text = Detokenizer(tokenizer)
        self._stops = StopStrings(stops) if stops else None
        self._waiting: list[Token] = []

    def push(self, tokens: list[Token]) -> Delta | None:
        """What can be shown now; None if the tokens only added to what waits, or come after the sample's end."""
        if self._stops is None:
            return self._push(tokens)
        deltas = [delta for token in tokens if (delta := self._push([token]))]
        if not deltas:
            return None
        text, shown = "".join(d.text for d in deltas), [token for d in deltas for token in d.tokens]
        return Delta(self.index, text, shown, deltas[-1].finish_reason, deltas[-1].stop)

    def _push(self, tokens: list[Token]) -> Delta | None:
        if self.finished:
            return None
        self._waiting += tokens
        reason = tokens[-1].stop_reason
        ids = [token.id for token in tokens]
        text = self._text.push(ids[:-1] if reason == "stop" else ids)
        if reason is not None:
            text += self._text.finish()
        found = None
        if self._stops is not None:
            text = self._stops.push(text)
            found = self._stops.found
            if found is not None:
                reason = "stop"
            elif reason is not None:
                text += self._stops.finish()
        self.finished = reason is not None
        if not text and not self.finished:
            return None
        shown, self._waiting = self._waiting, []
        return Delta(self.index, text, shown, reason, found)


class Generation:
    """The samples of one request. Used on the event loop; `close` in the end, whatever happens."""

    def __init__(
        self, service: Service, jobs: Sequence[Job], tokenizer: Tokenizer, stops: Sequence[str], streams: bool
    ) -> None:
        self.service, self.jobs = service, jobs
        self.samples = [Sample(index, tokenizer, stops) for index in range(len(jobs))]
        self.sampled_tokens = 0
        self._arrived: asyncio.Queue[tuple[int, list[Token] | Exception]] = asyncio.Queue()
        self._whole = not streams and not stops

    async def start(self) -> None:
        """Hands the jobs to the engine. Raises its UserError if it does not take them."""
        self._tickets = self.service.submit(self.jobs, self._sink, self._whole)
        await asyncio.wrap_future(self._tickets)

    async def deltas(self) -> AsyncIterator[Delta]:
        """What the samples gain, until all have ended. Raises what the engine raised."""
        unfinished = len(self.samples)
        while unfinished:
            for index, tokens in (await self._next()).items():
                delta = self.samples[index].push(tokens)
                if delta is None:
                    continue
                self.sampled_tokens += len(delta.tokens)
                if delta.finish_reason is not None:
                    unfinished -= 1
                    if delta.stop is not None:
                        self.service.cancel([self._tickets.result()[index]], ended=True)
                yield delta

    async def _next(self) -> dict[int, list[Token]]:
        """The tokens of each sample that have come since: one step's, or several's if this loop is busy."""
        new: dict[int, list[Token]] = {}
        arrived = await self._arrived.get()
        while True:
            index, tokens = arrived
            if isinstance(tokens, Exception):
                raise tokens
            new.setdefault(index, []).extend(tokens)
            if self._arrived.empty():
                return new
            arrived = self._arrived.get_nowait()

    def close(self) -> None:
        """Cancels what still runs, also if the engine is only about to take it."""
        if not all(sample.finished for sample in self.samples):
            self._tickets.add_done_callback(self._cancel)

    def _cancel(self, done) -> None:
        if not done.cancelled() and done.exception() is None:
            self.service.cancel(done.result())

    def _sink(self, index: int, tokens: list[Token] | Exception) -> None:
        self._arrived.put_nowait((index, tokens))
