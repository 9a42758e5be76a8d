"""Seconds and dollars of a run, from the device's peak figures and typical shares of them.

For each token, sampling reads all weights, and the keys and values of every sequence. Memory bandwidth limits sampling
or, with a large batch, arithmetic does. Training takes 6 FLOPs for each parameter and token (2 forward, 4 backward),
plus attention. Sampling and training wait for kernel launches, which take most of the time of a tiny model.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace

from hone.config.rl import RLConfig
from hone.config.sft import SFTConfig
from hone.extensions.planning.arithmetic import Lengths, Steps
from hone.extensions.planning.devices import Device
from hone.inference.memory import kv_bytes_per_token, uses_graphs, wave
from hone.model.config import DecoderConfig
from hone.trainer.memory import checkpoint_bytes, micro_batch_limit, trained

SMALL_MODEL = 10_000_000
"""A model with fewer parameters runs on one CPU thread."""
TRAIN = {"cuda": 0.11, "cpu": 0.25}
"""Shares of the peak FLOP/s that training reaches, by kind of device."""
PREFILL, BANDWIDTH = 0.25, 0.5
"""Shares that are reached: of peak FLOP/s in sampling, and of peak bytes/s."""
LAUNCH = {"cuda": 300e-6, "cpu": 150e-6}
"""Seconds to launch a layer's kernels for a forward pass."""
DEQUANTIZED = {"8bit": 9.0, "4bit": 12.5}
"""Bytes read and written for a weight of `model.lora.base` in a bf16 product: codes, level indices, the value twice."""
SOURCE = {
    "cuda": "prime-rl's 11.9k tokens/s of Qwen3-0.6B on an H100, which are 11 % of its peak",
    "cpu": "a quarter of the speed of a square product here, as in benchmarks/results/rl_step.json",
}


@dataclass(frozen=True)
class Times:
    """Seconds of a step by phase, of one evaluation (`evaluate`), and of waiting for all checkpoints (`save`)."""

    steps: int
    sample: float = 0.0
    grade: float = 0.0
    train: float = 0.0
    other: float = 0.0
    evaluations: int = 0
    evaluate: float = 0.0
    start: float = 0.0
    save: float = 0.0
    usd_per_hour: float | None = None

    @property
    def step(self) -> float:
        return self.sample + self.grade + (self.train + self.other)

    @property
    def total(self) -> float:
        return self.start + self.steps * self.step + self.evaluations * self.evaluate + self.save

    @property
    def usd(self) -> float | None:
        return None if self.usd_per_hour is None else self.total / 3600 * self.usd_per_hour

    def record(self) -> dict[str, float | None]:
        return asdict(self) | {"step": self.step, "total": self.total, "usd": self.usd}


def times(
    config: RLConfig | SFTConfig,
    shape: DecoderConfig,
    device: Device,
    lengths: Lengths | None = None,
    usd_per_hour: float | None = None,
    pool: int | None = None,
) -> Times:
    """Estimate the seconds of a run with `pool` examples of these `lengths`, which are guessed by default."""
    lengths = lengths or Lengths.of(config)
    if device.kind == "cpu" and shape.parameters < SMALL_MODEL:  # it runs on one thread
        device = replace(device, flops={name: rate / device.cores for name, rate in device.flops.items()})
    budgeted = config.budget.usd_per_hour if config.budget else None
    price = usd_per_hour or budgeted or device.usd_per_hour
    start = 8.0 + 3 * shape.parameters / 1e9
    steps = Steps.of(config, pool)
    if isinstance(config, SFTConfig):
        tokens = config.data.batch_size * lengths.completion
        train = train_seconds(config, shape, device, tokens, lengths.completion / 2)
        # A validation has forward passes only; of packed examples the length is a guess.
        seen = steps.evaluated * lengths.completion / (2 if config.data.pack else 1)
        return Times(
            steps.steps,
            train=train,
            other=0.002,
            evaluations=steps.evaluations,
            evaluate=train / 3 * seen / tokens,
            start=start,
            usd_per_hour=price,
        )
    orch, rows = config.orchestrator, config.orchestrator.batch_size
    prompts = rows // orch.rollouts_per_example
    tokens = rows * lengths.completion + prompts * lengths.prompt
    evaluate = 0.0
    if orch.eval:
        evaluate = sample_seconds(config, shape, device, steps.evaluated, orch.eval.num_examples, lengths)
    return Times(
        steps.steps,
        sample=sample_seconds(config, shape, device, rows, prompts, lengths),
        grade=2e-5 * rows,  # in full: a guess that leaves out what is graded beside sampling
        train=train_seconds(config, shape, device, tokens, lengths.sequence / 2),
        other=0.005 + shape.parameters * 4 / device.bandwidth,
        evaluations=steps.evaluations,
        evaluate=evaluate,
        start=start,
        save=steps.checkpoints * checkpoint_bytes(config, shape) / device.bandwidth,
        usd_per_hour=price,
    )


