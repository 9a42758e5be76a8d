// The charts of a page: of one run, or of several runs in one chart. The address has the options.
"use strict";

document.addEventListener("DOMContentLoaded", () => {
  if (!hone.data("charts") || typeof Plotly === "undefined") return;
  const byId = (id) => document.getElementById(id), asked = new URL(location.href).searchParams;
  const PALETTE = ["s1", "s5", "s2", "s3", "s6", "s4"], DASHES = ["solid", "dash", "dot", "dashdot"];
  const CONFIG = { responsive: true, displaylogo: false, modeBarButtons: [["zoom2d", "pan2d", "resetScale2d", "toImage"]] };
  const axis = byId("axis"), smooth = byId("smooth"), form = byId("curves-form");
  let page, data, panels = [];

  const checked = (id) => byId(id)?.checked || false;
  const view = (chart) => ({
    axis: axis.value, smooth: Number(smooth.value), share: chart.share, log: chart.log || checked("log"),
  });

  // --- one run ---

  function overview(chart) {
    const seen = view(chart);
    const drawn = chart.stack ? charts.stack(chart, data, seen) : chart.lines.flatMap((line) => charts.line(line, data, seen));
    if (chart.wide && page.markers.length) drawn.push(charts.eventMarks(page.markers, page.x, seen));
    return { drawn, lay: charts.layout(chart, seen, charts.eventShapes(page.markers, page.x, seen, page.last)) };
  }

  // A point of an evaluation opens the evaluation's samples, other points their step's samples.
  function open(points) {
    const go = (link, at) => { location.href = link.replace(page.somewhere, at); };
    const held = points.find((one) => one.data.meta === "eval" && page.evals.includes(one.customdata));
    const point = points.find((one) => page.steps.includes(one.customdata));
    if (held && (!point || points.every((one) => one.data.meta === "eval"))) go(page.links.eval, held.customdata);
    else if (point) go(page.links.step, point.customdata);
  }

  // --- several runs ---

  function colorOf(run) {
    const index = page.runs.indexOf(run), dash = DASHES[Math.floor(index / PALETTE.length) % DASHES.length];
    return { css: hone.color(PALETTE[index % PALETTE.length]), dash };
  }

  function lineOf(run, metric, seen) {
    if (!data[run.slug].has(metric)) return [];
    const [low, high] = ["low", "high"].map((end) => metric.replace(/\/reward\/mean$/, `/ci95/${end}`));
    const line = { metric, label: run.name, scale: 1, points: /^(eval|val)\//.test(metric), ...colorOf(run) };
    return charts.line(low !== metric && data[run.slug].has(low) ? { ...line, low, high } : line, data[run.slug], seen);
  }

  function overlay(chart) {
    const seen = view(chart);
    const drawn = page.runs.flatMap((run) => lineOf(run, chart.id, seen));
    return { drawn, lay: charts.layout({ ...chart, lines: page.runs }, seen) };
  }

  // --- the page ---

  // A chart is drawn when it scrolls into view, else when the browser is idle or before printing.
  function panel(chart) {
    const element = document.querySelector(`[data-chart="${CSS.escape(chart.id)}"]`);
    const lazy = { chart, seen: false, draw() {
      if (!lazy.seen) return;
      const { drawn, lay } = page.runs ? overlay(lazy.chart) : overview(lazy.chart);
      Plotly.react(element, drawn, lay, CONFIG);
    } };
    lazy.show = () => {
      if (lazy.seen) return;
      lazy.seen = true; seer.disconnect(); lazy.draw();
      if (chart.opens) element.on("plotly_click", (event) => open(event.points));
    };
    const seer = new IntersectionObserver((entries) => {
      if (entries.some((entry) => entry.isIntersecting)) lazy.show();
    }, { rootMargin: "400px" });
    seer.observe(element);
    return lazy;
  }

  const quiet = window.requestIdleCallback || ((work) => setTimeout(work, 50));
  function place() {
    panels = page.charts.map(panel);
    const showRest = () => {
      const next = panels.find((one) => !one.seen);
      if (next) quiet(() => { next.show(); showRest(); });
    };
    showRest();
  }
  addEventListener("beforeprint", () => panels.forEach((one) => one.show()));

  function read(found) {
    page = found;
    data = page.runs ? Object.fromEntries(Object.entries(page.numbers).map(([slug, one]) => [slug, charts.expand(one)]))
      : charts.expand(page);
    const same = panels.length === page.charts.length && panels.every((one, index) => one.chart.id === page.charts[index].id);
    if (same) panels.forEach((one, index) => { one.chart = page.charts[index]; });
    return same;
  }

  function draw() {
    const width = Number(smooth.value);
    byId("smooth-text").textContent = width === 1 ? "none" : `mean of ${width} steps`;
    panels.forEach((one) => one.draw());
  }

  read(hone.data("charts"));
  if (charts.AXES[asked.get("x")]) axis.value = asked.get("x");
  smooth.value = asked.get("smooth") || page.smooth;
  place();
  draw();

  const keep = () => {
    const log = checked("log") ? "1" : "";
    hone.remember({ x: axis.value, smooth: smooth.value, log }, { x: "step", smooth: page.smooth });
    draw();
  };
  smooth.addEventListener("input", draw);
  for (const field of [axis, smooth, byId("log")]) field?.addEventListener("change", keep);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);

  if (form) { // other runs and metrics load another page; words filter the lists
    form.addEventListener("change", (event) => { if (/^(runs|metrics)$/.test(event.target.name)) form.requestSubmit(); });
    for (const swatch of document.querySelectorAll(".swatch")) {
      const run = page.runs.find((one) => one.slug === swatch.dataset.run);
      if (run) swatch.style.background = colorOf(run).css;
    }
    for (const field of form.querySelectorAll("input[type=search]")) field.addEventListener("input", () => {
      const words = field.value.toLowerCase().split(/\s+/);
      for (const label of byId(field.dataset.narrows).children) label.hidden = !words.every((word) => label.dataset.words.includes(word));
    });
  }

  hone.follow((fresh) => {
    const block = fresh.getElementById("charts");
    if (!block) return;
    const same = read(JSON.parse(block.textContent));
    for (const selector of ["#words", "nav.tabs", ...(same ? [] : [".charts"])]) {
      const now = document.querySelector(selector), then = fresh.querySelector(selector);
      if (now && then) now.replaceWith(document.adoptNode(then));
    }
    if (!same) place();
    draw();
  });
});
