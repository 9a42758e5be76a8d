"""Makes rollouts by verifiers for `hone.extensions.libraries.verifiers`: JSON lines in, JSON lines out.

    python verifiers_driver.py '{"env": {"taskset": {"id": "my-taskset"}, ...}, "folder": "/where", "tasks": 9}'

`{"number": 3, "index": 7, "task": …, "url": …, "key": …}` starts episode 3 of task 7, which must have the key `task`.
The episode calls the model at `url` with the API key `key`. `{"cancel": 3}` cancels episode 3. Standard output gets the
line `{"ready": true}`, then a line for each episode that ends, with its number and `summary`. A cancelled episode gets
a line with only its number, at once. Libraries print to standard error. When the input ends, all processes end.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import itertools
import json
import os
import sys
from collections.abc import AsyncIterator, Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

POLICY_URL = "http://policy.invalid/v1"
"""Placeholder for the policy's endpoint, which changes with each episode. `policy_client` replaces it."""


def main() -> None:
    told = json.loads(sys.argv[1])
    # Libraries' children must not inherit the orders (with keys) or the answers.
    orders, out = os.fdopen(os.dup(0), "rb", buffering=0), os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    sys.path.append(told["folder"])
    before = os.environ.get("PYTHONPATH")  # Tool servers import the taskset in separate processes.
    os.environ["PYTHONPATH"] = os.pathsep.join([*([before] if before else []), told["folder"]])
    asyncio.run(serve(told, orders, out))


async def serve(told: dict[str, Any], orders: Any, out: Any) -> None:
    running: dict[int, asyncio.Task[None]] = {}

    async def episode(order: dict[str, Any]) -> None:
        try:
            found = await make(order)
        except Exception as error:
            late = isinstance(error, TimeoutError)
            found = {"failed": f"{type(error).__name__}: {error}", "timeout": late, "untrained": []}
        finally:
            running.pop(order["number"], None)
        out.write(json.dumps({"number": order["number"]} | found) + "\n")

    async with episodes(told) as make:
        out.write('{"ready": true}\n')
        lines = asyncio.StreamReader(limit=2**26)
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), orders)
        while line := await lines.readline():
            order = json.loads(line)
            if "cancel" in order:
                if (task := running.get(order["cancel"])) is not None:
                    task.cancel()
                out.write(json.dumps({"number": order["cancel"]}) + "\n")
            else:
                running[order["number"]] = asyncio.create_task(episode(order))
        for task in list(running.values()):
            task.cancel()
        await asyncio.gather(*running.values(), return_exceptions=True)


@contextlib.asynccontextmanager
async def episodes(told: dict[str, Any]) -> AsyncIterator[Callable[[dict[str, Any]], Any]]:
    """Yield a function that runs the episode that an order asks for, and returns the episode's `summary`."""
    from verifiers.v1.clients import EvalClientConfig, ModelContext  # pyright: ignore[reportMissingImports]
    from verifiers.v1.env import RunSlot  # pyright: ignore[reportMissingImports]
    from verifiers.v1.utils.loaders import load_environment, resolve_env_config  # pyright: ignore[reportMissingImports]

    use_installed_packages()
    routes = policy_client()
    env = load_environment(resolve_env_config(told["env"]))
    tasks = list(itertools.islice(env.taskset, told["tasks"]))
    context = ModelContext(model="policy", client=EvalClientConfig(base_url=POLICY_URL, api_key_var="HONE_NO_KEY"))

    async def make(order: dict[str, Any]) -> dict[str, Any]:
        task, mine = tasks[order["index"]], []

        def minted(trace: Any) -> None:
            routes[trace.id] = order["url"], order["key"]
            mine.append(trace.id)

        if task.key != order["task"]:
            raise LookupError("the taskset has other tasks than when it was loaded first")
        try:
            return summary(await env.run_slot(RunSlot(task), context, on_trace=minted))
        finally:
            for trace in mine:
                routes.pop(trace, None)

    async with env.serving():
        yield make


