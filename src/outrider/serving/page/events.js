// Server-sent events of a POST, which EventSource does not support.

/** Send a request and yield its events as `{name, data}`. Throws the error of the server. */
export async function* watch(question, { key, signal }) {
  const headers = { "Content-Type": "application/json" };
  if (key) headers.Authorization = `Bearer ${key}`;
  const body = JSON.stringify(question);
  const answer = await fetch("watch", { method: "POST", headers, body, signal });
  if (!answer.ok) throw await refusal(answer);
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

/** Return the models of the server: their names, and the languages that a request must name. */
export async function models(key) {
  const headers = key ? { Authorization: `Bearer ${key}` } : {};
  const answer = await fetch("watch", { headers });
  if (!answer.ok) throw await refusal(answer);
  return answer.json();
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

async function refusal(answer) {
  let message;
  try {
    const { error, detail } = await answer.json();
    message = error?.message ?? error ?? detail;
  } catch {
    message = null;
  }
  const wrong = new Error(typeof message === "string" ? message : answer.statusText);
  wrong.status = answer.status;
  return wrong;
}
