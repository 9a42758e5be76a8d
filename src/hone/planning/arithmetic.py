"""How much a run does: what a step is made of, what all steps come to, and how long its sequences are."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hone.config.rl import RLConfig
from hone.config.sft import SFTConfig
from hone.config.shared import RunConfig


@dataclass(frozen=True)
class StepArithmetic:
    """Of RL. `tokens_at_most` and `sampled_at_most` (new tokens only) are of a step, `eval_completions` of one
    evaluation; `pool` are the training prompts, None where their number is not known."""

    prompts: int
    rollouts: int
    steps: int
    tokens_at_most: int
    sampled_at_most: int
    pool: int | None = None
    evaluations: int = 0
    eval_completions: int = 0
    checkpoints: int = 0

    @property
    def completions(self) -> int:
        return self.prompts * self.rollouts

    @property
    def total(self) -> int:
        """Completions of all steps."""
        return self.steps * self.completions

    @property
    def draws(self) -> int:
        """Prompts drawn in all steps; one that comes again counts again."""
        return self.steps * self.prompts

    @property
    def epochs(self) -> float | None:
        """How often each prompt of the pool is drawn."""
        return self.draws / self.pool if self.pool else None

    @classmethod
    def of(cls, config: RLConfig, pool: int | None = None, turns: int = 1) -> StepArithmetic:
        """Of a config whose task has `pool` prompts, each a conversation of at most `turns` turns."""
        orch = config.orchestrator
        longest = config.seq_len - 1
        evals = orch.eval
        return cls(
            prompts=orch.batch_size // orch.rollouts_per_example,
            rollouts=orch.rollouts_per_example,
            steps=config.max_steps,
            tokens_at_most=orch.batch_size * config.seq_len,
            sampled_at_most=orch.batch_size * min(longest, turns * (orch.sampling.max_tokens or longest)),
            pool=min((n for n in (pool, orch.max_examples) if n is not None), default=None),
            evaluations=_times(config.max_steps, evals.interval) + 1 if evals else 0,
            eval_completions=evals.num_examples * evals.rollouts_per_example if evals else 0,
            checkpoints=checkpoints_of(config),
        )

    def words(self) -> list[str]:
        """Return what the run does, a sentence a line."""
        if self.epochs is None:
            seen = f"prompts drawn: {self.draws:,} (how many the task has is not known here)"
        elif self.epochs < 1:
            seen = (
                f"prompts drawn: {self.draws:,} of {self.pool:,}, each at most once ({100 * self.epochs:.0f} % of them)"
            )
        else:
            often = "once" if self.epochs == 1 else f"{self.epochs:,.1f} times".replace(".0 ", " ")
            seen = f"prompts drawn: {self.draws:,}; each of the {self.pool:,} is seen {often}"
        evaluated = "none"
        if self.evaluations:
            evaluated = f"{self.evaluations} (step 0 and the end included) x {self.eval_completions:,} = "
            evaluated += _n(self.evaluations * self.eval_completions, "completion")
        return [
            f"a step: {_n(self.prompts, 'prompt')} x {self.rollouts} rollouts = {_n(self.completions, 'completion')}, "
            f"at most {self.sampled_at_most:,} new tokens, {self.tokens_at_most:,} with their prompts",
            f"in all: {_n(self.steps, 'step')} x {self.completions:,} = {_n(self.total, 'completion')}, "
            f"at most {self.steps * self.sampled_at_most:,} new tokens",
            seen,
            f"evaluations: {evaluated}",
        ]


@dataclass(frozen=True)
class SFTArithmetic:
    """Of SFT. `rows` of a step have `seq_len` tokens each or, unpacked, are examples of at most that many; the data set
    has `examples` of `tokens` in all (None: not known, or fresh demonstrations); a validation has `validated`."""

    rows: int
    seq_len: int
    steps: int
    packed: bool
    examples: int | None = None
    tokens: int | None = None
    evaluations: int = 0
    validated: int = 0
    checkpoints: int = 0

    @property
    def tokens_at_most(self) -> int:
        return self.rows * self.seq_len

    @property
    def total(self) -> int:
        """Rows of all steps."""
        return self.steps * self.rows

    @property
    def epochs(self) -> float | None:
        """How often each example is seen."""
        if self.packed:
            return self.steps * self.tokens_at_most / self.tokens if self.tokens else None
        return self.total / self.examples if self.examples else None

    @classmethod
    def of(cls, config: SFTConfig, examples: int | None = None, tokens: int | None = None) -> SFTArithmetic:
        data, val = config.data, config.val
        validated = val.max_examples if val else 0
        if val and examples is not None and data.env is None:  # a share of the data set is held out
            validated = min(validated, max(1, round(val.fraction * examples)))
        return cls(
            rows=data.batch_size,
            seq_len=data.seq_len,
            steps=config.max_steps,
            packed=data.pack,
            examples=examples,
            tokens=tokens,
            evaluations=_times(config.max_steps, val.interval) + 1 if val else 0,
            validated=validated,
            checkpoints=checkpoints_of(config),
        )

    def words(self) -> list[str]:
        """Return what the run does, a sentence a line."""
        unit, most = ("row", "") if self.packed else ("example", "at most ")
        lines = [
            f"a step: {_n(self.rows, unit)} of {most}{self.seq_len:,} tokens = {most}{self.tokens_at_most:,} tokens",
            f"in all: {_n(self.steps, 'step')} x {self.rows} = {_n(self.total, unit)}, "
            f"{most}{self.steps * self.tokens_at_most:,} tokens",
        ]
        if self.epochs is not None:
            lines.append(f"data: each of {_n(self.examples or 0, 'example')} is seen {self.epochs:,.1f} times")
        if self.evaluations:
            each = _n(self.validated, "example")
            lines.append(f"validations: {self.evaluations} (step 0 and the end included) of at most {each}")
        return lines


@dataclass(frozen=True)
class Lengths:
    """In tokens: means of `prompt` and `completion` (all turns of a conversation), and the longest there may be.

    `measured` says where the means come from, "" if they are guessed; `reached` is the longest completion of a batch of
    such, 0 for the longest there may be.
    """

    prompt: float
    completion: float
    longest_prompt: int
    longest_completion: int
    measured: str = ""
    reached: int = 0

    @property
    def decoded(self) -> int:
        """Tokens that a batch is sampled for."""
        return self.reached or self.longest_completion

    @property
    def sequence(self) -> float:
        return self.prompt + self.completion

    @property
    def longest(self) -> int:
        return self.longest_prompt + self.longest_completion

    @property
    def worst(self) -> Lengths:
        """All as long as the longest."""
        return replace(self, prompt=self.longest_prompt, completion=self.longest_completion, reached=0)

    @classmethod
    def of(cls, config: RLConfig | SFTConfig, turns: int = 1) -> Lengths:
        """By the config alone: the longest that it allows, and half of that on the average (a packed row is full)."""
        if isinstance(config, SFTConfig):
            mean = config.data.seq_len * (1.0 if config.data.pack else 0.5)
            return cls(0, mean, 0, config.data.seq_len)
        most = config.orchestrator.sampling.max_tokens
        new = config.seq_len * 3 // 4 if most is None else min(config.seq_len - 1, turns * most)
        prompt = config.seq_len - new
        return cls(prompt / 2, new / 2, prompt, new)


def on_held_out(config: RLConfig, held_out: int | None) -> RLConfig:
    """Return the config with an evaluation of no more examples than are held out (None: not known)."""
    evals = config.orchestrator.eval
    if evals is None or not held_out or evals.num_examples <= held_out:
        return config
    fewer = evals.model_copy(update={"num_examples": held_out})
    return config.model_copy(update={"orchestrator": config.orchestrator.model_copy(update={"eval": fewer})})


def checkpoints_of(config: RunConfig) -> int:
    """Return how many checkpoints a run to its end writes."""
    if config.ckpt is None:
        return 0
    return 1 if config.ckpt.interval is None else _times(config.max_steps, config.ckpt.interval)


def checkpoints_kept(config: RunConfig) -> int:
    """Return how many of these are on the disk at the end."""
    written, ckpt = checkpoints_of(config), config.ckpt
    if ckpt is None or ckpt.keep_last is None or written <= ckpt.keep_last:
        return written
    forever = config.max_steps // ckpt.keep_interval if ckpt.keep_interval else 0
    return min(written, ckpt.keep_last + forever)


def _times(steps: int, interval: int) -> int:
    """Return how often something happens that is due every `interval` steps and at the end, step 0 not counted."""
    return -(-steps // interval)


def _n(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