def summary(episode: Any) -> dict[str, Any]:
    """Return `scores` and `weights` of an episode's rewards and metrics, or the reason why the episode `failed`.

    A score is the mean over an agent's traces. `untrained` lists ids of traces by agents that are not trained.
    """
    traces = [trace for trace in episode.traces if trace.agent.trainable]
    untrained = [trace.id for trace in episode.traces if not trace.agent.trainable]
    errors = [*episode.errors, *(error for trace in episode.traces for error in trace.errors if not trace.ok)]
    if not episode.ok or not traces:
        late = episode.is_timeout or any(trace.is_timeout for trace in episode.traces)
        words = f"{errors[-1].type}: {errors[-1].message}" if errors else "no agent that is trained took part"
        return {"failed": words, "timeout": late, "untrained": untrained}
    several = len({trace.agent.name for trace in traces}) > 1
    scores: dict[str, list[float]] = {}
    weights: dict[str, float] = {}
    rewards = {name for trace in traces for name in trace.rewards}
    for trace in traces:
        prefix = f"{trace.agent.name}." if several else ""
        for name, reward in trace.rewards.items():
            if reward is None:
                return {"failed": f"the reward {name} was not run", "timeout": False, "untrained": untrained}
            scores.setdefault(prefix + name, []).append(float(reward.score))
            weights[prefix + name] = float(reward.weight)
        for name, value in trace.metrics.items():
            if value is not None and name not in rewards:
                scores.setdefault(prefix + name, []).append(float(value))
                weights[prefix + name] = 0.0
    means = {name: sum(values) / len(values) for name, values in scores.items()}
    return {"scores": means, "weights": weights, "untrained": untrained}


def policy_client() -> dict[str, tuple[str, str]]:
    """Make verifiers send the calls of a trace to the endpoint of the trace's episode.

    verifiers stores a client for each endpoint, but the policy's endpoint changes with each episode. Returns the dict
    of endpoints for the caller to fill: {trace id: (URL, API key)}.
    """
    from verifiers.v1.clients import EvalClient, client  # pyright: ignore[reportMissingImports]
    from verifiers.v1.clients.client import SESSION_ID_HEADER  # pyright: ignore[reportMissingImports]
    from verifiers.v1.interception import server  # pyright: ignore[reportMissingImports]

    routes: dict[str, tuple[str, str]] = {}

    class PolicyClient(EvalClient):
        async def _request(self, url: str, body: dict, headers: Any, *, stream: bool = False) -> Any:
            base, key = routes[headers[SESSION_ID_HEADER]]
            headers["authorization"] = f"Bearer {key}"
            return await super()._request(url.replace(POLICY_URL, base, 1), body, headers, stream=stream)

    def resolve(config: Any) -> Any:
        return PolicyClient(config) if config.base_url == POLICY_URL else client.resolve_client(config)

    server.resolve_client = resolve
    return routes


def use_installed_packages() -> None:
    """Make verifiers run local programs in this Python environment, if it has the packages that they require.

    Otherwise verifiers makes an environment for each program with `uv`, which needs a package index.
    """
    from verifiers.v1.runtimes import SubprocessRuntime  # pyright: ignore[reportMissingImports]

    made = SubprocessRuntime.prepare_uv_script

    async def prepare(
        self: Any, script: str | bytes, env: dict[str, str] | None = None, *, activate: bool = True
    ) -> Any:
        text = script.decode() if isinstance(script, bytes) else script
        if not all(map(is_installed, dependencies(text))):
            return await made(self, script, env, activate=activate)
        path = Path(self.scripts_dir) / f"here-{hashlib.sha256(text.encode()).hexdigest()[:32]}.py"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            fresh = path.with_suffix(f".{os.getpid()}")
            fresh.write_text(text, encoding="utf-8")
            fresh.rename(path)
        return [sys.executable, str(path)]

    SubprocessRuntime.prepare_uv_script = prepare


def dependencies(script: str) -> list[str]:
    """Return the requirements in a script's metadata (PEP 723)."""
    import tomllib

    head = script.partition("# /// script\n")[2].partition("# ///\n")[0]
    return tomllib.loads("".join(f"{line[2:]}\n" for line in head.splitlines())).get("dependencies", [])


def is_installed(requirement: str) -> bool:
    from packaging.requirements import Requirement

    wanted = Requirement(requirement)
    try:
        return wanted.specifier.contains(version(wanted.name), prereleases=True)
    except PackageNotFoundError:
        return False


if __name__ == "__main__":
    main()
