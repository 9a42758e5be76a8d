"""The work of a run: number of steps, and lengths of sequences."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hone.config.rl import RLConfig
from hone.config.sft import SFTConfig
from hone.config.shared import RunConfig
from hone.trainer.memory import longest


@dataclass(frozen=True)
class Steps:
    """The number of steps, and how much a step processes.

    A step has `rows`: completions in RL, packed rows or examples in SFT. It has up to `tokens_at_most` tokens, and
    samples up to `sampled_at_most` new tokens. `pool` is the number of prompts or examples. A run sees each one
    `epochs` times (None if unknown). `evaluated` is the number of rows in one evaluation.
    """

    steps: int
    rows: int
    tokens_at_most: int
    prompts: int = 0
    sampled_at_most: int = 0
    pool: int | None = None
    epochs: float | None = None
    evaluations: int = 0
    evaluated: int = 0
    checkpoints: int = 0

    @property
    def total(self) -> int:
        return self.steps * self.rows

    @property
    def draws(self) -> int:
        """Number of prompts drawn in all steps, with repetitions."""
        return self.steps * self.prompts

    @classmethod
    def of(
        cls, config: RLConfig | SFTConfig, pool: int | None = None, turns: int = 1, tokens: int | None = None
    ) -> Steps:
        """Count the steps of a config, for `pool` prompts of up to `turns` turns, or for `pool` examples with `tokens`
        tokens in all.
        """
        steps, checkpoints = config.max_steps, checkpoints_of(config)
        if isinstance(config, SFTConfig):
            data, val = config.data, config.val
            a_step, epochs, validated = data.batch_size * data.seq_len, None, val.max_examples if val else 0
            if data.pack and tokens:
                epochs = steps * a_step / tokens
            elif not data.pack and pool:
                epochs = steps * data.batch_size / pool
            if val and pool is not None and data.env is None:  # a share of the data set is held out
                validated = min(validated, max(1, round(val.fraction * pool)))
            evaluations = _times(steps, val.interval) + 1 if val else 0
            return cls(steps, data.batch_size, a_step, 0, 0, pool, epochs, evaluations, validated, checkpoints)
        orch, evals, longest = config.orchestrator, config.orchestrator.eval, config.seq_len - 1
        prompts = orch.batch_size // orch.rollouts_per_example
        pool = min((n for n in (pool, orch.max_examples) if n is not None), default=None)
        return cls(
            steps=steps,
            rows=orch.batch_size,
            tokens_at_most=orch.batch_size * config.seq_len,
            prompts=prompts,
            sampled_at_most=orch.batch_size * min(longest, turns * (config.most_tokens or longest)),
            pool=pool,
            epochs=steps * prompts / pool if pool else None,
            evaluations=_times(steps, evals.interval) + 1 if evals else 0,
            evaluated=evals.num_examples * evals.rollouts_per_example * len(config.eval_tasks()) if evals else 0,
            checkpoints=checkpoints,
        )

    def words(self, config: RLConfig | SFTConfig) -> list[str]:
        steps, often = _n(self.steps, "step"), "" if self.epochs is None else f"{self.epochs:,.1f} times"
        times = f"{self.evaluations} (step 0 and the end included)"
        if isinstance(config, SFTConfig):
            unit, most = ("row", "") if config.data.pack else ("example", "at most ")
            lines = [
                f"a step: {_n(self.rows, unit)} of {most}{config.data.seq_len:,} tokens = "
                f"{most}{self.tokens_at_most:,} tokens",
                f"in all: {steps} x {self.rows} = {_n(self.total, unit)}, "
                f"{most}{self.steps * self.tokens_at_most:,} tokens",
            ]
            if often:
                lines.append(f"data: each of {_n(self.pool or 0, 'example')} is seen {often}")
            if self.evaluations:
                lines.append(f"validations: {times} of at most {_n(self.evaluated, 'example')}")
            return lines
        if self.epochs is None:
            seen = f"prompts drawn: {self.draws:,} (of an unknown number)"
        elif self.epochs < 1:
            seen = f"prompts drawn: {self.draws:,} of {self.pool:,}, each at most once"
        else:
            often = "once" if self.epochs == 1 else often.replace(".0 ", " ")
            seen = f"prompts drawn: {self.draws:,}; each of the {self.pool:,} is seen {often}"
        evaluated = "none"
        if self.evaluations:
            evaluated = f"{times} x {self.evaluated:,} = {_n(self.evaluations * self.evaluated, 'completion')}"
        refill, most = config.orchestrator.refill, config.orchestrator.most_groups
        more = [f"refill: a step samples further prompts, up to {most:,} in all; the lines below leave these out"]
        return [
            f"a step: {_n(self.prompts, 'prompt')} x {config.orchestrator.rollouts_per_example} rollouts = "
            f"{_n(self.rows, 'completion')}, at most {self.sampled_at_most:,} new tokens, {self.tokens_at_most:,} with "
            "their prompts",
            *(more if refill else []),
            f"in all: {steps} x {self.rows:,} = {_n(self.total, 'completion')}, "
            f"at most {self.steps * self.sampled_at_most:,} new tokens",
            seen,
            f"evaluations: {evaluated}",
        ]


@dataclass(frozen=True)
class Lengths:
    """Mean lengths, in tokens, of prompts and completions (all turns of a conversation), and the largest possible ones.

    `measured` names the source of the means, "" if they are guessed. `reached` is the length of the longest completion
    of a batch; 0 means the largest possible length. `turns` is the turn limit of a conversation.
    """

    prompt: float
    completion: float
    longest_prompt: int
    longest_completion: int
    measured: str = ""
    reached: int = 0
    turns: int = 1

    @property
    def decoded(self) -> int:
        return self.reached or self.longest_completion

    @property
    def sequence(self) -> float:
        return self.prompt + self.completion

    @property
    def longest(self) -> int:
        return self.longest_prompt + self.longest_completion

    @property
    def worst(self) -> Lengths:
        return replace(self, prompt=self.longest_prompt, completion=self.longest_completion, reached=0)

    def for_memory(self, config: RLConfig | SFTConfig) -> tuple[int, int, int]:
        """Return (prompt length, completion length, turns) of a batch: the largest lengths or, if SFT examples were
        measured, the means.
        """
        lengths = self if isinstance(config, SFTConfig) and self.measured else self.worst
        return int(lengths.prompt), int(lengths.completion), self.turns

    @classmethod
    def of(cls, config: RLConfig | SFTConfig, turns: int = 1) -> Lengths:
        """Guess lengths from the config: a mean is half of the largest length or, for packed rows, the whole length."""
        prompt, new = longest(config, turns)
        share = 1.0 if isinstance(config, SFTConfig) and config.data.pack else 0.5
        return cls(share * prompt, share * new, prompt, new, turns=turns)


def checkpoints_of(config: RunConfig) -> int:
    if config.ckpt is None:
        return 0
    return 1 if config.ckpt.interval is None else _times(config.max_steps, config.ckpt.interval)


def retained_checkpoints(config: RunConfig) -> int:
    written, ckpt = checkpoints_of(config), config.ckpt
    if ckpt is None or ckpt.keep_last is None or written <= ckpt.keep_last:
        return written
    forever = config.max_steps // ckpt.keep_interval if ckpt.keep_interval else 0
    return min(written, ckpt.keep_last + forever)


def _times(steps: int, interval: int) -> int:
    """Count the steps from 1 to `steps` that are a multiple of `interval`, or the last step."""
    return -(-steps // interval)


def _n(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
