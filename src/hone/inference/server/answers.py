"""The JSON that goes back, whole or in chunks, for both kinds of request; tool calls and prompts' logprobs in it."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from itertools import accumulate
from typing import Any

from tokenizers import Tokenizer

from hone.inference.batch import NOT_FINITE
from hone.inference.server.protocol import CompletionRequest, SampleFailed
from hone.inference.server.service import Delta, Service
from hone.inference.text import token_text
from hone.inference.types import ScoredToken, Token
from hone.model.chat import ChatRenderer
from hone.model.tool_calls import Tool

LOWEST = -9999.0
"""Stands for minus infinity, which JSON cannot write; OpenAI's own convention."""
OPENING = "<tool_call>"
"""Text that may start a call is kept back until it is clear whether it does."""


class Answer:
    """Writes the samples of one request. `prompts` are those of each sample; `logprobs`: they were asked for."""

    prefix: str
    whole: str
    part: str

    def __init__(
        self,
        ident: str,
        created: int,
        model: str,
        tokenizer: Tokenizer,
        prompts: list[tuple[int, ...]],
        logprobs: bool,
        token_ids: bool,
    ) -> None:
        self._head = {"id": f"{self.prefix}-{ident}", "created": created, "model": model}
        self._tokenizer, self._prompts = tokenizer, prompts
        self._logprobs, self._token_ids = logprobs, token_ids
        self._begun: set[int] = set()

    def complete(self, deltas: list[Delta], usage: dict[str, int]) -> dict[str, Any]:
        """Return the answer of a request that does not stream."""
        choices = [self._choice(delta, whole=True) for delta in deltas]
        return {**self._head, "object": self.whole, "choices": choices, "usage": usage}

    def chunk(self, delta: Delta) -> dict[str, Any]:
        """Return a part of one sample."""
        return {**self._head, "object": self.part, "choices": [self._choice(delta, whole=False)]}

    def opening(self) -> list[dict[str, Any]]:
        """Return the chunks before all others."""
        return []

    def closing(self, usage: dict[str, int]) -> dict[str, Any]:
        """Return the last chunk, for a client that asked for the usage."""
        return {**self._head, "object": self.part, "choices": [], "usage": usage}

    def _choice(self, delta: Delta, whole: bool) -> dict[str, Any]:
        raise NotImplementedError

    def _ids(self, delta: Delta) -> dict[str, Any]:
        """Return the ids, the version of the policy that sampled each, and once those of the prompt, if asked for."""
        if not self._token_ids:
            return {}
        ids: dict[str, Any] = {
            "token_ids": [token.id for token in delta.tokens],
            "policy_versions": [token.version for token in delta.tokens],
        }
        if delta.index not in self._begun:
            self._begun.add(delta.index)
            ids["prompt_token_ids"] = self._prompts[delta.index]
        return ids

    def _text(self, token: int) -> str:
        return token_text(self._tokenizer, token)


class CompletionAnswer(Answer):
    prefix, whole, part = "cmpl", "text_completion", "text_completion"

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._offsets: dict[int, int] = {}

    def _choice(self, delta: Delta, whole: bool) -> dict[str, Any]:
        return {
            "index": delta.index,
            "text": delta.text,
            "logprobs": self._written_logprobs(delta) if self._logprobs else None,
            "finish_reason": delta.finish_reason,
            "stop_reason": delta.stop,
            **self._ids(delta),
        }

    def _written_logprobs(self, delta: Delta) -> dict[str, Any]:
        texts = [self._text(token.id) for token in delta.tokens]
        *offsets, self._offsets[delta.index] = accumulate(map(len, texts), initial=self._offsets.get(delta.index, 0))
        with_top = bool(delta.tokens and delta.tokens[0].top)
        return {
            "tokens": texts,
            "token_logprobs": [finite(token.logprob) for token in delta.tokens],
            "top_logprobs": [top_by_text(token, self._text) for token in delta.tokens] if with_top else None,
            "text_offset": offsets,
        }


class ChatAnswer(Answer):
    """`calls` makes what reads the tool calls of one sample, if the request is about tools."""

    prefix, whole, part = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def __init__(self, *args: Any, calls: Callable[[], CallReader] | None = None) -> None:
        super().__init__(*args)
        self._readers = None if calls is None else [calls() for _ in self._prompts]

    def opening(self) -> list[dict[str, Any]]:
        start = {"role": "assistant", "content": ""}
        choices = [{"index": i, "delta": start, "finish_reason": None} for i in range(len(self._prompts))]
        return [{**self._head, "object": self.part, "choices": [choice]} for choice in choices]

    def _choice(self, delta: Delta, whole: bool) -> dict[str, Any]:
        text, calls, reason = delta.text, [], delta.finish_reason
        if self._readers is not None:
            text, calls, reason = self._readers[delta.index].push(delta)
        message: dict[str, Any]
        if whole:
            message = {"role": "assistant", "content": None if calls and not text else text, "refusal": None}
        else:
            message = {"content": text} if text else {}
            calls = [{"index": i, **call} for i, call in enumerate(calls)]
        return {
            "index": delta.index,
            "message" if whole else "delta": message | ({"tool_calls": calls} if calls else {}),
            "logprobs": {"content": list(map(self._entry, delta.tokens)), "refusal": None} if self._logprobs else None,
            "finish_reason": reason,
            "stop_reason": delta.stop,
            **self._ids(delta),
        }

    def _entry(self, token: Token) -> dict[str, Any]:
        def one(ident: int, logprob: float) -> dict[str, Any]:
            text = self._tokenizer.decode([ident], skip_special_tokens=False)
            whole = bool(text) and "\ufffd" not in text
            written = {"token": text if whole else self._text(ident), "logprob": finite(logprob)}
            return written | {"bytes": list(text.encode()) if whole else None}

        return {**one(token.id, token.logprob), "top_logprobs": [one(*pair) for pair in token.top]}


