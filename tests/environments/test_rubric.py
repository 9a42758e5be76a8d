from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from rollouts_made import one_token

from hone.environments import Range, Rubric, SingleTurnEnv, TagParser
from hone.errors import UserError
from hone.rng import stream
from hone.types import Outcome, Rollout

TAGS = TagParser("t")


def right(completion, answer, parser):
    return float(parser.parse_answer(completion) == answer)


def length(completion):
    return len(completion[-1]["content"]) / 10


async def polite(completion):
    return 1.0 if "please" in completion[-1]["content"] else None


def make(*funcs, weights=None, **kwargs) -> SingleTurnEnv:
    return SingleTurnEnv(rubric=Rubric(list(funcs), weights, **kwargs), parser=TAGS, id="toy")


def grade(env: SingleTurnEnv, completion="<t>4</t>"):
    return env.grade(env.example(question="2 + 2?", answer="4"), completion)


def trajectory(text: str, stop_reason: str, sample_id: str = "s") -> Rollout:
    messages = [{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": text}]
    return one_token(messages, stop_reason, sample_id)


def test_the_reward_is_the_weighted_sum_and_an_abstaining_component_is_absent():
    env = make(right, length, polite, weights=[2.0, 0.5, 10.0])
    score = grade(env)
    assert score.reward == 2.0 * 1 + 0.5 * 0.8
    assert score.components == {"right": 1.0, "length": 0.8}
    assert score.weights == {"right": 2.0, "length": 0.5, "polite": 10.0}
    assert grade(env, "please <t>4</t>").components["polite"] == 1.0


OUTCOMES = {
    Outcome.CORRECT: [("<t>4</t>", "stop"), ("<t>4</t> and on and", "length")],
    Outcome.WRONG: [("<t>5</t>", "stop"), ("<t>5</t> and on and", "length")],
    Outcome.TRUNCATED: [("<t>4", "length")],
    Outcome.UNPARSABLE: [("<t>4", "stop"), ("", "stop")],
}


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_outcomes_by_precedence(outcome: Outcome):
    for text, stop_reason in OUTCOMES[outcome]:
        assert grade(make(right), trajectory(text, stop_reason)).outcome is outcome


def test_correctness_is_judged_before_the_weight_and_at_one():
    def full(completion):
        return 1.0

    def nearly(completion):
        return 0.999

    assert grade(make(full, weights=[0.0])).outcome is Outcome.CORRECT
    assert grade(make(nearly, weights=[5.0])).outcome is Outcome.WRONG
    assert grade(make(full, right, correctness=right), "<t>5</t>").outcome is Outcome.WRONG
    assert grade(make(full, right, correctness="right"), "<t>5</t>").outcome is Outcome.WRONG
    assert grade(make(full, right), "<t>5</t>").outcome is Outcome.CORRECT


def boom(completion):
    raise ZeroDivisionError("in the grader")


def leave(completion):
    raise SystemExit(3)


async def late(completion):
    raise LookupError("from a coroutine")


@pytest.mark.parametrize(
    ("func", "why"),
    [
        (boom, "ZeroDivisionError: in the grader"),
        (leave, "SystemExit: 3"),
        (late, "LookupError: from a coroutine"),
        (lambda completion: math.nan, "returned nan, which is not a finite number"),
        (lambda completion: "0.5", "returned '0.5', which is neither a number nor None"),
        (lambda completion: [1.0], "a value of type list"),
        (lambda completion: 10**400, "a value of type int"),
        (lambda completion: 1e6 + 1, "is not within ±1,000,000: scale the rewards down"),
        (lambda completion: None, "every reward function that has a weight abstained"),
    ],
)
def test_a_failing_grader_gives_no_reward_and_says_why(func, why: str):
    score = grade(make(func))
    assert score.outcome is Outcome.GRADER_ERROR
    assert math.isnan(score.reward)
    assert why in score.detail


def noise(rng):
    return rng.random()


def other_noise(rng):
    return rng.random()


def test_a_grader_that_draws_is_decided_by_seed_example_and_sample():
    env = make(noise, other_noise)
    example, other = env.example(question="2 + 2?"), env.example(question="3 + 3?")
    samples = [trajectory("<t>4</t>", "stop", f"0-0-{i}") for i in range(3)]
    pairs = [(e, sample) for e in (example, other) for sample in samples]

    def drawn(scores):
        return [score.components["noise"] for score in scores]

    scores = env.grade_many(pairs, seed=7)
    numbers = [*drawn(scores), *drawn(env.grade_many(pairs, seed=8)), scores[0].components["other_noise"]]
    assert len(set(numbers)) == 13
    assert drawn(env.grade_many(reversed(pairs), seed=7)) == drawn(scores)[::-1]
    assert [env.grade(*pair, seed=7).components["noise"] for pair in pairs] == drawn(scores)
    assert env.grade(example, "<t>4</t>").components["noise"] == stream(0, "grader", example.id, "", "noise").random()


def test_numbers_of_other_kinds_are_taken():
    for value, reward in ((True, 1.0), (np.float64(0.5), 0.5), (np.True_, 1.0), (np.uint8(3), 3.0), (3, 3.0)):
        score = grade(make(lambda completion, value=value: value))
        assert score.reward == reward and type(score.components["<lambda>"]) is float


class Lying(float):
    def __float__(self):
        return 1.0


@pytest.mark.parametrize("value", [Lying(0.0), np.array(0.5), np.timedelta64(1, "s"), Fraction(1, 2), 1 + 0j])
def test_what_is_no_plain_number_is_refused_with_the_remedy(value):
    score = grade(make(lambda completion: value))
    assert score.outcome is Outcome.GRADER_ERROR and math.isnan(score.reward)
    assert type(value).__name__ in score.detail and score.detail.endswith("return float(…) of it")


def test_each_function_has_arguments_of_its_own_but_for_what_it_adds_to_the_state():
    def vandal(completion, prompt, info, state):
        for messages in (completion, prompt, state["completion"], state["prompt"]):
            messages[-1]["content"] = "<t>4</t>"
        info["n"].append(9)
        state["info"]["n"].append(9)
        state["answer"], state["is_truncated"], state["note"] = "5", True, 0.5
        return 0.0

    def seen(completion, answer, prompt, info, state):
        assert state["completion"] is completion and state["info"] is info
        assert (completion[-1]["content"], prompt[-1]["content"]) == ("<t>5</t>", "2 + 2?")
        assert (answer, state["answer"], state["is_truncated"], info) == ("4", "4", False, {"n": [2, 2]})
        return state["note"]

    class Clearing(TagParser):
        def parse_answer(self, completion):
            found = super().parse_answer(completion)
            completion.clear()
            return found

    env = SingleTurnEnv(rubric=Rubric([vandal, seen, right], correctness="right"), parser=Clearing("t"))
    score = env.grade(env.example(question="2 + 2?", answer="4", info={"n": [2, 2]}), "<t>5</t>")
    assert (score.components, score.outcome) == ({"vandal": 0.0, "seen": 0.5, "right": 0.0}, Outcome.WRONG)


@pytest.mark.parametrize(
    ("build", "why"),
    [
        (lambda: Rubric([]), "needs at least one"),
        (lambda: Rubric([right], [1.0, 2.0]), "1 reward functions need as many"),
        (lambda: Rubric([right], [math.nan]), "finite weights"),
        (lambda: Rubric([right, right]), "have the same name"),
        (lambda: Rubric([right], correctness="exact"), "correctness 'exact' is not.*'right'"),
        (lambda: Rubric([right], ranges={"exact": Range((1, 1), (0, 0))}), r"`ranges` has \['exact'\]"),
        (lambda: Rubric([right], ranges={"right": Range((1, math.inf), (0, 0))}), "the range of right is infinite"),
        (lambda: Rubric([right], [-2e6]), r"allow a reward of 2e\+06; a reward must be within ±1,000,000"),
        (lambda: Rubric([right, late], [6e5, 6e5]), r"allow a reward of 1\.2e\+06"),
        (lambda: Rubric([right], [1e4], ranges={"right": Range((1, 200), (-1, 0))}), r"allow a reward of 2e\+06"),
        (lambda: Rubric([lambda completion, judge: 1.0]), "parameter 'judge'.*it offers completion, answer"),
    ],
)
def test_mistakes_in_a_rubric_are_named_when_it_is_built(build, why: str):
    with pytest.raises(UserError, match=why):
        build()
