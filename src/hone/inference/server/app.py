"""The routes. Everything but `/health` needs the API key, if there is one.

A client that leaves cancels its request: what it asked for is neither sampled nor kept.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import time
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

from fastapi import Depends, FastAPI, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from hone import rng
from hone.errors import UserError
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
    as_api_error,
    parse,
)
from hone.inference.server.service import Delta, Generation, Service
from hone.inference.server.weights import WeightsFolder
from hone.inference.types import Job
from hone.model.chat import ChatRenderer

SHORT = 4096
"""Characters that are parsed and tokenised in about a millisecond."""
MAX_BODY = 32 * 2**20
"""Bytes of a request."""
BODY_SECONDS = 60.0
"""Seconds that a client has to send a body."""
LEFT = 499
"""Status noted for a client that left."""

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
) -> FastAPI:
    """Return the application that serves `service` as the model `name`. It starts and ends the service's thread.

    Weights are taken from folders under `weights_root` only, or under `memory`; without the first, not at all.
    """
    api = Api(service, renderer, name, WeightsFolder(weights_root, memory) if weights_root else None, seed)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        service.start()
        yield
        await asyncio.to_thread(service.close)
        api.worker.shutdown(wait=False, cancel_futures=True)

    async def authorised(request: Request) -> None:
        given = request.headers.get("authorization", "").removeprefix("Bearer ")
        if api_key is not None and not hmac.compare_digest(given.encode("latin-1"), api_key.encode()):
            words = "the API key is missing or wrong: send it as `Authorization: Bearer KEY`"
            raise ApiError(401, words, None, "invalid_api_key")

    app = FastAPI(title="hone", docs_url=None, redoc_url=None, openapi_url=None, lifespan=lifespan)
    for kind in (ApiError, UserError, Exception):  # the last is logged with its traceback
        app.add_exception_handler(kind, _on_error)
    app.add_exception_handler(HTTPException, _on_http_error)
    app.add_exception_handler(ClientDisconnect, on_leaving)

    key = [Depends(authorised), Depends(_only_json)]
    app.get("/health")(api.health)
    app.get("/metrics", dependencies=key)(api.metrics)
    app.get("/v1/models", dependencies=key)(api.models)
    app.get("/v1/models/{name:path}", dependencies=key)(api.model)
    app.post("/v1/completions", dependencies=key)(api.completions)
    app.post("/v1/chat/completions", dependencies=key)(api.chat)
    app.post("/inference/v1/generate", dependencies=key)(api.generate)
    app.post("/update_weights", dependencies=key)(api.update_weights)
    return app


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
        card = {"id": self.name, "object": "model", "created": self.created, "owned_by": "hone"}
        card |= {"max_model_len": self.context, "policy_version": service.engine.version}
        card |= {"policy_path": service.weights_path, "parameters": model.num_parameters}
        return card | {"instance": self.instance}

    async def models(self) -> Response:
        return JSONResponse({"object": "list", "data": [self.card()]})

    async def model(self, name: str) -> Response:
        self._check_model(name)
        return JSONResponse(self.card())

    async def health(self) -> Response:
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

    async def metrics(self) -> Response:
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
            return await while_connected(request, self._whole(generation, answer, prompt_tokens))
        try:
            await generation.start()
        except BaseException:
            generation.close()
            raise
        with_usage = bool(body.stream_options and body.stream_options.include_usage)
        return EventStream(self._events(generation, answer, prompt_tokens, with_usage), generation.close)

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
        usage = _usage(prompt_tokens, generation.sampled_tokens)
        # The prompt's ids may come with each sample.
        size = generation.sampled_tokens + sum(len(job.prompt) for job in generation.jobs)
        return await self._apart(size, lambda: _json_response(answer.complete(deltas, usage)))

    async def _events(
        self, generation: Generation, answer: Answer, prompt_tokens: int, with_usage: bool
    ) -> AsyncIterator[str]:
        try:
            for chunk in answer.opening():
                yield _event(chunk)
            async for delta in generation.deltas():
                yield _event(answer.chunk(delta))
        except Exception as error:
            yield _event(as_api_error(error).body())
        else:
            if with_usage:
                yield _event(answer.closing(_usage(prompt_tokens, generation.sampled_tokens)))
            yield "data: [DONE]\n\n"

    async def _read(self, cls: type[R], request: Request) -> tuple[R, int]:
        """Return the checked request and the bytes of its body. ApiError 413 or 408 for one too large or slow."""
        too_large = ApiError(413, f"the request is larger than {MAX_BODY // 2**20} MiB")
        if int(request.headers.get("content-length", 0)) > MAX_BODY:
            raise too_large
        body = bytearray()
        try:
            async with asyncio.timeout(BODY_SECONDS):
                async for part in request.stream():
                    body += part
                    if len(body) > MAX_BODY:
                        raise too_large
        except TimeoutError:
            raise ApiError(408, f"the request was not sent within {BODY_SECONDS:g} s: send it faster") from None

        def checked() -> R:
            parsed = parse(cls, bytes(body))
            return parsed

        return await self._apart(len(body), checked), len(body)

    async def _apart(self, size: int, work: Callable[[], T]) -> T:
        """Return the result of `work` on `size` characters: a long text does not keep other requests waiting."""
        if size <= SHORT:
            return work()
        return await asyncio.get_running_loop().run_in_executor(self.worker, work)

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


class EventStream(StreamingResponse):
    """Server-sent events; calls `close` when all is sent, or the client has left, or sending failed."""

    media_type = "text/event-stream"

    def __init__(self, events: AsyncIterator[str], close: Callable[[], None]) -> None:
        super().__init__(events, headers={"Cache-Control": "no-cache"})
        self._close = close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._close()


async def while_connected(request: Request, work: Coroutine[Any, Any, T]) -> T | Response:
    """Return the work's result, unless the client leaves first: then the work is cancelled."""

    async def leaving() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    task, left = asyncio.ensure_future(work), asyncio.ensure_future(leaving())
    try:
        await asyncio.wait({task, left}, return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else Response(status_code=LEFT)
    finally:
        task.cancel()
        left.cancel()


async def _only_json(request: Request) -> None:
    """Refuse a POST whose body is not JSON: a web page can send other kinds to any server without being let."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if request.method == "POST" and kind != "application/json":
        raise ApiError(400, "the body must be JSON: send the header `Content-Type: application/json`")


async def _on_error(_: Request, error: Exception) -> Response:
    answer = as_api_error(error)
    headers = {"Retry-After": "1"} if answer.status == 503 else {}
    if answer.status == 408:  # the rest of the body may never come
        headers["Connection"] = "close"
    return JSONResponse(answer.body(), answer.status, headers)


async def _on_http_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return JSONResponse(ApiError(error.status_code, str(error.detail)).body(), error.status_code)


async def on_leaving(_: Request, __: Exception) -> Response:
    """Answer nobody: the client hung up within its request."""
    return Response(status_code=LEFT)


def _json_response(answer: dict[str, Any]) -> Response:
    """Write the answer as JSON, one choice at a time, so that other threads may run in between."""
    choices = ",".join(map(_dump, answer["choices"]))
    rest = _dump({name: value for name, value in answer.items() if name != "choices"})
    return Response(f'{rest[:-1]},"choices":[{choices}]}}', media_type="application/json")


def _event(body: dict[str, Any]) -> str:
    return f"data: {_dump(body)}\n\n"


def _dump(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def _usage(prompt: int, completion: int) -> dict[str, int]:
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
