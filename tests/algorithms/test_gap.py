"""How far apart is too far."""

import math

import numpy as np
import pytest

from hone.algorithms.gap import BANDS, Band, Gap, Verdict


def test_a_gap_is_the_mean_and_the_maximum_of_absolute_differences():
    assert Gap.of(np.array([0.5, -1.5, 0.0, 0.0])) == Gap(0.5, 1.5)
    assert Gap.worst([Gap(0.1, 3.0), Gap(0.2, 1.0)]) == Gap(0.2, 3.0)
    assert math.isnan(Gap.worst([Gap(0.1, 3.0), Gap.of(np.array([math.nan, 1.0]))]).mean)


@pytest.mark.parametrize(
    ("gap", "verdict"),
    [
        (Gap(1e-3, 1e-2), Verdict.OK),
        (Gap(1e-3, 5.0), Verdict.WARN),  # one token alone never stops a run
        (Gap(3e-3, 1e-2), Verdict.WARN),
        (Gap(3e-2, 4e-2), Verdict.STOP),
        (Gap(math.nan, math.nan), Verdict.STOP),
        (Gap(math.inf, math.inf), Verdict.STOP),
    ],
)
def test_verdicts(gap, verdict):
    assert Band(mean=2e-3, max=5e-2, stop=2e-2).verdict(gap) == verdict


def test_every_backend_and_precision_has_a_band_and_those_of_hone_are_contract_3():
    assert {(b, p) for b in ("hone", "vllm") for p in ("fp32", "bf16_linear", "bf16")} == set(BANDS)
    assert BANDS["hone", "fp32"].max == 1e-5
    for precision in ("bf16_linear", "bf16"):
        assert (BANDS["hone", precision].mean, BANDS["hone", precision].max) == (2e-3, 5e-2)
    assert all(band.mean <= band.max and band.mean < band.stop for band in BANDS.values())
