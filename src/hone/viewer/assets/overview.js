// The curves of one run.
"use strict";

document.addEventListener("DOMContentLoaded", () => {
  const page = hone.data("charts");
  if (!page || typeof Plotly === "undefined") return;
  let data = columns.expand(page), take = page.take, last = page.last, markers = page.markers, status = page.state;
  const steps = new Set(page.steps);
  let evals = new Set(page.evals);
  const asked = new URL(location.href).searchParams;
  const axis = document.getElementById("axis"), smooth = document.getElementById("smooth"), said = document.getElementById("smooth-said");
  axis.value = charts.AXES[asked.get("x")] ? asked.get("x") : "step";
  smooth.value = asked.get("smooth") || page.smooth;
  const say = () => { said.textContent = charts.smoothing(smooth.value); };
  say();

  const view = (chart) => ({ axis: axis.value, smooth: Number(smooth.value), share: chart.share });

  function make(chart) {
    const seen = view(chart);
    if (chart.completions) {
      const drawn = traces.completions(typeof scattered === "string" ? { outcome: [] } : scattered);
      return { drawn, lay: charts.layout(chart, seen, drawn) };
    }
    const shapes = chart.against ? [] : traces.eventShapes(markers, data, seen, last);
    const drawn = chart.against ? traces.against(chart, data)
      : chart.stack ? traces.stack(chart, data, seen) : chart.lines.flatMap((line) => traces.line(line, data, seen));
    if (chart.wide && markers.length) drawn.push(traces.eventMarks(markers, data, seen));
    return { drawn, lay: charts.layout(chart, seen, drawn, shapes) };
  }

  // A point of an evaluation opens its samples, any other those of its step.
  function open(points) {
    if (points[0]?.data.meta === "completion") {
      const [step, row] = points[0].customdata;
      if (page.links.sample) location.href = page.links.sample.replace(page.links.token, step).replace(page.links.row, row);
      else if (steps.has(step)) location.href = page.links.step.replace(page.links.token, step);
      return;
    }
    const held = points.find((point) => point.data.meta === "eval" && evals.has(point.customdata));
    const point = points.find((one) => steps.has(one.customdata));
    const only = points.every((one) => one.data.meta === "eval");
    if (held && (only || !point)) location.href = page.links.eval.replace(page.links.token, held.customdata);
    else if (point) location.href = page.links.step.replace(page.links.token, point.customdata);
  }

  const specs = new Map(), panels = [];

  // Single completions are read when their chart is first looked at.
  let scattered = page.completions;
  function draw(chart) {
    if (chart.completions && typeof scattered === "string" && !chart.asked) {
      chart.asked = true;
      live.ask(scattered).then((found) => { if (found.step.length) { scattered = found; redraw(); } }).catch(() => {});
    }
    return make(chart);
  }

  // Takes in a chart's description; a chart that the page does not have yet gets a place after the one before it.
  function takeIn(chart, before) {
    const known = specs.has(chart.id);
    specs.set(chart.id, chart);
    if (known) return false;
    let element = document.querySelector(`[data-chart="${CSS.escape(chart.id)}"]`);
    if (!element) {
      element = charts.box(chart);
      const box = element.closest(".chart-box"), neighbour = before && document.querySelector(`[data-chart="${CSS.escape(before.id)}"]`);
      if (neighbour) neighbour.closest(".chart-box").after(box); else document.querySelector(".charts").prepend(box);
      document.getElementById("no-charts")?.remove();
    }
    panels.push(charts.panel(element, () => draw(specs.get(chart.id)), chart.opens ? open : null));
    return true;
  }
  const takeAll = (found) => found.map((chart, index) => takeIn(chart, found[index - 1])).some(Boolean);
  takeAll(page.charts);
  const redraw = () => panels.forEach((one) => one.draw());

  axis.addEventListener("change", () => { hone.remember({ x: axis.value }, { x: "step" }); redraw(); });
  smooth.addEventListener("input", () => { say(); redraw(); });
  smooth.addEventListener("change", () => hone.remember({ smooth: smooth.value }, { smooth: page.smooth }));
  document.documentElement.addEventListener("hone:theme", redraw);

  // Words that only the server can find: taken from a fresh copy of this page.
  async function refreshWords() {
    const fresh = await live.page();
    for (const part of ["#words", "nav.tabs"]) {
      const now = document.querySelector(part), then = fresh.querySelector(part);
      if (now && then) now.replaceWith(document.adoptNode(then));
    }
  }

  async function look() {
    const more = await live.ask(`${page.source}?charts=1&take=${take}&after=${last - 1}`);
    const fresh = columns.expand(more);
    const grown = more.take !== take || more.last !== last;
    if (more.take !== take) { data = fresh; steps.clear(); } else columns.merge(data, fresh, more.x.step[0] ?? Infinity);
    const unknown = takeAll(more.charts);
    take = more.take; last = more.last; markers = more.markers; evals = new Set(more.evals);
    for (let step = (Math.max(...steps, -1)) + 1; step <= (more.steps[0] ?? -1); step += 1) steps.add(step);
    for (const place of document.querySelectorAll("[data-text]")) {
      const words = more.text[place.dataset.text];
      if (words !== undefined && place.textContent !== words) place.textContent = words;
    }
    if (grown) redraw();
    if (more.state !== status || unknown) { status = more.state; await refreshWords(); }
    return more.live;
  }

  if (page.source) live.poll(live.watch(page.standing, (facts) => facts.live, look), page.live);
});
