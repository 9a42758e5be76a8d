"""Checkpoints come back as they were, or are said to be damaged."""

import torch

from hone.runs.checkpoint import Checkpoints, misfit

STATE = {"step": 4, "ledger": [[1, "trained"]], "position": 2**63 + 5, "lr": 0.1, "none": None}


def tensors():
    generator = torch.Generator().manual_seed(0)
    matrix = torch.randn(4, 6, generator=generator)
    return {
        "model": {"w": matrix, "transposed": matrix.T, "half": matrix.bfloat16()},
        "optimizer": {"step": torch.tensor(3), "mask": matrix > 0, "state": generator.get_state()},
    }


def equal(left, right):
    assert left.keys() == right.keys()
    for group in left:
        assert left[group].keys() == right[group].keys()
        for name, tensor in left[group].items():
            assert tensor.dtype == right[group][name].dtype and torch.equal(tensor, right[group][name]), name


def test_round_trip(tmp_path):
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    checkpoints.save(4, tensors(), STATE)
    loaded, state = checkpoints.load(4)
    equal(loaded, tensors())
    assert state == STATE and list(state) == list(STATE)
    assert checkpoints.steps() == [4]


def test_equal_content_gives_equal_bytes_and_a_step_can_be_saved_again(tmp_path):
    first = Checkpoints(tmp_path / "a").save(4, tensors(), STATE)
    before = {p.name: p.read_bytes() for p in first.iterdir()}
    other = Checkpoints(tmp_path / "b").save(4, dict(reversed(tensors().items())), STATE)
    assert before.keys() == {"model.safetensors", "optimizer.safetensors", "state.json", "COMPLETE"}
    assert {p.name: p.read_bytes() for p in other.iterdir()} == before
    Checkpoints(tmp_path / "a").save(4, tensors(), STATE | {"lr": 0.2})
    assert Checkpoints(tmp_path / "a").load(4)[1]["lr"] == 0.2
    assert [p.name for p in (tmp_path / "a").iterdir()] == ["step_4"]


def test_newest_skips_damaged_ones_and_says_so(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    for step in (2, 10, 9):
        checkpoints.save(step, tensors(), STATE)
    file = checkpoints.path(10) / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    (checkpoints.path(9) / "state.json").unlink()
    step, warnings = checkpoints.newest()
    assert step == 2
    assert warnings == [
        "checkpoint step_10 is damaged (model.safetensors has changed since it was written (SHA-256 differs)) "
        "and is not used",
        "checkpoint step_9 is damaged (state.json is missing) and is not used",
    ]
    assert checkpoints.remedy(but=10) == "complete checkpoints: 2 (--resume.step 2)"


def test_surplus_leaves_the_newest_complete_ones(tmp_path):
    checkpoints = Checkpoints(tmp_path, keep_last=2)
    for step in (1, 2, 3, 10):
        checkpoints.save(step, {}, {})
    (checkpoints.path(10) / "COMPLETE").unlink()
    assert checkpoints.surplus() == [1]
    assert Checkpoints(tmp_path).surplus() == []


def test_misfit_names_the_first_difference():
    saved = {"a": torch.zeros(2, 3), "b": torch.zeros(4)}
    a, b = torch.ones(2, 3), torch.ones(4)
    assert misfit(saved, {"a": a, "b": b}) == ""
    assert misfit(saved, {"a": a, "b": b, "layers.2.q_norm": b}) == "layers.2.q_norm is missing"
    assert misfit(saved, {"a": a.T, "b": b}) == "a has shape [2, 3], not [3, 2]"
    assert misfit(saved, {"a": a, "b": b.bfloat16()}) == "b is torch.float32, not torch.bfloat16"
    assert misfit(saved, {"a": a}) == "it has b as well"
