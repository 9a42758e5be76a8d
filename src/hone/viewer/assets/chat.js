// A conversation with each server on the page, which has its own answers. Text of models is only ever textContent.
"use strict";

document.addEventListener("DOMContentLoaded", () => {
  const [form, send, stop, clear] = ["ask", "send", "stop", "clear"].map((id) => document.getElementById(id));
  if (!form) return;
  const boxes = [...document.querySelectorAll("[data-server]")].filter((box) => box.querySelector("select"));
  const speakers = boxes.map((box) => ({ box, turns: box.querySelector(".turns"), messages: [] }));
  let asked = null; // aborts what is being answered

  function show(speaker, name, kind) {
    const turn = document.createElement("section"), head = document.createElement("h3"), text = document.createElement("pre");
    turn.className = `turn ${kind}`; head.textContent = name; text.className = "said";
    turn.append(head, text);
    speaker.turns.append(turn);
    return text;
  }

  function note(speaker, text, kind) {
    const box = document.createElement("div");
    box.className = `box ${kind}`; box.textContent = text;
    speaker.turns.append(box);
  }

  // Yields the events of an answer as they come.
  async function* events(response) {
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    for (let rest = ""; ;) {
      const { done, value } = await reader.read();
      if (done) return;
      const lines = (rest + value).split("\n");
      rest = lines.pop();
      for (const line of lines) if (line.startsWith("data: ")) yield JSON.parse(line.slice(6));
    }
  }

  async function answer(speaker, question, system, settings, signal) {
    show(speaker, "user", "other").textContent = question;
    const place = show(speaker, "assistant", "policy"), model = speaker.box.querySelector("select").value;
    speaker.messages.push({ role: "user", content: question });
    const body = { ...settings, server: speaker.box.dataset.server, model, messages: [...system, ...speaker.messages] };
    let text = "";
    try {
      const headers = { "Content-Type": "application/json" };
      const response = await fetch(location.pathname, { method: "POST", headers, body: JSON.stringify(body), signal });
      if (!response.ok) throw new Error(`hone view answers ${response.status}: load this page again`);
      for await (const event of events(response)) {
        if (event.error) throw new Error(event.error);
        if (event.note) note(speaker, event.note, "note");
        if (event.text) { text += event.text; place.textContent += event.shown; }
      }
    } catch (error) {
      note(speaker, signal.aborted ? "stopped" : error.message, signal.aborted ? "note" : "warn");
      if (!text) { speaker.messages.pop(); return; } // what has no answer is not part of the conversation
    }
    speaker.messages.push({ role: "assistant", content: text });
  }

  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const fields = form.elements, question = fields.question.value.trim();
    if (!question || asked) return;
    const system = fields.system.value ? [{ role: "system", content: fields.system.value }] : [];
    const settings = { temperature: Number(fields.temperature.value), max_tokens: Number(fields.max_tokens.value) };
    asked = new AbortController();
    stop.disabled = false; send.disabled = clear.disabled = true; fields.question.value = "";
    await Promise.all(speakers.map((speaker) => answer(speaker, question, system, settings, asked.signal)));
    asked = null; stop.disabled = true; send.disabled = clear.disabled = false;
  });
  form.elements.question.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); form.requestSubmit(); }
  });
  stop.addEventListener("click", () => asked && asked.abort());
  clear.addEventListener("click", () => {
    for (const speaker of speakers) { speaker.messages = []; speaker.turns.replaceChildren(); }
  });
  send.disabled = false; // from here on the script takes the form, not the browser
});
