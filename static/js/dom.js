// Builds elements. Text only ever enters the page as text nodes; nothing here, or anywhere on this page, parses HTML.

/**
 * h("button", {class: "x", type: "button", onclick: f, dataset: {role: "user"}}, "text", child, null)
 * `on…` are listeners, `dataset` is merged, true and false set and drop a boolean attribute.
 */
export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "dataset") Object.assign(element.dataset, value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

const SVG = "http://www.w3.org/2000/svg";

/** One of the symbols in index.html. */
export function icon(name) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("class", "icon");
  svg.setAttribute("aria-hidden", "true");
  const use = document.createElementNS(SVG, "use");
  use.setAttribute("href", `#i-${name}`);
  svg.append(use);
  return svg;
}

export function iconButton(name, label, onclick) {
  return h("button", { type: "button", class: "icon-button", "aria-label": label, title: label, onclick }, icon(name));
}

export const $ = (id) => document.getElementById(id);

/** Puts text on the clipboard; false if the browser does not let us. */
export async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // No secure context: the old way, through a selection.
    const area = h("textarea", { class: "sr-only", "aria-hidden": "true", tabindex: "-1" });
    area.value = text;
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    return done;
  }
}

/** A click handler that copies, and shows on its button that it did. */
export function copies(getText) {
  return async (event) => {
    const button = event.currentTarget;
    const use = button.querySelector("use");
    const done = await copyText(getText());
    announce(done ? "Copied." : "The browser does not allow copying.");
    if (!done) return;
    use.setAttribute("href", "#i-check");
    setTimeout(() => use.setAttribute("href", "#i-copy"), 1400);
  };
}

/** Tells people who listen rather than look. */
export function announce(text) {
  const status = $("status");
  // The same text twice would not be read out.
  status.textContent = status.textContent === text ? `${text}\u00a0` : text;
}
