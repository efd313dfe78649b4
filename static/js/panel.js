// The server's load, asked for every two seconds while somebody looks.

import { ApiError, get } from "./api.js";
import { $ } from "./dom.js";

const EVERY = 2000; // ms
const POINTS = 40;

export class Panel {
  /** `onmodel` gets the served model's name whenever it is known; `onloading` true while the server loads it. */
  constructor({ onmodel, onloading }) {
    this.onmodel = onmodel;
    this.onloading = onloading;
    this.last = null;
    this.rates = new Array(POINTS).fill(0);
    this.timer = null;
    document.addEventListener("visibilitychange", () => this.start());
  }

  start() {
    clearTimeout(this.timer);
    if (document.visibilityState === "visible") this.#tick();
  }

  async #tick() {
    try {
      this.#show(await get("stats", { timeout: EVERY * 2 }));
      this.onloading(false);
    } catch (error) {
      this.last = null;
      this.onloading(error instanceof ApiError && error.status === 503 && error.code !== "engine_dead" && error.code !== "draining");
    }
    clearTimeout(this.timer);
    if (document.visibilityState === "visible") this.timer = setTimeout(() => this.#tick(), EVERY);
  }

  #show(stats) {
    this.onmodel(stats.model, stats.max_model_len);
    const seconds = this.last ? stats.seconds - this.last.seconds : 0;
    // A restarted server counts from zero again.
    const tokens = this.last ? Math.max(0, stats.generation_tokens - this.last.generation_tokens) : 0;
    const rate = seconds > 0 ? tokens / seconds : 0;
    this.last = stats;
    this.rates = [...this.rates, rate].slice(-POINTS);
    $("stat-rate").textContent = rate < 10 ? rate.toFixed(rate ? 1 : 0) : Math.round(rate).toLocaleString("en");
    $("stat-running").textContent = stats.running;
    $("stat-waiting").textContent = stats.waiting;
    $("stat-kv").textContent = `${(stats.kv_cache_usage * 100).toFixed(stats.kv_cache_usage < 0.1 ? 1 : 0)}%`;
    $("stat-kv-bar").value = stats.kv_cache_usage;
    const top = Math.max(...this.rates, 1);
    const points = this.rates.map((value, i) => `${(i * 120) / (POINTS - 1)},${26 - (value / top) * 24}`);
    $("spark").querySelector("polyline").setAttribute("points", points.join(" "));
  }
}
