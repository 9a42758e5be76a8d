"""The records that hone's packages exchange. Imports no other module of hone, and torch only for type checking.

Shapes: T tokens of a sequence, G completions of a group, N tokens and S segments of a packed batch.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

if TYPE_CHECKING:
    import torch

Message = dict[str, Any]

GREEDY_BELOW = 1e-5
"""Temperatures below this mean greedy sampling: dividing logits by less may overflow float32."""

LARGEST_REWARD = 1e6
"""The largest absolute reward. With larger rewards, float32 advantages would lose small components."""
BOUND = f"±{LARGEST_REWARD:,.0f}"
TOO_LARGE = f"is not within {BOUND}: scale the rewards down"


class Outcome(StrEnum):
    """The result of grading one completion: the first member, in this order, that applies."""

    GRADER_ERROR = "grader_error"
    GRADER_TIMEOUT = "grader_timeout"
    CORRECT = "correct"
    WRONG = "wrong"
    TRUNCATED = "truncated"
    UNPARSABLE = "unparsable"

    @property
    def is_failure(self) -> bool:
        """True if the grader failed. The sample has no reward, and group statistics and the loss ignore the sample."""
        return self in (Outcome.GRADER_ERROR, Outcome.GRADER_TIMEOUT)


def content_hash(value: Any, errors: str = "surrogatepass") -> str:
    """Return the first 16 hex digits of the SHA-256 of `value` as canonical JSON. `errors`: as in `str.encode`."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode("utf-8", errors)).hexdigest()[:16]


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
class Ragged:
    """A column with any number of values per token: `counts` `[T]` int32, and all `values` concatenated."""

    values: np.ndarray
    counts: np.ndarray

    def __post_init__(self) -> None:
        assert self.counts.dtype == np.int32 and (self.counts >= 0).all()
        assert len(self.values) == self.counts.sum()

    @classmethod
    def of(cls, sets: Sequence[Sequence[int] | np.ndarray]) -> Ragged:
        arrays = [np.asarray(one, dtype=np.int32) for one in sets]
        return cls(np.concatenate(arrays), np.array([len(one) for one in arrays], dtype=np.int32))

    def __len__(self) -> int:
        return len(self.counts)

    def holds(self, values_T: np.ndarray) -> bool:
        """Return True if each token t with values has `values_T[t]` among them."""
        token = np.repeat(np.arange(len(self.counts)), self.counts)
        return bool(np.isin(np.flatnonzero(self.counts), token[self.values == values_T[token]]).all())


Column = np.ndarray | Ragged
"""One value per token, or several (`Ragged`)."""
Columns = Mapping[str, Column]
"""Columns by name. `candidates` (int32, ragged): the ids that a token was sampled from, if `top_k`, `top_p` or `min_p`
cut the distribution. Extensions add columns (float32, 0 for tokens that were not sampled)."""


def dense(columns: Columns, name: str) -> np.ndarray | None:
    found = columns.get(name)
    assert found is None or isinstance(found, np.ndarray)
    return found


def ragged(columns: Columns, name: str) -> Ragged | None:
    found = columns.get(name)
    assert found is None or isinstance(found, Ragged)
    return found


def where(columns: Columns, mask_T: np.ndarray) -> dict[str, Column]:
    return {
        name: Ragged(one.values[np.repeat(mask_T, one.counts)], one.counts[mask_T])
        if isinstance(one, Ragged)
        else one[mask_T]
        for name, one in columns.items()
    }


def joined(parts: Sequence[tuple[int, Columns]]) -> dict[str, Column]:
    """Concatenate parts (number of tokens, columns). A column missing in a part gives zeros, or no values if ragged."""
    kinds = {name: one for _, columns in parts for name, one in columns.items()}
    found: dict[str, Column] = {}
    for name, kind in kinds.items():
        if isinstance(kind, Ragged):
            nothing = kind.values[:0]
            full = [columns.get(name) or Ragged(nothing, np.zeros(size, np.int32)) for size, columns in parts]
            values, counts = (np.concatenate([getattr(one, key) for one in full]) for key in ("values", "counts"))
            found[name] = Ragged(values, counts)
        else:
            plain = [columns.get(name, np.zeros(size, kind.dtype)) for size, columns in parts]
            found[name] = np.concatenate(plain)  # type: ignore[arg-type]
    return found


