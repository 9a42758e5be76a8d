"""A run of RL on many GPUs: how they are best shared out, what a step computes and sends, and what limits it.

Servers sample, each with the whole model, and the trainer's ranks share it (FSDP2). A step's seconds are those of its
parts (`PARTS`): sampling, answers as JSON, training, collectives between ranks, weights written and read. hone has one
server today, and loads a whole model on each GPU; what it would reach without these bounds is computed too, by name.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from hone.config.rl import RLConfig
from hone.planning.devices import Device
from hone.planning.lengths import Lengths
from hone.planning.links import Link, Links, links_of
from hone.planning.memory import memory, weight_bytes
from hone.planning.shape import Shape
from hone.planning.time import EFFICIENCY, Efficiency, sample_seconds, train_seconds
from hone.planning.traffic import Share, Traffic, share_of_step, traffic

MICRO_BATCHES = (16384, 8192, 4096, 2048, 1024)
"""Tokens of a micro-batch that are tried, where the config does not say: the largest that fits."""
GRADE = 2e-5
"""Seconds of grading a completion, as `planning.time` has them."""
MAX_LAG = 2
"""Rollouts are planned to be at most so many versions behind, where the config does not say."""
NEARLY = 1.05
ROOM = 0.95
"""Share of a card's memory that may be planned with; the rest is lost between blocks."""
SAMPLER = ("sampling", "answers")
TRAINER = ("training", "collectives", "writing weights")
PARTS = (*SAMPLER, *TRAINER, "reading weights")


@dataclass(frozen=True)
class Layout:
    """Who has which GPUs: `servers` of `tensor` GPUs each, and `ranks`; no servers: one process does both.

    `today`: what hone can do now, i.e. at most one server, of one GPU, and ranks that load the whole model first.
    """

    servers: int
    ranks: int
    tensor: int = 1
    today: bool = True

    @property
    def gpus(self) -> int:
        return self.servers * self.tensor + self.ranks

    @property
    def counts(self) -> tuple[int, int, int]:
        return self.servers, self.ranks, self.tensor

    @property
    def words(self) -> str:
        """`1 + 7`, servers and ranks; `2 of 8 + 48` where a server has several GPUs."""
        if not self.servers:
            return "1 for both"
        of = f" of {self.tensor}" if self.tensor > 1 else ""
        return f"{self.servers}{of} + {self.ranks}"


@dataclass(frozen=True)
class Scaling:
    """A step of `config` on a layout of GPUs. `seconds` by part, each as if it were alone; `flops` of the whole step by
    role; `memory` bytes on one GPU by role.
    """

    config: RLConfig
    shape: Shape
    lengths: Lengths
    device: Device
    links: Links
    layout: Layout
    share: Share
    traffic: Traffic
    seconds: dict[str, float]
    flops: dict[str, float]
    memory: dict[str, int]

    @property
    def too_large(self) -> dict[str, int]:
        """Of what does not fit into the card: bytes by role."""
        return {role: size for role, size in self.memory.items() if size > ROOM * self.device.memory}

    @property
    def sampled(self) -> float:
        """Seconds until the completions are there and graded."""
        return sum(self.seconds[part] for part in SAMPLER) + GRADE * self.config.orchestrator.batch_size

    @property
    def trained(self) -> float:
        """Seconds that the trainer is at work: on a GPU collectives go on behind products."""
        compute, wire, write = (self.seconds[part] for part in TRAINER)
        return (max(compute, wire) if self.links.overlaps else compute + wire) + write

    @property
    def latency(self) -> float:
        """Seconds from the first prompt of a batch until the weights that it made are sampled from."""
        return self.sampled + self.trained + self.seconds["reading weights"]

    def step(self, lag: int | None = None) -> float:
        """Seconds a step with `max_async_level` = `lag`, by default the smallest that helps, up to `MAX_LAG`.

        Up to lag + 1 batches are on their way at once, and each role has one at a time.
        """
        lag = self.lag if lag is None else lag
        return max(self.sampled, self.trained, self.latency / (lag + 1)) if lag else self.latency

    @property
    def hiding_lag(self) -> int:
        """The smallest `max_async_level` that leaves only the slower role's time."""
        if not self.layout.servers:
            return 0
        return max(1, math.ceil(self.latency / max(self.sampled, self.trained) - 1e-9) - 1)

    @property
    def lag(self) -> int:
        return min(self.hiding_lag, self.config.orchestrator.max_async_level or MAX_LAG)

    @property
    def limit(self) -> str:
        """The part that a step waits for most: to be made faster, or given more GPUs, first."""
        step = self.step()
        parts = SAMPLER if step == self.sampled else TRAINER if step == self.trained else PARTS
        return max(parts, key=lambda part: self.seconds[part])

    def link_of(self, part: str) -> Link | None:
        """What a part's bytes pass; None for what stays on the card."""
        if part == "collectives":
            return self.links.collectives(self.layout.ranks)
        if part == "answers":
            return self.links.http
        return self.links.files(self.layout.gpus) if part.endswith("weights") else None

    @property
    def busiest(self) -> tuple[str, float] | None:
        """The part whose link is busy longest, with its seconds; None on one GPU."""
        if not self.layout.servers:
            return None
        links = {part: seconds for part, seconds in self.seconds.items() if self.link_of(part) is not None}
        return max(links.items(), key=lambda item: item[1])


