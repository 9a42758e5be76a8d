from dataclasses import replace

import numpy as np
import pytest
from rollouts_made import rollout_of, with_first

from hone.config.rl import RLConfig
from hone.environments import Rubric, SingleTurnEnv
from hone.loops.groups import fill, grade_groups, group_state, step_metrics, trainable, with_advantages
from hone.trainer.packing import deal
from hone.types import Counts, Example, Group, Outcome, Rollout, Score


def number(completion) -> float:
    """The reward is the number that the completion names."""
    return float(completion[-1]["content"])


ENV = SingleTurnEnv(rubric=Rubric([number]), dataset=[{"question": "q"}])


def rollout(text: str, length: int = 3, stop_reason: str = "stop", **more) -> Rollout:
    return rollout_of(
        token_ids=np.arange(1, 3 + length, dtype=np.int64),
        sampled_mask=np.array([False] * 2 + [True] * length),
        logprobs=np.array([0.0] * 2 + [-1.5] * length, dtype=np.float32),
        versions=np.array([-1] * 2 + [4] * length, dtype=np.int32),
        messages=[{"role": "user", "content": "q"}, {"role": "assistant", "content": text}],
        stop_reason=stop_reason,
        sample_id="s",
        **more,
    )


def groups_of(*texts_by_group: list[str], **kwargs):
    examples = [Example([{"role": "user", "content": "q"}], info={"i": i}) for i in range(len(texts_by_group))]
    rollouts = [rollout(text, **kwargs) for texts in texts_by_group for text in texts]
    draws, config = range(10, 10 + len(examples)), RLConfig()
    return with_advantages(grade_groups(ENV, examples, draws, rollouts, config), config)


def test_states_advantages_and_what_is_packed():
    """A group with variance trains, one without is filtered, one whose grader failed for all but one sample failed."""
    trained, filtered, failed, partly = groups_of(["1", "0"], ["0.5", "0.5"], ["x", "1"], ["1", "x"])
    partly = groups_of(["1", "x", "0"])[0]
    assert [group_state(g) for g in (trained, filtered, failed, partly)] == ["trained", "filtered", "failed", "trained"]
    assert trained.advantages.tolist() == [0.5, -0.5] and partly.advantages.tolist() == [0.5, 0.0, -0.5]
    batch = deal(trainable([trained, filtered, failed, partly], RLConfig()).sequences, 1000, share_prompts=True)[0]
    assert batch.num_loss_tokens == 4 * 3 and len(batch) == 2 + 4 * 3, "the prompt is laid down once"
    assert set(batch.groups) == {10}
    assert batch.advantages[batch.loss_indices][::3].tolist() == [0.5, -0.5, 0.5, -0.5]
    assert batch.sampling_logprobs[:5].tolist() == [0.0, 0.0, -1.5, -1.5, -1.5]
    assert trainable([filtered, failed], RLConfig()).sequences == []


@pytest.mark.parametrize("term", ["kl_coef", "entropy_coef"])
def test_with_a_kl_or_entropy_term_all_completions_with_a_score_are_trained(term):
    config = RLConfig(trainer={"loss": {term: 0.04, "count_filtered": True}})
    groups = with_advantages(groups_of(["1", "0"], ["0.5", "0.5"], ["x", "1"], ["x", "x"]), config)
    assert [group_state(group) for group in groups] == ["trained", "trained", "trained", "failed"]
    assert [group.advantages.tolist() for group in groups[1:3]] == [[0.0, 0.0], [0.0, 0.0]]
    batch = trainable(groups, config)
    assert [(one.group, one.sample) for one in batch.sequences] == [(10, 0), (10, 1), (11, 0), (11, 1), (12, 1)]
    assert batch.filtered == Counts() and {one.reward for one in batch.sequences} == {None}
    metrics = step_metrics(groups, version=4)
    assert [metrics[f"groups/{name}"] for name in ("trained", "filtered", "failed")] == [3, 0, 1]
    assert metrics["frac_reward_zero_std"] == pytest.approx(2 / 4), "equal rewards are counted as before"


def test_what_counts_as_a_token_of_the_step_is_what_is_trained():
    config = RLConfig(orchestrator={"advantage": {"baseline": "batch", "scale": "token_std"}, "truncated": "mask"})
    (group,) = groups_of(["1", "0", "0.5"])
    members = [rollout("1", 5), rollout("0", 2), rollout("0.5", 9, stop_reason="length")]
    (group,) = with_advantages([replace(group, rollouts=members)], config)
    tokens = np.repeat([1.0, 0.0], [5, 2])
    expected = (np.array([1.0, 0.0]) - tokens.mean()) / (tokens.std(ddof=1) + 1e-4)
    assert group.advantages[:2].tolist() == pytest.approx(expected.tolist(), abs=1e-6)
    calls = group_with_calls(0, (1.0, [0, 4]), (1.0, [1]))  # two tokens a call
    config = RLConfig(orchestrator={"advantage": {"baseline": "batch", "scale": "token_std"}})
    tokens = np.repeat([0.0, 4.0, 1.0], 2)
    expected = (np.array([0.0, 4.0, 1.0]) - tokens.mean()) / (tokens.std(ddof=1) + 1e-4)
    (calls,) = with_advantages([calls], config)
    assert np.concatenate([line for (line,) in calls.call_advantages]).tolist() == pytest.approx(expected.tolist())


