"""The thread on which programs run, and the OpenAI-compatible endpoint that they call.

An async function runs on the thread's event loop, with a client that needs no socket. A command is a process with a
group of its own, which reaches the endpoint on 127.0.0.1. Whatever a program does costs its own rollout; what ends this
thread ends the step, with one error.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import json
import os
import queue
import shlex
import signal
import tempfile
import threading
import time
import traceback
from collections.abc import Coroutine, Sequence
from dataclasses import replace
from typing import IO, Any

from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response

from hone.environments.agents import AgentEnv, ProgramFailed, Rewarded, checked_rollout
from hone.errors import Halt, UserError
from hone.grading import last_line
from hone.inference.server import http
from hone.inference.server.protocol import ApiError, ChatRequest, parse
from hone.orchestrator.agents import GAVE_UP, AgentRequest, Call, ProgramRollout
from hone.processes import Process
from hone.redaction import redact
from hone.serving import serving_here
from hone.types import Outcome, Segment

BATCH_WAIT_SECONDS = 0.02
"""Time without a new call after which those that wait are sampled, though other programs still run."""
BLOCKED_AFTER_SECONDS = 60.0
"""Time beyond a rollout's own after which a thread that reports nothing counts as blocked."""
CLEANUP_SECONDS = 5.0
"""Time that what programs left behind gets to end, once it is cancelled."""
MAX_OUTPUT = 64 * 2**20
"""Bytes that a command may print, or write to its standard error."""
TAIL = 4096
"""Characters of its errors that are kept."""


