// The choice of how a question uses the collection's knowledge graph. It is offered for collections that have one.

import { byId, el } from "../dom.js";

const MODES = {
  naive: "naive: no graph",
  local: "local: named entities",
  global: "global: near statements",
  hybrid: "hybrid: local and global",
  mix: "mix: hybrid and search",
};
const AGAIN_MS = 3000;

export class Mode {
  constructor(collections) {
    this.collections = collections;
    this.label = byId("mode-label");
    this.select = byId("mode");
    this.timer = 0;
    this.select.replaceChildren(...Object.entries(MODES).map(([value, words]) => el("option", { value }, words)));
    collections.asked.addEventListener("change", () => this.offer());
    collections.onLoad = () => this.offer();
  }

  get state() {
    return this.collections.graphs.get(this.collections.asked.value) ?? "none";
  }

  /** The mode of a question to the chosen collection. */
  get value() {
    return this.state === "ready" ? this.select.value : "naive";
  }

  offer() {
    const { state } = this;
    this.label.hidden = this.select.hidden = state === "none";
    this.select.disabled = state !== "ready";
    this.label.textContent = state === "reading" ? "Graph (still being read)" : "Graph";
    clearTimeout(this.timer);
    if (state === "reading") this.timer = setTimeout(() => this.collections.load(), AGAIN_MS);
  }
}