def efficiency_of(shape: Shape, device: Device) -> Efficiency:
    """What is reached of the device's peak: more by larger products, as `TRAIN` says, beginning with `EFFICIENCY`."""
    base, (small, large, reached) = EFFICIENCY[device.kind], TRAIN[device.kind]
    share = math.log(max(small, shape.parameters) / small) / math.log(large / small)
    return replace(base, train=base.train + min(1.0, share) * (reached - base.train))


TRAIN = {"cuda": (0.6e9, 8e9, 0.30), "cpu": (0.4e6, 50e6, 0.65)}
"""(parameters that `EFFICIENCY` is for, parameters of a large model, share of the peak that training reaches with it).

On GPUs torchtitan's page of results (Llama 3.1 8B, FSDP2 on 8 H100, not compiled); on CPUs hone's 59M-parameter step in
benchmarks/scaling.py, one process.
"""


def train_flops(config: RLConfig, shape: Shape, lengths: Lengths, share: Share) -> float:
    """Of forward and backward of a share of a step: a product's backward pass is two products.

    Logits that do not fit at once are computed again for the backward pass; a reference model adds a forward pass.
    """
    from hone.model.decoder import MAX_LOGITS

    head = share.loss_tokens * shape.head_flops_per_token
    chunked = share.loss_tokens / share.micro_batches * shape.vocab > MAX_LOGITS
    attention = share.rows * lengths.sequence * shape.attention_flops_per_token(lengths.sequence / 2)
    forward = share.tokens * shape.matrix_flops_per_token + head + attention
    return (4 if config.trainer.loss.kl_coef else 3) * forward + (head if chunked else 0)


def sample_flops(config: RLConfig, shape: Shape, lengths: Lengths) -> float:
    """Of prefilling each prompt once, and of decoding the completions."""
    orch = config.orchestrator
    fed = orch.batch_size // orch.rollouts_per_example * lengths.prompt
    new = orch.batch_size * lengths.completion
    prefill = fed * (shape.matrix_flops_per_token + shape.attention_flops_per_token(lengths.prompt / 2))
    return prefill + new * shape.flops_per_token(lengths.prompt + lengths.completion / 2)


def shared_out(
    config: RLConfig,
    shape: Shape,
    device: Device,
    lengths: Lengths,
    layout: Layout,
    links: Links | None = None,
    efficiency: Efficiency | None = None,
) -> Scaling:
    """What a step is on this layout. Micro-batches and room for keys and values, if the config leaves them open, are
    as large as the card allows.
    """
    links, efficiency = links or links_of(device), efficiency or efficiency_of(shape, device)
    config = _fitted(config, shape, device, lengths, layout)
    ranks, servers = layout.ranks, layout.servers
    share = share_of_step(config, lengths, ranks, device.kind)
    sent = traffic(config, shape, lengths, ranks, share.micro_batches, split=servers > 0)
    wire, files = links.collectives(ranks), links.files(layout.gpus)
    readers = servers if files.shared_by == "all machines" else min(servers, 1)
    seconds = {
        "sampling": _sampling(config, shape, device, lengths, layout, links, efficiency),
        "answers": links.http.seconds(sent.http),
        "training": train_seconds(config, shape, device, share.tokens, lengths.sequence / 2, efficiency, ranks),
        "collectives": wire.seconds(sent.gathered + sent.reduced * links.reduce_scatter),
        "writing weights": wire.seconds(sent.versioned) + files.seconds(sent.weights),
        "reading weights": readers * files.seconds(sent.weights),
    }
    flops = {
        "sampling": sample_flops(config, shape, lengths),
        "training": train_flops(config, shape, lengths, share_of_step(config, lengths, 1, device.kind)),
    }
    sizes = _memory(config, shape, device, lengths, layout)
    return Scaling(config, shape, lengths, device, links, layout, share, sent, seconds, flops, sizes)


def best(
    config: RLConfig,
    shape: Shape,
    device: Device,
    gpus: int,
    lengths: Lengths | None = None,
    today: bool = True,
    links: Links | None = None,
    efficiency: Efficiency | None = None,
) -> Scaling:
    """The fastest way to share out at most `gpus`, or one of fewer GPUs that is nearly as fast (`NEARLY`); of those
    that fit into the card. If none does, the one that lacks least.
    """
    lengths = lengths or Lengths.of(config)
    found = [
        shared_out(config, shape, device, lengths, layout, links, efficiency)
        for layout in _layouts(config, shape, device, gpus, today)
    ]
    fitting = [one for one in found if not one.too_large]
    if not fitting:
        return min(found, key=lambda one: max(one.too_large.values()))
    fastest = min(one.step() for one in fitting)
    near = [one for one in fitting if one.step() <= NEARLY * fastest]
    return min(near, key=lambda one: (one.layout.gpus, one.step()))


