"""Simulate how often the 95 % interval of a share holds the true share, with several completions per example.

    .venv/bin/python benchmarks/intervals.py --out benchmarks/results/intervals.json

Each of n examples has r completions and a pass rate of its own, drawn from a beta distribution with mean p; rho is the
correlation of two completions of an example, 1 if all of them agree. Shares above one half are the mirror image:
coverage at 1 - p is that at p. About a minute of one core.
"""

from __future__ import annotations

import argparse
import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
from recording import show
from scipy import stats

from hone.evaluation.intervals import Z95, clustered_share

EXAMPLES, COMPLETIONS = (32, 64, 128, 256, 512), (1, 2, 4, 8, 16)
SHARES = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5)
CORRELATIONS = (0.0, 0.1, 0.3, 0.7, 1.0)
LOW, HIGH = 0.93, 0.98
"""Coverage that is aimed at. Above it an interval is wider than it need be."""


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=10_000, help="evaluations in each cell of the grid")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args(argv)
    show(measure(args.draws), args.out)


def measure(draws: int) -> dict[str, Any]:
    """Return the coverage: its extremes by examples and completions, and the cells outside of what is aimed at."""
    generator = np.random.default_rng(0)
    found: dict[tuple[int, int, float, float], float] = {}
    for n, r, p, rho in itertools.product(EXAMPLES, COMPLETIONS, SHARES, CORRELATIONS):
        if r > 1 or rho == 0:
            found[n, r, p, rho] = coverage(generator, n, r, p, rho, draws)
    rows = []
    for n, r in itertools.product(EXAMPLES, COMPLETIONS):
        ordered = sorted((value, p, rho) for (*cell, p, rho), value in found.items() if cell == [n, r])
        named = [dict(zip(("coverage", "share", "correlation"), one, strict=True)) for one in (ordered[0], ordered[-1])]
        rows.append({"examples": n, "completions": r, "lowest": named[0], "highest": named[1]})
    above = [rho for (_, _, _, rho), value in found.items() if value > HIGH]
    return {
        "grid": {"examples": EXAMPLES, "completions": COMPLETIONS, "shares": SHARES, "correlations": CORRELATIONS},
        "draws": draws,
        "cells": len(found),
        "mean": round(float(np.mean(list(found.values()))), 4),
        "below": sum(value < LOW for value in found.values()),
        "above": len(above),
        "above_by_correlation": {rho: above.count(rho) for rho in CORRELATIONS},
        "rows": rows,
    }


def coverage(generator: np.random.Generator, n: int, r: int, p: float, rho: float, draws: int) -> float:
    """Return the share of `draws` evaluations whose interval holds p."""
    tables_DR = generator.multinomial(n, hits_of_an_example(r, p, rho), size=draws)
    low_D, high_D = ends(tables_DR)
    for table_R, low, high in zip(tables_DR[:3], low_D, high_D, strict=False):
        hits_E = np.repeat(np.arange(r + 1.0), table_R)
        interval = clustered_share(hits_E, np.full(n, float(r)))
        assert math.isclose(interval.low, low, abs_tol=1e-9) and math.isclose(interval.high, high, abs_tol=1e-9)
    return round(float(np.mean((low_D <= p + 1e-12) & (p - 1e-12 <= high_D))), 4)


def hits_of_an_example(r: int, p: float, rho: float) -> np.ndarray:
    """Return the probability of 0, 1, … r hits of one example."""
    if rho == 1:
        return np.array([1 - p, *[0.0] * (r - 1), p])
    if rho == 0:
        return stats.binom.pmf(np.arange(r + 1), r, p)
    scale = 1 / rho - 1
    return stats.betabinom.pmf(np.arange(r + 1), r, p * scale, (1 - p) * scale)


def ends(tables_DR: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Compute `clustered_share` of many evaluations at once; each row counts the examples with 0, 1, … r hits."""
    r, hits_R = tables_DR.shape[1] - 1, np.arange(tables_DR.shape[1])
    n = tables_DR[0].sum()
    p_D = tables_DR @ hits_R / (n * r)
    with np.errstate(invalid="ignore", divide="ignore"):
        spread_D = (tables_DR * (hits_R - r * p_D[:, None]) ** 2).sum(axis=1) / (r * (n - 1))
        measured_D = np.where(spread_D > 0, spread_D / (p_D * (1 - p_D)), 0.0)
    informative_D = n - np.maximum(tables_DR[:, 0], tables_DR[:, -1])
    effect_D = (informative_D * measured_D.clip(1, r) + r) / (informative_D + 1)
    effect_D = np.where((p_D == 0) | (p_D == 1), r, effect_D)
    trials_D = n * r / effect_D
    scale_D = 1 + Z95**2 / trials_D
    centre_D = (p_D + Z95**2 / (2 * trials_D)) / scale_D
    half_D = Z95 / scale_D * np.sqrt(p_D * (1 - p_D) / trials_D + Z95**2 / (4 * trials_D**2))
    low_D, high_D = (centre_D - half_D).clip(0), (centre_D + half_D).clip(max=1)
    hits_D, misses_D = p_D * trials_D, (1 - p_D) * trials_D
    low_D = np.where((hits_D > 0) & (hits_D <= 1 + 1e-9), np.minimum(low_D, -np.log(0.95) * p_D), low_D)
    one_miss_D = (misses_D > 0) & (misses_D <= 1 + 1e-9)
    return low_D, np.where(one_miss_D, np.maximum(high_D, 1 + np.log(0.95) * (1 - p_D)), high_D)


if __name__ == "__main__":
    main()
