"""Print the table of docs/rented_gpu.md: what a run of RL with hone's engine chooses on a card, and its peak.

python scripts/memory_table.py
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from hone.config.parse import parse
from hone.config.rl import RLConfig
from hone.extensions.planning.devices import DEVICES
from hone.loops.memory import GIB, fitted, memory
from hone.model.shape import KNOWN
from hone.trainer.memory import longest

MODELS = ("Qwen3-0.6B", "Qwen2.5-1.5B", "Qwen3-4B", "Qwen3-8B")
CARDS = {"RTX 4090, 24": "rtx4090", "L40S, 48": "l40s", "H100, 80": "h100", "H200, 141": "h200"}
TRAINED = {"full": (), "LoRA 16": ("--model.lora.rank", "16")}
SAMPLERS = {"hone": (), "vLLM": ("--inference.backend", "vllm")}
FLAGS = ["--orchestrator.batch-size", "128", "--orchestrator.rollouts-per-example", "8", "--seq-len", "2048"]


class Cell(NamedTuple):
    """The config that a run resolves on a card, the most bytes that it takes there, and those that it may take."""

    row: tuple[str, str, str]
    card: str
    config: RLConfig
    needed: int
    room: int

    def words(self) -> str:
        trainer = self.config.trainer
        settings = [f"{trainer.micro_batch_tokens:,}", trainer.checkpointing, trainer.optim.state]
        settings += ["offload" * trainer.optim.offload, "no graphs" * (self.config.inference.cuda_graphs is False)]
        chosen = ", ".join(one for one in settings if one not in ("", "none", "fp32", "16,384"))
        size = f"{self.needed / GIB:.0f}" if self.needed <= self.room else f"no: {self.needed / GIB:.0f}"
        return f"{size}: {chosen}" if chosen and self.needed <= self.room else size


def cells() -> Iterator[Cell]:
    """Yield the matrix: every model, trained in full and by LoRA, with hone's engine and vLLM, on every card."""
    for model in MODELS:
        for how, trained in TRAINED.items():
            for sampler, engine in SAMPLERS.items():
                for card, name in CARDS.items():
                    config, shape = parse(RLConfig, [*FLAGS, *trained, *engine], "rl"), KNOWN[model.lower()]
                    config, _ = fitted(config, shape, "cuda", DEVICES[name].memory, *longest(config))
                    needed = memory(config, shape, "cuda", *longest(config)).total
                    yield Cell((model, how, sampler), card, config, needed, DEVICES[name].room)


def rows() -> list[str]:
    """Return the lines of the table."""
    lines = [f"| model | trained | {' | '.join(f'{card} GB' for card in CARDS)} |"]
    lines.append("|---" * (2 + len(CARDS)) + "|")
    found = [cell for cell in cells() if cell.row[2] == "hone"]
    for row in dict.fromkeys(cell.row for cell in found):
        lines.append(f"| {' | '.join([*row[:2], *(cell.words() for cell in found if cell.row == row)])} |")
    return lines


if __name__ == "__main__":
    print("\n".join(rows()))
