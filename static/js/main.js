// Puts the parts together: which conversation is shown, what is being answered, and what happens on a key or click.

import { get, key, setKey } from "./api.js";
import { $, announce } from "./dom.js";
import { MessageList } from "./messages.js";
import { Panel } from "./panel.js";
import { askForKey, confirmDelete, editSettings, lastSettings, requestBody } from "./settings.js";
import { Sidebar } from "./sidebar.js";
import { Socket } from "./socket.js";
import { Store, newConversation, newMessage } from "./store.js";
import { initTheme } from "./theme.js";

const SAVE_EVERY = 1000; // ms, while an answer is written
const PENDING = "streamgen.pending";
const MAX_TITLE = 60;

const store = new Store();
const socket = new Socket();
/** Answers that are being written, by the id of their conversation: {conversation, message, request, …}. */
const writing = new Map();

let model = null;
let loading = false;
let contextLength = 0;
let shown = newConversation(lastSettings());

const messages = new MessageList({ onedit: editMessage, onregenerate: regenerate });
const sidebar = new Sidebar({ onopen: openConversation, onrename: rename, ondelete: remove });
const panel = new Panel({ onmodel: showModel, onloading: showLoading });

// ---- showing

function show() {
  $("title").textContent = shown.title || "New chat";
  document.title = shown.title ? `${shown.title} · streamgen` : "streamgen";
  $("empty").hidden = shown.messages.length > 0;
  $("messages").hidden = shown.messages.length === 0;
  messages.show(shown.messages);
  showComposer();
}

function showComposer() {
  const busy = writing.has(shown.id);
  const send = $("send");
  send.toggleAttribute("data-stop", busy);
  send.setAttribute("aria-label", busy ? "Stop" : "Send");
  send.title = busy ? "Stop (Esc)" : "Send (Enter)";
  send.querySelector("use").setAttribute("href", busy ? "#i-stop" : "#i-send");
  send.disabled = !busy && $("prompt").value.trim() === "";
}

async function showList() {
  sidebar.show(await store.list(), shown.id, new Set(writing.keys()));
}

function showModel(name, length) {
  model = name;
  contextLength = length;
  showHeadline();
}

function showLoading(now) {
  loading = now;
  showHeadline();
}

/** The line below the title: what the reader should know of the server right now. */
function showHeadline() {
  const about = model ? `${model} · ${contextLength.toLocaleString("en")} tokens of context` : "";
  const offline = socket.state === "offline" || (socket.state === "connecting" && socket.lost);
  $("model").textContent = offline ? "Connection lost. Trying again…" : loading ? "The model is being loaded…" : about;
}

function notice(text) {
  $("notice-text").textContent = text;
  $("notice").hidden = false;
}

// ---- conversations

async function openConversation(id) {
  sidebar.drawer(false);
  if (id !== shown.id) {
    const found = writing.get(id)?.conversation ?? (await store.get(id));
    if (!found) return showList();
    shown = mend(found);
    messages.pinned = true;
    show();
    messages.toEnd();
  }
  showList();
  $("prompt").focus();
}

/** An answer that nobody writes any more says so. */
function mend(conversation) {
  for (const message of conversation.messages) {
    if (message.state === "writing" && !writing.has(conversation.id)) {
      message.state = "done";
      message.ending = "interrupted";
    }
  }
  return conversation;
}

function newChat() {
  sidebar.drawer(false);
  if (shown.messages.length > 0) {
    shown = newConversation(lastSettings());
    show();
    showList();
  }
  $("prompt").focus();
}

async function rename(id, title) {
  const conversation = id === shown.id ? shown : (writing.get(id)?.conversation ?? (await store.get(id)));
  if (conversation && conversation.title !== title) {
    conversation.title = title;
    await save(conversation);
  }
  show();
  showList();
}

async function remove(id, title) {
  if (!(await confirmDelete(title))) return;
  const answer = writing.get(id);
  if (answer) {
    socket.cancel(answer.request);
    writing.delete(id);
  }
  await store.delete(id);
  if (id === shown.id) {
    shown = newConversation(lastSettings());
    show();
  }
  showList();
}

async function save(conversation) {
  const before = conversation.id;
  const own = await store.save(conversation);
  if (own) return;
  // Another tab went on with the same conversation: from here on this is one of its own.
  const answer = writing.get(before);
  if (answer?.conversation === conversation) {
    writing.delete(before);
    writing.set(conversation.id, answer);
  }
  notice("This conversation was continued in another tab, too; this is now a copy of its own.");
  showList();
}

// ---- asking

