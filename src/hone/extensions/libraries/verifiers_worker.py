"""verifiers (v1) in a separate process, for `hone.extensions.libraries.verifiers`."""

from __future__ import annotations

import asyncio
import copy
import functools
import hashlib
import inspect
import itertools
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any


def start(
    taskset_id: str, config: dict[str, Any], folder: str, env: dict[str, Any] | None
) -> Callable[[list[Any]], Any]:
    """Return the function that answers questions about a taskset (installed, or a package in `folder`):

    - `["describe"]`: {"sources": digests, "weights": {reward function: weight}}. If verifiers has to make the rollouts,
      {"sources": digests, "env": config of its environment}. If the taskset can't be used, {"refused": why};
    - `["load", limit]`: {"keys": digests of the prompts} or {"refused": why}. Then text is scored without network;
    - `["row", index]`: {"prompt": messages, "answer": text, "key": the task's own key}; null if there are no tasks yet;
    - `["score", index, text, stop_reason]`: {reward function: its score}; null if there are no tasks yet.
    """
    sys.path.append(folder)
    served = LoadedTaskset(taskset_id, config, env)
    return lambda question: getattr(served, question[0])(*question[1:])


IMAGES = "a prompt of more than text, which hone's models don't read"


class TasksetRefused(Exception):
    """A taskset can't be scored; the message says why."""


