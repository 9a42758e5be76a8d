"""What an answer tells of the prompts themselves: OpenAI's `echo`, and vLLM's `prompt_logprobs`."""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace
from itertools import accumulate
from typing import Any

from tokenizers import Tokenizer

from hone.inference.batch import NOT_FINITE
from hone.inference.server.answers import finite, top_by_text
from hone.inference.server.protocol import CompletionRequest, SampleFailed
from hone.inference.server.service import Service
from hone.inference.text import token_text
from hone.inference.types import ScoredToken


class AboutPrompts:
    """The prompts of one request: what was sent (texts or ids), and their `ids`."""

    def __init__(self, body: CompletionRequest, ids: list[list[int]], tokenizer: Tokenizer) -> None:
        self.body, self.ids, self.tokenizer = body, ids, tokenizer
        self._scores: list[list[ScoredToken]] = []

    async def score(self, service: Service) -> None:
        """Takes the logprobs, if the request wants them, one prompt between two decode steps."""
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

    def tell(self, choices: list[dict[str, Any]]) -> None:
        """Completes the choices, `n` for each prompt in turn."""
        sent = self.body.prompts()
        for choice in choices:
            index = choice["index"] // self.body.n
            if self.body.prompt_logprobs is not None:
                choice["prompt_logprobs"] = self._as_vllm(index)
            if self.body.echo:
                prompt = sent[index]
                text = prompt if isinstance(prompt, str) else self.tokenizer.decode(prompt, skip_special_tokens=False)
                choice["text"] = text + choice["text"]
                if choice["logprobs"] is not None:
                    choice["logprobs"] = self._before(index, choice["logprobs"])

    def _as_vllm(self, index: int) -> list[dict[str, Any] | None]:
        """Null for the first token, then for each {id: its logprob}, with the likeliest in its place before it."""

        def entry(token: ScoredToken) -> dict[str, Any]:
            entries = dict(token.top[: self.body.prompt_logprobs]) | {token.id: token.logprob}
            return {str(i): {"logprob": finite(x), "decoded_token": self._text(i)} for i, x in entries.items()}

        return [None, *map(entry, self._scores[index])]

    def _before(self, index: int, logprobs: dict[str, Any]) -> dict[str, Any]:
        """A choice's logprobs with those of its prompt in front."""
        texts = [self._text(i) for i in self.ids[index]]
        tokens = [*texts, *logprobs["tokens"]]
        scored = self._scores[index]
        tops = [top_by_text(replace(token, top=token.top[: self.body.logprobs]), self._text) for token in scored]
        return {
            "tokens": tokens,
            "token_logprobs": [None, *(finite(token.logprob) for token in scored), *logprobs["token_logprobs"]],
            "top_logprobs": [None, *tops, *(logprobs["top_logprobs"] or [])] if self.body.logprobs else None,
            "text_offset": [0, *accumulate(map(len, tokens[:-1]))],
        }

    def _text(self, token: int) -> str:
        return token_text(self.tokenizer, token)
