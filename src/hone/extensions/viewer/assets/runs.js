// Replaces the tables of runs by fresh ones while runs are running; keeps the chosen runs and unfolded parts.
"use strict";

document.addEventListener("DOMContentLoaded", () => hone.follow((page) => {
  const tables = document.getElementById("tables"), fresh = page.getElementById("tables");
  const chosen = new Set([...tables.querySelectorAll("input:checked")].map((box) => box.value));
  const open = new Set([...tables.querySelectorAll("details[open]")].map((one) => one.id));
  for (const box of fresh.querySelectorAll("input")) box.checked = chosen.has(box.value);
  for (const one of fresh.querySelectorAll("details")) one.open = one.open || open.has(one.id);
  if (!tables.contains(document.activeElement)) tables.replaceWith(document.adoptNode(fresh));
}));