class CallReader:
    """Reads the tool calls of one sample. They come at its end, all at once; the text before them as it is sampled.

    Text that was cut, or that holds a call that cannot be read, is shown as it is.
    """

    def __init__(self, renderer: ChatRenderer, tools: list[Tool]) -> None:
        self._renderer, self._tools = renderer, tools
        self._text = ""
        self._shown = 0
        self._tokens: list[Token] = []

    def push(self, delta: Delta) -> tuple[str, list[dict[str, Any]], str | None]:
        """Take what the sample has gained; return the text and the calls to show now, and why it ended."""
        self._text += delta.text
        self._tokens += delta.tokens
        text, calls = self._text, []
        if delta.finish_reason is None:
            text = self._certain()
        elif delta.finish_reason == "stop" and delta.stop is None:
            message = self._renderer.message([token.id for token in self._tokens], self._tools)
            calls = message.get("tool_calls", [])
            if calls and all(call["function"]["name"] for call in calls):
                text = self._renderer.before_calls(message["content"])
                text = text.removeprefix(self._renderer.opened_by_template)
            else:
                calls = []
        new, self._shown = text[self._shown :], max(self._shown, len(text))
        return new, calls, "tool_calls" if calls else delta.finish_reason

    def _certain(self) -> str:
        """Return the text so far that no call begins in, without the white space at its end."""
        if not self._renderer.calls_are_text:
            return ""
        at = self._text.find(OPENING)
        if at < 0:
            partial = (n for n in range(len(OPENING) - 1, 0, -1) if self._text.endswith(OPENING[:n]))
            at = len(self._text) - next(partial, 0)
        return self._text[:at].rstrip()


class PromptScores:
    """What an answer says of the prompts themselves: OpenAI's `echo`, and vLLM's `prompt_logprobs`.

    `ids` are those of the prompts that `body` sent, as texts or ids.
    """

    def __init__(self, body: CompletionRequest, ids: list[list[int]], tokenizer: Tokenizer) -> None:
        self.body, self.ids, self.tokenizer = body, ids, tokenizer
        self._scores: list[list[ScoredToken]] = []

    async def take(self, service: Service) -> None:
        """Compute the logprobs, if the request wants them, one prompt between two decode steps."""
        temperature = 1.0 if self.body.temperature is None else self.body.temperature
        if self.body.prompt_logprobs is None and self.body.logprobs is None:
            return
        top = max(self.body.prompt_logprobs or 0, self.body.logprobs or 0)
        for ids in self.ids:
            call = service.call(lambda ids=ids: service.engine.score_tokens(ids, temperature, top))
            scores = await asyncio.wrap_future(call)
            if any(math.isnan(token.logprob) for token in scores):
                raise SampleFailed(NOT_FINITE)
            self._scores.append(scores)

    def add_to(self, choices: list[dict[str, Any]]) -> None:
        """Complete the choices, `n` for each prompt in turn."""
        sent = self.body.prompts()
        for choice in choices:
            index = choice["index"] // self.body.n
            if self.body.prompt_logprobs is not None:
                choice["prompt_logprobs"] = [None, *map(self._vllm_entry, self._scores[index])]
            if self.body.echo:
                prompt = sent[index]
                text = prompt if isinstance(prompt, str) else self.tokenizer.decode(prompt, skip_special_tokens=False)
                choice["text"] = text + choice["text"]
                if choice["logprobs"] is not None:
                    choice["logprobs"] = self._with_prompt(index, choice["logprobs"])

    def _vllm_entry(self, token: ScoredToken) -> dict[str, Any]:
        """Return {id: its logprob}, with the likeliest in its place before it."""
        entries = dict(token.top[: self.body.prompt_logprobs]) | {token.id: token.logprob}
        return {str(i): {"logprob": finite(x), "decoded_token": self._text(i)} for i, x in entries.items()}

    def _with_prompt(self, index: int, logprobs: dict[str, Any]) -> dict[str, Any]:
        """Return a choice's logprobs with those of its prompt in front."""
        tokens = [*map(self._text, self.ids[index]), *logprobs["tokens"]]
        scored = self._scores[index]
        tops = [top_by_text(token._replace(top=token.top[: self.body.logprobs]), self._text) for token in scored]
        return {
            "tokens": tokens,
            "token_logprobs": [None, *(finite(token.logprob) for token in scored), *logprobs["token_logprobs"]],
            "top_logprobs": [None, *tops, *(logprobs["top_logprobs"] or [])] if self.body.logprobs else None,
            "text_offset": [0, *accumulate(map(len, tokens[:-1]))],
        }

    def _text(self, token: int) -> str:
        return token_text(self.tokenizer, token)


def merged(deltas: list[Delta], count: int) -> list[Delta]:
    """Return all deltas of each of `count` samples in one."""
    by_sample: list[list[Delta]] = [[] for _ in range(count)]
    for delta in deltas:
        by_sample[delta.index].append(delta)
    return [
        Delta(i, "".join(d.text for d in parts), [t for d in parts for t in d.tokens], *parts[-1][3:])
        for i, parts in enumerate(by_sample)
    ]


def top_by_text(token: Token | ScoredToken, text: Callable[[int], str]) -> dict[str, float]:
    """Return logprobs by text, the likeliest first; the token itself has its place even if it is not among them."""
    top: dict[str, float] = {}
    for ident, logprob in (*token.top, (token.id, token.logprob)):
        top.setdefault(text(ident), finite(logprob))
    return top


def finite(logprob: float) -> float:
    """Return the logprob as JSON can write it."""
    return max(logprob, LOWEST)
