// The drafting race: sends a text, shows both modes of decoding, and inspects their tokens.

import { hasKey, models, useKey } from "./client.js";
import { watch } from "./events.js";
import { recall, remember, startHeader } from "./header.js";
import { Race } from "./race.js";
import { KINDS, describe, heaviest, makeListbox, makeToken, markOthers, nameListbox, shade } from "./tokens.js";
import { EXAMPLES, language, number, say, time } from "./words.js";

const $ = (id) => document.getElementById(id);
const still = matchMedia("(prefers-reduced-motion: reduce)");
let race = null; // what is shown
let answer = null; // the events of the server
let asking = null; // aborts the current request

// --- request --------------------------------------------------------------------------------

const spoken = (side) => $(`${side}-language`).value || null;
const question = () => ({
  model: $("model").value || null,
  text: $("text").value,
  ...($("languages").hidden ? {} : { source: spoken("source"), target: spoken("target") }),
  gamma: Number($("gamma").value),
  draft_tokens: Number($("draft").value),
});

async function ask() {
  asking?.abort();
  race?.stop();
  const mine = (asking = new AbortController());
  const asked = question();
  if (!asked.text.trim()) return;
  complain(null);
  $("race").hidden = false;
  $("race").classList.add("busy");
  $("verdict").textContent = say("decoding");
  $("figures").textContent = $("spoken").textContent = "";
  answer = { asked, start: null, done: {}, looks: {} };
  const pace = document.querySelector("[name=pace]:checked").value;
  const now = (race = new Race(pace, { over: () => finish(), frame: () => advance() }));
  $("source").hidden = true;
  refreshAgain();
  if ($("race").getBoundingClientRect().top > innerHeight / 2) {
    $("race").scrollIntoView({ block: "start", behavior: still.matches ? "auto" : "smooth" });
  }
  try {
    for await (const { name, data } of watch(asked, mine.signal)) {
      hear(name, data, now);
    }
    if (!answer.done.ar) throw new Error(say("failed"));
    now.close();
  } catch (wrong) {
    if (mine.signal.aborted) return;
    now.stop();
    $("race").hidden = true;
    if (wrong.status === 401 || wrong.status === 403) {
      $("key-field").hidden = false;
      $("key").focus();
      complain(say(hasKey() ? "wrongKey" : "needsKey"));
    } else {
      complain(wrong instanceof TypeError ? say("failed") : wrong.message);
    }
  }
}

function hear(name, data, now) {
  if (name === "error") throw new Error(data.message);
  if (name === "start") {
    now.asked = performance.now(); // excludes the time to load the model
    begin(data);
  }
  if (name === "round") now.add(data.mode, data);
  if (name === "done") {
    answer.done[data.mode] = data;
    now.done(data.mode, data.at);
  }
  if (name === "looks") answer.looks[data.mode] = data.weights;
}

function begin(start) {
  answer.start = start;
  const drafts = start.draft_tokens;
  $("tandem").classList.toggle("absent", !drafts);
  $("tandem").querySelector(".about").textContent = say(drafts ? "tandemMeans" : "noDrafter");
  $("track").classList.toggle("alone", !drafts);
  for (const id of ["gamma", "draft"]) $(id).disabled = !drafts;
  if (drafts) {
    $("draft").max = start.longest_draft;
    $("draft").value = drafts;
    showValues();
  }
}

function complain(words) {
  $("trouble").hidden = words === null;
  $("trouble").textContent = words ?? "";
}

// --- showing --------------------------------------------------------------------------------

function advance() {
  $("race").classList.remove("busy");
  if ($("verdict").textContent !== say("decoding")) return;
  $("verdict").textContent = answer.done.tandem || race.lanes.tandem.rounds.length
    ? say("running")
    : say("ar");
  $("figures").textContent = race.slowed > 1 ? say("slowed", { factor: number(race.slowed, 0) }) : "";
  refreshAgain();
}

