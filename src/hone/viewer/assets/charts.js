// What Plotly draws of the numbers of runs: their columns, the traces of a chart, and how it is laid out. A view says
// how: {axis, smooth, share, log}.
"use strict";

const charts = (() => {
  const HELD_OUT = /^(eval|val|canary)\//; // of the version before the step, so against what there was before it
  const NONE = { step: [], tokens: [], hours: [], y: [] };
  const AXES = { step: "step", tokens: "trained tokens", hours: "hours" };
  const HEADS = { step: "step %{x}", tokens: "%{x:,.0f} trained tokens", hours: "%{x:.3~f} hours" };

  // What `hone.viewer.series.to_json` made, as columns {step, tokens, hours, y} by name.
  function expand(payload) {
    const found = new Map();
    const { x } = payload;
    for (const [name, one] of Object.entries(payload.series)) {
      const rows = one.rows || one.y.map((_, index) => index);
      const [tokens, hours] = HELD_OUT.test(name) ? [x.tokens_before, x.hours_before] : [x.tokens, x.hours];
      found.set(name, {
        step: rows.map((row) => x.step[row]),
        tokens: rows.map((row) => tokens[row]),
        hours: rows.map((row) => hours[row]),
        y: one.y,
      });
    }
    return found;
  }

  // Centred moving mean over `width` steps, which ascend; what is missing counts for nothing.
  function smoothed(values, width, steps) {
    const half = Math.floor(width / 2);
    let begin = 0;
    return values.map((value, index) => {
      while (steps[begin] < steps[index] - half) begin += 1;
      if (value === null) return null;
      let sum = 0, count = 0;
      for (let at = begin; at < values.length && steps[at] <= steps[index] + half; at += 1) {
        if (values[at] !== null) { sum += values[at]; count += 1; }
      }
      return sum / count;
    });
  }

  // Plotly reads text as HTML of a few tags; this way it stays text.
  const plain = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");

  function faded(color, alpha) {
    const hex = /^#(..)(..)(..)$/.exec(color);
    return hex ? `rgba(${hex.slice(1).map((part) => parseInt(part, 16)).join(",")},${alpha})` : color;
  }

  const of = (data, name) => data.get(name) || NONE;

  function format(value, view) {
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
    if (spec.points) return [marked(spec, data, view, { ...common, y }, color, digits)];
    const width = spec.steady ? 1 : Math.min(view.smooth, Math.max(1, y.length));
    const stroke = width > 1 ? { color: faded(color, 0.4), width: 1 } : { color, width: 1.8 };
    const raw = {
      ...common, y, mode: y.length < 3 ? "lines+markers" : "lines", connectgaps: false,
      line: { ...stroke, dash: spec.dash }, showlegend: width <= 1, legendgroup: common.name,
    };
    if (width <= 1) return [raw];
    const mean = {
      ...common, y: smoothed(y, width, points.step), mode: "lines", line: { color, width: 2, dash: spec.dash },
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
      : ` (95 %: ${format(low[index], view)} to ${format(high[index], view)})`);
    trace.hovertemplate = trace.y.map((_, index) => `%{y:${digits}}${interval(index)}${at(view)}`);
    return trace;
  }

  // The values of a metric at these steps; undefined where it has none.
  function atSteps(points, steps) {
    const found = new Map(points.step.map((step, index) => [step, points.y[index]]));
    return steps.map((step) => found.get(step));
  }

  // The rows of a metric at these indices.
  const pick = (points, rows) =>
    Object.fromEntries(Object.entries(points).map(([key, column]) => [key, rows.map((row) => column[row])]));

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
      return area(spec.label, hone.color(spec.color), pick(points, rows), y, view, below);
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

  // The range of an axis for a value that never changes, where Plotly would leave one unit around it.
  function flat(drawn, log) {
    const shown = drawn.filter((trace) => trace.yaxis !== "y2");
    const values = shown.flatMap((trace) => trace.y).filter((y) => typeof y === "number");
    const low = values.reduce((a, b) => Math.min(a, b), Infinity);
    const high = values.reduce((a, b) => Math.max(a, b), -Infinity);
    if (log || !values.length || low === 0 || high - low > 1e-9 * Math.abs(high)) return {};
    return { range: [Math.min(0, 2 * low), Math.max(0, 2 * high)] };
  }

  function layout(chart, view, drawn, shapes = []) {
    const fg = hone.color("fg"), line = hone.color("line"), muted = hone.color("muted");
    const axis = { gridcolor: line, zerolinecolor: line, linecolor: line, tickfont: { color: muted }, automargin: true };
    const log = chart.log || view.log, share = chart.share && !chart.log;
    return {
      margin: { l: 48, r: 40, t: 6, b: 34 }, // on the right the buttons have a strip of their own: they cover nothing
      modebar: { orientation: "v", bgcolor: "rgba(0,0,0,0)", color: muted, activecolor: fg },
      // Not transparent: behind the line under the pointer Plotly draws a thick one in this colour, of no colour white.
      paper_bgcolor: hone.color("bg"), plot_bgcolor: hone.color("bg"),
      font: { family: "system-ui, sans-serif", size: 12, color: fg },
      hovermode: "x unified",
      hoverlabel: { bgcolor: hone.color("card"), bordercolor: line, font: { color: fg, size: 12 } },
      dragmode: matchMedia("(pointer: coarse)").matches ? false : "zoom",
      xaxis: {
        ...axis, spikecolor: muted, spikethickness: 1,
        unifiedhovertitle: { text: HEADS[view.axis] },
        rangemode: view.axis === "step" ? "tozero" : "normal",
        title: { text: AXES[view.axis], font: { size: 11, color: muted }, standoff: 4 },
      },
      yaxis: {
        ...axis, type: log ? "log" : "linear", tickformat: share ? ".0%" : "",
        rangemode: chart.stack ? "tozero" : share ? "nonnegative" : "normal",
        ...(share && chart.stack ? { range: [0, 1] } : {}), exponentformat: log ? "power" : "e",
        separatethousands: true, minexponent: 6, ...flat(drawn, log),
      },
      yaxis2: { overlaying: "y", range: [0, 1], visible: false, fixedrange: true },
      showlegend: chart.lines.length > 1 || chart.stack,
      legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0, font: { size: 11 } }, shapes,
    };
  }

  return { AXES, NONE, expand, smoothed, plain, faded, at, line, stack, eventShapes, eventMarks, layout };
})();
