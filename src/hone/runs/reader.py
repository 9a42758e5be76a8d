"""A run in Python: tables, curves, and its form in a notebook. Writes nothing."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hone.errors import UserError
from hone.runs.checkpoint import Checkpoints
from hone.runs.rollouts import read_rollouts, read_tokens
from hone.runs.settings import moved
from hone.runs.shown import Samples, html_table, text_table
from hone.runs.view import CHECKPOINTS, CONFIG, RunView, read_toml, rollouts_file

if TYPE_CHECKING:
    import pyarrow
    from plotly.graph_objects import Figure

_HELD_OUT = re.compile(r"eval/(.+)/reward/mean")


class Run(RunView):
    """A run on disk, also while it is being written: `Run("outputs").metrics().to_pandas()`."""

    def __init__(self, path: str | Path):
        super().__init__(path)
        _ = self.info

    def __repr__(self) -> str:
        return text_table([self._facts()])

    def _repr_html_(self) -> str:
        return html_table([self._facts()])

    def _facts(self) -> dict[str, Any]:
        from hone.runs import summary  # a run that trains does without it

        facts: dict[str, Any] = {"run": str(self.path), "kind": self.info["kind"], "status": self.info["status"]}
        try:
            one = summary.summarize(self.path, ours=True)  # this process may be the one that writes it
        except UserError:
            return facts | {"damaged": "yes"}
        steps = f"{one.progress.done}/{one.progress.max_steps or '?'}" if one.kind != "eval" else "-"
        facts |= {"task": one.task, "steps": steps, "latest": summary.latest(one) or None}
        return facts | {"held out": summary.held_out(one) or None}

    @property
    def config(self) -> dict[str, Any]:
        """The resolved config (config.toml), with current paths of files stored in the run."""
        table = read_toml(self.path / CONFIG)
        return moved(table, table.get("output_dir", ""), self.path)

    def locate(self, name: str) -> str:
        """Resolve a path of the config; a relative path starts at the run's working directory."""
        here, written = self.path.resolve(), Path(self.config.get("output_dir", ""))
        if written.is_absolute() or Path(name).exists() or here.parts[-len(written.parts) :] != written.parts:
            return name
        place = Path(*here.parts[: -len(written.parts)]) / name
        return str(place) if place.exists() else name

    def metrics(self) -> pyarrow.Table:
        """Return one row per step: int64 `step`, and a column per metric that is null where a step lacks the metric."""
        return to_table(self.metric_lines())

    def timings(self) -> pyarrow.Table:
        """Return seconds by phase, tokens/s and other timings; one row per step."""
        return to_table(self.timing_lines())

    def rollouts(self, step: int, columns: Sequence[str] | None = None) -> pyarrow.Table:
        """Return the completions of a step, one per row; columns as in `hone.runs.rollouts.schema`, by default all."""
        path = self.path / rollouts_file(step)
        if not path.exists():
            steps = self.rollout_steps()
            has = f"it has steps {steps[0]} to {steps[-1]}" if steps else "it has none"
            raise UserError(f"{self.path} has no rollouts of step {step}: {has}")
        return read_rollouts(path, columns)

    def samples(self, step: int | None = None) -> Samples:
        """Return a readable table (Arrow) of the completions of a step (default: the last step) for a notebook.

        Columns: sample_id, prompt (contents of its messages), text, answer, reward (null if grading failed), outcome,
        detail (the reason), advantage, stop_reason, and each component of the reward, unweighted.
        """
        import pyarrow as pa

        if step is None and (steps := self.rollout_steps()):
            step = steps[-1]
        columns = ["sample_id", "prompt", "text", "answer", "reward", "outcome", "detail", "advantage", "stop_reason"]
        table = self.rollouts(step or 0, [*columns, "components"])
        prompts = [text_of(json.loads(prompt)) for prompt in table["prompt"].to_pylist()]
        values = [dict(pairs or ()) for pairs in table["components"].to_pylist()]
        shown = table.select(columns).set_column(1, "prompt", pa.array(prompts, pa.string()))
        for name in dict.fromkeys(name for row in values for name in row):
            if name not in columns:
                shown = shown.append_column(name, pa.array([row.get(name) for row in values], pa.float64()))
        return Samples(shown)

    def evaluations(self) -> pyarrow.Table:
        """Return the held-out evaluations of an RL run, one per row: int64 `step` (the version), and `eval/…`."""
        lines = [
            {name: value for name, value in line.items() if name == "step" or name.startswith("eval/")}
            for line in self.metric_lines()
        ]
        return to_table([line for line in lines if line.keys() != {"step"}])

    def plot(self, *metrics: str) -> Figure:
        """Return a Plotly figure of metrics by step; by default reward, or loss, and held-out measures with their 95 %
        intervals. Raises UserError for a metric that the run does not have.
        """
        import plotly.graph_objects as go

        table = self.metrics()
        columns = {name: table[name].to_pylist() for name in table.column_names}
        steps = columns.pop("step", [])
        for name in metrics:
            if name not in columns:
                close = get_close_matches(name, columns, n=1)
                hint = f"did you mean {close[0]!r}?" if close else f"it has {', '.join(columns) or 'none yet'}"
                raise UserError(f"{self.path} has no metric {name!r}: {hint}")
        main = "reward/mean" if "reward/mean" in columns else "loss"
        usual = [name for name in columns if name in (main, "val/loss") or _HELD_OUT.fullmatch(name)]
        drawn = go.Figure()
        for name in metrics or usual:
            points = [i for i, value in enumerate(columns[name]) if value is not None]
            held_out = _HELD_OUT.fullmatch(name)
            ends = [name.replace("reward/mean", f"ci95/{end}") for end in ("low", "high")]
            bars = None
            if held_out and columns.keys() >= {*ends}:
                low, high = ([abs(columns[end][i] - columns[name][i]) for i in points] for end in ends)
                bars = {"type": "data", "symmetric": False, "array": high, "arrayminus": low}
            drawn.add_scatter(
                x=[steps[i] for i in points],
                y=[columns[name][i] for i in points],
                name=f"{held_out[1]}, held out" if held_out else name,
                error_y=bars,
                mode="lines+markers" if name.startswith(("eval/", "val/")) else "lines",
            )
        drawn.update_layout(title=str(self.path), xaxis_title="step", template="plotly_white")
        return drawn

    def token_stats(self, step: int) -> pyarrow.Table | None:
        """Return the train step's `entropies` and `trainer_logprobs`, or None if they were not recorded. The rows are
        as in `rollouts(step)`, with one number per sampled token; null if the completion was not trained on.
        """
        return read_tokens(self.path, step)

    def ledger(self) -> list[dict[str, Any]]:
        """Return a record for every draw of an RL run: draw, step, example_id, state, tokens.

        `source` is `checkpoint`, or `rollouts` for steps since the newest checkpoint, which a resume would repeat.
        """
        from hone.runs.draws import read_draws

        return read_draws(self)

    @property
    def checkpoints(self) -> Checkpoints:
        return Checkpoints(self.path / CHECKPOINTS)


def text_of(messages: Sequence[Mapping[str, Any]]) -> str:
    return "\n\n".join(str(message.get("content") or "") for message in messages)


def to_table(records: list[dict[str, Any]]) -> pyarrow.Table:
    """Return records of numbers as an Arrow table. Columns are in order of appearance; int64 if all values are ints."""
    import pyarrow as pa

    columns = {}
    for name in dict.fromkeys(name for record in records for name in record):
        values = [record.get(name) for record in records]
        if {type(value) for value in values if value is not None} == {int}:
            columns[name] = pa.array(values, pa.int64())
        else:
            columns[name] = pa.array([None if value is None else float(value) for value in values], pa.float64())
    return pa.table(columns)