def split(columns: Columns, lengths: Sequence[int] | np.ndarray) -> list[dict[str, Column]]:
    """Split columns into consecutive parts of these lengths: the inverse of `joined`."""
    cuts, parts = np.cumsum(lengths)[:-1], [dict[str, Column]() for _ in lengths]
    for name, one in columns.items():
        pieces: Sequence[Column] = np.split(one.counts if isinstance(one, Ragged) else one, cuts)
        if isinstance(one, Ragged):
            values = np.split(one.values, np.cumsum([counts.sum() for counts in pieces])[:-1])  # type: ignore[union-attr]
            pieces = [Ragged(*pair) for pair in zip(values, pieces, strict=True)]  # type: ignore[arg-type]
        for part, piece in zip(parts, pieces, strict=True):
            part[name] = piece
    return parts


@dataclass(frozen=True)
class Segment:
    """A sequence of T tokens, exactly as sampled: training takes these ids, and never encodes the text again.

    Arrays `[T]`: `token_ids` of prompt and completion; `sampled_mask`, True for tokens that the policy sampled;
    `logprobs`, float32 natural logs of the probability under the sampling distribution (0 if not sampled); `versions`
    of the policy that sampled the token (-1 if not sampled). `messages`: the conversation. `stop_reason`: how the last
    turn ended, "stop" or "length". `turn_rewards`: float64, one per turn, if a program rewards each call of the model.
    """

    token_ids: np.ndarray
    sampled_mask: np.ndarray
    logprobs: np.ndarray
    versions: np.ndarray
    messages: list[Message]
    stop_reason: str
    columns: Columns = field(default_factory=dict)
    turn_rewards: np.ndarray | None = None

    def __post_init__(self) -> None:
        length = len(self.token_ids)
        assert len(self.sampled_mask) == len(self.logprobs) == len(self.versions) == length
        assert self.token_ids.dtype == np.int64 and self.sampled_mask.dtype == np.bool_
        assert self.logprobs.dtype == np.float32 and self.versions.dtype == np.int32
        assert self.stop_reason in ("stop", "length"), self.stop_reason
        assert length == 0 or not self.sampled_mask[0], "the first token has no context to be sampled from"
        assert all(len(column) == length for column in self.columns.values())
        numbers = (one for one in self.columns.values() if not isinstance(one, Ragged))
        assert all(one.dtype == np.float32 and np.isfinite(one).all() for one in numbers)
        if (candidates := ragged(self.columns, "candidates")) is not None:
            assert candidates.holds(self.token_ids), "a token is not one of its candidates"
        if (rewards := self.turn_rewards) is not None:
            assert len(rewards) == self.turns and rewards.dtype == np.float64 and np.isfinite(rewards).all()

    def __len__(self) -> int:
        return len(self.token_ids)

    @property
    def truncated(self) -> bool:
        return self.stop_reason == "length"

    @property
    def num_sampled(self) -> int:
        return int(self.sampled_mask.sum())

    @property
    def turns(self) -> int:
        """Number of contiguous sampled spans."""
        return int((np.diff(self.sampled_mask.astype(np.int8)) == 1).sum())

    @property
    def prompt_length(self) -> int:
        return int(self.sampled_mask.argmax()) if self.num_sampled else len(self.token_ids)

    @property
    def num_environment(self) -> int:
        return len(self.token_ids) - self.prompt_length - self.num_sampled


