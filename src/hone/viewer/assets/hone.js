// What every page shares: keys, and data that lie in the page. Text of models is only ever textContent.
"use strict";

const hone = (() => {
  // The colour of that name in hone.css, e.g. "accent".
  const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

  // The JSON in <script type="application/json" id=ID>.
  const data = (id) => { const block = document.getElementById(id); return block && JSON.parse(block.textContent); };

  // State of the page in its address, so that a link can be shared; what is as `usual` is left out.
  function remember(values, usual = {}) {
    const url = new URL(location.href);
    for (const [key, value] of Object.entries(values)) {
      url.searchParams.delete(key);
      if (value && String(value) !== String(usual[key])) url.searchParams.set(key, value);
    }
    try { history.replaceState(null, "", url); } catch { /* a file in some browsers */ }
  }

  // Says "live" in the header, or why not; nothing for "".
  function live(text, lost = false) {
    const place = document.getElementById("live");
    place.hidden = !text; place.textContent = text; place.classList.toggle("lost", lost);
  }

  // Returns whether a text has all the words.
  const hasWords = (text, words) => words.toLowerCase().split(/\s+/).every((word) => text.includes(word));

  // Puts parts of a fresh copy of this page in the place of what is shown.
  function replace(fresh, ...selectors) {
    for (const selector of selectors) {
      const now = document.querySelector(selector), then = fresh.querySelector(selector);
      if (now && then) now.replaceWith(document.adoptNode(then));
    }
  }

  // Hands fresh copies of this page to `update`: every two seconds while a run is at work (less often if the server needs
  // a while for one), every 15 when none is, when the page is hidden, or nobody answers.
  function follow(update) {
    const SLOW = 15000, FAST = 2000; // milliseconds
    let timer = 0, working = document.querySelector("main").dataset.live === "1";
    const later = (took) => {
      clearTimeout(timer);
      timer = setTimeout(turn, document.hidden || !working ? SLOW : Math.min(SLOW, Math.max(FAST, 20 * took)));
    };
    async function turn() {
      const began = performance.now();
      try {
        const response = await fetch(location.href, { cache: "no-store" });
        if (!response.ok) throw new Error(String(response.status));
        const fresh = new DOMParser().parseFromString(await response.text(), "text/html");
        working = fresh.querySelector("main").dataset.live === "1";
        update(fresh);
        live(working ? "live" : "");
      } catch {
        working = false;
        live("hone view does not answer: start it again; this page goes on by itself", true);
      }
      later(performance.now() - began);
    }
    document.addEventListener("visibilitychange", () => { if (!document.hidden) { clearTimeout(timer); turn(); } });
    live(working ? "live" : "");
    later(0);
  }

  // Items that j and k go through: elements of class "item", each with a link of class "open".
  function move(by) {
    const items = [...document.querySelectorAll(".item")].filter((item) => item.offsetParent !== null);
    if (!items.length) return;
    const at = items.findIndex((item) => item.classList.contains("on"));
    const next = items[Math.min(items.length - 1, Math.max(0, at < 0 ? 0 : at + by))];
    items.forEach((item) => item.classList.toggle("on", item === next));
    next.scrollIntoView({ block: "nearest" });
  }

  const click = (selector) => { const link = document.querySelector(selector); if (link) link.click(); };

  const keys = {
    j: () => move(1), k: () => move(-1), "[": () => click("a[rel=prev]"), "]": () => click("a[rel=next]"),
    g: () => click("header .brand"), Enter: () => click(".item.on a.open, .item.on summary"),
    "?": () => document.getElementById("keys").showModal(),
    "/": () => {
      const field = document.querySelector("input[type=search]");
      if (field) { field.focus(); field.select(); } else click("a[rel=search]");
    },
  };

  document.addEventListener("DOMContentLoaded", () => {
    const dialog = document.getElementById("keys");
    document.getElementById("help").addEventListener("click", () => dialog.showModal());
    dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
  });
  document.addEventListener("keydown", (event) => {
    const typing = event.target.closest("input, select, textarea, [contenteditable]");
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (typing) { if (event.key === "Escape") typing.blur(); return; }
    if (event.key === "Enter" && event.target.closest("a, button, summary")) return;
    const action = keys[event.key];
    if (action && !document.querySelector("dialog[open]")) { event.preventDefault(); action(); }
  });
  return { color, data, remember, hasWords, replace, follow };
})();
