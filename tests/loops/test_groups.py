from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from rollouts_made import rollout_of, with_first

from hone.config.parse import from_settings
from hone.config.rl import RLConfig
from hone.environments import Rubric, SingleTurnEnv
from hone.errors import UserError
from hone.inference.conversations import roll_out
from hone.inference.policy import Request
from hone.inference.types import Completion, SamplingParams
from hone.loops.colocated import segment_of
from hone.loops.groups import fill, grade_groups, group_state, step_metrics, trainable, with_advantages
from hone.trainer.packing import deal
from hone.types import Counts, Example, Group, Outcome, Rollout, Score


class Noting:
    """A policy that notes its requests, and says one token."""

    renderer = SimpleNamespace(decode=lambda ids: "", opened_by_template="")

    def sample(self, requests, sampling, finished=None):
        self.requests = list(requests)
        return [segment_of(request, Completion([1], [-1.0], "stop"), [0], self.renderer) for request in requests]


def asked(settings, examples, draws, step) -> list[Request]:
    policy = Noting()
    roll_out(ENV, policy, settings, examples, draws, step, SamplingParams())
    return policy.requests


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


def test_calls_of_a_failed_sample_are_not_compared():
    (group,) = with_advantages([group_with_calls(0, (1.0, [0, 4]), (np.nan, [9]), (5.0, 1))], RLConfig())
    assert of_calls(group) == [[-3, 1], [0], [2]]
    assert [sequence.sample for sequence in trainable([group], RLConfig()).sequences] == [0, 2]


def test_a_refill_counts_groups_whose_calls_differ():
    config = RLConfig(orchestrator={"batch_size": 2, "rollouts_per_example": 2, "refill": {}, "truncated": "keep"})
    config.orchestrator.advantage.scale = "batch_std"
    calls = [[3, 3]], [[0, 4]], [[0, 1]]
    groups = [group_with_calls(i, (1.0, *one), (1.0, [3])) for i, one in enumerate(calls)]
    filled = fill(with_advantages(groups, config), 1, config)
    assert [group_state(group) for group in filled] == ["filtered", "trained", "surplus"]
    mean, std = 7 / 3, np.std([0, 4, 3], ddof=1) + 1e-4
    assert of_calls(filled[1]) == [[(0 - mean) / std, (4 - mean) / std], [(3 - mean) / std]]
    assert filled[0].call_advantages is None and filled[2].call_advantages is None
    assert step_metrics(filled, version=4)["frac_reward_zero_std"] == pytest.approx(1 / 3)


def test_a_users_own_advantages_are_computed_for_calls_too():
    asked = []

    def custom(rewards, valid):
        asked.append((rewards, valid))
        return np.nan_to_num(rewards) * 2

    config = RLConfig(orchestrator={"advantage": {"function": "mine.py:own"}})
    groups = [group_with_calls(0, (1.0, [0, 4]), (np.nan, 1)), group_with_calls(1, (1.0, [1]), (0.0, 1))]
    first, second = with_advantages(groups, config, custom)
    (rewards_PG, _), (rewards_PC, valid_PC) = asked
    assert np.array_equal(rewards_PG, [[1, np.nan], [1, 0]], equal_nan=True)
    assert np.array_equal(rewards_PC, [[0, 4, np.nan], [1, 0, np.nan]], equal_nan=True)
    assert np.array_equal(valid_PC, ~np.isnan(rewards_PC))
    assert of_calls(first) == [[0, 8], [0]] and of_calls(second) == [[2], [0]]


def test_a_refill_needs_a_baseline_by_which_equal_rewards_teach_nothing():
    with pytest.raises(UserError, match=r"groups of equal rewards are trained, too.*leave out refill"):
        from_settings(RLConfig, None, {"algorithm": "reinforce++", "orchestrator.refill.max_rounds": 3})


def test_truncated_completions_are_kept_or_masked_but_always_in_the_mean():
    examples = [Example([{"role": "user", "content": "q"}])]
    members = [rollout("1"), rollout("0", stop_reason="length"), rollout("0.2")]
    groups = with_advantages(grade_groups(ENV, examples, [0], members, RLConfig()), RLConfig())
    assert groups[0].advantages == pytest.approx([0.6, -0.4, -0.2])
    assert deal(trainable(groups, RLConfig()).sequences, 1000, share_prompts=True)[0].num_loss_tokens == 9
    mask = RLConfig(orchestrator={"truncated": "mask"})
    masked = deal(trainable(groups, mask).sequences, 1000, share_prompts=True)[0]
    assert masked.num_loss_tokens == 6
    assert masked.advantages[masked.loss_indices][::3].tolist() == pytest.approx([0.6, -0.2])


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


def test_identical_completions_are_counted_within_a_prompt_and_across_prompts():
    """Of 9: "a" twice and "b" of one prompt, "a", "c" and "d" of another, "c", "e" and "f" of a third."""
    lengths = {text: 1 + number for number, text in enumerate("abcdef")}
    groups = [
        replace(group, rollouts=[rollout("1", lengths[text]) for text in texts])
        for group, texts in zip(groups_of(*[["1"] * 3] * 3), ("aab", "acd", "cef"), strict=True)
    ]
    metrics = step_metrics(groups, version=0)
    assert (metrics["completion/repeated"], metrics["completion/identical"]) == (1 / 9, 5 / 9)


def test_a_round_draws_what_is_missing_times_oversample_and_no_more_for_rounding():
    drawn = RLConfig(orchestrator={"refill": {"oversample": 1.1}}).orchestrator.refill.drawn
    assert [drawn(missing) for missing in (1, 9, 10, 20, 30)] == [2, 10, 11, 22, 33]
