"""Families that only transformers computes: hone's flat tokens through its layers, against transformers by itself."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from present import NO_AUDIT, reproduced
from transformers import AutoConfig, AutoModelForCausalLM

from hone.cli import main
from hone.config.rl import RLConfig
from hone.errors import UserError
from hone.inference import Engine, SamplingParams
from hone.loops.machine import Machine, resolve
from hone.model.foreign import TransformersDecoder
from hone.model.hf import load_model, read_config, save_model
from hone.model.tokenizer import ENDOFTEXT_ID, IM_END_ID, VOCAB_SIZE, save_tokenizer
from hone.runs import Run
from hone.trainer.logprobs import token_logprobs
from hone.trainer.packing import Sequence, pack

SHAPE = {
    **{"vocab_size": VOCAB_SIZE, "hidden_size": 48, "num_hidden_layers": 2, "intermediate_size": 64},
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128, "bos_token_id": None},
    **{"eos_token_id": [IM_END_ID, ENDOFTEXT_ID], "pad_token_id": ENDOFTEXT_ID},
}
WINDOW = {"sliding_window": 96, "layer_types": ["sliding_attention", "full_attention"], "head_dim": 16}
EXPERTS = {"moe_intermediate_size": 32, "num_experts": 4, "num_experts_per_tok": 2, "head_dim": 16}
ROUTED = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "first_k_dense_replace": 1}
LATENT = {
    "num_key_value_heads": 4,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
}
MULTIPLIERS = {"logits_scaling": 4.0, "attention_multiplier": 0.2, "embedding_multiplier": 3.0}
FAMILIES: dict[str, dict[str, Any]] = {
    "gemma3_text": WINDOW | {"query_pre_attn_scalar": 32},
    "mistral": {"sliding_window": None},
    "phi3": {},
    "olmo2": {"tie_word_embeddings": True},
    "granite": MULTIPLIERS,
    "qwen3_moe": EXPERTS,
}


def write(folder: Path, family: str, **settings: Any) -> Any:
    """Write a random model of a family; return transformers' own, in fp32."""
    torch.manual_seed(0)
    net: Any = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **(SHAPE | settings))).eval()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.mul_(1 + 3 * (parameter.dim() > 1)).add_(torch.randn_like(parameter) * 0.02)
    net.save_pretrained(folder)
    save_tokenizer(folder)
    return net


@pytest.fixture(scope="module", params=FAMILIES)
def both(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Any, TransformersDecoder, Path]:
    folder = tmp_path_factory.mktemp(request.param)
    net, model = write(folder, request.param, **FAMILIES[request.param]), load_model(folder)
    assert isinstance(model, TransformersDecoder)
    return net, model, folder


