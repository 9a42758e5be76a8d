"""Stages (a) to (c): parity with transformers and the engine's gap, sampling, train steps.

They import torch, numpy, safetensors, tokenizers and transformers only.
"""

from __future__ import annotations

import math
from collections.abc import Sequence as SequenceABC
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from gpu.bench import Bench

from hone import rng
from hone.algorithms.gap import Gap, Verdict, band_of
from hone.algorithms.losses import policy_objective, sft_objective
from hone.inference.engine import Engine
from hone.inference.types import SamplingParams
from hone.model import fusion
from hone.model.attention import PackedAttention
from hone.model.config import DecoderConfig
from hone.model.decoder import PRECISIONS, Decoder
from hone.model.head import head_logprobs
from hone.model.hf import load_model
from hone.trainer.logprobs import token_logprobs
from hone.trainer.packing import Sequence, deal, pack
from hone.trainer.step import Trainer

ENGINES: dict[str, tuple[bool, dict[str, Any]]] = {
    "graphs": (False, {"cuda_graphs": True}),
    "plain": (False, {"cuda_graphs": False}),
    "graphs, compiled": (True, {"cuda_graphs": True}),
}
"""Variants of the engine: with `model.compile` or not, and what `Engine` is told. Compiling takes time: it is last."""
TRAINERS: dict[str, tuple[str, bool, dict[str, Any]]] = {
    "bf16": ("bf16", False, {}),
    "bf16_linear": ("bf16_linear", False, {}),
    "bf16, softmax kept": ("bf16", False, {"head_cache_bytes": 8 * 2**30}),
    "bf16, compiled": ("bf16", True, {}),
    "bf16_linear, compiled": ("bf16_linear", True, {}),
}
"""Variants of the trainer: precision, with `model.compile` or not, and what `Trainer` is told."""

PROMPT_TOKENS, NEW_TOKENS, BATCHES = 64, 128, (16, 128, 512)
CHECKPOINTING = ("none", "selective", "layer")
SEGMENTS = {"1 x 16384": [16384], "64 x 256": [256] * 64}
FAMILIES = {"qwen3": ("Qwen3Config", {"head_dim": 32}), "qwen2": ("Qwen2Config", {}), "llama": ("LlamaConfig", {})}
"""Class of the config in transformers, and what is not its default."""
OPTIM: Any = SimpleNamespace(
    type="adamw", lr=1e-9, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.0, max_norm=1.0, state="fp32", offload=False
)
OPTIM.check_ranks = lambda ranks: None
SCHEDULER: Any = SimpleNamespace(type="constant", warmup_steps=0, min_ratio=0.0)
LOSS: Any = SimpleNamespace(
    type="clip", range=(0.2, 0.28), dual_clip=None, old_policy="sampler", entropy_coef=0.0, ratio_penalty=0.0
)
"""Settings that the trainer reads, with hone's defaults: hone.config needs pydantic. Weights hardly move."""


def parity(bench: Bench, compiled: bool = False) -> None:
    """Compare the engine's logprobs with the trainer's, by precision and variant, and logits with transformers'."""
    for layers in (2,) if bench.tiny else (28, 4):
        title, config = f"{layers} layers", replace(bench.shape("qwen3-0.6b"), num_layers=layers)
        for variant in chosen(ENGINES, compiled):
            for precision in PRECISIONS:
                bench.part(("gap", title, precision, variant), partial(_gap, bench, config, precision, variant))
        if layers != 4 and not compiled:
            for family, of_config in FAMILIES.items():
                bench.part(("logits", family), partial(_logits_apart, bench, bench.work / family, *of_config))


def chosen(variants: dict[str, Any], compiled: bool) -> dict[str, Any]:
    """Return the variants that are compiled, or those that are not."""
    return {name: variant for name, variant in variants.items() if ("compiled" in name) == compiled}


