// The WebAssembly engine of `lab/studies/bergamot.py`: reads lists of lines, writes texts and
// seconds. Arguments: node_modules with @browsermt/bergamot-translator, and the folder of a model.
import {cpSync, mkdtempSync, readFileSync, readdirSync, rmSync} from "node:fs";
import {tmpdir} from "node:os";
import {join, resolve} from "node:path";
import {createInterface} from "node:readline";
import {Worker} from "node:worker_threads";

const [modules, folder] = process.argv.slice(2).map((path) => resolve(path));
// A copy, because the package declares its scripts as modules, but this one is not.
const copy = mkdtempSync(join(tmpdir(), "bergamot-"));
cpSync(join(modules, "@browsermt/bergamot-translator/worker"), copy, {recursive: true});
const worker = new Worker(join(copy, "translator-worker.js"));
const waiting = new Map();
let calls = 0;

worker.on("message", ({id, result, error}) => {
  const {accept, reject} = waiting.get(id);
  waiting.delete(id);
  if (error) reject(new Error(error.message));
  else accept(result);
});

function call(name, ...args) {
  return new Promise((accept, reject) => {
    waiting.set(++calls, {accept, reject});
    worker.postMessage({id: calls, name, args});
  });
}

function read(begin, end) {
  const name = readdirSync(folder).find((one) => one.startsWith(begin) && one.endsWith(end));
  const bytes = readFileSync(join(folder, name));
  return bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.byteLength);
}

const pair = {from: "source", to: "target"};
await call("initialize", {cacheSize: 0, useNativeIntGemm: false});
await call("loadTranslationModel", pair, {
  model: read("model.", ".bin"),
  shortlist: read("lex.", ".bin"),
  vocabs: [read("vocab.", ".spm")],
  config: {"ssplit-mode": "sentence"},
});
console.log(JSON.stringify({computes: "wasm"}));

for await (const turn of createInterface({input: process.stdin})) {
  const texts = [];
  const began = performance.now();
  for (const text of JSON.parse(turn)) {
    const [found] = await call("translate", {models: [pair], texts: [{text, html: false}]});
    texts.push(found.target.text);
  }
  console.log(JSON.stringify({seconds: (performance.now() - began) / 1000, texts}));
}
await worker.terminate();
rmSync(copy, {recursive: true});
