"""What a model makes of a task, from an evaluation's completions."""

from __future__ import annotations

import numpy as np
import pytest
from rollouts_made import rollout_of

from hone.evaluation.result import EvalResult, EvalSample
from hone.extensions.audit.policy import policy_check
from hone.extensions.audit.report import Check, Finding, Verdict
from hone.types import Example, Outcome, Score

C, W, U, T, E = Outcome.CORRECT, Outcome.WRONG, Outcome.UNPARSABLE, Outcome.TRUNCATED, Outcome.GRADER_ERROR
REWARDS = {C: 1.0, W: 0.1, U: 0.0, T: 0.0, E: float("nan")}


def result(*groups: str) -> EvalResult:
    """One group by text: `CCWU` are a right, a right, a wrong and an unparsable completion; t a right one cut off."""
    names = {"C": C, "W": W, "U": U, "T": T, "E": E, "t": C}
    samples = []
    for index, group in enumerate(groups):
        example = Example([{"role": "user", "content": f"{index}?"}])
        for rollout, letter in enumerate(group):
            outcome = names[letter]
            output = {"role": "assistant", "content": f"{letter}{rollout}"}
            tokens = 2 + rollout
            trajectory = rollout_of(
                np.arange(1 + tokens),
                np.array([False] + [True] * tokens),
                np.zeros(1 + tokens, dtype=np.float32),
                np.full(1 + tokens, 0, dtype=np.int32),
                [*example.prompt, output],
                "length" if letter in "Tt" else "stop",
                f"{index}.{rollout}",
            )
            samples.append(EvalSample(index, rollout, example, trajectory, Score(REWARDS[outcome], {}, {}, outcome)))
    return EvalResult("sums", 0, len(groups[0]), samples, {})


def found(check: Check) -> dict[str, Finding]:
    return {finding.name: finding for finding in check.findings}


def test_the_figures_of_groups() -> None:
    check = policy_check(result("CCWU", "CCCC", "WWWW", "CWtU"), 64)
    figures = check.figures
    assert figures["pass_rates"] == [0.5, 1.0, 0.0, 0.5] and figures["pass_rate"] == 0.5
    low, high = figures["pass_rate_ci95"]
    assert low < 0.5 < high
    assert figures["zero_std_groups"] == 0.5
    assert figures["all_right_groups"] == figures["all_wrong_groups"] == 0.25
    spread = [np.std([1, 1, 0.1, 0]), 0, 0, np.std([1, 0.1, 1, 0])]
    assert figures["reward_std_within_groups"] == pytest.approx(np.mean(spread))
    assert figures["outcomes"] == {"correct": 8, "wrong": 6, "unparsable": 2}
    assert figures["truncated"] == 1 / 16
    assert figures["mean_tokens"] == 3.5
    assert check.summary.startswith("50.0% of 16 completions are right")


NOTHING_RIGHT = "0.0% of 8 completions are right: there is nothing right to reinforce"
FEW_CUT = "12% of the completions are cut off by max_tokens = 64, 1 of 8 before there is an answer"
FINDINGS = [
    (["WWWU", "UUWW"], 64, "pass-rate", Verdict.WARN, NOTHING_RIGHT),
    (["CCCC", "WWWW", "CCWW"], 64, "zero-variance", Verdict.WARN, "67% of 3 groups have rewards without variance"),
    (["CWWW", "WWWW", "CCWW"], 64, "zero-variance", None, ""),
    (["CCWT", "CWWW"], 64, "length", Verdict.WARN, FEW_CUT),
    (["CTTt", "CWWW"], None, "length", Verdict.FAIL, "cut off by the sequence length, 2 of 8 before"),
    (["C" * 10 + "W" * 10 + "T"], 64, "length", None, ""),
    (["UUUC", "UUWC"], 64, "unparsable", Verdict.WARN, "62% of the completions have no answer"),
    (["CEWW", "CWWW"], 64, "raises", Verdict.FAIL, "grading fails (grader_error) for 1 of 8 completions of the model"),
]


@pytest.mark.parametrize(("groups", "max_tokens", "name", "verdict", "title"), FINDINGS)
def test_findings(groups: list[str], max_tokens: int | None, name: str, verdict: Verdict | None, title: str) -> None:
    finding = found(policy_check(result(*groups), max_tokens)).get(name)
    assert (finding and finding.verdict) == verdict
    if finding is not None:
        assert title in finding.title
        if name == "length" and verdict is Verdict.FAIL:
            assert [shown.text for shown in finding.shown] == ["[assistant] T1", "[assistant] T2"]


def test_what_could_not_be_graded_leaves_the_rates() -> None:
    assert policy_check(result("CEWW", "CWWW"), 64).figures["pass_rate"] == 2 / 7
    assert policy_check(result("EE"), 64).figures["pass_rate"] is None
