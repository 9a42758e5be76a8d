"""The routes. Everything but `/health` needs the API key, if there is one.

A client that leaves cancels its request: what it asked for is neither sampled nor kept.
"""

from __future__ import annotations

import asyncio
import hmac
import time
import uuid
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from hone import rng
from hone.errors import UserError
from hone.inference.server import http
from hone.inference.server.answers import Answer, ChatAnswer, CompletionAnswer, TokensAnswer
from hone.inference.server.protocol import (
    ApiError,
    ChatRequest,
    CompletionRequest,
    GenerationRequest,
    Sampling,
    Strict,
    TokensRequest,
    UpdateRequest,
    parse,
)
from hone.inference.server.service import Delta, Generation, Service
from hone.inference.server.weights import WeightsFolder
from hone.inference.types import Job
from hone.model.chat import ChatRenderer

T = TypeVar("T")
R = TypeVar("R", bound=Strict)


def create_app(
    service: Service,
    renderer: ChatRenderer,
    name: str,
    api_key: str | None = None,
    weights_root: Path | None = None,
    memory: Path | None = None,
    seed: int = 0,
) -> Starlette:
    """Return the application that serves `service` as the model `name`. It starts and ends the service's thread.

    Weights are taken from folders under `weights_root` only, or under `memory`; without the first, not at all.
    """
    api = Api(service, renderer, name, WeightsFolder(weights_root, memory) if weights_root else None, seed)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        service.start()
        yield
        await asyncio.to_thread(service.close)
        api.worker.shutdown(wait=False, cancel_futures=True)

    def check(request: Request) -> None:
        if request.url.path == "/health":
            return
        given = http.api_key_of(request)
        if api_key is not None and not hmac.compare_digest(given.encode("latin-1"), api_key.encode()):
            words = "the API key is missing or wrong: send it as `Authorization: Bearer KEY`"
            raise ApiError(401, words, None, "invalid_api_key")
        # A web page can send other kinds to any server without being let.
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if request.method == "POST" and kind != "application/json":
            raise ApiError(400, "the body must be JSON: send the header `Content-Type: application/json`")

    handlers = {
        "GET /health": api.health,
        "GET /metrics": api.metrics,
        "GET /v1/models": api.models,
        "GET /v1/models/{name:path}": api.model,
        "POST /v1/completions": api.completions,
        "POST /v1/chat/completions": api.chat,
        "POST /inference/v1/generate": api.generate,
        "POST /update_weights": api.update_weights,
    }
    return http.application(handlers, check, lifespan)


