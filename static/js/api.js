// Where the server is, and how to ask it: the page may be mounted under any path.

export const base = new URL("../../", import.meta.url);

const KEY = "streamgen.key";
let memory = null;

/** The API key of this tab, or null. */
export function key() {
  try {
    return sessionStorage.getItem(KEY) ?? memory;
  } catch {
    return memory;
  }
}

export function setKey(value) {
  memory = value;
  try {
    if (value === null) sessionStorage.removeItem(KEY);
    else sessionStorage.setItem(KEY, value);
  } catch {
    // Then it lives as long as the page.
  }
}

export class ApiError extends Error {
  constructor(status, error) {
    super(error?.message || `The server answered with status ${status}.`);
    this.status = status;
    this.code = error?.code ?? null;
  }
}

/** GET a path; its JSON. Throws ApiError, or TypeError if the server cannot be reached. */
export async function get(path, { timeout = 10_000 } = {}) {
  const headers = key() === null ? {} : { Authorization: `Bearer ${encodeKey(key())}` };
  const response = await fetch(new URL(path, base), { headers, cache: "no-store", signal: AbortSignal.timeout(timeout) });
  const body = await response.json().catch(() => null);
  if (!response.ok) throw new ApiError(response.status, body?.error);
  return body;
}

/** Headers hold bytes: the key goes out as UTF-8, whatever it is made of. */
function encodeKey(text) {
  return String.fromCharCode(...new TextEncoder().encode(text));
}

/** The sub-protocols of the WebSocket: a browser can send a key in no other way. */
export function subprotocols() {
  if (key() === null) return ["streamgen.v1"];
  const encoded = btoa(encodeKey(key())).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
  return ["streamgen.v1", `streamgen.key.${encoded}`];
}
