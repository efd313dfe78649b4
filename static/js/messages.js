// The messages of one conversation, as elements that follow it.

import { $, copies, h, iconButton } from "./dom.js";
import { MarkdownView } from "./markdown.js";

const NEAR_END = 80; // px

const ENDINGS = {
  length: "Cut off at the longest allowed answer.",
  abort: "Stopped.",
  interrupted: "The connection was lost for too long, and the rest of this answer with it.",
};

const FRIENDLY = {
  context_length_exceeded: "This conversation has become too long for the model. Begin a new one, or shorten a message.",
  queue_full: "The server is busy right now. Try again in a moment.",
  draining: "The server is being restarted. Try again in a moment.",
  not_ready: "The model is still being loaded. Try again in a moment.",
  engine_dead: "The server's engine has stopped.",
  step_failed: "Something went wrong on the server in the middle of this answer. Try again.",
  corrupted_logits: "The model lost its thread in the middle of this answer. Try again.",
  resumed_elsewhere: "This answer goes on in another tab.",
};

/** The numbers below an answer, as short texts. */
export function statTexts(stats) {
  if (!stats) return [];
  const texts = [];
  if (stats.rate) texts.push(`${stats.rate < 10 ? stats.rate.toFixed(1) : Math.round(stats.rate)} tokens/s`);
  if (stats.first !== undefined && stats.first !== null) texts.push(`first token after ${stats.first < 1 ? `${Math.round(stats.first * 1000)} ms` : `${stats.first.toFixed(1)} s`}`);
  if (stats.tokens) texts.push(stats.tokens === 1 ? "1 token" : `${stats.tokens} tokens`);
  return texts;
}

export class MessageList {
  /** handlers: onedit(message, text), onregenerate(message). */
  constructor(handlers) {
    this.handlers = handlers;
    this.list = $("messages");
    this.scroll = $("scroll");
    this.views = new Map();
    this.pinned = true;
    this.scroll.addEventListener("scroll", () => this.#scrolled(), { passive: true });
    $("to-end").addEventListener("click", () => this.toEnd());
    // What grows without a message (an image of the page's own, a turned phone) must not lose the end either.
    new ResizeObserver(() => this.follow()).observe(this.list);
    new ResizeObserver(() => this.follow()).observe(this.scroll);
  }

  /** Show a conversation's messages; those already shown keep their elements. */
  show(messages) {
    const wanted = new Set(messages.map((message) => message.id));
    for (const [id, view] of this.views) {
      if (!wanted.has(id)) {
        view.element.remove();
        this.views.delete(id);
      }
    }
    messages.forEach((message, i) => {
      let view = this.views.get(message.id);
      if (!view) {
        view = message.role === "user" ? new UserView(message, this.handlers) : new AnswerView(message, this.handlers);
        this.views.set(message.id, view);
      }
      if (this.list.children[i] !== view.element) this.list.insertBefore(view.element, this.list.children[i] ?? null);
      view.update(message, i === messages.length - 1);
    });
    this.follow();
  }

  /** One message has changed. */
  update(message) {
    this.views.get(message.id)?.update(message, true);
    this.follow();
  }

  edit(message) {
    this.views.get(message.id)?.edit?.();
  }

  follow() {
    if (this.pinned) this.scroll.scrollTop = this.scroll.scrollHeight;
    this.#scrolled();
  }

  toEnd() {
    this.pinned = true;
    this.follow();
  }

  #scrolled() {
    const { scrollTop, scrollHeight, clientHeight } = this.scroll;
    this.pinned = scrollHeight - clientHeight - scrollTop < NEAR_END;
    $("to-end").hidden = this.pinned;
    document.querySelector(".main").toggleAttribute("data-scrolled", scrollTop > 4);
  }
}

class UserView {
  constructor(message, handlers) {
    this.message = message;
    this.handlers = handlers;
    this.body = h("div", { class: "body" });
    this.foot = h(
      "div",
      { class: "foot" },
      h("span", { class: "tools" }, iconButton("edit", "Edit this message", () => this.edit()), iconButton("copy", "Copy this message", copies(() => this.message.content))),
    );
    this.element = h("li", { class: "message", dataset: { role: "user", id: message.id } }, h("span", { class: "sr-only" }, "You:"), this.body, this.foot);
  }

  update(message) {
    this.message = message;
    if (this.body.textContent !== message.content) this.body.textContent = message.content;
  }

  edit() {
    if (this.element.querySelector(".editor")) return;
    const area = h("textarea", { "aria-label": "Edit your message" });
    area.value = this.message.content;
    const end = () => {
      editor.remove();
      this.body.hidden = this.foot.hidden = false;
    };
    const send = () => {
      const text = area.value.trim();
      if (!text) return;
      end();
      this.handlers.onedit(this.message, text);
    };
    const cancel = h("button", { type: "button", class: "text-button", onclick: () => (end(), this.foot.querySelector("button").focus()) }, "Cancel");
    const editor = h("div", { class: "editor" }, area, h("div", { class: "actions" }, cancel, h("button", { type: "button", class: "button", onclick: send }, "Send")));
    area.addEventListener("keydown", (event) => {
      if (event.isComposing) return;
      if (event.key === "Enter" && !event.shiftKey) {
        event.preventDefault();
        send();
      } else if (event.key === "Escape") {
        event.stopPropagation();
        cancel.click();
      }
    });
    this.body.hidden = this.foot.hidden = true;
    this.element.append(editor);
    area.focus();
    area.setSelectionRange(area.value.length, area.value.length);
  }
}

class AnswerView {
  constructor(message, handlers) {
    this.message = message;
    this.text = h("div", { class: "markdown body" });
    this.markdown = new MarkdownView(this.text);
    this.thinking = h("span", { class: "thinking", role: "img", "aria-label": "Waiting for the first word" }, h("i"), h("i"), h("i"));
    this.problem = h("div", { class: "problem" });
    this.stats = h("span", { class: "stats" });
    this.redo = iconButton("redo", "Answer again", () => handlers.onregenerate(this.message));
    this.foot = h("div", { class: "foot" }, h("span", { class: "tools" }, iconButton("copy", "Copy this answer", copies(() => this.message.content)), this.redo), this.stats);
    this.element = h("li", { class: "message", dataset: { role: "assistant", id: message.id } }, h("span", { class: "sr-only" }, "Model:"), this.thinking, this.text, this.problem, this.foot);
    this.shown = null;
  }

  update(message, last) {
    this.message = message;
    const writing = message.state === "writing";
    this.element.toggleAttribute("data-writing", writing);
    this.element.setAttribute("aria-busy", String(writing));
    this.thinking.hidden = !(writing && message.content === "");
    const version = `${writing}${message.content.length}`;
    if (this.shown !== version) {
      this.shown = version;
      this.markdown.show(message.content, { final: !writing });
    }
    this.foot.hidden = writing;
    this.redo.hidden = !last;
    const error = message.error;
    const ending = ENDINGS[message.ending];
    this.problem.hidden = writing || !(error || ending);
    this.problem.toggleAttribute("data-mild", !error);
    this.problem.textContent = error ? (FRIENDLY[error.code] ?? error.message ?? "Something went wrong.") : (ending ?? "");
    this.problem.title = error?.message ?? "";
    this.stats.replaceChildren(...statTexts(message.stats).map((text) => h("span", {}, text)));
  }
}
