"""Evaluation of a model behind a URL. The server samples, and the environment grades on this machine.

result = evaluate_url(endpoint, "Qwen/Qwen3-0.6B", env, num_examples=100, rollouts_per_example=4, body={}, seed=0)
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from hone import rng
from hone.client import HONE, Endpoint
from hone.environments import Environment
from hone.environments.driver import Driver
from hone.environments.environment import NEEDS_IDS
from hone.errors import UserError
from hone.evaluation.client import ChatClient, Failure
from hone.evaluation.loop import STOPPING, graded, timed
from hone.evaluation.result import STOPPED, EvalResult, FailedRollout, Place, RequestStats
from hone.evaluation.text import TextModel, TextServer, attempt
from hone.types import Rollout

RESERVED = {
    "model": "set it with -m",
    "messages": "the environment sets them",
    "n": "set it with -r",
    "stream": "answers are read whole",
    "tools": "the environment sets them",
}
"""Keys that a request's body must not have, and why."""


def evaluate_url(
    endpoint: Endpoint,
    model: str,
    env: Environment,
    *,
    num_examples: int,
    rollouts_per_example: int,
    body: dict[str, Any],
    seed: int,
    exact_keys: bool = False,
    split_name: str = "eval",
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> EvalResult:
    """Evaluate `model` behind `endpoint` as `evaluate` does, on the same examples.

    Each turn is a request with `body` and a `seed`: 31 bits of the key of (`seed`, "eval", 0, example, rollout, and the
    number of a later turn). Keys of `body` with the value None, also `seed`, are left out. If `exact_keys`, a request
    has the whole key (64 bits) as `key` instead; then hone's server makes the completions that `evaluate` makes with
    the same weights. `progress(done, total)` counts rollouts. `EvalResult.failed` has the rollouts that failed or that
    Ctrl-C ended. Raises UserError if there is no such split, or no request can succeed.
    """
    check_body(body)
    if (name := env.rubric.needs_ids) is not None:
        raise UserError(f"{name} {NEEDS_IDS}")
    split = env.split(split_name)
    places = [(i, r) for i in range(min(num_examples, len(split))) for r in range(rollouts_per_example)]
    examples = {index: split[index] for index, _ in places}
    answers: dict[int, Rollout | Failure] = {}

    def body_of(place: Place, number: int) -> dict[str, Any]:
        return request_body(body, seed, *place, exact_keys, number)

    def finished(number: int, answer: Rollout | Failure) -> None:
        answers[number] = answer
        progress(len(answers), len(places))

    stopped, seconds = False, {"sample": 0.0, "grade": 0.0}
    client = ChatClient(endpoint)
    driver, server = Driver(env, alone=True, concurrency=endpoint.concurrency), TextServer(client, model, seed, body_of)
    driver.stack.push_async_exit(client)
    models = [TextModel(driver, i, examples[place[0]], place, server) for i, place in enumerate(places)]
    try:
        with timed(seconds, "sample"):
            driver.run(models, finished, partial(attempt, env))
        with timed(seconds, "grade"):
            samples = graded(env, examples, places, answers, seed)
    except KeyboardInterrupt:
        stopped = True
        env.progress(STOPPING)
        with timed(seconds, "grade"):
            samples = graded(env, examples, places, answers, seed)
        if not samples:
            raise
    failed = [
        FailedRollout(*place, examples[place[0]], answer.reason if isinstance(answer, Failure) else STOPPED)
        for n, place in enumerate(places)
        if not isinstance(answer := answers.get(n), Rollout)
    ]
    taken = [sample.trajectory.usage.seconds for sample in samples if sample.trajectory.usage]
    requests = RequestStats(taken, client.retries, endpoint.concurrency)
    ranges, label = env.rubric.ranges, env.label
    return EvalResult(env.id, 0, rollouts_per_example, samples, seconds, failed, requests, ranges, label, stopped)


def find_model(endpoint: Endpoint, model: str | None) -> tuple[str, bool]:
    """Return the model (if None, the only listed model), and True if hone serves it. UserError if no server answers."""

    async def ask() -> dict[str, str]:
        async with ChatClient(endpoint) as client:
            return await client.served(model)

    served = asyncio.run(ask())
    if model is None and len(served) == 1:
        model = next(iter(served))
    if model is not None:
        return model, served.get(model) == HONE
    if not served and not endpoint.url.rstrip("/").endswith("/v1"):
        raise UserError(f"{endpoint.url} lists no models: did you mean {endpoint.url.rstrip('/')}/v1?")
    names = ", ".join(list(served)[:20]) or "models that it does not list"
    raise UserError(f"{endpoint.url} serves {names}: name one with -m")


def check_body(body: dict[str, Any]) -> None:
    for name in RESERVED:
        if name in body:
            raise UserError(f"{name!r} is no sampling argument: {RESERVED[name]}")


def request_body(
    body: dict[str, Any], seed: int, index: int, rollout: int, exact_keys: bool = False, turn: int = 0
) -> dict[str, Any]:
    """Return the body of one turn's request, without model, messages and tools."""
    key = rng.key(seed, "eval", 0, index, rollout, *([turn] if turn else []))
    # 31 bits are what every server takes for a seed, and no JSON reader rounds.
    seeding = {} if "seed" in body else {"key": key} if exact_keys else {"seed": key >> 33}
    return {name: value for name, value in (seeding | body).items() if value is not None}
