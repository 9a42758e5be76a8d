// Shared by all pages: keys (/ searches, [ and ] turn pages), and data in the page. Model text is only set as textContent.
"use strict";

const hone = (() => {
  // The value of a colour name in hone.css, e.g. "accent".
  const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

  // The JSON in <script type="application/json" id=ID>.
  const data = (id) => { const block = document.getElementById(id); return block && JSON.parse(block.textContent); };

  // Stores the page's state in its address, so that links can be shared; values equal to `usual` are left out.
  function remember(values, usual = {}) {
    const url = new URL(location.href);
    for (const [key, value] of Object.entries(values)) {
      url.searchParams.delete(key);
      if (value && String(value) !== String(usual[key])) url.searchParams.set(key, value);
    }
    try { history.replaceState(null, "", url); } catch { /* a file in some browsers */ }
  }

  // Shows "live" in the header, or the reason why not; "" hides it.
  function live(text, lost = false) {
    const place = document.getElementById("live");
    place.hidden = !text; place.textContent = text; place.classList.toggle("lost", lost);
  }

  // Calls `update` with fresh copies of this page: every 2 s while a run is running (less often if the server is slow),
  // every 15 s if no run is running, the page is hidden, or the server does not answer.
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

  const click = (selector) => { const link = document.querySelector(selector); if (link) link.click(); };

  const keys = {
    "[": () => click("a[rel=prev]"), "]": () => click("a[rel=next]"),
    "/": () => {
      const field = document.querySelector("input[type=search]");
      if (field) { field.focus(); field.select(); } else click("a[rel=search]");
    },
  };

  document.addEventListener("keydown", (event) => {
    const typing = event.target.closest("input, select, textarea, [contenteditable]");
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (typing) { if (event.key === "Escape") typing.blur(); return; }
    const action = keys[event.key];
    if (action) { event.preventDefault(); action(); }
  });
  return { color, data, remember, follow };
})();
