"""How much a run does: what a step is made of, and what all steps come to."""

from __future__ import annotations

from dataclasses import dataclass

from hone.config.rl import RLConfig
from hone.config.sft import SFTConfig
from hone.config.shared import RunConfig


@dataclass(frozen=True)
class StepArithmetic:
    """Of a run of RL. `tokens_at_most` of a step count a prompt with each completion of it, as `tokens/total` does."""

    prompts: int
    rollouts: int
    steps: int
    tokens_at_most: int
    sampled_at_most: int
    """Most new tokens of a step."""
    pool: int | None = None
    """Training prompts; None where that is not known."""
    evaluations: int = 0
    eval_completions: int = 0
    """Of one evaluation."""
    checkpoints: int = 0

    @property
    def completions(self) -> int:
        return self.prompts * self.rollouts

    @property
    def total(self) -> int:
        """Completions that are trained on, in all steps."""
        return self.steps * self.completions

    @property
    def draws(self) -> int:
        """Prompts drawn in all steps, those that come again counted again."""
        return self.steps * self.prompts

    @property
    def epochs(self) -> float | None:
        """How often each prompt of the pool is drawn."""
        return self.draws / self.pool if self.pool else None

    @classmethod
    def of(cls, config: RLConfig, pool: int | None = None, turns: int = 1) -> StepArithmetic:
        """Of a config whose pool has `pool` prompts, each a conversation of at most `turns` turns."""
        orch = config.orchestrator
        size = orch.batch_size
        longest = config.seq_len - 1
        new = min(longest, turns * (orch.sampling.max_tokens or longest))
        evals = orch.eval
        known = [n for n in (pool, orch.max_examples) if n is not None]
        return cls(
            prompts=size // orch.rollouts_per_example,
            rollouts=orch.rollouts_per_example,
            steps=config.max_steps,
            tokens_at_most=size * config.seq_len,
            sampled_at_most=size * new,
            pool=min(known) if known else None,
            evaluations=times_of(config.max_steps, evals.interval) + 1 if evals else 0,
            eval_completions=evals.num_examples * evals.rollouts_per_example if evals else 0,
            checkpoints=checkpoints_of(config),
        )

    def words(self) -> list[str]:
        """What the run does, a sentence a line."""
        lines = [
            f"a step: {_n(self.prompts, 'prompt')} x {self.rollouts} rollouts = {_n(self.completions, 'completion')}, "
            f"at most {self.sampled_at_most:,} new tokens, {self.tokens_at_most:,} with their prompts",
            f"in all: {_n(self.steps, 'step')} x {self.completions:,} = {_n(self.total, 'completion')}, "
            f"at most {self.steps * self.sampled_at_most:,} new tokens",
            self._seen(),
        ]
        if self.evaluations:
            lines.append(
                f"evaluations: {self.evaluations} (step 0 and the end included) x {self.eval_completions:,} = "
                f"{_n(self.evaluations * self.eval_completions, 'completion')}"
            )
        else:
            lines.append("evaluations: none")
        return lines

    def _seen(self) -> str:
        if self.epochs is None:
            return f"prompts drawn: {self.draws:,} (how many the task has is not known here)"
        if self.epochs < 1:
            share = f"{100 * self.epochs:.0f} %"
            return f"prompts drawn: {self.draws:,} of {self.pool:,}, each at most once ({share} of them)"
        often = "once" if self.epochs == 1 else f"{self.epochs:,.1f} times".replace(".0 ", " ")
        return f"prompts drawn: {self.draws:,}; each of the {self.pool:,} is seen {often}"


@dataclass(frozen=True)
class SFTArithmetic:
    """Of a run of SFT. `rows` of a step have `seq_len` tokens each, or, unpacked, are examples of at most that many."""

    rows: int
    seq_len: int
    steps: int
    packed: bool
    examples: int | None = None
    """Rows of the data set; None for an environment, whose demonstrations are fresh, or if it isn't known."""
    tokens: int | None = None
    """Tokens of the whole data set, where it could be read."""
    evaluations: int = 0
    validated: int = 0
    """Most examples of one validation."""
    checkpoints: int = 0

    @property
    def tokens_at_most(self) -> int:
        return self.rows * self.seq_len

    @property
    def total(self) -> int:
        """Rows in all steps."""
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
        return cls(
            rows=data.batch_size,
            seq_len=data.seq_len,
            steps=config.max_steps,
            packed=data.pack,
            examples=examples,
            tokens=tokens,
            evaluations=times_of(config.max_steps, val.interval) + 1 if val else 0,
            validated=_validated(config, examples),
            checkpoints=checkpoints_of(config),
        )

    def words(self) -> list[str]:
        """What the run does, a sentence a line."""
        unit = "row" if self.packed else "example"
        most = "" if self.packed else "at most "
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


def _validated(config: SFTConfig, examples: int | None) -> int:
    """Most examples of one validation; of a data set a share is held out, of an environment another split."""
    if config.val is None:
        return 0
    if examples is None or config.data.env is not None:
        return config.val.max_examples
    return min(config.val.max_examples, max(1, round(config.val.fraction * examples)))


def on_held_out(config: RLConfig, held_out: int | None) -> RLConfig:
    """The config with an evaluation of no more examples than are held out (None: not known)."""
    evals = config.orchestrator.eval
    if evals is None or not held_out or evals.num_examples <= held_out:
        return config
    fewer = evals.model_copy(update={"num_examples": held_out})
    return config.model_copy(update={"orchestrator": config.orchestrator.model_copy(update={"eval": fewer})})


def checkpoints_of(config: RunConfig) -> int:
    """Checkpoints that a run to its end writes."""
    if config.ckpt is None:
        return 0
    return 1 if config.ckpt.interval is None else -(-config.max_steps // config.ckpt.interval)


def checkpoints_kept(config: RunConfig) -> int:
    """Of these, how many are on the disk at the end."""
    written, ckpt = checkpoints_of(config), config.ckpt
    if ckpt is None or ckpt.keep_last is None or written <= ckpt.keep_last:
        return written
    forever = config.max_steps // ckpt.keep_interval if ckpt.keep_interval else 0
    return min(written, ckpt.keep_last + forever)


def times_of(steps: int, interval: int) -> int:
    """How often something happens that is due at step 0, every `interval` steps and at the end, step 0 not counted."""
    return -(-steps // interval)


def _n(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
