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
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from fastapi import Depends, FastAPI, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from hone import rng
from hone.errors import UserError
from hone.inference.server.answers import Answer, ChatAnswer, CompletionAnswer, merged
from hone.inference.server.calls import CallReader
from hone.inference.server.generation import Delta, Generation
from hone.inference.server.http import (
    Bodies,
    EventStream,
    characters,
    check_size_of_json,
    event,
    json_answer,
    on_error,
    on_http_error,
    on_leaving,
    only_json,
    while_connected,
)
from hone.inference.server.metrics import Metrics
from hone.inference.server.prompts import AboutPrompts
from hone.inference.server.protocol import (
    ApiError,
    ChatRequest,
    CompletionRequest,
    GenerationRequest,
    SampleFailed,
    ServiceEnded,
    Strict,
    UpdateRequest,
    as_api_error,
    parse,
)
from hone.inference.server.service import Service
from hone.inference.server.weights import WeightsFolder
from hone.inference.types import Job
from hone.model.chat import ChatRenderer

SHORT = 4096
"""Characters that are tokenised in about a millisecond."""

AT_ONCE = 16
"""Prompts of a request that are tokenised before it is another's turn."""

T = TypeVar("T")
R = TypeVar("R", bound=Strict)


class Api:
    """One served model. `seed` gives requests that bring none their randomness: request k has (seed, "request", k)."""

    def __init__(
        self,
        service: Service,
        renderer: ChatRenderer,
        name: str,
        weights: WeightsFolder | None,
        seed: int,
        bodies: Bodies,
    ) -> None:
        self.service, self.renderer, self.name, self.weights, self.seed = service, renderer, name, weights, seed
        self.metrics = Metrics(service)
        self.created, self.instance = int(time.time()), uuid.uuid4().hex
        self.updating = asyncio.Lock()
        self._requests = 0
        self.bodies = bodies
        self.longest = self.context * max(map(len, renderer.tokenizer.get_vocab()))
        """Characters beyond which no text fits into the context: that many of the longest token."""
        # One thread: each would keep the memory of the longest text it has met.
        self._worker = ThreadPoolExecutor(1, "tokenizer")

    def close(self) -> None:
        self._worker.shutdown(wait=False, cancel_futures=True)

    @property
    def context(self) -> int:
        return self.service.engine.model.config.max_position_embeddings

    def card(self) -> dict[str, Any]:
        facts = {"max_model_len": self.context, "policy_version": self.service.engine.version}
        facts |= {"policy_path": self.service.weights_path, "parameters": self.service.engine.model.num_parameters}
        facts |= {"instance": self.instance, "idle_seconds": self.service.idle_seconds}
        return {"id": self.name, "object": "model", "created": self.created, "owned_by": "hone", **facts}

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
            "paused": service.paused,
            "failed_steps": service.failed_steps,
        }
        if service.failed_steps:
            body["last_failure"] = service.last_failure
        return JSONResponse(body, 200 if body["status"] == "ok" else 503)

    async def prometheus(self) -> Response:
        return PlainTextResponse(self.metrics.text(), media_type="text/plain; version=0.0.4")

    async def pause(self) -> Response:
        await asyncio.wrap_future(self.service.pause())
        return JSONResponse({"status": "paused", "samples": self.service.running})

    async def resume(self) -> Response:
        await asyncio.wrap_future(self.service.resume())
        return JSONResponse({"status": "running", "samples": self.service.running})

    async def update_weights(self, request: Request) -> Response:
        """Loads beside the running engine; the swap itself is between two steps."""
        if self.weights is None:
            raise ApiError(403, "this server takes no weights: start it with --weights-root FOLDER")
        body, _ = await self._read(UpdateRequest, request)
        engine = self.service.engine
        async with self.updating:
            before = engine.version
            loaded = await asyncio.to_thread(self.weights.load, body.path, engine.model)
            await asyncio.wrap_future(self.service.update(loaded, body.version, body.path))
            self.weights.reuse(loaded)
        return JSONResponse({"status": "ok", "policy_version": body.version, "previous_version": before})

    async def completions(self, request: Request) -> Response:
        body, size = await self._read(CompletionRequest, request)
        self._check_model(body.model)
        prompts = await self._apart(size, partial(self._prompts, body))
        ids: list[list[int]] = []
        for start in range(0, len(prompts), AT_ONCE):  # texts of other requests may come in between
            part = prompts[start : start + AT_ONCE]
            ids += await self._apart(size, partial(list, map(self._ids, part)))
        top, seed = body.logprobs or 0, self._fresh_seed()
        max_tokens = 16 if body.max_tokens is None else body.max_tokens
        jobs = self._jobs(body, ids, max_tokens, seed=seed, top=top)
        if body.about_prompts:
            about = AboutPrompts(body, ids, self.renderer.tokenizer)
            return await while_connected(request, self._about_prompts(body, jobs, about))
        return await self._answer(request, body, jobs, CompletionAnswer, body.logprobs is not None)

    async def chat(self, request: Request) -> Response:
        body, size = await self._read(ChatRequest, request)
        self._check_model(body.model)
        if body.top_logprobs and not body.logprobs:
            raise ApiError(400, "top_logprobs needs logprobs = true", "top_logprobs")
        tools = body.tools or None
        messages = await self._apart(size, partial(self._conversation, body))
        prompt = await self._apart(size, lambda: self._render(messages, tools))
        room = self.context - len(prompt)
        max_tokens = body.max_completion_tokens or body.max_tokens or room
        if room < 1:
            raise ApiError(
                400, f"the conversation has {len(prompt)} tokens, the model's context {self.context}: shorten it"
            )
        stop_ids = () if body.ignore_eos else self.renderer.stop_ids
        top, seed = body.top_logprobs or 0, self._fresh_seed()
        jobs = self._jobs(body, [prompt], max_tokens, seed=seed, top=top, stop_ids=stop_ids)
        calls = partial(CallReader, self.renderer, tools or []) if body.reads_calls else None
        return await self._answer(request, body, jobs, partial(ChatAnswer, calls=calls), bool(body.logprobs))

    async def _answer(
        self, request: Request, body: GenerationRequest, jobs: list[Job], kind: Callable[..., Answer], logprobs: bool
    ) -> Response:
        answer, generation = self._begun(body, jobs, kind, logprobs)
        prompt_tokens = sum(len(job.prompt) for job in jobs) // body.n
        if not body.stream:
            return await while_connected(request, self._whole(generation, answer, prompt_tokens))
        try:
            await generation.start()
        except BaseException:
            generation.close()
            raise
        with_usage = bool(body.stream_options and body.stream_options.include_usage)
        return EventStream(self._events(generation, answer, prompt_tokens, with_usage), generation.close)

    def _begun(
        self, body: GenerationRequest, jobs: list[Job], kind: Callable[..., Answer], logprobs: bool
    ) -> tuple[Answer, Generation]:
        ident, prompts, tokenizer = uuid.uuid4().hex, [job.prompt for job in jobs], self.renderer.tokenizer
        answer = kind(ident, int(time.time()), self.name, tokenizer, prompts, logprobs, body.return_token_ids)
        return answer, Generation(self.service, jobs, tokenizer, body.stops, body.stream)

    async def _about_prompts(self, body: CompletionRequest, jobs: list[Job], about: AboutPrompts) -> Response:
        """An answer that repeats or scores the prompts; without a token more if `max_tokens` is 0."""
        answer, generation = self._begun(body, jobs, CompletionAnswer, body.logprobs is not None)
        await about.score(self.service)
        deltas = [Delta(i, "", [], "length", None) for i in range(len(jobs))]
        if body.max_tokens != 0:
            deltas = await self._deltas(generation)
        usage = _usage(sum(map(len, about.ids)), generation.sampled_tokens)

        def write() -> Response:
            body = answer.complete(deltas, usage)
            about.tell(body["choices"])
            return json_answer(body)

        return await self._apart(sum(usage.values()), write)

    async def _whole(self, generation: Generation, answer: Answer, prompt_tokens: int) -> Response:
        deltas = await self._deltas(generation)
        usage = _usage(prompt_tokens, generation.sampled_tokens)
        # The prompt's ids may come with each sample.
        size = generation.sampled_tokens + sum(len(job.prompt) for job in generation.jobs)
        return await self._apart(size, lambda: json_answer(answer.complete(deltas, usage)))

    async def _deltas(self, generation: Generation) -> list[Delta]:
        """All that each sample gains."""
        deltas = []
        try:
            await generation.start()
            async for delta in generation.deltas():
                deltas.append(delta)
                await asyncio.sleep(0)  # thousands of samples may end at once: others get their turn in between
        finally:
            generation.close()
        return merged(deltas, len(generation.samples))

    async def _events(
        self, generation: Generation, answer: Answer, prompt_tokens: int, with_usage: bool
    ) -> AsyncIterator[str]:
        try:
            for chunk in answer.opening():
                yield event(chunk)
            async for delta in generation.deltas():
                yield event(answer.chunk(delta))
        except Exception as error:
            yield event(as_api_error(error).body())
        else:
            if with_usage:
                yield event(answer.closing(_usage(prompt_tokens, generation.sampled_tokens)))
            yield "data: [DONE]\n\n"

    async def _read(self, cls: type[R], request: Request) -> tuple[R, int]:
        """Parse and check the request's body; returns it and its size in bytes."""

        def read(body: bytearray) -> R:
            check_size_of_json(body)
            parsed = parse(cls, bytes(body))
            if issubclass(cls, GenerationRequest):
                parsed.check()
            return parsed

        async with self.bodies.read(request) as body:
            return await self._apart(len(body), partial(read, body)), len(body)

    def _check_model(self, name: str | None) -> None:
        if name is not None and name != self.name:
            raise ApiError(
                404, f"there is no model {name!r} here: this server has {self.name!r}", "model", "model_not_found"
            )

    async def _apart(self, size: int, work: Callable[[], T]) -> T:
        """The result of `work` on a text of `size` characters: a long one does not keep other requests waiting."""
        if size <= SHORT:
            return work()
        return await asyncio.get_running_loop().run_in_executor(self._worker, work)

    def _jobs(self, body: GenerationRequest, prompts: list[list[int]], max_tokens: int, **how: Any) -> list[Job]:
        self._check_ids(body.stop_token_ids, "stop_token_ids")
        return body.jobs(prompts, max_tokens, context=self.context, **how)

    def _prompts(self, body: CompletionRequest) -> list[str | list[int]]:
        """The prompts; ApiError 400 for one that is too long, before it is tokenised."""
        prompts = body.prompts()
        for prompt in prompts:
            if isinstance(prompt, str):
                self._check_length("a prompt", len(prompt), "prompt")
            elif len(prompt) > self.context:
                words = f"a prompt of {len(prompt)} tokens exceeds the model's context of {self.context}: shorten it"
                raise ApiError(400, words, "prompt")
        return prompts

    def _conversation(self, body: ChatRequest) -> list[dict[str, Any]]:
        """The messages; ApiError 400 if they and the tools are too long, before they are rendered."""
        messages = body.conversation()
        self._check_length("the conversation", characters([messages, body.tools]), "messages")
        return messages

    def _check_length(self, what: str, length: int, param: str) -> None:
        if length > self.longest:
            words = f"{what} has {length} characters, the model's context of {self.context} tokens room for"
            raise ApiError(400, f"{words} {self.longest} at most: shorten it", param)

    def _ids(self, prompt: str | list[int]) -> list[int]:
        if isinstance(prompt, str):
            (encoded,) = self.renderer.tokenizer.encode_batch_fast([prompt])  # lets other threads run; `encode` doesn't
            return encoded.ids
        self._check_ids(prompt, "prompt")
        return prompt

    def _check_ids(self, ids: list[int], param: str) -> None:
        size = self.service.engine.model.config.vocab_size
        wrong = next((token for token in ids if not 0 <= token < size), None)
        if wrong is not None:
            raise ApiError(400, f"token id {wrong} is none of the model's: they go from 0 to {size - 1}", param)

    def _render(self, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None) -> list[int]:
        try:
            return self.renderer.prompt_ids(messages, tools)
        except UserError:
            raise
        except Exception as error:  # the template is the model's: on odd messages it may fail in any way
            raise ApiError(400, f"the model's chat template refuses these messages: {error}", "messages") from error

    def _fresh_seed(self) -> int:
        self._requests += 1
        return rng.key(self.seed, "request", self._requests - 1)


