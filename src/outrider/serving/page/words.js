// What the page says, in English and Chinese. {name} is filled in; `one` is for a count of one.

/** Something to begin with, by the language that a model reads. */
export const EXAMPLES = {
  en: "Do you think that she will come to the party tonight?",
  zh: "我认为我们应该在明天早上之前完成这个项目，因为客户已经等了很长时间。",
  de: "Glaubst du, dass sie heute Abend zur Party kommen wird?",
  fr: "Penses-tu qu'elle viendra à la fête ce soir ?",
  es: "¿Crees que ella vendrá a la fiesta esta noche?",
};

export const WORDS = {
  en: {
    otherLanguage: "中文",
    tagline: "A drafter rides ahead, the model confirms: the same text in fewer rounds.",
    theme: "Light or dark",
    text: "Text",
    placeholder: "Type something to translate",
    model: "Model",
    gamma: "Trust in the drafter, γ",
    gammaNone: "0: exactly the model's own text.",
    gammaSome: "Above 0 the drafter has a say: the text may differ.",
    gammaAll: "1: every draft is taken.",
    draft: "Tokens drafted at once",
    draftMeans: "More in a block: fewer rounds, if they hold.",
    pace: "Pace",
    slow: "Slow motion",
    real: "Real time",
    key: "API key",
    sourceLanguage: "From",
    targetLanguage: "To",
    how: "How it works",
    howDraft: "A small drafter, beside the model, guesses the next few tokens in one pass.",
    howCheck: "The model reads the whole guess in one pass and keeps it as far as it would have said the same.",
    howOwn: "Where it would not, its own token takes the place: several tokens for one round and, with γ = 0, never another text.",
    fastest: "Fastest of {takes} runs.",
    go: "Watch",
    goKey: "Ctrl ↵",
    again: "Replay",
    skip: "Skip to the end",
    source: "What the model reads",
    ar: "Autoregressive",
    arMeans: "the model alone, a token a round",
    tandem: "Tandem",
    tandemMeans: "drafted in blocks, checked by the same model",
    noDrafter: "This model has no drafter yet; outrider accelerate makes one.",
    rounds: "Round by round",
    countRounds: "rounds",
    countTime: "time",
    countRate: "tokens a round",
    decoding: "Decoding…",
    running: "Token by token, and in tandem",
    same: "The same text in {tandem} rounds instead of {ar}",
    differs: "Another text, in {tandem} rounds instead of {ar}",
    alone: "{ar} rounds, one for each token",
    figures: "{tandemTime} instead of {arTime}: {ratio} times as fast.",
    figuresSlower: "{tandemTime} against {arTime}: drafting did not pay here.",
    figuresAlone: "{arTime}.",
    trusts: "γ = {gamma} lets the drafter have its way where it is sure.",
    slowed: "Shown {factor} times slower than it was.",
    spoken: "{verdict}. {figures} {name}: {text}",
    hint: "Point at a token, or step through with the arrow keys, to see where it came from.",
    hintLooks: "Point at a token, or step through with the arrow keys, to see where it came from and where it looks.",
    accepted: "drafted and accepted",
    refused: "refused",
    dropped: "dropped with it",
    correction: "corrected",
    bonus: "bonus",
    plain: "by the model itself",
    other: "not what the model alone says",
    drafted: "drafted",
    inRound: "round {round}",
    place: "place {place} of the draft",
    sure: "the drafter was {percent} sure",
    looks: "looks at {list}",
    seen: "{word} is looked at by {list}",
    nobody: "{word} is hardly looked at",
    end: "end",
    tokensOf: "{name}: tokens",
    failed: "No answer from the server.",
    needsKey: "This server asks for an API key.",
    and: ", ",
  },
  zh: {
    otherLanguage: "English",
    tagline: "起草模型先行，主模型确认：同样的译文，更少的轮次。",
    theme: "浅色或深色",
    text: "原文",
    placeholder: "输入要翻译的文字",
    model: "模型",
    gamma: "对起草模型的信任 γ",
    gammaNone: "0：与主模型的译文完全相同。",
    gammaSome: "大于 0 时起草模型也有发言权，译文可能不同。",
    gammaAll: "1：接受全部草稿。",
    draft: "每次起草的词元数",
    draftMeans: "每块越多，轮次越少，前提是草稿成立。",
    pace: "速度",
    slow: "慢动作",
    real: "实时",
    key: "API 密钥",
    sourceLanguage: "源语言",
    targetLanguage: "目标语言",
    how: "原理",
    howDraft: "主模型旁边有一个小的起草模型，一次猜出后面几个词元。",
    howCheck: "主模型一次读完整块草稿，凡与自己想法一致的部分都保留。",
    howOwn: "不一致处换成主模型自己的词元：一轮得到多个词元，而 γ = 0 时译文不变。",
    fastest: "取 {takes} 次运行中最快的一次。",
    go: "观看",
    goKey: "Ctrl ↵",
    again: "重播",
    skip: "跳到结尾",
    source: "模型读到的内容",
    ar: "自回归",
    arMeans: "只用主模型，每轮一个词元",
    tandem: "推测解码（tandem）",
    tandemMeans: "成块起草，由同一个主模型检查",
    noDrafter: "这个模型还没有起草模型，可用 outrider accelerate 训练一个。",
    rounds: "逐轮过程",
    countRounds: "轮次",
    countTime: "用时",
    countRate: "每轮词元",
    decoding: "正在解码…",
    running: "逐个词元，与成块推测",
    same: "译文相同，只用 {tandem} 轮，而不是 {ar} 轮",
    differs: "译文不同，用 {tandem} 轮，而不是 {ar} 轮",
    alone: "{ar} 轮，每轮一个词元",
    figures: "{tandemTime}，而不是 {arTime}：速度是其 {ratio} 倍。",
    figuresSlower: "{tandemTime} 对 {arTime}：这里起草并不划算。",
    figuresAlone: "{arTime}。",
    trusts: "γ = {gamma} 时，起草模型在有把握处可以作主。",
    slowed: "放慢 {factor} 倍播放。",
    spoken: "{verdict}。{figures}{name}：{text}",
    hint: "指向一个词元，或用方向键逐个查看它的来历。",
    hintLooks: "指向一个词元，或用方向键逐个查看它的来历和它所关注的原文。",
    accepted: "起草并采纳",
    refused: "被拒绝",
    dropped: "随之丢弃",
    correction: "改正",
    bonus: "额外",
    plain: "主模型所写",
    other: "与主模型单独所写不同",
    drafted: "草稿",
    inRound: "第 {round} 轮",
    place: "草稿第 {place} 位",
    sure: "起草模型的把握 {percent}",
    looks: "关注 {list}",
    seen: "关注 {word} 的有 {list}",
    nobody: "几乎没有词元关注 {word}",
    end: "结束",
    tokensOf: "{name}：词元",
    failed: "服务器没有回答。",
    needsKey: "此服务器需要 API 密钥。",
    and: "、",
  },
};