def _logits_apart(bench: Bench, folder: Path, name: str, more: dict[str, Any], found: dict[str, Any]) -> None:
    """Largest |Δ| of logits, of hone and of transformers in fp32 and bf16: of each other, and of transformers' fp32."""
    import transformers

    sizes = {"hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 8, "num_key_value_heads": 2}
    sizes |= {"num_hidden_layers": 4, "vocab_size": 1024}
    config = getattr(transformers, name)(**sizes, initializer_range=0.1, tie_word_embeddings=False, **more)
    torch.manual_seed(0)
    transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(folder)
    rows = [rng.stream(0, "bench", i).integers(3, 1024, length) for i, length in enumerate((5, 64, 113))]
    batch = pack([Sequence(row, np.arange(len(row)) > 0) for row in rows], device=bench.device)
    logits: dict[str, torch.Tensor] = {}
    for dtype in (torch.float32, torch.bfloat16):
        theirs = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).to(bench.device)
        ours = load_model(folder, dtype=dtype, device=bench.device)
        label = {torch.float32: "fp32", torch.bfloat16: "bf16"}[dtype]
        with torch.no_grad():
            ids = [torch.from_numpy(row)[None].to(bench.device) for row in rows]
            logits[f"transformers {label}"] = torch.cat([theirs(one).logits[0].float() for one in ids])
            attention = PackedAttention(batch.lengths, batch.parents)
            logits[f"hone {label}"] = ours.logits(ours.hidden(batch.token_ids, batch.positions, attention))
    for one, other in (
        ("hone fp32", "transformers fp32"),
        ("hone bf16", "transformers bf16"),
        ("hone bf16", "transformers fp32"),
        ("transformers bf16", "transformers fp32"),
    ):
        found[f"{one} - {other}"] = float((logits[one] - logits[other]).abs().max())
    found["largest logit"] = float(logits["transformers fp32"].abs().max())


def _gap(bench: Bench, config: DecoderConfig, precision: str, variant: str, found: dict[str, Any]) -> None:
    """Mean and largest |Δ| between the engine's logprobs of its samples and the trainer's, in nats; and the bounds."""
    compiled, options = ENGINES[variant]
    fusion.set_compiled(compiled)
    model = bench.random_model(config, precision)
    with torch.no_grad():
        model.embed.mul_(4)  # peaked, as a trained model is: different tokens have clearly different logprobs
    model.refresh()
    prompts, new = _prompts(config, 4 if bench.tiny else 16, 8 if bench.tiny else 64, 0), 5 if bench.tiny else 64
    samples = Engine(model, **options).generate(prompts, SamplingParams(max_tokens=new, ignore_eos=True))
    sequences = []
    for prompt, (sample,) in zip(prompts, samples, strict=True):
        ids = np.array([*prompt, *sample.token_ids])
        sequences.append(Sequence(ids, np.arange(len(ids)) >= len(prompt)))
    batch = pack(sequences, device=model.device)
    with torch.no_grad():
        trained, _ = token_logprobs(model, batch, batch.loss_indices)
    gap = Gap.of(np.concatenate([sample.logprobs for (sample,) in samples]) - trained.cpu().numpy())
    band = band_of("hone", precision, config.num_layers)
    found.update(mean=gap.mean, max=gap.max, tokens=len(trained), bounds={"mean": band.mean, "max": band.max})
    found["within"] = band.verdict(gap) == Verdict.OK


def _prompts(config: DecoderConfig, count: int, tokens: int, turn: int) -> list[list[int]]:
    """Return different prompts for each turn, so that no cache of prefixes helps."""
    return rng.stream(0, "bench", turn).integers(3, config.vocab_size, (count, tokens)).tolist()


def sampling(bench: Bench, shape: str, compiled: bool = False) -> None:
    """Measure tokens/s of each variant of the engine, beside the limit that the measured copy speed sets.

    Also of prompts of 1k to 4k tokens, and which kernels a decoding step takes without graphs.
    """
    config, figures = bench.shape(shape), bench.figures
    prompt, new, batches = (8, 5, (2, 3)) if bench.tiny else (PROMPT_TOKENS, NEW_TOKENS, BATCHES)
    figures["workload"] = {"prompt_tokens": prompt, "new_tokens": new}
    figures["copy_gigabytes_per_second"] = gigabytes = bench.copy_gigabytes()
    for variant, (_, options) in chosen(ENGINES, compiled).items():
        for precision in ("bf16",) if variant == "plain" else ("bf16", "bf16_linear"):
            model = bench.random_model(config, precision)
            engine = Engine(model, kv_bytes=_kv_bytes(bench), **options)
            for batch in batches:
                limit = bandwidth_limit(model, batch, prompt + new / 2, gigabytes)
                warm = 8 if variant == "plain" else new
                measure = partial(_rate, bench, engine, compiled, batch, prompt, new, limit, warm)
                bench.part(("batches", str(batch), f"{precision}, {variant}"), measure)
            if precision == "bf16" and variant == "graphs":
                bench.part(("ragged",), partial(_ragged, bench, engine, new))
            if variant == "plain":
                bench.part(("profile",), partial(_profile_decoding, bench, engine, batches[-2], prompt))
            del model, engine, measure
            bench.release()