def train_seconds(
    config: RLConfig | SFTConfig, shape: DecoderConfig, device: Device, tokens: float, context: float
) -> float:
    """Return the seconds of forward and backward passes and updates on `tokens` tokens; each attends to `context`
    tokens on average.
    """
    rate, exact = (flops * TRAIN[device.kind] for flops in _flops(config, device))
    if device.kind == "cuda" and config.precision != "bf16":
        exact = device.flops["fp32"] * 0.6
    lora = config.model.lora
    micro_batches = max(1.0, tokens / micro_batch_limit(config, device.kind))
    seconds = (2 if lora else 3) * tokens * 2 * shape.matrices / rate  # frozen weights have no gradient
    if lora and lora.base:  # they are made for the forward and for the backward pass
        made = 2 * micro_batches * DEQUANTIZED[lora.base]
        seconds += made * shape.matrices / (device.bandwidth * BANDWIDTH)
    seconds += 3 * tokens * (2 * shape.embedding + 4 * shape.num_layers * shape.q_size * context) / exact
    update = trained(shape, lora) * 28 / (device.bandwidth * BANDWIDTH)
    passes = 1.0
    if isinstance(config, RLConfig):
        trainer = config.trainer
        passes, updates = trainer.updates_per_batch, trainer.updates_per_batch * trainer.minibatches
        before = (trainer.loss.kl_coef > 0) + (trainer.keeps_old and updates > 1)  # forward passes, a third of a pass
        passes, update = passes + before / 3, update * updates
    return update + passes * (seconds + 3 * micro_batches * shape.num_layers * LAUNCH[device.kind])


def sample_seconds(
    config: RLConfig, shape: DecoderConfig, device: Device, rows: int, prompts: int, lengths: Lengths
) -> float:
    """Return the seconds to prefill `prompts` and to decode `rows` together, or in waves if they exceed the cache."""
    rate, exact = (flops * PREFILL for flops in _flops(config, device))
    prefill = prompts * lengths.prompt * 2 * shape.matrices / rate
    at_once = wave(config, shape, device.kind, rows, int(lengths.longest))
    base = config.model.lora and config.model.lora.base
    weights = shape.matrices * (DEQUANTIZED[base] if base else 4 if config.precision == "fp32" else 2)
    weights += shape.embedding * (2 if config.precision == "bf16" else 4)
    graphs = uses_graphs(config, device.kind)
    cached = (1 if graphs else prompts / rows) * lengths.prompt + lengths.completion / 2
    cached *= kv_bytes_per_token(shape, config.precision, device.kind)
    reading = (weights + at_once * cached) / (device.bandwidth * BANDWIDTH)
    computing = at_once * (2 * shape.matrices / rate + 2 * shape.embedding / exact)
    # One launch a step with graphs, taken for nothing: an assumption, for no GPU was measured.
    decode = max(reading, computing) + (0 if graphs else shape.num_layers * LAUNCH[device.kind])
    return prefill + -(-rows // at_once) * lengths.decoded * decode


def _flops(config: RLConfig | SFTConfig, device: Device) -> tuple[float, float]:
    """Return (FLOP/s of the layers' matrices, FLOP/s of head and attention, which use a higher precision)."""
    matrices = device.flops["fp32" if config.precision == "fp32" else "bf16"]
    return matrices, device.flops["bf16" if config.precision == "bf16" else "fp32"]
