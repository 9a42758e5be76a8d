"""The notebook of the examples, executed by Jupyter as it is."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from hone.runs import Run

NOTEBOOK = Path(__file__).parents[1] / "examples" / "notebook.ipynb"


@pytest.mark.long
def test_the_notebook_trains_shows_how_far_it_is_and_learns(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    notebook = nbformat.read(NOTEBOOK, 4)
    NotebookClient(notebook, timeout=None, resources={"metadata": {"path": str(tmp_path)}}).execute()
    shown = ["".join(out.get("text", "") for out in cell.get("outputs", [])) for cell in notebook.cells]
    assert "step 250/250" in "".join(shown) and "held out, at step 20: last_letter reward" in "".join(shown)
    figures = [out for cell in notebook.cells for out in cell.get("outputs", []) if "data" in out]
    assert any("application/vnd.plotly.v1+json" in out["data"] for out in figures)

    assert "ALARM" not in "".join(shown)
    run = Run("outputs/letters")
    correct = run.evaluations()["eval/functions/correct"].to_pylist()
    assert correct[0] < 0.65 and correct[-1] > 0.85, correct
    assert "def last_letter" in Path("outputs/letters/rewards.py").read_text()
    assert "no other one can import last_letter" in run.info["grading"]
    assert Run("outputs/by-hand").info["status"] == "done"
    # In its own hands the loop takes the steps of `hone.rl`.
    begun, by_hand = (Run(f"outputs/{name}").hashes() for name in ("letters", "by-hand"))
    assert [line["weights"] for line in begun[:6]] == [line["weights"] for line in by_hand]
