"""verifiers v0, run in separate processes for `loading.py`; hone is not imported there.

`start` answers questions about an environment, in a process of `hone.grading.pool`. As a script it is the driver of
rollouts, `verifiers_driver.py` of hone, with the `episodes` of v0. Both load the environment, so a rollout's order has
the digest of its row.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import inspect
import json
import math
import os
import runpy
import sys
from collections.abc import AsyncIterator, Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")
OWN_SAMPLING = ("stop", "max_tokens", "max_completion_tokens")
"""Keys that an environment may set in `sampling_args`; the run sets the others."""


class RequestRejected(Exception):
    """Why an environment cannot be used."""


def start(env_id: str, args: dict[str, Any], folder: str, _: None) -> Callable[[list[Any]], Any]:
    """Return the function that answers questions about an environment that is installed, or a module in `folder`.

    It answers as `verifiers_worker.py` does about a taskset with rollouts by verifiers. Rows for evaluation come last,
    and "train_rows" says how many are before them.
    """
    sys.path.append(folder)
    served = TasksetProcess(env_id, args)

    def answer(question: list[Any]) -> Any:
        try:
            return getattr(served, question[0])(*question[1:])
        except RequestRejected as why:
            return {"refused": str(why)}

    return answer


class TasksetProcess:
    """An environment and its rows."""

    def __init__(self, env_id: str, args: dict[str, Any]) -> None:
        self.id, self.args = env_id, args
        self.rows: list[dict[str, Any]] = []
        self.train: int | None = None

    def describe(self) -> dict[str, Any]:
        self.env = load(self.id, self.args)
        for env in getattr(self.env, "envs", [self.env]):
            check(env)
        return {"env": {"v0": self.id, "args": self.args}, "sources": self._sources()}

    def load(self, limit: int) -> dict[str, Any]:
        train, held_out = rows_of(self.env, limit)
        self.rows = train + held_out
        self.train = len(train) if held_out else None
        return {"keys": [digest(messages(row)) for row in self.rows]}

    def train_rows(self) -> int | None:
        return self.train

    def row(self, index: int) -> dict[str, Any] | None:
        if not self.rows:
            return None
        row = self.rows[index]
        answer = row.get("answer")
        return {"prompt": messages(row), "answer": answer if isinstance(answer, str) else "", "key": digest(row)}

    def _sources(self) -> dict[str, str]:
        """Digest the module or package that the environment comes from; add the version of verifiers."""
        found = hashlib.blake2b(digest_size=8)
        top = Path(str(sys.modules[self.id.replace("-", "_").split("/")[-1]].__file__))
        for file in sorted(top.parent.rglob("*.py")) if top.name == "__init__.py" else [top]:
            found.update(file.read_bytes())
        return {"taskset": found.hexdigest(), "verifiers": version("verifiers")}


def load(env_id: str, args: dict[str, Any]) -> Any:
    try:
        return importlib.import_module("verifiers").load_environment(env_id, **args)
    except Exception as error:
        missing = f" ({error.__cause__})" if isinstance(error.__cause__, ImportError) else ""
        raise RequestRejected(f"cannot be loaded: {str(error).partition(chr(10))[0]}{missing}") from error


def check(env: Any) -> None:
    """Raise RequestRejected if the rollouts of an environment cannot be rewarded one by one."""
    vf = importlib.import_module("verifiers")
    if env.requires_group_rollouts:
        raise RequestRejected(
            "is refused: a reward of its rubric compares the rollouts of a group; hone rewards each alone"
        )
    computes = any(type(rubric).score_rollout is not vf.Rubric.score_rollout for rubric in rubrics(env.rubric))
    if not env.score_rollouts or not (computes or any(weights_of(env).values())):
        raise RequestRejected(
            "is refused: its rubric has no reward function with a weight, or it does not score its rollouts"
        )


def rubrics(rubric: Any) -> list[Any]:
    """Return the rubric, or all rubrics of a group."""
    return [leaf for one in rubric.rubrics for leaf in rubrics(one)] if hasattr(rubric, "rubrics") else [rubric]


def weights_of(env: Any) -> dict[str, float]:
    """Return the weights of the reward functions; metrics have weight 0."""
    named = [pair for rubric in rubrics(env.rubric) for pair in zip(rubric.funcs, rubric.weights, strict=True)]
    return {func.__name__: float(weight) for func, weight in named}


def rows_of(env: Any, limit: int) -> list[list[dict[str, Any]]]:
    """Return the first rows for training, and for evaluation if the environment has such rows."""
    built = env.build_dataset(), env.build_eval_dataset()
    return [[] if rows is None else rows.select(range(min(limit, len(rows)))).to_list() for rows in built]


def messages(row: dict[str, Any]) -> list[dict[str, str]]:
    """Return a row's prompt. Raises RequestRejected if it is more than text."""
    prompt = row["prompt"]
    found = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    if not all(isinstance(message.get("content") or "", str) for message in found):
        raise RequestRejected("is refused: it has a prompt of more than text, which hone's models don't read")
    return [{"role": message["role"], "content": message.get("content") or ""} for message in found]


