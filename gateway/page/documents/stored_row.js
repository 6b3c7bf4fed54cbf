// The row of one stored document.

import { el } from "../dom.js";
import { bytes, count } from "../numbers.js";

const when = new Intl.DateTimeFormat("en", { dateStyle: "medium", timeStyle: "short" });

export class StoredRow {
  constructor(onDelete) {
    this.name = el("bdi", { class: "filename" });
    this.title = el("span", { class: "title" });
    this.problem = el("p", { class: "problems", role: "alert" });
    this.chunks = el("td", { class: "figure chunks" });
    this.size = el("td", { class: "figure" });
    this.changed = el("td", { class: "changed" });
    this.button = el("button", { type: "button", class: "quiet" }, "Delete");
    this.button.addEventListener("click", () => this.root.ariaBusy !== "true" && onDelete(this));
    const name = el("th", { scope: "row" }, this.name, this.title, this.problem);
    this.root = el("tr", {}, name, this.chunks, this.size, this.changed, el("td", {}, this.button));
  }

  show(info) {
    this.info = info;
    const { document_id: id, filename, title, chunks, bytes: size, updated_at: changed } = info;
    this.name.textContent = id;
    this.title.textContent = [title, filename === id ? "" : filename].filter((other) => other && other !== id).join(" · ");
    this.chunks.textContent = count(chunks);
    this.size.textContent = bytes(size);
    this.changed.textContent = when.format(changed * 1000);
    this.button.setAttribute("aria-label", `Delete ${id}`);
  }

  busy(busy) {
    this.root.ariaBusy = busy;
    this.button.textContent = busy ? "Deleting …" : "Delete";
    if (busy) this.problem.textContent = "";
  }

  failed(why) {
    this.busy(false);
    this.problem.textContent = why;
  }
}