def _ragged(bench: Bench, engine: Engine, new: int, found: dict[str, Any]) -> None:
    """Tokens/s of 64 prompts of 1k to 4k tokens, all of different lengths."""
    count, least, most = (3, 8, 20) if bench.tiny else (64, 1024, 4096)
    lengths = np.linspace(least, most, count).astype(int).tolist()
    turn = iter(range(10**6, 2 * 10**6))

    def generate(tokens: int) -> None:
        prompts = [_prompts(engine.model.config, 1, length, next(turn))[0] for length in lengths]
        engine.generate(prompts, SamplingParams(max_tokens=tokens, ignore_eos=True))

    fusion.set_compiled(False)
    found["prompt_tokens"] = sum(lengths)
    found["first_seconds"] = bench.timed(lambda: generate(new))
    found["seconds"], found["prefill_seconds"] = (bench.rounds(lambda n=n: generate(n), 2) for n in (new, 1))
    whole, first = median(found["seconds"]), median(found["prefill_seconds"])
    found["prefilled_tokens_per_second"] = sum(lengths) / first
    found["decoded_tokens_per_second"] = count * (new - 1) / max(whole - first, 1e-9)


def _profile_decoding(bench: Bench, engine: Engine, batch: int, prompt: int, found: dict[str, Any]) -> None:
    turn = iter(range(2 * 10**6, 3 * 10**6))
    params = SamplingParams(max_tokens=4, ignore_eos=True)
    config = engine.model.config
    found |= bench.profile(lambda: engine.generate(_prompts(config, batch, prompt, next(turn)), params))


def update(bench: Bench, shape: str) -> None:
    """Time how long a server takes to read new weights and to copy them into its model; and note the peak of memory."""
    from hone.extensions.server.weights import WeightsFolder, swap_weights

    folder = bench.model_folder(shape)

    def measure(precision: str, found: dict[str, Any]) -> None:
        model = load_model(folder, device=bench.device, precision=precision)
        weights, loaded = WeightsFolder(folder.parent), []
        found["resident_bytes"] = torch.cuda.memory_allocated() if bench.device.type == "cuda" else 0
        bench.reset_peak()
        found["load_seconds"] = bench.timed(lambda: loaded.append(weights.load(folder.name, model)))
        found["swap_seconds"] = bench.timed(lambda: swap_weights(loaded[0], model))

    for precision in ("bf16_linear", "bf16"):
        bench.part((precision,), partial(measure, precision))


def vllm(bench: Bench, shape: str) -> None:
    """Measure tokens/s of vLLM on the same prompts as hone's engine; left out where it is not installed."""
    try:
        from vllm import LLM
        from vllm import SamplingParams as Params
    except ImportError:
        bench.figures["left out"] = "vLLM is not installed"
        return
    config = bench.shape(shape)
    llm = LLM(str(bench.model_folder(shape)), dtype="bfloat16", max_model_len=PROMPT_TOKENS + NEW_TOKENS)
    params = Params(max_tokens=NEW_TOKENS, ignore_eos=True)

    def measure(batch: int, found: dict[str, Any]) -> None:
        turn = iter(range(10**6))

        def generate() -> None:
            prompts = _prompts(config, batch, PROMPT_TOKENS, next(turn))
            llm.generate([{"prompt_token_ids": ids} for ids in prompts], params, use_tqdm=False)

        found["first_seconds"] = bench.timed(generate)
        found["seconds"] = bench.rounds(generate, seconds=2.5)
        found["tokens_per_second"] = batch * NEW_TOKENS / median(found["seconds"])

    for batch in BATCHES:
        bench.part(("batches", str(batch)), partial(measure, batch))


