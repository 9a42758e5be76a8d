"""Learning curves as a picture: training reward (or loss) and held-out evaluations with their 95 % intervals.

The same runs give the same bytes: no date, fixed ids, text as outlines.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from hone.errors import UserError
from hone.runs.reader import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes

STYLE: dict[Any, Any] = {
    "svg.hashsalt": "hone",
    "svg.fonttype": "path",
    "font.family": "DejaVu Sans",
    "font.size": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#8a94a6",
    "axes.labelcolor": "#3a4252",
    "axes.titlecolor": "#1d2430",
    "text.color": "#1d2430",
    "xtick.color": "#5a6475",
    "ytick.color": "#5a6475",
    "grid.color": "#e4e8ee",
    "legend.frameon": False,
}
_COLORS = ("#2563c9", "#12876a", "#8b45c4", "#b3591d", "#52606d")
_HELD_OUT = "#d9480f"


def reward_curve(run_dirs: Sequence[str | Path], out_path: str | Path, title: str = "") -> Path:
    """Draw the runs to `out_path` (.svg or .png): a panel of losses for SFT runs, one of rewards for RL runs."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    runs = [Run(path) for path in run_dirs]
    panels = [(draw, group) for draw, kind in ((_losses, "sft"), (_rewards, "rl")) if (group := _of_kind(runs, kind))]
    if not panels:
        raise UserError("there is nothing to draw: name run directories of `hone sft` or `hone rl`")
    out_path = Path(out_path)
    out_path.parent.mkdir(parents=True, exist_ok=True)
    with rc_context(STYLE):
        figure = Figure(
            figsize=(4.6 if len(panels) == 2 else 7.0, 6.4 if len(panels) == 2 else 3.8), layout="constrained"
        )
        FigureCanvasAgg(figure)
        for axes, (draw, group) in zip(np.atleast_1d(figure.subplots(len(panels), 1)), panels, strict=True):
            draw(axes, group)
        if title:
            figure.suptitle(title, fontsize=13, fontweight="bold")
        metadata: dict[str, Any] = {"Date": None} if out_path.suffix == ".svg" else {"Software": None}
        figure.savefig(out_path, metadata=metadata, dpi=150, facecolor="white")
    return out_path


def _of_kind(runs: Sequence[Run], kind: str) -> list[Run]:
    return [run for run in runs if run.info["kind"] == kind]


def _series(run: Run, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Steps and values of a metric, without the steps that lack it."""
    table = run.metrics()
    if name not in table.column_names:
        return np.zeros(0), np.zeros(0)
    steps, values = table["step"].to_numpy(), table[name].to_numpy().astype(float)
    return steps[np.isfinite(values)], values[np.isfinite(values)]


def smoothed(values: np.ndarray, window: int) -> np.ndarray:
    """Centred moving mean; at the ends over what of the window there is."""
    sums = np.concatenate([[0.0], np.cumsum(values)])
    index = np.arange(len(values))
    low, high = np.maximum(index - window // 2, 0), np.minimum(index + window // 2 + 1, len(values))
    return (sums[high] - sums[low]) / (high - low)


def _training(axes: Axes, runs: list[Run], metric: str, label: str) -> None:
    """A thin raw line and its smoothed one for each run."""
    for i, run in enumerate(runs):
        steps, values = _series(run, metric)
        color = _COLORS[i % len(_COLORS)]
        axes.plot(steps, values, color=color, alpha=0.25, linewidth=0.9)
        name = label if len(runs) == 1 else f"{label}, {run.path.name}"
        axes.plot(steps, smoothed(values, max(5, len(values) // 15)), color=color, linewidth=2.0, label=name)


def _losses(axes: Axes, runs: list[Run]) -> None:
    _training(axes, runs, "loss", "training loss, smoothed")
    for run in runs:
        steps, values = _series(run, "val/loss")
        axes.plot(
            steps,
            values,
            "o-",
            color=_HELD_OUT,
            markersize=4,
            label="validation loss" if run is runs[0] and len(steps) else None,
        )
    axes.set_ylabel("loss (nats per token)")
    axes.set_ylim(bottom=0)
    _finish(axes, "SFT", "upper right")


def _rewards(axes: Axes, runs: list[Run]) -> None:
    _training(axes, runs, "reward/mean", "training reward, smoothed")
    for i, run in enumerate(runs):
        for env in _environments(run):
            _held_out(axes, run, env, color=_COLORS[i % len(_COLORS)] if len(runs) > 1 else "", first=i == 0)
    if axes.dataLim.y0 >= -0.02 and axes.dataLim.y1 <= 1.02:
        axes.set_ylim(0, 1.04)
    axes.set_ylabel("reward")
    _finish(axes, "RL", "lower right")


def _environments(run: Run) -> list[str]:
    names = run.metrics().column_names
    return [
        n.removeprefix("eval/").removesuffix("/reward/mean")
        for n in names
        if n.startswith("eval/") and n.endswith("/reward/mean")
    ]


def _held_out(axes: Axes, run: Run, env: str, color: str, first: bool) -> None:
    """Points with their intervals. A run on its own has no `color`: its first and last point get their value."""
    steps, values = _series(run, f"eval/{env}/reward/mean")
    low, high = (_series(run, f"eval/{env}/ci95/{end}")[1] for end in ("low", "high"))
    if not len(steps):
        return
    errors = np.maximum([values - low, high - values], 0) if len(low) == len(high) == len(values) else None
    axes.errorbar(
        steps, values, yerr=errors, fmt="o", color=color or _HELD_OUT, markersize=5, capsize=3, linewidth=1.4, zorder=3,
        label=f"held out, {env} (95 % interval)" if first else None,
    )  # fmt: skip
    for i, offset, side in () if color else ((0, 8, "left"), (-1, 6, "right")):
        axes.annotate(
            f"{values[i]:.3f}", (steps[i], values[i]), xytext=(offset, -17), textcoords="offset points",
            ha=side, color=_HELD_OUT, fontweight="bold", fontsize=10,
        )  # fmt: skip


def _finish(axes: Axes, title: str, legend: Literal["upper right", "lower right"]) -> None:
    axes.set_title(title, loc="left", fontsize=11)
    axes.set_xlabel("step")
    axes.set_xlim(left=-0.015 * axes.get_xlim()[1])
    axes.grid(True, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.legend(loc=legend, fontsize=9)
