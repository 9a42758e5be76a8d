"""What a study shows: study.md, study.html (which needs nothing else), results.csv, and figures as SVG and PNG."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
from jinja2 import FileSystemLoader
from markupsafe import Markup

from hone import __version__
from hone.errors import UserError
from hone.evaluation.intervals import Interval
from hone.pages import environment
from hone.runs.files import write_file
from hone.studies.results import Results, Row, to_csv

PAGE, TEXT, TABLE = "study.html", "study.md", "results.csv"
_TEMPLATES = environment(FileSystemLoader(Path(__file__).parent / "templates"))


@dataclass(frozen=True)
class Table:
    """A table under a title, with a sentence on how to read it."""

    title: str
    about: str
    heads: list[str]
    rows: list[list[str]]


def write_report(results: Results) -> list[Path]:
    """Write all of it into the study's folder; return the paths. Without matplotlib the figures are left out."""
    folder, title = results.study.output_dir, results.study.output_dir.name
    tables, drawn = list(tables_of(results)), figures(results)
    files = {TABLE: to_csv(results).encode(), TEXT: markdown(title, results, tables, list(drawn)).encode()}
    for name, (svg, png) in drawn.items():
        files |= {f"{name}.svg": svg, f"{name}.png": png}
    images = [Markup(svg.decode().partition("?>")[2].partition(">")[2]) for svg, _ in drawn.values()]
    page = _TEMPLATES.get_template("study.html")
    values = {"title": title, "sentences": sentences(results), "tables": tables, "version": __version__}
    files[PAGE] = page.render(figures=images, **values).encode()
    for name, content in files.items():
        write_file(folder / name, content)
    return [folder / name for name in (PAGE, TEXT, TABLE)]


def sentences(results: Results) -> list[str]:
    """Return what was found, in words: a sentence for each cell but the baseline, the curve, and what is missing."""
    metric, found = results.study.eval.metric, []
    for row in results.rows:
        if (effect := row.effect) is None:
            continue
        change = f"{effect.mean:+.3f} {metric}{_between(effect.interval, signed=True)}"
        text = f"{row.cell.name}: {effect.verdict} beside {results.baseline} ({change}, {len(row.seeds)} seeds)."
        if effect.verdict == "no difference seen" and effect.visible:
            text += f" An effect below {effect.visible:.3f} could hardly have been seen."
        found.append(text)
    if (curve := results.curve) is not None:
        law = f"{metric} = {curve.limit:.3f} - {curve.drop:.3g} · x^-{curve.rate:.3f}, x = {results.study.x}"
        found.append(f"Fitted: {law}. It misses its points by {curve.error:.3f}, points that it has not seen by "
                     f"{curve.unseen:.3f}; it is read up to {2 * curve.highest:g}.")  # fmt: skip
    elif results.study.x is not None:
        found.append(
            f"No curve was fitted over {results.study.x}: that takes four values, and a curve that levels off."
        )
    if results.missing:
        found.append(
            f"{len(results.missing)} runs are missing: {'; '.join(f'{k} ({v})' for k, v in results.missing.items())}."
        )
    return found


def tables_of(results: Results) -> Iterator[Table]:
    """Yield the table of cells and, where there is SFT alone and RL, the one at equal cost."""
    metric = results.study.eval.metric
    about = (
        f"Held-out {metric}, mean over seeds and examples. Differences are from the baseline, {results.baseline}: "
        "their 95 % interval by a bootstrap of seeds and examples; p by Student's paired t test over seeds, corrected "
        "for the number of cells (Holm); visible: the smallest effect that so many seeds show in four of five studies."
    )
    heads = ["cell", "seeds", metric, "least", "most", "difference", "95 % interval", "p", "visible", "verdict"]
    yield Table("Cells", about, heads, [_cells(row, results.baseline) for row in results.rows])
    if results.equal:
        about = (
            "SFT alone with as many examples, tokens or seconds of the processor, interpolated between its own cells; "
            "a dash where SFT was not tried at that cost."
        )
        rows = [
            [e.cell, e.cost, f"{e.value:.3f}", _num(e.sft_alone), _num(e.sft_alone and e.value - e.sft_alone, "+.3f")]
            for e in results.equal
        ]
        yield Table("RL and SFT alone at equal cost", about, ["cell", "equal", metric, "SFT alone", "difference"], rows)
    costs = ["examples", "tokens", "seconds"]
    spent = [
        [row.cell.name, *(f"{mean(one.costs[cost] for one in row.seeds):,.0f}" for cost in costs)]
        for row in results.rows
        if row.seeds
    ]
    yield Table(
        "What the cells cost", "Mean of the seeds, all stages; seconds of the processor.", ["cell", *costs], spent
    )


def _cells(row: Row, baseline: str) -> list[str]:
    means = [mean(one.values.values()) for one in row.seeds]
    cells = [
        row.cell.name,
        str(len(means)),
        _num(row.mean),
        _num(min(means, default=None)),
        _num(max(means, default=None)),
    ]
    if (effect := row.effect) is None:
        return [*cells, "", "", "", "", "baseline" if row.cell.name == baseline else "not run yet"]
    p = "–" if effect.holm is None else "< 0.001" if effect.holm < 0.001 else f"{effect.holm:.3f}"
    interval = _between(effect.interval).strip(" ()")
    return [*cells, f"{effect.mean:+.3f}", interval, p, _num(effect.visible), effect.verdict]