def _layouts(config: RLConfig, shape: Shape, device: Device, gpus: int, today: bool) -> Iterator[Layout]:
    """Ways to share out `gpus`, beyond 8 in powers of two and their halves; one GPU for all is one of them."""
    yield Layout(0, 1, 1, today)
    if gpus == 1:
        return
    tensor = 1 if today else min(_tensor(config, shape, device), 2 ** int(math.log2(gpus / 2)))
    groups = config.orchestrator.batch_size // config.orchestrator.rollouts_per_example
    counts = {*range(1, 9), *(8 * 2**n for n in range(10)), *(12 * 2**n for n in range(10))}
    for ranks in sorted(n for n in counts if n < gpus):
        most = min(1 if today else groups, (gpus - ranks) // tensor)
        for servers in sorted({n for n in counts if n <= most} | {most} - {0}):
            yield Layout(servers, ranks, tensor, today)


def _tensor(config: RLConfig, shape: Shape, device: Device) -> int:
    """GPUs that a server's weights have to be cut over, new ones beside the old ones, half of each card left free."""
    needed = 2 * weight_bytes(shape, config.precision) / (0.5 * device.memory)
    return next((n for n in (1, 2, 4) if n >= needed), 8)


def _of(device: Device, count: int) -> Device:
    """`count` cards as if they were one."""
    flops = {name: rate * count for name, rate in device.flops.items()}
    return replace(device, memory=device.memory * count, flops=flops, bandwidth=device.bandwidth * count)


def _sampling(
    config: RLConfig,
    shape: Shape,
    device: Device,
    lengths: Lengths,
    layout: Layout,
    links: Links,
    efficiency: Efficiency,
) -> float:
    """Seconds of the server that has most: groups stay whole, so servers beyond their number have nothing to do.

    Over several GPUs each layer's two sums of activations are exchanged for every token.
    """
    group = config.orchestrator.rollouts_per_example
    prompts = -(-config.orchestrator.batch_size // group // max(1, layout.servers))
    rows, cards = prompts * group, _of(device, layout.tensor)
    exchanged = (
        2 * 2 * (layout.tensor - 1) / layout.tensor * shape.layers * shape.hidden * 2 * rows * lengths.completion
    )
    seconds = sample_seconds(config, shape, cards, rows, prompts, lengths, efficiency)
    return seconds + links.inside.seconds(exchanged)


def _memory(config: RLConfig, shape: Shape, device: Device, lengths: Lengths, layout: Layout) -> dict[str, int]:
    if not layout.servers:
        return {"both": memory(config, shape, device, 1, lengths, "all").total}
    trainer = memory(config, shape, device, layout.ranks, lengths, "trainer")
    server = memory(config, shape, device, 1, lengths, "sampler").total
    sizes = {"trainer": trainer.total, "server": server // layout.tensor}
    if layout.today:
        sizes["trainer"] = max(trainer.total, trainer.parts["process"] + weight_bytes(shape, config.precision))
    return sizes


def _fitted(config: RLConfig, shape: Shape, device: Device, lengths: Lengths, layout: Layout) -> RLConfig:
    """The config with `kv_gib` and `micro_batch_tokens`, where it leaves them open, as large as a GPU allows."""
    if device.kind != "cuda":
        return config
    role = "sampler" if layout.servers else "all"
    if config.inference.kv_gib is None:
        cards = _of(device, layout.tensor)
        taken = memory(_with(config, kv_gib=0.01), shape, cards, 1, lengths, role).total
        config = _with(config, kv_gib=max(1.0, round((0.9 * cards.memory - taken) / 2**30)))
    if config.trainer.micro_batch_tokens is None:
        role = "trainer" if layout.servers else "all"
        tries = [_with(config, micro_batch_tokens=most) for most in MICRO_BATCHES]
        fitting = [
            c for c in tries if memory(c, shape, device, layout.ranks, lengths, role).total <= ROOM * device.memory
        ]
        config = (fitting or tries[-1:])[0]
    return config


def _with(config: RLConfig, kv_gib: float | None = None, micro_batch_tokens: int | None = None) -> RLConfig:
    inference, trainer = config.inference, config.trainer
    if kv_gib is not None:
        inference = inference.model_copy(update={"kv_gib": kv_gib})
    if micro_batch_tokens is not None:
        trainer = trainer.model_copy(update={"micro_batch_tokens": micro_batch_tokens})
    return config.model_copy(update={"inference": inference, "trainer": trainer})