def bandwidth_limit(model: Decoder, batch: int, context: float, gigabytes: float) -> float:
    """Return the tokens/s that GB/s of memory leave: a step reads all matrices, the head, and each row's context."""
    config = model.config
    matrices = config.matrices * (4 if model.precision == "fp32" else 2)
    head = config.embedding * model.head_weight.element_size()
    return batch / ((matrices + head + batch * context * model.kv_bytes_per_token) / (gigabytes * 1e9))


def _kv_bytes(bench: Bench) -> int:
    """Return three tenths of the device's memory."""
    if bench.device.type == "cpu":
        return 2**30
    return torch.cuda.get_device_properties(0).total_memory * 3 // 10


def _rate(
    bench: Bench,
    engine: Engine,
    compiled: bool,
    batch: int,
    prompt: int,
    new: int,
    limit: float,
    warm: int,
    found: dict[str, Any],
) -> None:
    """Tokens/s of whole calls, and of decoding alone: the time until the first token is left out.

    A first call, of `warm` tokens, does not count: there graphs are recorded, and kernels chosen or compiled.
    """
    fusion.set_compiled(compiled)
    turn = iter(range(10**6))
    config = engine.model.config

    def generate(tokens: int) -> None:
        samples = engine.generate(
            _prompts(config, batch, prompt, next(turn)), SamplingParams(max_tokens=tokens, ignore_eos=True)
        )
        assert all(len(sample.token_ids) == tokens for (sample,) in samples)

    found["first_seconds"] = bench.timed(lambda: generate(warm))
    bench.reset_peak()
    found["seconds"] = bench.rounds(lambda: generate(new), seconds=2.5)
    found["prefill_seconds"] = bench.rounds(lambda: generate(1), seconds=1)
    whole, first = median(found["seconds"]), median(found["prefill_seconds"])
    found["tokens_per_second"] = batch * new / whole
    found["decoded_tokens_per_second"] = decoded = batch * (new - 1) / max(whole - first, 1e-9)
    found["limit_tokens_per_second"], found["share_of_limit"] = limit, decoded / limit


def transformers(bench: Bench, shape: str, compiled: bool = False) -> None:
    """Measure tokens/s of transformers' `generate` in bf16: as it is, or with a static cache and compiled."""
    from transformers import AutoModelForCausalLM, GenerationConfig

    config = bench.shape(shape)
    prompt, new, batches = (8, 5, (2, 3)) if bench.tiny else (PROMPT_TOKENS, NEW_TOKENS, BATCHES)
    if compiled:  # of one batch: another is compiled again
        batches = batches[1:2]
    model = AutoModelForCausalLM.from_pretrained(bench.model_folder(shape), dtype=torch.bfloat16).to(bench.device)
    model.generation_config = GenerationConfig(pad_token_id=0)
    more: dict[str, Any] = {"cache_implementation": "static"} if compiled else {}

    def measure(batch: int, found: dict[str, Any]) -> None:
        turn = iter(range(10**6))

        def generate(tokens: int) -> None:
            ids = torch.tensor(_prompts(config, batch, prompt, next(turn))).to(bench.device)
            out = model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=True,
                top_k=0,
                top_p=1.0,
                max_new_tokens=tokens,
                **more,
            ).cpu()
            assert out.shape[1] == prompt + tokens

        found["first_seconds"] = bench.timed(lambda: generate(new if compiled else 4))
        bench.reset_peak()
        found["seconds"] = bench.rounds(lambda: generate(new), seconds=3)
        found["tokens_per_second"] = batch * new / median(found["seconds"])

    for batch in batches:
        bench.part(("batches", str(batch), "static, compiled" if compiled else "default"), partial(measure, batch))