def test_a_group_of_which_all_completions_are_masked_is_filtered_and_trains_nothing():
    config = RLConfig(orchestrator={"truncated": "mask"})
    examples = [Example([{"role": "user", "content": "q"}])] * 2
    ended = [rollout(text, stop_reason=why) for text, why in zip("1010", ["length"] * 3 + ["stop"], strict=True)]
    masked, partly = with_advantages(grade_groups(ENV, examples, [0, 1], ended, config), config)
    assert masked.has_advantages and [group_state(group) for group in (masked, partly)] == ["filtered", "trained"]
    batch = trainable([masked, partly], config)
    assert [(one.group, one.sample) for one in batch.sequences] == [(1, 1)] and batch.filtered == Counts()
    metrics = step_metrics([masked, partly], version=4)
    assert (metrics["groups/trained"], metrics["groups/filtered"], metrics["frac_reward_zero_std"]) == (1, 1, 0.0)
    failed = [rollout(text, stop_reason=why) for text, why in (("1", "length"), ("0", "length"), ("x", "stop"))]
    (masked,) = with_advantages(grade_groups(ENV, examples[:1], [0], failed, config), config)
    assert group_state(masked) == "filtered", "a completion that could not be graded is not trained either"
    kept = with_advantages(grade_groups(ENV, examples, [0, 1], ended, RLConfig()), RLConfig())
    assert [group_state(group) for group in kept] == ["trained", "trained"]


def test_a_full_batch_takes_the_groups_that_differ_in_the_order_of_their_draws():
    groups = groups_of(["1", "1"], ["3", "0"], ["x", "1"], ["0", "2"])
    config = RLConfig(orchestrator={"batch_size": 2, "rollouts_per_example": 2, "refill": {}, "truncated": "keep"})
    config.orchestrator.advantage.scale = "batch_std"
    config.trainer.loss.count_filtered = True
    filled = fill(groups, 1, config)
    assert [group_state(group) for group in filled] == ["filtered", "trained", "failed", "surplus"]
    std = np.std([3, 0], ddof=1) + 1e-4
    assert filled[1].advantages.tolist() == pytest.approx([1.5 / std, -1.5 / std]), "of groups that are trained on"
    assert not any(group.advantages.any() for group in filled if group is not filled[1])
    batch = trainable(filled, config)
    assert [sequence.group for sequence in batch.sequences] == [11, 11] and batch.filtered == Counts()
    metrics = step_metrics(filled, version=4, refilled=True)
    assert metrics["reward/mean"] == pytest.approx((1 + 1 + 3 + 0 + 1 + 0 + 2) / 7)
    names = ("drawn", "trained", "filtered", "failed", "surplus", "cut")
    assert [metrics[f"groups/{name}"] for name in names] == [4, 1, 1, 1, 1, 0]


def group_with_calls(draw: int, *samples: tuple[float, list[float] | int]) -> Group:
    """A group of samples with these rewards, and those of their calls, or their number if they have none."""
    rollouts, scores = [], []
    for reward, calls in samples:
        turns = calls if isinstance(calls, int) else len(calls)
        mask = np.array([False] * 2 + [True, True, False] * turns)
        custom = None if isinstance(calls, int) else np.array(calls, dtype=np.float64)
        rollouts.append(with_first(rollout("x", length=3 * turns), sampled_mask=mask, turn_rewards=custom))
        scores.append(Score(reward, {}, {}, Outcome.GRADER_ERROR if np.isnan(reward) else Outcome.WRONG))
    return Group(Example([{"role": "user", "content": "q"}]), draw, rollouts, scores, np.zeros(len(scores)))


def of_calls(group: Group) -> list[list[float]] | None:
    """The advantages of the calls of each sample."""
    return group.call_advantages and [pytest.approx(first.tolist(), abs=1e-6) for (first,) in group.call_advantages]


def test_with_the_baseline_batch_a_call_is_compared_with_all_calls_of_the_step():
    config = RLConfig(orchestrator={"advantage": {"baseline": "batch"}})
    groups = [group_with_calls(0, (1.0, [0, 4]), (1.0, [2])), group_with_calls(1, (1.0, 2), (0.0, 1))]
    calls, plain = with_advantages(groups, config)
    mean = (0 + 4 + 2 + 1 + 1 + 0) / 6
    assert of_calls(calls) == [[0 - mean, 4 - mean], [2 - mean]]
    assert plain.call_advantages is None and plain.advantages.tolist() == [0.25, -0.75]


def test_metrics_are_over_all_sampled_completions_and_failures_leave_the_mean():
    metrics = step_metrics(groups_of(["1", "0"], ["0.5", "0.5"], ["x", "1"]), version=5)
    assert metrics["reward/mean"] == pytest.approx((1 + 0 + 0.5 + 0.5 + 1) / 5)
    assert metrics["reward/number/mean"] == metrics["reward/mean"]
    assert metrics["frac_reward_zero_std"] == pytest.approx(1 / 3)
    assert metrics["outcome/correct"] == pytest.approx(2 / 6)
    assert metrics["outcome/grader_error"] == pytest.approx(1 / 6)
    assert sum(v for k, v in metrics.items() if k.startswith("outcome/")) == pytest.approx(1.0)
    assert metrics["completion/length/mean"] == 3.0 and metrics["completion/truncated"] == 0.0
    assert metrics["staleness/mean"] == 1.0
    assert (metrics["groups/trained"], metrics["groups/filtered"], metrics["groups/failed"]) == (1, 1, 1)
