// The translator: translates the text of the left box into the right one while it is written.

import * as server from "./client.js";
import { acceptFiles } from "./files.js";
import { recall, remember, startHeader } from "./header.js";
import { AUTO, Pairs, UNKNOWN, fill, sourceOptions, targetOptions } from "./pairs.js";
import { language, number, say } from "./words.js";

const PAUSE = 350; // milliseconds without typing after which the text is translated
const SLOW = 250; // milliseconds after which the page shows that it waits
const ALTERNATIVES = 3;
const LONGEST = 500; // characters of a text whose alternatives are shown
const LARGE = 250; // characters of a text in large type
const SURE = 50; // lowest confidence in percent with which a detection changes the target
const HEAD = 40; // characters that are enough to detect a language

const $ = (id) => document.getElementById(id);
const length = (text) => [...text].length; // the server counts code points

let pairs = new Pairs([]);
let limit = Infinity;
let request = null; // aborts the current request
let later = null;
let trouble = null; // the shown error, as name and values of its text
let shown = null; // the shown translation: text, source, target, texts
let detected = null; // language of the text; null if unknown or chosen
let detection = null; // the text and answer of the last /detect

// --- languages ------------------------------------------------------------------------------

function showLanguages() {
  const [source, target] = [$("source").value, $("target").value];
  fill($("source"), sourceOptions(pairs, detected), source);
  showTargets(target);
}

function showTargets(...wanted) {
  const source = $("source").value;
  const options = targetOptions(pairs, source);
  const chosen = source === UNKNOWN ? AUTO : pairs.target(source, ...wanted, recall("target"), spoken(), "en");
  fill($("target"), options, chosen);
  for (const [id, code] of [["text", detected ?? source], ["translation", $("target").value]]) {
    $(id).lang = code === AUTO || code === UNKNOWN ? "" : code.replaceAll("_", "-");
  }
  $("swap").disabled = !swapped();
}

const spoken = () => (language() === "zh" ? "zh" : navigator.language.split("-")[0]);

/** Return the pair in the other direction; null if the server does not translate it. */
function swapped() {
  const source = $("source").value === AUTO ? detected : $("source").value;
  const target = $("target").value;
  return pairs.has(target, source) ? { source: target, target: source } : null;
}

function chooseSource() {
  detected = null;
  remember("source", $("source").value);
  showLanguages();
  translate();
}

function chooseTarget() {
  remember("target", $("target").value);
  showTargets($("target").value);
  translate();
}

function swap() {
  const pair = swapped();
  const text = shown?.text === $("text").value ? shown.texts[0] : null;
  detected = null;
  fill($("source"), sourceOptions(pairs, null), pair.source);
  showTargets(pair.target);
  for (const side of ["source", "target"]) remember(side, pair[side]);
  if (text) $("text").value = text;
  showCount();
  translate();
}

// --- translation ----------------------------------------------------------------------------

function translateSoon(event) {
  showCount();
  $("result").classList.add("stale");
  clearTimeout(later);
  if (event.isComposing) return; // an input method has not finished the word
  later = setTimeout(translate, event.inputType === "insertFromPaste" ? 0 : PAUSE);
}

async function translate() {
  clearTimeout(later);
  request?.abort();
  const mine = (request = new AbortController());
  const text = $("text").value;
  notice(null);
  if (!pairs.sources.length && !pairs.unknown) return;
  if (!text.trim()) return empty();
  if (length(text) > limit) {
    complain("tooLong", { count: number(length(text), 0), limit: number(limit, 0) });
    $("copy").disabled = true;
    return stop();
  }
  wait(mine);
  try {
    const pair = await choosePair(text, mine.signal);
    const answer = await server.translate({ q: text, ...pair }, mine.signal);
    complain(null);
    show(text, pair, answer);
    stop();
    await showAlternatives(mine.signal);
  } catch (wrong) {
    if (mine.signal.aborted) return;
    refuse(wrong);
    stop();
  }
}

/** Return `source` and `target` of a request; a text in the target language changes the target. */
async function choosePair(text, signal) {
  const source = $("source").value;
  if (source === UNKNOWN) return { source: AUTO, target: AUTO };
  // The server detects a language among the sources of the target, which are not the target.
  if (source === AUTO && pairs.targetsOf.has($("target").value)) {
    const code = await detect(text, signal);
    const other = code === $("target").value && pairs.target(code, recall("other"), spoken(), "en");
    if (other) {
      remember("other", code);
      detected = code;
      showTargets(other);
      notice("switched", { source: pairs.name(code), target: pairs.name(other) });
    }
  }
  return { source, target: $("target").value };
}