class LoadedTaskset:
    def __init__(self, taskset_id: str, config: dict[str, Any], env: dict[str, Any] | None) -> None:
        self.id, self.config, self.env = taskset_id, config, env
        self.tasks: list[Any] = []
        self.episodes: str | None = None
        self.here: list[str] = []
        """Names of the episodes' agents that run on this machine without a container."""

    def describe(self) -> dict[str, Any]:
        try:
            self.taskset = self._made()
            self.episodes = "an env was given" if self.env is not None else self._needs_episodes()
            found = {"weights": self._weights()} if self.episodes is None else self._episodes()
            return found | {"sources": self._sources()}
        except TasksetRefused as why:
            return {"refused": str(why)}

    def load(self, limit: int) -> dict[str, Any]:
        self.tasks = list(itertools.islice(self.taskset, limit))
        if self.episodes is None:
            _stay_offline()
        try:
            for i, task in enumerate(self.tasks):
                check_task(task, i, self.episodes is not None, self.here)
        except TasksetRefused as why:
            return {"refused": str(why)}
        return {"keys": [hashlib.blake2b(repr(messages(t)).encode(), digest_size=8).hexdigest() for t in self.tasks]}

    def row(self, index: int) -> dict[str, Any] | None:
        if not self.tasks:
            return None
        task = self.tasks[index]
        answer = getattr(task.data, "answer", None)
        return {
            "prompt": messages(task),
            "answer": answer if isinstance(answer, str) else "",
            "key": task.key,
        }

    def score(self, index: int, text: str, stop_reason: str) -> dict[str, float] | None:
        if not self.tasks:
            return None
        task = self.tasks[index]
        trace = trace_of(task, text, stop_reason)
        asyncio.run(_score(task, trace))
        missing = [name for name, reward in trace.rewards.items() if reward is None]
        if missing:
            raise ValueError(f"the reward function {missing[0]} was not run")
        names = [fn.__name__ for fn in task.hooks("reward")]
        scores = {name: trace.rewards[name].score for name in names if name in trace.rewards}
        keyed = [name for name in names if name not in scores]
        extra = [reward.score for name, reward in trace.rewards.items() if name not in scores]
        if len(keyed) > 1:
            raise ValueError(f"{' and '.join(keyed)} both return several scores; hone cannot tell them apart")
        return scores | {name: float(sum(extra)) for name in keyed}

    def _made(self) -> Any:
        import verifiers.v1 as vf  # pyright: ignore[reportMissingImports]
        from pydantic import ValidationError
        from verifiers.v1.utils import loaders  # pyright: ignore[reportMissingImports]

        try:
            made = loaders.taskset_config_type(self.id).model_validate({**self.config, "id": self.id})
            taskset = vf.load_taskset(made)
            env = loaders.environment_class(self.id)
        except ValidationError as error:
            raise TasksetRefused(_fault(error)) from None
        except (ModuleNotFoundError, AttributeError, TypeError, ValueError) as error:
            raise TasksetRefused(f"cannot be loaded: {error}{_missing(error)}") from None
        self.drives = env.__name__
        return taskset

    def _needs_episodes(self) -> str | None:
        """Return the reason why verifiers must make the rollouts; None if prompts and answers suffice."""
        kind, config = type(self.taskset).task_type(), self.taskset.config
        if self.drives != "SingleAgentEnv":
            return f"its {self.drives} has rules of its own"
        if kind.NEEDS_CONTAINER:
            return "its tasks need a container"
        if type(self.taskset).toolsets(config) or kind.toolsets(config.task):
            return "its tasks come with tools"
        for name in ("setup", "finalize", "score"):
            if _overrides(kind, name):
                return f"its tasks have a {name}() of their own"
        if config.task.judges or _overrides(kind, "plugged_judges"):
            return "a judge gives its rewards"
        if needing := [fn.__name__ for fn in self._rewards() if _required(fn, "runtime")]:
            return f"its reward {' and '.join(needing)} looks at a runtime"
        if any(problem_of(task.data) for task in itertools.islice(self.taskset, 1)):
            return "its tasks are more than a prompt of text"
        return None

    def _rewards(self) -> list[Callable[..., Any]]:
        kind = type(self.taskset).task_type()
        # without content: only to list reward functions
        return kind(kind.data_type().model_construct(), self.taskset.config.task).hooks("reward")

    def _weights(self) -> dict[str, float]:
        rewards = self._rewards()
        if not rewards:
            raise TasksetRefused("is refused: it has no reward function")
        return {fn.__name__: float(getattr(fn, "_vf_weight", 1.0)) for fn in rewards}

    def _episodes(self) -> dict[str, Any]:
        """Return the config of the environment for rollouts. By default, it runs no code of a model on this machine."""
        from pydantic import ValidationError
        from verifiers.v1.configs.agent import agent_config_fields  # pyright: ignore[reportMissingImports]
        from verifiers.v1.utils import loaders  # pyright: ignore[reportMissingImports]

        given = {**(self.env or {}), "taskset": {**self.config, "id": self.id}}
        try:
            plain = loaders.resolve_env_config(copy.deepcopy(given))
            for role in agent_config_fields(plain):
                mine = dict(given.get(role) or {})
                mine.setdefault("runtime", {"type": "subprocess"})
                if plain.agent_harnesses()[role].id == "bash" and "harness" not in mine:
                    mine["harness"] = {"id": "null"}
                given[role] = mine
            env = loaders.load_environment(loaders.resolve_env_config(copy.deepcopy(given)))
        except ValidationError as error:
            raise TasksetRefused(_fault(error)) from None
        except (ImportError, AttributeError, TypeError, ValueError) as error:
            raise TasksetRefused(f"cannot be loaded: {error}{_missing(error)}") from None
        self.here = [role for role, agent in env._agent_specs.items() if agent.runtime.type == "subprocess"]
        for role, agent in env._agent_specs.items():
            kind, harness = agent.runtime.type, env._harnesses[role]
            if kind in ("docker", "podman", "apptainer") and shutil.which(kind) is None:
                raise TasksetRefused(f"is refused: its {role} runs in {kind}, which is not installed here")
            if kind == "docker" and not _docker_answers():
                raise TasksetRefused(
                    f"is refused: its {role} runs in docker, whose daemon cannot be reached (`docker info`)"
                )
            if kind == "subprocess" and (harness.EXECUTES_CODE or harness.NEEDS_CONTAINER):
                raise TasksetRefused(
                    f"is refused: its {role} ({harness.config.id}) would run what a model writes on this machine; give "
                    f'it a container: "env": {{"{role}": {{"runtime": {{"type": "docker"}}}}}}'
                )
            if kind == "subprocess" and type(self.taskset).task_type().NEEDS_CONTAINER:
                raise TasksetRefused(
                    "is refused: its tasks need a container; install docker, and add "
                    f'"env": {{"{role}": {{"runtime": {{"type": "docker"}}}}}}'
                )
        return {"env": given}

    def _sources(self) -> dict[str, str]:
        digest = hashlib.blake2b(digest_size=8)
        for kind in (type(self.taskset), type(self.taskset).task_type()):
            top = Path(sys.modules[kind.__module__.split(".")[0]].__file__ or inspect.getfile(kind))
            for file in sorted(top.parent.rglob("*.py")) if top.name == "__init__.py" else [top]:
                digest.update(file.read_bytes())
        return {"taskset": digest.hexdigest(), "verifiers": version("verifiers")}


@functools.cache
def _docker_answers() -> bool:
    try:
        return not subprocess.run(["docker", "info"], capture_output=True, timeout=20).returncode
    except (OSError, subprocess.TimeoutExpired):
        return False


