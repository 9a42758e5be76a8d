"""Print the part of benchmarks/README.md on GPUs: what was measured, beside what hone aims at.

    python scripts/gpu_table.py

It is a table of benchmarks/results/gpu/*.json, which benchmarks/gpu/run.py writes, with a column for each.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parents[1] / "benchmarks/results/gpu"
NOT_MEASURED = "not measured"
SMALL, LARGE = "qwen3-0.6b", "qwen2.5-1.5b"
Record = dict[str, Any]


def figures(record: Record, stage: str) -> Any:
    """Return a stage's figures. Raises KeyError if it has none."""
    return record["stages"][stage]["figures"]


def both(record: Record, stage: str) -> list[Any]:
    """Return the figures of a stage and of the one with compiled variants, as far as they are there."""
    stages = record["stages"]
    return [stages[name]["figures"] for name in (stage, f"compiled {stage}") if name in stages]


def parity(record: Record) -> str:
    logits = figures(record, "parity")["logits"].values()
    return f"{max(family['hone fp32 - transformers fp32'] for family in logits):.0e}"


def within(record: Record) -> str:
    """Count the gaps of the engine that are within their bounds, of all precisions and variants; not if one raised."""
    depths = [depth for found in both(record, "parity") for depth in found.get("gap", {}).values()]
    gaps = [gap for depth in depths for variants in depth.values() for gap in variants.values()]
    return f"{sum(gap.get('within', False) for gap in gaps)} of {len(gaps)}"


def fastest(record: Record, shape: str, batch: int) -> tuple[str, Any]:
    """Return the variant of the engine that samples the most tokens/s at this batch, and its figures."""
    stages = both(record, f"sampling {shape}")
    variants = {name: of for found in stages for name, of in found.get("batches", {}).get(str(batch), {}).items()}
    return max(
        ((name, of) for name, of in variants.items() if "tokens_per_second" in of),
        key=lambda one: one[1]["tokens_per_second"],
    )


def sampled(shape: str, batch: int) -> Callable[[Record], str]:
    return lambda record: f"{fastest(record, shape, batch)[1]['tokens_per_second']:,.0f} tokens/s"


def share(shape: str, batch: int) -> Callable[[Record], str]:
    return lambda record: f"{100 * fastest(record, shape, batch)[1]['share_of_limit']:.0f} %"


def speedup(variant: str) -> Callable[[Record], str]:
    """Return how many times as fast as transformers hone's engine samples at batch 128."""
    stage = ("" if variant == "default" else "compiled ") + f"transformers {SMALL}"

    def cell(record: Record) -> str:
        theirs = figures(record, stage)["batches"]["128"][variant]["tokens_per_second"]
        return f"{fastest(record, SMALL, 128)[1]['tokens_per_second'] / theirs:.1f} ×"

    return cell


def mfu(shape: str, segments: str) -> Callable[[Record], str]:
    def cell(record: Record) -> str:
        variants = figures(record, f"training {shape}")["segments"][segments]
        return ", ".join(f"{100 * variants[name]['rl']['mfu']:.0f} %" for name in ("bf16_linear", "bf16"))

    return cell


def step(shape: str) -> Callable[[Record], str]:
    def cell(record: Record) -> str:
        steps = figures(record, f"rl {shape}")["steps"]
        return ", ".join(f"{steps[name]['seconds_per_step']:.2f} s" for name in ("bf16_linear", "bf16"))

    return cell


def against_plan(shape: str) -> Callable[[Record], str]:
    """Return the most memory that torch reserved in RL, beside what the plan says."""

    def cell(record: Record) -> str:
        steps = figures(record, f"rl {shape}")["steps"]["bf16_linear"]
        return f"{steps['peak_reserved_bytes'] / 2**30:.1f} of {steps['planned_bytes'] / 2**30:.1f} GiB"

    return cell


def captures(record: Record) -> str:
    return ", ".join(map(str, figures(record, f"rl {SMALL}")["steps"]["bf16_linear"]["captures"]))


def updated(record: Record) -> str:
    found = figures(record, f"update {SMALL}")["bf16_linear"]
    return f"{found['load_seconds']:.2f} + {found['swap_seconds']:.2f} s"


def vllm(record: Record) -> str:
    return f"{figures(record, f'vllm {SMALL}')['batches']['128']['tokens_per_second']:,.0f} tokens/s"


def ragged(record: Record) -> str:
    return f"{figures(record, f'sampling {SMALL}')['ragged']['decoded_tokens_per_second']:,.0f} tokens/s"


