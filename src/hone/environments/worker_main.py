"""The program of the grading processes: it loads a task and answers `hone.environments.workers`."""

from __future__ import annotations

import base64
import json
import os
import pickle
import sys
from collections.abc import Callable
from typing import Any

from hone.environments.rubric import Measured
from hone.environments.workers import times_of
from hone.errors import UserError
from hone.grading import GraderFailure, together
from hone.types import Outcome


def start(
    env_id: str, kwargs: dict[str, Any], folder: str, path: list[str], sources: dict[str, str], timeout: float
) -> Callable[[list[Any]], list[Any]]:
    """Load the task as hone's process loaded it, without its data.

    Return a function of `[kind, items]`, with the kind "grade", "group" or "respond". Raises UserError if a task file
    has changed since hone loaded it.
    """
    os.chdir(folder)
    sys.path[:] = path
    from hone.environments.loading import load_environment
    from hone.environments.task_files import sources as imported

    env = load_environment(env_id, **kwargs)
    for file, digest in imported().items():
        if sources.get(file, digest) != digest:
            raise UserError(
                f"{file} was changed while it is in use, so that completions would be graded in two ways: undo the "
                "change, or start again"
            )
    return lambda question: _answers(env, question[0], question[1], timeout)


def _answers(env: Any, kind: str, packed: str, timeout: float) -> list[Any]:
    """Return a result or a failure for each item. A result is a dict (kind "grade"), a list of dicts ("group") or
    [messages, state] ("respond").

    Raises RuntimeError if an item delayed others past their deadline. Then hone sends each item alone.
    """
    items = pickle.loads(base64.b64decode(packed))
    late: list[bool] = []
    if kind == "respond":
        works = [env.responding(*item) for item in items]
    else:
        works = [env.grading_group(item) if kind == "group" else env.grading(item) for item in items]
    results = together(works, timeout * times_of(kind, items), lambda: late.append(True))
    if late and len(items) > 1:
        raise RuntimeError("a function blocked the others in its process: await what takes long")
    if kind == "group":
        return [[_as_json(one) for one in result] for result in results]
    return [_as_json(result) for result in results]


def _as_json(result: Any) -> Any:
    if isinstance(result, Measured):
        return vars(result) | _failed(result.failure)
    if isinstance(result, GraderFailure):
        return _failed(result)
    try:
        json.dumps(result)
        _check_keys(result)
    except (TypeError, ValueError, RecursionError) as error:
        detail = f"env_response or initial_state left what is no JSON in its messages or its state: {error}"
        return _failed(GraderFailure(Outcome.GRADER_ERROR, detail))
    return result


def _check_keys(value: Any) -> None:
    """Raise TypeError for a key that is not text: JSON would turn it into text."""
    for key in value if isinstance(value, dict) else ():
        if not isinstance(key, str):
            raise TypeError(f"the key {key!r} is no text")
    if isinstance(value, dict | list | tuple):
        for part in value.values() if isinstance(value, dict) else value:
            _check_keys(part)


def _failed(failure: GraderFailure | None) -> dict[str, Any]:
    return {"failure": failure and [failure.outcome.value, failure.detail, failure.killed]}
