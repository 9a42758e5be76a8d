"""Rewards that a service gives: a language model that judges, or any server that answers with a number.

    helpful = hone.Judge("qwen3-8b", "Rate this answer to {prompt} from 0 to 1: {completion}", "http://localhost:8000/v1")
    checked = hone.HTTPReward("http://localhost:9000/score")

    hone.rl(reward_funcs=[correct, helpful], ...)         or a line of a task file:  Rubric([correct, helpful])

A reply is asked for once and recorded, by what was asked, in the run's `judgements.jsonl`, with its tokens: the same
completion gets the same reward ever after, and `regrade` and `verify` need no network. A service that does not answer,
or not with a number, makes the sample a `grader_error`, never a reward of 0.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import math
import os
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import IO, Any, ClassVar, Literal
from weakref import WeakKeyDictionary, WeakValueDictionary

from hone.environments.numbers import LastNumberParser, read_number
from hone.environments.parsers import completion_text
from hone.errors import UserError
from hone.runs.outputs import JUDGEMENTS
from hone.types import content_hash

VARIABLE = "HONE_JUDGEMENTS"
"""Names the file of this run's replies to all processes that grade, behind a mode and a colon; see `record_in`."""
_FIELDS = re.compile(r"\{(prompt|completion|answer)\}")


def last_number(text: str) -> float | None:
    """Return the last number in a text; None if it has none, or it may mean two things."""
    found = LastNumberParser().parse(text)
    number = None if found is None else read_number(found)
    return None if number is None else float(number)


class Service:
    """A reward function that asks a service: async, and inline, for it only waits."""

    name: str
    timeout: float
    concurrency: int
    inline = True

    def __post_init__(self) -> None:
        if not self.name.isidentifier():
            raise UserError(f"{self.name!r} is no name for a reward: take letters, digits and _")
        self.__name__, self._gate = self.name, _Gate(self.concurrency)

    @property
    def patience(self) -> float:
        """Seconds that grading has to wait for it: a try that hangs, and one that is answered late."""
        return 2 * self.timeout

    @property
    def source(self) -> str:
        """The Python that makes it again, where `hone` is imported."""
        given = (one for one in fields(self) if getattr(self, one.name) != one.default)  # type: ignore[arg-type]
        return f"hone.{type(self).__name__}({', '.join(f'{one.name}={getattr(self, one.name)!r}' for one in given)})"


@dataclass(eq=False)
class Judge(Service):
    """A reward by a language model at an OpenAI-compatible URL: the last number of its reply, divided by `out_of`.

    `7`, `7/10` and `7 out of 10` are 7 where `out_of` is 10. A number above `out_of` is no verdict but an error.
    `prompt` is what it is asked, with {prompt}, {completion} and {answer} in it. `read` gets another number out of a
    reply, None for none. The key is in the variable `api_key_env`. `price` is what a million tokens cost, in and out;
    `concurrency` the most requests at a time. It waits `timeout` seconds for a reply and asks `retries` times again,
    all within twice that time: `grading.timeout` is at least so long for its task.
    """

    model: str
    prompt: str
    base_url: str | None = None
    name: str = "judge"
    out_of: float = 1.0
    read: Callable[[str], float | None] = last_number
    api_key_env: str = "OPENAI_API_KEY"
    max_tokens: int = 512
    price: tuple[float, float] = (0.0, 0.0)
    timeout: float = 60.0
    retries: int = 4
    concurrency: int = 32

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.prompt or "completion" not in _FIELDS.findall(self.prompt):
            raise UserError(f"the prompt of judge {self.name!r} has no {{completion}} in it, so it would judge nothing")

    async def __call__(self, state: dict[str, Any]) -> float:
        values = {"prompt": state["prompt"][-1]["content"], "answer": state["answer"]}
        values["completion"] = completion_text(state["completion"])
        text = _FIELDS.sub(lambda match: str(values[match[1]]), self.prompt)
        asked = {"model": self.model, "messages": [{"role": "user", "content": text}], "max_tokens": self.max_tokens}
        place = {"url": self.base_url or os.environ.get("OPENAI_BASE_URL"), **asked}
        reply = await _recorded(self.name, place, lambda: self._ask(asked), self._gate)
        scale = rf"\s*(?:/|\b(?:out\s+)?of\b)\s*{re.escape(f'{self.out_of:g}')}(?![\d.]*\d)"
        number = self.read(re.sub(scale, "", reply["text"], flags=re.IGNORECASE))
        if number is None or not math.isfinite(number):
            raise ValueError(f"{self.name} gave no number: {reply['text'][-200:]!r}")
        if number > self.out_of:
            raise ValueError(f"{self.name} gave {number:g}, which is above {self.out_of:g}: {reply['text'][-200:]!r}")
        return number / self.out_of

    async def _ask(self, asked: dict[str, Any]) -> dict[str, Any]:
        import openai

        key = os.environ.get(self.api_key_env, "none")
        url = self.base_url or os.environ.get("OPENAI_BASE_URL")
        async with openai.AsyncOpenAI(
            api_key=key, base_url=url, max_retries=self.retries, timeout=self.timeout
        ) as client:
            answer = await client.chat.completions.create(**asked, temperature=0.0)
        used = answer.usage
        counts = (used.prompt_tokens, used.completion_tokens) if used else (0, 0)
        cost = sum(count * price / 1e6 for count, price in zip(counts, self.price, strict=True))
        text = answer.choices[0].message.content or ""
        return {"text": text, "tokens_in": counts[0], "tokens_out": counts[1], "cost": cost}


