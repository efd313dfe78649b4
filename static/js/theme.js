// Light, dark, or as the system has it.

import { $ } from "./dom.js";

const KEY = "streamgen.theme";
const NEXT = { auto: "light", light: "dark", dark: "auto" };
const ICON = { auto: "auto", light: "sun", dark: "moon" };

export function initTheme() {
  const button = $("theme");
  const show = () => {
    const theme = document.documentElement.dataset.theme ?? "auto";
    button.querySelector("use").setAttribute("href", `#i-${ICON[theme]}`);
    const label = `Theme: ${theme === "auto" ? "as the system has it" : theme}`;
    button.setAttribute("aria-label", label);
    button.title = label;
  };
  button.addEventListener("click", () => {
    const theme = NEXT[document.documentElement.dataset.theme ?? "auto"];
    if (theme === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
    try {
      localStorage.setItem(KEY, theme);
    } catch {
      // It holds for this visit.
    }
    show();
  });
  show();
}