@dataclass(frozen=True)
class Usage:
    """Counts from a text server: tokens of the first prompt and of all completions (None: unknown), turns, seconds."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    turns: int = 1
    seconds: float = 0.0


@dataclass(frozen=True)
class Rollout:
    """One sample: a conversation with the model, and its tokens.

    `segments`: the token sequences: one, several if a program branches (`branches` is true), or none if the server
    answers in text (see `usage`). The properties of ids, logprobs, turns and their numbers describe only the first
    segment. All segments have the sample's advantage, unless a program rewards each call. `messages` include the
    completion. `stop_reason` says how the last turn ended. `completion_ids`: the sampled tokens if there is no segment.

    In a task of several turns, `state` (JSON) is the environment's state, and `failure` (outcome, detail) says why the
    environment stopped early. A retry may end differently if `late` (a tool was ended at its deadline) or `killed` (a
    process was killed from outside at each try).
    """

    sample_id: str
    messages: list[Message]
    stop_reason: str
    segments: tuple[Segment, ...] = ()
    state: dict[str, Any] | None = None
    failure: tuple[Outcome, str] | None = None
    late: bool = False
    killed: bool = False
    branches: bool = False
    usage: Usage | None = None
    completion_ids: list[int] | None = None

    def __post_init__(self) -> None:
        assert self.stop_reason in ("stop", "length"), self.stop_reason
        assert self.branches or len(self.segments) <= 1

    @property
    def first(self) -> Segment:
        return self.segments[0]

    @property
    def token_ids(self) -> np.ndarray:
        return self.first.token_ids

    @property
    def sampled_mask(self) -> np.ndarray:
        return self.first.sampled_mask

    @property
    def logprobs(self) -> np.ndarray:
        return self.first.logprobs

    @property
    def versions(self) -> np.ndarray:
        return self.first.versions

    @property
    def truncated(self) -> bool:
        return self.stop_reason == "length"

    @property
    def turns(self) -> int:
        return self.first.turns if self.segments else (self.usage or Usage()).turns

    @property
    def prompt_tokens(self) -> int | None:
        return self.first.prompt_length if self.segments else (self.usage or Usage()).prompt_tokens

    @property
    def completion_tokens(self) -> int | None:
        return self.first.num_sampled if self.segments else (self.usage or Usage()).completion_tokens

    @property
    def sampled_ids(self) -> list[int] | None:
        return self.first.token_ids[self.first.sampled_mask].tolist() if self.segments else self.completion_ids

    @property
    def completion_text(self) -> str:
        """The text that the policy wrote, with an empty line between turns."""
        texts = [message["content"] for message in self.messages if message["role"] == "assistant"]
        return "\n\n".join(texts[-max(1, self.turns) :])


@dataclass(frozen=True)
class Score:
    """Grade of one completion. The reward is the sum over components of weight x value, in the rubric's order.

    A component that abstained (returned None) is absent from `components`. If `outcome.is_failure`, the reward is NaN,
    and `detail` says why. `seconds` is wall time; reproducible files leave it out. `killed`: the grader's process was
    killed from outside at each try, so another try may give a reward.
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
        """True if the weighted sum of the components exceeds LARGEST_REWARD, or is NaN."""
        total = sum(self.weights[name] * value for name, value in self.components.items())
        return not abs(total) <= LARGEST_REWARD


@dataclass(frozen=True)
class Group:
    """G rollouts of one example with their scores and advantages `[G]` float32.

    `draw` is the run-wide index of this draw of an example (the ledger's key). Failed samples have advantage 0.
    `left_out`: a refill did not need the group. `env`: the task's name if the run has several. `trains_all`: train on
    all samples with a score, because the loss has a KL or entropy term. `least_graded`: a group with fewer scores is
    not trained on. `masks_truncated`: do not train on completions that were stopped by length. `call_advantages`: if a
    program rewards each call, the advantages of the turns, by rollout and segment.
    """

    example: Example
    draw: int
    rollouts: list[Rollout]
    scores: list[Score]
    advantages: np.ndarray
    left_out: Literal["surplus"] | None = None
    env: str = ""
    call_advantages: list[list[np.ndarray]] | None = None
    trains_all: bool = False
    least_graded: int = 2
    masks_truncated: bool = False

    def __post_init__(self) -> None:
        assert len(self.rollouts) == len(self.scores) == len(self.advantages) > 0
        assert np.isfinite(self.advantages).all()
        if self.call_advantages is not None:
            for rollout, lines in zip(self.rollouts, self.call_advantages, strict=True):
                for one, calls in zip(rollout.segments, lines, strict=True):
                    assert len(calls) == one.turns and np.isfinite(calls).all()

    @property
    def has_advantages(self) -> bool:
        if self.call_advantages is None:
            return bool(np.any(self.advantages))
        return any(np.any(turns) for sample in self.call_advantages for turns in sample)

    @property
    def all_masked(self) -> bool:
        """True if every completion with a score is masked, because it was stopped by length."""
        graded = [r for r, s in zip(self.rollouts, self.scores, strict=True) if not s.outcome.is_failure]
        masked = all(one.truncated for rollout in graded for one in rollout.segments)
        return self.masks_truncated and bool(graded) and masked