@dataclass(eq=False)
class HTTPReward(Service):
    """A reward by a server: `prompt`, `completion` (messages), `answer` and `info` are posted to `url` as JSON.

    It answers with a number, or with {"reward": number}. It gets `timeout` seconds, and is asked `retries` times again
    where it is down or busy.
    """

    url: str
    name: str = "service"
    timeout: float = 60.0
    retries: int = 4
    concurrency: int = 32

    async def __call__(self, state: dict[str, Any]) -> float:
        asked = {name: state[name] for name in ("prompt", "completion", "answer", "info")}
        reply = (await _recorded(self.name, {"url": self.url, **asked}, lambda: self._ask(asked), self._gate))["reply"]
        number = reply.get("reward") if isinstance(reply, dict) else reply
        if isinstance(number, bool | int | float) and math.isfinite(number):
            return float(number)
        raise ValueError(f"{self.name} gave no number: {json.dumps(reply)[:200]}")

    async def _ask(self, asked: dict[str, Any]) -> dict[str, Any]:
        import httpx

        problem: Exception = RuntimeError(f"{self.url} was not asked")
        async with httpx.AsyncClient(timeout=self.timeout) as client:
            for attempt in range(self.retries + 1):
                try:
                    answer = await client.post(self.url, json=asked)
                    if answer.status_code not in (429, 500, 502, 503, 504):
                        answer.raise_for_status()
                        return {"reply": answer.json()}
                    problem = RuntimeError(f"{self.url} answered with {answer.status_code}")
                except httpx.TransportError as error:
                    problem = RuntimeError(f"{self.url} does not answer ({type(error).__name__})")
                if attempt < self.retries:
                    await asyncio.sleep(min(0.5 * 2**attempt, 8.0))
        raise problem


async def _recorded(name: str, asked: Any, ask: Callable[[], Any], gate: _Gate) -> dict[str, Any]:
    """Return the reply to a question: that in the run's file, else that of the service, which is written there."""
    key, replies = content_hash([name, asked]), Replies.here()
    if (known := replies.find(key)) is not None:
        return known
    if replies.only:
        raise LookupError(f"the run has no reply of {name} to this, and no service is asked while a run is checked")
    async with gate.same(key), gate():
        if (known := replies.find(key)) is None:  # another sample may have asked the same meanwhile
            known = replies.add(key, name, await ask())
    return known


