"""Writes the choices of answers to each kind of request, whole or streamed, with tool calls and prompt logprobs."""

from __future__ import annotations

import asyncio
import math
import time
import uuid
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from hone.extensions.server.http import chat_choice, chat_opening
from hone.extensions.server.protocol import (
    FAILED,
    ApiError,
    ChatRequest,
    CompletionRequest,
    GenerationRequest,
    TokensRequest,
)
from hone.extensions.server.service import Delta, Service
from hone.inference.batch import NOT_FINITE
from hone.inference.text import StopStrings, token_text
from hone.inference.types import Job, ScoredToken, Token
from hone.model.chat import ChatRenderer
from hone.model.tool_calls import Tool

LOWEST = -9999.0
"""Stands for minus infinity, which JSON lacks. OpenAI writes the same number."""
OPENING = "<tool_call>"
"""Start of a tool call. Text that may become this tag is withheld."""


class Answer:
    """Writes the samples of one request; sample i belongs to `jobs[i]`."""

    prefix: str
    whole: str
    part: str

    def __init__(self, body: GenerationRequest, model: str, renderer: ChatRenderer, jobs: Sequence[Job]) -> None:
        self.head = {"id": f"{self.prefix}-{uuid.uuid4().hex}", "created": int(time.time()), "model": model}
        self.head["object"] = self.part if body.stream else self.whole
        self._tokenizer, self._jobs, self._token_ids = renderer.tokenizer, jobs, body.return_token_ids
        self._kept_ids = body.return_kept_ids
        self._begun: set[int] = set()

    def opening(self) -> list[dict[str, Any]]:
        return []

    def choice(self, delta: Delta, whole: bool) -> dict[str, Any]:
        """Return the choice for a new part of a sample, or for the whole sample if `whole` is true."""
        raise NotImplementedError

    def _ids(self, delta: Delta) -> dict[str, Any]:
        """Return the ids that the request asks for: tokens (with policy versions), prompt (once) and candidates."""
        ids: dict[str, Any] = {}
        if self._kept_ids:
            sets = (token.candidates for token in delta.tokens)
            ids["kept_ids"] = [None if ids_V is None else ids_V.tolist() for ids_V in sets]
        if not self._token_ids:
            return ids
        ids["token_ids"] = [token.id for token in delta.tokens]
        ids["policy_versions"] = [token.version for token in delta.tokens]
        if delta.index not in self._begun:
            self._begun.add(delta.index)
            ids["prompt_token_ids"] = self._jobs[delta.index].prompt
        return ids

    def _text(self, token: int) -> str:
        return token_text(self._tokenizer, token)

    def _logprobs_of(self, delta: Delta) -> list[dict[str, Any]]:
        one = self._logprob
        return [one(t.id, t.logprob) | {"top_logprobs": [one(*pair) for pair in t.top]} for t in delta.tokens]

    def _logprob(self, ident: int, logprob: float) -> dict[str, Any]:
        text = self._tokenizer.decode([ident], skip_special_tokens=False)
        whole = bool(text) and "\ufffd" not in text
        written = {"token": text if whole else self._text(ident), "logprob": finite(logprob)}
        return written | {"bytes": list(text.encode()) if whole else None}