def markdown(title: str, results: Results, tables: list[Table], drawn: list[str]) -> str:
    """Return study.md."""
    lines = [f"# {title}", "", *(f"- {sentence}" for sentence in sentences(results)), ""]
    for table in tables:
        lines += [f"## {table.title}", "", table.about, "", f"| {' | '.join(table.heads)} |"]
        lines += [f"|{'---|' * len(table.heads)}", *(f"| {' | '.join(row)} |" for row in table.rows), ""]
    lines += [f"![{name}]({name}.svg)" for name in drawn]
    return "\n".join(lines) + "\n"


def figures(results: Results) -> dict[str, tuple[bytes, bytes]]:
    """Draw (SVG, PNG) by name: effects with their intervals, training curves with the span of the seeds, the fit."""
    if not any(row.seeds for row in results.rows):
        return {}
    try:
        import matplotlib
    except ImportError:
        return {}
    matplotlib.use("agg")
    from matplotlib.figure import Figure

    found: dict[str, Any] = {}
    if compared := [row for row in results.rows if row.effect is not None]:
        found["effects"] = _effects(
            Figure(figsize=(7, 1 + 0.35 * len(compared)), layout="constrained"), compared, results
        )
    found["curves"] = _curves(Figure(figsize=(7, 4), layout="constrained"), results)
    if results.curve is not None:
        found["fit"] = _fit(Figure(figsize=(7, 4), layout="constrained"), results)
    with matplotlib.rc_context({"svg.hashsalt": "hone", "svg.fonttype": "none"}):
        return {name: (_saved(one, "svg"), _saved(one, "png")) for name, one in found.items()}


def _saved(figure: Any, kind: str) -> bytes:
    out = BytesIO()
    figure.savefig(out, format=kind, dpi=150, metadata={"Date": None} if kind == "svg" else {"Software": None})
    return out.getvalue()


def _effects(figure: Any, rows: list[Row], results: Results) -> Any:
    axes = figure.subplots()
    for place, row in enumerate(reversed(rows)):
        effect = row.effect
        assert effect is not None
        ends = effect.interval or Interval(effect.mean, effect.mean)
        colour = {"helps": "#2a7f3f", "hurts": "#b3261e"}.get(effect.verdict, "#666666")
        axes.plot([ends.low, ends.high], [place, place], color=colour)
        axes.plot([effect.mean], [place], "o", color=colour)
    axes.axvline(0, color="#999999", linewidth=1)
    axes.set_yticks(range(len(rows)), [row.cell.name for row in reversed(rows)])
    axes.set_xlabel(f"difference in held-out {results.study.eval.metric} from {results.baseline}, 95 % interval")
    return figure


def _curves(figure: Any, results: Results) -> Any:
    """One panel each for cells that end with SFT and with RL: the mean of the seeds, and the span between them."""
    kinds = sorted({one.last for row in results.rows for one in row.seeds})
    for axes, kind in zip(np.ravel(figure.subplots(1, len(kinds))), kinds, strict=True):
        for row in results.rows:
            curves = [one.curve for one in row.seeds if one.last == kind and one.curve]
            if not curves:
                continue
            steps = min(map(len, curves))
            seeds_SN = np.array([_smooth(curve[:steps]) for curve in curves])
            (line,) = axes.plot(seeds_SN.mean(axis=0), label=row.cell.name, linewidth=1.2)
            axes.fill_between(
                range(steps), seeds_SN.min(axis=0), seeds_SN.max(axis=0), color=line.get_color(), alpha=0.2
            )
        axes.set_xlabel(f"step of {kind.upper()}")
        axes.set_ylabel("loss, nats a token" if kind == "sft" else "training reward")
        axes.legend(fontsize="x-small")
    return figure


def _smooth(curve: list[float], width: int = 10) -> np.ndarray:
    """Return the mean of the last `width` steps at each step."""
    sums = np.cumsum([0.0, *curve])
    begins = np.maximum(np.arange(1, len(sums)) - width, 0)
    return (sums[1:] - sums[begins]) / (np.arange(1, len(sums)) - begins)


def _fit(figure: Any, results: Results) -> Any:
    axes, curve, key = figure.subplots(), results.curve, results.study.x
    assert curve is not None and key is not None
    for row in results.rows:
        for one in row.seeds:
            axes.plot([row.cell.settings[key]], [mean(one.values.values())], "o", color="#666666", markersize=4)
    x = np.geomspace(curve.lowest, 2 * curve.highest, 100)
    axes.plot(x, [curve.at(min(value, 2 * curve.highest)) for value in x], color="#1f5fa8")
    axes.set_xscale("log")
    axes.set_xlabel(key)
    axes.set_ylabel(f"held-out {results.study.eval.metric}")
    return figure


def needs_matplotlib() -> None:
    """Raise UserError if figures can't be drawn."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise UserError("the figures of a study need matplotlib: pip install 'hone[study]'") from error


def _between(interval: Interval | None, signed: bool = False) -> str:
    form = "+.3f" if signed else ".3f"
    return "" if interval is None else f" ({interval.low:{form}} to {interval.high:{form}})"


def _num(value: float | None, form: str = ".3f") -> str:
    return "–" if value is None else f"{value:{form}}"
