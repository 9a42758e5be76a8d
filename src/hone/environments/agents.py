"""A task whose rollouts a program makes: it calls the model as often as it likes, and gives the reward itself.

    async def agent(client: AsyncOpenAI, example: Example) -> float | dict[str, float]: ...

    rl --agent my_agent:agent --data problems.jsonl
    rl --agent-command "python my_agent.py" --data problems.jsonl

An async function runs on the driver's event loop, with a client that needs no socket. A command is a process with a
group of its own, which calls a server on 127.0.0.1.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import json
import math
import os
import re
import shlex
import shutil
import signal
import tempfile
import time
import traceback
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import IO, Any

import numpy as np

from hone.config.hoist import FUNCTIONS, task_label
from hone.environments.driver import CLEANUP_SECONDS, Model
from hone.environments.environment import Completion, Environment
from hone.environments.functions import FunctionTask, Source
from hone.environments.rubric import component_name, inline, is_async
from hone.errors import UserError
from hone.grading import last_line
from hone.processes import Process
from hone.redaction import add_key_variable, redact
from hone.types import BOUND, LARGEST_REWARD, TOO_LARGE, Example, Outcome, Rollout, Score
from hone.web import without_local_proxy

MOST_REWARDS = 64
"""Rewards that a program may give a rollout."""
REWARDED_BY_PROGRAM = "a program rewards its own rollouts"
PASSED_ON = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR")
"""Variables of hone's environment that a command gets."""
SET_BY_HONE = ("OPENAI_BASE_URL", "OPENAI_API_KEY", "no_proxy", "NO_PROXY")
_SECRET = re.compile("KEY|TOKEN|SECRET|PASSW", re.IGNORECASE)
NO_CALL = "the program made no call that was answered"
POLL_SECONDS = 0.02
"""Time between two looks at a command."""
MAX_OUTPUT = 64 * 2**20
"""Bytes that a command may print, or write to its standard error."""
TAIL = 4096
"""Characters of its errors that are stored."""
NOT_REGRADED = "a program made these rollouts and their rewards, so nothing else can grade them"


@dataclass(frozen=True)
class AgentLimits:
    """The bounds of one rollout, and how many run at the same time.

    `max_calls` of the model, `max_tokens` sampled in all of them (None: any number), `timeout` in seconds.
    """

    max_calls: int = 64
    max_tokens: int | None = None
    timeout: float = 600.0
    concurrency: int = 64

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            kind, what = (float | int, "number") if name == "timeout" else (int, "whole number")
            if name == "max_tokens" and value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, kind) or not 0 < value < math.inf:
                raise UserError(f"{name} of an agent is {value!r}; it must be a {what} above 0")

    def reached(self, calls: int, tokens: int) -> str | None:
        """Return the bound that a rollout with so many calls and sampled tokens has used up, in words; None if none."""
        if calls >= self.max_calls:
            return f"the rollout has made its {self.max_calls} calls (max_calls)"
        if self.max_tokens is not None and tokens >= self.max_tokens:
            return f"the rollout has sampled its {self.max_tokens} tokens (max_tokens)"
        return None

    @classmethod
    def of(cls, limits: Any) -> AgentLimits:
        """Return the limits of a config's `agent_limits`. Raises UserError if they are not right."""
        known = cls.__dataclass_fields__
        if limits is not None and not (isinstance(limits, Mapping) and limits.keys() <= known.keys()):
            raise UserError(f"agent_limits is {limits!r}; its keys are {', '.join(known)}")
        return cls(**(limits or {}))


