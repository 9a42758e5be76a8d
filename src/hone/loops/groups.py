"""Makes scored groups from examples (draw, sample, grade, advantages), and a step's batch and metrics from groups.

With `refill` (dynamic sampling, DAPO, arXiv:2503.14476) a step has rounds: each round draws more prompts for the groups
that are missing. Which groups a step retains depends on draws and rewards, never on time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import numpy as np

from hone.algorithms.advantages import (
    advantages,
    has_signal,
    normalized_components,
    overlong_penalty,
    token_advantages,
)
from hone.config.rl import RLConfig
from hone.environments import Environment
from hone.environments.environment import EarlyGrading, Split
from hone.environments.task_files import find_function
from hone.errors import UserError
from hone.extension import gathered, token_columns
from hone.inference.conversations import RolloutSettings, roll_out
from hone.inference.policy import Policy
from hone.inference.types import sampling_params
from hone.loops.curriculum import Curriculum
from hone.loops.ledger import Entry, State
from hone.model.chat import ChatRenderer
from hone.runs.metrics import component_means, outcome_shares
from hone.trainer.packing import Batch
from hone.trainer.packing import Sequence as Packed
from hone.types import Counts, Example, Group, Outcome, Rollout, Score, Segment, dense, ragged

Advantages = Callable[[np.ndarray, np.ndarray], Any]
"""Called with rewards `[P, G]` of P prompts with G completions each (float64, NaN where grading failed), and with a
bool `[P, G]` that is False where grading failed. Returns advantages `[P, G]`.

