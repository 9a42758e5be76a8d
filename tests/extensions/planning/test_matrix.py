"""Every model of the documentation's table, trained and sampled in each way, on every card of it."""

from __future__ import annotations

import runpy
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.needs("vllm")
SCRIPT = Path(__file__).parents[3] / "scripts" / "memory_table.py"


@pytest.fixture(scope="module")
def cells() -> list[Any]:
    return list(runpy.run_path(str(SCRIPT))["cells"]())


def lean(config: Any) -> bool:
    """Return True if the run has the settings that take least."""
    trainer = config.trainer
    optimiser = trainer.optim.offload or config.model.lora is not None
    graphs = config.samples_here and config.inference.cuda_graphs
    return (trainer.micro_batch_tokens, trainer.checkpointing, optimiser, bool(graphs)) == (2048, "layer", True, False)


def test_a_cell_fits_or_has_what_takes_least(cells: list[Any]) -> None:
    assert len(cells) == 4 * 4 * 2 * 2
    for cell in cells:
        assert cell.needed <= cell.room or lean(cell.config), (cell.row, cell.card)
        assert cell.words().startswith("no: ") == (cell.needed > cell.room)


def test_a_larger_card_has_no_leaner_settings(cells: list[Any]) -> None:
    """By (checkpointing, optimiser): smaller micro-batches come before more of either."""

    def rank(config: Any) -> tuple[int, int, int]:
        trainer, graphs = config.trainer, config.inference.cuda_graphs is False
        optimiser = 2 * trainer.optim.offload + (trainer.optim.state == "8bit")
        return optimiser, graphs, ["none", "selective", "layer"].index(trainer.checkpointing)

    for small, large in pairwise(cells):
        if small.row == large.row:
            assert rank(small.config) >= rank(large.config), (small.row, small.card)


def test_what_trains_where_with_hones_engine(cells: list[Any]) -> None:
    """The smallest card of each model."""
    first: dict[tuple[str, str], str] = {}
    for cell in cells:
        if cell.row[2] == "hone" and cell.needed <= cell.room:
            first.setdefault(cell.row[:2], cell.card)
    full = {"Qwen3-0.6B": "24", "Qwen2.5-1.5B": "24", "Qwen3-4B": "48", "Qwen3-8B": "141"}
    assert {model: first[model, "full"].split()[-1] for model in full} == full
    assert {first[model, "LoRA 16"].split()[-1] for model in full} == {"24"}
