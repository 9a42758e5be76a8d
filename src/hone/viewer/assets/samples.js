// A completion: the colours of its tokens, and what is known of the token under the pointer. Text of models is only ever
// textContent.
"use strict";

(() => {
  const tokens = hone.data("token-data");

  // The level of a value: how many edges it reaches; negative below 0 where signs count.
  function level(name, value) {
    if (value === null) return 0;
    const reached = tokens.edges[name].filter((edge) => Math.abs(value) >= edge).length;
    return tokens.signed.includes(name) && value < 0 ? -reached : reached;
  }

  // The pieces of a block of text, cut by their lengths; kept, because colouring cuts the text in other places.
  function cut(block) {
    const text = block.textContent, pieces = [];
    let at = 0;
    for (let i = +block.dataset.from; i < +block.dataset.to; i++) {
      pieces.push(text.slice(at, at + tokens.length[i]));
      at += tokens.length[i];
    }
    return pieces;
  }

  const blocks = tokens ? [...document.querySelectorAll("pre.tokens")]
    .map((block) => ({ block, from: +block.dataset.from, pieces: cut(block) })) : [];

  function paint(name) {
    const values = tokens.values[name];
    for (const { block, from, pieces } of blocks) {
      const made = document.createDocumentFragment();
      let run = "", held = null;
      const flush = () => {
        if (!run) return;
        const part = held ? Object.assign(document.createElement("span"), { className: held, textContent: run }) : run;
        made.append(part);
        run = "";
      };
      pieces.forEach((text, k) => {
        const i = from + k, at = values ? level(name, values[i] ?? null) : 0;
        const as = [at > 0 ? `l${at}` : at < 0 ? `m${-at}` : "", tokens.special[i] ? "sp" : ""].join(" ").trim();
        if (as !== held) { flush(); held = as; }
        run += text;
      });
      flush();
      block.replaceChildren(made);
      block.className = `said tokens by-${name}`;
    }
    document.querySelectorAll("[data-legend]").forEach((legend) => { legend.hidden = legend.dataset.legend !== name; });
    for (const chip of document.querySelectorAll("#colours [data-color]")) {
      chip.classList.toggle("on", chip.dataset.color === name);
    }
  }

  // The piece at a point of the page: the text before it in its block, measured against the pieces' lengths.
  function pieceAt(x, y) {
    const place = document.caretPositionFromPoint?.(x, y) ?? document.caretRangeFromPoint?.(x, y);
    if (!place) return null;
    const node = place.offsetNode || place.startContainer, offset = place.offset ?? place.startOffset;
    const found = blocks.find(({ block }) => block.contains(node));
    if (!found || node.nodeType !== Node.TEXT_NODE) return null;
    const before = document.createRange();
    before.setStart(found.block, 0); before.setEnd(node, offset);
    let left = before.toString().length;
    const k = found.pieces.findIndex((piece) => (left -= piece.length) < 0);
    return k < 0 ? null : { i: found.from + k, text: found.pieces[k] };
  }

  const number = (value, digits) => value === null ? "–" : value.toPrecision(digits);

  function describe(event) {
    const tip = document.getElementById("tip"), found = pieceAt(event.clientX, event.clientY);
    tip.hidden = !found;
    if (!found) return;
    const { i, text } = found, of = (name) => tokens.values[name][i] ?? null, logprob = of("logprob");
    const id = tokens.ids[i].join(" + ");
    const lines = [`${JSON.stringify(text)}  id ${id}, place ${tokens.first + tokens.start[i]}`];
    if (!tokens.sampled[i]) lines.push("not sampled: the environment's");
    else {
      const probability = number(logprob === null ? null : Math.exp(logprob), 3);
      const [entropy, gap, advantage] = ["entropy", "gap", "advantage"].map((name) => number(of(name), 3));
      lines.push(`probability ${probability}, logprob ${number(logprob, 4)}`);
      lines.push(`entropy ${entropy} nats, gap ${gap} nats, advantage ${advantage}`);
    }
    tip.textContent = lines.join("\n");
    tip.style.left = `${Math.max(4, Math.min(event.clientX + 12, innerWidth - tip.offsetWidth - 8))}px`;
    const below = event.clientY + 18, above = event.clientY - tip.offsetHeight - 10;
    tip.style.top = `${below + tip.offsetHeight > innerHeight ? above : below}px`;
  }

  if (tokens) {
    const chips = document.getElementById("colours");
    paint(chips.querySelector(".on").dataset.color);
    chips.addEventListener("click", (event) => {
      const chip = event.target.closest("[data-color]");
      if (!chip || event.ctrlKey || event.metaKey || event.shiftKey) return;
      event.preventDefault();
      hone.remember({ color: chip.dataset.color }, { color: "logprob" });
      paint(chip.dataset.color);
    });
    const completion = document.getElementById("completion");
    completion.addEventListener("pointermove", describe);
    completion.addEventListener("click", describe);
    completion.addEventListener("pointerleave", () => { document.getElementById("tip").hidden = true; });
  }
})();
