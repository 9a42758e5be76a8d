"""Decoding with graphs on the fake GPU: a step is two graphs, the second samples, launched before the host has read the
tokens of the one before, and what it gives are the CPU's tokens.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from .conftest import report

pytestmark = pytest.mark.device
INSIDE = ("free", "greedy", "warm", "top_k", "top_p", "min_p")
CASES = (*INSIDE, "top_logprobs", "mixed", "stops", "joined", "joined and mixed")


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    return report("decoding.py")


@pytest.mark.parametrize("case", CASES)
def test_samples_are_those_of_the_cpu(found: dict, case: str) -> None:
    """Ids, versions and stop reasons; in the joined cases one job is cancelled, and weights change under way."""
    cpu, gpu = found["cpu"][case], found["gpu"][case]["tokens"]
    assert sum(map(len, cpu)) > 50
    for expected, tokens in zip(cpu, gpu, strict=True):
        assert [[id, *rest] for id, _, *rest in tokens] == [[id, *rest] for id, _, *rest in expected]
        np.testing.assert_allclose([p for _, p, *_ in tokens], [p for _, p, *_ in expected], atol=6e-6, rtol=0)


@pytest.mark.parametrize("case", CASES)
def test_the_host_waits_once_a_token_while_the_gpu_goes_on(found: dict, case: str) -> None:
    """A step is launched before the host waits for the tokens of the last one, unless all rows are at their limit."""
    *steps, last = found["gpu"][case]["steps"]
    assert [step["waits"] for step in steps] == [{"event": 1}] * len(steps)
    if case == "stops":
        assert last["waits"] == {"event": 1} and last["launched"] == 2, "who is to stop is not known before"
    else:
        assert last["waits"] == {"last event": 1} and last["launched"] == 0


@pytest.mark.parametrize("case", INSIDE)
def test_a_step_is_two_launches_and_one_copy_to_the_host(found: dict, case: str) -> None:
    """But where a graph is recorded, or rows begin. What was drawn is copied once more, for several batches at once."""
    _, *steps, _ = found["gpu"][case]["steps"]
    steady = [step for step in steps if not step["recorded"]]
    assert len(steady) >= 8
    for step in steady:
        assert step["launched"] == 2 and step["operations"] == {"aten.cat.default": 1, "aten._to_copy.default": 1}


def test_a_run_records_in_its_first_step_only(found: dict) -> None:
    """Ten steps, whose completions get longer, and two evaluations of fewer rows; nothing moves meanwhile."""
    first, *others = found["steps"]["recorded"]
    assert 0 < first <= 40 and others == [0] * 9
    assert found["steps"]["places"] == 1


def test_slots_and_steps_take_the_bytes_that_are_planned(found: dict) -> None:
    """Of a step: the logits, and what sampling computes of them. A graph holds none of it when it has run."""
    bytes = found["memory"]
    assert bytes["slots"] == bytes["slots planned"]
    assert abs(bytes["step"] / bytes["step planned"] - 1) < 0.1
    assert bytes["left"] < 100
