// The charts of a page: the place of each, its axes, and when it is drawn.
"use strict";

const charts = (() => {
  const AXES = { step: "step", tokens: "trained tokens", hours: "hours" };
  const HEADS = { step: "step %{x}", tokens: "%{x:,.0f} trained tokens", hours: "%{x:.3~f} hours" };
  const CONFIG = { responsive: true, displaylogo: false, modeBarButtonsToRemove: ["lasso2d", "select2d", "autoScale2d"] };

  // What the slider of the smoothing says.
  const smoothing = (width) => (Number(width) === 1 ? "none" : `mean of ${width} steps`);

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
      margin: { l: 48, r: chart.against ? 8 : 12, t: 6, b: 34 },
      // Not transparent: behind the line under the pointer Plotly draws a thick one in this colour, of no colour white.
      paper_bgcolor: hone.color("bg"), plot_bgcolor: hone.color("bg"),
      font: { family: "system-ui, sans-serif", size: 12, color: fg },
      hovermode: chart.against_label ? "closest" : "x unified",
      hoverlabel: { bgcolor: hone.color("card"), bordercolor: line, font: { color: fg, size: 12 } },
      dragmode: matchMedia("(pointer: coarse)").matches ? false : "zoom",
      xaxis: {
        ...axis, spikecolor: muted, spikethickness: 1,
        unifiedhovertitle: { text: chart.against_label ? "" : HEADS[view.axis] },
        rangemode: !chart.against_label && view.axis === "step" ? "tozero" : "normal",
        title: {
          text: traces.plain(chart.against_label || AXES[view.axis]), font: { size: 11, color: muted }, standoff: 4,
        },
      },
      yaxis: {
        ...axis, type: log ? "log" : "linear", tickformat: share ? ".0%" : "",
        rangemode: chart.stack ? "tozero" : share ? "nonnegative" : "normal",
        ...(share && chart.stack ? { range: [0, 1] } : {}), exponentformat: log ? "power" : "e",
        separatethousands: true, minexponent: 6, ...flat(drawn, log),
      },
      yaxis2: { overlaying: "y", range: [0, 1], visible: false, fixedrange: true },
      showlegend: !chart.against && (chart.lines.length > 1 || chart.stack || chart.legend || chart.completions),
      legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0, font: { size: 11 } }, shapes,
    };
  }

  // The place of a chart, as templates/charts.html makes it; returns the element that is drawn into.
  function box(chart) {
    const add = (parent, tag, className, text) => {
      const made = document.createElement(tag);
      made.className = className; made.textContent = text; parent.append(made);
      return made;
    };
    const section = document.createElement("section");
    section.className = `chart-box${chart.wide ? " wide" : ""}`;
    const title = add(section, "h3", "", `${chart.title} `);
    if (chart.unit) add(title, "span", "sub", chart.unit);
    if (chart.note) add(section, "p", "sub", chart.note);
    const element = add(section, "div", `chart${chart.opens ? " opens" : ""}`, "");
    element.dataset.chart = chart.id; element.setAttribute("role", "img"); element.setAttribute("aria-label", chart.title);
    return element;
  }

  // One place on the page, drawn when it comes into sight, of what `make` gives: {drawn, lay}.
  function panel(element, make, onClick) {
    const own = { element, seen: false, clicks: false, draw() {
      if (!own.seen) return;
      const { drawn, lay } = make();
      Plotly.react(element, drawn, lay, CONFIG);
      if (!own.clicks && onClick) element.on("plotly_click", (event) => onClick(event.points));
      own.clicks = true;
      element.dataset.drawn = String((Number(element.dataset.drawn) || 0) + 1);
    } };
    const seer = new IntersectionObserver((entries) => {
      if (own.seen || !entries.some((entry) => entry.isIntersecting)) return;
      own.seen = true; seer.disconnect(); own.draw();
    }, { rootMargin: "400px" });
    seer.observe(element);
    return own;
  }

  return { AXES, smoothing, layout, box, panel };
})();
