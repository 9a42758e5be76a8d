"""The JSON that goes back, whole or in chunks, for both kinds of request."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tokenizers import Tokenizer

from hone.inference.server.calls import CallReader, Shown
from hone.inference.server.generation import Delta
from hone.inference.text import token_text
from hone.inference.types import ScoredToken, Token

LOWEST = -9999.0
"""Stands for minus infinity, which JSON cannot write; OpenAI's own convention."""


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
        """The answer of a request that does not stream."""
        choices = [self._choice(delta, self._logprobs_of(delta), whole=True) for delta in deltas]
        return {**self._head, "object": self.whole, "choices": choices, "usage": usage}

    def chunk(self, delta: Delta) -> dict[str, Any]:
        """A part of one sample."""
        choice = self._choice(delta, self._logprobs_of(delta), whole=False)
        return {**self._head, "object": self.part, "choices": [choice]}

    def opening(self) -> list[dict[str, Any]]:
        """Chunks before all others."""
        return []

    def closing(self, usage: dict[str, int]) -> dict[str, Any]:
        """The last chunk, for a client that asked for the usage."""
        return {**self._head, "object": self.part, "choices": [], "usage": usage}

    def _choice(self, delta: Delta, logprobs: Any, whole: bool) -> dict[str, Any]:
        raise NotImplementedError

    def _logprobs_of(self, delta: Delta) -> Any:
        raise NotImplementedError

    def _ids(self, delta: Delta) -> dict[str, Any]:
        """`return_token_ids`: the ids, the version of the policy that sampled each, and once those of the prompt."""
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

    def _choice(self, delta: Delta, logprobs: Any, whole: bool) -> dict[str, Any]:
        return {
            "index": delta.index,
            "text": delta.text,
            "logprobs": logprobs,
            "finish_reason": delta.finish_reason,
            "stop_reason": delta.stop,
            **self._ids(delta),
        }

    def _logprobs_of(self, delta: Delta) -> dict[str, Any] | None:
        if not self._logprobs:
            return None
        texts = [self._text(token.id) for token in delta.tokens]
        offset, offsets = self._offsets.get(delta.index, 0), []
        for text in texts:
            offsets.append(offset)
            offset += len(text)
        self._offsets[delta.index] = offset
        return {
            "tokens": texts,
            "token_logprobs": [finite(token.logprob) for token in delta.tokens],
            "top_logprobs": [self._top(token) for token in delta.tokens] if self._top_asked(delta) else None,
            "text_offset": offsets,
        }

    def _top(self, token: Token) -> dict[str, float]:
        return top_by_text(token, self._text)

    @staticmethod
    def _top_asked(delta: Delta) -> bool:
        return bool(delta.tokens and delta.tokens[0].top)


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

    def _choice(self, delta: Delta, logprobs: Any, whole: bool) -> dict[str, Any]:
        shown = Shown(delta.text, [], delta.finish_reason)
        if self._readers is not None:
            shown = self._readers[delta.index].push(delta)
        text = shown.text
        if whole:
            said: dict[str, Any] = {"role": "assistant", "content": None if shown.calls and not text else text}
            said |= {"refusal": None} | ({"tool_calls": shown.calls} if shown.calls else {})
        else:
            said = {"content": text} if text else {}
            if shown.calls:
                said["tool_calls"] = [{"index": i, **call} for i, call in enumerate(shown.calls)]
        return {
            "index": delta.index,
            "message" if whole else "delta": said,
            "logprobs": logprobs,
            "finish_reason": shown.finish_reason,
            "stop_reason": delta.stop,
            **self._ids(delta),
        }

    def _logprobs_of(self, delta: Delta) -> dict[str, Any] | None:
        if not self._logprobs:
            return None
        return {"content": [self._entry(token) for token in delta.tokens], "refusal": None}

    def _entry(self, token: Token) -> dict[str, Any]:
        top = [self._one(i, logprob) for i, logprob in token.top]
        return {**self._one(token.id, token.logprob), "top_logprobs": top}

    def _one(self, token: int, logprob: float) -> dict[str, Any]:
        text = self._tokenizer.decode([token], skip_special_tokens=False)
        whole = bool(text) and "\ufffd" not in text
        return {
            "token": text if whole else self._text(token),
            "logprob": finite(logprob),
            "bytes": list(text.encode()) if whole else None,
        }


def merged(deltas: list[Delta], count: int) -> list[Delta]:
    """All deltas of each of `count` samples in one."""
    by_sample: list[list[Delta]] = [[] for _ in range(count)]
    for delta in deltas:
        by_sample[delta.index].append(delta)
    return [
        Delta(
            i,
            "".join(d.text for d in parts),
            [t for d in parts for t in d.tokens],
            parts[-1].finish_reason,
            parts[-1].stop,
        )
        for i, parts in enumerate(by_sample)
    ]


def top_by_text(token: Token | ScoredToken, text: Callable[[int], str]) -> dict[str, float]:
    """By text, the likeliest first; the token itself has its place even if it is not among them."""
    top: dict[str, float] = {}
    for ident, logprob in (*token.top, (token.id, token.logprob)):
        top.setdefault(text(ident), finite(logprob))
    return top


def finite(logprob: float) -> float:
    """The logprob as JSON can write it."""
    return max(logprob, LOWEST)
