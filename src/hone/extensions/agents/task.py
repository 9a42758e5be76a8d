"""A task for a program (an async function or a command), on rows of data."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from typing import Any

from hone.config.hoist import FUNCTIONS, task_label
from hone.environments.functions import FunctionTask, Source
from hone.environments.rubric import component_name, is_async
from hone.errors import UserError
from hone.extensions.agents.environment import AgentEnv, reward
from hone.extensions.agents.rewards import AgentLimits
from hone.redaction import add_key_variable

SET_BY_HONE = ("OPENAI_BASE_URL", "OPENAI_API_KEY", "no_proxy", "NO_PROXY")
_SECRET = re.compile("KEY|TOKEN|SECRET|PASSW", re.IGNORECASE)


def agent_task(source: Source | None, command: str | None, limits: Any, *data: Any, **more: Any) -> AgentTask:
    return AgentTask(source, command, AgentLimits.of(limits), *data, **more)


class AgentTask(AgentEnv, FunctionTask):
    def __init__(
        self,
        source: Source | None,
        command: str | None,
        limits: AgentLimits,
        *args: Any,
        agent_env: Any = None,
        **kwargs: Any,
    ) -> None:
        run = source.func if source else None
        if run is not None and not is_async(run):
            raise UserError(f"{component_name(run)} is no agent: define it with `async def`")
        found = [Source(reward, source.file if source else None, source.digest if source else f"command {command}")]
        super().__init__(found, *args, **kwargs)
        self.run, self.command, self.agent_limits = run, command, limits
        self.own_label = component_name(run) if run else task_label(FUNCTIONS, {"agent_command": command})
        self.max_turns = limits.max_calls
        self.agent_env = () if agent_env is None else checked_names(agent_env)

    def check_rollouts(self) -> None:
        if self.command is None:
            if self.agent_env:
                raise UserError("agent_env is for agent_command only: leave it out")
            return
        if missing := [name for name in self.agent_env if name not in os.environ]:
            raise UserError(f"agent_env names {missing[0]}, which is not set: set it, or leave it out")
        try:
            program = shlex.split(self.command)[:1]
        except ValueError as error:
            raise UserError(f"agent_command {self.command!r} is no command line: {error}") from None
        if not program or shutil.which(program[0]) is None:
            raise UserError(f"agent_command {self.command!r}: there is no program {' '.join(program)!r} here")


def checked_names(agent_env: Any) -> tuple[str, ...]:
    names = tuple(agent_env) if isinstance(agent_env, list | tuple) else ()
    if not names or not all(isinstance(name, str) and name.isidentifier() for name in names):  # not shown: maybe keys
        raise UserError('agent_env must be a list of names of environment variables, such as ["SEARCH_API_KEY"]')
    if ours := [name for name in names if name in SET_BY_HONE]:
        raise UserError(f"agent_env names {ours[0]}, which hone sets for each rollout: pass yours on by another name")
    for name in filter(_SECRET.search, names):
        add_key_variable(name)
    return names
