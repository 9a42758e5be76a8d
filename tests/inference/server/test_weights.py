"""Weights that change under a model that is being served."""

import pytest
import torch

from hone.config.shared import InitConfig
from hone.inference.engine import Engine
from hone.inference.server.weights import WeightsFolder, swap_weights
from hone.inference.types import SamplingParams
from hone.model.hf import load_model, save_model

WIDE = InitConfig(layers=1, hidden=512, heads=8, kv_heads=4, head_dim=64, intermediate=2048)
"""So wide that fp32 weights are packed too."""
PARAMS = SamplingParams(max_tokens=20, ignore_eos=True)


@pytest.mark.parametrize("precision", ["fp32", "bf16_linear", "bf16"])
def test_weights_that_were_swapped_in_are_used_in_every_form(tmp_path, precision) -> None:
    first, second, target = (load_model("hone/tiny", precision=precision, seed=seed, init=WIDE) for seed in (1, 2, 0))
    held = list(target.parameters())
    engine = Engine(target)
    engine.generate([[70, 71]], PARAMS)
    folder = WeightsFolder(tmp_path)
    for version, source in enumerate((first, second, first, second)):
        save_model(source, tmp_path / f"step_{version}")
        loaded = folder.load(f"step_{version}", target)
        swap_weights(loaded, target)
        engine.weights_changed(version)
        assert all(ours is theirs for ours, theirs in zip(target.parameters(), held, strict=True)), "others hold them"
        assert all(torch.equal(a, b) for a, b in zip(source.parameters(), target.parameters(), strict=True))
        assert engine.generate([[70, 71]], PARAMS) == Engine(source).generate([[70, 71]], PARAMS)
    with torch.no_grad():  # and noticed when it is no longer true
        for parameter in target.parameters():
            parameter.mul_(2)
    target.refresh()
    assert engine.generate([[70, 71]], PARAMS) != Engine(second).generate([[70, 71]], PARAMS)
