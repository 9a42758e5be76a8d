"""Rewards by a service: a language model as a judge, or any server that answers with a number.

    helpful = hone.Judge("qwen3-8b", "Rate this answer to {prompt} from 0 to 1: {completion}", "http://localhost:8000/v1")
    checked = hone.HTTPReward("http://localhost:9000/score")

    hone.rl(reward_funcs=[correct, helpful], ...)         or a line of a task file:  Rubric([correct, helpful])

The reply to a question is recorded once, in the run's `judgements.jsonl`, with its token counts. So equal
completions get equal rewards, and `regrade` and `verify` need no network. If a service does not answer with a number
within its bounds, the sample is a `grader_error`; its reward is never 0.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hone.client import Client, Endpoint, RequestRejected, ResponseTimeout, ServerUnavailable
from hone.config.shared import server_url
from hone.environments.numbers import LastNumberParser, read_number
from hone.environments.parsers import completion_text
from hone.environments.services import Service, record_in, recorded  # noqa: F401
from hone.errors import UserError
from hone.redaction import redact
from hone.types import LARGEST_REWARD, content_hash
from hone.web import MIB, TooLarge, shown_url

OPENAI = "https://api.openai.com/v1"
LARGEST_ANSWER = MIB
_FIELDS = re.compile(r"\{(prompt|completion|answer)\}")
_OUT_OF = re.compile(r"\d\W*\b(?:out\s+)?of\s*\Z", re.IGNORECASE)


def last_number(text: str) -> float | None:
    """Return the last number in a text. Return None without a number, or for an unclear one (`4/5`, `4 out of 5`)."""
    found = LastNumberParser().parse(text)
    if found is None or "/" in found or _OUT_OF.search(text.rpartition(found)[0][-100:]):
        return None
    number = read_number(found)
    return None if number is None else float(number)


@dataclass(eq=False)
class Judge(Service):
    """A reward by a language model at an OpenAI-compatible URL: the last number of its reply, divided by `out_of`.

    With `out_of` 10, the replies `7`, `7/10` and `7 out of 10` give 0.7. A number below 0 or above `out_of`, a number
    on another scale (`4/5`), and a reply that was cut off (`finish_reason` is not "stop") are errors.

    `prompt` is a template of the request, with {prompt}, {completion} and {answer}. `read` returns the number in a
    reply, or None. The environment variable `api_key_env` has the API key. `price`: cost per million input and output
    tokens. `concurrency`: most requests at a time.

    A judge waits `timeout` seconds for a reply, and retries up to `retries` times; all tries take at most twice
    `timeout` seconds. A lower `grading.timeout` is raised to that total.
    """

    model: str
    prompt: str
    base_url: str | None = None
    name: str = "judge"
    out_of: float = 1.0
    read: Callable[[str], float | None] = last_number
    api_key_env: str | None = "OPENAI_API_KEY"
    max_tokens: int = 512
    price: tuple[float, float] = (0.0, 0.0)
    timeout: float = 60.0
    retries: int = 4
    concurrency: int = 32

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.prompt or "completion" not in _FIELDS.findall(self.prompt):
            raise UserError(f"the prompt of judge {self.name!r} has no {{completion}}: add it, or it judges nothing")
        if not 0 < self.out_of < math.inf:
            raise UserError(f"out_of of judge {self.name!r} is {self.out_of}: set it to the best mark, above 0")
        if self.base_url is not None:
            server_url(self.base_url, "api_key_env")

    async def __call__(self, state: dict[str, Any]) -> float:
        values = {"prompt": state["prompt"][-1]["content"], "answer": state["answer"]}
        values["completion"] = completion_text(state["completion"])
        text = _FIELDS.sub(lambda match: str(values[match[1]]), self.prompt)
        asked = {"model": self.model, "messages": [{"role": "user", "content": text}], "max_tokens": self.max_tokens}
        place = {"url": self.base_url or os.environ.get("OPENAI_BASE_URL"), **asked}
        reply = await recorded(self.name, place, lambda: self._ask(asked), self.gate)
        said = repr(reply["text"][-200:])
        if (reason := reply.get("finish_reason", "stop")) != "stop":
            raise ValueError(f"the reply of {self.name} was cut off (finish_reason is {reason!r}): {said}")
        scale = rf"\s*(?:/|\b(?:out\s+)?of\b)\s*{re.escape(f'{self.out_of:g}')}(?![\d.]*\d|\s*/)"
        number = self.read(re.sub(scale, " ", reply["text"], flags=re.IGNORECASE))
        return _within(self, number, 0.0, self.out_of, said) / self.out_of

    async def _ask(self, asked: dict[str, Any]) -> dict[str, Any]:
        url = server_url(self.base_url or os.environ.get("OPENAI_BASE_URL") or OPENAI, "api_key_env")
        answer = await _post(self, f"{url}/chat/completions", asked | {"temperature": 0.0})
        try:
            (choice, *_), used = answer["choices"], answer.get("usage") or {}
            text, reason = choice["message"].get("content") or "", choice.get("finish_reason")
            counts = [int(used.get(name) or 0) for name in ("prompt_tokens", "completion_tokens")]
            if not (isinstance(text, str) and all(0 <= count < 2**31 for count in counts)):
                raise TypeError
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
            raise ValueError(f"{url} gives no chat completion: {json.dumps(answer)[:200]}") from None
        cost = sum(count * price / 1e6 for count, price in zip(counts, self.price, strict=True))
        reply = {"text": text, "tokens_in": counts[0], "tokens_out": counts[1], "cost": cost}
        return reply if reason == "stop" else reply | {"finish_reason": reason}


@dataclass(eq=False)
class HTTPReward(Service):
    """A reward by a server. hone posts `prompt`, `completion` (messages), `answer` and `info` to `url` as JSON.

    The server must answer within `timeout` seconds, with a number within `bounds` or with {"reward": number}. If the
    server is down or busy, hone retries up to `retries` times; all tries take at most twice `timeout` seconds. The
    environment variable `api_key_env` has the server's API key.
    """

    url: str
    name: str = "service"
    timeout: float = 60.0
    retries: int = 4
    concurrency: int = 32
    bounds: tuple[float, float] = (-LARGEST_REWARD, LARGEST_REWARD)
    api_key_env: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        server_url(self.url.partition("?")[0], "api_key_env")
        if not (len(self.bounds) == 2 and -math.inf < self.bounds[0] < self.bounds[1] < math.inf):
            raise UserError(f"bounds of {self.name!r} are {self.bounds!r}: give the lowest and the highest reward")

    async def __call__(self, state: dict[str, Any]) -> float:
        asked = {name: state[name] for name in ("prompt", "completion", "answer", "info")}
        place = {"url": shown_url(self.url), **asked}
        reply = (await recorded(self.name, place, lambda: self._ask(asked), self.gate))["reply"]
        number = reply.get("reward") if isinstance(reply, dict) else reply
        return _within(self, number, *self.bounds, json.dumps(reply)[:200])

    async def _ask(self, asked: dict[str, Any]) -> dict[str, Any]:
        return {"reply": await _post(self, self.url, asked)}


async def _post(service: Service, url: str, body: dict[str, Any]) -> Any:
    shown = shown_url(url)
    if url.endswith("?…"):
        raise ValueError(f"the query of {shown} was not written into the run: give the reward function again")
    key = os.environ.get(service.api_key_env or "", "none" if service.api_key_env else "").strip()
    endpoint = Endpoint(url, key, 1, service.timeout, service.retries, service.patience)
    try:
        async with Client(endpoint, LARGEST_ANSWER) as client:
            answer = await client.request("POST", url, body, content_hash(body))
    except TooLarge as error:
        raise ValueError(f"{shown} gives no answer that could be read: {error}") from None
    except ResponseTimeout:
        raise RuntimeError(f"{shown} did not answer within {service.timeout:g} s") from None
    except (RequestRejected, ServerUnavailable) as error:
        if isinstance(error, ServerUnavailable) and error.status is None:
            raise RuntimeError(f"{shown} does not answer ({type(error.cause).__name__})") from None
        how = (
            "a redirect: give its last URL"
            if isinstance(error, RequestRejected) and error.status < 400
            else error.reason
        )
        raise RuntimeError(f"{shown} answered with {error.status}: {how}") from None
    text = redact(answer.text)
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError(f"{shown} does not answer in JSON: {text[:200]!r}") from None


def _within(service: Service, number: Any, low: float, high: float, reply: str) -> float:
    try:
        number = float(number) if isinstance(number, bool | int | float) else math.nan
    except OverflowError:
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"{service.name} gave no number: {reply}")
    if not low <= number <= high:
        raise ValueError(f"{service.name} gave {number:g}, which is not within {low:g} and {high:g}: {reply}")
    return number
