"""Weights that change under a model that is being served."""

import torch

from hone.inference.engine import Engine
from hone.inference.server.weights import copy_weights
from hone.inference.types import SamplingParams
from hone.model.hf import load_model


def test_copied_weights_are_used_by_the_kept_bf16_casts_too() -> None:
    source, target = (load_model("hone/tiny", seed=seed, precision="bf16_linear") for seed in (1, 0))
    storage = [parameter.data_ptr() for parameter in target.parameters()]
    params = SamplingParams(max_tokens=20, ignore_eos=True)
    Engine(target).generate([[70, 71]], params)
    copy_weights(source, target)
    assert [parameter.data_ptr() for parameter in target.parameters()] == storage, "an optimiser may hold them"
    assert all(torch.equal(a, b) for a, b in zip(source.parameters(), target.parameters(), strict=True))
    assert Engine(target).generate([[70, 71]], params) == Engine(source).generate([[70, 71]], params)
