"""Which example comes when: a pure function of (seed, epoch), so that a resumed run draws what it would have drawn."""

from __future__ import annotations

import numpy as np

from hone import rng


def epoch_order(n: int, seed: int, epoch: int) -> np.ndarray:
    """The order of `n` examples in one epoch: a permutation `[n]` int64."""
    return rng.stream(seed, "order", epoch).permutation(n)


class Draws:
    """Maps the d-th draw of a run to the index of an example: each of the `n` comes once per epoch, in a new order.

    Remembers the permutation of the last epoch asked for.
    """

    def __init__(self, n: int, seed: int) -> None:
        assert n > 0
        self.n = n
        self.seed = seed
        self._epoch = -1
        self._order = np.empty(0, dtype=np.int64)

    def index(self, draw: int) -> int:
        """The example of draw 0, 1, 2, …"""
        epoch, position = divmod(draw, self.n)
        if epoch != self._epoch:
            self._epoch, self._order = epoch, epoch_order(self.n, self.seed, epoch)
        return int(self._order[position])
