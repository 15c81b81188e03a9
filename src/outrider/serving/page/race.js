// Both modes of decoding on one clock, played in real time or slower.

import { makeToken, nameListbox, wordOf } from "./tokens.js";
import { number, say, time } from "./words.js";

const SLOW_MOTION = 6000; // milliseconds of the longer lane in slow motion
const DRAFT_SHARE = 0.4; // share of a round after which its draft is shown
const MAX_WAIT = 1500; // milliseconds after which a slow answer is shown as it arrives

const kept = (token) => token.kind !== "refused" && token.kind !== "dropped";

/** The rounds of one mode, and their part of the page. */
class Lane {
  constructor(mode) {
    this.mode = mode;
    this.part = document.getElementById(mode);
    this.box = this.part.querySelector(".text");
    this.ledger = this.part.querySelector(".ledger");
    this.counts = this.part.querySelector(".counts");
    this.rounds = [];
    this.passes = []; // times of decoding steps; pieces of a text are decoded together
    this.done = null;
    this.clear();
  }

  clear() {
    this.box.replaceChildren();
    this.pieces = [];
    this.ledger.replaceChildren();
    this.counts.replaceChildren();
    for (const round of this.rounds) round.stage = round.group = null;
    nameListbox(this.box, "");
  }

  get end() {
    return this.rounds.length ? this.rounds.at(-1).at : 0;
  }

  add(round) {
    const before = this.rounds.filter((one) => one.piece === round.piece);
    let index = before.length ? before.at(-1).next : 0;
    for (const token of round.tokens) token.index = kept(token) ? index++ : null;
    round.next = index;
    round.place = before.length;
    this.rounds.push(round);
    this.number(round);
  }

  /** Set the decoding step of the newest round. */
  number(round) {
    if (this.passes.at(-1) !== round.at) this.passes.push(round.at);
    round.pass = this.passes.length;
    round.begin = this.passes.at(-2) ?? 0;
  }

  /** Replace the times by those of another run, a list for each piece. */
  retime(times) {
    for (const round of this.rounds) round.at = times[round.piece][round.place];
    this.rounds.sort((a, b) => a.at - b.at);
    this.passes = [];
    for (const round of this.rounds) this.number(round);
  }

  /** Return the element of a piece of the text. */
  piece(number) {
    while (this.pieces.length <= number) {
      if (this.pieces.length) this.box.append(" ");
      this.pieces.push(this.box.appendChild(document.createElement("span")));
    }
    return this.pieces[number];
  }

  /** Show the state at a time. */
  show(clock) {
    let changed = false;
    for (const round of this.rounds) {
      if (round.begin > clock) break;
      if (round.stage === "settled") continue;
      const stage = this.stage(round, clock);
      if (stage === (round.stage ?? "waiting")) continue;
      changed = true;
      this.draw(round, stage);
    }
    if (changed) nameListbox(this.box, say(this.mode));
    this.count(clock);
  }

  stage(round, clock) {
    if (clock >= round.at) {
      const next = this.passes[round.pass]; // passes are counted from 1
      const length = next === undefined ? round.at - round.begin : next - round.at;
      return clock >= round.at + DRAFT_SHARE * length ? "settled" : "judged";
    }
    const drafted = round.tokens.some((token) => token.place);
    const out = round.begin + DRAFT_SHARE * (round.at - round.begin);
    return drafted && clock >= out ? "drafted" : "waiting";
  }

  draw(round, stage) {
    const about = { mode: this.mode, piece: round.piece, round: round.pass };
    if (!round.group) {
      round.group = this.piece(round.piece).appendChild(document.createElement("span"));
    }
    const before = round.stage;
    const shown = inOrder(round.tokens, stage).flatMap((token) =>
      makeToken(token, stage === "drafted" ? "drafted" : token.kind, about),
    );
    round.group.className = `round ${stage}`;
    round.group.replaceChildren(...shown);
    round.stage = stage;
    if (stage !== "drafted" && before !== "judged") this.enter(round);
  }

  /** Append a round to the list of rounds, with its refused tokens. */
  enter(round) {
    const line = document.createElement("li");
    line.value = round.pass;
    const tokens = line.appendChild(document.createElement("span"));
    for (const token of round.tokens) {
      const name = { refused: "del", dropped: "del", correction: "ins" }[token.kind] ?? "span";
      const chip = tokens.appendChild(document.createElement(name));
      chip.className = `token ${token.kind}${token.ends ? " end" : ""}`;
      chip.textContent = wordOf(token);
      tokens.append(" ");
    }
    this.ledger.append(line);
  }