@dataclass(frozen=True)
class Counts:
    """Numbers of loss tokens, completions and prompts."""

    tokens: int = 0
    sequences: int = 0
    prompts: int = 0


@dataclass(frozen=True)
class PackedBatch:
    """Sequences concatenated for the train step. Tensors are on the model's device, tuples on the host, so that the
    host need not wait for a GPU.

    A batch has S segments of `lengths` tokens, N in all. A token attends only to its segment and the segment's parent:
    segment i continues segment `parents[i]`, a prompt that a group shares and that is stored once; -1: no parent. If
    `parents` is None, every segment is a whole sequence. Each segment has its number of trained tokens
    (`loss_lengths`), the indices of its prompt (`groups`), completion (`samples`; -1 for a shared prompt) and task
    (`pools`), and the completion's reward (`rewards`; None: not needed).

    `[N]` int64: `token_ids`; `positions` within the sequence; `previous`, the index of the sequence's preceding token,
    or -1 for its first token. `[N]` float32: `sampling_logprobs`, `advantages`, `weights`, `old_logprobs` (None: the
    sampler's), `ref_logprobs` (None: no KL term). The logprob of a token is conditional on the tokens before it in its
    sequence. The step's loss is the sum of weight x loss of all tokens, over all micro-batches and ranks.

    `loss_indices` `[M]` int64: the indices of the M trained tokens, ascending. `sequence_lengths` int64: the numbers of
    trained tokens of completions that have any. `num_loss_tokens`: trained tokens of all micro-batches and ranks, the
    divisor of statistics. `minibatch`: the update's index in the step. `columns` of the M tokens are on the host.
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
    columns: Columns = field(default_factory=dict)

    def __post_init__(self) -> None:
        n = sum(self.lengths)
        for name in ("token_ids", "positions", "previous", "sampling_logprobs", "advantages", "weights"):
            assert getattr(self, name).shape == (n,), (name, getattr(self, name).shape, n)
        assert self.loss_indices.shape == (sum(self.loss_lengths),) and len(self.loss_indices) <= self.num_loss_tokens
        assert len(self.lengths) == len(self.loss_lengths) == len(self.groups) == len(self.samples)
        assert all(len(column) == len(self.loss_indices) for column in self.columns.values())
        if self.parents is not None:
            assert len(self.parents) == len(self.lengths), "one parent, or -1, for each segment"
            assert all(p < i and (p < 0 or self.parents[p] < 0) for i, p in enumerate(self.parents)), self.parents

    def __len__(self) -> int:
        return self.token_ids.shape[0]


def with_column(groups: Sequence[Group], name: str, column: Sequence[np.ndarray | None]) -> list[Group]:
    """Set column `name` in the first segment of each rollout, in order, to float32 `[T]`; None removes the column."""
    rows = iter(column)

    def scored(rollout: Rollout) -> Rollout:
        columns = {other: one for other, one in rollout.first.columns.items() if other != name}
        columns |= {} if (row := next(rows)) is None else {name: row}
        return replace(rollout, segments=(replace(rollout.first, columns=columns), *rollout.segments[1:]))

    return [replace(group, rollouts=[scored(rollout) for rollout in group.rollouts]) for group in groups]
