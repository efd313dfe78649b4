// Markdown that is still being written, as elements.
//
// marked's lexer says what the text is; this module builds the elements from its tokens. HTML in the text becomes
// visible text, links get only a few schemes, and images are never loaded. While text streams in, blocks that
// can no longer change keep their elements, so that the work a frame costs is that of the last block.

import { Lexer } from "../vendor/marked/marked.esm.js";
import { copies, h, icon } from "./dom.js";

const LINK_SCHEMES = new Set(["http:", "https:", "mailto:"]);
const LANGUAGE = /^[\w+#.-]{1,24}/;
const MAX_NESTING = 24;

const NAMED = { amp: "&", lt: "<", gt: ">", quot: '"', apos: "'", nbsp: "\u00a0" };

function unescapeEntities(text) {
  if (!text.includes("&")) return text;
  return text.replace(/&(?:#(\d{1,7})|#[xX]([\da-fA-F]{1,6})|(amp|lt|gt|quot|apos|nbsp));/g, (all, dec, hex, name) => {
    if (name) return NAMED[name];
    const code = dec ? parseInt(dec, 10) : parseInt(hex, 16);
    return code > 0 && code <= 0x10ffff && !(code >= 0xd800 && code <= 0xdfff) ? String.fromCodePoint(code) : "\ufffd";
  });
}

/** The address if a link may have it, else null. Relative addresses would lead into this page, so they go too. */
export function safeHref(href) {
  let url;
  try {
    url = new URL(unescapeEntities(href));
  } catch {
    return null;
  }
  return LINK_SCHEMES.has(url.protocol) ? url.href : null;
}

function link(href, children) {
  const safe = safeHref(href);
  if (safe === null) return h("span", {}, ...children);
  return h("a", { href: safe, title: safe, target: "_blank", rel: "noopener noreferrer nofollow" }, ...children);
}

function inline(tokens = [], depth = 0) {
  if (depth > MAX_NESTING) return tokens.map((token) => token.raw);
  return tokens.map((token) => inlineToken(token, depth));
}

function inlineToken(token, depth) {
  const inner = () => inline(token.tokens, depth + 1);
  switch (token.type) {
    case "text":
      return token.tokens ? h("span", {}, ...inner()) : unescapeEntities(token.text);
    case "escape":
      return token.text;
    case "strong":
      return h("strong", {}, ...inner());
    case "em":
      return h("em", {}, ...inner());
    case "del":
      return h("del", {}, ...inner());
    case "codespan":
      return h("code", {}, token.text);
    case "br":
      return h("br");
    case "link":
      return link(token.href, inner());
    case "image":
      return h("span", { class: "picture" }, "🖼 ", link(token.href, [token.text || "image"]));
    case "checkbox":
      return h("input", { type: "checkbox", disabled: true, checked: token.checked, "aria-label": token.checked ? "done" : "to do" });
    case "html":
      return /^<br\s*\/?>$/i.test(token.raw) ? h("br") : token.raw;
    default:
      return token.raw;
  }
}

function codeBlock(token) {
  const code = h("code", {}, token.text);
  const language = LANGUAGE.exec(token.lang ?? "")?.[0] ?? "";
  const copy = h("button", { type: "button", class: "copy", onclick: copies(() => code.textContent) }, icon("copy"), "Copy");
  // Focusable, so that a long line can be scrolled from the keyboard.
  const pre = h("pre", { tabindex: "0", role: "region", "aria-label": language ? `${language} code` : "code" }, code);
  return h("div", { class: "code", dataset: { language } }, h("div", { class: "code-head" }, h("span", {}, language || "text"), copy), pre);
}

function table(token) {
  const cell = (tag) => (cell, i) => h(tag, { dataset: token.align[i] ? { align: token.align[i] } : {} }, ...inline(cell.tokens));
  return h(
    "div",
    { class: "table", tabindex: "0", role: "region", "aria-label": "table" },
    h("table", {}, h("thead", {}, h("tr", {}, ...token.header.map(cell("th")))), h("tbody", {}, ...token.rows.map((row) => h("tr", {}, ...row.map(cell("td")))))),
  );
}

/** Token types that hold blocks: their children are kept, too, as far as they stay the same. */
const CONTAINERS = {
  blockquote: (token) => [h("blockquote"), token.tokens],
  list: (token) => [h(token.ordered ? "ol" : "ul", token.ordered && token.start !== 1 ? { start: token.start } : {}), token.items],
  list_item: (token) => [h("li", { dataset: token.task ? { task: "" } : {} }), token.tokens],
};

function blockToken(token) {
  switch (token.type) {
    case "paragraph":
      return h("p", {}, ...inline(token.tokens));
    case "text":
      return h("span", {}, ...(token.tokens ? inline(token.tokens) : [unescapeEntities(token.text)]));
    case "heading":
      return h(`h${token.depth}`, {}, ...inline(token.tokens));
    case "code":
      return codeBlock(token);
    case "table":
      return table(token);
    case "hr":
      return h("hr");
    case "checkbox":
      return inlineToken(token, 0);
    case "html":
      return h("p", {}, token.raw.trimEnd());
    default:
      return h("p", {}, token.raw);
  }
}

const INVISIBLE = new Set(["space", "def"]);

/**
 * Makes the children of `parent` from index `from` on show these tokens. An element remembers its token: if the
 * token has not changed it stays, if it is a list or a code block that has grown only the new part is added.
 */
function reconcile(parent, from, tokens, depth = 0) {
  const visible = tokens.filter((token) => !INVISIBLE.has(token.type));
  visible.forEach((token, i) => {
    const old = parent.children[from + i];
    if (old?.token && same(old.token, token)) return;
    if (old?.token && grow(old, token, depth)) {
      old.token = token;
      return;
    }
    const element = build(token, depth);
    element.token = token;
    if (old) old.replaceWith(element);
    else parent.append(element);
  });
  while (parent.children.length > from + visible.length) parent.lastElementChild.remove();
}

/** A list whose last item is set off by a blank line has paragraphs in the items before it, too. */
function same(old, token) {
  return old.type === token.type && old.raw === token.raw && old.loose === token.loose;
}

function build(token, depth) {
  const container = depth < MAX_NESTING && Object.hasOwn(CONTAINERS, token.type) ? CONTAINERS[token.type] : null;
  if (!container) return blockToken(token);
  const [element, tokens] = container(token);
  reconcile(element, 0, tokens, depth + 1);
  return element;
}

function grow(element, token, depth) {
  const old = element.token;
  if (old.type !== token.type) return false;
  if (token.type === "code") {
    if (old.lang !== token.lang || !token.text.startsWith(old.text)) return false;
    element.querySelector("code").append(token.text.slice(old.text.length));
    return true;
  }
  if (!Object.hasOwn(CONTAINERS, token.type) || depth >= MAX_NESTING) return false;
  if (old.ordered !== token.ordered || old.start !== token.start || old.task !== token.task) return false;
  reconcile(element, 0, CONTAINERS[token.type](token)[1], depth + 1);
  return true;
}

/** One message's text in one element. Call `show` with the whole text as often as it grows. */
export class MarkdownView {
  #root;
  #text = "";
  #stable = 0; // characters of #text whose blocks are settled
  #settled = 0; // their number of elements

  constructor(root) {
    this.#root = root;
  }

  /** `final`: nothing more comes, so look once at the whole (a link's address may stand at the very end). */
  show(text, { final = false } = {}) {
    if (final || !text.startsWith(this.#text.slice(0, this.#stable))) {
      this.#stable = 0;
      this.#settled = 0;
    }
    this.#text = text;
    const tokens = new Lexer({ gfm: true, breaks: true }).lex(text.slice(this.#stable));
    reconcile(this.#root, this.#settled, tokens);
    if (!final) this.#settle(tokens);
  }

  /** All blocks but the last one are settled: text that comes can change the last one only. */
  #settle(tokens) {
    let last = tokens.length - 1;
    while (last >= 0 && INVISIBLE.has(tokens[last].type)) last -= 1;
    const done = tokens.slice(0, Math.max(last, 0));
    // The lexer normalizes line ends and tabs: only where lengths are to be trusted may text be left behind.
    const raw = done.map((token) => token.raw).join("");
    if (!this.#text.startsWith(raw, this.#stable)) return;
    this.#stable += raw.length;
    this.#settled += done.filter((token) => !INVISIBLE.has(token.type)).length;
  }
}