class Api:
    """One served model. `seed` gives requests that bring none their randomness: request k has (seed, "request", k)."""

    def __init__(
        self, service: Service, renderer: ChatRenderer, name: str, weights: WeightsFolder | None, seed: int
    ) -> None:
        self.service, self.renderer, self.name, self.weights, self.seed = service, renderer, name, weights, seed
        self.created, self.instance = int(time.time()), uuid.uuid4().hex
        self.updating = asyncio.Lock()
        self.context = service.engine.model.config.max_position_embeddings
        self.longest = self.context * max(map(len, renderer.tokenizer.get_vocab()))
        """Characters beyond which no text fits into the context: that many of the longest token."""
        # One thread: each would keep the memory of the longest text it has met.
        self.worker = ThreadPoolExecutor(1, "tokenizer")
        self._seeds = 0

    def card(self) -> dict[str, Any]:
        service, model = self.service, self.service.engine.model
        card = http.model_card(self.name, self.created) | {
            "max_model_len": self.context,
            "policy_version": service.engine.version,
        }
        card |= {"policy_path": service.weights_path, "parameters": model.num_parameters}
        return card | {"instance": self.instance}

    async def models(self, _: Request) -> Response:
        return JSONResponse({"object": "list", "data": [self.card()]})

    async def model(self, request: Request) -> Response:
        self._check_model(request.path_params["name"])
        return JSONResponse(self.card())

    async def health(self, _: Request) -> Response:
        service = self.service
        status = "ok" if service.alive else "the engine's thread has ended"
        body = {
            "status": "failing" if service.alive and service.failing else status,
            "model": self.name,
            "policy_version": service.engine.version,
            "failed_steps": service.failed_steps,
        }
        if service.failed_steps:
            body["last_failure"] = service.last_failure
        return JSONResponse(body, 200 if body["status"] == "ok" else 503)

    async def metrics(self, _: Request) -> Response:
        """Return the counters in Prometheus' text format."""
        lines = []
        for name, kind, text, value in self.service.counters():
            lines += [f"# HELP hone_{name} {text}", f"# TYPE hone_{name} {kind}", f"hone_{name} {value}"]
        return PlainTextResponse("\n".join(lines) + "\n", media_type="text/plain; version=0.0.4")

    async def update_weights(self, request: Request) -> Response:
        """Load weights beside the running engine; the swap itself is between two steps."""
        if self.weights is None:
            raise ApiError(403, "this server takes no weights: start it with --weights-root FOLDER")
        body, _ = await self._read(UpdateRequest, request)
        engine = self.service.engine
        async with self.updating:
            before = engine.version
            loaded = await asyncio.to_thread(self.weights.load, body.path, engine.model)
            await asyncio.wrap_future(self.service.update(loaded, body.version, body.path))
        return JSONResponse({"status": "ok", "policy_version": body.version, "previous_version": before})

    async def completions(self, request: Request) -> Response:
        body, size = await self._read(CompletionRequest, request)
        self._check_model(body.model)
        ids = await self._apart(size, lambda: [self._ids(prompt) for prompt in body.prompts()])
        self._check_ids(body.stop_token_ids, "stop_token_ids")
        max_tokens = 16 if body.max_tokens is None else body.max_tokens
        jobs = body.jobs(ids, max_tokens, self._fresh_seed(), body.logprobs or 0)
        answer = CompletionAnswer(body, self.name, self.renderer, jobs)
        return await self._answer(request, body, body, jobs, answer)

    async def chat(self, request: Request) -> Response:
        body, size = await self._read(ChatRequest, request)
        self._check_model(body.model)
        prompt = await self._apart(size, lambda: self._render(body))
        room = self.context - len(prompt)
        if room < 1:
            words = f"the conversation has {len(prompt)} tokens, the model's context {self.context}: shorten it"
            raise ApiError(400, words)
        self._check_ids(body.stop_token_ids, "stop_token_ids")
        max_tokens = body.max_completion_tokens or body.max_tokens or room
        stop_ids = () if body.ignore_eos else self.renderer.stop_ids
        jobs = body.jobs([prompt], max_tokens, self._fresh_seed(), body.top_logprobs or 0, stop_ids)
        return await self._answer(request, body, body, jobs, ChatAnswer(body, self.name, self.renderer, jobs))

    async def generate(self, request: Request) -> Response:
        """Continue token ids, and return ids. Only the model's own ends and those of the request end a sample."""
        body, size = await self._read(TokensRequest, request)
        self._check_model(body.model)
        params, room = body.sampling_params, self.context - len(body.token_ids)
        if room < 1:
            words = f"the prompt has {len(body.token_ids)} tokens, the model's context {self.context}: shorten it"
            raise ApiError(400, words, "token_ids")
        await self._apart(size, lambda: self._check_ids(body.token_ids, "token_ids"))
        self._check_ids(params.stop_token_ids, "sampling_params.stop_token_ids")
        jobs = params.jobs([body.token_ids], params.max_tokens or room, self._fresh_seed(), params.logprobs or 0)
        return await self._answer(request, body, params, jobs, TokensAnswer(body, self.name, self.renderer, jobs))

    async def _answer(
        self,
        request: Request,
        body: GenerationRequest | TokensRequest,
        params: Sampling,
        jobs: list[Job],
        answer: Answer,
    ) -> Response:
        generation = Generation(self.service, jobs, self.renderer.tokenizer, params.stop or [], body.stream)
        prompt_tokens = sum(len(job.prompt) for job in jobs) // params.n
        if not body.stream:
            return await http.while_connected(request, self._whole(generation, answer, prompt_tokens))
        try:
            await generation.start()
        except BaseException:
            generation.close()
            raise

        async def choices() -> AsyncIterator[dict[str, Any]]:
            for choice in answer.opening():
                yield choice
            async for delta in generation.deltas():
                yield answer.choice(delta, whole=False)

        head, used = answer.head | {"object": answer.part}, lambda: http.usage(prompt_tokens, generation.sampled_tokens)
        return http.EventStream(http.events(body, head, choices(), used), generation.close)

    async def _whole(self, generation: Generation, answer: Answer, prompt_tokens: int) -> Response:
        if isinstance(answer, CompletionAnswer):
            await answer.score_prompts(self.service)
        deltas = [Delta(i, "", [], "length", None) for i in range(len(generation.jobs))]
        if generation.jobs[0].max_tokens:  # 0 asks for the prompts alone
            try:
                await generation.start()
                async for delta in generation.deltas():
                    deltas[delta.index] = delta
                    await asyncio.sleep(0)  # thousands of samples may end at once: others get their turn in between
            finally:
                generation.close()
        head, used = answer.head | {"object": answer.whole}, http.usage(prompt_tokens, generation.sampled_tokens)
        # The prompt's ids may come with each sample.
        size = generation.sampled_tokens + sum(len(job.prompt) for job in generation.jobs)
        write = lambda: http.answer(head, [answer.choice(delta, whole=True) for delta in deltas], used)  # noqa: E731
        return await self._apart(size, write)

    async def _read(self, cls: type[R], request: Request) -> tuple[R, int]:
        """Return the checked request and the bytes of its body."""
        body = await http.read_body(request)
        return await self._apart(len(body), lambda: parse(cls, body)), len(body)

    async def _apart(self, size: int, work: Callable[[], T]) -> T:
        return await http.apart(size, work, self.worker)

    def _ids(self, prompt: str | list[int]) -> list[int]:
        if isinstance(prompt, str):
            self._check_length("a prompt", len(prompt), "prompt")
            (encoded,) = self.renderer.tokenizer.encode_batch_fast([prompt])  # lets other threads run; `encode` doesn't
            return encoded.ids
        self._check_ids(prompt, "prompt")
        return prompt

    def _render(self, body: ChatRequest) -> list[int]:
        messages = [message.for_template() for message in body.messages]
        self._check_length("the conversation", sum(len(message["content"]) for message in messages), "messages")
        try:
            return self.renderer.prompt_ids(messages, body.tools or None)
        except UserError:
            raise
        except Exception as error:  # the template is the model's: on odd messages it may fail in any way
            raise ApiError(400, f"the model's chat template refuses these messages: {error}", "messages") from error

    def _check_model(self, name: str | None) -> None:
        if name is not None and name != self.name:
            words = f"there is no model {name!r} here: this server has {self.name!r}"
            raise ApiError(404, words, "model", "model_not_found")

    def _check_length(self, what: str, length: int, param: str) -> None:
        if length > self.longest:
            words = f"{what} has {length} characters, the model's context of {self.context} tokens room for"
            raise ApiError(400, f"{words} {self.longest} at most: shorten it", param)

    def _check_ids(self, ids: list[int], param: str) -> None:
        size = self.service.engine.model.config.vocab_size
        wrong = next((token for token in ids if not 0 <= token < size), None)
        if wrong is not None:
            raise ApiError(400, f"token id {wrong} is none of the model's: they go from 0 to {size - 1}", param)

    def _fresh_seed(self) -> int:
        self._seeds += 1
        return rng.key(self.seed, "request", self._seeds - 1)
