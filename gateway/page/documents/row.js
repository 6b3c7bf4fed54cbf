// The row of one upload: its file, its progress, what is wrong with it, and what can be done.

import { el } from "../dom.js";
import { bytes, percent } from "../numbers.js";

const MOST_PROBLEMS = 5;
const MOVING = new Set(["sending", "reading", "ingesting"]);

export class Row {
  /** `otherId` and `secondsHeld` return what the row says. `act` is called with "retry", "rename" or "remove". */
  constructor(upload, { otherId, secondsHeld, act }) {
    this.upload = upload;
    this.otherId = otherId;
    this.secondsHeld = secondsHeld;
    this.name = el("bdi", { class: "filename" });
    this.progress = el("progress", { max: 1, value: 0 });
    this.state = el("p", { class: "state" });
    this.problems = el("ul", { class: "problems" });
    this.again = el("button", { type: "button", class: "quiet" });
    this.away = el("button", { type: "button", class: "quiet" });
    this.again.addEventListener("click", () => {
      // The button will disappear. Hiding a focused control loses the focus.
      this.away.focus();
      act(upload.state === "doubled" ? "rename" : "retry");
    });
    this.away.addEventListener("click", () => act("remove"));
    const buttons = el("div", { class: "buttons" }, this.again, this.away);
    const size = el("span", { class: "size" }, bytes(upload.file.size));
    const head = el("p", { class: "file" }, this.name, size);
    this.root = el("li", { class: "upload" }, head, buttons, this.progress, this.state, this.problems);
  }

  show() {
    const { upload } = this;
    const { state, problems } = upload;
    this.root.dataset.state = state;
    this.name.textContent = upload.id;
    this.progress.hidden = !MOVING.has(state);
    this.progress.value = upload.file.size ? Math.min(1, upload.sent / upload.file.size) : 1;
    this.progress.setAttribute("aria-label", `Sent of ${upload.id}`);
    this.state.textContent = this.words();
    const lines = problems.slice(0, MOST_PROBLEMS).map((problem) => el("li", {}, problem));
    if (problems.length > MOST_PROBLEMS) lines.push(el("li", {}, `And ${problems.length - MOST_PROBLEMS} more.`));
    this.problems.replaceChildren(...lines);
    this.offer(this.away, this.canBeCancelled ? "Cancel" : "Dismiss", true);
    if (state === "doubled") this.offer(this.again, `Upload as ${this.otherId()}`, true);
    else this.offer(this.again, "Retry", state === "failed" && upload.retryable);
  }

  get canBeCancelled() {
    return ["queued", "held", "doubled", "sending"].includes(this.upload.state);
  }

  offer(button, words, possible) {
    button.hidden = !possible;
    button.textContent = words;
    button.setAttribute("aria-label", words.startsWith("Upload") ? words : `${words} ${this.upload.id}`);
  }

  words() {
    const { state, sent, file, job } = this.upload;
    switch (state) {
      case "queued":
        return "Waiting for its turn";
      case "held":
        return `Goes on in ${this.secondsHeld()} s`;
      case "doubled":
        return "Another file in this list has the same name and would be replaced";
      case "sending":
        return `Sending, ${percent(file.size ? sent / file.size : 1)} of ${bytes(file.size)}`;
      case "reading":
        return "Sent. The gateway reads it";
      case "ingesting":
        return job?.status === "in_progress" ? "Ingesting: embedding its chunks" : "Waiting for ingestion";
      case "stored":
        return this.upload.batch ? ended(job) : `Stored in ${this.upload.collection}`;
      case "unchanged":
        return this.upload.batch ? ended(job) : `Unchanged: ${this.upload.collection} has the same content`;
      default:
        return this.upload.batch && job ? ended(job) : "Failed";
    }
  }
}

const ended = ({ stored, unchanged, failed_documents: failed }) =>
  `${stored} stored, ${unchanged} unchanged, ${failed} failed`;
