"""Attention on a GPU: the kernels that it takes there, and the CPU's values and gradients."""

from __future__ import annotations

from typing import Any

import pytest

from .conftest import report

LAYERS, HEADS = 3, 4


@pytest.fixture(scope="module", params=["gqa", "no gqa"])
def found(request: pytest.FixtureRequest) -> tuple[bool, dict[str, Any]]:
    """Whether `varlen_attn` groups heads, as from torch 2.12 on, and what attention_on_gpu.py prints then."""
    return request.param == "gqa", report("attention_on_gpu.py", request.param)


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
@pytest.mark.parametrize("batch", ["packed", "equal", "shared"])
def test_packed_attention_has_the_values_and_gradients_of_the_cpu(found, batch: str, kv_heads: int) -> None:
    """q, k and v from N(0, 1). In bf16 the gradients of keys that several queries share are rounded more than once."""
    grouped, results = found
    fp32, bf16 = (results[f"{batch} torch.{dtype} {kv_heads}"] for dtype in ("float32", "bfloat16"))
    assert max(fp32["apart"]) < 1e-5 and max(bf16["apart"]) < 0.05 and max(bf16["relative"]) < 0.005
    assert fp32["calls"] and all(call == ["sdpa", HEADS, HEADS] for call in fp32["calls"]), "none that keeps scores"
    assert bf16["calls"] == [["varlen", HEADS, kv_heads if grouped else HEADS]]
    assert bf16["queries"] == [{"packed": 19, "equal": 15, "shared": 28}[batch]], "a parent's are computed once"


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_a_continued_prompt_has_the_values_of_the_cpu(found, kv_heads: int) -> None:
    """In bf16 all prompts at once, whatever tokens they have already."""
    fp32, bf16 = (found[1][f"continued torch.{dtype} {kv_heads}"] for dtype in ("float32", "bfloat16"))
    assert max(fp32["apart"]) < 1e-5 and fp32["calls"] == [["sdpa", HEADS, HEADS]] * 2
    assert max(bf16["apart"]) < 0.02 and bf16["calls"] == [["varlen", HEADS, kv_heads if found[0] else HEADS]]
    assert bf16["queries"] == [7]


def test_sdpa_takes_the_memory_efficient_kernel_or_none(found) -> None:
    """Never cuDNN's, in training, prefill or steps that are recorded."""
    assert found[1]["graphs"]["calls"] and found[1]["backends"] == [[False, True, True, False]]


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize(
    ("precision", "bound", "of_gradients"),
    [("fp32", 1e-5, 2.5e-5), ("bf16_linear", 0.02, 0.05), ("bf16", 0.04, 0.05)],
)
def test_a_model_has_the_logprobs_and_gradients_of_the_cpu(
    found, precision: str, bound: float, of_gradients: float, shared: bool
) -> None:
    """Logprobs in nats, gradients by relative norm; a GPU rounds queries, keys and values, or attention's weights."""
    result = found[1][f"model {precision} {shared}"]
    assert result["apart"][0] < bound and max(result["relative"]) < of_gradients
    kernels = [kernel for kernel, *_ in result["calls"]]
    assert set(kernels) == {"sdpa"} if precision == "fp32" else kernels == ["varlen"] * LAYERS


@pytest.mark.parametrize("precision", ["bf16_linear", "bf16"])
def test_checkpointing_changes_no_bit_and_selective_keeps_what_the_kernel_gave(found, precision: str) -> None:
    plain, layer, selective = (found[1][f"model {precision} {mode}"] for mode in (True, "layer", "selective"))
    assert plain["apart"] == layer["apart"] == selective["apart"]
    assert [len(result["calls"]) for result in (plain, layer, selective)] == [LAYERS, 2 * LAYERS, LAYERS]


@pytest.mark.parametrize("precision", ["fp32", "bf16_linear", "bf16"])
def test_decoding_reads_the_keys_and_values_that_the_trainer_does(found, precision: str) -> None:
    dtype = "torch.float32" if precision == "fp32" else "torch.bfloat16"
    assert found[1][f"kept {precision}"] == [dtype] * 2 * LAYERS


def test_a_gpu_without_bf16_kernels_attends_in_fp32_and_refuses_bf16(found) -> None:
    """As a CPU does with bf16_linear, so the values are the CPU's: tokens too, and logprobs in nats."""
    for precision, bound in (("fp32", 1e-5), ("bf16_linear", 1e-3)):
        result = found[1][f"old model {precision}"]
        assert result["apart"][0] < bound and result["calls"] and {name for name, *_ in result["calls"]} == {"sdpa"}
    for options in ([], ["cuda_graphs"], ["batch_invariant"]):
        ids_apart, logprobs_apart = found[1][f"old samples {options}"]["apart"]
        assert ids_apart == 0 and logprobs_apart < 1e-3
    assert "precision = bf16 needs a GPU of compute capability 8.0" in found[1]["old refusal"]
