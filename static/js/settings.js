// System prompt and sampling: the dialog, the defaults for new conversations, and what goes into a request.

import { $, h } from "./dom.js";

const KEY = "streamgen.settings";
const NUMBERS = ["temperature", "top_p", "top_k", "min_p", "max_tokens", "seed"];

/** What the last conversation was set to: the next one begins with it. */
export function lastSettings() {
  try {
    return clean(JSON.parse(localStorage.getItem(KEY) ?? "{}"));
  } catch {
    return {};
  }
}

function remember(settings) {
  try {
    localStorage.setItem(KEY, JSON.stringify(settings));
  } catch {
    // The next conversation then begins with the model's defaults.
  }
}

function clean(value) {
  const settings = {};
  if (typeof value?.system === "string" && value.system.trim()) settings.system = value.system;
  for (const name of NUMBERS) if (Number.isFinite(value?.[name])) settings[name] = value[name];
  return settings;
}

/** The body of /v1/chat/completions for a conversation's settings and messages. */
export function requestBody(model, settings, messages) {
  const { system, ...sampling } = settings;
  return {
    ...(model ? { model } : {}),
    messages: [...(system ? [{ role: "system", content: system }] : []), ...turns(messages)],
    stream: true,
    stream_options: { include_usage: true },
    ...sampling,
  };
}

/** Messages in turns: a question whose answer was stopped before it began is one with the next, since many chat
 * templates refuse two of the same role in a row. */
function turns(messages) {
  const history = [];
  for (const { role, content } of messages) {
    if (content === "" && role !== "user") continue;
    const last = history.at(-1);
    if (last?.role === role) last.content += `\n\n${content}`;
    else history.push({ role, content });
  }
  return history;
}

/** Ask for settings; resolves to the new ones, or null if the dialog was closed. */
export function editSettings(current) {
  const dialog = $("settings");
  const form = $("settings-form");
  const fill = (settings) => {
    form.elements.system.value = settings.system ?? "";
    for (const name of NUMBERS) form.elements[name].value = settings[name] ?? "";
  };
  fill(current);
  dialog.returnValue = "";
  dialog.showModal();
  return new Promise((resolve) => {
    const reset = () => fill({});
    const submit = (event) => {
      if (event.submitter?.value === "save" && !form.reportValidity()) event.preventDefault();
    };
    $("settings-reset").addEventListener("click", reset);
    form.addEventListener("submit", submit);
    dialog.addEventListener(
      "close",
      () => {
        $("settings-reset").removeEventListener("click", reset);
        form.removeEventListener("submit", submit);
        if (dialog.returnValue !== "save") return resolve(null);
        const values = { system: form.elements.system.value };
        for (const name of NUMBERS) values[name] = form.elements[name].valueAsNumber;
        const settings = clean(values);
        remember(settings);
        resolve(settings);
      },
      { once: true },
    );
  });
}

/** Ask for the API key; resolves to it, or null if the dialog was closed. */
export function askForKey(reason) {
  const dialog = $("key-dialog");
  const input = $("key");
  $("key-lead").replaceChildren(
    ...(reason ? [h("strong", {}, reason), " "] : []),
    "It is kept in this tab only, and forgotten when you close it.",
  );
  input.value = "";
  dialog.returnValue = "";
  if (!dialog.open) dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(dialog.returnValue === "save" ? input.value.trim() || null : null), { once: true });
  });
}

/** Ask before something is lost. */
export function confirmDelete(title) {
  const dialog = $("confirm");
  $("confirm-lead").textContent = `“${title}” and its messages will be gone from this browser.`;
  dialog.returnValue = "";
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(dialog.returnValue === "yes"), { once: true });
  });
}
