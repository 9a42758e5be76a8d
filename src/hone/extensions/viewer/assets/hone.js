// What every page shares: keys (/ searches, [ and ] turn pages), and data that lie in the page. Text of models is only ever textContent.
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

  // Hands fresh copies of this page to `update`: every two seconds while a run is running (less often if the server needs
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
