"""The order of the examples, which depends only on the seed, the epoch and the outcomes of earlier draws.

An epoch draws each example of the pool once. Its order is fixed at its first draw, from the groups of all earlier
steps. If a step begins in one epoch and ends in the next, its groups don't affect the order of the second epoch. But
examples that this step retires are skipped, and the ledger has their draws as `retired`.

- The pass rate of an example is its solved completions divided by its graded ones, over its last `window` draws.
- The order `difficulty` sorts by |pass rate - 1/2|, smallest first: at a pass rate p of 1/2 the variance p(1 - p) of a
  0/1 reward is largest, and so is the gradient (as in DOTS, arXiv:2506.05316). An unmeasured example counts as 1/2;
  ties stay shuffled.
- An example is retired when its pass rate reaches `retire_at` (0.9 in ScaleRL, arXiv:2510.13786).
- An example is parked if none of its last `park_after` draws was solved. It is drawn again `retry_parked` epochs later.
- When no example is left in the pool, all examples return, and all measurements are forgotten.

A checkpoint has the ledger. `restore` replays its draws, and so gets the same state.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence
from copy import copy
from dataclasses import dataclass, field
from itertools import groupby

import numpy as np

from hone.config.rl import CurriculumConfig, PoolConfig, RLConfig
from hone.environments.data import epoch_order
from hone.errors import UserError
from hone.loops.ledger import Entry

_NO_POOL = PoolConfig(retire_at=0, park_after=0)


@dataclass(frozen=True)
class Draw:
    """Draw `number` of the run: it takes example `index` in `epoch`, or skips this example if `retired` is true."""

    number: int
    index: int
    epoch: int
    retired: bool = False


@dataclass
class _Place:
    """The position of the next draw. `order` has the example indices of `epoch`; the first `position` of them are
    drawn. `restarted` is true if all examples have returned to the pool since the last `advance`.
    """

    number: int = 0
    epoch: int = -1
    position: int = 0
    order: np.ndarray = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    restarted: bool = False


class Curriculum:
    """The draws of a run, from the first `total` examples except the indices in `left_out`.

    `size` is the number of examples to draw. `ids` maps indices of drawn examples to ids, if pass rates are measured.
    `restarted` gets the number of a step that found the pool empty.
    """

    def __init__(self, total: int, seed: int, config: CurriculumConfig, left_out: Collection[int] = ()) -> None:
        self.total, self.seed, self.config = total, seed, config
        self.restarted: Callable[[int], None] = lambda step: None
        self._pool = config.pool or _NO_POOL
        self._used = np.ones(total, dtype=np.bool_)
        self._used[list(left_out)] = False
        self.size = int(self._used.sum())
        assert self.size > 0
        self._reset()

    def _reset(self) -> None:
        self._place = _Place()
        self.ids: dict[int, str] = {}
        self._forget()

    def _forget(self) -> None:
        self._recent: dict[int, deque[tuple[int, int]]] = {}
        self._rate = np.full(self.total, np.nan)
        self._retired = np.zeros(self.total, dtype=np.bool_)
        self._unsolved = np.zeros(self.total, dtype=np.int64)
        self._last_epoch = np.zeros(self.total, dtype=np.int64)

    @classmethod
    def from_config(cls, config: RLConfig, rows: int, left_out: Collection[int] = ()) -> Curriculum:
        orch = config.orchestrator
        total = rows if orch.max_examples is None else min(rows, orch.max_examples)
        return cls(total, config.seed, orch.curriculum, left_out)

    def first(self, count: int) -> list[int]:
        """Return the example indices of the run's first `count` draws, at most one epoch."""
        return self._shuffled(0)[:count].tolist()

    def draw(self, count: int) -> list[Draw]:
        """Return the next draws: `count` to sample, and the retired ones between them. Only `advance` moves on."""
        return self._walk(count)[0]

    def advance(self, entries: Sequence[Entry]) -> None:
        """Move past one step's draws and measure them. Raises UserError if `entries` are of other draws."""
        draws, place = self._walk(sum(entry.state != "retired" for entry in entries))
        if place.restarted:
            self._forget()
            self.restarted(entries[0].step)
            place.restarted = False
        self._place = place
        if self.config.measures:
            if [draw.retired for draw in draws] != [entry.state == "retired" for entry in entries]:
                raise _misfit(entries[0])
            for draw, entry in zip(draws, entries, strict=True):
                self._measure(draw, entry)

    def restore(self, entries: Sequence[Entry]) -> None:
        """Replay a run's first draws. Raises UserError if `entries` are of other draws."""
        self._reset()
        if self.config.measures:
            for _, step in groupby(entries, lambda entry: entry.step):
                self.advance(list(step))
        elif entries:
            epoch, position = divmod(len(entries) - 1, self.size)
            self._place = _Place(len(entries), epoch, position + 1, self._shuffled(epoch))

    def metrics(self) -> dict[str, float]:
        if self.config.pool is None:
            return {}
        retired, parked = int(self._retired.sum()), int((self._parked & ~self._retired).sum())
        return {"pool/active": self.size - retired - parked, "pool/retired": retired, "pool/parked": parked}

    def _walk(self, count: int) -> tuple[list[Draw], _Place]:
        place, draws, sampled = copy(self._place), [], 0
        while sampled < count:
            if place.position == len(place.order):
                place.epoch, place.position = place.epoch + 1, 0
                shuffled = self._shuffled(place.epoch)
                place.order = shuffled if place.restarted else self._by_measure(shuffled, place.epoch)
                if not len(place.order):
                    place.order, place.restarted = shuffled, True
            index = int(place.order[place.position])
            retired = bool(self._retired[index]) and not place.restarted
            draws.append(Draw(place.number, index, place.epoch, retired))
            sampled += not retired
            place.number, place.position = place.number + 1, place.position + 1
        return draws, place

    def _shuffled(self, epoch: int) -> np.ndarray:
        """Return the example indices of an epoch, int64 `[size]`: shuffled, or in the order of the data."""
        in_order = self.config.order == "sequential"
        order = np.arange(self.total) if in_order else epoch_order(self.total, self.seed, epoch)
        return order[self._used[order]]

    def _by_measure(self, order: np.ndarray, epoch: int) -> np.ndarray:
        """Return the examples of `order` in the pool when the epoch starts, sorted by difficulty if configured."""
        retry = self._pool.retry_parked
        due = (epoch - self._last_epoch >= retry) & bool(retry)
        in_pool = ~self._retired & (~self._parked | due)
        order = order[in_pool[order]]
        if self.config.order == "difficulty":
            distance = np.nan_to_num(np.abs(self._rate[order] - 0.5), nan=0.0)
            order = order[np.argsort(distance, kind="stable")]
        return order

    @property
    def _parked(self) -> np.ndarray:
        after = self._pool.park_after
        return (self._unsolved >= after) & bool(after)

    def _measure(self, draw: Draw, entry: Entry) -> None:
        if entry.example_id and self.ids.setdefault(draw.index, entry.example_id) != entry.example_id:
            raise _misfit(entry)
        if draw.retired:
            return
        index, retire_at = draw.index, self._pool.retire_at
        self._last_epoch[index] = draw.epoch
        if not entry.graded or entry.solved is None:
            return
        recent = self._recent.setdefault(index, deque(maxlen=self.config.window))
        recent.append((entry.solved, entry.graded))
        self._rate[index] = sum(solved for solved, _ in recent) / sum(graded for _, graded in recent)
        self._unsolved[index] = 0 if entry.solved else self._unsolved[index] + 1
        if retire_at and len(recent) == self.config.window:
            self._retired[index] = bool(self._rate[index] >= retire_at)


def _misfit(entry: Entry) -> UserError:
    return UserError(
        f"the ledger does not fit orchestrator.curriculum: draw {entry.draw} of step {entry.step} would be "
        "another example; set orchestrator.curriculum, max_examples, seed and data to the run's values"
    )
