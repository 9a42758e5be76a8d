"""GGUF files made here: a whole one becomes the model that it holds, and any other costs a sentence."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hone.cli import main
from hone.model.hf import load_model

pytest.importorskip("gguf")
pytest.importorskip("accelerate")
LAYERS, WIDTH, INNER, HEADS, VOCAB = 2, 32, 48, 4, 260
Tensors = dict[str, np.ndarray]
Change = Callable[[Tensors, dict[str, int]], Any]


def tensors(tied: bool = False) -> Tensors:
    rng = np.random.default_rng(0)
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (VOCAB, WIDTH), "output_norm.weight": (WIDTH,)}
    shapes |= {} if tied else {"output.weight": (VOCAB, WIDTH)}
    for i in range(LAYERS):
        layer: dict[str, tuple[int, ...]] = {"attn_norm": (WIDTH,), "ffn_norm": (WIDTH,), "ffn_down": (WIDTH, INNER)}
        layer |= dict.fromkeys(("attn_q", "attn_k", "attn_v", "attn_output"), (WIDTH, WIDTH))
        layer |= dict.fromkeys(("ffn_gate", "ffn_up"), (INNER, WIDTH))
        shapes |= {f"blk.{i}.{name}.weight": shape for name, shape in layer.items()}
    return {name: rng.normal(0, 0.1, shape).astype(np.float32) for name, shape in shapes.items()}


def write(file: Path, change: Change = lambda *_: None, tied: bool = False) -> Path:
    """A Llama whose tensors and sizes were changed."""
    import gguf

    held, sizes = tensors(tied), {"block_count": LAYERS, "embedding_length": WIDTH, "feed_forward_length": INNER}
    sizes |= {"attention.head_count": HEADS, "attention.head_count_kv": HEADS, "context_length": 64}
    change(held, sizes)
    writer = gguf.GGUFWriter(file, "llama")
    for name, size in sizes.items():
        writer.add_uint32(f"llama.{name}", size)
    writer.add_float32("llama.attention.layer_norm_rms_epsilon", 1e-5)
    writer.add_name("made")
    writer.add_tokenizer_model("gpt2")
    characters = [chr(0x100 + i) for i in range(255)]
    writer.add_token_list([*characters, characters[0] + characters[1], "<s>", "</s>", "<unk>", "<pad>"])
    writer.add_token_types([1] * 256 + [3] * 4)
    writer.add_token_merges([f"{characters[0]} {characters[1]}"])
    writer.add_bos_token_id(256)
    writer.add_eos_token_id(257)
    for name, tensor in held.items():
        writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


@pytest.mark.parametrize("tied", [False, True])
def test_a_whole_file_becomes_its_model(tied: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, out = write(tmp_path / "a\x1b[2J\nb.gguf", tied=tied), tmp_path / "out"
    assert main(["fetch-model", str(out), "--from", str(file)]) == 0
    printed = capsys.readouterr()
    assert "Converting" not in printed.err  # no progress bar into a pipe
    assert "\x1b" not in printed.out + printed.err + (out / "README.md").read_text()
    assert (out / "README.md").read_text().startswith("# a\\x1b[2J b\n\nFrom the file a\\x1b[2J b.gguf, written")
    assert ("has no output.weight: the embedding is the head" in printed.err) == tied
    model, held = load_model(out), tensors(tied)
    expected = {"embed": "token_embd", "norm.weight": "output_norm", "layers.1.down_proj.weight": "blk.1.ffn_down"}
    for name, theirs in (expected if tied else expected | {"lm_head": "output"}).items():
        want = torch.from_numpy(held[f"{theirs}.weight"]).bfloat16().float()
        assert torch.equal(model.get_parameter(name), want), name
    assert model.config.tie_word_embeddings == tied


def put(name: str, index: int, value: float) -> Change:
    return lambda held, _: held[name].reshape(-1).__setitem__(index, value)


def size(name: str, value: int) -> Change:
    return lambda _, sizes: sizes.__setitem__(name, value)


def renamed(name: str, other: str) -> Change:
    return lambda held, _: held.__setitem__(other, held.pop(name))


FAULTY: dict[str, tuple[Change, str]] = {
    "missing": (lambda held, _: held.pop("blk.1.ffn_up.weight"), "they lack blk.1.ffn_up.weight"),
    "missing norm": (lambda held, _: held.pop("output_norm.weight"), "they lack output_norm.weight"),
    "renamed head": (renamed("output.weight", "output.weigth"), "they have unknown output.weigth"),
    "unused": (lambda held, _: held.update({"rope_freqs.weight": np.ones(4, np.float32)}), "unknown rope_freqs.weight"),
    "bias": (lambda held, _: held.update({"blk.0.attn_q.bias": np.ones(8, np.float32)}), "unknown blk.0.attn_q.bias"),
    "NaN": (put("blk.0.attn_v.weight", 7, np.nan), "1 values of blk.0.attn_v.weight are not finite"),
    "infinite": (put("token_embd.weight", 0, -np.inf), "1 values of token_embd.weight are not finite"),
    "too large for bf16": (put("output.weight", 3, 3.4e38), "1 values of output.weight are not finite in bfloat16"),
    "many layers": (size("block_count", 100_000), "has 100000 layers by its header, but tensors for 2, up to blk.1"),
    "few layers": (size("block_count", 1), "has 1 layers by its header, but tensors for 2, up to blk.1"),
    "no layers": (size("block_count", 0), "has 0 layers by its header"),
    "gap": (lambda held, s: [renamed(n, n.replace("blk.1.", "blk.2."))(held, s) for n in [*held] if "blk.1." in n],
            "has 2 layers by its header, but tensors for 2, up to blk.2"),
    "wide": (size("embedding_length", 2**30), "weights are expected, 21 tensors"),
    "wider": (size("feed_forward_length", 64), "misshapen blk.0.ffn_gate.weight is [48, 32], not [64, 32]"),
    "heads": (size("attention.head_count_kv", 2), "misshapen blk.0.attn_k.weight is [32, 32], not [16, 32]"),
    "no count": (lambda _, sizes: sizes.pop("block_count"), "lacks llama.block_count"),
    "hostile name": (renamed("output.weight", "\x1b[2J\u202e"), "they have unknown \\x1b[2J\\u202e"),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTY)
def test_any_other_costs_one_sentence(fault: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    change, words = FAULTY[fault]
    file, out = write(tmp_path / "made.gguf", change), tmp_path / "out"
    assert main(["fetch-model", str(out), "--from", str(file)]) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("error: ") and words in error and "\x1b" not in error
    assert not out.exists()


@pytest.mark.parametrize("kept", [8, 20, 30, 100, 1500, -1000])
def test_a_file_that_ends_early_or_promises_too_much(kept: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    whole = write(tmp_path / "whole.gguf").read_bytes()
    file = tmp_path / "cut.gguf"
    for data in (whole[:kept], whole[:8] + b"\xff" * 7 + b"\x7f" + whole[16:], whole[:16] + b"\xff" * 8 + whole[24:]):
        file.write_bytes(data)
        assert main(["fetch-model", str(tmp_path / "out"), "--from", str(file)]) == 2
        assert "cannot be read as a model" in capsys.readouterr().err
