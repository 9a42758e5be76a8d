"""The records that flow between hone's rooms. This module imports nothing of hone, and torch only for type checking.

Shapes: T tokens of one sequence, G completions of one group, N tokens of one packed batch, S sequences of one packed
batch.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

if TYPE_CHECKING:
    import torch

Message = dict[str, Any]

GREEDY_BELOW = 1e-5
"""A sampling temperature below this is greedy: logits divided by it may exceed what float32 holds."""

LARGEST_REWARD = 1e6
"""The largest absolute reward. A larger one is a mistake: float32, in which advantages are, then rounds away what the
other components pay."""
BOUND = f"±{LARGEST_REWARD:,.0f}"
TOO_LARGE = f"is not within {BOUND}: scale the rewards down"


class Outcome(StrEnum):
    """What grading found out about one completion. Listed by precedence: the first that applies is the outcome."""

    GRADER_ERROR = "grader_error"
    GRADER_TIMEOUT = "grader_timeout"
    CORRECT = "correct"
    WRONG = "wrong"
    TRUNCATED = "truncated"
    UNPARSABLE = "unparsable"

    @property
    def is_failure(self) -> bool:
        """True if the grader failed: the sample has no reward, and leaves its group's statistics and the loss."""
        return self in (Outcome.GRADER_ERROR, Outcome.GRADER_TIMEOUT)


