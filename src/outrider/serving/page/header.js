// The header of both pages: the language of the interface and its colours, which are remembered.

import { language, say, speak } from "./words.js";

export function remember(name, value) {
  try {
    localStorage.setItem(`outrider.${name}`, value);
  } catch { /* a browser without storage */ }
}

export function recall(name) {
  try {
    return localStorage.getItem(`outrider.${name}`);
  } catch {
    return null;
  }
}

/** Start the header; `changed` is called after each change of the language. */
export function startHeader(changed) {
  const button = document.getElementById("language");
  const choose = (name) => {
    speak(name);
    button.textContent = say("otherLanguage");
    button.lang = language() === "zh" ? "en" : "zh-Hans";
    button.setAttribute("aria-label", say("otherLanguage"));
    changed();
  };
  button.addEventListener("click", () => {
    const other = language() === "en" ? "zh" : "en";
    remember("language", other);
    choose(other);
  });
  document.getElementById("theme").addEventListener("click", () => {
    const dark = matchMedia("(prefers-color-scheme: dark)").matches;
    const root = document.documentElement;
    root.dataset.theme = (root.dataset.theme ?? (dark ? "dark" : "light")) === "dark" ? "light" : "dark";
    remember("theme", root.dataset.theme);
  });
  choose(recall("language") ?? (navigator.language.startsWith("zh") ? "zh" : "en"));
}
