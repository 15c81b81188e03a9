// Documents: dropped or chosen files are translated on the server and offered for download.

import * as server from "./client.js";
import { number, say } from "./words.js";

const ASK = 700; // milliseconds between two questions about the progress
const $ = (id) => document.getElementById(id);

/**
 * Accept files on the card of the translator.
 *
 * @param {() => {source: string, target: string}} pair returns the chosen languages
 * @param {string[]} formats suffixes that the server translates
 */
export function acceptFiles(pair, formats) {
  const card = $("translator");
  $("file").accept = formats.join(",");
  $("choose-file").hidden = false;
  $("choose-file").addEventListener("click", () => $("file").click());
  $("file").addEventListener("change", () => {
    for (const file of $("file").files) translateFile(file, pair());
    $("file").value = "";
  });
  const holdsFiles = (event) => event.dataTransfer?.types.includes("Files");
  card.addEventListener("dragover", (event) => {
    if (!holdsFiles(event)) return;
    event.preventDefault();
    card.classList.add("dropping");
  });
  for (const name of ["dragleave", "drop"]) {
    card.addEventListener(name, (event) => {
      if (name === "drop" || !card.contains(event.relatedTarget)) card.classList.remove("dropping");
    });
  }
  card.addEventListener("drop", (event) => {
    if (!holdsFiles(event)) return;
    event.preventDefault();
    for (const file of event.dataTransfer.files) translateFile(file, pair());
  });
}

async function translateFile(file, { source, target }) {
  const line = addLine(file.name);
  try {
    const form = new FormData();
    if (source) form.append("source_lang", source);
    form.append("target_lang", target);
    form.append("file", file, file.name);
    const job = await server.startDocument(form, line.signal);
    const place = { id: job.document_id, key: job.document_key };
    for (;;) {
      const { status, seconds_remaining: seconds, error_message: message } = await server.documentStatus(place, line.signal);
      if (status === "done") break;
      if (status === "error") throw new Error(message);
      line.write(say(status === "queued" ? "fileQueued" : "fileTranslating", { seconds: number(seconds, 0) }));
      await new Promise((done) => setTimeout(done, ASK));
    }
    line.offer(await server.documentResult(place, line.signal), file.name, target);
  } catch (wrong) {
    if (!line.signal.aborted) line.fail(wrong.message || say("failed"));
  }
}

/** Add a line to the list of documents; return the functions that change it. */
function addLine(name) {
  const make = (kind, values) => Object.assign(document.createElement(kind), values);
  const stopped = new AbortController();
  const item = make("li");
  const state = make("span", { className: "hint", textContent: say("fileSending") });
  const close = make("button", { type: "button", className: "icon", textContent: "×" });
  close.setAttribute("aria-label", say("fileRemove", { name }));
  close.addEventListener("click", () => {
    stopped.abort();
    item.remove();
    $("files").hidden = !$("files").children.length;
  });
  item.append(make("span", { className: "file-name", textContent: name, dir: "auto" }), state, close);
  $("files").append(item);
  $("files").hidden = false;
  return {
    signal: stopped.signal,
    write: (text) => { state.textContent = text; },
    fail: (message) => {
      state.textContent = message;
      state.classList.add("over");
      state.setAttribute("role", "alert");
    },
    offer: (content, original, target) => {
      const dot = original.lastIndexOf(".");
      const download = `${original.slice(0, dot)}.${target}${original.slice(dot)}`;
      const link = make("a", { href: URL.createObjectURL(content), download, textContent: download });
      state.replaceChildren(link);
      $("spoken").textContent = say("fileReady", { name: download });
    },
  };
}