function submit() {
  const prompt = $("prompt");
  const text = prompt.value.trim();
  if (!text || writing.has(shown.id)) return;
  prompt.value = "";
  resize();
  shown.messages.push(newMessage("user", text));
  if (!shown.title) shown.title = titleOf(text);
  ask(shown);
}

function titleOf(text) {
  const line = text.split("\n", 1)[0].trim() || text.trim();
  return line.length > MAX_TITLE ? `${line.slice(0, MAX_TITLE - 1).trimEnd()}…` : line;
}

function editMessage(message, text) {
  const at = shown.messages.indexOf(message);
  if (at < 0) return;
  stop();
  writing.delete(shown.id);
  shown.messages.length = at;
  shown.messages.push(newMessage("user", text));
  // A title that somebody chose stays.
  if (at === 0 && shown.title === titleOf(message.content)) shown.title = titleOf(text);
  ask(shown);
}

function regenerate(message) {
  const at = shown.messages.indexOf(message);
  if (at < 0 || writing.has(shown.id)) return;
  shown.messages.length = at;
  ask(shown);
}

/** Have the conversation's last user message answered. */
function ask(conversation) {
  const body = requestBody(model, conversation.settings, conversation.messages);
  const message = newMessage("assistant", "", { state: "writing" });
  conversation.messages.push(message);
  conversation.updated = Date.now();
  const answer = follow(conversation, message);
  answer.request = socket.create(body, answer.handlers);
  messages.pinned = true;
  show();
  save(conversation).then(showList);
  announce("The model is answering.");
}

/** The answer that `message` becomes, and the handlers that write it. */
function follow(conversation, message) {
  const answer = { conversation, message, request: null, asked: performance.now(), first: null, last: null, saving: 0, frame: 0 };
  const mine = () => writing.get(conversation.id) === answer;
  writing.set(conversation.id, answer);
  answer.handlers = {
    onsent: ({ id, session }) => remember({ conversation: conversation.id, message: message.id, id, session }),
    onchunk: (chunk) => {
      const text = chunk.choices?.[0]?.delta?.content;
      if (!mine() || !text) return;
      answer.last = performance.now();
      answer.first ??= answer.last;
      message.content += text;
      // One look a frame of the screen, however many chunks come.
      answer.frame ||= requestAnimationFrame(() => {
        answer.frame = 0;
        if (shown === conversation) messages.update(message);
      });
      answer.saving ||= setTimeout(() => {
        answer.saving = 0;
        if (mine()) save(conversation);
      }, SAVE_EVERY);
    },
    ondone: ({ finish_reason: reason, usage }) => {
      if (!mine()) return;
      message.stats = statsOf(answer, usage);
      message.ending = reason;
      finish(answer);
      announce(reason === "abort" ? "Stopped." : `Answer: ${message.content.slice(0, 600)}`);
    },
    onerror: (error) => {
      if (!mine()) return;
      if (error.code === "interrupted") message.ending = "interrupted";
      else message.error = { code: error.code, message: error.message };
      finish(answer);
      announce(`The answer failed. ${error.message}`);
    },
  };
  return answer;
}

function statsOf(answer, usage) {
  const tokens = usage?.completion_tokens ?? 0;
  // A resumed answer's clock did not run here from its beginning.
  if (answer.resumed || answer.first === null) return tokens ? { tokens } : null;
  const seconds = (answer.last - answer.first) / 1000;
  return {
    tokens,
    first: (answer.first - answer.asked) / 1000,
    rate: tokens > 1 && seconds > 0 ? (tokens - 1) / seconds : null,
  };
}

function finish(answer) {
  const { conversation, message } = answer;
  cancelAnimationFrame(answer.frame);
  clearTimeout(answer.saving);
  writing.delete(conversation.id);
  forget(conversation.id);
  message.state = "done";
  conversation.updated = Date.now();
  if (shown === conversation) show();
  save(conversation).then(showList);
}

function stop() {
  const answer = writing.get(shown.id);
  if (answer) socket.cancel(answer.request);
}

// ---- answers that outlive a reload of the page

function pending() {
  try {
    return JSON.parse(sessionStorage.getItem(PENDING) ?? "[]");
  } catch {
    return [];
  }
}

function keepPending(list) {
  try {
    sessionStorage.setItem(PENDING, JSON.stringify(list));
  } catch {
    // After a reload such an answer then shows as interrupted.
  }
}

function remember(entry) {
  keepPending([...pending().filter((other) => other.conversation !== entry.conversation), entry]);
}

function forget(conversation) {
  keepPending(pending().filter((other) => other.conversation !== conversation));
}