let chosen = "en";

/** Return what is said under a name, filled in. */
export function say(name, values = {}) {
  return WORDS[chosen][name].replace(/\{(\w+)\}/g, (_, key) => values[key]);
}

export const language = () => chosen;

/** Choose the language, and say everything on the page in it. */
export function speak(name) {
  chosen = name in WORDS ? name : "en";
  document.documentElement.lang = chosen === "zh" ? "zh-Hans" : "en";
  for (const element of document.querySelectorAll("[data-say]")) {
    element.textContent = say(element.dataset.say);
  }
  for (const element of document.querySelectorAll("[data-say-label]")) {
    element.setAttribute("aria-label", say(element.dataset.sayLabel));
    element.title = say(element.dataset.sayLabel);
  }
}

const digits = (value, most, least = 0) =>
  value.toLocaleString(chosen, { maximumFractionDigits: most, minimumFractionDigits: least });

/** A time to read: milliseconds with a useful number of digits, or seconds. */
export function time(milliseconds) {
  if (milliseconds >= 1000) return `${digits(milliseconds / 1000, 2, 2)}\u00a0s`;
  const places = milliseconds < 100 ? 1 : 0;
  return `${digits(milliseconds, places, places)}\u00a0ms`;
}

export const number = digits;
export const percent = (share) => `${Math.round(100 * share)}%`;