function finish() {
  $("race").classList.remove("busy");
  const { ar, tandem } = answer.done;
  const { lanes } = race;
  const rounds = { ar: lanes.ar.passes.length, tandem: lanes.tandem.passes.length };
  const verdict = !tandem ? "alone" : tandem.text === ar.text ? "same" : "differs";
  $("verdict").textContent = say(verdict, rounds);
  $("race").dataset.verdict = verdict;
  const times = { arTime: time(lanes.ar.end), tandemTime: time(lanes.tandem.end) };
  const ratio = lanes.ar.end / lanes.tandem.end;
  const told = [
    !tandem
      ? say("figuresAlone", times)
      : say(ratio >= 1.05 ? "figures" : "figuresSlower", { ...times, ratio: number(ratio, 1) }),
  ];
  if (verdict === "differs") told.push(say("trusts", { gamma: number(answer.asked.gamma, 2) }));
  const takes = Math.min(ar.takes, tandem?.takes ?? ar.takes);
  if (takes > 1) told.push(say("fastest", { takes }));
  if (race.slowed > 1) told.push(say("slowed", { factor: number(race.slowed, 0) }));
  $("figures").textContent = told.join(language() === "zh" ? "" : " ");
  const best = tandem ? "tandem" : "ar";
  $("spoken").textContent = say("spoken", {
    verdict: $("verdict").textContent,
    figures: told[0],
    name: say(best),
    text: answer.done[best].text,
  });
  if (verdict === "differs") markOthers(...["tandem", "ar"].map(chipsIn));
  showSource();
  showLegend();
  look(null);
  refreshAgain();
}

function refreshAgain() {
  $("again").hidden = !race || (race.started === null && !race.finished);
  $("again").textContent = say(race?.finished ? "again" : "skip");
}

function showLegend() {
  const all = Object.values(race.lanes).flatMap((lane) => lane.rounds.flatMap((round) => round.tokens));
  const found = new Set(all.map((token) => token.kind));
  if ($("tandem").querySelector(".other")) found.add("other");
  $("legend").replaceChildren(
    ...[...KINDS, "other"].filter((kind) => found.has(kind)).map((kind) => {
      const line = document.createElement("li");
      const mark = line.appendChild(document.createElement("i"));
      mark.className = `token ${kind}`;
      mark.textContent = "a";
      mark.setAttribute("aria-hidden", "true");
      line.append(say(kind));
      return line;
    }),
  );
}

function showSource() {
  const known = Object.keys(answer.looks).length > 0;
  $("source").hidden = !known;
  if (!known) return;
  const chips = answer.start.source.flatMap((tokens, piece) =>
    tokens.flatMap((token, index) => [
      ...(piece && !index ? [" "] : []),
      ...makeToken(token, "", { mode: "source", piece, index }),
    ]),
  );
  $("source-tokens").replaceChildren(...chips);
  nameListbox($("source-tokens"), say("source"));
}

// --- tokens ---------------------------------------------------------------------------------

const chipsOf = (box) => [...box.querySelectorAll("[role=option]")];
const chipsIn = (mode) => chipsOf($(mode).querySelector(".text"));
const written = () => ["ar", "tandem"].flatMap(chipsIn);

function look(token) {
  shade([...chipsOf($("source-tokens")), ...written()], null);
  const known = Object.keys(answer?.looks ?? {}).length > 0;
  if (!token) {
    $("inspector").textContent = say(known ? "hintLooks" : "hint");
    return;
  }
  $("inspector").replaceChildren(...(token.mode === "source" ? lookedAt(token) : looksAt(token)));
}

function looksAt(token) {
  const strong = Object.assign(document.createElement("strong"), { textContent: token.word });
  if (token.kind === "drafted") return [strong, ` ${say("drafted")}`];
  const told = [strong, ` ${describe(token)}`];
  const weights = token.index === null ? null : answer.looks[token.mode]?.[token.piece]?.[token.index];
  if (weights && race.finished) {
    const words = chipsOf($("source-tokens")).filter((chip) => chip.token.piece === token.piece);
    shade(words, (one) => weights[one.index]);
    const list = heaviest(words.map((chip) => chip.token.word), weights);
    if (list) told.push(say("and"), say("looks", { list }));
  }
  return told;
}

