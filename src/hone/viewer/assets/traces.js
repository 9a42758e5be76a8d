// What Plotly draws of the numbers of a run. A view says how: {axis, smooth, share, log}.
"use strict";

const traces = (() => {
  // Plotly reads text as HTML of a few tags; this way it stays text.
  const plain = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");

  function faded(color, alpha) {
    const hex = /^#(..)(..)(..)$/.exec(color);
    return hex ? `rgba(${hex.slice(1).map((part) => parseInt(part, 16)).join(",")},${alpha})` : color;
  }

  const of = (data, name) => data.get(name) || columns.NONE;

  function told(value, view) {
    if (value === undefined || value === null) return "?";
    return view.share ? `${(value * 100).toFixed(1)} %` : Number(value).toPrecision(4);
  }

  // What a hover adds where the axis does not say it.
  const at = (view) => (view.axis === "step" ? "" : ", step %{customdata}");

  // A metric as a line: its moving mean in front of the raw one, or markers with their intervals.
  function line(spec, data, view) {
    const points = of(data, spec.metric), y = points.y.map((one) => (one === null ? null : one * spec.scale));
    const color = spec.css || hone.color(spec.color), digits = view.share ? ".1%" : ".5~g";
    const common = {
      type: "scatter", name: plain(spec.label), x: points[view.axis], customdata: points.step,
      meta: spec.points ? "eval" : "step", hoverlabel: { namelength: -1 }, hovertemplate: `%{y:${digits}}${at(view)}`,
    };
    if (spec.dots) return [{ ...common, y, mode: "markers", marker: { color, size: 4 } }];
    if (spec.points) return [marked(spec, data, view, { ...common, y }, color, digits)];
    const width = spec.steady ? 1 : Math.min(view.smooth, Math.max(1, y.length));
    const stroke = width > 1 ? { color: faded(color, 0.4), width: 1 } : { color, width: 1.8 };
    const raw = {
      ...common, y, mode: y.length < 3 ? "lines+markers" : "lines", connectgaps: false,
      line: { ...stroke, dash: spec.dash }, showlegend: width <= 1, legendgroup: common.name,
    };
    if (width <= 1) return [raw];
    const mean = {
      ...common, y: columns.smoothed(y, width, points.step), mode: "lines", line: { color, width: 2, dash: spec.dash },
      hovertemplate: `%{y:${digits}} (mean of ${width} steps)${at(view)}`, legendgroup: common.name,
    };
    return [raw, mean];
  }

  function marked(spec, data, view, common, color, digits) {
    const trace = {
      ...common, mode: "lines+markers", line: { color, width: 1.5, dash: spec.dash }, marker: { color, size: 7 },
      cliponaxis: false, connectgaps: true, // there are no values between two evaluations
    };
    if (!spec.low) return trace;
    const [low, high] = [spec.low, spec.high].map((name) => atSteps(of(data, name), trace.customdata));
    const apart = (a, b) => (a === undefined || a === null || b === null ? 0 : Math.max(0, a - b));
    trace.error_y = {
      type: "data", symmetric: false, color, thickness: 1.3, width: 4,
      array: trace.y.map((y, index) => apart(high[index], y)),
      arrayminus: trace.y.map((y, index) => (y === null ? 0 : apart(y, low[index] ?? y))),
    };
    const interval = (index) => ((low[index] ?? null) === null ? ""
      : ` (95 %: ${told(low[index], view)} to ${told(high[index], view)})`);
    trace.hovertemplate = trace.y.map((_, index) => `%{y:${digits}}${interval(index)}${at(view)}`);
    return trace;
  }

  // The values of a metric at these steps; undefined where it has none.
  function atSteps(points, steps) {
    const found = new Map(points.step.map((step, index) => [step, points.y[index]]));
    return steps.map((step) => found.get(step));
  }

  // Areas on top of each other; what is below 0 lies below the others. Steps that have none of them are left out.
  function stack(chart, data, view) {
    const lines = chart.lines.map((spec) => ({ spec, points: of(data, spec.metric) }));
    const sums = new Map();
    for (const { spec, points } of lines) points.step.forEach((step, index) => {
      if (points.y[index] !== null) sums.set(step, (sums.get(step) || 0) + points.y[index] * spec.scale);
    });
    const found = lines.map(({ spec, points }) => {
      const rows = points.step.map((_, index) => index).filter((index) => sums.has(points.step[index]));
      const y = rows.map((row) => (points.y[row] ?? 0) * spec.scale);
      const below = y.reduce((sum, one) => sum + one, 0) < 0;
      return area(spec.label, hone.color(spec.color), columns.pick(points, rows), y, view, below);
    });
    if (chart.whole) {
      const whole = of(data, chart.whole);
      const rest = whole.y.map((y, index) => Math.max(0, (y ?? 0) - (sums.get(whole.step[index]) || 0)));
      found.push(area("other", hone.color("line"), whole, rest, view, false));
    }
    return found;
  }

  function area(label, color, points, y, view, below) {
    return {
      type: "scatter", mode: "lines", name: plain(label), x: points[view.axis], y, customdata: points.step,
      meta: "step", stackgroup: below ? "below" : "above", line: { width: 0.8, color }, fillcolor: faded(color, 0.75),
      hovertemplate: `%{y:${view.share ? ".1%" : ".4~g"}}${at(view)}`, hoverlabel: { namelength: -1 },
    };
  }

  // A point a step, of one metric against another.
  function against(chart, data) {
    const xs = of(data, chart.against), ys = of(data, chart.lines[0].metric);
    const at = new Map(xs.step.map((step, index) => [step, xs.y[index]]));
    const there = (index) => ys.y[index] !== null && (at.get(ys.step[index]) ?? null) !== null;
    const { step, y } = columns.pick(ys, ys.step.map((_, index) => index).filter(there));
    const accent = hone.color("accent");
    return [{
      type: "scatter", mode: "markers", name: "steps", x: step.map((one) => at.get(one)), y, customdata: step,
      meta: "step", hovertemplate: "step %{customdata}: reward %{y:.3f}, length %{x:.1f}<extra></extra>",
      marker: {
        size: 6, color: step, colorscale: [[0, faded(accent, 0.18)], [1, accent]],
        colorbar: { title: { text: "step", side: "right" }, thickness: 8, outlinewidth: 0, tickfont: { size: 10 } },
      },
    }];
  }

  // Single completions, a trace for each outcome. `found` has a column for each of their facts.
  function completions(found) {
    return [...new Set(found.outcome)].map((outcome) => {
      const rows = found.outcome.map((_, index) => index).filter((index) => found.outcome[index] === outcome);
      const { tokens, reward, step, row } = columns.pick(found, rows);
      return {
        type: "scatter", mode: "markers", name: plain(outcome.replaceAll("_", " ")), x: tokens, y: reward,
        customdata: step.map((one, index) => [one, row[index]]), meta: "completion",
        marker: { size: 6, opacity: 0.55, color: hone.color(outcome) || hone.color("muted") },
        hovertemplate: "step %{customdata[0]}: reward %{y:.3f}, %{x} tokens",
      };
    });
  }

  // --- what happened at a step ---

  // Where a step lies on the axis: that of the last known step up to it.
  function place(step, data, axis) {
    if (axis === "step") return step;
    const points = ["reward/mean", "loss", "time/step"].map((name) => of(data, name)).find((one) => one.step.length);
    if (!points) return null;
    let index = 0;
    while (index + 1 < points.step.length && points.step[index + 1] <= step) index += 1;
    return points[axis][index];
  }

  const tint = (one) => hone.color(one.kind === "alarm" ? "warn" : "muted");

  // A dotted line for each event, a shaded stretch for an alarm that lasts; `end` is the last step.
  function eventShapes(events, data, view, end) {
    const common = { yref: "paper", y0: 0, y1: 1, layer: "below" };
    return events.flatMap((one) => {
      const x0 = place(one.step, data, view.axis), color = tint(one);
      if (x0 === null) return [];
      const dotted = { ...common, type: "line", x0, x1: x0, line: { color, width: 1, dash: "dot" } };
      if (one.kind !== "alarm") return [dotted];
      const x1 = place(one.until ?? end, data, view.axis);
      return [dotted, { ...common, type: "rect", x0, x1, fillcolor: faded(color, 0.08), line: { width: 0 } }];
    });
  }

  // The marks that say what the events are.
  function eventMarks(events, data, view) {
    const there = events.filter((one) => place(one.step, data, view.axis) !== null);
    const wrap = (text) => plain(text).replace(/(.{60}\S*) /g, "$1<br>");
    return {
      type: "scatter", mode: "markers", name: "events", yaxis: "y2", showlegend: false,
      x: there.map((one) => place(one.step, data, view.axis)), y: there.map(() => 0.97),
      marker: {
        symbol: there.map((one) => (one.kind === "alarm" ? "triangle-down" : "diamond")), size: 9,
        color: there.map(tint),
      },
      customdata: there.map((one) => one.step), meta: "step",
      hovertemplate: there.map((one) => `step ${one.step}: ${wrap(one.text)}<extra></extra>`),
    };
  }

  return { plain, faded, at, line, stack, against, completions, eventShapes, eventMarks };
})();
