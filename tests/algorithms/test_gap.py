"""How far apart is too far."""

import json
import math
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from hone.algorithms.gap import BANDS, Band, Gap, Verdict, band_of
from hone.extension import gathered

RECORD = json.loads((Path(__file__).parents[2] / "benchmarks" / "results" / "gap_depth.json").read_text())


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


@pytest.mark.needs("vllm")
def test_every_backend_and_precision_has_a_band_and_those_of_hone_are_contract_3_at_four_layers():
    assert {(b, p) for b in ("hone", "vllm") for p in ("fp32", "bf16_linear", "bf16")} == set(gathered("BANDS", BANDS))
    for layers in (2, 4, 28, 36, 80):
        assert band_of("hone", "fp32", layers) == Band(1e-5, 1e-5, 1e-3)
    for layers, precision in product((1, 2, 4), ("bf16_linear", "bf16")):
        assert band_of("hone", precision, layers) == Band(2e-3, 5e-2, 2e-2)
    for rows in gathered("BANDS", BANDS).values():
        assert all(mean <= most and 2.5 * mean < stop for mean, most, stop in rows.values())


def test_bands_grow_with_the_layers_between_those_of_the_table_and_beyond_it():
    four, middle, last = (band_of("hone", "bf16", layers) for layers in (4, 28, 36))
    assert (middle, last) == (BANDS["hone", "bf16"][28], BANDS["hone", "bf16"][36])
    sixteen, sixty = band_of("hone", "bf16", 16), band_of("hone", "bf16", 60)
    for name in ("mean", "max", "stop"):
        a, b, c = (getattr(band, name) for band in (four, middle, last))
        assert getattr(sixteen, name) == pytest.approx((a + b) / 2)
        assert getattr(sixty, name) == pytest.approx(b + 4 * (c - b))


@pytest.mark.parametrize("where", ["", " on a GPU"])
@pytest.mark.parametrize("precision", ["bf16_linear", "bf16"])
def test_a_healthy_model_is_within_its_band_and_far_from_being_stopped(precision: str, where: str):
    """As measured (benchmarks/gap_depth.py), and no wider than six times that, of the mean also over twelve tokens."""
    models = {"tiny": RECORD["tiny"], **RECORD["trained"]}
    deep = {int(layers): found for layers, found in RECORD["random"].items() if int(layers) > 4}
    assert set(deep) == {28, 36} and [m["layers"] for m in models.values()] == [2, 30]
    for layers, found in [*((m["layers"], m) for m in models.values()), *deep.items()]:
        found, band = found[precision + where], band_of("hone", precision, layers)
        assert band.verdict(Gap(found["mean"], found["max"])) == Verdict.OK
        assert 4 * found["mean_of_12"] <= band.stop and found["mean_of_12"] <= band.mean * (1.1 if layers <= 4 else 1)
    widest = max(m[precision + where]["mean"] for m in (*deep.values(), RECORD["trained"]["SmolLM2-135M-Instruct"]))
    assert band_of("hone", precision, 28).mean <= 6 * widest