class Host:
    """Runs the programs of `rollouts` while it is open."""

    def __init__(self, task: AgentEnv, rollouts: Sequence[ProgramRollout]) -> None:
        self.task, self.rollouts = task, rollouts
        self._by_key = {rollout.api_key: rollout for rollout in rollouts}
        self._news: queue.SimpleQueue[Call | str] = queue.SimpleQueue()
        self._waiting: list[Call] = []
        self._left, self._live = len(rollouts), 0
        self._error: BaseException | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="agents", daemon=True)
        self._url = ""
        handlers = {"POST /v1/chat/completions": self._chat, "GET /v1/models": self._models}
        self.app = http.application(handlers, self._rollout)

    def __enter__(self) -> Host:
        self._thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        """End what still runs: programs, their processes, the endpoint."""
        with contextlib.suppress(RuntimeError):  # the loop is closed already
            self._loop.call_soon_threadsafe(lambda: self._main.cancel())  # once the thread has made it
        self._thread.join(BLOCKED_AFTER_SECONDS)

    def waiting_calls(self) -> list[Call]:
        """Wait for calls, and return those to sample now; none once all programs have ended. Raises Halt."""
        last = time.monotonic()
        while self._left:
            self._waiting = [call for call in self._waiting if not call.future.done()]  # without those that were left
            missing = self._live - len({call.rollout for call in self._waiting})
            if self._waiting and missing <= 0 and self._news.empty():
                break
            try:
                news = self._news.get(timeout=BATCH_WAIT_SECONDS if self._waiting else 1.0)
            except queue.Empty:
                if self._waiting:
                    break
                patience = self.task.agent_limits.timeout + BLOCKED_AFTER_SECONDS
                if not self._thread.is_alive() or time.monotonic() - last > patience:
                    raise self._halt() from self._error
                continue
            last = time.monotonic()
            if isinstance(news, Call):
                self._waiting.append(news)
            else:
                self._live += 1 if news == "begun" else -1
                self._left -= news == "ended"
        waiting, self._waiting = self._waiting, []
        return waiting if self._left else []

    def answer(self, calls: Sequence[Call], turns: Sequence[Segment]) -> None:
        """Give the calls what was sampled for them."""

        def give() -> None:
            for call, turn in zip(calls, turns, strict=True):
                if not call.future.done():
                    call.future.set_result(turn)

        try:
            self._loop.call_soon_threadsafe(give)
        except RuntimeError:  # the thread has ended: maybe because no program was left to wait for these calls
            if self._error is not None:
                raise self._halt() from self._error

    def _halt(self) -> Halt:
        if self._error is not None:
            return Halt(f"the thread that runs the agent's programs has ended ({last_line(str(self._error))})")
        if not self._thread.is_alive():
            return Halt("the thread that runs the agent's programs has ended")
        return Halt("a program of the agent keeps its event loop from running: await what takes long, or use a command")

    def _run(self) -> None:
        try:
            asyncio.set_event_loop(self._loop)
            self._main = self._loop.create_task(self._all())
            with contextlib.suppress(asyncio.CancelledError):
                self._loop.run_until_complete(self._main)
        except BaseExceptionGroup as errors:
            self._error = errors.exceptions[0]
        except BaseException as error:
            self._error = error
        finally:
            with contextlib.suppress(Exception):
                left = asyncio.all_tasks(self._loop)  # what programs began and forgot
                for task in left:
                    task.cancel()
                if left:
                    self._loop.run_until_complete(asyncio.wait(left, timeout=CLEANUP_SECONDS))
            self._loop.close()

    async def _all(self) -> None:
        async with contextlib.AsyncExitStack() as stack:
            if self.task.run is None:
                self._url = await stack.enter_async_context(serving_here(self.app)) + "/v1"
            places = asyncio.Semaphore(self.task.agent_limits.concurrency)
            async with asyncio.TaskGroup() as group:
                for rollout in self.rollouts:
                    group.create_task(self._one(rollout, places))

    async def _one(self, rollout: ProgramRollout, places: asyncio.Semaphore) -> None:
        """Run the program of one rollout; note how it ended."""
        async with places:
            self._news.put("begun")
            rewarded, failure = Rewarded({}), None
            program = asyncio.create_task(self._program(rollout))
            try:
                done, _ = await asyncio.wait({program}, timeout=self.task.agent_limits.timeout)
                if not done:
                    failure = Outcome.GRADER_TIMEOUT, f"the program took more than {self.task.agent_limits.timeout:g} s"
                elif program.cancelled():
                    failure = Outcome.GRADER_ERROR, "the program cancelled itself"
                elif (error := program.exception()) is None:
                    rewarded = program.result()
                else:
                    text = redact("".join(traceback.format_exception(error)))
                    failure = Outcome.GRADER_ERROR, text[-TAIL:]
                    if isinstance(error, ProgramFailed):
                        failure = error.outcome, str(error)
                        rewarded = Rewarded({}, untrained=error.untrained)
                    # What a command says of an error need not name its cause.
                    if rollout.limit and (self.task.command is not None or _tells(error, rollout.limit)):
                        rewarded, failure = replace(GAVE_UP, untrained=rewarded.untrained), None
            finally:
                program.cancel()  # one that does not heed it is left behind, and its key refused
                rollout.close(rewarded, failure)
                self._news.put("ended")
                if self.task.run is None:
                    await asyncio.wait({program}, timeout=CLEANUP_SECONDS)  # until its processes are gone

    async def _program(self, rollout: ProgramRollout) -> Rewarded:
        """Return the rewards; whatever goes wrong with the program or its rewards is an exception of this task."""
        task = self.task
        try:
            if task.run is None and task.command is None:
                return await task.episode(self._url, rollout.api_key, rollout.example)
            given = await (self._function if task.run is not None else self._process)(rollout)
            try:
                return checked_rollout(given)
            except ValueError as error:
                raise ProgramFailed(str(error)) from None
        except (SystemExit, KeyboardInterrupt) as error:  # they would end the loop
            raise ProgramFailed(f"the program raised {type(error).__name__}({error})") from None

    async def _function(self, rollout: ProgramRollout) -> Any:
        import httpx
        import openai

        assert self.task.run is not None
        inner: Any  # later versions of openai have a fork of httpx, whose clients are called alike
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=self.app)) as inner:
            url = "http://127.0.0.1/v1"
            client = openai.AsyncOpenAI(
                api_key=rollout.api_key, base_url=url, http_client=inner, max_retries=0, timeout=None
            )
            return await self.task.run(client, copy.deepcopy(rollout.example))

    async def _process(self, rollout: ProgramRollout) -> Any:
        """Run the command; return the JSON of the last line that it prints."""
        assert self.task.command is not None
        example = {name: getattr(rollout.example, name) for name in ("id", "prompt", "answer", "info")}
        with contextlib.ExitStack() as stack:  # files, not pipes: what the command starts may hold those open
            given, out, err = (stack.enter_context(tempfile.TemporaryFile("a+b")) for _ in range(3))
            given.write(json.dumps(example, ensure_ascii=False, default=str).encode("utf-8", "replace") + b"\n")
            given.seek(0)
            process = Process(
                shlex.split(self.task.command),
                env=self.task.environ(self._url, rollout.api_key),
                dies_with_parent=signal.SIGKILL,
                stdin=given,
                stdout=out,
                stderr=err,
            )
            try:
                while process.poll() is None and max(_size(out), _size(err)) <= MAX_OUTPUT:
                    await asyncio.sleep(BATCH_WAIT_SECONDS)
            finally:
                process.kill()
                until = time.monotonic() + CLEANUP_SECONDS
                while process.poll() is None and time.monotonic() < until:
                    await asyncio.sleep(BATCH_WAIT_SECONDS)
            printed, said, size = _tail(out), redact(_tail(err))[-TAIL:], max(_size(out), _size(err))
        code = process.code
        if size > MAX_OUTPUT:
            raise ProgramFailed(f"the program printed more than {MAX_OUTPUT // 2**20} MiB")
        if code:
            words = f"the program ended with code {code}: {last_line(said) or 'it said nothing'}"
            raise ProgramFailed(words) from (RuntimeError(said) if said else None)
        line = next((line for line in reversed(printed.splitlines()) if line.strip()), "")
        if not line:
            raise ProgramFailed("the program printed nothing; its last line is to be its rewards as JSON")
        try:
            return json.loads(line)
        except (ValueError, RecursionError):
            raise ProgramFailed(f"the last line that the program printed is not JSON: {line[:200]!r}") from None

    async def _models(self, _: HttpRequest) -> Response:
        card = {"id": "policy", "object": "model", "created": 0, "owned_by": "hone"}
        return JSONResponse({"object": "list", "data": [card]})

    async def _chat(self, request: HttpRequest) -> Response:
        rollout, again = self._rollout(request), request.headers.get("x-stainless-retry-count", "0") != "0"
        try:
            raw = await http.read_body(request, rollout.largest_body, rollout.too_large)
            async with rollout.entering:
                if not again:
                    rollout.check_open()
                body = await http.apart(None, len(raw), lambda: parse(AgentRequest, raw))
                if again and (known := rollout.repeated(body)):
                    return _reply(known, body)
                answered = await self._begin(request, rollout, body)
            return await http.while_connected(request, answered)
        except (ApiError, UserError) as error:
            rollout.refused += http.as_api_error(error).status < 500
            raise

    async def _begin(self, request: HttpRequest, rollout: Any, body: ChatRequest) -> Coroutine[Any, Any, Response]:
        """Begin a call; return what waits for its answer."""
        call = await rollout.begin(body, request.headers.get("x-session-id", ""))
        self._news.put(call)
        return self._answered(call, body)

    async def _answered(self, call: Call, body: ChatRequest) -> Response:
        try:
            turn = await call.future
            call.rollout.commit(call, turn)
        finally:
            call.rollout.drop(call)  # does nothing once it is recorded
        return _reply(call, body)

    def _rollout(self, request: HttpRequest) -> ProgramRollout:
        rollout = self._by_key.get(http.api_key_of(request))
        if rollout is None:
            raise ApiError(401, "the API key names no rollout of this step", None, "invalid_api_key")
        return rollout


def _size(file: IO[bytes]) -> int:
    return os.fstat(file.fileno()).st_size


def _tail(file: IO[bytes]) -> str:
    """Return the end of what a command wrote into a file."""
    file.seek(max(0, _size(file) - 2**16))
    return file.read(2**16).decode(errors="replace")


def _tells(error: BaseException | None, words: str) -> bool:
    """Return True if an error, one of its group, or one in whose place it was raised has these words."""
    while error is not None:
        if words in "".join(traceback.format_exception(error)):
            return True
        error = error.__cause__ or error.__context__
    return False


def _reply(call: Call, body: ChatRequest) -> Response:
    """Return the answer to a call."""
    assert call.turn is not None
    head = {"id": f"chatcmpl-{call.rollout.sample_id}-{call.number}", "created": 0, "model": body.model or "policy"}
    used = http.usage(len(call.request.prompt_ids), call.turn.num_sampled)
    return http.chat_answer(body, head, call.reply, call.turn.stop_reason, used)
