// The table of runs: sorting, filtering, and keeping up with runs that are at work.
"use strict";

document.addEventListener("DOMContentLoaded", () => {
  const tables = document.getElementById("tables"), filter = document.getElementById("filter");
  const state = new URL(location.href).searchParams;
  let sort = state.get("sort"), down = state.get("down") === "1";
  filter.value = state.get("q") || "";

  const remember = () => hone.remember({ q: filter.value.trim(), sort, down: sort && down ? "1" : "" });

  const number = (text) => (text !== "" && Number.isFinite(Number(text)) ? Number(text) : null);

  // What is empty comes last, whichever the direction.
  function compare(a, b) {
    if (a === "" || b === "") return (a === "") - (b === "");
    const x = number(a), y = number(b);
    const order = x !== null && y !== null ? x - y : a.localeCompare(b, undefined, { numeric: true });
    return down ? -order : order;
  }

  function arrange() {
    const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0, all = 0;
    for (const table of tables.querySelectorAll("table.runs")) {
      for (const head of table.querySelectorAll("th[data-key]")) {
        head.setAttribute("aria-sort", head.dataset.key !== sort ? "none" : down ? "descending" : "ascending");
        head.tabIndex = 0;
      }
      const body = table.tBodies[0], rows = [...body.rows];
      if (sort) {
        const key = (row) => row.querySelector(`td.${CSS.escape(sort)}`)?.dataset.sort ?? "";
        rows.sort((a, b) => compare(key(a), key(b)));
        body.append(...rows);
      }
      for (const row of rows) {
        row.hidden = !words.every((word) => row.dataset.words.includes(word));
        shown += !row.hidden; all += 1;
      }
    }
    document.getElementById("count").textContent = words.length ? `${shown} of ${all} runs` : "";
  }

  function sortBy(head) {
    const key = head?.dataset.key;
    if (!key) return;
    const words = key === "name" || key === "status" || key === "exact";
    down = sort === key ? !down : !words;
    sort = key;
    remember(); arrange();
  }

  tables.addEventListener("click", (event) => sortBy(event.target.closest("th[data-key]")));
  tables.addEventListener("keydown", (event) => { if (event.key === "Enter") sortBy(event.target.closest("th[data-key]")); });
  filter.addEventListener("input", () => { remember(); arrange(); });
  filter.addEventListener("keydown", (event) => { if (event.key === "Enter") event.preventDefault(); });
  arrange();

  // A fresh copy of the tables in the place of these, with what was chosen and unfolded.
  async function look() {
    const fresh = (await live.page()).getElementById("tables");
    const chosen = new Set([...tables.querySelectorAll("input:checked")].map((box) => box.value));
    const open = new Set([...tables.querySelectorAll("details[open]")].map((one) => one.id));
    const on = tables.querySelector(".item.on")?.dataset.slug;
    for (const box of fresh.querySelectorAll("input[type=checkbox]")) box.checked = chosen.has(box.value);
    for (const one of fresh.querySelectorAll("details")) one.open = one.open || open.has(one.id);
    for (const row of fresh.querySelectorAll(".item")) row.classList.toggle("on", row.dataset.slug === on);
    if (!tables.contains(document.activeElement)) tables.replaceChildren(...[...fresh.childNodes].map((node) => document.adoptNode(node)));
    arrange();
    return fresh.dataset.live === "1";
  }

  const atWork = (runs) => runs.some((run) => run.live);
  if (tables.dataset.source) live.poll(live.watch(tables.dataset.source, atWork, look), tables.dataset.live === "1");
});