If an agent rewards its calls, the function runs again for the calls: `[P, C]` for C calls per group, padded with NaN.
"""


class GroupSampler:
    """Makes a step's groups. A group depends only on the config, its draw, the step and the weights of `policy`."""

    def __init__(
        self,
        config: RLConfig,
        env: Environment,
        renderer: ChatRenderer,
        policy: Policy,
        curriculum: Curriculum,
        custom: Advantages | None = None,
        name: str = "",
    ) -> None:
        orch = config.orchestrator
        self.config, self.env, self.policy, self.curriculum = config, env, policy, curriculum
        self.custom, self.refill, self.name = custom, orch.refill, name
        self.rows = env.split("train")
        self.sampling = sampling_params(orch.sampling, return_kept_ids=True)
        limits = orch.rollouts_per_example, config.seq_len, orch.sampling.max_tokens
        self.settings = RolloutSettings(renderer, *limits, config.seed, "rollout", env.tool_schemas)

    def groups(
        self, step: int, count: int, first_draw: int, phase: Callable[[str], AbstractContextManager[None]]
    ) -> list[Group]:
        """Return `count` graded groups from draw `first_draw` on; with `refill`, more, until `count` can be trained."""
        config, refill, missing, groups = self.config, self.refill, count, list[Group]()
        for _ in range(refill.max_rounds if refill else 1):
            draws, examples = self.draw(first_draw, len(groups), refill.drawn(missing) if refill else missing)
            with self.env.early_grading(config.seed, self.settings.rollouts) as early:
                with phase("sample"):
                    rollouts = self.sample(examples, draws, step, early)
                with phase("grade"):
                    graded = grade_groups(self.env, examples, draws, rollouts, config, early)
            groups += with_advantages_among(graded, config, self.custom)
            missing = count - [group_state(group) for group in groups].count("trained")
            if missing <= 0:
                break
        groups = fill(groups, count, config, self.custom) if refill else groups
        return [replace(group, env=self.name) for group in groups] if self.name else groups

    def draw(self, first_draw: int, drawn: int, count: int) -> tuple[list[int], list[Example]]:
        """Return the numbers (from `first_draw`) and examples of `count` draws after `drawn`, without retired draws."""
        walked = enumerate(self.curriculum.draw(drawn + count), first_draw)
        draws = [(number, draw) for number, draw in walked if not draw.retired]
        return [number for number, _ in draws[drawn:]], [self.rows[draw.index] for _, draw in draws[drawn:]]

    def sample(
        self, examples: Sequence[Example], draws: Sequence[int], step: int, early: EarlyGrading | None = None
    ) -> list[Rollout]:
        """Sample a group of rollouts for each example, in order. `early` grades each rollout when it ends."""
        finished: Callable[[int, Rollout], None] | None = early and (
            lambda i, rollout: early.add(i, examples[i // self.settings.rollouts], rollout)
        )
        return roll_out(self.env, self.policy, self.settings, examples, draws, step, self.sampling, finished)


def grade_groups(
    env: Environment,
    examples: Sequence[Example],
    draws: Sequence[int],
    rollouts: Sequence[Rollout],
    config: RLConfig,
    early: EarlyGrading | None = None,
) -> list[Group]:
    """Return the groups of `rollouts` (ordered by group), graded here or by `early`. Advantages are still 0."""
    size = len(rollouts) // len(examples)
    if early is None:
        pairs = ((examples[i // size], rollout) for i, rollout in enumerate(rollouts))
        scores = env.grade_many(pairs, config.seed, (i // size for i in range(len(rollouts))))
    else:
        early_scores = early.scores()
        scores = [early_scores[rollout.sample_id] for rollout in rollouts]
    members = [slice(index * size, (index + 1) * size) for index in range(len(examples))]
    masks = config.orchestrator.truncated == "mask"
    return [
        Group(example, draw, list(rollouts[m]), scores[m], np.zeros(size, np.float32), masks_truncated=masks)
        for example, draw, m in zip(examples, draws, members, strict=True)
    ]


def fill(groups: Sequence[Group], room: int, config: RLConfig, custom: Advantages | None = None) -> list[Group]:
    """Return a refilled step's groups with advantages. Trained groups beyond `room` are left out as `surplus`."""
    filled = list[Group]()
    for group in groups:
        trained = group_state(group) == "trained"
        filled.append(replace(group, left_out="surplus") if trained and room <= 0 else group)
        room -= trained
    return with_advantages(filled, config, custom)


def with_advantages(groups: Sequence[Group], config: RLConfig, custom: Advantages | None = None) -> list[Group]:
    """Return the groups with advantages. Left-out groups, and with `refill` groups of equal rewards, have advantages of
    0, and no mean of the step includes them.
    """

    def among(counting: list[int]) -> dict[int, Group]:
        return dict(zip(counting, with_advantages_among([groups[i] for i in counting], config, custom), strict=True))

    found = among([i for i, group in enumerate(groups) if group.left_out is None])
    if config.orchestrator.refill and (teaching := [i for i, group in found.items() if group.has_advantages]):
        found = among(teaching)
    return [
        found.get(i, replace(group, advantages=np.zeros(len(group.scores), np.float32), call_advantages=None))
        for i, group in enumerate(groups)
    ]


def with_advantages_among(groups: Sequence[Group], config: RLConfig, custom: Advantages | None = None) -> list[Group]:
    """Return the groups with advantages, also of calls, computed as if these groups were the whole step."""
    if not groups:
        return []
    found = step_advantages([g.scores for g in groups], [g.rollouts for g in groups], config, custom)
    calls = call_advantages(groups, config, custom)
    # A refill replaces groups of equal rewards, whatever else the loss has.
    trains_all = config.trainer.loss.regularized and config.orchestrator.refill is None
    least = 1 if trains_all or config.orchestrator.advantage.compares_the_batch else 2
    return [
        replace(group, advantages=a, call_advantages=c, trains_all=trains_all, least_graded=least)
        for group, a, c in zip(groups, found, calls, strict=True)
    ]


def call_advantages(
    groups: Sequence[Group], config: RLConfig, custom: Advantages | None = None
) -> list[list[list[np.ndarray]] | None]:
    """Compute the advantages of model calls, by group, rollout and segment; None for a group without rewards of calls.

    A call's reward is compared with all calls of its group, or of the step if the baseline is the batch's.
    """
    rewarded = [has_call_rewards(group) for group in groups]
    if not any(rewarded):
        return [None] * len(groups)
    rows = [call_rewards(group) for group in groups]
    rewards_PC = np.full((len(rows), max(map(len, rows))), np.nan)
    tokens_PC = np.zeros(rewards_PC.shape, dtype=np.int64)
    for row_C, tokens_C, values, group in zip(rewards_PC, tokens_PC, rows, groups, strict=True):
        row_C[: len(values)] = values
        tokens_C[: len(values)] = np.concatenate([_call_tokens(t, config) for t in group.rollouts])
    found_PC = advantages_by_settings(rewards_PC, ~np.isnan(rewards_PC), tokens_PC, config, custom)
    made: list[list[list[np.ndarray]] | None] = []
    for group, has_rewards, found_C in zip(groups, rewarded, found_PC, strict=True):
        ends = iter(np.split(found_C, np.cumsum([one.turns for r in group.rollouts for one in r.segments])))
        made.append([[next(ends) for _ in r.segments] for r in group.rollouts] if has_rewards else None)
    return made


def has_call_rewards(group: Group) -> bool:
    return any(rollout.first.turn_rewards is not None for rollout in group.rollouts)


def call_rewards(group: Group) -> np.ndarray:
    """Return float64 `[C]`: the reward of each of a group's C calls, else its sample's; NaN if grading failed."""
    return np.concatenate(
        [
            np.full(one.turns, score.reward)
            if one.turn_rewards is None or score.outcome.is_failure
            else one.turn_rewards
            for rollout, score in zip(group.rollouts, group.scores, strict=True)
            for one in rollout.segments
        ]
    )


def step_advantages(
    scores: Sequence[Sequence[Score]],
    rollouts: Sequence[Sequence[Rollout]],
    config: RLConfig,
    custom: Advantages | None = None,
) -> list[np.ndarray]:
    """Compute the advantages of a step's groups by `orchestrator.advantage`: float32 `[G]` per group of G completions.

    With `truncated` = "penalize" completions near their length limit get lower rewards here, but not in `scores`.
    Raises UserError if the user's function returns another shape, or values that are not finite.
    """
    settings = config.orchestrator.advantage
    valid_PG = np.stack([valid(group) for group in scores])
    rewards_PG = np.stack([shaped_rewards(*group, config) for group in zip(scores, rollouts, strict=True)])
    if settings.function is None and settings.components == "normalize":
        weights = {name: weight for group in scores for score in group for name, weight in score.weights.items()}
        values_PGK = np.array(
            [[[score.components.get(name, np.nan) for name in weights] for score in group] for group in scores]
        )
        deviation = {"std_ddof": settings.std_ddof, "std_eps": settings.std_eps}
        return list(normalized_components(values_PGK, np.array(list(weights.values())), valid_PG, **deviation))
    tokens_PG = np.array([[_call_tokens(t, config).sum() for t in group] for group in rollouts], dtype=np.int64)
    return list(advantages_by_settings(rewards_PG, valid_PG, tokens_PG, config, custom))


def shaped_rewards(scores: Sequence[Score], rollouts: Sequence[Rollout], config: RLConfig) -> np.ndarray:
    """Return a group's rewards for advantages, float64 `[G]`: the scores minus the penalties for a long last turn."""
    orch = config.orchestrator
    if orch.truncated != "penalize":
        return rewards(scores)
    group = [rollout.first for rollout in rollouts]
    lengths = np.array([np.logical_and.accumulate(one.sampled_mask[::-1]).sum() for one in group])
    room = config.seq_len - np.array([len(one) for one in group]) + lengths
    limits = np.minimum(room, orch.sampling.max_tokens or config.seq_len)
    lengths = np.where([one.truncated for one in group], limits, np.minimum(lengths, limits - 1))
    return rewards(scores) - overlong_penalty(lengths, limits, orch.overlong_buffer, orch.overlong_penalty)


def _call_tokens(rollout: Rollout, config: RLConfig) -> np.ndarray:
    def of(one: Segment) -> np.ndarray:
        if is_masked(one, config):
            return np.zeros(one.turns, dtype=np.int64)
        turn_T = np.cumsum(np.diff(one.sampled_mask, prepend=False) & one.sampled_mask)
        return np.bincount(turn_T[one.sampled_mask], minlength=one.turns + 1)[1:]

    return np.concatenate([of(one) for one in rollout.segments])


def is_masked(segment: Segment, config: RLConfig) -> bool:
    return config.orchestrator.truncated == "mask" and segment.truncated


def advantages_by_settings(
    rewards_PG: np.ndarray, valid_PG: np.ndarray, tokens_PG: np.ndarray, config: RLConfig, custom: Advantages | None
) -> np.ndarray:
    """Compute advantages as the config says. Invalid rewards are NaN; `tokens_PG` has the numbers of loss tokens."""
    settings = config.orchestrator.advantage
    if settings.function is not None:
        custom = custom or find_function(settings.function)[0]
        return _checked(custom(rewards_PG.copy(), valid_PG.copy()), valid_PG, settings.function)
    how = settings.baseline, settings.scale, settings.std_ddof, settings.std_eps
    return advantages(rewards_PG, valid_PG, *how, tokens_PG)


def _checked(found: Any, valid_PG: np.ndarray, name: str) -> np.ndarray:
    found_PG = np.asarray(found, dtype=np.float32)
    if found_PG.shape != valid_PG.shape or not np.isfinite(found_PG[valid_PG]).all():
        raise UserError(
            f"{name} must return finite advantages of shape {valid_PG.shape}; it gave {found_PG.shape}"
            + ("" if found_PG.shape != valid_PG.shape else " with values that are not finite")
        )
    return np.where(valid_PG, found_PG, np.float32(0))


def check_prompts(
    split: Split,
    indices: Sequence[int],
    renderer: ChatRenderer,
    seq_len: int,
    limit: str,
    remedy: str,
    advance: Callable[[int], None] = lambda done: None,
    tools: list[dict[str, Any]] | None = None,
) -> None:
    """Raise UserError if a prompt leaves no room for a completion. Checks at most 64 rows of generated data."""
    for done, index in enumerate(indices[:64] if split.generated else indices):
        advance(done)
        example = split[index]
        renderer.note(split.where(index), example.prompt, tools, key=example.id)
        tokens = len(renderer.prompt_ids(example.prompt, tools))
        if tokens >= seq_len:
            raise UserError(
                f"{split.where(index)}: the prompt has {tokens} tokens and leaves no room for a completion in {limit}; "
                f"{remedy}"
            )


def rewards(scores: Sequence[Score]) -> np.ndarray:
    """Return the rewards of a group, float64 `[G]`; NaN where grading failed."""
    return np.array([score.reward for score in scores], dtype=np.float64)


def valid(scores: Sequence[Score]) -> np.ndarray:
    """Return bool `[G]`: False where grading failed."""
    return np.array([not score.outcome.is_failure for score in scores], dtype=np.bool_)


def group_state(group: Group) -> State:
    """Return the state of the group's draw, as in `hone.loops.ledger.Entry`.

    Equal rewards give no advantages, unless they are compared with the whole batch. A group without advantages is
    trained if the loss has a KL or entropy term (`trains_all`), or if an extension's column gives advantages per token.
    """
    if group.left_out is not None:
        return group.left_out
    if valid(group.scores).sum() < group.least_graded:
        return "failed"
    if group.all_masked:
        return "filtered"
    names = gathered("COLUMNS", {}).keys()
    is_scored = any(names & rollout.first.columns.keys() for rollout in group.rollouts)
    return "trained" if group.trains_all or is_scored or group.has_advantages else "filtered"


def trainable(groups: Sequence[Group], config: RLConfig) -> Batch:
    """Return a step's batch: the completions to train on, in the order of the groups, and counts of filtered groups.

    Failed samples are left out. With `truncated` = "mask", completions that were cut off are left out, too. With
    `refill`, other groups replace filtered groups, so filtered groups are not counted. In a group of G rollouts,
    segment b of rollout i is sample i + b · G. Every sampled token carries loss, also the stop token.
    """
    orch, tasks = config.orchestrator, config.tasks()
    sequences, filtered = list[Packed](), Counts()
    for group in groups:
        members = [
            (index + branch * len(group.scores), segment)
            for index, (rollout, score) in enumerate(zip(group.rollouts, group.scores, strict=True))
            for branch, segment in enumerate(rollout.segments)
            if not score.outcome.is_failure and not is_masked(segment, config)
        ]
        state = group_state(group)
        if state == "filtered" and members and orch.refill is None:
            tokens = sum(segment.num_sampled for _, segment in members)
            filtered = Counts(filtered.tokens + tokens, filtered.sequences + len(members), filtered.prompts + 1)
        if state == "trained":
            packed = [_packed(group, *member, config) for member in members]
            if config.trainer.loss.kl_in_reward:
                shaped = shaped_rewards(group.scores, group.rollouts, tasks[group.env])
                reward_of = [float(shaped[one.sample % len(group.scores)]) for one in packed]
                pool = list(tasks).index(group.env)
                packed = [replace(one, reward=r, pool=pool) for one, r in zip(packed, reward_of, strict=True)]
            sequences += packed
    longest = min(config.most_tokens or config.seq_len, config.seq_len)
    return Batch(sequences, filtered, longest)


def _packed(group: Group, index: int, segment: Segment, config: RLConfig) -> Packed:
    branch, sample = divmod(index, len(group.scores))
    advantage: Any = float(group.advantages[sample])
    if group.call_advantages is not None:
        advantage = token_advantages(group.call_advantages[sample][branch], segment.sampled_mask)
    for name, column in token_columns(config).items():
        if (scored := dense(segment.columns, name)) is not None:
            advantage = column.advantages(config, advantage, segment.logprobs, scored)
    return Packed(
        token_ids=segment.token_ids,
        loss_mask=segment.sampled_mask,
        logprobs=segment.logprobs,
        advantage=advantage,
        group=group.draw,
        sample=index,
        # the columns of extensions are in the advantages
        columns={name: one for name, one in segment.columns.items() if name not in gathered("COLUMNS", {})},
    )


def ledger_entries(curriculum: Curriculum, groups: Sequence[Group], step: int, first_draw: int) -> list[Entry]:
    """Return the ledger entries of a step's draws, including retired ones; the first has the number `first_draw`."""
    waiting, entries, env = iter(groups), [], groups[0].env or None
    for number, draw in enumerate(curriculum.draw(len(groups)), first_draw):
        if draw.retired:
            entries.append(Entry(number, step, curriculum.ids[draw.index], "retired", 0, env=env))
            continue
        group = next(waiting)
        tokens = sum(len(segment) for rollout in group.rollouts for segment in rollout.segments)
        entry = Entry(number, step, group.example.id, group_state(group), tokens, env=env)
        if curriculum.config.measures:
            outcomes = [score.outcome for score in group.scores]
            graded = sum(not outcome.is_failure for outcome in outcomes)
            entry = replace(entry, solved=outcomes.count(Outcome.CORRECT), graded=graded)
        entries.append(entry)
    return entries


def step_metrics(groups: Sequence[Group], version: int, lag: int = 0, refilled: bool = False) -> dict[str, float]:
    """Compute a step's metrics over all sampled completions. Failed gradings are counted, but no mean includes them.

    `lag` is the number of versions that the sampler may be behind. `refilled` is true if groups may have been left out.
    """
    scores = [score for group in groups for score in group.scores]
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    firsts = [rollout.first for rollout in rollouts]
    graded = rewards(scores)[valid(scores)]
    states = [group_state(group) for group in groups]
    metrics: dict[str, float] = {}
    if len(graded):
        metrics["reward/mean"] = float(graded.mean())
        metrics["reward/std"] = float(graded.std())
        metrics |= component_means([score.components for score in scores if not score.outcome.is_failure])
    compared = [call_rewards(group) if has_call_rewards(group) else rewards(group.scores) for group in groups]
    if any(len(row) > 1 for row in compared):
        same = [not has_signal(row[~np.isnan(row)]) for row in compared]
        metrics["frac_reward_zero_std"] = float(
            np.mean([zero and s != "failed" for zero, s in zip(same, states, strict=True)])
        )
    metrics |= outcome_shares([score.outcome for score in scores])
    metrics["completion/length/mean"] = float(np.array([one.num_sampled for one in firsts]).mean())
    metrics["completion/truncated"] = float(np.mean([one.truncated for one in firsts]))
    metrics |= _identical_shares(groups)
    candidates = [(ragged(one.columns, "candidates"), one.sampled_mask) for one in firsts]
    if cut := [column.counts[mask] for column, mask in candidates if column is not None]:
        metrics["completion/kept_ids/mean"] = float(np.concatenate(cut).mean())
    for name, column in gathered("COLUMNS", {}).items():
        if scored := [(one, one.columns[name]) for one in firsts if name in one.columns]:
            metrics |= column.metrics(scored)
    if any(rollout.state is not None or rollout.turns > 1 for rollout in rollouts):
        metrics["turns/mean"] = float(np.mean([one.turns for one in firsts]))
        metrics["tokens/environment"] = sum(one.num_environment for one in firsts)
    if any(rollout.branches for rollout in rollouts):
        metrics["trajectories/mean"] = float(np.mean([len(rollout.segments) for rollout in rollouts]))
    staleness = np.concatenate([version - one.versions[one.sampled_mask] for one in firsts])
    if len(staleness):
        metrics["staleness/mean"] = float(staleness.mean())
    if lag and len(staleness):
        metrics["staleness/max"] = float(staleness.max())
    metrics |= {f"groups/{state}": states.count(state) for state in ("trained", "filtered", "failed")}
    if refilled:  # No group is cut off any more; the key stays, so that runs keep their bytes.
        metrics |= {"groups/drawn": len(groups), "groups/surplus": states.count("surplus"), "groups/cut": 0}
    return metrics


def _identical_shares(groups: Sequence[Group]) -> dict[str, float]:
    """Compute the shares of completions with the same sampled tokens as another completion: an earlier one of the same
    prompt (`completion/repeated`), or one of another prompt of the step (`completion/identical`).
    """
    texts = [[r.first.token_ids[r.first.sampled_mask].tobytes() for r in group.rollouts] for group in groups]
    total = sum(map(len, texts))
    prompts_with = Counter(text for group in texts for text in set(group))
    return {
        "completion/repeated": sum(len(group) - len(set(group)) for group in texts) / total,
        "completion/identical": sum(prompts_with[text] > 1 for group in texts for text in group) / total,
    }
