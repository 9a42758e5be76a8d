"""A run's metrics as a Plotly figure, which a notebook shows and `write_html` saves."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence

import plotly.graph_objects as go

from hone.errors import UserError
from hone.runs.reader import Run

_HELD_OUT = re.compile(r"eval/(.+)/reward/mean")


def figure(run: Run, metrics: Sequence[str] = ()) -> go.Figure:
    """The metrics by step; without names reward and held-out reward of RL, loss and validation loss of SFT.

    Held-out rewards have their 95 % intervals. UserError for a metric that the run does not have.
    """
    table = run.metrics()
    known = [name for name in table.column_names if name != "step"]
    usual = [name for name in known if name in ("reward/mean", "loss", "val/loss") or _HELD_OUT.fullmatch(name)]
    usual = [name for name in usual if name != "loss" or "reward/mean" not in known]
    for name in metrics:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"it has {', '.join(known) or 'none yet'}"
            raise UserError(f"{run.path} has no metric {name!r}: {hint}")
    steps = table["step"].to_pylist() if "step" in table.column_names else []
    shown = go.Figure()
    for name in metrics or usual:
        points = [i for i, value in enumerate(table[name].to_pylist()) if value is not None]
        held_out = _HELD_OUT.fullmatch(name)
        bars = _interval(table, held_out[1], points) if held_out else None
        x, y = ([column[i] for i in points] for column in (steps, table[name].to_pylist()))
        few = name.startswith(("eval/", "val/"))
        label = f"{held_out[1]}, held out" if held_out else name
        shown.add_scatter(x=x, y=y, name=label, error_y=bars, mode="lines+markers" if few else "lines")
    shown.update_layout(title=str(run.path), xaxis_title="step", template="plotly_white")
    return shown


def _interval(table, env: str, points: Sequence[int]) -> dict | None:
    """Error bars of the 95 % interval, above and below the mean."""
    names = [f"eval/{env}/{name}" for name in ("reward/mean", "ci95/low", "ci95/high")]
    if any(name not in table.column_names for name in names):
        return None
    mean, low, high = (table[name].to_pylist() for name in names)
    above, below = [high[i] - mean[i] for i in points], [mean[i] - low[i] for i in points]
    return {"type": "data", "symmetric": False, "array": above, "arrayminus": below}
