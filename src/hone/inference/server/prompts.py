"""What an answer tells of the prompts themselves: OpenAI's `echo`, and vLLM's `prompt_logprobs`."""

from __future__ import annotations

import asyncio
from itertools import accumulate
from typing import Any

from tokenizers import Tokenizer

from hone.inference.server.answers import finite
from hone.inference.server.protocol import CompletionRequest
from hone.inference.server.service import Service
from hone.inference.text import token_text


class AboutPrompts:
    """The prompts of one request: what was sent (texts or ids), and their `ids`."""

    def __init__(self, body: CompletionRequest, ids: list[list[int]], tokenizer: Tokenizer) -> None:
        self.body, self.ids, self.tokenizer = body, ids, tokenizer
        self._scores: list[list[float]] = []

    async def score(self, service: Service) -> None:
        """Takes the logprobs, if the request wants them, one prompt between two decode steps."""
        temperature = 1.0 if self.body.temperature is None else self.body.temperature
        if self.body.prompt_logprobs is None and self.body.logprobs is None:
            return
        for ids in self.ids:
            call = service.call(lambda ids=ids: service.engine.score([ids], temperature))
            self._scores += await asyncio.wrap_future(call)

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
        """Null for the first token, then {id: its logprob} for each."""
        entries = zip(self.ids[index][1:], self._scores[index], strict=True)
        return [None, *({str(i): {"logprob": finite(x), "decoded_token": self._text(i)}} for i, x in entries)]

    def _before(self, index: int, logprobs: dict[str, Any]) -> dict[str, Any]:
        """A choice's logprobs with those of its prompt in front."""
        texts = [self._text(i) for i in self.ids[index]]
        tokens = [*texts, *logprobs["tokens"]]
        return {
            "tokens": tokens,
            "token_logprobs": [None, *map(finite, self._scores[index]), *logprobs["token_logprobs"]],
            "top_logprobs": None,
            "text_offset": [0, *accumulate(map(len, tokens[:-1]))],
        }

    def _text(self, token: int) -> str:
        return token_text(self.tokenizer, token)
