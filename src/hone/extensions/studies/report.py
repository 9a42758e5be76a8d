"""The report of a study: study.md, study.html (one file), results.csv, and figures as SVG and PNG."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
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
from hone.extensions.studies.analysis import POWER
from hone.extensions.studies.cells import one_line
from hone.extensions.studies.results import COSTS, NOT_RUN, Results, Row, SeedResult, to_csv
from hone.pages import environment
from hone.runs.files import write_file

PAGE, TEXT, TABLE = "study.html", "study.md", "results.csv"
COLOURS = {"helps": "#2a7f3f", "hurts": "#b3261e"}
_TEMPLATES = environment(FileSystemLoader(Path(__file__).parent / "templates"))


@dataclass(frozen=True)
class Table:
    title: str
    about: str
    heads: list[str]
    rows: list[list[str]]


def write_report(results: Results) -> None:
    folder = results.study.output_dir
    title = one_line(folder.name)
    tables, drawn = list(tables_of(results)), figures(results)
    files = {TABLE: to_csv(results).encode(), TEXT: markdown(title, results, tables, list(drawn)).encode()}
    for name, (svg, png) in drawn.items():
        files |= {f"{name}.svg": svg, f"{name}.png": png}
    images = [Markup(svg.decode()[svg.decode().index("<svg") :]) for svg, _ in drawn.values()]
    values = {"title": title, "sentences": sentences(results), "tables": tables, "version": __version__}
    files[PAGE] = _TEMPLATES.get_template("study.html").render(figures=images, **values).encode()
    for name, content in files.items():
        write_file(folder / name, content)


def sentences(results: Results) -> list[str]:
    """Return one sentence per cell on its difference from the baseline, and one on missing runs."""
    metric, found = results.study.eval.metric, []
    for row in results.rows:
        if (effect := row.effect) is None:
            continue
        if effect.p is None:
            few = "one seed" if effect.seeds == 1 else "one example"
            found.append(f"{row.cell.name}: {effect.mean:+.3f} {metric} compared with {results.baseline}, of {few}.")
            continue
        interval = "" if effect.interval is None else f", 95 % interval {_span(effect.interval, '+.3f')}"
        text = f"{row.cell.name}: {effect.verdict} compared with {results.baseline} "
        text += f"({effect.mean:+.3f} {metric}{interval}, {effect.seeds} seeds x {effect.examples} examples)."
        if effect.verdict == "no difference seen" and effect.detectable:
            text += f" Such a study finds an effect of {effect.detectable:.3f} with {100 * POWER:.0f} % power."
        found.append(text)
    if results.missing:
        failed = [f"{title} ({why})" for title, why in results.missing.items() if why != NOT_RUN]
        left = len(results.missing) - len(failed)
        words = [f"{left} not run yet"] * bool(left) + [f"failed: {'; '.join(failed)}"] * bool(failed)
        found.append(f"Missing runs: {', '.join(words)}.")
    return list(map(one_line, found))


def tables_of(results: Results) -> Iterator[Table]:
    """Yield the tables: cells; lenient reading (if on); RL against SFT alone at equal cost (if comparable); costs."""
    metric = results.study.eval.metric
    about = (
        f"Held-out {metric}, mean over n = seeds x examples; min and max of the seeds. Differences are from the "
        f"baseline, {results.baseline}, paired by seed and example. Their 95 % interval and p take both as random; the "
        "verdict goes by p corrected for the number of cells (Holm). detectable: the effect that such a study finds "
        f"with {100 * POWER:.0f} % power after the correction."
    )
    heads = ["cell", "n", metric, "min", "max", "difference", "95 % interval", "p", "corrected p", "detectable"]
    heads += ["verdict"]
    yield Table("Cells", about, heads, [_cells(row, results.baseline) for row in results.rows])
    if results.study.eval.lenient:
        about = (
            "Shares of right answers of n = seeds x examples: strict as the task has it, lenient wherever a right "
            f"answer stands. The part of the strict difference from {results.baseline} that the lenient one does not "
            "show is format."
        )
        heads = ["cell", "n", "strict", "lenient", "strict difference", "lenient difference", "format's share"]
        yield Table("Skill and format", about, heads, list(_format_rows(results)))
    if results.equal:
        about = (
            "SFT alone with as many examples, tokens or seconds of the processor, interpolated between its own cells; "
            "a dash where SFT was not tried at that cost. n = seeds x examples."
        )
        counts = {row.cell.name: _n(row.seeds) for row in results.rows}
        rows = []
        for one in results.equal:
            gain = None if one.sft_alone is None else one.value - one.sft_alone
            figures = [f"{one.value:.3f}", _num(one.sft_alone), _num(gain, "+.3f")]
            rows.append([one.cell, counts[one.cell], one.cost, *figures])
        heads = ["cell", "n", "equal", metric, "SFT alone", "difference"]
        yield Table("RL and SFT alone at equal cost", about, heads, rows)
    spent = [
        [row.cell.name, str(len(row.seeds)), *(f"{mean(one.costs[cost] for one in row.seeds):,.0f}" for cost in COSTS)]
        for row in results.rows
        if row.seeds
    ]
    yield Table("Costs", "Mean over n seeds, of all stages; seconds of the processor.", ["cell", "n", *COSTS], spent)


def _cells(row: Row, baseline: str) -> list[str]:
    means = [one.mean for one in row.seeds]
    lowest, highest = (_num(end(means, default=None)) for end in (min, max))
    n = _n(row.seeds)
    if (effect := row.effect) is None:
        why = "no seed shared with the baseline" if row.seeds else NOT_RUN
        why = "baseline" if row.cell.name == baseline else why
        return [row.cell.name, n, _num(row.mean), lowest, highest, "", "", "", "", "", why]
    if (compared := f"{effect.seeds} x {effect.examples}") != n:
        n += f", compared {compared}"
    interval = "–" if effect.interval is None else _span(effect.interval)
    p = ["–" if p is None else "< 0.001" if p < 0.001 else f"{p:.3f}" for p in (effect.p, effect.p_corrected)]
    figures = [_num(row.mean), lowest, highest, f"{effect.mean:+.3f}", interval, *p, _num(effect.detectable)]
    return [row.cell.name, n, *figures, effect.verdict]


def _n(seeds: Sequence[SeedResult]) -> str:
    """Return a text such as "3 x 256" (seeds x examples). Only examples with a graded completion count."""
    counts = sorted({len(one.values) for one in seeds})
    return f"{len(seeds)} x {counts[0]}{f' to {counts[-1]}' if len(counts) > 1 else ''}" if seeds else "0"


def _format_rows(results: Results) -> Iterator[list[str]]:
    """Yield one row per cell: strict and lenient means over the seeds that cell and baseline share."""
    read = {row.cell.name: {s.seed: s for s in row.seeds if s.lenient is not None} for row in results.rows}
    base = read[results.baseline]
    for name, seeds in read.items():
        if not (shared := seeds.keys() & base.keys()):
            yield [name, _n([]), *["–"] * 5]
            continue
        pairs = [(seeds[s].correct, seeds[s].lenient, base[s].correct, base[s].lenient) for s in shared]
        strict, lenient, strict_before, lenient_before = np.array(pairs, dtype=np.float64).mean(axis=0)
        gains = strict - strict_before, lenient - lenient_before
        is_share = abs(gains[0]) >= 5e-4 and 0 <= gains[1] / gains[0] <= 1
        share = f"{100 * (1 - gains[1] / gains[0]):.0f} %" if is_share else ""
        changes = ["", ""] if name == results.baseline else [_num(gain, "+.3f") for gain in gains]
        yield [name, _n([seeds[s] for s in shared]), _num(strict), _num(lenient), *changes, share]


def markdown(title: str, results: Results, tables: list[Table], drawn: list[str]) -> str:
    def line(cells: list[str]) -> str:
        return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"

    lines = [f"# {title}", "", *(f"- {sentence}" for sentence in sentences(results)), ""]
    for table in tables:
        rows = [line(table.heads), f"|{'---|' * len(table.heads)}", *map(line, table.rows)]
        lines += [f"## {table.title}", "", table.about, "", *rows, ""]
    text = "\n".join([*lines, *(f"![{name}]({name}.svg)" for name in drawn)]) + "\n"
    return re.sub("<(?=[a-zA-Z/!?])", "&lt;", text)  # names are text, not HTML


def needs_matplotlib() -> None:
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise UserError("a study's figures need matplotlib: pip install matplotlib") from error


def figures(results: Results) -> dict[str, tuple[bytes, bytes]]:
    """Return figures by name as (SVG, PNG): effects with intervals, training curves with the span of seeds."""
    if not any(row.seeds for row in results.rows):
        return {}
    import matplotlib
    from matplotlib.figure import Figure

    found: dict[str, Any] = {}
    # A `$` in a name is text. Without a fixed salt, the SVG's bytes would change each time.
    with matplotlib.rc_context({"svg.hashsalt": "hone", "svg.fonttype": "none", "text.parse_math": False}):
        if rows := [row for row in results.rows if row.effect is not None]:
            found["effects"] = Figure(figsize=(7, 1 + 0.35 * len(rows)), layout="constrained")
            _draw_effects(found["effects"].subplots(), rows, results)
        found["curves"] = Figure(figsize=(7, 4), layout="constrained")
        _draw_curves(found["curves"], results)
        return {name: (_saved(one, "svg"), _saved(one, "png")) for name, one in found.items()}


def _saved(figure: Any, kind: str) -> bytes:
    out = BytesIO()
    figure.savefig(out, format=kind, dpi=150, metadata={"Date": None} if kind == "svg" else {"Software": None})
    return out.getvalue()


def _draw_effects(axes: Any, rows: list[Row], results: Results) -> None:
    for place, row in enumerate(reversed(rows)):
        effect = row.effect
        assert effect is not None
        ends = effect.interval or Interval(effect.mean, effect.mean)
        colour = COLOURS.get(effect.verdict, "#666666")
        axes.plot([ends.low, ends.high], [place, place], color=colour)
        axes.plot([effect.mean], [place], "o", color=colour)
    axes.axvline(0, color="#999999", linewidth=1)
    axes.set_yticks(range(len(rows)), [row.cell.name for row in reversed(rows)])
    axes.set_xlabel(f"difference in held-out {results.study.eval.metric} from {results.baseline}, 95 % interval")


def _draw_curves(figure: Any, results: Results) -> None:
    """Draw SFT curves in one panel, RL curves in another. Each cell has its seeds' mean and min-max span."""
    kinds = sorted({one.last for row in results.rows for one in row.seeds})
    for axes, kind in zip(np.ravel(figure.subplots(1, len(kinds))), kinds, strict=True):
        lines, names = [], []
        for row in results.rows:
            curves = [one.curve for one in row.seeds if one.last == kind and one.curve]
            if not curves:
                continue
            steps = min(map(len, curves))
            seeds_SN = np.array([_smooth(curve[:steps]) for curve in curves])
            lines += axes.plot(seeds_SN.mean(axis=0), linewidth=1.2)
            names.append(row.cell.name)
            low, high, colour = seeds_SN.min(axis=0), seeds_SN.max(axis=0), lines[-1].get_color()
            axes.fill_between(range(steps), low, high, color=colour, alpha=0.2)
        axes.set_xlabel(f"step of {kind.upper()}")
        axes.set_ylabel("loss, nats a token" if kind == "sft" else "training reward")
        axes.legend(lines, names, fontsize="x-small")


def _smooth(curve: list[float]) -> np.ndarray:
    sums = np.cumsum([0.0, *curve])
    begins = np.maximum(np.arange(1, len(sums)) - 10, 0)
    return (sums[1:] - sums[begins]) / (np.arange(1, len(sums)) - begins)


def _span(interval: Interval, form: str = ".3f") -> str:
    return f"{interval.low:{form}} to {interval.high:{form}}"


def _num(value: float | None, form: str = ".3f") -> str:
    return "–" if value is None else f"{value:{form}}"
