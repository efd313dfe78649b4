// One WebSocket for the whole page, many requests on it; it comes back by itself, and so do the requests.

import { ApiError, base, get, subprotocols } from "./api.js";

const FIRST_RETRY = 400; // ms
const LONGEST_RETRY = 15_000;
const PING_EVERY = 20_000;
const PONG_WITHIN = 10_000;
const GIVE_UP_RESUMING = 3;

/** One request and how far it has been read. Changed by the Socket alone. */
class Request {
  constructor(id, handlers, { body = null, session = null }) {
    this.id = id;
    this.handlers = handlers;
    this.body = body;
    this.session = session; // the session that created it; null until it was sent
    this.seq = 0;
    this.cancelled = false;
    this.failures = 0;
  }
}

/** Events: "state" ("connecting", "open", "offline"), "unauthorized". */
export class Socket extends EventTarget {
  state = "connecting";
  /** Whether the connection was there and is not any more, or could not be made. */
  lost = false;
  #socket = null;
  #session = null;
  #requests = new Map();
  #retries = 0;
  #timer = null;
  #pinger = null;
  #ponged = null;

  constructor() {
    super();
    addEventListener("online", () => this.#hurry());
    document.addEventListener("visibilitychange", () => {
      if (document.visibilityState === "visible") this.#hurry();
    });
  }

  /** handlers: onchunk(chunk), ondone(frame), onerror({message, code}), onsent({id, session}). Returns the request's id. */
  create(body, handlers) {
    const request = new Request(crypto.randomUUID?.() ?? randomId(), handlers, { body });
    this.#requests.set(request.id, request);
    this.#send(request);
    this.#hurry();
    return request.id;
  }

  /** Go on with a request of before the page was reloaded, from its first frame. */
  resume(id, session, handlers) {
    const request = new Request(id, handlers, { session });
    this.#requests.set(id, request);
    this.#send(request);
  }

  cancel(id) {
    const request = this.#requests.get(id);
    if (!request || request.cancelled) return;
    request.cancelled = true;
    if (this.state === "open" && request.session) this.#write({ type: "chat.cancel", id });
    else if (!request.session) this.#aborted(request);
  }

  connect() {
    clearTimeout(this.#timer);
    if (this.#socket) return;
    this.#become("connecting");
    const url = new URL("v1/ws", base);
    url.protocol = url.protocol === "https:" ? "wss:" : "ws:";
    let socket;
    try {
      socket = new WebSocket(url, subprotocols());
    } catch {
      this.#later();
      return;
    }
    this.#socket = socket;
    // Frames of a socket that was given up must not count any more.
    const mine = (handle) => (event) => {
      if (this.#socket === socket) handle(event);
    };
    socket.addEventListener("message", mine((event) => this.#received(JSON.parse(event.data))));
    socket.addEventListener("close", mine(() => this.#closed()));
  }

  /** With another key, for instance. */
  reconnect() {
    this.#drop();
    this.#retries = 0;
    this.connect();
  }

  #hurry() {
    if (this.state === "offline") {
      this.#retries = 0;
      this.connect();
    } else if (this.state === "open") {
      this.#ping();
    }
  }

  #received(frame) {
    this.#ponged?.();
    if (frame.type === "session.created") {
      this.#session = frame.session;
      this.#retries = 0;
      this.lost = false;
      this.#become("open");
      this.#pinger = setInterval(() => this.#ping(), PING_EVERY);
      for (const request of this.#requests.values()) this.#send(request);
      return;
    }
    const request = frame.id == null ? null : this.#requests.get(frame.id);
    if (!request) return;
    // What was already seen may come again after a resume; it is not shown twice.
    if (frame.seq !== undefined) {
      if (frame.seq <= request.seq) return;
      request.seq = frame.seq;
    }
    if (frame.type === "chat.chunk") request.handlers.onchunk(frame.chunk);
    else if (frame.type === "chat.done") this.#end(request, (handlers) => handlers.ondone(frame));
    else if (frame.type === "chat.error") this.#failed(request, frame.error);
  }

  #failed(request, error) {
    const lost = error.code === "not_found" && request.session !== this.#session;
    const interrupted = lost || error.code === "replay_gone";
    if (interrupted && request.cancelled) {
      // What the server keeps no longer has ended, as was wished.
      this.#aborted(request);
      return;
    }
    // Nothing was heard of it: it may never have arrived, and can begin anew.
    if (lost && request.seq === 0 && request.body && request.failures < GIVE_UP_RESUMING) {
      request.failures += 1;
      request.session = null;
      this.#send(request);
      return;
    }
    this.#end(request, (handlers) => handlers.onerror(interrupted ? { ...error, code: "interrupted" } : error));
  }

  /** It ended by a cancel of which the server has nothing to say. */
  #aborted(request) {
    this.#end(request, (handlers) => handlers.ondone({ finish_reason: "abort", usage: null }));
  }

  #end(request, tell) {
    this.#requests.delete(request.id);
    tell(request.handlers);
  }

  #send(request) {
    if (this.state !== "open") return;
    if (request.session) {
      this.#write({ type: "chat.resume", id: request.id, session: request.session, after: request.seq });
      if (request.cancelled) this.#write({ type: "chat.cancel", id: request.id });
      return;
    }
    request.session = this.#session;
    this.#write({ type: "chat.create", id: request.id, resumable: true, body: request.body });
    request.handlers.onsent?.({ id: request.id, session: this.#session });
  }

  #write(frame) {
    this.#socket.send(JSON.stringify(frame));
  }

  #ping() {
    if (this.#ponged || this.state !== "open") return;
    const timer = setTimeout(() => {
      // The network swallowed it: browsers notice that much later.
      this.#drop();
      this.#later();
    }, PONG_WITHIN);
    this.#ponged = () => {
      clearTimeout(timer);
      this.#ponged = null;
    };
    this.#write({ type: "ping" });
  }

  #closed() {
    this.#drop();
    this.#later();
  }

  #drop() {
    clearTimeout(this.#timer);
    clearInterval(this.#pinger);
    this.#ponged?.();
    const socket = this.#socket;
    this.#socket = null;
    socket?.close();
  }

  async #later() {
    this.lost = true;
    this.#become("offline");
    const delay = Math.min(LONGEST_RETRY, FIRST_RETRY * 2 ** this.#retries) * (0.75 + Math.random() / 2);
    this.#retries += 1;
    this.#timer = setTimeout(() => this.connect(), delay);
    // A browser does not say why a WebSocket was refused; an ordinary request does.
    try {
      await get("v1/models");
    } catch (error) {
      if (error instanceof ApiError && (error.status === 401 || error.status === 403)) {
        clearTimeout(this.#timer);
        this.dispatchEvent(new CustomEvent("unauthorized", { detail: error }));
      }
    }
  }

  #become(state) {
    if (this.state === state) return;
    this.state = state;
    this.dispatchEvent(new Event("state"));
  }
}

function randomId() {
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}
