"""Update the weights of a server on the fake GPU; print what was live there, and what it samples, as JSON.

python updates.py FOLDER PRECISION
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import fake_cuda  # first: it patches torch.cuda, and hone looks there
import torch
from safetensors.torch import load_file, save_file

from hone.config.shared import InitConfig
from hone.errors import UserError
from hone.extensions.server.weights import WeightsFolder, swap_weights
from hone.inference.engine import Engine
from hone.inference.types import SamplingParams
from hone.model.hf import load_model, reserve_files, save_model

INIT = InitConfig(layers=2, hidden=48)
PARAMS = SamplingParams(max_tokens=8, ignore_eos=True)


def damaged(folder: Path, target: Path) -> None:
    """Copy the weights with one infinite value in the last tensor of the file."""
    shutil.copytree(folder, target)
    tensors = load_file(target / "model.safetensors")
    tensors[max(tensors)][-1] = float("inf")
    save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})


def main(root: Path, precision: str) -> None:
    source = load_model("hone/tiny", precision=precision, seed=1, init=INIT)
    save_model(source, root / "disk")
    reserve_files(source, root / "memory")
    save_model(source, root / "memory", reserved=True)
    damaged(root / "disk", root / "bad")
    found: dict[str, Any] = {}
    with fake_cuda.FakeCuda().there() as gpu:
        target = load_model("hone/tiny", precision=precision, init=INIT, device="cuda")
        engine, folders = Engine(target), WeightsFolder(root, root)
        before = engine.generate([[70, 71]], PARAMS)
        engine.weights_changed(0)
        places = [parameter.data_ptr() for parameter in target.parameters()]
        try:
            folders.load("bad", target)
        except UserError as error:
            found["refused"] = str(error)
        found["after bad"] = engine.generate([[70, 71]], PARAMS) == before
        for name in ("disk", "memory"):
            resident = gpu.peak = gpu.live
            loaded = folders.load(name, target)
            found[f"{name}: on the host"] = loaded.device.type == "cpu"
            swap_weights(loaded, target)
            found[f"{name}: peak above resident"] = gpu.peak - resident
            del loaded
        engine.weights_changed(1)
        found["resident"] = gpu.live
        found["in place"] = places == [parameter.data_ptr() for parameter in target.parameters()]
        found["largest"] = max(parameter.nbytes for parameter in target.parameters())
        found["parameters"] = sum(parameter.nbytes for parameter in target.parameters())
        pairs = zip(target.parameters(), source.parameters(), strict=True)
        found["equal"] = all(torch.equal(ours.cpu(), theirs) for ours, theirs in pairs)
        layers = [(ours, theirs) for ours, theirs in zip(target.modules(), source.modules(), strict=True)]
        casts = [(a._weight_bf16, b.weight) for a, b in layers if getattr(a, "_weight_bf16", None) is not None]
        found["casts"] = [torch.equal(cast.cpu(), weight.bfloat16()) for cast, weight in casts]
        found["samples"] = engine.generate([[70, 71]], PARAMS)
        other = Engine(load_model(root / "disk", precision=precision, device="cuda"))
        found["expected"] = other.generate([[70, 71]], PARAMS)
    json.dump(found, sys.stdout, default=vars)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
