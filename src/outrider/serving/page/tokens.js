// Tokens that can be inspected by pointer, touch and arrow keys: their origin and attention.

import { percent, say } from "./words.js";

export const KINDS = ["accepted", "correction", "bonus", "refused", "dropped", "plain"];
const LEAST = 0.05; // smallest share of attention that is shown

let count = 0;

/** Return the visible text of a token. */
export function wordOf(token) {
  if (token.ends) return say("end");
  return token.text.trim().replaceAll("\n", "↵") || (token.text.includes("\n") ? "↵" : "␣");
}

/** Make the elements of a token; its leading space is outside the coloured part. */
export function makeToken(token, kind, about) {
  const chip = document.createElement("span");
  chip.id = `token-${++count}`;
  chip.className = `token ${kind}`;
  chip.setAttribute("role", "option");
  chip.setAttribute("aria-selected", "false");
  if (token.ends) chip.classList.add("end");
  chip.textContent = wordOf(token);
  if (kind) chip.setAttribute("aria-label", `${chip.textContent}, ${say(kind)}`);
  chip.token = { ...token, ...about, kind, word: chip.textContent };
  const space = token.text.slice(0, token.text.length - token.text.trimStart().length);
  return space ? [document.createTextNode(space), chip] : [chip];
}

/** Make the tokens of a box selectable; `look` is called with the selected token or null. */
export function makeListbox(box, look) {
  const options = () => [...box.querySelectorAll("[role=option]")];
  const choose = (chip) => {
    const before = box.querySelector(".chosen");
    if (before === chip) return;
    before?.classList.remove("chosen");
    before?.setAttribute("aria-selected", "false");
    chip?.classList.add("chosen");
    chip?.setAttribute("aria-selected", "true");
    if (chip) box.setAttribute("aria-activedescendant", chip.id);
    else box.removeAttribute("aria-activedescendant");
    look(chip ? chip.token : null);
  };
  const under = (event) => event.target.closest?.("[role=option]");
  box.addEventListener("pointerover", (event) => under(event) && choose(under(event)));
  box.addEventListener("pointerdown", (event) => under(event) && choose(under(event)));
  box.addEventListener("pointerleave", (event) => {
    if (event.pointerType === "mouse" && document.activeElement !== box) choose(null);
  });
  box.addEventListener("focus", () => {
    if (!box.querySelector(".chosen")) choose(options()[0]);
  });
  box.addEventListener("blur", () => choose(null));
  box.addEventListener("keydown", (event) => {
    const all = options();
    const at = all.indexOf(box.querySelector(".chosen"));
    const steps = { ArrowRight: at + 1, ArrowDown: at + 1, ArrowLeft: at - 1, ArrowUp: at - 1 };
    const next = { Home: 0, End: all.length - 1, ...steps }[event.key];
    if (next === undefined || !all.length) return;
    event.preventDefault();
    choose(all[Math.max(0, Math.min(all.length - 1, next))]);
  });
}

/** Label a box; an empty one cannot be focused. */
export function nameListbox(box, name) {
  const filled = box.querySelector("[role=option]") !== null;
  if (filled) {
    box.setAttribute("role", "listbox");
    box.setAttribute("aria-orientation", "horizontal");
    box.setAttribute("aria-label", say("tokensOf", { name }));
    box.tabIndex = 0;
  } else {
    for (const key of ["role", "aria-orientation", "aria-label", "tabindex"]) box.removeAttribute(key);
  }
}

/** Mark the tokens of one text that differ from another, by the longest common subsequence. */
export function markOthers(chips, others) {
  const known = others.map((chip) => chip.textContent);
  const best = [...chips, null].map(() => new Uint16Array(known.length + 1));
  for (let i = chips.length - 1; i >= 0; i--) {
    for (let j = known.length - 1; j >= 0; j--) {
      const same = chips[i].textContent === known[j];
      best[i][j] = same ? best[i + 1][j + 1] + 1 : Math.max(best[i + 1][j], best[i][j + 1]);
    }
  }
  for (let i = 0, j = 0; i < chips.length; i++) {
    while (j < known.length && best[i][j + 1] === best[i][j]) j++;
    const common = j < known.length && chips[i].textContent === known[j];
    chips[i].classList.toggle("other", !common);
    j += common;
  }
}

/** Describe the origin of a token. */
export function describe(token) {
  const parts = [say(token.kind), say("inRound", { round: token.round })];
  if (token.place) parts.push(say("place", { place: token.place }));
  if (token.sure !== null) parts.push(say("sure", { percent: percent(token.sure) }));
  return parts.join(say("and"));
}

/** List the tokens with the largest weights: "party 62%, the 11%". */
export function heaviest(words, weights) {
  return weights
    .map((weight, at) => ({ weight, word: words[at] }))
    .sort((a, b) => b.weight - a.weight)
    .slice(0, 3)
    .filter(({ weight }) => weight >= LEAST)
    .map(({ weight, word }) => `${word} ${percent(weight)}`)
    .join(say("and"));
}

/** Shade tokens by weights; null removes the shading. */
export function shade(chips, weightOf) {
  for (const chip of chips) {
    const weight = weightOf?.(chip.token) ?? 0;
    chip.classList.toggle("seen", weight >= LEAST);
    chip.style.setProperty("--weight", Math.min(1, Math.sqrt(weight)).toFixed(3));
  }
}
