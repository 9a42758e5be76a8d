"""Seconds and dollars of a run, from what the device can do and how much of that such work reaches.

Sampling reads all weights and the keys and values of every sequence for each token: it is bound by memory bandwidth
until the batch is large enough to be bound by arithmetic. Training is 6 FLOPs for each parameter and token (2 forward,
4 backward), and attention besides. Both wait for the launch of their kernels, which is all that a tiny model does.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from hone.config.rl import RLConfig
from hone.config.sft import SFTConfig
from hone.planning.arithmetic import SFTArithmetic, StepArithmetic
from hone.planning.devices import Device
from hone.planning.lengths import Lengths
from hone.planning.memory import KV_GIB, checkpoint_bytes, weight_bytes
from hone.planning.shape import Shape

SMALL_MODEL = 10_000_000
"""As `hone.composition.machine`."""
DISK = 1e9
"""Bytes a second that a folder is written or read with: one thread through the page cache of a server.
benchmarks/results/transport.json has 0.3 to 0.8 GB/s on two busy cores of a virtual machine.
"""


@dataclass(frozen=True)
class Efficiency:
    """Shares of the peak that are reached, and what is lost whatever the size.

    `train` and `prefill` of the FLOP/s, `bandwidth` of the bytes/s; `overhead` are seconds that a layer's kernels take
    to be launched, forward once. `source` says where the figures come from.
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
    """Seconds of one step by phase, how often each happens, and what the run needs besides.

    `evaluate` are seconds of one evaluation, `save` of one checkpoint that the loop waits for, `start` of the start.
    """

    sample: float
    grade: float
    train: float
    evaluate: float
    other: float
    steps: int
    evaluations: int = 0
    start: float = 0.0
    save: float = 0.0
    usd_per_hour: float | None = None
    published: float = 0.0
    """Of `other`, what a version of the weights takes from the trainer to the server."""
    overlaps: bool = False
    """Whether the next batch is sampled while this one is trained on."""
    tokens: float = 0.0
    """Tokens of a step, prompts counted with each completion."""
    notes: list[str] = field(default_factory=list)

    @property
    def step(self) -> float:
        sampled, trained = self.sample + self.grade, self.train + self.other
        return max(sampled, trained) if self.overlaps else sampled + trained

    @property
    def total(self) -> float:
        """Seconds of the whole run."""
        return self.start + self.steps * self.step + self.evaluations * self.evaluate + self.save

    @property
    def usd(self) -> float | None:
        return None if self.usd_per_hour is None else self.total / 3600 * self.usd_per_hour


def times(
    config: RLConfig | SFTConfig,
    shape: Shape,
    device: Device,
    lengths: Lengths | None = None,
    efficiency: Efficiency | None = None,
    gpus: int = 1,
    usd_per_hour: float | None = None,
    examples: int | None = None,
) -> Times:
    """An estimate. `lengths` are those of the batch, by default a guess; of `gpus`, the ranks of SFT share all,
    those of RL are `trainer.ranks` (mode split), and one server samples;
    a data set for SFT has so many `examples`. `usd_per_hour` is the price of the machine.
    """
    lengths = lengths or Lengths.of(config)
    efficiency = efficiency or EFFICIENCY[device.kind]
    if device.kind == "cpu" and shape.parameters < SMALL_MODEL:  # it runs on one thread
        device = replace(device, flops={name: rate / device.cores for name, rate in device.flops.items()})
    price = usd_per_hour or (config.budget.usd_per_hour if config.budget else None)  # of the whole machine
    if price is None and device.usd_per_hour is not None:
        price = device.usd_per_hour * gpus
    start = 8.0 + 3 * checkpoint_bytes(shape, "bf16") / 14e9
    if isinstance(config, SFTConfig):
        tokens = config.data.batch_size * lengths.completion
        step = train_seconds(config, shape, device, tokens, lengths.completion / 2, efficiency) / gpus
        plan = SFTArithmetic.of(config, examples)
        # A validation has forward passes only; of packed examples the length is a guess.
        seen = plan.validated * lengths.completion / (2 if config.data.pack else 1)
        return Times(
            sample=0,
            grade=0,
            train=step,
            evaluate=step / 3 * seen / tokens,
            other=0.002,
            steps=config.max_steps,
            evaluations=plan.evaluations,
            start=start,
            usd_per_hour=price,
            tokens=tokens,
        )
    orch = config.orchestrator
    plan = StepArithmetic.of(config)
    rows = orch.batch_size
    split = config.mode == "split"
    ranks = config.trainer.ranks if split and device.kind == "cuda" else 1
    sample = sample_seconds(config, shape, device, rows, plan.prompts, lengths, efficiency)
    new = rows * lengths.completion
    tokens = new + plan.prompts * lengths.prompt
    context = lengths.sequence / 2
    train = train_seconds(config, shape, device, tokens / ranks, context, efficiency, ranks)
    # A version is written by the trainer and read by the server.
    published = 2 * weight_bytes(shape, config.precision) / DISK if split else 0.0
    evaluate = 0.0
    if orch.eval:
        count = plan.eval_completions
        evaluate = sample_seconds(config, shape, device, count, orch.eval.num_examples, lengths, efficiency)
    return Times(
        sample=sample,
        grade=2e-5 * rows,
        train=train,
        evaluate=evaluate,
        other=0.005 + shape.parameters * 4 / device.bandwidth + published,
        steps=config.max_steps,
        evaluations=plan.evaluations,
        start=start,
        save=plan.checkpoints * checkpoint_bytes(shape, config.precision) / device.bandwidth,
        usd_per_hour=price,
        published=published,
        overlaps=orch.max_async_level > 0 and device.kind == "cuda" and gpus > ranks,
        tokens=rows * lengths.sequence,
    )