/** Return the language of a text if the server translates from it and is sure. */
async function detect(text, signal) {
  if (!detection || detection.text.length < HEAD || !text.startsWith(detection.text)) {
    try {
      detection = { text, found: await server.detect(text.slice(0, 2 * LONGEST), signal) };
    } catch (wrong) {
      if (signal.aborted) throw wrong;
      return null; // /translate returns the error, if there is one
    }
  }
  const best = detection.found.find((one) => pairs.targetsOf.has(one.language));
  return best && best.confidence >= SURE ? best.language : null;
}

function show(text, pair, answer) {
  detected = pair.source === AUTO && pair.target !== AUTO ? (answer.detectedLanguage?.language ?? null) : null;
  if (!pairs.targetsOf.has(detected)) detected = null;
  shown = { text, ...pair, texts: [answer.translatedText] };
  $("translation").value = answer.translatedText;
  $("spoken").textContent = say("updated");
  $("copy").disabled = false;
  $("result").classList.remove("stale");
  showLanguages();
}

/** Show that a request is under way, if it takes some time. */
function wait(mine) {
  $("result").classList.add("stale");
  $("spoken").textContent = "";
  setTimeout(() => {
    if (request !== mine || !$("result").classList.contains("stale")) return;
    $("result").classList.add("busy");
    $("state").textContent = say("translating");
  }, SLOW);
}

function stop() {
  $("result").classList.remove("busy");
  $("state").textContent = "";
}

function empty() {
  shown = detected = detection = null;
  $("translation").value = $("spoken").textContent = "";
  $("copy").disabled = true;
  $("result").classList.remove("stale");
  complain(null);
  listVariants();
  showLanguages();
  stop();
}

// --- alternatives ---------------------------------------------------------------------------

const opened = () => $("alternatives").getAttribute("aria-expanded") === "true";

async function showAlternatives(signal) {
  listVariants();
  const mine = shown;
  if (!opened() || !mine || mine.complete || length(mine.text) > LONGEST) return;
  const { text: q, source, target } = mine;
  const answer = await server.translate({ q, source, target, alternatives: ALTERNATIVES }, signal);
  mine.texts = [...new Set([...mine.texts, answer.translatedText, ...answer.alternatives])];
  mine.complete = true;
  listVariants();
}

function listVariants() {
  $("variants").hidden = !opened() || !shown;
  if ($("variants").hidden) return;
  const line = (child) => {
    const item = document.createElement("li");
    item.append(child);
    return item;
  };
  const words = length(shown.text) > LONGEST
    ? say("longAlternatives", { limit: number(LONGEST, 0) })
    : say(shown.complete ? "noAlternatives" : "translating");
  const note = Object.assign(document.createElement("p"), { textContent: words });
  const others = shown.texts.slice(1).map((text) => {
    const button = Object.assign(document.createElement("button"), { type: "button", textContent: text, dir: "auto" });
    button.lang = $("translation").lang;
    button.addEventListener("click", () => choose(text));
    return button;
  });
  $("variants").replaceChildren(...(others.length ? others : [note]).map(line));
}

/** Show an alternative in the box, and the box's text among the alternatives. */
function choose(text) {
  shown.texts = [text, ...shown.texts.filter((one) => one !== text)];
  $("translation").value = text;
  listVariants();
  $("translation").focus();
}

async function toggleAlternatives() {
  $("alternatives").setAttribute("aria-expanded", String(!opened()));
  remember("alternatives", opened() ? "open" : "closed");
  try {
    await showAlternatives(request?.signal);
  } catch (wrong) {
    if (!request?.signal.aborted) refuse(wrong);
  }
}

async function copy() {
  let done = true;
  try {
    await navigator.clipboard.writeText($("translation").value);
  } catch { // without TLS, other machines have no clipboard API
    const before = document.activeElement;
    $("translation").select();
    done = document.execCommand("copy");
    before.focus();
  }
  if (!done) return complain("copyFailed");
  $("state").textContent = $("spoken").textContent = say("copied");
  setTimeout(() => {
    if ($("state").textContent === say("copied")) $("state").textContent = "";
  }, 2000);
}

