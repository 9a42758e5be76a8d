"""Seconds and dollars of a run, from what the device can do and how much of that such work reaches.

Sampling reads all weights and the keys and values of every sequence for each token: it is bound by memory bandwidth
until the batch is large enough to be bound by arithmetic. Training is 6 FLOPs for each parameter and token (2 forward,
4 backward), and attention besides. Both wait for the launch of their kernels, which is all that a tiny model does.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from hone.config.rl import RLConfig
from hone.config.sft import SFTConfig
from hone.planning.arithmetic import Lengths, SFTArithmetic, StepArithmetic
from hone.planning.devices import Device
from hone.planning.memory import GIB, KV_GIB, checkpoint_bytes, micro_batch_limit, weight_bytes
from hone.planning.shape import Shape

SMALL_MODEL = 10_000_000
"""As `hone.composition.machine`."""
DISK = 1e9
"""Bytes a second that a folder is written or read with, through the page cache of a server."""


@dataclass(frozen=True)
class Efficiency:
    """Shares of the peak that are reached: `train` and `prefill` of the FLOP/s, `bandwidth` of the bytes/s.

    `overhead` are seconds that a layer's kernels take to be launched, forward once; `source` is of these figures.
    """

    train: float
    prefill: float
    bandwidth: float
    overhead: float
    source: str


EFFICIENCY = {
    "cuda": Efficiency(
        0.11,
        0.25,
        0.5,
        300e-6,
        "11 % of the peak in training, what prime-rl publishes for RL of Qwen3-0.6B on an H100 (11.9k tokens/s); half "
        "of the bandwidth in sampling; 0.3 ms a layer to launch its kernels",
    ),
    "cpu": Efficiency(
        0.25,
        0.25,
        0.5,
        150e-6,
        "a quarter of what a square product reaches here, as a step of the tiny model does (benchmarks/results/"
        "rl_step.json), and 0.15 ms a layer to start its operations",
    ),
}
"""By kind of device."""


@dataclass(frozen=True)
class Times:
    """Seconds of a step by phase, of one evaluation (`evaluate`), of all checkpoints that the loop waits for (`save`).

    `published` is the part of `other` that weights take from trainer to server. With `overlaps` a batch is sampled
    while the trainer works on the one before. `tokens` are those of a step, prompts included.
    """

    sample: float = 0.0
    grade: float = 0.0
    train: float = 0.0
    evaluate: float = 0.0
    other: float = 0.0
    published: float = 0.0
    steps: int = 0
    evaluations: int = 0
    start: float = 0.0
    save: float = 0.0
    usd_per_hour: float | None = None
    overlaps: bool = False
    tokens: float = 0.0

    @property
    def step(self) -> float:
        sampling, training = self.sample + self.grade, self.train + self.other
        return max(sampling, training) if self.overlaps else sampling + training

    @property
    def total(self) -> float:
        """Seconds of the whole run."""
        return self.start + self.steps * self.step + self.evaluations * self.evaluate + self.save

    @property
    def usd(self) -> float | None:
        return None if self.usd_per_hour is None else self.total / 3600 * self.usd_per_hour

    def record(self) -> dict[str, float | None]:
        """Return the seconds and dollars as JSON."""
        names = ("sample", "grade", "train", "evaluate", "other", "start", "step", "total", "usd")
        return {name: getattr(self, name) for name in names}


def times(
    config: RLConfig | SFTConfig,
    shape: Shape,
    device: Device,
    lengths: Lengths | None = None,
    gpus: int = 1,
    usd_per_hour: float | None = None,
    examples: int | None = None,
) -> Times:
    """Estimate the seconds of a run whose sequences have these `lengths`, by default a guess.

    Ranks of SFT share all `gpus`; those of RL (mode split) are `trainer.ranks`, and one server samples. The data set
    of SFT has `examples`. `usd_per_hour` is the price of the machine.
    """
    lengths = lengths or Lengths.of(config)
    if device.kind == "cpu" and shape.parameters < SMALL_MODEL:  # it runs on one thread
        device = replace(device, flops={name: rate / device.cores for name, rate in device.flops.items()})
    price = usd_per_hour or (config.budget.usd_per_hour if config.budget else None)  # of the whole machine
    if price is None and device.usd_per_hour is not None:
        price = device.usd_per_hour * gpus
    start = 8.0 + 3 * checkpoint_bytes(shape, "bf16") / 14e9
    if isinstance(config, SFTConfig):
        tokens = config.data.batch_size * lengths.completion
        step = train_seconds(config, shape, device, tokens, lengths.completion / 2) / gpus
        plan = SFTArithmetic.of(config, examples)
        # A validation has forward passes only; of packed examples the length is a guess.
        seen = plan.validated * lengths.completion / (2 if config.data.pack else 1)
        return Times(
            train=step,
            evaluate=step / 3 * seen / tokens,
            other=0.002,
            steps=config.max_steps,
            evaluations=plan.evaluations,
            start=start,
            usd_per_hour=price,
            tokens=tokens,
        )
    orch, plan = config.orchestrator, StepArithmetic.of(config)
    rows, split = orch.batch_size, config.mode == "split"
    ranks = config.trainer.ranks if split and device.kind == "cuda" else 1
    tokens = rows * lengths.completion + plan.prompts * lengths.prompt
    # A version is written by the trainer and read by the server.
    published = 2 * weight_bytes(shape, config.precision) / DISK if split else 0.0
    evaluate = 0.0
    if orch.eval:
        evaluate = sample_seconds(config, shape, device, plan.eval_completions, orch.eval.num_examples, lengths)
    return Times(
        sample=sample_seconds(config, shape, device, rows, plan.prompts, lengths),
        grade=2e-5 * rows,
        train=train_seconds(config, shape, device, tokens / ranks, lengths.sequence / 2, ranks),
        evaluate=evaluate,
        other=0.005 + shape.parameters * 4 / device.bandwidth + published,
        published=published,
        steps=config.max_steps,
        evaluations=plan.evaluations,
        start=start,
        save=plan.checkpoints * checkpoint_bytes(shape, config.precision) / device.bandwidth,
        usd_per_hour=price,
        overlaps=orch.max_async_level > 0 and device.kind == "cuda" and gpus > ranks,
        tokens=rows * lengths.sequence,
    )


def train_seconds(
    config: RLConfig | SFTConfig, shape: Shape, device: Device, tokens: float, context: float, ranks: int = 1
) -> float:
    """Return the seconds of forward, backward and update on the `tokens` of one of `ranks` that share the model.

    Each token sees `context` others on the average.
    """
    efficiency = EFFICIENCY[device.kind]
    rate, exact = (flops * efficiency.train for flops in _flops(config, device))
    if device.kind == "cuda" and config.precision != "bf16":
        exact = device.flops["fp32"] * 0.6
    seconds = 3 * tokens * shape.matrix_flops_per_token / rate
    seconds += 3 * tokens * (shape.head_flops_per_token + shape.attention_flops_per_token(context)) / exact
    if isinstance(config, RLConfig) and config.trainer.loss.kl_coef > 0:
        seconds *= 4 / 3
    update = shape.parameters / ranks * 28 / (device.bandwidth * efficiency.bandwidth)
    passes = max(1.0, tokens / micro_batch_limit(config, device))
    return seconds + update + 3 * passes * shape.layers * efficiency.overhead


def sample_seconds(config: RLConfig, shape: Shape, device: Device, rows: int, prompts: int, lengths: Lengths) -> float:
    """Return the seconds of prefilling `prompts` and decoding `rows` together, in waves if the cache holds fewer."""
    efficiency = EFFICIENCY[device.kind]
    rate, exact = (flops * efficiency.prefill for flops in _flops(config, device))
    prefill = prompts * lengths.prompt * shape.matrix_flops_per_token / rate
    budget = int((config.inference.kv_gib or KV_GIB) * GIB) // shape.kv_bytes_per_token
    at_once = max(1, min(rows, budget // max(1, int(lengths.longest))))
    waves = -(-rows // at_once)
    weights = shape.layers * shape.layer_matrices * (4 if config.precision == "fp32" else 2)
    weights += shape.embedding * (2 if config.precision == "bf16" else 4)
    cached = (prompts / rows * lengths.prompt + lengths.completion / 2) * shape.kv_bytes_per_token
    reading = (weights + at_once * cached) / (device.bandwidth * efficiency.bandwidth)
    computing = at_once * (shape.matrix_flops_per_token / rate + shape.head_flops_per_token / exact)
    decode = max(reading, computing) + shape.layers * efficiency.overhead
    return prefill + waves * lengths.decoded * decode


def _flops(config: RLConfig | SFTConfig, device: Device) -> tuple[float, float]:
    """Return the FLOP/s of products with the layers' matrices, and of what is more exact: head and attention."""
    matrices = device.flops["fp32" if config.precision == "fp32" else "bf16"]
    return matrices, device.flops["bf16" if config.precision == "bf16" else "fp32"]