def train_seconds(
    config: RLConfig | SFTConfig,
    shape: Shape,
    device: Device,
    tokens: float,
    context: float,
    efficiency: Efficiency,
    ranks: int = 1,
) -> float:
    """Of forward and backward of so many tokens, each of which sees `context` others on the average, and the update; of
    the tokens of one of `ranks` that share the model.
    """
    low = config.precision != "fp32"
    rate = device.flops["bf16" if low else "fp32"] * efficiency.train
    exact = device.flops["bf16" if config.precision == "bf16" else "fp32"] * efficiency.train
    if device.kind == "cuda" and config.precision != "bf16":
        exact = device.flops["fp32"] * 0.6
    seconds = 3 * tokens * shape.matrix_flops_per_token / rate
    seconds += 3 * tokens * (shape.head_flops_per_token + shape.attention_flops_per_token(context)) / exact
    if isinstance(config, RLConfig) and config.trainer.loss.kl_coef > 0:
        seconds *= 4 / 3
    update = shape.parameters / ranks * 28 / (device.bandwidth * efficiency.bandwidth)
    micro = config.data.micro_batch_tokens if isinstance(config, SFTConfig) else config.trainer.micro_batch_tokens
    passes = max(1.0, tokens / (micro or {"cpu": 4096, "cuda": 16384}[device.kind]))
    return seconds + update + 3 * passes * shape.layers * efficiency.overhead


def sample_seconds(
    config: RLConfig,
    shape: Shape,
    device: Device,
    rows: int,
    prompts: int,
    lengths: Lengths,
    efficiency: Efficiency,
) -> float:
    """Of prefilling so many prompts and decoding so many rows together, in waves if the cache holds fewer."""
    low = config.precision != "fp32"
    rate = device.flops["bf16" if low else "fp32"] * efficiency.prefill
    exact = device.flops["bf16" if config.precision == "bf16" else "fp32"] * efficiency.prefill
    prefill = prompts * lengths.prompt * shape.matrix_flops_per_token / rate
    budget = int((config.inference.kv_gib or KV_GIB) * 2**30) // shape.kv_bytes_per_token()
    at_once = max(1, min(rows, budget // max(1, int(lengths.longest))))
    waves = -(-rows // at_once)
    bandwidth = device.bandwidth * efficiency.bandwidth
    weights = shape.layers * shape.layer_matrices * (2 if low else 4)
    weights += shape.embedding * (2 if config.precision == "bf16" else 4)
    cached = (prompts / rows * lengths.prompt + lengths.completion / 2) * shape.kv_bytes_per_token()
    reading = (weights + at_once * cached) / bandwidth
    computing = at_once * (shape.matrix_flops_per_token / rate + shape.head_flops_per_token / exact)
    decode = max(reading, computing) + shape.layers * efficiency.overhead
    return prefill + waves * lengths.decoded * decode
