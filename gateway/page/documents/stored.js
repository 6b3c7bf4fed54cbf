// The documents of a collection, page by page.

import { Problem, call, json } from "../api.js";
import { byId } from "../dom.js";
import { count } from "../numbers.js";
import { Deletion } from "./deletion.js";
import { collectionPath, documentPath } from "./names.js";
import { StoredRow } from "./stored_row.js";

const PAGE = 10;

export class Stored {
  /** `onDeleted` is called after a deletion. */
  constructor(keys, onDeleted) {
    this.keys = keys;
    this.onDeleted = onDeleted;
    this.deletion = new Deletion();
    this.table = byId("stored");
    this.caption = byId("stored-caption");
    this.body = byId("stored-rows");
    this.note = byId("stored-note");
    this.pages = byId("pages");
    this.number = byId("page-number");
    this.previous = byId("previous-page");
    this.next = byId("next-page");
    this.open("");
    this.previous.addEventListener("click", () => this.turn(this.cursors.slice(0, -1)));
    this.next.addEventListener("click", () => this.turn([...this.cursors, this.after]));
  }

  /** Show the first page of a collection. */
  open(collection) {
    this.collection = collection;
    // The cursors of the pages up to this one. The API only goes forward.
    this.cursors = [null];
    this.after = null;
    this.rows = new Map();
    this.table.hidden = this.pages.hidden = true;
    this.deleted = "";
    this.say("");
    return this.refresh();
  }

  async turn(cursors) {
    if (this.loading || !cursors.length || cursors.at(-1) === undefined) return;
    this.cursors = cursors;
    this.deleted = "";
    await this.refresh();
    this.caption.scrollIntoView({ block: "nearest" });
  }

  /** Load the page again. */
  async refresh() {
    const { collection, cursors } = this;
    if (!collection) return;
    const loading = (this.loading = {});
    const current = () => this.loading === loading;
    const after = cursors.at(-1) === null ? "" : `&after=${encodeURIComponent(cursors.at(-1))}`;
    try {
      const page = await json(`${collectionPath(collection)}?limit=${PAGE}${after}`);
      if (!current()) return;
      this.loading = null;
      if (page.data.length || cursors.length === 1) return this.show(page);
      this.cursors = cursors.slice(0, -1);
      await this.refresh();
    } catch (error) {
      if (!current()) return;
      this.loading = null;
      this.refused(error);
    }
  }

  refused(error) {
    // A collection without a document is unknown.
    if (error.status === 404) return this.show({ data: [], has_more: false });
    return this.say(this.reason(error));
  }

  reason(error) {
    if (!(error instanceof Problem)) console.error(error);
    if (error.status === 401) this.keys.ask(error);
    return error instanceof Problem ? error.message : "The page cannot read the reply.";
  }

  show({ data, has_more: more, next_cursor: after }) {
    const active = document.activeElement;
    const rows = new Map(data.map((info) => [info.document_id, this.rows.get(info.document_id) ?? this.row()]));
    for (const info of data) rows.get(info.document_id).show(info);
    this.rows = rows;
    this.body.replaceChildren(...[...rows.values()].map(({ root }) => root));
    // Rows lose the focus when they are put in place again.
    if (active !== document.activeElement && this.body.contains(active)) active.focus({ preventScroll: true });
    this.after = more ? after : undefined;
    const first = (this.cursors.length - 1) * PAGE;
    this.caption.textContent = `Documents ${count(first + 1)} to ${count(first + data.length)} in ${this.collection}`;
    this.number.textContent = `Page ${count(this.cursors.length)}`;
    this.previous.setAttribute("aria-disabled", this.cursors.length === 1);
    this.next.setAttribute("aria-disabled", !more);
    this.pages.hidden = this.cursors.length === 1 && !more;
    this.table.hidden = !data.length;
    this.say(data.length ? this.deleted : `${this.collection} has no documents.`);
  }

  row() {
    return new StoredRow((row) => this.remove(row));
  }

  async remove(row) {
    const { collection } = this;
    const { document_id: id } = row.info;
    if (!(await this.deletion.confirm(id, collection))) return;
    row.busy(true);
    try {
      await call(documentPath(collection, id), { method: "DELETE" });
    } catch (error) {
      // 404: somebody else has deleted it.
      if (error.status !== 404) return row.failed(this.reason(error));
    }
    row.busy(false);
    this.gone(row);
    return this.onDeleted();
  }

  /** Take a row off the page, and move the focus on if it was there. */
  gone(row) {
    const beside = row.root.nextElementSibling ?? row.root.previousElementSibling;
    const focused = row.root.contains(document.activeElement);
    row.root.remove();
    if (focused) (beside?.querySelector("button") ?? byId("documents-title")).focus();
    this.deleted = `${row.info.document_id} is deleted.`;
    this.say(this.deleted);
  }

  say(words) {
    this.note.textContent = words;
  }
}