def content_hash(value: Any) -> str:
    """Return the first 16 hex digits of the SHA-256 of `value` as canonical JSON."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


@dataclass(frozen=True)
class Example:
    """One task instance. `id` is the hash of prompt, answer and info, so equal content has an equal id everywhere."""

    prompt: list[Message]
    answer: str = ""
    info: dict[str, Any] = field(default_factory=dict)
    id: str = ""

    def __post_init__(self) -> None:
        assert self.prompt, "an example needs at least one prompt message"
        if not self.id:
            object.__setattr__(self, "id", content_hash([self.prompt, self.answer, self.info]))


@dataclass(frozen=True)
class Kept:
    """The tokens that each of T tokens was sampled among, where `top_k`, `top_p` or `min_p` cut the distribution.

    `counts` `[T]` int32 says how many they are: 0 where none were cut away, or the token was not sampled. `ids` int32
    has those of one token after those of another.
    """

    ids: np.ndarray
    counts: np.ndarray

    def __post_init__(self) -> None:
        assert self.ids.dtype == self.counts.dtype == np.int32
        assert len(self.ids) == self.counts.sum() and (self.counts >= 0).all()

    @classmethod
    def of(cls, sets: Sequence[Sequence[int] | np.ndarray]) -> Kept:
        """Make those of tokens of which each has one of these sets of ids."""
        arrays = [np.asarray(one, dtype=np.int32) for one in sets]
        return cls(np.concatenate(arrays), np.array([len(one) for one in arrays], dtype=np.int32))

    @classmethod
    def joined(cls, parts: Sequence[Kept | int]) -> Kept | None:
        """Join parts of a sequence, of which a number stands for so many uncut tokens; None if all are."""
        if not any(isinstance(part, Kept) for part in parts):
            return None
        nothing = np.zeros(0, dtype=np.int32)
        kept = [cls(nothing, np.zeros(part, dtype=np.int32)) if isinstance(part, int) else part for part in parts]
        return cls(*(np.concatenate([getattr(part, name) for part in kept]) for name in ("ids", "counts")))

    def where(self, mask_T: np.ndarray) -> Kept:
        """Return those of some of the tokens."""
        return Kept(self.ids[np.repeat(mask_T, self.counts)], self.counts[mask_T])

    def hold(self, token_ids_T: np.ndarray) -> bool:
        """Return True if each token is among those that it was sampled among."""
        token = np.repeat(np.arange(len(self.counts)), self.counts)
        return bool(np.isin(np.flatnonzero(self.counts), token[self.ids == token_ids_T[token]]).all())


@dataclass(frozen=True)
class Trajectory:
    """One rollout, exactly as sampled: what is trained on is this list of ids, never a re-encoding of its text.

    `token_ids` `[T]` prompt and completion; `sampled_mask` `[T]` True where the policy chose the token; `logprobs`
    `[T]` float32 natural-log probability under the sampling distribution (0 where not sampled); `versions` `[T]` policy
    version that produced each token (-1 where not sampled). `messages` is the conversation including the completion.
    `branches` are further trajectories of the same sample, where a program makes them: all have its advantage,
    or their turns have their own.
    `kept` are the tokens that each was sampled among, of whose probabilities the logprobs are; None: the vocabulary.
    `teacher_logprobs` `[T]` float32 are those of a teacher, None without one. `call_rewards` float64 are those of its
    turns, where a program rewards each call of the model.

    Of a task of several turns, tokens between the turns are the environment's: not sampled. `state` is then what the
    environment keeps of the conversation (JSON), None for a task of one turn; `failure` says why the environment broke
    off, as outcome and detail. Another time the environment may answer what it did not: `late` if a tool was ended at
    its deadline, which the model knew, `killed` if a process was killed from outside, each time it was asked.
    """

    token_ids: np.ndarray
    sampled_mask: np.ndarray
    logprobs: np.ndarray
    versions: np.ndarray
    messages: list[Message]
    stop_reason: str
    sample_id: str
    state: dict[str, Any] | None = None
    failure: tuple[Outcome, str] | None = None
    late: bool = False
    killed: bool = False
    kept: Kept | None = None
    teacher_logprobs: np.ndarray | None = None
    branches: tuple[Trajectory, ...] | None = None
    call_rewards: np.ndarray | None = None

    def __post_init__(self) -> None:
        length = len(self.token_ids)
        assert not any(branch.branches for branch in self.branches or ())
        assert len(self.sampled_mask) == len(self.logprobs) == len(self.versions) == length
        assert self.token_ids.dtype == np.int64 and self.sampled_mask.dtype == np.bool_
        assert self.logprobs.dtype == np.float32 and self.versions.dtype == np.int32
        assert self.stop_reason in ("stop", "length"), self.stop_reason
        assert length == 0 or not self.sampled_mask[0], "the first token has no context to be sampled from"
        if (teacher := self.teacher_logprobs) is not None:
            assert len(teacher) == length and teacher.dtype == np.float32 and np.isfinite(teacher).all()
        if (own := self.call_rewards) is not None:
            assert len(own) == self.turns and own.dtype == np.float64 and np.isfinite(own).all()
        if self.kept is not None:
            assert len(self.kept.counts) == length
            assert self.kept.hold(self.token_ids), "a token was not among those that it was sampled among"

    @property
    def trajectories(self) -> tuple[Trajectory, ...]:
        """The trajectories of the sample: this one, and its branches."""
        return (self, *(self.branches or ()))

    @property
    def truncated(self) -> bool:
        return self.stop_reason == "length"

    @property
    def num_sampled(self) -> int:
        return int(self.sampled_mask.sum())

    @property
    def completion_text(self) -> str:
        """What the policy wrote, the texts of several turns with an empty line between them."""
        texts = [message["content"] for message in self.messages if message["role"] == "assistant"]
        return "\n\n".join(texts[-max(1, self.turns) :])

    @property
    def turns(self) -> int:
        """How often the policy had its turn: runs of sampled tokens."""
        return int((np.diff(self.sampled_mask.astype(np.int8)) == 1).sum())

    @property
    def prompt_length(self) -> int:
        """Tokens before the first that was sampled."""
        return int(self.sampled_mask.argmax()) if self.num_sampled else len(self.token_ids)

    @property
    def num_environment(self) -> int:
        """Tokens between the turns, which the environment wrote."""
        return len(self.token_ids) - self.prompt_length - self.num_sampled


@dataclass(frozen=True)
class Reply:
    """One completion by a server that tells its text, not its tokens: enough to grade, not to train on.

    `messages` is the conversation including the completion. The token counts are the server's; None if it gave none:
    of several turns (`turns`), of the prompt of the first, and of all completions. `seconds` is how long the answers
    took. `state` and `failure` as in `Trajectory`. `completion_ids` are the sampled tokens, of a completion that a run
    recorded.
    """

    messages: list[Message]
    stop_reason: str
    sample_id: str
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    seconds: float = 0.0
    turns: int = 1
    state: dict[str, Any] | None = None
    failure: tuple[Outcome, str] | None = None
    completion_ids: list[int] | None = None

    def __post_init__(self) -> None:
        assert self.stop_reason in ("stop", "length"), self.stop_reason

    @property
    def truncated(self) -> bool:
        return self.stop_reason == "length"


@dataclass(frozen=True)
class Score:
    """What grading made of one completion: reward = sum over components of weight x value, in the rubric's order.

    A component that abstained (returned None) is absent from `components`. When `outcome.is_failure`, the reward is NaN
    and must not be used. `detail` says in words why; `seconds` is wall time, never written to exact logs. `killed`: the
    process of the grader was killed from outside, each time it was asked, so another time there may be a reward.
    """

    reward: float
    components: dict[str, float]
    weights: dict[str, float]
    outcome: Outcome
    detail: str = ""
    seconds: float = 0.0
    killed: bool = False

    def __post_init__(self) -> None:
        assert math.isnan(self.reward) == self.outcome.is_failure, (self.reward, self.outcome)

    @property
    def too_large(self) -> bool:
        """True if the weighted sum of the components is no reward because of its size."""
        total = sum(self.weights[name] * value for name, value in self.components.items())
        return not abs(total) <= LARGEST_REWARD


@dataclass(frozen=True)
class Group:
    """G trajectories of one example with their scores and advantages `[G]` float32.

    `draw` is the run-wide index of this draw of an example (the ledger's key). Advantages are 0 for failed samples.
    `left_out`: a refill did not need the group. `env` is the name of its task, of several.
    `trains_all`: all samples with a score are trained, for the loss has a KL or entropy term. `least_graded`: samples
    with a score that a group needs to be trained. `masks_truncated`: completions that were stopped by length are not
    trained on. `call_advantages`, where a program rewards each call: of each turn of each trajectory of each sample.
    """

    example: Example
    draw: int
    trajectories: list[Trajectory]
    scores: list[Score]
    advantages: np.ndarray
    left_out: Literal["surplus"] | None = None
    env: str = ""
    call_advantages: list[list[np.ndarray]] | None = None
    trains_all: bool = False
    least_graded: int = 2
    masks_truncated: bool = False

    def __post_init__(self) -> None:
        assert len(self.trajectories) == len(self.scores) == len(self.advantages) > 0
        assert np.isfinite(self.advantages).all()
        if self.call_advantages is not None:
            for sample, lines in zip(self.trajectories, self.call_advantages, strict=True):
                for one, calls in zip(sample.trajectories, lines, strict=True):
                    assert len(calls) == one.turns and np.isfinite(calls).all()

    @property
    def has_advantages(self) -> bool:
        """True if a token of the group has an advantage other than 0."""
        if self.call_advantages is None:
            return bool(np.any(self.advantages))
        return any(np.any(turns) for sample in self.call_advantages for turns in sample)

    @property
    def all_masked(self) -> bool:
        """True if every completion with a score was stopped by length, and none is trained on."""
        graded = [t for t, s in zip(self.trajectories, self.scores, strict=True) if not s.outcome.is_failure]
        masked = all(one.truncated for t in graded for one in t.trajectories)
        return self.masks_truncated and bool(graded) and masked


@dataclass(frozen=True)
class Counts:
    """How much of a step something is: loss tokens, completions, prompts."""

    tokens: int = 0
    sequences: int = 0
    prompts: int = 0


@dataclass(frozen=True)
class PackedBatch:
    """Sequences laid end to end, with everything the train step needs. Tensors lie where the model does, tuples on the
    host: what the host decides by must not make it wait for a GPU.

    S segments of `lengths` tokens: attention never crosses from one to another, except that `parents[i]`, if it is not
    -1, is the segment whose tokens come before those of segment i: a prompt that a group shares, laid down once, before
    its completions. `parents` None: every segment is a whole sequence. `loss_lengths`, `groups` and `samples` (-1: a
    shared prompt) say of each segment how many tokens carry loss, and whose it is; `rewards` (None: not needed) and
    `pools` are the reward of its completion and the number of its task.

    `[N]`: `token_ids`; `positions`, which count within the sequence, so a segment goes on where its parent ends;
    `previous`, the index of the token that precedes a token in its sequence, -1 for a first token; all int64.
    `sampling_logprobs`, `advantages`, `weights` float32: the step's loss is the sum of the tokens' losses times their
    weights, over all micro-batches and ranks. `old_logprobs` / `ref_logprobs` or None (old: the sampler's are used;
    ref: no KL term). The logprob of token i is that of predicting it from the tokens before it in its sequence.
    `loss_indices` `[M]` int64 are the tokens whose prediction is trained, ascending; `sequence_lengths` int64, how many
    of them each completion has, those without left out. `num_loss_tokens` are the loss tokens of the whole step, over
    all micro-batches and ranks, which statistics are divided by. `minibatch`: the update of the step that it is for.
    `kept` are those of the M tokens, on the host.
    """

    token_ids: torch.Tensor
    positions: torch.Tensor
    previous: torch.Tensor
    sampling_logprobs: torch.Tensor
    advantages: torch.Tensor
    weights: torch.Tensor
    loss_indices: torch.Tensor
    sequence_lengths: torch.Tensor
    lengths: tuple[int, ...]
    loss_lengths: tuple[int, ...]
    groups: tuple[int, ...]
    samples: tuple[int, ...]
    num_loss_tokens: int
    rewards: tuple[float | None, ...] = ()
    pools: tuple[int, ...] = ()
    minibatch: int = 0
    parents: tuple[int, ...] | None = None
    old_logprobs: torch.Tensor | None = None
    ref_logprobs: torch.Tensor | None = None
    kept: Kept | None = None

    def __post_init__(self) -> None:
        n = sum(self.lengths)
        for name in ("token_ids", "positions", "previous", "sampling_logprobs", "advantages", "weights"):
            assert getattr(self, name).shape == (n,), (name, getattr(self, name).shape, n)
        assert self.loss_indices.shape == (sum(self.loss_lengths),) and len(self.loss_indices) <= self.num_loss_tokens
        assert len(self.lengths) == len(self.loss_lengths) == len(self.groups) == len(self.samples)
        assert self.kept is None or len(self.kept.counts) == len(self.loss_indices)
        if self.parents is not None:
            assert len(self.parents) == len(self.lengths), "one parent, or -1, for each segment"
            assert all(p < i and (p < 0 or self.parents[p] < 0) for i, p in enumerate(self.parents)), self.parents

    def __len__(self) -> int:
        return self.token_ids.shape[0]
