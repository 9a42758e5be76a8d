"""Named random streams. Every random choice of hone is a function of (seed, names): no global state, no draw order.

A stream's 64-bit key is the first 8 bytes of BLAKE2b over the repr of (seed, *names). So streams with different names
are independent, and a new stream changes no other stream. `uniforms` is the counter-based generator behind sampling:
token t of a sample depends only on (key, t).
"""

from __future__ import annotations

import hashlib

import numpy as np

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def key(seed: int, *names: str | int) -> int:
    """Derive the 64-bit key of the stream named (seed, *names)."""
    return int.from_bytes(hashlib.blake2b(repr((seed, *names)).encode(), digest_size=8).digest(), "little")


class _Key(np.random.SeedSequence):
    """A key as the seed of Philox. `Philox(key=…)` gives the same numbers, but spends 15 µs on unused entropy."""

    def __init__(self, value: int) -> None:
        self.value = value

    def generate_state(self, n_words: int, dtype: type = np.uint32) -> np.ndarray:
        return np.array([self.value, 0], dtype=np.uint64)


def stream(seed: int, *names: str | int) -> np.random.Generator:
    """Return a numpy generator (Philox) for the stream named (seed, *names)."""
    return np.random.Generator(np.random.Philox(_Key(key(seed, *names))))


def uniforms(keys_B: np.ndarray, start: int, count: int) -> np.ndarray:
    """Draw uniform numbers in [0, 1), float64 `[B, count]`. Element (b, i) depends only on (keys_B[b], start + i).

    The numbers are the top 53 bits of SplitMix64's output function (Steele, Lea & Flood 2014) at key + (position + 1) x
    golden ratio.
    """
    counters = np.arange(start + 1, start + count + 1, dtype=np.uint64)
    z = keys_B.astype(np.uint64)[:, None] + counters[None, :] * _GOLDEN
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z = z ^ (z >> np.uint64(31))
    return (z >> np.uint64(11)).astype(np.float64) * 2.0**-53
