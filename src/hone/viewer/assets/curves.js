// Curves of several runs: what is drawn follows the form, and the address follows both.
"use strict";

document.addEventListener("DOMContentLoaded", () => {
  const page = hone.data("charts");
  if (!page || typeof Plotly === "undefined") return;
  const form = document.getElementById("curves-form"), place = document.getElementById("curves");
  const byId = (id) => document.getElementById(id);
  const runs = new Map(page.runs.map((run) => [run.slug, run]));
  const known = new Map(), panels = new Map(), colors = new Map();
  const PALETTE = ["s1", "s5", "s2", "s3", "s6", "s4"], DASHES = ["solid", "dash", "dot", "dashdot"];

  for (const [slug, numbers] of Object.entries(page.numbers)) {
    known.set(slug, { take: numbers.take, last: numbers.last, data: columns.expand(numbers) });
  }

  // Among files no server reads the address: the form takes it here.
  const asked = new URL(location.href).searchParams;
  const boxes = (name) => [...form.querySelectorAll(`input[name=${name}]`)];
  if (page.files) {
    for (const name of ["runs", "metrics"]) {
      const there = new Set(boxes(name).map((box) => box.value));
      const wanted = asked.getAll(name).flatMap((value) => (there.has(value) ? [value] : value.split(",")));
      if (wanted.length) boxes(name).forEach((box) => { box.checked = wanted.includes(box.value); });
    }
    if (asked.getAll("runs").length && !asked.getAll("metrics").length) {
      const usual = new Set(boxes("runs").filter((box) => box.checked).flatMap((box) => page.usual[box.value] || []));
      boxes("metrics").forEach((box) => { box.checked = usual.has(box.value); });
    }
    if (charts.AXES[asked.get("x")]) byId("axis").value = asked.get("x");
    byId("log").checked = asked.get("log") === "1"; byId("seeds").checked = asked.get("seeds") === "1";
  }
  byId("smooth").value = asked.get("smooth") || "1";

  const picked = (name) => boxes(name).filter((box) => box.checked).map((box) => box.value);
  const view = () => ({ axis: byId("axis").value, smooth: Number(byId("smooth").value), log: byId("log").checked });

  // A run keeps its colour as long as it is chosen.
  function colorOf(slug) {
    if (!colors.has(slug)) {
      let index = 0;
      while ([...colors.values()].includes(index)) index += 1;
      colors.set(slug, index);
    }
    const index = colors.get(slug);
    const dash = DASHES[Math.floor(index / PALETTE.length) % DASHES.length];
    return { css: hone.color(PALETTE[index % PALETTE.length]), dash };
  }

  // The chosen runs, those of one config that differ in their seed in one group.
  function groups(slugs) {
    if (!byId("seeds").checked) return slugs.map((slug) => [slug]);
    const found = new Map();
    for (const slug of slugs) {
      const key = runs.get(slug).config;
      found.set(key, [...(found.get(key) || []), slug]);
    }
    return [...found.values()];
  }

  // Mean, lowest and highest of several runs at each step that all of them have.
  function band(slugs, metric) {
    const all = slugs.map((slug) => known.get(slug)?.data.get(metric)).filter(Boolean);
    const at = new Map();
    for (const points of all) points.step.forEach((step, index) => {
      if (points.y[index] === null) return;
      const one = at.get(step) || { y: [], sum: 0, tokens: 0, hours: 0 };
      one.y.push(points.y[index]); one.sum += points.y[index];
      one.tokens += points.tokens[index]; one.hours += points.hours[index];
      at.set(step, one);
    });
    const steps = [...at.keys()].filter((step) => at.get(step).y.length === all.length).sort((a, b) => a - b);
    const column = (make) => steps.map((step) => make(at.get(step)));
    const mean = (name) => column((one) => one[name] / one.y.length);
    return {
      count: all.length, low: column((one) => Math.min(...one.y)), high: column((one) => Math.max(...one.y)),
      points: { step: steps, tokens: mean("tokens"), hours: mean("hours"), y: mean("sum") },
    };
  }

  const isSparse = (metric) => /^(eval|val)\//.test(metric);

  // The metrics that bound the interval of one; none of most.
  const bounds = (metric) => (/^eval\/.*\/reward\/mean$/.test(metric)
    ? ["low", "high"].map((end) => metric.replace(/\/reward\/mean$/, `/ci95/${end}`)) : []);

  function lineOf(slug, metric, seen) {
    const data = known.get(slug)?.data;
    if (!data?.has(metric)) return [];
    const line = { metric, label: runs.get(slug).name, scale: 1, points: isSparse(metric), ...colorOf(slug) };
    const [low, high] = bounds(metric);
    return traces.line(data.has(low) ? { ...line, low, high } : line, data, seen);
  }

  function bandOf(slugs, metric, seen) {
    const own = colorOf(slugs[0]), label = runs.get(slugs[0]).name, sparse = isSparse(metric);
    const { count, low, high, points } = band(slugs, metric);
    if (!points.step.length) return [];
    const name = `${label} and ${count - 1} more seed${count > 2 ? "s" : ""}`;
    const smooth = (values) => (sparse ? values : columns.smoothed(values, seen.smooth, points.step));
    const edge = {
      type: "scatter", mode: "lines", x: points[seen.axis], line: { width: 0 }, hoverinfo: "skip", showlegend: false,
    };
    return [
      { ...edge, y: smooth(low), name: "lowest" },
      { ...edge, y: smooth(high), name: "highest", fill: "tonexty", fillcolor: traces.faded(own.css, 0.18) },
      {
        type: "scatter", mode: sparse ? "lines+markers" : "lines", name: traces.plain(name), x: points[seen.axis],
        y: smooth(points.y), customdata: points.step, meta: "mean",
        line: { color: own.css, dash: own.dash, width: 2 }, hovertemplate: `%{y:.5~g} (mean of ${count})${traces.at(seen)}`,
        hoverlabel: { namelength: -1 },
      },
    ];
  }

  function make(metric) {
    const seen = view();
    const chart = { id: metric, title: metric, unit: "", lines: [], legend: true, log: seen.log, stack: false };
    const drawn = groups(picked("runs")).flatMap((slugs) =>
      slugs.length === 1 ? lineOf(slugs[0], metric, seen) : bandOf(slugs, metric, seen));
    return { drawn, lay: charts.layout(chart, seen, drawn) };
  }

  function show() {
    const metrics = picked("metrics"), slugs = picked("runs");
    for (const slug of [...colors.keys()]) if (!slugs.includes(slug)) colors.delete(slug);
    slugs.forEach(colorOf);
    for (const swatch of document.querySelectorAll(".swatch")) {
      swatch.style.background = colors.has(swatch.dataset.run) ? colorOf(swatch.dataset.run).css : "transparent";
    }
    for (const [metric, one] of panels) {
      if (metrics.includes(metric)) continue;
      Plotly.purge(one.element); one.element.closest(".chart-box").remove(); panels.delete(metric);
    }
    for (const metric of metrics) {
      if (panels.has(metric)) continue;
      const element = charts.box({ id: metric, title: metric, unit: page.units[metric] || "", note: "", wide: false, opens: false });
      place.append(element.closest(".chart-box"));
      panels.set(metric, charts.panel(element, () => make(metric), null));
    }
    panels.forEach((one) => one.draw());
    place.classList.toggle("one", panels.size === 1);
    byId("nothing").hidden = metrics.length > 0 && slugs.length > 0;
    byId("runs-count").textContent = `${slugs.length} of ${runs.size}`;
    byId("metrics-count").textContent = `${metrics.length} of ${boxes("metrics").length}`;
    byId("smooth-said").textContent = charts.smoothing(byId("smooth").value);
  }

  const namesIn = (metrics) => metrics.map((metric) => `names=${encodeURIComponent(metric)}`).join("&");

  // Has the server's numbers for what is chosen and not there yet; a run that is known is asked for all anew.
  async function load() {
    const metrics = picked("metrics");
    const wanted = metrics.flatMap((metric) => [metric, ...bounds(metric)]);
    if (!page.files) {
      await Promise.all(picked("runs").map(async (slug) => {
        const own = known.get(slug);
        const missing = own ? wanted.filter((metric) => !own.asked?.has(metric) && !own.data.has(metric)) : wanted;
        if (!missing.length) return;
        const numbers = await live.ask(`${runs.get(slug).source}?${namesIn(missing)}`);
        const same = own && own.take === numbers.take;
        const fresh = columns.expand(numbers), data = same ? own.data : new Map();
        fresh.forEach((points, metric) => { if (points.y.some((y) => y !== null)) data.set(metric, points); });
        const last = same ? Math.min(own.last, numbers.last) : numbers.last;
        known.set(slug, { take: numbers.take, last, data, asked: new Set([...(own?.asked || []), ...missing]) });
        Object.assign(page.units, numbers.units);
        addNames(numbers.names);
      }));
    }
    show();
  }

  // Metrics that a run has, and those that were chosen before have not.
  function addNames(names) {
    const there = new Set(boxes("metrics").map((box) => box.value));
    for (const name of names.filter((one) => !there.has(one))) {
      const [label, box, code] = ["label", "input", "code"].map((tag) => document.createElement(tag));
      label.dataset.words = name.toLowerCase(); code.textContent = name;
      box.type = "checkbox"; box.name = "metrics"; box.value = name;
      label.append(box, " ", code); byId("metrics-list").append(label);
    }
  }

  // What is chosen, in the address.
  function keep() {
    hone.remember({
      runs: picked("runs"), metrics: picked("metrics"), x: byId("axis").value, smooth: byId("smooth").value,
      log: byId("log").checked ? "1" : "", seeds: byId("seeds").checked ? "1" : "",
    }, { x: "step", smooth: "1" });
  }

  const loadOrSay = () => load().catch(() => hone.live("hone view does not answer: start it again", true));
  const changed = () => { keep(); loadOrSay(); };

  form.addEventListener("submit", (event) => { event.preventDefault(); changed(); });
  form.addEventListener("change", (event) => { if (event.target.type !== "search") changed(); });
  byId("smooth").addEventListener("input", show);
  for (const field of form.querySelectorAll("input[type=search]")) {
    field.addEventListener("input", () => {
      const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
      for (const label of byId(field.dataset.narrows).children) label.hidden = !words.every((word) => label.dataset.words.includes(word));
    });
    field.addEventListener("keydown", (event) => { if (event.key === "Enter") event.preventDefault(); });
  }
  document.documentElement.addEventListener("hone:theme", show);

  // Runs that have begun since get a place in the list; of those that are known, whether they are at work.
  async function takeIn() {
    const fresh = await live.page(), block = fresh.getElementById("charts");
    for (const run of block ? JSON.parse(block.textContent).runs : []) {
      if (runs.has(run.slug)) { runs.get(run.slug).live ||= run.live; continue; }
      runs.set(run.slug, run);
      const box = [...fresh.querySelectorAll("input[name=runs]")].find((one) => one.value === run.slug);
      box.checked = false;
      byId("runs-list").prepend(document.adoptNode(box.closest("label")));
    }
    byId("runs-count").textContent = `${picked("runs").length} of ${runs.size}`;
  }

  const trains = (run) => run.kind === "rl" || run.kind === "sft"; // of what cannot be shown no kind is told
  const isNew = (run) => trains(run) && (!runs.has(run.slug) || (run.live && !runs.get(run.slug).live));

  async function look(facts) {
    if (facts.some(isNew)) await takeIn();
    const growing = picked("runs").filter((slug) => runs.get(slug).live && known.has(slug));
    await Promise.all(growing.map(async (slug) => {
      const own = known.get(slug);
      const more = await live.ask(`${runs.get(slug).source}?${namesIn([...own.data.keys()])}&after=${own.last - 1}`);
      if (more.take !== own.take) { known.delete(slug); await load(); } else {
        columns.merge(own.data, columns.expand(more), more.x.step[0] ?? Infinity);
        own.last = more.last;
      }
      runs.get(slug).live = more.live;
    }));
    if (growing.length) show();
    return [...runs.values()].some((run) => run.live);
  }

  if (picked("runs").length) keep();
  loadOrSay();
  const atWork = (all) => all.some((run) => run.live);
  if (!page.files) live.poll(live.watch(page.standing, atWork, look), atWork(page.runs));
});
