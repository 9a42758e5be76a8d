"""The committed word list that generated tasks draw on."""

from __future__ import annotations

import functools
import hashlib
from importlib.resources import files


@functools.cache
def common_words() -> tuple[str, ...]:
    """About 3,000 common English words of 3 to 8 lower-case letters, sorted (SCOWL size 10; see words.LICENSE)."""
    lines = files("hone.environments").joinpath("words.txt").read_text(encoding="utf-8").splitlines()
    return tuple(line for line in lines if not line.startswith("#"))


@functools.cache
def split_words(held_out: float = 0.1) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(train, eval) words. Held out is the share with the smallest BLAKE2b hashes: the same for every seed."""
    words = common_words()
    ranked = sorted(words, key=lambda word: hashlib.blake2b(word.encode(), digest_size=8).digest())
    eval_words = frozenset(ranked[: round(len(words) * held_out)])
    return tuple(w for w in words if w not in eval_words), tuple(w for w in words if w in eval_words)