def head_share(record: Record) -> str:
    variants = figures(record, f"training {SMALL}")["segments"]["64 x 256"]
    return ", ".join(f"{100 * variants[name]['head_share']:.0f} %" for name in ("bf16_linear", "bf16"))


def quickstart(record: Record) -> str:
    after = figures(record, "quickstart")["after SFT + RL"]
    return f"{after['reward/mean']:.2f} in {after['train_seconds']:.0f} s"


def exact(record: Record) -> str:
    return "yes" if figures(record, "resume")["exact"] else "no"


def cost(mode: str) -> Callable[[Record], str]:
    return lambda record: f"{figures(record, 'modes')['cost'][mode]:.1f} ×"


def peak(stage: str) -> Callable[[Record], str]:
    return lambda record: f"{record['stages'][stage]['peak_memory_bytes'] / 2**30:.0f} GiB"


ROWS: list[tuple[str, str, Callable[[Record], str]]] = [
    ("logits against transformers, fp32, largest difference", "", parity),
    ("gaps of engine and trainer within their bounds", "all", within),
    *((f"sampling, 0.6B, batch {batch}", "", sampled(SMALL, batch)) for batch in (16, 128, 512)),
    ("share of the bandwidth limit in sampling, 0.6B, batch 128", "≥ 50 %", share(SMALL, 128)),
    ("sampling against transformers' `generate`, 0.6B, batch 128", "≥ 8 ×", speedup("default")),
    ("sampling against that compiled, with a static cache", "", speedup("static, compiled")),
    ("sampling, 0.6B, vLLM, batch 128", "", vllm),
    ("decoding, 0.6B, 64 contexts of 1k to 4k tokens", "", ragged),
    *((f"sampling, 1.5B, batch {batch}", "", sampled(LARGE, batch)) for batch in (16, 128, 512)),
    ("share of the bandwidth limit in sampling, 1.5B, batch 128", "", share(LARGE, 128)),
    ("MFU of an RL train step, 0.6B, 1 × 16,384 tokens", "≥ 40 %", mfu(SMALL, "1 x 16384")),
    ("MFU of an RL train step, 0.6B, 64 × 256 tokens", "", mfu(SMALL, "64 x 256")),
    ("MFU of an RL train step, 1.5B, 1 × 16,384 tokens", "≥ 40 %", mfu(LARGE, "1 x 16384")),
    ("share of the vocabulary head in it, 0.6B, 64 × 256 tokens", "", head_share),
    ("RL step, 0.6B, 8 × 16 × 128 tokens", "≤ 1.5 s", step(SMALL)),
    ("RL step, 1.5B, 4 × 4 × 512 tokens", "≤ 3 s", step(LARGE)),
    ("CUDA graphs recorded in each RL step, 0.6B", "0 from the third", captures),
    ("memory reserved in RL of 0.6B, and planned", "", against_plan(SMALL)),
    ("memory reserved in RL of 1.5B, and planned", "", against_plan(LARGE)),
    ("new weights for a server, 0.6B: read + copied", "", updated),
    ("cost of `deterministic`, of a step", "", cost("deterministic")),
    ("cost of `batch_invariant`, of a step", "", cost("batch-invariant")),
    ("killed and resumed: the same bytes", "yes", exact),
    ("quickstart: held-out reward, training", "≥ 0.85", quickstart),
    ("peak memory, training 0.6B", "", peak(f"training {SMALL}")),
    ("peak memory, RL of 0.6B", "", peak(f"rl {SMALL}")),
    ("peak memory, RL of 1.5B", "", peak(f"rl {LARGE}")),
]
"""What was measured, hone's aim on one H200, and the cell of a record."""


def cell(of: Callable[[Record], str], record: Record) -> str:
    """Return a cell; a stage that failed or was ended may lack its figure."""
    try:
        return of(record)
    except (KeyError, ValueError):
        return NOT_MEASURED


def rows(records: list[Record]) -> list[str]:
    """Return the lines of the table, with a column for each record."""
    if not records:
        return ["No GPU has been measured yet."]
    names = [str(record["gpu"]) for record in records]
    lines = [f"| | aim, one H200 | {' | '.join(names)} |", "|---" * (2 + len(names)) + "|"]
    for name, aim, of in ROWS:
        lines.append(f"| {name} | {aim} | {' | '.join(cell(of, record) for record in records)} |")
    return lines


def recorded() -> list[Record]:
    """Return the records of all GPUs."""
    records = [json.loads(file.read_text()) for file in sorted(RESULTS.glob("*.json"))]
    assert not any(record["tiny"] for record in records), "toys say nothing of a GPU"
    return records


if __name__ == "__main__":
    print("\n".join(rows(recorded())))
