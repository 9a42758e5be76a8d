// The table of runs: sorting, filtering, and keeping up with runs that are at work.
"use strict";

document.addEventListener("DOMContentLoaded", () => {
  const tables = document.getElementById("tables"), filter = document.getElementById("filter");
  const state = new URL(location.href).searchParams;
  let sort = state.get("sort"), down = state.get("down") === "1";
  filter.value = state.get("q") || "";

  const remember = () => hone.remember({ q: filter.value.trim(), sort, down: sort && down ? "1" : "" });

  // What is empty comes last, whichever the direction.
  function compare(a, b) {
    if (a === "" || b === "") return (a === "") - (b === "");
    const numbers = Number.isFinite(Number(a)) && Number.isFinite(Number(b));
    const order = numbers ? Number(a) - Number(b) : a.localeCompare(b, undefined, { numeric: true });
    return down ? -order : order;
  }

  function arrange() {
    let shown = 0, all = 0;
    for (const table of tables.querySelectorAll("table.runs")) {
      for (const head of table.querySelectorAll("th[data-key]")) {
        head.setAttribute("aria-sort", head.dataset.key !== sort ? "none" : down ? "descending" : "ascending");
        head.tabIndex = 0;
      }
      const body = table.tBodies[0], rows = [...body.rows];
      const key = (row) => row.querySelector(`td.${CSS.escape(sort)}`)?.dataset.sort ?? "";
      if (sort) body.append(...rows.sort((a, b) => compare(key(a), key(b))));
      for (const row of rows) {
        row.hidden = !hone.hasWords(row.dataset.words, filter.value);
        shown += !row.hidden; all += 1;
      }
    }
    document.getElementById("count").textContent = filter.value.trim() ? `${shown} of ${all} runs` : "";
  }

  function sortBy(event) {
    const key = event.target.closest("th[data-key]")?.dataset.key;
    if (!key || (event.type === "keydown" && event.key !== "Enter")) return;
    down = sort === key ? !down : !["name", "status", "exact"].includes(key);
    sort = key;
    remember(); arrange();
  }

  for (const type of ["click", "keydown"]) tables.addEventListener(type, sortBy);
  filter.addEventListener("input", () => { remember(); arrange(); });
  filter.addEventListener("keydown", (event) => { if (event.key === "Enter") event.preventDefault(); });
  arrange();

  // A fresh copy of the tables in the place of these, with what was chosen and unfolded.
  hone.follow((page) => {
    const fresh = page.getElementById("tables");
    const chosen = new Set([...tables.querySelectorAll("input:checked")].map((box) => box.value));
    const open = new Set([...tables.querySelectorAll("details[open]")].map((one) => one.id));
    const on = tables.querySelector(".item.on")?.dataset.slug;
    for (const box of fresh.querySelectorAll("input[type=checkbox]")) box.checked = chosen.has(box.value);
    for (const one of fresh.querySelectorAll("details")) one.open = one.open || open.has(one.id);
    for (const row of fresh.querySelectorAll(".item")) row.classList.toggle("on", row.dataset.slug === on);
    if (!tables.contains(document.activeElement)) tables.replaceChildren(...[...fresh.childNodes].map((node) => document.adoptNode(node)));
    arrange();
  });
});
