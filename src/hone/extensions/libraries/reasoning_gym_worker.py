"""reasoning-gym in a separate process, for `hone.extensions.libraries.reasoning_gym`."""

from __future__ import annotations

import copy
import dataclasses
import difflib
import functools
from collections.abc import Callable
from typing import Any

SIZE = 5_000
"""Rows of one data set. Row 5,000 is the first row of another data set, with a seed that is higher by 5,000. Most tasks
make row i from seed + i, so one larger data set would have the same rows. Other tasks make all rows at once."""


def start(task: str, config: dict[str, Any]) -> Callable[[list[Any]], Any]:
    """Return the function that answers questions about the data set of `task` with `config`:

    - `["check"]`: what is wrong with the configuration, or null;
    - `["entry", index]`: the question and the answer of a row;
    - `["score", index, answer]`: the score of an answer.
    """
    from reasoning_gym.factory import DATASETS, create_dataset  # pyright: ignore[reportMissingImports]

    @functools.lru_cache(maxsize=64)
    def dataset(chunk: int = 0) -> Any:
        return create_dataset(task, **config | {"size": SIZE, "seed": config["seed"] + chunk * SIZE})

    @functools.lru_cache(maxsize=4096)
    def entry(index: int) -> dict[str, Any]:
        return dataset(index // SIZE)[index % SIZE]

    def check() -> str | None:
        fields = [field.name for field in dataclasses.fields(DATASETS[task][1])]
        for name in config:
            if name not in fields:
                near = difflib.get_close_matches(name, fields, n=1)
                hint = f" (did you mean {near[0]!r}?)" if near else ""
                return f"does not take {name!r}{hint}; its arguments are {', '.join(fields)}"
        try:
            dataset()
        except (AssertionError, ValueError, TypeError) as error:
            return f"refuses {config}: {str(error) or type(error).__name__}"
        return None

    def answer(question: list[Any]) -> Any:
        if question[0] == "check":
            return check()
        if question[0] == "entry":
            made = entry(question[1])
            return [str(made["question"]), str(made["answer"])]
        # A copy: some graders write into the entry.
        index = question[1]
        return float(dataset(index // SIZE).score_answer(question[2], copy.deepcopy(entry(index))))

    return answer