// --- messages -------------------------------------------------------------------------------

function complain(name, values = {}, retry = false) {
  trouble = name && { name, values };
  $("trouble").hidden = !name;
  $("trouble").firstElementChild.textContent = name ? say(name, values) : "";
  $("retry").hidden = !retry;
}

function notice(name, values = {}) {
  $("notice").hidden = !name;
  $("notice").textContent = name ? say(name, values) : "";
}

function refuse(wrong) {
  const { status, seconds, message } = wrong;
  $("copy").disabled = $("result").classList.contains("stale");
  $("variants").hidden = true;
  if (status === 401 || status === 403) {
    openKey(true);
    complain(server.hasKey() ? "wrongKey" : "needsKey");
  } else if (status === 429) complain("tooMany", { seconds }, true);
  else if (status === 503 || status === 408) complain("busy", { seconds }, true);
  else if (status === 400 && $("source").value === AUTO && message.startsWith("source")) complain("cannotDetect");
  else if (status) complain("serverError", { message });
  else complain("failed", {}, true);
}

function showCount() {
  const count = length($("text").value);
  $("count").textContent = limit < Infinity ? say("count", { count: number(count, 0), limit: number(limit, 0) }) : number(count, 0);
  $("count").classList.toggle("over", count > limit);
  $("clear").hidden = !$("text").value;
  document.querySelector(".panels").classList.toggle("long", count > LARGE);
}

function openKey(open) {
  $("key-open").hidden = false;
  $("key-open").setAttribute("aria-expanded", String(open));
  $("key-form").hidden = !open;
  if (open) $("key").focus();
}

// --- controls -------------------------------------------------------------------------------

/** Write the parts again that depend on the language of the interface. */
function rewrite() {
  document.title = `Outrider: ${say("translator")}`;
  $("text").placeholder = say("placeholder");
  $("translation").placeholder = say("translation");
  $("shortcut").textContent = say("shortcut", { key: /^(Mac|iP)/.test(navigator.platform) ? "⌘" : "Ctrl" });
  notice(null);
  if (trouble) complain(trouble.name, trouble.values, !$("retry").hidden);
  showCount();
  showLanguages();
  listVariants();
}

/** Return the languages of a document. */
function chosen() {
  const source = $("source").value;
  return { source: source === AUTO || source === UNKNOWN ? null : source, target: $("target").value };
}

async function start() {
  try {
    const [settings, languages] = await Promise.all([server.settings(), server.languages()]);
    limit = settings.charLimit > 0 ? settings.charLimit : Infinity;
    pairs = new Pairs(languages);
    complain(languages.length ? null : "noModels");
    $("text").disabled = !languages.length;
    fill($("source"), sourceOptions(pairs, null), recall("source") ?? AUTO);
    showTargets(recall("target"));
    showCount();
    if (settings.filesTranslation && pairs.sources.length && $("choose-file").hidden) acceptFiles(chosen, settings.supportedFilesFormat);
    if (settings.keyRequired) {
      $("key-open").hidden = false;
      if (!server.hasKey()) openKey(true);
    }
    translate();
  } catch (wrong) {
    refuse(wrong);
  }
}

$("source").addEventListener("change", chooseSource);
$("target").addEventListener("change", chooseTarget);
$("swap").addEventListener("click", swap);
$("text").addEventListener("input", translateSoon);
$("text").addEventListener("compositionend", translateSoon);
$("clear").addEventListener("click", () => {
  $("text").value = "";
  showCount();
  translate();
  $("text").focus();
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
    event.preventDefault();
    translate();
  }
});
$("copy").addEventListener("click", copy);
$("alternatives").addEventListener("click", toggleAlternatives);
$("retry").addEventListener("click", () => (pairs.sources.length || pairs.unknown ? translate() : start()));
$("key-open").addEventListener("click", () => openKey($("key-form").hidden));
$("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  if (!server.useKey($("key").value)) return complain("wrongKey");
  $("key").value = "";
  openKey(false);
  complain(null);
  $("text").focus();
  translate();
});

$("alternatives").setAttribute("aria-expanded", String(recall("alternatives") === "open"));
startHeader(rewrite);
if (matchMedia("(min-width: 46rem)").matches) $("text").focus();
start();