@dataclass(frozen=True)
class Rewarded:
    """What a rollout was worth: scores by name, and their weights (by default 1).

    `right` says if its answer is; by default it is if the first score is at least 1. Calls of the model under one of
    the session ids `untrained` are not the policy's part, and are not trained. `gave_up`: the program failed for a
    bound that the model used up. `calls` are the rewards of its calls, in their order; None: they share the rollout's.
    """

    scores: Mapping[str, float]
    weights: Mapping[str, float] | None = None
    right: bool | None = None
    untrained: frozenset[str] = frozenset()
    gave_up: bool = False
    calls: tuple[float, ...] | None = None

    def state(self, limit: str, calls: int) -> dict[str, Any]:
        """Return what a rollout's trajectory keeps of it, for `AgentEnv.grade_many`."""
        kept = {"rewards": dict(self.scores), "limit": limit, "gave_up": self.gave_up, "calls": calls}
        return kept if self.weights is None else kept | {"weights": dict(self.weights), "right": self.right}

    def miscounted(self, answered: int) -> tuple[Outcome, str] | None:
        """Return the failure of a program that rewards another number of calls than were answered; None if it fits."""
        if self.calls is None or len(self.calls) == answered:
            return None
        return Outcome.GRADER_ERROR, f"the program gave {len(self.calls)} rewards of calls; {answered} were answered"


GAVE_UP = Rewarded({"reward": 0.0}, gave_up=True)
"""The rewards of a program that ended with the error of a call that was refused for a limit: the model used it up."""


class ProgramFailed(Exception):
    """Why a rollout has no reward, in words, and what kind of failure that is. `untrained` as in `Rewarded`."""

    def __init__(
        self, words: str, outcome: Outcome = Outcome.GRADER_ERROR, untrained: frozenset[str] = frozenset()
    ) -> None:
        super().__init__(words)
        self.outcome, self.untrained = outcome, untrained


class AgentEnv(Environment):
    """An environment whose rollouts a program makes: it calls the model, and rewards what came of it.

    It is `run` (an async function of a client and an example), `command` (a command line), or what else `program` does.
    Whatever it does costs its own rollout.
    """

    run: Callable[..., Any] | None = None
    command: str | None = None
    agent_limits: AgentLimits
    patience = 0.02
    why_not_graded = REWARDED_BY_PROGRAM
    grades_early = False

    @property
    def concurrency(self) -> int:  # type: ignore[override]
        return self.agent_limits.concurrency

    async def rollout(self, model: Model, example: Example) -> Rollout:
        """Run the program; note how it ended."""
        calls = model.open(self.agent_limits)
        rewarded, failure = Rewarded({}), None
        program = asyncio.create_task(self._guarded(calls, example))
        try:
            done, _ = await asyncio.wait({program}, timeout=self.agent_limits.timeout)
            if not done:
                failure = Outcome.GRADER_TIMEOUT, f"the program took more than {self.agent_limits.timeout:g} s"
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
                if calls.limit and (self.command is not None or _tells(error, calls.limit)):
                    rewarded, failure = replace(GAVE_UP, untrained=rewarded.untrained), None
        finally:
            program.cancel()  # one that does not heed it is left behind, and its key refused
            answered = calls.close(rewarded.untrained)
            if self.run is None:
                await asyncio.wait({program}, timeout=CLEANUP_SECONDS)  # until its processes are gone
        failure = writable(rewarded.miscounted(answered) or failure)
        own = rewarded.calls if failure is None else None
        if failure is None and not answered:
            failure = Outcome.GRADER_ERROR, calls.limit or NO_CALL
        state = rewarded.state(calls.limit, answered)
        return replace(model.rollout(own), state=state, failure=failure, branches=True)

    async def _guarded(self, calls: Any, example: Example) -> Rewarded:
        try:
            return await self.program(calls, example)
        except (SystemExit, KeyboardInterrupt) as error:  # they would end the loop
            raise ProgramFailed(f"the program raised {type(error).__name__}({error})") from None

    async def program(self, calls: Any, example: Example) -> Rewarded:
        """Make a rollout with these calls of the model; return what it was worth. Raises ProgramFailed."""
        raise NotImplementedError

    def grade_many(
        self, pairs: Iterable[tuple[Example, Completion]], seed: int = 0, groups: Iterable[Hashable] | None = None
    ) -> list[Score]:
        """Return the scores that the program gave. Raises UserError for completions that it did not make."""
        return [self._score(completion) for _, completion in pairs]

    def _score(self, completion: Completion) -> Score:
        if not isinstance(completion, Rollout):
            raise UserError(NOT_REGRADED)
        if completion.failure is not None:
            return Score(math.nan, {}, {}, *completion.failure)
        state = completion.state or {}
        if "rewards" not in state:
            raise UserError(NOT_REGRADED)
        rewards = dict(state["rewards"])
        weights = state.get("weights") or dict.fromkeys(rewards, 1.0)
        total = sum(weights[name] * score for name, score in rewards.items())
        if not abs(total) <= LARGEST_REWARD:
            return Score(math.nan, {}, {}, Outcome.GRADER_ERROR, f"the weighted sum of {rewards} {TOO_LARGE}")
        detail = "; ".join(
            [*([state["limit"]] if state["limit"] else []), *(f"{k} {v:.3g}" for k, v in rewards.items())]
        )
        if state["gave_up"]:
            return Score(total, rewards, weights, Outcome.TRUNCATED, detail)
        right = state.get("right")
        right = next(iter(rewards.values())) >= 1.0 if right is None else right
        return Score(total, rewards, weights, Outcome.CORRECT if right else Outcome.WRONG, detail)