async function resumePending() {
  for (const entry of pending()) {
    const conversation = await store.get(entry.conversation);
    const message = conversation?.messages.find(({ id }) => id === entry.message);
    if (!message || message.state !== "writing") {
      forget(entry.conversation);
      continue;
    }
    if (entry.text?.length > message.content.length) message.content = entry.text;
    const partial = message.content;
    const answer = follow(conversation, message);
    const { onchunk, onerror } = answer.handlers;
    answer.resumed = true;
    answer.request = entry.id;
    // It comes again from its first word; until then what was saved stays.
    let begun = false;
    answer.handlers.onchunk = (chunk) => {
      if (!begun) message.content = "";
      begun = true;
      onchunk(chunk);
    };
    answer.handlers.onerror = (error) => {
      if (!begun) message.content = partial;
      onerror(error);
    };
    socket.resume(entry.id, entry.session, answer.handlers);
    shown = conversation;
  }
}

// ---- keys and clicks

function resize() {
  const prompt = $("prompt");
  if (!CSS.supports("field-sizing", "content")) {
    prompt.style.height = "auto";
    prompt.style.height = `${prompt.scrollHeight}px`;
  }
  showComposer();
}

function bind() {
  const prompt = $("prompt");
  prompt.addEventListener("input", resize);
  prompt.addEventListener("keydown", (event) => {
    if (event.isComposing) return;
    if (event.key === "Enter" && !event.shiftKey) {
      event.preventDefault();
      submit();
    } else if (event.key === "ArrowUp" && prompt.value === "" && !writing.has(shown.id)) {
      const mine = shown.messages.findLast(({ role }) => role === "user");
      if (mine) {
        event.preventDefault();
        messages.edit(mine);
      }
    }
  });
  $("composer").addEventListener("submit", (event) => {
    event.preventDefault();
    if (writing.has(shown.id)) stop();
    else submit();
  });
  for (const starter of $("starters").children) {
    starter.addEventListener("click", () => {
      prompt.value = starter.textContent;
      submit();
      prompt.focus();
    });
  }
  $("new-chat").addEventListener("click", newChat);
  $("open-settings").addEventListener("click", async () => {
    const settings = await editSettings(shown.settings);
    if (!settings) return;
    shown.settings = settings;
    if (shown.messages.length) save(shown);
  });
  $("notice-close").addEventListener("click", () => ($("notice").hidden = true));
  document.addEventListener("keydown", (event) => {
    if (event.defaultPrevented || event.isComposing || document.querySelector("dialog[open]")) return;
    if (event.key === "Escape") {
      if (sidebar.isDrawerOpen) sidebar.drawer(false);
      else stop();
    } else if (event.key === "/" && !event.target.closest?.("input, textarea")) {
      event.preventDefault();
      prompt.focus();
    }
  });
  addEventListener("pagehide", () => {
    // A page that goes has no time left for the database.
    for (const { conversation, message } of writing.values()) {
      const entry = pending().find((other) => other.conversation === conversation.id);
      if (entry) remember({ ...entry, text: message.content });
    }
  });
}

// ---- other tabs, and the server

store.addEventListener("changed", async ({ detail: id }) => {
  showList();
  if (id !== shown.id || writing.has(id)) return;
  const found = await store.get(id);
  // Only what another tab has finished or is writing; it knows better than we do whether it still is.
  if (found && id === shown.id && !writing.has(id) && found.rev > shown.rev) {
    shown = found;
    show();
  }
});
store.addEventListener("deleted", ({ detail: id }) => {
  if (id === shown.id && !writing.has(id)) {
    shown = newConversation(lastSettings());
    show();
  }
  showList();
});
store.addEventListener("trouble", ({ detail }) => notice(detail));

socket.addEventListener("state", () => {
  const connection = $("connection");
  connection.dataset.state = socket.state;
  connection.textContent = { open: "connected", connecting: "connecting", offline: "offline" }[socket.state];
  showHeadline();
});
socket.addEventListener("unauthorized", ({ detail }) => authorize(detail));

let asking = null;

function authorize(error) {
  asking ??= (async () => {
    if (error.status === 403) {
      notice(error.message);
      return;
    }
    const given = await askForKey(key() === null ? "" : "That key was not accepted.");
    if (given === null) {
      notice("Without a key this server answers nothing. Reload the page to enter one.");
      return;
    }
    setKey(given);
    socket.reconnect();
    panel.start();
  })().finally(() => (asking = null));
  return asking;
}

async function start() {
  initTheme();
  bind();
  show();
  await store.open();
  await resumePending();
  show();
  showList();
  try {
    await get("v1/models");
  } catch (error) {
    if (error.status === 401 || error.status === 403) {
      // Whoever is let in is connected by that.
      await authorize(error);
      return;
    }
  }
  socket.connect();
  panel.start();
  if (matchMedia("(hover: hover)").matches) $("prompt").focus();
}

start();
