// The list of conversations, and the drawer it becomes on a narrow screen.

import { $, h, iconButton } from "./dom.js";

export class Sidebar {
  /** handlers: onopen(id), onrename(id, title), ondelete(id, title). */
  constructor(handlers) {
    this.handlers = handlers;
    this.list = $("conversations");
    this.app = document.querySelector(".app");
    $("open-sidebar").addEventListener("click", () => this.drawer(true));
    $("close-sidebar").addEventListener("click", () => this.drawer(false));
    $("scrim").addEventListener("click", () => this.drawer(false));
    // A drawer holds the focus while it is open, and does not catch it while it is not.
    matchMedia("(max-width: 820px)").addEventListener("change", () => this.drawer(false));
  }

  get isDrawerOpen() {
    return "sidebar" in this.app.dataset;
  }

  drawer(open) {
    const was = this.isDrawerOpen;
    if (open) this.app.dataset.sidebar = "";
    else delete this.app.dataset.sidebar;
    document.querySelector(".main").inert = open;
    $("open-sidebar").setAttribute("aria-expanded", String(open));
    if (open) $("close-sidebar").focus();
    else if (was) $("open-sidebar").focus();
  }

  /** `conversations` newest first; `busy` the ids of those that are being answered. */
  show(conversations, current, busy) {
    if (this.list.querySelector(".rename")) return;
    const focused = document.activeElement?.closest?.("li")?.dataset.id;
    const where = document.activeElement?.dataset?.part;
    this.list.replaceChildren(...conversations.map((entry) => this.#row(entry, entry.id === current, busy.has(entry.id))));
    // The list is built anew; whoever stood in it with the keyboard still does.
    if (focused && where) this.list.querySelector(`li[data-id="${focused}"] [data-part="${where}"]`)?.focus();
  }

  #row({ id, title }, current, busy) {
    const name = title || "New chat";
    const open = h("button", { type: "button", class: "open", title: name, "aria-current": current ? "true" : null, dataset: { part: "open" }, onclick: () => this.handlers.onopen(id) }, name);
    const rename = iconButton("edit", `Rename ${name}`, () => this.#rename(row, id, name));
    const remove = iconButton("trash", `Delete ${name}`, () => this.handlers.ondelete(id, name));
    rename.dataset.part = "rename";
    remove.dataset.part = "delete";
    open.addEventListener("dblclick", () => this.#rename(row, id, name));
    const row = h("li", { dataset: { id, ...(current ? { current: "" } : {}), ...(busy ? { busy: "" } : {}) } }, open, h("span", { class: "tools" }, rename, remove));
    return row;
  }

  #rename(row, id, name) {
    const input = h("input", { class: "rename", value: name, maxlength: "80", "aria-label": "Name of the conversation" });
    let over = false;
    const end = (keep) => {
      if (over) return;
      over = true;
      input.remove();
      this.handlers.onrename(id, keep && input.value.trim() ? input.value.trim() : name);
    };
    input.addEventListener("blur", () => end(true));
    input.addEventListener("keydown", (event) => {
      if (event.isComposing) return;
      if (event.key === "Enter") end(true);
      else if (event.key === "Escape") {
        event.stopPropagation();
        end(false);
      }
    });
    row.replaceChildren(input);
    input.focus();
    input.select();
  }
}
