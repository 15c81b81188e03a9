// The languages of the server, and which of them it translates to which.

import { language, say } from "./words.js";

export const AUTO = "auto"; // the server detects the source language
export const UNKNOWN = "unknown"; // a model whose languages the server does not know

/** The language pairs in the answer of `/languages`. */
export class Pairs {
  constructor(languages) {
    const named = languages.filter(({ code }) => code !== AUTO);
    this.targetsOf = new Map(named.map(({ code, targets }) => [code, targets]));
    this.names = new Map(named.map(({ code, name }) => [code, name]));
    this.unknown = named.length < languages.length;
  }

  get sources() {
    return [...this.targetsOf.keys()];
  }

  /** Return the targets of a source language, or of all. */
  targets(source) {
    if (source !== AUTO) return this.targetsOf.get(source) ?? [];
    return [...new Set([...this.targetsOf.values()].flat())];
  }

  has(source, target) {
    return this.targetsOf.get(source)?.includes(target) ?? false;
  }

  /** Return the first wanted target of a source language that exists, or any. */
  target(source, ...wanted) {
    const targets = this.targets(source);
    return wanted.find((code) => targets.includes(code)) ?? targets[0] ?? null;
  }

  /** Name a language in the language of the interface. */
  name(code) {
    return localName(code) ?? this.names.get(code) ?? code;
  }

  /** Return `[code, name]` of languages in alphabetical order; equal names get their codes. */
  named(codes) {
    const names = codes.map((code) => this.name(code));
    return codes
      .map((code, at) => [code, names.indexOf(names[at]) === names.lastIndexOf(names[at])
        ? names[at]
        : `${names[at]} (${code})`])
      .sort(([, a], [, b]) => a.localeCompare(b, language()));
  }
}

/** Name a code such as `de`, `zh-Hant` or `deu_Latn`; null if the browser does not know it. */
function localName(code) {
  try {
    let locale = new Intl.Locale(code.replaceAll("_", "-"));
    const usual = new Intl.Locale(locale.language).maximize().script;
    if (locale.script === usual) locale = new Intl.Locale(locale.language, { region: locale.region });
    const locales = language() === "zh" ? "zh-Hans" : "en";
    const name = new Intl.DisplayNames(locales, { type: "language", fallback: "none" }).of(locale.toString());
    return name ?? null;
  } catch {
    return null;
  }
}

/** Replace the options of a select, and choose one. */
export function fill(select, options, chosen) {
  select.replaceChildren(...options.map(([value, text]) => new Option(text, value)));
  if (options.some(([value]) => value === chosen)) select.value = chosen;
  select.disabled = options.length < 2;
}

/** Return the options of the source select; `detected` is the language of the current text. */
export function sourceOptions(pairs, detected) {
  const options = pairs.named(pairs.sources);
  if (pairs.sources.length > 1) {
    const words = matchMedia("(max-width: 46rem)").matches ? "detectedShort" : "detected";
    options.unshift([AUTO, detected ? say(words, { name: pairs.name(detected) }) : say("detect")]);
  }
  if (pairs.unknown) options.push([UNKNOWN, say("unknownSource")]);
  return options;
}

/** Return the options of the target select. */
export function targetOptions(pairs, source) {
  return source === UNKNOWN ? [[AUTO, say("unknownTarget")]] : pairs.named(pairs.targets(source));
}
