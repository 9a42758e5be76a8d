"""The bytes of one RL step: what its processes send each other, and what they write.

Computed as the code does it: a layer's weights are gathered for its forward and again for its backward pass, embedding,
last norm and head once (`trainer/parallel.py`); gradients are summed in fp32 after every micro-batch; a version is made
whole and written, and its canary scored (`trainer/serve.py`); batches and weights are files (`transport/spool.py`).
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise

from hone.config.rl import RLConfig
from hone.planning.lengths import Lengths
from hone.planning.memory import checkpoint_bytes, weight_bytes
from hone.planning.shape import Shape

FP32 = 4
ORDER_BYTES = 4 + 1 + 4 + 4
"""Of a token in a batch file: id, loss mask, logprob, version (`trainer/wire.py`)."""
ORDER_BYTES_EACH = 4 * 8
"""Of a sequence in it: length, group, sample, advantage."""
CONTROL_BYTES = 8 + 1 + 4 + 4
"""Of a token on its way from rank 0 to the others: numpy arrays as rank 0 has them, the ids in int64."""
ROLLOUT_BYTES = 3.5
"""Of a token in rollouts/*.parquet, compressed: 3.3 in the median of benchmarks/results/exactness.json, 2 to 7."""
LOGPROB_CHARACTERS = 20
"""Of a logprob in JSON: fp32 told as a double, with its comma."""
ANSWER_BYTES = 225
"""Of a completion in JSON, beside what its tokens take."""
AROUND_BYTES = 8_000
"""Of a step's other requests: the update, the canary's logprobs, the version asked for, and headers."""


@dataclass(frozen=True)
class Share:
    """What a step's slowest rank does: its micro-batches, and the tokens in them; `loss_tokens` are sampled ones.

    `rows` are sequences, each as long as prompt and completion; a shared prompt counts once in `tokens`.
    """

    micro_batches: int
    tokens: int
    loss_tokens: int
    rows: int


def share_of_step(config: RLConfig, lengths: Lengths, ranks: int, kind: str) -> Share:
    """Cut as the trainer does it, of sequences that are all of mean length."""
    from hone.trainer.packing import MICRO_BATCH_TOKENS

    orch = config.orchestrator
    most = config.trainer.micro_batch_tokens or MICRO_BATCH_TOKENS[kind]
    prompt, completion = round(lengths.prompt), max(1, round(lengths.completion))
    return _share(orch.batch_size, orch.rollouts_per_example, prompt, completion, most, ranks)


@lru_cache(maxsize=4096)
def _share(rows: int, group: int, prompt: int, completion: int, most: int, ranks: int) -> Share:
    """`hone.trainer.packing.cut_evenly` in numbers, as all sequences are alike: a batch is how many rows of how many
    groups it has. Tested to be that.
    """

    def cut(limit: int) -> list[tuple[int, int]]:
        """(tokens, rows) up to the beginning of each batch, and up to the end: as many parts of groups, in order, as
        its limit takes.
        """
        whole = prompt + group * completion <= limit
        part = group if whole else max(1, (limit - prompt) // completion)
        parts = ([part] * (group // part) + [group % part] * (group % part > 0)) * (rows // group)
        held = list(accumulate(parts, initial=0))
        tokens = [index * prompt + count * completion for index, count in enumerate(held)]
        edges = [0]
        while edges[-1] < len(parts):
            fits = bisect_right(tokens, tokens[edges[-1]] + limit) - 1
            edges.append(max(fits, edges[-1] + 1))  # a part that is too large alone is a batch
        return [(tokens[edge], held[edge]) for edge in edges]

    edges = cut(most)
    if ranks > 1:
        rounds = -(-(len(edges) - 1) // ranks)
        low, high = 0, most
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if len(cut(middle)) - 1 <= rounds * ranks else (middle, high)
        edges = cut(high)
    batches = [(after[0] - before[0], after[1] - before[1]) for before, after in pairwise(edges)]
    amounts = [sum(tokens for tokens, _ in batches[rank::ranks]) for rank in range(ranks)]
    busiest = amounts.index(max(amounts))
    own = sum(held for _, held in batches[busiest::ranks])
    return Share(-(-len(batches) // ranks), amounts[busiest], own * completion, own)


@dataclass(frozen=True)
class Traffic:
    """Bytes of one step. Those of collectives are what the busiest rank receives; `checkpoint` is one checkpoint's."""

    gathered: float
    """Weights, gathered for forward and backward passes."""
    reduced: float
    """Gradients, summed in fp32 after each micro-batch."""
    versioned: float
    """Weights, gathered to be written, and again to score the canary."""
    control: float
    """The batch as rank 0 gives it to each other rank, the norm of the gradient, and sums of the fingerprint."""
    batch: float
    """The batch file."""
    weights: float
    """The files of one version, which every server reads."""
    http: float
    """Prompts to the servers, and completions from them, as JSON."""
    rollouts: float
    """The step's Parquet file."""
    checkpoint: float
    """Weights, two moments, and master weights where the weights are bf16."""

    @property
    def collectives(self) -> float:
        return self.gathered + self.reduced + self.versioned


def traffic(config: RLConfig, shape: Shape, lengths: Lengths, ranks: int, micro_batches: int, split: bool) -> Traffic:
    """Of one step on `ranks` ranks, of which each has `micro_batches`; `split`: sampled by a server."""
    orch, weights = config.orchestrator, weight_bytes(shape, config.precision)
    layers = weights * shape.layers * shape.layer_parameters / shape.parameters
    others = (ranks - 1) / ranks
    passes = weights + layers + (weights if config.trainer.loss.kl_coef else 0)
    tokens = orch.batch_size * lengths.sequence
    tensors = shape.layers * (10 if shape.qk_norm else 8)
    return Traffic(
        gathered=micro_batches * passes * others,
        reduced=micro_batches * FP32 * shape.parameters * others,
        versioned=2 * weights * others if split else 0,
        control=tokens * CONTROL_BYTES + 16 * tensors if ranks > 1 else 0,
        batch=tokens * ORDER_BYTES + orch.batch_size * ORDER_BYTES_EACH if split else 0,
        weights=weights if split else 0,
        http=http_bytes(config, shape, lengths) if split else 0,
        rollouts=tokens * ROLLOUT_BYTES,
        checkpoint=checkpoint_bytes(shape, config.precision),
    )


def http_bytes(config: RLConfig, shape: Shape, lengths: Lengths) -> float:
    """A step's requests and answers. A token comes back as id, version, logprob, text (twice) and offset."""
    orch = config.orchestrator
    number = math.ceil(math.log10(shape.vocab)) + 1
    characters = 1 if shape.vocab < 1000 else 4
    offset = len(str(round(lengths.completion) * characters)) + 1
    token = number + 3 + LOGPROB_CHARACTERS + (characters + 3) + characters + offset
    answers = orch.batch_size * (lengths.completion * token + lengths.prompt * number)
    each = ANSWER_BYTES + 21  # with its key, as it is asked for
    return (
        AROUND_BYTES
        + answers
        + each * orch.batch_size
        + orch.batch_size // orch.rollouts_per_example * lengths.prompt * number
    )
