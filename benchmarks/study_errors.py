"""Simulate how often a study's test is wrong where there is no effect, and how often it finds one that is there.

    .venv/bin/python benchmarks/study_errors.py --out benchmarks/results/study_errors.json

A study compares a cell with the baseline on 256 held-out examples: the difference of seed s on example e is the effect
+ what the seed changes + what the example changes + noise, each normal. Half a minute of one core.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from recording import show

from hone.extensions.studies.analysis import ALPHA, POWER, Scatter

SEEDS, EXAMPLES = (3, 5, 8), 256
SETTINGS = ((0.01, 0.15, 0.3), (0.02, 0.3, 0.1), (0.01, 0.3, 0.3), (0.03, 0.1, 0.3), (0.05, 0.05, 0.05))
"""Standard deviations of seeds, examples and noise. In the last one the seeds decide, in the second the examples."""
CHUNK = 500


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--studies", type=int, default=10_000, help="simulated studies for each number")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args(argv)
    rows = [measure(seeds, sds, args.studies) for seeds, sds in itertools.product(SEEDS, SETTINGS)]
    show({"examples": EXAMPLES, "studies": args.studies, "alpha": ALPHA, "power": POWER, "rows": rows}, args.out)


def measure(seeds: int, sds: tuple[float, float, float], studies: int) -> dict[str, Any]:
    """Return how often no effect is called one, and how often the detectable effect, and 0.9 of it, are found."""
    noise = np.float64(sds[2] ** 2 / (seeds * EXAMPLES))
    of_seeds, of_examples = (sd**2 / n + noise for sd, n in ((sds[0], seeds), (sds[1], EXAMPLES)))
    effect = Scatter(seeds, EXAMPLES, of_seeds, of_examples, noise).found_with(POWER, ALPHA)
    parts = [(mean, scatter.reach(ALPHA)) for mean, scatter in simulated(seeds, sds, studies)]
    mean, reach = (np.concatenate(one) for one in zip(*parts, strict=True))
    names = "seed", "example", "noise"
    return {
        "seeds": seeds,
        "sd": dict(zip(names, sds, strict=True)),
        "false_positives": round(float(np.mean(np.abs(mean) > reach)), 4),
        "detectable": round(effect, 4),
        "found": round(float(np.mean(mean + effect > reach)), 4),
        "found_at_0.9": round(float(np.mean(mean + 0.9 * effect > reach)), 4),
    }


def simulated(seeds: int, sds: tuple[float, float, float], studies: int) -> Iterator[tuple[np.ndarray, Scatter]]:
    """Yield the mean differences of studies without an effect, and their scatter, some studies at a time."""
    generator = np.random.default_rng(0)
    for _ in range(studies // CHUNK):
        d_CSE = sds[0] * generator.standard_normal((CHUNK, seeds, 1))
        d_CSE = d_CSE + sds[1] * generator.standard_normal((CHUNK, 1, EXAMPLES))
        d_CSE += sds[2] * generator.standard_normal((CHUNK, seeds, EXAMPLES))
        scatter = Scatter.of(d_CSE)
        assert scatter is not None
        yield d_CSE.mean(axis=(1, 2)), scatter


if __name__ == "__main__":
    main()
