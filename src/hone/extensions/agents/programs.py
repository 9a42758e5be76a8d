"""Rollouts of a program: a function, a command, or an overridden `AgentEnv.program`.

An async function runs on the driver's event loop, with a client that needs no socket. A command is a process group that
calls a server on 127.0.0.1.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import json
import os
import shlex
import signal
import tempfile
import time
import traceback
from dataclasses import replace
from typing import IO, TYPE_CHECKING, Any

from hone.environments.driver import CLEANUP_SECONDS, TAIL, Model, failed
from hone.evaluation.text import TextModel
from hone.extensions.agents.calls import ModelCalls, ProgramCalls
from hone.extensions.agents.forwarded import ForwardedCalls
from hone.extensions.agents.rewards import AgentLimits, ProgramFailed, Rewarded, checked_rollout
from hone.grading import last_line
from hone.inference.conversations import IdsModel
from hone.processes import Process
from hone.redaction import redact
from hone.types import Example, Outcome, Rollout

if TYPE_CHECKING:
    from hone.extensions.agents.environment import AgentEnv

NO_CALL = "the program made no call that was answered"
POLL_SECONDS = 0.02
"""Seconds between checks of a command."""
MAX_OUTPUT = 64 * 2**20
"""Maximum bytes that a command may write to stdout, and to stderr."""
GAVE_UP = Rewarded({"reward": 0.0}, gave_up=True)
"""Rewards of a program that failed at a call which was refused because the model had used up a limit."""


async def roll_out(env: AgentEnv, model: Model, example: Example) -> Rollout:
    """Run the program on an example, and return the rollout. If the program fails, only this rollout fails."""
    calls = calls_of(model, env.agent_limits)
    rewarded, failure = Rewarded({}), None
    program = asyncio.create_task(_guarded(env, calls, example))
    try:
        done, _ = await asyncio.wait({program}, timeout=env.agent_limits.timeout)
        if not done:
            failure = Outcome.GRADER_TIMEOUT, f"the program took more than {env.agent_limits.timeout:g} s"
        elif program.cancelled():
            failure = Outcome.GRADER_ERROR, "the program cancelled itself"
        elif (error := program.exception()) is None:
            rewarded = program.result()
        else:
            failure = failed("".join(traceback.format_exception(error)))
            if isinstance(error, ProgramFailed):
                failure = failed(str(error), error.outcome)
                rewarded = Rewarded({}, untrained=error.untrained)
            # A command's error message may not name its cause.
            if calls.limit and (env.command is not None or _tells(error, calls.limit)):
                rewarded, failure = replace(GAVE_UP, untrained=rewarded.untrained), None
    finally:
        program.cancel()  # a program that ignores this is left; its key is refused
        answered = calls.close(rewarded.untrained)
        if env.run is None:
            await asyncio.wait({program}, timeout=CLEANUP_SECONDS)  # until its processes are gone
    failure = rewarded.miscounted(answered) or failure
    call_rewards = rewarded.calls if failure is None else None
    if failure is None and not answered:
        failure = Outcome.GRADER_ERROR, calls.limit or NO_CALL
    state = rewarded.state(calls.limit, answered)
    return replace(model.rollout(call_rewards), state=state, failure=failure, branches=True)


def calls_of(model: Model, limits: AgentLimits) -> ModelCalls:
    if isinstance(model, TextModel):
        return ForwardedCalls(model, limits)
    assert isinstance(model, IdsModel), "no program runs on a script"
    return ProgramCalls(model, limits)


async def _guarded(env: AgentEnv, calls: Any, example: Example) -> Rewarded:
    try:
        return await env.program(calls, example)
    except (SystemExit, KeyboardInterrupt) as error:  # they would end the loop
        raise ProgramFailed(f"the program raised {type(error).__name__}({error})") from None


async def run_program(env: AgentEnv, calls: Any, example: Example) -> Rewarded:
    if env.run is not None:
        async with calls.client() as client:
            given = await env.run(client, copy.deepcopy(example))
    else:
        given = await _process(env, calls, example)
    try:
        return checked_rollout(given)
    except ValueError as error:
        raise ProgramFailed(str(error)) from None


async def _process(env: AgentEnv, calls: Any, example: Example) -> Any:
    assert env.command is not None
    told = {name: getattr(example, name) for name in ("id", "prompt", "answer", "info")}
    with contextlib.ExitStack() as stack:  # not pipes: the command's children may hold them open
        given, out, err = (stack.enter_context(tempfile.TemporaryFile("a+b")) for _ in range(3))
        given.write(json.dumps(told, ensure_ascii=False, default=str).encode("utf-8", "replace") + b"\n")
        given.seek(0)
        process = Process(
            shlex.split(env.command),
            env=env.environ(await calls.url(), calls.api_key),
            dies_with_parent=signal.SIGKILL,
            stdin=given,
            stdout=out,
            stderr=err,
        )
        try:
            while process.poll() is None and max(_size(out), _size(err)) <= MAX_OUTPUT:
                await asyncio.sleep(POLL_SECONDS)
        finally:
            process.kill()
            until = time.monotonic() + CLEANUP_SECONDS
            while process.poll() is None and time.monotonic() < until:
                await asyncio.sleep(POLL_SECONDS)
        printed, said, size = _tail(out), redact(_tail(err))[-TAIL:], max(_size(out), _size(err))
    code = process.code
    if size > MAX_OUTPUT:
        raise ProgramFailed(f"the program printed more than {MAX_OUTPUT // 2**20} MiB")
    if code:
        words = f"the program ended with code {code}: {last_line(said) or 'it said nothing'}"
        raise ProgramFailed(words) from (RuntimeError(said) if said else None)
    line = next((line for line in reversed(printed.splitlines()) if line.strip()), "")
    if not line:
        raise ProgramFailed("the program printed nothing; its last line must be its rewards as JSON")
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        raise ProgramFailed(f"the last line that the program printed is not JSON: {line[:200]!r}") from None


def _size(file: IO[bytes]) -> int:
    return os.fstat(file.fileno()).st_size


def _tail(file: IO[bytes]) -> str:
    file.seek(max(0, _size(file) - 2**16))
    return file.read(2**16).decode(errors="replace")


def _tells(error: BaseException | None, words: str) -> bool:
    while error is not None:
        if words in "".join(traceback.format_exception(error)):
            return True
        error = error.__cause__ or error.__context__
    return False
