"""The order in which quantities are compared, and what a difference says."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from typing import Any

import pytest

from hone.extensions.reproduce.compare import StepRecord, first_difference


def row(draw: int, sample: int) -> dict[str, Any]:
    return {
        "draw": draw,
        "example_id": f"e{draw}",
        "sample_id": f"5-{draw}-{sample}",
        "token_ids": [7, 8, 9],
        "sampled_mask": [False, True, True],
        "logprobs": [0.0, -1.5, -0.25],
        "components": [("exact", 1.0)],
        "outcome": "correct",
        "reward": 1.0,
        "versions": [-1, 5, 5],
        "stop_reason": "stop",
        "state": "trained",
        "prompt": "[]",
        "text": "ab",
        "completion": None,
        "answer": "ab",
        "info": "{}",
        "weights": [("exact", 1.0)],
        "advantage": 0.5,
        "detail": "",
    }


def record() -> StepRecord:
    rows = [row(draw, sample) for draw in (10, 11) for sample in (0, 1)]
    return StepRecord(5, rows, {"reward/mean": 1.0, "lr": 1e-3, "loss": 0.1, "grad_norm": 2.0}, "aaaa", "bbbb")


# From the last quantity to the first: each change is found although those before it are still there.
CHANGES = [
    (
        lambda r: vars(r).update(after="cccc"),
        "weights: the fingerprint of version 6, which the step makes, is bbbb in A",
    ),
    (lambda r: r.metrics.update(lr=2.0), "metrics: lr is 0.001 in A and 2.0 in B"),
    (lambda r: r.metrics.update(loss=0.2), "metrics: loss is 0.1 in A and 0.2 in B"),
    (lambda r: r.metrics.pop("grad_norm"), "metrics: grad_norm is 2.0 in A and nothing in B"),
    (lambda r: r.rows[3].update(advantage=-0.5), "advantages: the advantage of sample 5-11-1 is 0.5 in A and -0.5 in"),
    (lambda r: r.rows[3].update(answer="ba"), "rollouts: the column answer of sample 5-11-1 is ab in A and ba in B"),
    (lambda r: r.rows[2].update(reward=None), "rewards: the reward of sample 5-11-0 is 1.0 in A and nothing in B"),
    (
        lambda r: r.rows[2].update(outcome="wrong"),
        "rewards: the outcome of sample 5-11-0 is correct in A and wrong in B",
    ),
    (
        lambda r: r.rows[2].update(components=[("other", 1.0)]),
        "rewards: component exact of sample 5-11-0 is 1.0 in A and nothing in B",
    ),
    (
        lambda r: r.rows[1].update(logprobs=[0.0, -1.5, -0.5]),
        "logprobs: the logprob of token 2 of sample 5-10-1 is -0.25 in A and -0.5 in B",
    ),
    (
        lambda r: r.rows[1].update(sampled_mask=[False, True, False]),
        "tokens: sampled_mask of token 2 of sample 5-10-1 is True in A and False in B",
    ),
    (
        lambda r: r.rows[1].update(token_ids=[7, 8], sampled_mask=[False, True]),
        "tokens: token 2 of sample 5-10-1 is 9 in A and nothing in B",
    ),
    (lambda r: r.rows.pop(), "tokens: the sample in row 3 is 5-11-1 in A and nothing in B"),
    (lambda r: r.rows[0].update(example_id="e9"), "order: the example of draw 10 is e10 in A and e9 in B"),
    (
        lambda r: vars(r).update(before="dddd"),
        "initial weights: the fingerprint of version 5, which the step begins with, is aaaa in A and dddd in B",
    ),
]


def test_the_first_quantity_is_named() -> None:
    other = copy.deepcopy(record())
    for change, expected in CHANGES:
        change(other)
        found = first_difference(record(), other)
        assert found is not None
        assert found.sentence().startswith(f"step 5, {expected}"), found.sentence()


def talk(*contents: str, ids: list[int] | None = None) -> StepRecord:
    """A sample of two turns, or one: prompt 7, a turn of 8 and 9, an answer of 1, 2 and 3, a turn of 4."""
    roles = ("assistant", "user")
    shown = [{"role": roles[i % 2], "content": content} for i, content in enumerate(contents)]
    mask = [False, True, True, False, False, False, True][: len(ids or range(7))]
    several = {"token_ids": ids or [7, 8, 9, 1, 2, 3, 4], "sampled_mask": mask, "completion": json.dumps(shown)}
    return StepRecord(5, [row(10, 0) | several])


@pytest.mark.parametrize(
    ("other", "sentence"),
    [
        (
            talk("a", "colder", "b", ids=[7, 8, 9, 1, 5, 3, 4]),
            "environment: the answer to turn 1 of sample 5-10-0 is warmer in A and colder in B",
        ),
        (
            talk("a", ids=[7, 8, 9]),
            "environment: the answer to turn 1 of sample 5-10-0 is warmer in A and nothing in B",
        ),
        (talk("c", "colder", "b", ids=[7, 6, 9, 1, 5, 3, 4]), "tokens: token 1 of sample 5-10-0 is 8 in A and 6 in B"),
        (talk("a", "warmer", "c", ids=[7, 8, 9, 1, 2, 3, 5]), "tokens: token 6 of sample 5-10-0 is 4 in A and 5 in B"),
        (talk("a", "warmer", "b", ids=[6, 8, 9, 1, 2, 3, 4]), "tokens: token 0 of sample 5-10-0 is 7 in A and 6 in B"),
    ],
)
def test_an_environment_that_answers_otherwise_is_told_from_a_policy_that_does(other, sentence) -> None:
    found = first_difference(talk("a", "warmer", "b"), other)
    assert found is not None and found.sentence() == f"step 5, {sentence}"


def test_nan_is_equal_to_nan_and_null_is_not_absent() -> None:
    nan = float("nan")
    assert first_difference(StepRecord(0, metrics={"x": nan}), StepRecord(0, metrics={"x": nan})) is None
    assert first_difference(StepRecord(0, metrics={"x": None}), StepRecord(0, metrics={})) is not None


def test_a_traceback_names_folders_and_is_not_compared() -> None:
    other = copy.deepcopy(record())
    for each in other.rows or ():
        each.update(detail="/another/folder/task.py, line 3")
    assert first_difference(record(), other) is None


def test_training_on_several_ranks_is_compared_within_a_limit() -> None:
    """The loss relative to at least 1, weights not at all, what is sampled to the bit."""
    rounded = replace(record(), metrics=dict(record().metrics, loss=0.1 + 9e-6, grad_norm=2.0 + 1.9e-4), after="cccc")
    assert first_difference(record(), rounded) is not None and first_difference(record(), rounded, 1e-5) is None
    for name, value in (("loss", 0.1 + 2e-5), ("grad_norm", 2.001), ("lr", 1e-3 + 1e-9)):
        found = first_difference(record(), replace(record(), metrics=dict(record().metrics, **{name: value})), 1e-5)
        assert found is not None and found.what.startswith(name)