def training(bench: Bench, shape: str, compiled: bool = False) -> None:
    """Measure tokens/s and model FLOPs utilisation of SFT and RL steps, for each variant of the trainer.

    FLOPs of a step of T tokens, M of them with loss: 6 of each scalar of the layers' matrices and T, 6 of each scalar
    of the head and M, and causal attention of the real segments, 6 L H Dh of each one's length squared (L layers, H
    heads of size Dh): forward 2, backward 4. What checkpointing and the head compute again does not count. MFU is these
    over the step's seconds and the chip's dense bf16 peak of the data sheet, or the measured one of a product where
    the chip is not in the table. Also the kernels of an RL step, and the head's share of its time.
    """
    config, figures = bench.shape(shape), bench.figures
    measured, sheet = bench.gemm_flops(), bench.peak_flops()
    figures["gemm_tflops"], figures["peak_tflops"] = measured / 1e12, (sheet or measured) / 1e12
    segments = {"1 x 64": [64], "4 x 16": [16] * 4} if bench.tiny else SEGMENTS
    for name in chosen(TRAINERS, compiled):
        for title, lengths in segments.items():
            measure = partial(_train_rate, bench, config, name, lengths, sheet or measured)
            bench.part(("segments", title, name), measure)


def _train_rate(
    bench: Bench,
    config: DecoderConfig,
    variant: str,
    lengths: SequenceABC[int],
    peak: float,
    found: dict[str, Any],
) -> None:
    """Rates of steps, with the first kind of checkpointing that fits the memory."""
    precision, compiled, options = TRAINERS[variant]
    fusion.set_compiled(compiled)
    sequences = []
    for i, length in enumerate(lengths):
        ids = rng.stream(0, "bench", i).integers(3, config.vocab_size, length)
        logprobs = np.full(length, -math.log(config.vocab_size), dtype=np.float32)
        sequences.append(Sequence(ids, np.arange(length) > 0, logprobs, advantage=(-1.0) ** i, group=i))
    batches = deal(sequences, sum(lengths), bench.device)

    def seconds(checkpointing: str) -> dict[str, list[float]]:
        model = bench.random_model(config, precision)
        trainer = Trainer(model, OPTIM, SCHEDULER, 10**6, sft_objective, checkpointing=checkpointing, **options)
        times = {}
        for kind, objective in (("sft", sft_objective), ("rl", policy_objective(LOSS))):
            trainer.objective = objective
            trainer.step(batches)
            times[kind] = bench.rounds(lambda: trainer.step(batches), seconds=2)
        if variant in ("bf16", "bf16_linear") and len(lengths) > 1:
            found["profile"] = bench.profile(lambda: trainer.step(batches))
            share = median(_head_seconds(bench, model, sum(lengths) - len(lengths))) / median(times["rl"])
            found["head_share"] = share
        return times

    for checkpointing in CHECKPOINTING:
        bench.release()
        bench.reset_peak()
        try:
            times = seconds(checkpointing)
            break
        except torch.OutOfMemoryError:
            if checkpointing == CHECKPOINTING[-1]:
                raise
            print(f"no memory for checkpointing {checkpointing}", flush=True)
    found["checkpointing"], flops = checkpointing, step_flops(config, lengths)
    for kind, of_kind in times.items():
        each = median(of_kind)
        found[kind] = {"seconds": of_kind, "tokens_per_second": sum(lengths) / each, "mfu": flops / each / peak}


def _head_seconds(bench: Bench, model: Decoder, tokens: int) -> list[float]:
    """Return the seconds of the vocabulary head, forward and backward, for so many tokens with loss."""
    dtype = torch.bfloat16 if model.precision == "bf16" else torch.float32
    hidden = torch.randn(tokens, model.config.hidden_size, device=bench.device, dtype=dtype, requires_grad=True)
    targets = torch.zeros(tokens, dtype=torch.int64, device=bench.device)

    def both() -> None:
        logprobs, entropies = head_logprobs(hidden, model.head_weight, targets, precision=model.precision)
        torch.autograd.grad((logprobs + entropies).sum(), [hidden, model.head_weight])

    both()
    return bench.rounds(both, seconds=1)


def step_flops(config: DecoderConfig, lengths: SequenceABC[int]) -> float:
    """Return the FLOPs of a train step on segments of these lengths, of which all tokens but the first carry loss."""
    tokens, squares = sum(lengths), sum(length**2 for length in lengths)
    products = config.matrices * tokens + config.embedding * (tokens - len(lengths))
    return 6 * products + 6 * config.num_layers * config.q_size * squares
