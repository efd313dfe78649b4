// A classic script in the head, so that the first paint already has the chosen theme.
try {
  const chosen = localStorage.getItem("streamgen.theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
} catch {
  // Storage may be forbidden; then the system's theme it is.
}