def digest(value: Any) -> str:
    return hashlib.blake2b(json.dumps(value, sort_keys=True, default=str).encode(), digest_size=8).hexdigest()


@contextlib.asynccontextmanager
async def episodes(told: dict[str, Any]) -> AsyncIterator[Callable[[dict[str, Any]], Any]]:
    """Give the function that makes the rollout of an order (`verifiers_driver.py`) and returns its `summary`."""
    import openai

    vf: Any = importlib.import_module("verifiers")
    vf.Rubric._call_individual_reward_func = call_reward
    env = load(told["env"]["v0"], told["env"]["args"])
    rows = [row for split in rows_of(env, told["tasks"]) for row in split]
    policy = openai.AsyncOpenAI(base_url="http://policy.invalid/v1", api_key="none", max_retries=0, timeout=None)

    class PolicyClient(vf.OpenAIChatCompletionsClient):
        async def get_native_response(self, *args: Any, **kwargs: Any) -> Any:
            """End the rollout at a used-up bound, as at a prompt that is too long."""
            try:
                return await super().get_native_response(*args, **kwargs)
            except openai.BadRequestError as error:
                if error.code == "context_length_exceeded":
                    raise vf.OverlongPromptError from error
                raise

        async def raise_from_native_response(self, response: Any) -> None:
            """Take an empty reply, which a policy may give, as it is; verifiers would fail the rollout."""

        async def from_native_response(self, response: Any) -> Any:
            found = await super().from_native_response(response)
            if found.message.content is None and not found.message.tool_calls:
                found.message.content = ""
            return found

    async def make(order: dict[str, Any]) -> dict[str, Any]:
        row, chosen = rows[order["index"]], env
        if digest(row) != order["task"]:
            raise LookupError("the environment has other rows than when it was loaded first")
        while isinstance(chosen, vf.EnvGroup):
            name, row, _ = chosen._route_child_input(row)
            chosen = chosen.get_env_for_name(name)
        client = PolicyClient(policy.with_options(base_url=order["url"], api_key=order["key"]))
        asked = {name: chosen.sampling_args[name] for name in OWN_SAMPLING if name in chosen.sampling_args}
        state = await chosen.rollout(row, client, "policy", asked)
        try:
            if state.get("timed_out"):
                raise TimeoutError(f"it took longer than the environment's {chosen.timeout_seconds:g} s")
            if (error := state.get("error")) is not None:
                raise error.__cause__ or error
            await chosen.rubric.score_rollout(state)
        finally:
            await chosen.rubric.cleanup(state)
        return summary(state, weights_of(chosen))

    async with policy:
        yield make


def summary(state: Any, known: dict[str, float]) -> dict[str, Any]:
    """Return `scores` and `weights` of rewards and metrics. If the rubric computes the reward itself, not as their
    weighted sum, the reward is a component, and the others have no weight.
    """
    scores = {name: float(value) for name, value in state["metrics"].items()}
    weights = {name: known.get(name, 0.0) for name in scores}
    reward = float(state["reward"])
    if not math.isclose(sum(weights[name] * scores[name] for name in scores), reward, abs_tol=1e-6):
        scores, weights = {**scores, "reward": reward}, {**dict.fromkeys(scores, 0.0), "reward": 1.0}
    return {"scores": scores, "weights": weights, "untrained": []}


async def call_reward(rubric: Any, func: Callable[..., Any], state: Any) -> float:
    """Call a reward function as verifiers does, but let it raise; verifiers would log the error and count 0."""
    given, takes = rubric.score_objects(state), inspect.signature(func).parameters
    if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in takes.values()):
        given = {name: value for name, value in given.items() if name in takes}
    score = func(**given)
    return float(await score if inspect.isawaitable(score) else score)


if __name__ == "__main__":
    driver = runpy.run_path(json.loads(sys.argv[1])["env"]["driver"])
    driver["serve"].__globals__["episodes"] = episodes
    driver["main"]()
