// Asking again: often while a run is at work, now and then for one that begins.
"use strict";

const live = (() => {
  const SLOW = 15000, FAST = 2000; // milliseconds

  // Calls `look` (a promise of whether a run is at work) every two seconds while one is; more slowly when none is, the
  // page is hidden, or nobody answers. `working`: whether one is at first.
  function poll(look, working) {
    let timer = 0, failures = 0;
    const wait = () => (document.hidden || !working ? SLOW : Math.min(SLOW, FAST * 2 ** failures));
    const later = () => { clearTimeout(timer); timer = setTimeout(turn, wait()); };
    async function turn() {
      try {
        working = await look(); failures = 0;
        hone.live(working ? "live" : "");
      } catch {
        failures += 1;
        hone.live("hone view does not answer: start it again; this page goes on by itself", true);
      }
      later();
    }
    document.addEventListener("visibilitychange", () => { if (!document.hidden) { clearTimeout(timer); turn(); } });
    hone.live(working ? "live" : "");
    later();
  }

  async function ask(url) {
    const response = await fetch(url, { cache: "no-store" });
    if (!response.ok) throw new Error(String(response.status));
    return response.json();
  }

  // A `look` for `poll` that first asks for the small answer at `url`, and looks no further if that is as it was and no
  // run is at work; `look` gets the answer. `atWork` tells of an answer whether one is.
  function watch(url, atWork, look) {
    let before = null;
    return async () => {
      const facts = await ask(url), said = JSON.stringify(facts);
      if (said === before && !atWork(facts)) return false;
      const working = await look(facts);
      before = said;
      return working || atWork(facts);
    };
  }

  // The same page as the server has it now.
  async function page() {
    const response = await fetch(location.href, { cache: "no-store" });
    if (!response.ok) throw new Error(String(response.status));
    return new DOMParser().parseFromString(await response.text(), "text/html");
  }

  return { poll, watch, ask, page };
})();
