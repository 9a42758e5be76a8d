"""verifiers (v1), as it runs in a process of its own for `hone.environments.adapters.verifiers`."""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import itertools
import socket
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any


def start(taskset_id: str, config: dict[str, Any], folder: str) -> Callable[[list[Any]], Any]:
    """Return the function that answers questions about a taskset that is installed, or a package in `folder`:

    - `["describe"]`: {"weights": of each reward function, "sources": what scores} or {"refused": why};
    - `["load", limit]`: {"keys": digests of the prompts} or {"refused": why}. There is no network from here on;
    - `["row", index]`: {"prompt": messages, "answer": text, "key": the task's own key}; null if there are no tasks yet;
    - `["score", index, text, stop_reason]`: {reward function: its score}; null if there are no tasks yet.
    """
    sys.path.append(folder)
    served = Served(taskset_id, config)

    def answer(question: list[Any]) -> Any:
        return getattr(served, question[0])(*question[1:])

    return answer


class Refused(Exception):
    """Why a taskset cannot be scored faithfully."""


class Served:
    """A taskset and its tasks."""

    def __init__(self, taskset_id: str, config: dict[str, Any]) -> None:
        self.id, self.config = taskset_id, config
        self.tasks: list[Any] = []

    def describe(self) -> dict[str, Any]:
        try:
            self.taskset = self._made()
            return {"weights": self._weights(), "sources": self._sources()}
        except Refused as why:
            return {"refused": str(why)}

    def load(self, limit: int) -> dict[str, Any]:
        self.tasks = list(itertools.islice(self.taskset, limit))
        _stay_offline()
        try:
            for i, task in enumerate(self.tasks):
                check_task(task, i)
        except Refused as why:
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
            fault = error.errors()[0]
            raise Refused(f"does not take {'.'.join(map(str, fault['loc']))!r}: {fault['msg']}") from None
        except (ModuleNotFoundError, AttributeError, TypeError, ValueError) as error:
            raise Refused(f"cannot be loaded: {error}") from None
        if env.__name__ != "SingleAgentEnv":
            raise Refused(f"is refused: its {env.__name__} drives the rollouts, and hone drives single answers only")
        return taskset

    def _weights(self) -> dict[str, float]:
        """Return the weights of the reward functions. Raises Refused if text alone cannot be scored."""
        kind, config = type(self.taskset).task_type(), self.taskset.config
        if kind.NEEDS_CONTAINER:
            raise Refused("is refused: its tasks need a container, and hone has no runtime for them")
        if type(self.taskset).toolsets(config) or kind.toolsets(config.task):
            raise Refused("is refused: its tasks come with tools, and hone does not run tools of verifiers")
        for name in ("setup", "finalize"):
            if _overrides(kind, name):
                raise Refused(f"is refused: its tasks have a {name}(), which needs a runtime that hone does not have")
        if _overrides(kind, "score"):
            raise Refused("is refused: its tasks score by a score() of their own, which hone cannot check")
        if config.task.judges or _overrides(kind, "plugged_judges"):
            raise Refused("is refused: a judge gives its rewards, and a judge calls a model")
        task = kind(_no_data(kind), config.task)
        rewards = task.hooks("reward")
        if not rewards:
            raise Refused("is refused: it has no reward function")
        needing = [fn.__name__ for fn in rewards if _required(fn, "runtime")]
        if needing:
            raise Refused(
                f"is refused: its reward {' and '.join(needing)} needs a runtime that hone does not have, and "
                "verifiers would leave it out in silence"
            )
        return {fn.__name__: float(getattr(fn, "_vf_weight", 1.0)) for fn in rewards}

    def _sources(self) -> dict[str, str]:
        """Digest the modules or packages that the taskset and its tasks come from; add the version of verifiers."""
        digest = hashlib.blake2b(digest_size=8)
        for kind in (type(self.taskset), type(self.taskset).task_type()):
            top = Path(sys.modules[kind.__module__.split(".")[0]].__file__ or inspect.getfile(kind))
            for file in sorted(top.parent.rglob("*.py")) if top.name == "__init__.py" else [top]:
                digest.update(file.read_bytes())
        return {"taskset": digest.hexdigest(), "verifiers": version("verifiers")}


def check_task(task: Any, index: int) -> None:
    """Raise Refused if the task needs more than text."""
    data = task.data
    if data.prompt is None:
        raise Refused(f"is refused: task {index} has no prompt, so a user opens the conversation, and hone has none")
    for field in ("image", "agent_user", "skills", "artifacts"):
        if getattr(data, field, None):
            raise Refused(f"is refused: task {index} has {field}, which needs a runtime that hone does not have")
    if not isinstance(data.prompt, str):
        for message in data.prompt:
            if not isinstance(message.content, str):
                raise Refused(f"is refused: task {index} has a prompt of more than text")


def messages(task: Any) -> list[dict[str, str]]:
    """Return the messages of a task's prompt, its system prompt first."""
    data = task.data
    system = [{"role": "system", "content": data.system_prompt}] if data.system_prompt else []
    if isinstance(data.prompt, str):
        return [*system, {"role": "user", "content": data.prompt}]
    return system + [{"role": message.role, "content": message.content} for message in data.prompt]


def trace_of(task: Any, text: str, stop_reason: str) -> Any:
    """Make the trace of one answer to a task, as a rollout of verifiers leaves it to its rewards."""
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


def _overrides(kind: type, name: str) -> bool:
    import verifiers.v1 as vf  # pyright: ignore[reportMissingImports]

    return getattr(kind, name) is not getattr(vf.Task, name)


def _required(fn: Callable[..., Any], name: str) -> bool:
    parameter = inspect.signature(fn).parameters.get(name)
    return parameter is not None and parameter.default is inspect.Parameter.empty


def _no_data(kind: Any) -> Any:
    """Make data of a task without content: its reward functions are looked at, not run."""
    return kind.data_type().model_construct()


def _stay_offline() -> None:
    """Let no connection out: a reward that calls out fails, so that no service decides what a run learns."""

    def refuse(*_: Any, **__: Any) -> Any:
        raise PermissionError("hone scores without network")

    class Offline(socket.socket):
        connect = connect_ex = sendto = refuse

    socket.socket = Offline  # type: ignore[misc]
    socket.getaddrinfo = socket.create_connection = refuse