def check_task(task: Any, index: int, episodes: bool, here: Sequence[str] = ()) -> None:
    """Raise TasksetRefused if a task needs more than text. With `episodes`, refuse only images, and tasks that need a
    container for the agents `here`.
    """
    problem = problem_of(task.data)
    if episodes and here:
        data = task.data
        policy = "*" not in getattr(data, "network_allow", "*") or getattr(data, "network_block", None)
        needs = {"image": data.image, "agent_user": getattr(data, "agent_user", None), "network policy": policy}
        if (name := next((name for name, value in needs.items() if value), None)) is not None:
            raise TasksetRefused(
                f"is refused: task {index} has its own {name}, which needs a container; install docker, and add "
                f'"env": {{"{here[0]}": {{"runtime": {{"type": "docker"}}}}}}'
            )
    if problem is not None and not episodes:
        raise TasksetRefused(f'is refused: task {index} has {problem}; with "env": {{}} verifiers makes the rollouts')
    if problem == IMAGES:
        raise TasksetRefused(f"is refused: task {index} has {problem}")


def problem_of(data: Any) -> str | None:
    """Say what a task has besides a prompt of text; None if it has nothing else."""
    if data.prompt is None:
        return "no prompt, so a user opens the conversation"
    for field in ("image", "agent_user", "skills", "artifacts"):
        if getattr(data, field, None):
            return f"{field}, which a container has to provide"
    if not isinstance(data.prompt, str) and not all(isinstance(message.content, str) for message in data.prompt):
        return IMAGES
    return None


def messages(task: Any) -> list[dict[str, str]]:
    data = task.data
    system = [{"role": "system", "content": data.system_prompt}] if data.system_prompt else []
    if data.prompt is None:
        return [*system, {"role": "user", "content": data.name or data.description or f"(task {task.key})"}]
    if isinstance(data.prompt, str):
        return [*system, {"role": "user", "content": data.prompt}]
    return system + [{"role": message.role, "content": message.content} for message in data.prompt]


def trace_of(task: Any, text: str, stop_reason: str) -> Any:
    """Return the trace that a rollout by verifiers has if the model answers the task with `text`."""
    import verifiers.v1 as vf  # pyright: ignore[reportMissingImports]
    from verifiers.v1.state import state_cls  # pyright: ignore[reportMissingImports]

    kinds = {"system": vf.SystemMessage, "user": vf.UserMessage, "assistant": vf.AssistantMessage}
    prompt = [kinds[message["role"]](content=message["content"]) for message in messages(task)]
    nodes = [vf.MessageNode(parent=i - 1 if i else None, message=message) for i, message in enumerate(prompt)]
    reply = vf.AssistantMessage(content=text)
    nodes.append(vf.MessageNode(parent=len(nodes) - 1, message=reply, sampled=True))
    trace = vf.Trace(
        task=vf.TraceTask(type=type(task).__name__, data=task.data, key=task.key, hash=task.hash),
        state=state_cls(type(task))(),
        agent=vf.AgentInfo(config=vf.AgentConfig()),
        nodes=nodes,
        calls=[vf.ModelCall(node=len(nodes) - 1, finish_reason=stop_reason)],
    )
    trace.is_completed, trace.stop_condition = True, "agent_completed"
    return trace


async def _score(task: Any, trace: Any) -> None:
    async with asyncio.timeout(task.data.timeout.scoring):
        await task.score(trace)


def _missing(error: Exception) -> str:
    """Return the import that failed, in brackets. verifiers reports only the module that imports."""
    name = getattr(error.__cause__, "name", None)
    return f" ({error.__cause__})" if name and name not in str(error) else ""


def _fault(error: Any) -> str:
    fault = error.errors()[0]
    if not fault["loc"]:
        return f"does not take its arguments: {fault['msg']}"
    where = ".".join(map(str, fault["loc"]))
    return f"needs {where!r}" if fault["type"] == "missing" else f"does not take {where!r}: {fault['msg']}"


def _overrides(kind: type, name: str) -> bool:
    import verifiers.v1 as vf  # pyright: ignore[reportMissingImports]

    return getattr(kind, name) is not getattr(vf.Task, name)


def _required(fn: Callable[..., Any], name: str) -> bool:
    parameter = inspect.signature(fn).parameters.get(name)
    return parameter is not None and parameter.default is inspect.Parameter.empty


def _stay_offline() -> None:
    """Refuse all connections, as no service may decide what a run learns. A reward that needs a service fails."""

    def refuse(*_: Any, **__: Any) -> Any:
        raise PermissionError("hone scores without network")

    class Offline(socket.socket):
        connect = connect_ex = sendto = refuse

    socket.socket = Offline  # type: ignore[misc]
    socket.getaddrinfo = socket.create_connection = refuse
