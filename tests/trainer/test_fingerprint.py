"""A fingerprint depends on every bit of the tensors, on their names and shapes, and on nothing else."""

import torch

from hone.trainer.fingerprint import fingerprint

TENSORS = {"a": torch.tensor([[1.0, -2.5], [0.0, 3.0]]), "b": torch.arange(7, dtype=torch.bfloat16)}


def test_it_is_pinned():
    """Recorded runs hold fingerprints: another value for the same tensors would make them all look different."""
    assert fingerprint(TENSORS) == "2596039ed8c5b5e2"


def test_one_changed_bit_name_shape_or_dtype_changes_it():
    seen = {fingerprint(TENSORS)}
    flipped = TENSORS["a"].clone()
    flipped.view(torch.int32)[1, 0] ^= 1  # 0.0 becomes the smallest denormal
    variants = [
        TENSORS | {"a": flipped},
        TENSORS | {"a": -TENSORS["a"]},
        TENSORS | {"a": TENSORS["a"].T.contiguous()},
        TENSORS | {"a": TENSORS["a"].reshape(4)},
        TENSORS | {"b": TENSORS["b"].to(torch.float16)},
        {"c": TENSORS["a"], "b": TENSORS["b"]},
        {"a": TENSORS["a"]},
    ]
    seen |= {fingerprint(variant) for variant in variants}
    assert len(seen) == len(variants) + 1
