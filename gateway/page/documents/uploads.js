// The list of uploads, with a summary that screen readers announce.

import { byId } from "../dom.js";
import { count } from "../numbers.js";
import { Jobs } from "./jobs.js";
import { Queue } from "./queue.js";
import { Row } from "./row.js";
import { Upload } from "./upload.js";

export class Uploads {
  /** `onStored` is called when a collection has changed. */
  constructor(keys, onStored) {
    this.onStored = onStored;
    this.list = byId("uploads");
    this.bar = byId("uploads-bar");
    this.status = byId("uploads-status");
    this.retryFailed = byId("retry-failed");
    this.clearEnded = byId("clear-ended");
    this.rows = new Map();
    const changed = (upload) => this.changed(upload);
    const unauthorised = (problem) => keys.ask(problem);
    this.jobs = new Jobs({ changed, unauthorised });
    this.queue = new Queue(this.jobs, { changed, unauthorised, removed: (upload) => this.removed(upload) });
    this.retryFailed.addEventListener("click", () => this.retryAll());
    this.clearEnded.addEventListener("click", () => this.clear());
    window.addEventListener("beforeunload", (event) => this.queue.busy && event.preventDefault());
  }

  add(files, collection) {
    this.queue.add(files.map((file) => new Upload(file, collection)));
  }

  changed(upload) {
    if (!this.rows.has(upload)) {
      const row = new Row(upload, {
        otherId: () => this.queue.otherId(upload),
        secondsHeld: () => this.queue.secondsHeld,
        act: (what) => this.queue[what](upload),
      });
      this.rows.set(upload, row);
      this.list.append(row.root);
    }
    const row = this.rows.get(upload);
    const ended = upload.ended && row.root.dataset.state !== upload.state;
    row.show();
    if (ended && upload.job) this.onStored();
    this.sum(upload);
  }

  removed(upload) {
    const { root } = this.rows.get(upload);
    const beside = root.nextElementSibling ?? root.previousElementSibling;
    const focused = root.contains(document.activeElement);
    root.remove();
    this.rows.delete(upload);
    if (focused) (beside?.querySelector(".buttons button:last-child") ?? byId("choose")).focus();
    this.sum();
  }

  /** Say how many uploads ended how, and why the last one failed. */
  sum(last) {
    const all = this.queue.uploads;
    const of = (...states) => all.filter(({ state }) => states.includes(state));
    const stored = of("stored", "unchanged").length;
    const [failed, doubled] = [of("failed").length, of("doubled").length];
    const why = last?.state === "failed" ? ` ${last.id}: ${last.problems[0] ?? "failed."}` : "";
    const words = [
      `${count(stored)} of ${count(all.length)} ${all.length === 1 ? "file" : "files"} stored`,
      failed && `${count(failed)} failed`,
      doubled && `${count(doubled)} with a name twice`,
    ].filter(Boolean);
    const summary = `${words.join(", ")}.`;
    // A change of the text is announced, so it changes with the figures only.
    if (summary !== this.summary) this.status.textContent = summary + why;
    this.summary = summary;
    this.bar.hidden = !all.length;
    this.put(this.retryFailed, of("failed").some(({ retryable }) => retryable));
    this.put(this.clearEnded, stored + failed > 0);
  }

  put(button, possible) {
    if (!possible && document.activeElement === button) byId("choose").focus();
    button.hidden = !possible;
  }

  retryAll() {
    for (const upload of this.queue.uploads.filter(({ state, retryable }) => state === "failed" && retryable)) {
      this.queue.retry(upload);
    }
  }

  clear() {
    for (const upload of this.queue.uploads.filter(({ ended }) => ended)) this.queue.remove(upload);
  }
}
