"""What guessing earns, what right answers earn, and how long grading takes."""

from __future__ import annotations

import pytest
from made import TAGS, Sums, form, prober, right, sums

from hone.environments import Rubric
from hone.extensions.audit.probes import Prober
from hone.extensions.audit.report import Check, Finding, Verdict
from hone.extensions.audit.reward import check_reference
from hone.extensions.audit.statistics import check_signal


def found(check: Check) -> dict[str, Finding]:
    return {finding.name: finding for finding in check.findings}


def signal(given: Prober) -> Check:
    check_reference(given)
    return check_signal(given)


def blind(check: Check) -> dict[str, tuple[float, float]]:
    return {one["strategy"]: (one["reward"], one["correct"]) for one in check.figures["blind"]}


def same(prompt: str = "Is it {i}?", answers=("yes",), count: int = 8) -> Prober:
    rows = [{"question": prompt.format(i=i), "answer": answers[i % len(answers)]} for i in range(count)]
    rubric = Rubric([form, right], [0.1, 0.9], correctness="right")
    return prober(Sums(rubric=rubric, dataset=rows, parser=TAGS, id="same"), count)


def test_the_ceiling_is_the_references_and_the_floor_the_best_guess() -> None:
    check = signal(prober(sums(Rubric([form, right], [0.1, 0.9], correctness="right"))))
    assert check.figures["ceiling"] == 1.0 and check.figures["floor"] == pytest.approx(0.1)
    assert blind(check)["saying nothing"] == (0.0, 0.0)
    assert blind(check)["repeating the question"] == (0.0, 0.0)
    # Each of the sums is another: a guess taken from one is wrong for the other seven.
    assert blind(check)["always answering 110"] == (pytest.approx(0.1), 0.0)
    assert check.findings == ()


def test_the_most_common_answer_is_named_and_not_tried_on_its_own_example() -> None:
    # Five of ten answer 4; the example that the guess comes from is left out: 4 of 9 are right.
    check = signal(same(answers=("4", "5", "4", "6", "4", "7", "4", "8", "4", "9"), count=10))
    mean = 0.1 + 0.9 * 4 / 9
    assert blind(check)["always answering 4"] == (pytest.approx(mean), pytest.approx(4 / 9))
    finding = found(check)["high-floor"]
    assert finding.verdict is Verdict.NOTE and finding.title.startswith("always answering 4 scores 0.50 of 1.00")


def test_a_constant_answer_that_is_always_right_leaves_nothing_to_learn() -> None:
    finding = found(signal(same(count=8)))["no-signal"]
    assert finding.verdict is Verdict.FAIL and finding.title.startswith("always answering yes earns 1 on average")
    assert "no-signal" not in found(signal(same(count=3)))  # too few to say so