class _Gate:
    """At most so many at a time, in whichever event loop: graders run in one of a thread of their own."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._of_loop: WeakKeyDictionary[Any, asyncio.Semaphore] = WeakKeyDictionary()
        self._same: WeakValueDictionary[Any, asyncio.Lock] = WeakValueDictionary()

    def __call__(self) -> asyncio.Semaphore:
        return self._of_loop.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(self.most))

    def same(self, key: str) -> asyncio.Lock:
        """Return the lock of a question: who asks the same waits for the reply."""
        return self._same.setdefault((id(asyncio.get_running_loop()), key), asyncio.Lock())


class Replies:
    """The replies in a file that several processes write to; in memory alone without a file."""

    _known: ClassVar[dict[str, Replies]] = {}

    def __init__(self, path: Path | None, mode: str = "") -> None:
        self.path, self.writes, self.only = path, mode == "record", mode == "only"
        self._replies: dict[str, dict[str, Any]] = {}
        self._read, self._lock = 0, threading.Lock()

    @classmethod
    def here(cls) -> Replies:
        """Return those of the run that this process grades for."""
        named = os.environ.get(VARIABLE, ":")
        if named not in cls._known:
            mode, _, path = named.partition(":")
            cls._known[named] = cls(Path(path) if path else None, mode)
        return cls._known[named]

    def find(self, key: str) -> dict[str, Any] | None:
        """Return the reply to what has this key."""
        if key not in self._replies and self.path is not None and self.path.is_file():
            with self._lock, open(self.path, "rb") as file:
                self._read_on(file)
        return self._replies.get(key)

    def add(self, key: str, name: str, reply: dict[str, Any]) -> dict[str, Any]:
        """Write a reply down, unless another process has one to this; return the one that counts."""
        line = json.dumps({"key": key, "name": name, **reply}, ensure_ascii=False).encode("utf-8", "replace") + b"\n"
        with self._lock:
            if self.path is not None and self.writes:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                with open(self.path, "ab+") as file:
                    fcntl.flock(file, fcntl.LOCK_EX)
                    self._read_on(file)
                    if key not in self._replies:
                        is_cut = self._read < file.seek(0, os.SEEK_END)  # by a kill
                        file.write(b"\n" * is_cut + line)
            return self._replies.setdefault(key, reply)

    def _read_on(self, file: IO[bytes]) -> None:
        """Read what was written since; what a kill has cut off is passed over."""
        file.seek(self._read)
        for line in file:
            if not line.endswith(b"\n"):
                break
            self._read += len(line)
            if (found := _parsed(line)) is not None:
                self._replies.setdefault(found.pop("key"), found)


def _parsed(line: bytes) -> dict[str, Any] | None:
    """Return what a line of the file holds; None for one that was cut off."""
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) and {"key", "name"} <= found.keys() else None


def record_in(folder: Path | None, mode: Literal["record", "read", "only"] = "record") -> None:
    """Have services' replies recorded in a run's folder, by this process and those that it starts; None: nowhere.

    Mode "read": what is there is used, and what is asked is not written down; "only": nothing else is asked.
    """
    Replies._known.clear()
    os.environ[VARIABLE] = ":" if folder is None else f"{mode}:{folder.absolute() / JUDGEMENTS}"


def usage(folder: Path) -> str | None:
    """Return what the services of a run were asked, in words: replies, tokens, cost; None if nothing."""
    path = folder / JUDGEMENTS
    if not path.is_file():
        return None
    lines = [found for line in path.read_bytes().splitlines() if (found := _parsed(line)) is not None]
    words = f"{len(lines):,} repl{'y' if len(lines) == 1 else 'ies'} of {', '.join(sorted({x['name'] for x in lines}))}"
    tokens = [sum(line.get(name, 0) for line in lines) for name in ("tokens_in", "tokens_out")]
    cost = sum(line.get("cost", 0.0) for line in lines)
    words += f", {tokens[0]:,} tokens in and {tokens[1]:,} out" if any(tokens) else ""
    return words + (f", at a cost of {cost:.3g} by the given prices" if cost else "")
