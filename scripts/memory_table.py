"""Print the table of docs/plan.md: the first setting with which a train step fits on a card, and its peak.

python scripts/memory_table.py
"""

from __future__ import annotations

from hone.config.sft import SFTConfig
from hone.extensions.planning.advice import leaner
from hone.loops.memory import GIB, MARGIN, memory
from hone.model.shape import KNOWN

MODELS = ("Qwen3-0.6B", "Qwen2.5-1.5B", "Qwen3-4B", "Qwen3-8B")
CARDS = (24, 48, 80, 141)
STAY = ("weights", "bf16 casts", "gradients", "optimiser")


def rows() -> list[str]:
    """Return the lines of the table: SFT at the default precision, 16,384 tokens a micro-batch."""
    config = SFTConfig.model_validate({"data": {"path": "x", "seq_len": 4096}})
    lines = [f"| model | bytes a parameter | {' | '.join(f'{card} GiB' for card in CARDS)} |"]
    lines.append("|---" * (2 + len(CARDS)) + "|")
    for name in MODELS:
        model = KNOWN[name.lower()]
        parts = memory(config, model, "cuda", 0, 4096).parts
        cells = [f"{sum(parts[part] for part in STAY) / model.parameters:.1f}"]
        for card in CARDS:
            for settings, one in leaner(config):
                needed = memory(one, model, "cuda", 0, 4096).total
                if needed <= (1 - MARGIN) * card * GIB:
                    words = ["offload" if value is True else str(value) for value in settings.values()]
                    cells.append(f"{', '.join(reversed(words))}: {needed / GIB:.0f}")
                    break
            else:
                cells.append("none fits")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


if __name__ == "__main__":
    print("\n".join(rows()))