  count(clock) {
    const said = this.rounds.filter((round) => round.at <= clock);
    const passed = this.passes.filter((at) => at <= clock);
    const tokens = said.reduce((sum, round) => sum + round.tokens.filter(kept).length, 0);
    const figures = [
      [number(passed.length, 0), say("countRounds")],
      [time(Math.min(clock, this.end)), say("countTime")],
      [passed.length ? number(tokens / passed.length, 1) : "–", say("countRate")],
    ];
    if (!this.counts.children.length) {
      for (const [, name] of figures) {
        const pair = this.counts.appendChild(document.createElement("div"));
        pair.append(Object.assign(document.createElement("dt"), { textContent: name }));
        pair.append(document.createElement("dd"));
      }
    }
    this.counts.querySelectorAll("dd").forEach((cell, n) => {
      if (cell.textContent !== figures[n][0]) cell.textContent = figures[n][0];
    });
  }
}

/** Return the tokens in order of display; a correction precedes the refused token. */
function inOrder(tokens, stage) {
  if (stage === "drafted") return tokens.filter((token) => token.place);
  if (stage === "settled") return tokens.filter(kept);
  return [...tokens.filter(kept), ...tokens.filter((token) => !kept(token))];
}

/** Both modes of one text. */
export class Race {
  constructor(pace, { over, frame }) {
    this.pace = pace;
    this.over = over;
    this.frame = frame;
    this.lanes = { ar: new Lane("ar"), tandem: new Lane("tandem") };
    this.complete = false;
    this.started = null;
    this.asked = performance.now();
    this.finished = false;
    this.track = new Track(document.getElementById("track"), this.lanes);
  }

  get longest() {
    return Math.max(this.lanes.ar.end, this.lanes.tandem.end);
  }

  /** Factor of slow motion. */
  get factor() {
    if (this.pace === "real" || !this.complete || !this.longest) return 1;
    const exact = Math.max(1, SLOW_MOTION / this.longest);
    const scale = 10 ** Math.max(0, Math.floor(Math.log10(exact)) - 1);
    return Math.round(exact / scale) * scale;
  }

  done(mode, times) {
    this.lanes[mode].retime(times);
    if (this.started === null) this.track.clear();
  }

  add(mode, round) {
    this.lanes[mode].add(round);
    const waited = performance.now() - this.asked > MAX_WAIT;
    // Tandem is received first, so both lanes can start now.
    if (mode === "ar" && (this.pace === "real" || waited)) this.start();
  }

  close() {
    this.complete = true;
    if (this.started !== null) return;
    if (matchMedia("(prefers-reduced-motion: reduce)").matches) this.skip();
    else this.start();
  }

  start() {
    if (this.started !== null) return;
    this.slowed = this.factor;
    this.started = performance.now();
    requestAnimationFrame(() => this.tick());
  }

  again() {
    for (const lane of Object.values(this.lanes)) lane.clear();
    this.track.clear();
    this.started = null;
    this.finished = false;
    this.start();
  }

  skip() {
    this.slowed ??= 1; // not in slow motion
    this.started = -Infinity;
    this.tick();
  }

  stop() {
    this.finished = true;
  }

  tick() {
    if (this.finished) return;
    const clock = (performance.now() - this.started) / this.slowed;
    const past = this.complete && clock >= this.longest;
    const shown = past ? Infinity : clock;
    for (const lane of Object.values(this.lanes)) lane.show(shown);
    this.track.show(shown, this.longest);
    if (past) {
      this.finished = true;
      this.over();
    } else {
      this.frame();
      requestAnimationFrame(() => this.tick());
    }
  }
}

/** Rounds as blocks on a time axis. */
class Track {
  constructor(part, lanes) {
    this.part = part;
    this.lanes = lanes;
    this.clear();
  }

  clear() {
    this.part.replaceChildren();
    this.rows = {};
    for (const mode of Object.keys(this.lanes)) {
      const row = this.part.appendChild(document.createElement("div"));
      row.className = `row ${mode}`;
      const name = row.appendChild(document.createElement("span"));
      name.dataset.say = mode;
      name.textContent = say(mode);
      this.rows[mode] = row.appendChild(document.createElement("div"));
    }
    const axis = this.part.appendChild(document.createElement("div"));
    axis.className = "axis";
    this.ends = [axis.appendChild(document.createElement("span")), axis.appendChild(document.createElement("span"))];
  }

  show(clock, longest) {
    if (!longest) return;
    for (const [mode, lane] of Object.entries(this.lanes)) {
      lane.passes.forEach((at, n) => {
        const block = this.rows[mode].children[n] ?? this.block(mode, lane, at);
        const begin = lane.passes[n - 1] ?? 0;
        const reached = Math.max(0, Math.min(clock, at) - begin);
        block.style.left = `${(100 * begin) / longest}%`;
        block.style.width = `${(100 * reached) / longest}%`;
        block.classList.toggle("through", clock >= at);
      });
    }
    this.ends[0].textContent = "0";
    this.ends[1].textContent = time(longest);
  }

  block(mode, lane, at) {
    const block = this.rows[mode].appendChild(document.createElement("i"));
    const rounds = lane.rounds.filter((round) => round.at === at);
    const said = rounds.flatMap((round) => round.tokens).filter(kept);
    block.dataset.tokens = said.length;
    const drafted = said.filter((token) => token.place).length;
    block.style.setProperty("--drafted", said.length ? drafted / said.length : 0);
    return block;
  }
}
