"""How long prompts and completions are: what memory and time follow from."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hone.config.rl import RLConfig
from hone.config.sft import SFTConfig


@dataclass(frozen=True)
class Lengths:
    """In tokens. `prompt` and `completion` are means, `longest_…` what the worst case has; all turns of a conversation
    are one completion. `measured` says where the means come from, "" if they are guessed.
    """

    prompt: float
    completion: float
    longest_prompt: int
    longest_completion: int
    measured: str = ""
    reached: int = 0
    """The longest completion that a batch of such has; 0: the longest there may be."""

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
        """By the config alone: as long as it allows in the worst case; half of that, by guess, on the average."""
        if isinstance(config, SFTConfig):
            # A packed row is full, but for its end; an unpacked batch is of examples, by guess half as long as may be.
            mean = config.data.seq_len * (1.0 if config.data.pack else 0.5)
            return cls(0, mean, 0, config.data.seq_len)
        new = min(config.seq_len - 1, turns * (config.orchestrator.sampling.max_tokens or config.seq_len - 1))
        if config.orchestrator.sampling.max_tokens is None:
            new = config.seq_len * 3 // 4
        prompt = config.seq_len - new
        return cls(prompt / 2, new / 2, prompt, new)
