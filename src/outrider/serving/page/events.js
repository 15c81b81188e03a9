// Server-sent events of a POST, which EventSource does not support.

import { send } from "./client.js";

/** Send a request and yield its events as `{name, data}`. Throws the error of the server. */
export async function* watch(body, signal) {
  const answer = await send("watch", { body, signal });
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    for (const part of parts) yield read(part);
  }
}

function read(part) {
  const event = { name: "message", data: "" };
  for (const line of part.split("\n")) {
    if (line.startsWith("event: ")) event.name = line.slice(7);
    if (line.startsWith("data: ")) event.data += line.slice(6);
  }
  event.data = event.data ? JSON.parse(event.data) : null;
  return event;
}