function lookedAt(token) {
  const weightOf = (one) =>
    one.piece === token.piece && one.index !== null
      ? (answer.looks[one.mode]?.[one.piece]?.[one.index]?.[token.index] ?? 0)
      : 0;
  shade(written(), weightOf);
  const lane = answer.looks.tandem ? "tandem" : "ar";
  const chips = chipsIn(lane);
  const list = heaviest(chips.map((chip) => chip.token.word), chips.map((chip) => weightOf(chip.token)));
  return [list ? say("seen", { word: token.word, list }) : say("nobody", { word: token.word })];
}

// --- controls -------------------------------------------------------------------------------

let later = null;
function askAgainSoon() {
  clearTimeout(later);
  if (answer) later = setTimeout(ask, 250);
}

function showValues() {
  const gamma = Number($("gamma").value);
  $("gamma-value").textContent = number(gamma, 2);
  $("gamma-means").textContent = say(gamma === 0 ? "gammaNone" : gamma === 1 ? "gammaAll" : "gammaSome");
  $("draft-value").textContent = $("draft").value;
  for (const id of ["gamma", "draft"]) {
    const { min, max, value } = $(id);
    $(id).style.setProperty("--share", (value - min) / (max - min || 1));
  }
}

/** Write the parts again that depend on the language of the interface. */
function rewrite() {
  document.title = `Outrider: ${say("drafting")}`;
  $("text").placeholder = say("placeholder");
  showValues();
  if (answer?.start) begin(answer.start);
  for (const lane of Object.values(race?.lanes ?? {})) lane.clear();
  if (race?.finished && answer.done.ar) {
    for (const lane of Object.values(race.lanes)) lane.show(Infinity);
    finish();
  }
  refreshAgain();
}

let known = []; // the models of the server

function chooseModel() {
  const model = known.find((one) => one.name === $("model").value);
  if (!model) return;
  $("languages").hidden = !model.targets.length;
  const fill = (side, codes) => {
    $(`${side}-language`).replaceChildren(...codes.map((code) => new Option(code, code)));
    $(`${side}-language`).hidden = !codes.length;
  };
  fill("source", model.sources);
  fill("target", model.targets);
  const examples = Object.values(EXAMPLES);
  if (!$("text").value || examples.includes($("text").value)) {
    $("text").value = EXAMPLES[model.pair?.[0]] ?? "";
  }
}

async function listModels() {
  try {
    known = await models();
    const names = known.map((model) => model.name);
    $("model").replaceChildren(...names.map((name) => new Option(name, name)));
    $("model").value = names.includes(recall("model")) ? recall("model") : (names[0] ?? "");
    $("model").disabled = names.length < 2;
    chooseModel();
  } catch (wrong) {
    if (wrong.status === 401 || wrong.status === 403) $("key-field").hidden = false;
  }
}

$("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  ask();
});
$("text").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
    event.preventDefault();
    ask();
  }
});
for (const id of ["gamma", "draft"]) {
  $(id).addEventListener("input", () => {
    showValues();
    askAgainSoon();
  });
}
$("model").addEventListener("change", () => {
  remember("model", $("model").value);
  for (const id of ["gamma", "draft"]) $(id).disabled = false;
  chooseModel();
  askAgainSoon();
});
for (const side of ["source", "target"]) {
  $(`${side}-language`).addEventListener("change", askAgainSoon);
}
$("key").addEventListener("change", () => {
  useKey($("key").value);
  listModels();
});
for (const radio of document.querySelectorAll("[name=pace]")) {
  radio.addEventListener("change", () => {
    if (!race?.complete) return;
    race.stop();
    race.pace = radio.value;
    race.again();
    refreshAgain();
  });
}
$("again").addEventListener("click", () => {
  if (race.finished) {
    $("verdict").textContent = say("decoding");
    race.again();
  } else {
    race.skip();
  }
  refreshAgain();
});
for (const part of document.querySelectorAll(".lane details")) {
  part.open = matchMedia("(min-width: 46rem)").matches; // closed on a phone, where both texts are first
}
for (const box of document.querySelectorAll(".tokens")) makeListbox(box, look);

startHeader(rewrite);
listModels();
