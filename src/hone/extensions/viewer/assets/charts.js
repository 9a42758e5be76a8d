// Plotly data from the numbers of runs: columns, traces and layout of a chart. A view has the options {axis, smooth,
// share, log}.
"use strict";

const charts = (() => {
  const NONE = { step: [], tokens: [], hours: [], y: [] };
  const AXES = { step: "step", tokens: "trained tokens", hours: "hours" };
  const HEADS = { step: "step %{x}", tokens: "%{x:,.0f} trained tokens", hours: "%{x:.3~f} hours" };

  // The result of `hone.extensions.viewer.series.to_json` as columns {step, tokens, hours, y} by name.
  function expand(payload) {
    const found = new Map();
    const { x } = payload;
    for (const [name, one] of Object.entries(payload.series)) {
      const rows = one.rows || one.y.map((_, index) => index);
      const [step, tokens, hours] = [x.step, x.tokens, x.hours].map((axis) => rows.map((row) => axis[row]));
      found.set(name, { step, tokens, hours, y: one.y });
    }
    return found;
  }

  // Centred moving mean over `width` ascending steps; missing values are ignored.
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

  // Plotly reads text as HTML of a few tags; escaped, it stays text.
  const plain = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");

  function faded(color, alpha) {
    const hex = /^#(..)(..)(..)$/.exec(color);
    return hex ? `rgba(${hex.slice(1).map((part) => parseInt(part, 16)).join(",")},${alpha})` : color;
  }

  const of = (data, name) => data.get(name) || NONE;

  // Values that a hover adds if the axis does not show them.
  const at = (view) => (view.axis === "step" ? "" : ", step %{customdata}");

  // A metric as a line: the moving mean in front of raw values, or markers with intervals.
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
    const [low, high] = [spec.low, spec.high].map((name) => new Map(known(of(data, name))));
    const steps = trace.customdata, has = (step) => low.has(step) && high.has(step);
    const apart = (a, b) => Math.max(0, a - b);
    trace.error_y = {
      type: "data", symmetric: false, color, thickness: 1.3, width: 4,
      array: trace.y.map((y, row) => (has(steps[row]) ? apart(high.get(steps[row]), y) : 0)),
      arrayminus: trace.y.map((y, row) => (has(steps[row]) ? apart(y, low.get(steps[row])) : 0)),
    };
    const format = (value) => (view.share ? `${(value * 100).toFixed(1)} %` : value.toPrecision(4));
    const interval = (step) => (has(step) ? ` (95 %: ${format(low.get(step))} to ${format(high.get(step))})` : "");
    trace.hovertemplate = steps.map((step) => `%{y:${digits}}${interval(step)}${at(view)}`);
    return trace;
  }

  // Stacked areas; negative values are stacked below 0. Steps without any of the values are left out.
  function stack(chart, data, view) {
    const sums = new Map();
    for (const spec of chart.lines) for (const [step, y] of known(of(data, spec.metric))) {
      sums.set(step, (sums.get(step) || 0) + y * spec.scale);
    }
    const found = chart.lines.map((spec) => {
      const points = of(data, spec.metric), values = new Map(known(points));
      const x = points[view.axis].filter((_, row) => sums.has(points.step[row]));
      const steps = points.step.filter((step) => sums.has(step)), y = steps.map((step) => (values.get(step) ?? 0) * spec.scale);
      return area(spec.label, hone.color(spec.color), x, steps, y, view);
    });
    if (chart.whole) {
      const whole = of(data, chart.whole);
      const rest = whole.y.map((y, row) => Math.max(0, (y ?? 0) - (sums.get(whole.step[row]) || 0)));
      found.push(area("other", hone.color("line"), whole[view.axis], whole.step, rest, view));
    }
    return found;
  }

  // Steps and values of a metric, without missing values.
  const known = (points) => points.step.map((step, row) => [step, points.y[row]]).filter(([_, y]) => y !== null);

  function area(label, color, x, steps, y, view) {
    const below = y.reduce((sum, one) => sum + one, 0) < 0;
    return {
      type: "scatter", mode: "lines", name: plain(label), x, y, customdata: steps, meta: "step",
      stackgroup: below ? "below" : "above", line: { width: 0.8, color }, fillcolor: faded(color, 0.75),
      hovertemplate: `%{y:${view.share ? ".1%" : ".4~g"}}${at(view)}`, hoverlabel: { namelength: -1 },
    };
  }

  // Position of a step on the axis: that of the last row up to it. `x` has the axes of all rows.
  const place = (step, x, axis) => (axis === "step" ? step
    : x[axis][Math.max(0, x.step.findLastIndex((one) => one <= step))] ?? null);

  const tint = (one) => hone.color(one.kind === "alarm" ? "warn" : "muted");

  // A dotted line per event, a shaded stretch per alarm; `end` is the last step.
  function eventShapes(events, x, view, end) {
    const common = { yref: "paper", y0: 0, y1: 1, layer: "below" };
    return events.flatMap((one) => {
      const x0 = place(one.step, x, view.axis), x1 = place(one.until ?? end, x, view.axis), color = tint(one);
      const dotted = { ...common, type: "line", x0, x1: x0, line: { color, width: 1, dash: "dot" } };
      const shade = { ...common, type: "rect", x0, x1, fillcolor: faded(color, 0.08), line: { width: 0 } };
      return x0 === null ? [] : one.kind === "alarm" ? [dotted, shade] : [dotted];
    });
  }

  // Marks with the texts of events.
  function eventMarks(events, x, view) {
    const wrap = (text) => plain(text).replace(/(.{60}\S*) /g, "$1<br>");
    return {
      type: "scatter", mode: "markers", name: "events", yaxis: "y2", showlegend: false, meta: "step",
      x: events.map((one) => place(one.step, x, view.axis)), y: events.map(() => 0.97),
      marker: {
        symbol: events.map((one) => (one.kind === "alarm" ? "triangle-down" : "diamond")), size: 9,
        color: events.map(tint),
      },
      customdata: events.map((one) => one.step),
      hovertemplate: events.map((one) => `step ${one.step}: ${wrap(one.text)}<extra></extra>`),
    };
  }

  function layout(chart, view, shapes = []) {
    const fg = hone.color("fg"), line = hone.color("line"), muted = hone.color("muted");
    const axis = { gridcolor: line, zerolinecolor: line, linecolor: line, tickfont: { color: muted }, automargin: true };
    const log = chart.log || view.log, share = chart.share && !chart.log;
    return {
      margin: { l: 48, r: 40, t: 6, b: 34 }, // on the right, a strip for the buttons, so that they cover nothing
      modebar: { orientation: "v", bgcolor: "rgba(0,0,0,0)", color: muted, activecolor: fg },
      // Not transparent: Plotly draws a thick line in this colour behind the line under the pointer; without it, white.
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
        ...axis, type: log ? "log" : "linear", tickformat: share ? ".1~%" : "",
        rangemode: chart.stack || chart.lines.some((one) => one.steady) ? "tozero" : share ? "nonnegative" : "normal",
        ...(share && chart.stack ? { range: [0, 1] } : {}), exponentformat: log ? "power" : "e",
        separatethousands: true, minexponent: 6,
      },
      yaxis2: { overlaying: "y", range: [0, 1], visible: false, fixedrange: true },
      showlegend: chart.lines.length > 1 || chart.stack,
      legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0, font: { size: 11 } }, shapes,
    };
  }

  return { AXES, NONE, expand, smoothed, plain, faded, at, line, stack, eventShapes, eventMarks, layout };
})();