def create_app(
    service: Service,
    renderer: ChatRenderer,
    name: str,
    api_key: str | None = None,
    weights_root: Path | None = None,
    seed: int = 0,
    bodies: Bodies | None = None,
) -> FastAPI:
    """The application that serves `service` under the model name `name`. It starts and ends the service's thread.

    Weights are taken from folders under `weights_root` only; without it, not at all.
    """
    api = Api(service, renderer, name, WeightsFolder(weights_root) if weights_root else None, seed, bodies or Bodies())

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        loop = asyncio.get_running_loop()
        call_sinks = service.deliver
        service.deliver = lambda deliveries: _post(loop, call_sinks, deliveries)
        service.start()
        yield
        await asyncio.to_thread(service.close)
        api.close()

    async def authorised(request: Request) -> None:
        given = request.headers.get("authorization", "").removeprefix("Bearer ")
        if api_key is not None and not hmac.compare_digest(given.encode("latin-1"), api_key.encode()):
            raise ApiError(
                401, "the API key is missing or wrong: send it as `Authorization: Bearer KEY`", None, "invalid_api_key"
            )

    app = FastAPI(title="hone", docs_url=None, redoc_url=None, openapi_url=None, lifespan=lifespan)
    for kind in (ApiError, UserError, SampleFailed, ServiceEnded, Exception):  # the last is logged with its traceback
        app.add_exception_handler(kind, on_error)
    app.add_exception_handler(HTTPException, on_http_error)
    app.add_exception_handler(ClientDisconnect, on_leaving)
    app.add_middleware(api.metrics.counting)

    key = [Depends(authorised), Depends(only_json)]
    app.get("/health")(api.health)
    app.get("/metrics", dependencies=key)(api.prometheus)
    app.get("/v1/models", dependencies=key)(api.models)
    app.get("/v1/models/{name:path}", dependencies=key)(api.model)
    app.post("/v1/completions", dependencies=key)(api.completions)
    app.post("/v1/chat/completions", dependencies=key)(api.chat)
    app.post("/update_weights", dependencies=key)(api.update_weights)
    app.post("/pause", dependencies=key)(api.pause)
    app.post("/resume", dependencies=key)(api.resume)
    return app


def _post(loop: asyncio.AbstractEventLoop, function: Callable[[Any], None], deliveries: Any) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(function, deliveries)


def _usage(prompt: int, completion: int) -> dict[str, int]:
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