class CompletionAnswer(Answer):
    """Answers with text. On request it repeats the prompt (`echo`) and scores it (`prompt_logprobs`, as in vLLM)."""

    prefix, whole, part = "cmpl", "text_completion", "text_completion"

    def __init__(self, body: CompletionRequest, model: str, renderer: ChatRenderer, jobs: Sequence[Job]) -> None:
        super().__init__(body, model, renderer, jobs)
        self._body = body
        self._offsets: dict[int, int] = {}
        self._scores: list[list[ScoredToken]] = []

    async def score_prompts(self, service: Service) -> None:
        """Compute the prompts' logprobs, if requested. The engine scores at most one prompt between two steps."""
        body = self._body
        if body.prompt_logprobs is None and (not body.echo or body.logprobs is None):
            return
        temperature = 1.0 if body.temperature is None else body.temperature
        top = max(body.prompt_logprobs or 0, body.logprobs or 0)
        for job in self._jobs[:: body.n]:
            call = service.call(lambda ids=job.prompt: service.engine.score_tokens(ids, temperature, top))
            scores = await asyncio.wrap_future(call)
            if any(math.isnan(token.logprob) for token in scores):
                raise ApiError(500, f"{FAILED}: {NOT_FINITE}")
            self._scores.append(scores)

    def choice(self, delta: Delta, whole: bool) -> dict[str, Any]:
        body, prompt = self._body, delta.index // self._body.n
        choice = {
            "index": delta.index,
            "text": self._prompt_text(prompt) + delta.text if body.echo else delta.text,
            "logprobs": None if body.logprobs is None else self._written_logprobs(delta),
            "finish_reason": delta.finish_reason,
            "stop_reason": delta.stop,
            **self._ids(delta),
        }
        if body.prompt_logprobs is not None:
            choice["prompt_logprobs"] = [None, *map(self._vllm_entry, self._scores[prompt])]
        return choice

    def _prompt_text(self, index: int) -> str:
        prompt = self._body.prompts()[index]
        return prompt if isinstance(prompt, str) else self._tokenizer.decode(prompt, skip_special_tokens=False)

    def _written_logprobs(self, delta: Delta) -> dict[str, Any]:
        tokens: list[Token | ScoredToken] = list(delta.tokens)
        texts = [self._text(token.id) for token in tokens]
        logprobs: list[float | None] = [finite(token.logprob) for token in tokens]
        tops = [self._top(token) for token in tokens] if self._body.logprobs else None
        if self._body.echo:  # the prompt's first token has no logprob
            ids, scores = self._jobs[delta.index].prompt, self._scores[delta.index // self._body.n]
            texts = [*map(self._text, ids), *texts]
            logprobs = [None, *(finite(token.logprob) for token in scores), *logprobs]
            tops = None if tops is None else [None, *map(self._top, scores), *tops]
        *offsets, self._offsets[delta.index] = accumulate(map(len, texts), initial=self._offsets.get(delta.index, 0))
        return {"tokens": texts, "token_logprobs": logprobs, "top_logprobs": tops, "text_offset": offsets}

    def _top(self, token: Token | ScoredToken) -> dict[str, float]:
        top: dict[str, float] = {}
        for ident, logprob in (*token.top[: self._body.logprobs], (token.id, token.logprob)):
            top.setdefault(self._text(ident), finite(logprob))
        return top

    def _vllm_entry(self, token: ScoredToken) -> dict[str, Any]:
        entries = dict(token.top[: self._body.prompt_logprobs]) | {token.id: token.logprob}
        return {str(i): {"logprob": finite(x), "decoded_token": self._text(i)} for i, x in entries.items()}


class ChatAnswer(Answer):
    prefix, whole, part = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def __init__(self, body: ChatRequest, model: str, renderer: ChatRenderer, jobs: Sequence[Job]) -> None:
        super().__init__(body, model, renderer, jobs)
        self._logprobs = body.logprobs
        tools = body.tools if body.tool_choice != "none" else None
        self._readers = [CallReader(renderer, tools) for _ in jobs] if tools else None

    def opening(self) -> list[dict[str, Any]]:
        return [chat_opening(index) for index in range(len(self._jobs))]

    def choice(self, delta: Delta, whole: bool) -> dict[str, Any]:
        text, calls, reason = delta.text, [], delta.finish_reason
        if self._readers is not None:
            text, calls, reason = self._readers[delta.index].push(delta)
        choice = chat_choice(delta.index, text, calls, reason, whole)
        if self._logprobs:
            choice["logprobs"] = {"content": self._logprobs_of(delta), "refusal": None}
        return {**choice, "stop_reason": delta.stop, **self._ids(delta)}


class TokensAnswer(Answer):
    """Answers in vLLM's form: ids and logprobs, no text. hone adds the policy version that sampled each id."""

    prefix, whole, part = "generate-tokens", "generate", "generate.chunk"

    def __init__(self, body: TokensRequest, model: str, renderer: ChatRenderer, jobs: Sequence[Job]) -> None:
        form = GenerationRequest(stream=body.stream, return_kept_ids=body.sampling_params.return_kept_ids)
        super().__init__(form, model, renderer, jobs)
        self._logprobs = body.sampling_params.logprobs
        self.head["request_id"] = body.request_id or self.head["id"]

    def choice(self, delta: Delta, whole: bool) -> dict[str, Any]:
        return {
            "index": delta.index,
            "token_ids": [token.id for token in delta.tokens],
            "policy_versions": [token.version for token in delta.tokens],
            "logprobs": None if self._logprobs is None else {"content": self._logprobs_of(delta)},
            "finish_reason": delta.finish_reason,
            **self._ids(delta),
        }

    def _logprob(self, ident: int, logprob: float) -> dict[str, Any]:
        return {"token": f"token_id:{ident}", "logprob": finite(logprob), "bytes": None}


class CallReader:
    """Reads the tool calls of one sample.

    While the sample grows, only the text before the first call is shown; at the end, the calls. A sample that was cut,
    or has an unreadable call, stays text.
    """

    def __init__(self, renderer: ChatRenderer, tools: list[Tool]) -> None:
        self._renderer, self._tools = renderer, tools
        self._call = StopStrings([OPENING] if renderer.calls_are_text else [""])
        self._text = self._before_calls = ""
        self._shown = 0
        self._tokens: list[Token] = []

    def push(self, delta: Delta) -> tuple[str, list[dict[str, Any]], str | None]:
        """Read new tokens of the sample. Return the text and calls to show now, and the finish reason."""
        self._text += delta.text
        self._tokens += delta.tokens
        self._before_calls += self._call.push(delta.text)
        text, calls = self._text, []
        if delta.finish_reason is None:
            text = self._before_calls.rstrip()
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


def finite(logprob: float) -> float:
    return max(logprob, LOWEST)
