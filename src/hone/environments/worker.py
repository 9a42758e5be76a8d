"""An environment as it runs in a grading process, started by `hone.grading.process_main`."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any


def start(
    env_id: str,
    kwargs: dict[str, Any],
    folder: str,
    path: list[str],
    sources: dict[str, str],
    timeout: float,
) -> Callable[[list[Any]], list[Any]]:
    """Load the environment as hone's process loaded it, without its data, and return the function that answers:

    - `["grade", samples]`: of each {"components", "answer", "failure", "seconds"}, a `Measured`;
    - `["respond", [[messages, state], …]]`: of each [what the environment says, its state then], or {"failure"}.

    "failure" is [outcome, detail, killed], or null. UserError if a task file has changed since hone loaded it.
    """
    os.chdir(folder)
    sys.path[:] = path
    from hone.environments.loading import load_environment
    from hone.environments.task_files import sources as imported
    from hone.errors import UserError

    env = load_environment(env_id, **kwargs)
    for file, digest in imported().items():
        if sources.get(file, digest) != digest:
            raise UserError(
                f"{file} was changed while it is in use, so that completions would be graded in two ways: undo the "
                "change, or start again"
            )
    kinds = {"grade": _grade, "respond": _respond}
    return lambda question: kinds[question[0]](env, question[1], timeout)


def _grade(env: Any, items: list[str], timeout: float) -> list[Any]:
    from hone.environments.workers import unpacked

    measured = _together([env.grading(unpacked(item)) for item in items], timeout)
    return [
        {"components": one.components, "answer": one.answer, "seconds": one.seconds} | _failed(one.failure)
        for one in measured
    ]


def _respond(env: Any, items: list[list[Any]], timeout: float) -> list[Any]:
    from hone.grading import GraderFailure

    answers = _together([env.responding(messages, state) for messages, state in items], timeout)
    return [_failed(answer) if isinstance(answer, GraderFailure) else _as_json(answer) for answer in answers]


def _together(works: list[Any], timeout: float) -> list[Any]:
    """Run `together`; RuntimeError if one held up others past their deadline, so that each is asked about by itself."""
    from hone.grading import together

    late: list[bool] = []
    results = together(works, timeout, lambda: late.append(True))
    if late and len(works) > 1:
        raise RuntimeError("a function held up others that it ran beside: await what takes its time")
    return results


def _as_json(answer: Any) -> Any:
    from hone.grading import GraderFailure
    from hone.types import Outcome

    try:
        json.dumps(answer)
        _check_keys(answer)
    except (TypeError, ValueError, RecursionError) as error:
        detail = f"env_response left what is no JSON in its messages or its state: {error}"
        return _failed(GraderFailure(Outcome.GRADER_ERROR, detail))
    return answer


def _check_keys(value: Any) -> None:
    """Raise TypeError for a key that is no text: JSON would turn it into text, and it would not be found any more."""
    for key in value if isinstance(value, dict) else ():
        if not isinstance(key, str):
            raise TypeError(f"the key {key!r} is no text")
    if isinstance(value, dict | list | tuple):
        for part in value.values() if isinstance(value, dict) else value:
            _check_keys(part)


def _failed(failure: Any) -> dict[str, Any]:
    return {"failure": failure and [failure.outcome.value, failure.detail, failure.killed]}