class AgentTask(AgentEnv, FunctionTask):
    """Examples for the program `run` or `command`."""

    def __init__(
        self,
        run: Callable[..., Any] | None,
        command: str | None,
        source: Source | None,
        limits: AgentLimits,
        *args: Any,
        agent_env: Any = None,
        **kwargs: Any,
    ) -> None:
        if run is not None and not is_async(run):
            raise UserError(f"{component_name(run)} is no agent: define it with `async def`")
        found = [Source(reward, source.file if source else None, source.digest if source else f"command {command}")]
        super().__init__(found, *args, **kwargs)
        self.run, self.command, self.agent_limits = run, command, limits
        self.own_label = component_name(run) if run else task_label(FUNCTIONS, {"agent_command": command})
        self.max_turns = limits.max_calls
        self.agent_env = () if agent_env is None else checked_names(agent_env)

    async def program(self, calls: Any, example: Example) -> Rewarded:
        if self.run is not None:
            async with calls.client() as client:
                given = await self.run(client, copy.deepcopy(example))
        else:
            given = await self._process(calls, example)
        try:
            return checked_rollout(given)
        except ValueError as error:
            raise ProgramFailed(str(error)) from None

    async def _process(self, calls: Any, example: Example) -> Any:
        """Run the command; return the JSON of the last line that it prints."""
        assert self.command is not None
        told = {name: getattr(example, name) for name in ("id", "prompt", "answer", "info")}
        with contextlib.ExitStack() as stack:  # files, not pipes: what the command starts may hold those open
            given, out, err = (stack.enter_context(tempfile.TemporaryFile("a+b")) for _ in range(3))
            given.write(json.dumps(told, ensure_ascii=False, default=str).encode("utf-8", "replace") + b"\n")
            given.seek(0)
            process = Process(
                shlex.split(self.command),
                env=self.environ(await calls.url(), calls.api_key),
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
            raise ProgramFailed("the program printed nothing; its last line is to be its rewards as JSON")
        try:
            return json.loads(line)
        except (ValueError, RecursionError):
            raise ProgramFailed(f"the last line that the program printed is not JSON: {line[:200]!r}") from None

    def environ(self, url: str, key: str) -> dict[str, str]:
        """Return the whole environment of the command of one rollout."""
        env = {name: os.environ[name] for name in (*PASSED_ON, *self.agent_env) if name in os.environ}
        return env | without_local_proxy(env) | {"OPENAI_BASE_URL": url, "OPENAI_API_KEY": key}

    def check_rollouts(self) -> None:
        if self.command is None:
            if self.agent_env:
                raise UserError("agent_env is for agent_command: a function runs in hone's own process")
            return
        if missing := [name for name in self.agent_env if name not in os.environ]:
            raise UserError(f"agent_env names {missing[0]}, which is not set: set it, or leave it out")
        try:
            program = shlex.split(self.command)[:1]
        except ValueError as error:
            raise UserError(f"agent_command {self.command!r} is no command line: {error}") from None
        if not program or shutil.which(program[0]) is None:
            raise UserError(f"agent_command {self.command!r}: there is no program {' '.join(program)!r} here")


@inline
def reward(completion: Any) -> float:
    """Stand in for the program's rewards, which no function can compute."""
    raise UserError(NOT_REGRADED)


def checked_names(agent_env: Any) -> tuple[str, ...]:
    """Return the variables that `agent_env` names. Raises UserError if it holds anything else."""
    names = tuple(agent_env) if isinstance(agent_env, list | tuple) else ()
    if not names or not all(isinstance(name, str) and name.isidentifier() for name in names):  # not shown: maybe keys
        raise UserError('agent_env is a list of names of environment variables, such as ["SEARCH_API_KEY"]')
    if ours := [name for name in names if name in SET_BY_HONE]:
        raise UserError(f"agent_env names {ours[0]}, which hone sets for each rollout: pass yours on by another name")
    for name in filter(_SECRET.search, names):
        add_key_variable(name)
    return names


def checked_rollout(given: Any) -> Rewarded:
    """Return what a program gave: rewards, and under `calls` maybe those of its calls. Raises ValueError."""
    own = given.get("calls") if isinstance(given, dict) else None
    if not (isinstance(own, list | tuple) or (isinstance(own, np.ndarray) and own.ndim == 1)):
        return Rewarded(checked_rewards(given))
    if len(given) == 1:
        raise ValueError(
            "the program gave rewards of its calls alone; give the rollout a reward as well, such as "
            '{"correct": 1.0, "calls": […]}'
        )
    calls = tuple(finite(f"calls[{i}]", value) for i, value in enumerate(own))
    return Rewarded(checked_rewards({name: x for name, x in given.items() if name != "calls"}), calls=calls)


def checked_rewards(given: Any) -> dict[str, float]:
    """Return what a program gave as rewards by name; a number is `reward`. Raises ValueError, with the reason."""
    rewards = given if isinstance(given, dict) else {"reward": given}
    if not 0 < len(rewards) <= MOST_REWARDS:
        raise ValueError(f"the program gave {len(rewards)} rewards; give 1 to {MOST_REWARDS}")
    checked: dict[str, float] = {}
    for name, value in rewards.items():
        if not isinstance(name, str) or not name.isprintable() or not 0 < len(name) <= 100:
            raise ValueError(f"the program gave a reward of the name {name!r:.120}; a name is a short text")
        checked[name] = finite(name, value)
    return checked


def finite(name: str, value: Any) -> float:
    """Return a reward as a number. Raises ValueError if it is none, or too large."""
    try:
        number = math.nan if value is None or isinstance(value, str) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not abs(number) <= LARGEST_REWARD:
        raise ValueError(f"the program gave {value!r:.120} as {name}; a reward is a number within {BOUND}")
    return number


def check_agent(agent: Any, command: Any, rewards: Sequence[Any]) -> None:
    """Raise UserError unless exactly one program is given, and nothing else that rewards."""
    if agent is not None and command is not None:
        raise UserError("an agent is a function or a command: leave out one of agent and agent_command")
    if rewards:
        raise UserError("an agent gives the rewards itself: leave out the reward functions")


def writable(failure: tuple[Outcome, str] | None) -> tuple[Outcome, str] | None:
    """Return a failure whose words a file takes: a program's may hold half a surrogate pair, or an API key."""
    return failure and (failure[0], redact(failure[1]).encode("utf-8", "replace").decode())


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
