"""The routes of hone's server. If the server has an API key, all routes but `/health` need the key.

The server cancels a request if the client disconnects.
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
from hone.extensions.server import http
from hone.extensions.server.answers import Answer, ChatAnswer, CompletionAnswer, TokensAnswer
from hone.extensions.server.protocol import (
    ApiError,
    ChatRequest,
    CompletionRequest,
    Sampling,
    Strict,
    TokensRequest,
    UpdateRequest,
    parse,
)
from hone.extensions.server.service import Delta, Generation, Service
from hone.extensions.server.weights import WeightsFolder
from hone.model.chat import ChatRenderer

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

    Weights are loaded only from folders under `weights_root` or `memory`. Without `weights_root`, updates are refused.
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
        # Browsers let web pages send other content types to any server.
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
    """One served model. If request k has no seed, it gets a seed derived from (`seed`, "request", k)."""

    def __init__(
        self, service: Service, renderer: ChatRenderer, name: str, weights: WeightsFolder | None, seed: int
    ) -> None:
        self.service, self.renderer, self.name, self.weights, self.seed = service, renderer, name, weights, seed
        self.created, self.instance = int(time.time()), uuid.uuid4().hex
        self.updating = asyncio.Lock()
        self.context = service.engine.model.config.max_position_embeddings
        self.longest = self.context * max(map(len, renderer.tokenizer.get_vocab()))
        """Number of characters in a context that is full of the longest token."""
        # One thread: every thread keeps the memory of its longest text.
        self.worker = ThreadPoolExecutor(1, "tokenizer")
        self._seeds = 0

    def card(self) -> dict[str, Any]:
        service, model = self.service, self.service.engine.model
        card = {"id": self.name, "object": "model", "created": self.created, "owned_by": "hone"}
        card |= {"max_model_len": self.context, "policy_version": service.engine.version, "instance": self.instance}
        return card | {"policy_path": service.weights_path, "parameters": model.num_parameters}

    async def models(self, _: Request) -> Response:
        return JSONResponse({"object": "list", "data": [self.card()]})

    async def model(self, request: Request) -> Response:
        self._check_model(request.path_params["name"])
        return JSONResponse(self.card())

    async def health(self, _: Request) -> Response:
        service = self.service
        status = "failing" if service.failing else "ok"
        status = status if service.alive else "the engine's thread has ended"
        body = {"status": status, "model": self.name, "policy_version": service.engine.version}
        body |= {"failed_steps": service.failed_steps}
        body |= {"last_failure": service.last_failure} if service.failed_steps else {}
        return JSONResponse(body, 200 if body["status"] == "ok" else 503)

    async def metrics(self, _: Request) -> Response:
        lines = []
        for name, kind, text, value in self.service.counters():
            lines += [f"# HELP hone_{name} {text}", f"# TYPE hone_{name} {kind}", f"hone_{name} {value}"]
        return PlainTextResponse("\n".join(lines) + "\n", media_type="text/plain; version=0.0.4")

    async def update_weights(self, request: Request) -> Response:
        """Load weights while the engine runs, then swap them between two steps."""
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
        prompts = await http.apart(self.worker, size, lambda: [self._ids(prompt) for prompt in body.prompts()])
        max_tokens = 16 if body.max_tokens is None else body.max_tokens
        return await self._sample(request, body, body, CompletionAnswer, prompts, max_tokens, body.logprobs)

    async def chat(self, request: Request) -> Response:
        body, size = await self._read(ChatRequest, request)
        prompt = await http.apart(self.worker, size, lambda: self._render(body))
        room = self._room("the conversation", prompt)
        max_tokens = body.max_completion_tokens or body.max_tokens or room
        stops = () if body.ignore_eos else self.renderer.stop_ids
        return await self._sample(request, body, body, ChatAnswer, [prompt], max_tokens, body.top_logprobs, stops)

    async def generate(self, request: Request) -> Response:
        """Continue token ids, and return ids. A sample ends at the model's end ids or the request's stops."""
        body, size = await self._read(TokensRequest, request)
        params, room = body.sampling_params, self._room("the prompt", body.token_ids, "token_ids")
        await http.apart(self.worker, size, lambda: self._check_ids(body.token_ids, "token_ids"))
        return await self._sample(
            request, body, params, TokensAnswer, [body.token_ids], params.max_tokens or room, params.logprobs
        )

    async def _sample(
        self,
        request: Request,
        body: Any,
        params: Sampling,
        kind: type[Answer],
        prompts: list[list[int]],
        max_tokens: int,
        top: int | None,
        stops: tuple[int, ...] = (),
    ) -> Response:
        """Answer with samples of the prompts. `top` is the number of likeliest tokens to report at each position."""
        self._check_ids(params.stop_token_ids, f"{'' if params is body else 'sampling_params.'}stop_token_ids")
        self._seeds += 1
        seed = rng.key(self.seed, "request", self._seeds - 1)
        jobs = params.jobs(prompts, max_tokens, seed, top or 0, stops)
        answer = kind(body, self.name, self.renderer, jobs)
        generation = Generation(self.service, jobs, self.renderer.tokenizer, params.stop or [], body.stream)
        used = lambda: http.usage(sum(map(len, prompts)), generation.sampled_tokens)  # noqa: E731
        if not body.stream:
            return await http.while_connected(request, self._whole(generation, answer, used))
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

        return http.EventStream(body, answer.head, choices(), used, generation.close)

    async def _whole(self, generation: Generation, answer: Answer, used: Callable[[], dict[str, int]]) -> Response:
        if isinstance(answer, CompletionAnswer):
            await answer.score_prompts(self.service)
        deltas = [Delta(i, "", [], "length", None) for i in range(len(generation.jobs))]
        if generation.jobs[0].max_tokens:  # 0: only the prompts
            try:
                await generation.start()
                async for delta in generation.deltas():
                    deltas[delta.index] = delta
                    await asyncio.sleep(0)  # thousands of samples may end at once: let other requests run in between
            finally:
                generation.close()
        # Each sample may have the prompt's ids.
        size = generation.sampled_tokens + sum(len(job.prompt) for job in generation.jobs)
        write = lambda: http.answer(answer.head, [answer.choice(delta, whole=True) for delta in deltas], used())  # noqa: E731
        return await http.apart(self.worker, size, write)

    async def _read(self, cls: type[R], request: Request) -> tuple[R, int]:
        raw = await http.read_body(request)
        body = await http.apart(self.worker, len(raw), lambda: parse(cls, raw))
        self._check_model(getattr(body, "model", None))
        return body, len(raw)

    def _ids(self, prompt: str | list[int]) -> list[int]:
        if isinstance(prompt, str):
            self._check_length("a prompt", len(prompt), "prompt")
            (encoded,) = self.renderer.tokenizer.encode_batch_fast([prompt])  # unlike `encode`, lets other threads run
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
        except Exception as error:  # the model's template may fail in any way
            raise ApiError(400, f"the model's chat template refuses these messages: {error}", "messages") from error

    def _check_model(self, name: str | None) -> None:
        if name is not None and name != self.name:
            words = f"there is no model {name!r}: this server has {self.name!r}"
            raise ApiError(404, words, "model", "model_not_found")

    def _check_length(self, what: str, length: int, param: str) -> None:
        if length > self.longest:
            words = f"{what} has {length} characters, but the model's context of {self.context} tokens takes"
            raise ApiError(400, f"{words} at most {self.longest}: shorten it", param)

    def _check_ids(self, ids: list[int], param: str) -> None:
        size = self.service.engine.model.config.vocab_size
        wrong = next((token for token in ids if not 0 <= token < size), None)
        if wrong is not None:
            raise ApiError(400, f"token id {wrong} is not in the vocabulary: ids go from 0 to {size - 1}", param)

    def _room(self, what: str, prompt: list[int], param: str | None = None) -> int:
        if (room := self.context - len(prompt)) < 1:
            words = f"{what} has {len(prompt)} tokens, but the model's context is {self.context}: shorten it"
            raise ApiError(400, words, param)
        return room
