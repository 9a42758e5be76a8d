// The numbers of a run: each metric's points as columns {step, tokens, hours, y}, by name.
"use strict";

const columns = (() => {
  const HELD_OUT = /^(eval|val|canary)\//; // of the version before the step, so against what there was before it
  const NONE = { step: [], tokens: [], hours: [], y: [] };

  // What `hone.viewer.series.to_json` made, as columns.
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

  // The points of `known` before those of `more`, which come in their place from the step `from` on.
  function merge(known, more, from) {
    for (const [name, fresh] of more) {
      const old = known.get(name);
      if (!old) { known.set(name, fresh); continue; }
      let keep = old.step.length;
      while (keep && old.step[keep - 1] >= from) keep -= 1;
      for (const key of Object.keys(NONE)) old[key] = old[key].slice(0, keep).concat(fresh[key]);
    }
  }

  // The rows of a metric at these indices.
  const pick = (points, rows) =>
    Object.fromEntries(Object.entries(points).map(([key, column]) => [key, rows.map((row) => column[row])]));

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

  return { expand, merge, pick, smoothed, NONE };
})();