def batch() -> list[Sequence]:
    """Two completions of each of two prompts, of different lengths."""
    made = []
    for i, length in enumerate((9, 14, 11, 20)):
        prompt = np.random.default_rng(i // 2).integers(3, VOCAB_SIZE, 6)
        ids = np.concatenate([prompt, np.random.default_rng([7, i]).integers(3, VOCAB_SIZE, length - 6)])
        made.append(Sequence(ids, np.arange(length) >= 6, None, 1.0, group=i // 2, sample=i))
    return made


def plain_logprobs(net: Any, sequence: Sequence) -> torch.Tensor:
    ids = torch.from_numpy(sequence.token_ids)[None]
    logprobs = net(input_ids=ids, use_cache=False).logits[0, :-1].log_softmax(-1)
    return logprobs.gather(1, ids[0, 1:, None]).squeeze(1)[sequence.prompt_length - 1 :]


@pytest.mark.parametrize(("checkpointing", "share"), [("none", False), ("layer", True), ("selective", True)])
def test_logprobs_and_gradients_are_those_of_transformers(both: Any, checkpointing: str, share: bool) -> None:
    net, model, _ = both
    model.set_checkpointing(checkpointing)
    packed = pack(batch(), share_prompts=share)
    logprobs_M, _ = token_logprobs(model, packed, packed.loss_indices)
    expected = torch.cat([plain_logprobs(net, sequence) for sequence in batch()])
    order = np.argsort([int(i) for i in packed.loss_indices])
    assert logprobs_M[order].tolist() == pytest.approx(expected.tolist(), abs=2e-5)
    logprobs_M.square().sum().backward()
    expected.square().sum().backward()
    ours = {name.removeprefix("net."): p.grad for name, p in model.named_parameters()}
    theirs = {name: p.grad for name, p in net.named_parameters()}
    total = math.sqrt(sum(float(grad.square().sum()) for grad in theirs.values()))
    assert ours.keys() == theirs.keys() and total > 0
    assert math.sqrt(sum(float((ours[n] - theirs[n]).square().sum()) for n in theirs)) < 2e-5 * total
    for one in (net, model):
        one.zero_grad()


def test_the_engine_takes_the_tokens_that_transformers_takes(both: Any) -> None:
    net, model, _ = both
    prompts = [[5, 9, 30, 31], [40, 41, 42, 43, 44, 45, 46], [5, 9, 30, 31, 8]]
    for engine in (Engine(model), Engine(model, batch_invariant=True)):
        found = engine.generate(prompts, SamplingParams(max_tokens=10, temperature=0.0, ignore_eos=True))
        for prompt, (completion,) in zip(prompts, found, strict=True):
            ids = torch.tensor([prompt])
            for _ in range(10):
                ids = torch.cat([ids, net(input_ids=ids, use_cache=False).logits[:, -1:].argmax(-1)], dim=1)
            assert completion.token_ids == ids[0, len(prompt) :].tolist()
            assert completion.logprobs == pytest.approx(engine.score([ids[0].tolist()])[0][len(prompt) - 1 :], abs=1e-5)


def test_it_is_written_as_transformers_reads_it(both: Any, tmp_path: Path) -> None:
    net, model, _ = both
    save_model(model, tmp_path)
    again: Any = AutoModelForCausalLM.from_pretrained(tmp_path)
    ids = torch.arange(3, 20)[None]
    assert torch.equal(again(input_ids=ids).logits, net(input_ids=ids).logits)
    assert read_config(tmp_path) == model.config


@pytest.mark.parametrize(
    ("family", "settings", "reason"),
    [
        ("gemma2", {"head_dim": 16}, "attention has softcap"),
        ("phi", {}, "head of model_type 'phi' is not a plain matrix"),
        ("mamba", {}, "the model has a part that hone can't compute"),
        ("glm4_moe", ROUTED, r"weights that are not parameters \(.*e_score_correction_bias\)"),
        ("minicpm3", LATENT, "keys and values differ in size"),
    ],
)
def test_what_hone_would_compute_otherwise_is_refused(
    family: str, settings: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    write(tmp_path, family, **settings)
    with pytest.raises(UserError, match=reason):
        load_model(tmp_path)
    with pytest.raises(UserError, match="hone's decoder supports dense"):
        load_model(tmp_path, implementation="hone")


def test_nothing_is_dropped_out_with_checkpointing(tmp_path: Path) -> None:
    write(tmp_path, "mistral", attention_dropout=0.5)
    model = load_model(tmp_path)
    model.set_checkpointing("layer")
    found = [module.attention_dropout for module in model.modules() if hasattr(module, "attention_dropout")]
    assert found == [0.0] * len(found) and found


def test_weights_that_are_missing_are_named(tmp_path: Path) -> None:
    write(tmp_path, "mistral")
    other = tmp_path / "other"
    write(other, "mistral", num_hidden_layers=1)
    (tmp_path / "model.safetensors").write_bytes((other / "model.safetensors").read_bytes())
    with pytest.raises(UserError, match=r"do not fit its config.json: missing keys model\.layers\.1"):
        load_model(tmp_path)


def test_a_window_is_the_longest_context_and_muon_is_refused(tmp_path: Path) -> None:
    write(tmp_path, "gemma3_text", **FAMILIES["gemma3_text"])
    model = load_model(tmp_path)
    assert (model.config.max_position_embeddings, model.config.stated_context) == (96, 128)
    assert model.config.context.startswith("context of 96 tokens (not 128: beyond 96 layers see only a window")
    factors = {"short_factor": [1.0] * 6, "long_factor": [2.0] * 6, "rope_theta": 1e4, "rope_type": "longrope"}
    write(tmp_path / "long", "phi3", rope_parameters=factors, original_max_position_embeddings=32)
    assert load_model(tmp_path / "long").config.max_position_embeddings == 32
    muon = RLConfig.model_validate({"trainer": {"optim": {"type": "muon"}}})
    with pytest.raises(UserError, match="but gemma3_text is computed by transformers' layers: set it to adamw"):
        resolve(muon, Machine(model.config, "cpu"))


LORA = ["--model.implementation", "transformers", "--model.lora.rank", "4"]


@pytest.mark.parametrize(
    ("family", "settings", "more"),
    [("gemma3_text", FAMILIES["gemma3_text"], []), ("qwen3", {"head_dim": 16}, LORA)],
)
def test_a_run_trains_it_and_is_verified(family: str, settings: dict, more: list[str], tmp_path: Path) -> None:
    write(tmp_path / "model", family, **settings)
    out = tmp_path / "run"
    flags = ["--model.name", str(tmp_path / "model"), "--max-steps", "3", "--seq-len", "64"]
    flags += ["--trainer.optim.lr", "1e-3", "--trainer.loss.kl-coef", "0.1", "--trainer.loss.count-filtered"]
    flags += ["--orchestrator.advantage.scale", "none"]
    flags += ["--orchestrator.batch-size", "8", "--orchestrator.rollouts-per-example", "4", "--ckpt.interval", "1"]
    flags += ["--orchestrator.sampling.max-tokens", "12", "--orchestrator.env.id", "reverse-text", *NO_AUDIT]
    assert main(["rl", *flags, *more, "--output-dir", str(out), "--display", "none"]) == 0
    reproduced(out, 3)
    lines = Run(out).metrics().to_pylist()
    assert all(line["canary/gap/max"] < 0.05 for line in lines)
    assert load_model(out / "weights" / "step_3").config.family == family
