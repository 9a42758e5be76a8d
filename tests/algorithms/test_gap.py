"""What is too far apart, and what a fit makes of logprobs that were computed otherwise."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from hone.algorithms.gap import BANDS, Band, Gap, Verdict, fit_temperature, fit_truncation


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


def logits_and_tokens(count: int = 24, vocab: int = 60) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    logits_MV = 3 * torch.randn(count, vocab, generator=generator)
    return logits_MV, logits_MV.argsort(dim=-1, descending=True)[:, 1]


@pytest.mark.parametrize("temperature", [0.3, 0.7, 1.0, 1.4, 5.0])
def test_a_temperature_is_found(temperature):
    logits_MV, tokens_M = logits_and_tokens()
    logprobs_M = torch.log_softmax(logits_MV / temperature, -1).gather(1, tokens_M[:, None]).squeeze(1)
    fitted, left = fit_temperature(logits_MV, tokens_M, logprobs_M)
    assert fitted == pytest.approx(temperature, rel=1e-3) and left.mean() < 1e-3


@pytest.mark.parametrize(("name", "value"), [("top_k", 4), ("top_p", 0.8), ("min_p", 0.1), ("top_p", 0.95)])
def test_a_cut_is_found(name, value):
    logits_MV, tokens_M = logits_and_tokens()
    logprobs_MV = torch.log_softmax(logits_MV, -1)
    probs_MV, order_MV = logprobs_MV.exp().sort(dim=-1, descending=True)
    kept_MV = {
        "top_k": torch.arange(60).expand(24, 60) < value,
        "top_p": probs_MV.cumsum(-1) - probs_MV < value,
        "min_p": probs_MV >= value * probs_MV[:, :1],
    }[name]
    inside_M = (kept_MV & (order_MV == tokens_M[:, None])).any(-1)
    cut_MV = probs_MV * kept_MV
    sampled_M = logprobs_MV.gather(1, tokens_M[:, None]).squeeze(1) - cut_MV.sum(-1).log()
    found = fit_truncation(logprobs_MV[inside_M], tokens_M[inside_M], sampled_M[inside_M])
    assert found[0] == name and found[1] == pytest.approx(value, abs=0.011) and found[2].mean() < 1e-5


def test_what_a_user_allows_does_not_change_what_rounding_is():
    band = BANDS["hone", "bf16_linear"]
    assert (band.rounding, replace(band, mean=2e-5).rounding) == (2e-3, 2e-3)
