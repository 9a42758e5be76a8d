"""Weights that change under a model that is being served, and those that are refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from real_server import Served, random_model, serving
from safetensors.torch import load_file, save_file

from hone.config.shared import InitConfig
from hone.errors import UserError
from hone.extensions.server.weights import WeightsFolder, swap_weights
from hone.inference.engine import Engine
from hone.inference.types import SamplingParams
from hone.model.hf import load_model, reserve_files, save_model

from .test_app import ask, complete, ids_of

WIDE = InitConfig(layers=1, hidden=512, heads=8, kv_heads=4, head_dim=64, intermediate=2048)
"""So wide that fp32 weights are packed too."""


@pytest.mark.parametrize("in_memory", [False, True])
@pytest.mark.parametrize("precision", ["fp32", "bf16_linear", "bf16"])
def test_weights_that_were_swapped_in_are_used_in_every_form(tmp_path, precision, in_memory: bool) -> None:
    root, memory = tmp_path / "root", tmp_path / "memory"
    for folder in (root, memory):
        folder.mkdir()
    source, target = (load_model("hone/tiny", precision=precision, seed=seed, init=WIDE) for seed in (1, 0))
    params, folders = SamplingParams(max_tokens=8, ignore_eos=True), WeightsFolder(root, memory)
    engine, held = Engine(target), list(target.parameters())
    engine.generate([[70, 71]], params)
    saved = (memory if in_memory else root) / "step_1"
    if in_memory:
        reserve_files(source, saved)
    save_model(source, saved, reserved=in_memory)
    swap_weights(folders.load(str(saved) if in_memory else "step_1", target), target)
    engine.weights_changed(1)
    assert engine.generate([[70, 71]], params) == Engine(source).generate([[70, 71]], params)
    assert (str(saved / "model.safetensors") in Path("/proc/self/maps").read_text()) >= in_memory, "sampled in place"
    shutil.rmtree(saved)  # the run has ended
    assert all(torch.equal(a, b) for a, b in zip(source.parameters(), target.parameters(), strict=True))
    if not in_memory:
        assert all(ours is theirs for ours, theirs in zip(target.parameters(), held, strict=True)), "others hold them"
    with pytest.raises(UserError, match="is not under the weights root"):
        folders.load(str(tmp_path / "elsewhere"), target)


def test_weights_change_between_two_tokens(weights, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(weights_root=weights) as served:
        before = complete(served, seed=1).choices[0].model_extra["token_ids"]
        with monkeypatch.context() as patch:
            served.slow(patch, 0.02)  # half a minute in all, for weights that are slow to load
            stream = complete(served, seed=1, max_tokens=1500, stream=True)
            versions = list(next(stream).choices[0].model_extra["policy_versions"])
            status, answer = ask(served, "/update_weights", {"path": "step_1", "version": 5})
            assert (status, answer) == (200, {"status": "ok", "policy_version": 5, "previous_version": 0})
            while versions[-1] == 0:
                versions += next(stream).choices[0].model_extra["policy_versions"]
            stream.close()
        assert versions == sorted(versions) and set(versions) == {0, 5}
        after = complete(served, seed=1).choices[0].model_extra
        params = SamplingParams(max_tokens=12, seed=1, ignore_eos=True)
        ((expected,),) = Engine(random_model(seed=1)).generate([ids_of("Hello")], params)
        assert after["token_ids"] == expected.token_ids != before
        assert after["policy_versions"] == [5] * 12
        facts = next(iter(served.client().models.list())).model_extra
        assert (facts["policy_version"], facts["policy_path"]) == (5, "step_1")


def move_out(folder: Path, name: str, link: str) -> None:
    """Leave a link to the file in its place, or another."""
    outside = folder.parent.parent / name
    shutil.move(folder / name, outside)
    (folder / link).symlink_to(outside)


def _shard_linked_out(folder: Path) -> None:
    move_out(folder, "model.safetensors", "shard.safetensors")
    index("shard.safetensors")(folder)


def index(file: str) -> Callable[[Path], Any]:
    return write("model.safetensors.index.json", json.dumps({"weight_map": {"x": file}}).encode())


def config(**values: Any) -> Callable[[Path], Any]:
    def change(folder: Path) -> None:
        old = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(old | values))

    return change


def write(name: str, text: bytes) -> Callable[[Path], Any]:
    return lambda folder: (folder / name).write_bytes(text)


def not_finite(value: float) -> Callable[[Path], Any]:
    def change(folder: Path) -> None:
        tensors = load_file(folder / "model.safetensors")
        tensors["model.layers.1.mlp.down_proj.weight"][3, 4:6] = value
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})

    return change


NOT_FINITE, OUTSIDE = "2 values of model.layers.1.mlp.down_proj.weight are not finite", "is not under the weights root"
INDEX, BAD_JSON = "must map each tensor to a file in that folder", "is not valid JSON"
DAMAGE: dict[str, tuple[Callable[[Path], Any], str]] = {
    "inf": (not_finite(float("inf")), NOT_FINITE),
    "nan": (not_finite(float("nan")), NOT_FINITE),
    "link": (lambda folder: move_out(folder, "model.safetensors", "model.safetensors"), OUTSIDE),
    "linked config": (lambda folder: move_out(folder, "config.json", "config.json"), OUTSIDE),
    "linked shard": (_shard_linked_out, OUTSIDE),
    "absolute": (index("/etc/passwd"), INDEX),
    "upwards": (index("../outside.safetensors"), INDEX),
    "deep config": (write("config.json", b'{"a":' + b"[" * 10**5 + b"]" * 10**5 + b"}"), BAD_JSON),
    "size": (config(hidden_size="64"), "hidden_size in config.json is 64, not a whole number"),
    "header": (write("model.safetensors", (2**62).to_bytes(8, "little") + b"{}"), "cannot be read"),
    "no config": (lambda folder: (folder / "config.json").unlink(), "no config.json"),
    "other": (config(max_position_embeddings=64), "other is another model: its max_position_embeddings is 64"),
}
PATHS = ("a\0b", "a" * 4000 + "/b", "a" * 5000, "", ".", "~", "/proc/self", 5, None, "step_9", "../../etc")


def test_weights_that_are_not_taken(weights: Path, tmp_path: Path, served: Served) -> None:
    root = tmp_path / "run" / "weights"
    root.mkdir(parents=True)
    (root / "linked folder").symlink_to(weights / "step_1")
    status, answer = ask(served, "/update_weights", {"path": "step_1", "version": 1})
    assert status == 403 and "--weights-root" in answer["error"]["message"]
    with serving(weights_root=root) as own:
        before = complete(own, seed=1).choices[0].text
        refused = [("linked folder", OUTSIDE), (str(weights / "step_1"), OUTSIDE), *((path, "") for path in PATHS)]
        for name, (damage, words) in DAMAGE.items():
            shutil.copytree(weights / "step_1", root / name)
            damage(root / name)
            refused.append((name, words))
        for path, words in refused:
            status, answer = ask(own, "/update_weights", {"path": path, "version": 7})
            assert status == 400 and words in answer["error"]["message"], (path, answer)
        assert ask(own, "/update_weights", {"path": "step_1", "version": 2**63})[0] == 400
        assert ask(own, "/update_weights", {"path": "step_1"})[1]["error"]["message"] == "version is missing"
        assert complete(own, seed=1).choices[0].text == before and own.service.engine.version == 0
