// Requests to the server, with the API key of this tab.

const KEY = "outrider.key"; // in sessionStorage: the browser forgets it with the tab
let key = "";
try {
  key = sessionStorage.getItem(KEY) ?? "";
} catch { /* a browser without storage keeps the key while the page is open */ }

export const hasKey = () => key !== "";

/** Use a key for all requests of this tab; return whether it can be sent. */
export function useKey(value) {
  key = value.trim();
  if (/[^!-~]/.test(key)) key = "";
  try {
    sessionStorage.setItem(KEY, key);
  } catch { /* as above */ }
  return hasKey();
}

/** Send a request, a POST if it has a body. Throws the error of the server. */
export async function send(path, { body, signal } = {}) {
  const headers = key ? { Authorization: `Bearer ${key}` } : {};
  const options = { headers, signal };
  if (body instanceof FormData) Object.assign(options, { method: "POST", body });
  else if (body) {
    headers["Content-Type"] = "application/json";
    Object.assign(options, { method: "POST", body: JSON.stringify(body) });
  }
  const answer = await fetch(path, options);
  if (!answer.ok) throw await refusal(answer);
  return answer;
}

const json = async (path, options) => (await send(path, options)).json();

export const settings = () => json("frontend/settings");
export const languages = () => json("languages");
export const models = () => json("watch");
export const translate = (body, signal) => json("translate", { body, signal });
export const detect = (text, signal) => json("detect", { body: { q: text }, signal });

export const startDocument = (form, signal) => json("v2/document", { body: form, signal });
const ofDocument = ({ id, key }, signal) => [`v2/document/${id}`, { body: { document_key: key }, signal }];
export const documentStatus = (place, signal) => json(...ofDocument(place, signal));
export async function documentResult(place, signal) {
  const [path, options] = ofDocument(place, signal);
  return (await send(`${path}/result`, options)).blob();
}

async function refusal(answer) {
  let message;
  try {
    const { error, detail, message: text } = await answer.json();
    message = error?.message ?? error ?? detail ?? text;
  } catch {
    message = null;
  }
  const wrong = new Error(typeof message === "string" ? message : answer.statusText);
  wrong.status = answer.status;
  wrong.seconds = Number(answer.headers.get("Retry-After")) || 1;
  return wrong;
}
