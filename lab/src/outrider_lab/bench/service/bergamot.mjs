// The WebAssembly engine of Bergamot. Arguments: node_modules with @browsermt/bergamot-translator,
// the folder of a model, and optionally "serve", or "html" for lines of HTML.
//
// With "serve" it answers POST with {"q": text} on a free port. As in the package's BatchTranslator,
// up to 8 waiting texts are translated together by one worker. Otherwise it reads lists of lines and
// writes texts and seconds, for `lab/studies/bergamot.py`.
import {cpSync, mkdtempSync, readFileSync, readdirSync, rmSync} from "node:fs";
import {createServer} from "node:http";
import {tmpdir} from "node:os";
import {join, resolve} from "node:path";
import {createInterface} from "node:readline";
import {Worker} from "node:worker_threads";

const [modules, folder] = process.argv.slice(2, 4).map((path) => resolve(path));
const BATCH = 8;
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

async function translate(texts) {
  const rows = texts.map((text) => ({text, html: process.argv[4] === "html"}));
  const found = await call("translate", {models: [pair], texts: rows});
  return found.map((one) => one.target.text);
}

async function readLines() {
  console.log(JSON.stringify({computes: "wasm"}));
  for await (const turn of createInterface({input: process.stdin})) {
    const texts = [];
    const began = performance.now();
    for (const text of JSON.parse(turn)) texts.push(...await translate([text]));
    console.log(JSON.stringify({seconds: (performance.now() - began) / 1000, texts}));
  }
}

function serve() {
  const queue = [];
  let busy = false;

  async function work() {
    if (busy) return;
    busy = true;
    while (queue.length) {
      const batch = queue.splice(0, BATCH);
      const texts = await translate(batch.map(({q}) => q));
      batch.forEach(({response}, i) => {
        const body = Buffer.from(JSON.stringify({translatedText: texts[i]}));
        response.writeHead(200, {"Content-Type": "application/json", "Content-Length": body.length});
        response.end(body);
      });
    }
    busy = false;
  }

  const server = createServer((request, response) => {
    const parts = [];
    request.on("data", (part) => parts.push(part));
    request.on("end", () => {
      queue.push({q: JSON.parse(Buffer.concat(parts)).q, response});
      setImmediate(work); // requests that are read in this turn join the batch
    });
  });
  server.listen(0, "127.0.0.1", () => {
    console.log(`listening at http://127.0.0.1:${server.address().port} : startup complete`);
  });
  return new Promise((done) => process.on("SIGTERM", done));
}

await (process.argv[4] === "serve" ? serve() : readLines());
await worker.terminate();
rmSync(copy, {recursive: true});
process.exit();
