// Asks before a document is deleted.

import { byId } from "../dom.js";

export class Deletion {
  constructor() {
    this.dialog = byId("deletion");
    this.what = byId("deletion-what");
    byId("deletion-no").addEventListener("click", () => this.dialog.close(""));
    byId("deletion-yes").addEventListener("click", () => this.dialog.close("delete"));
    this.dialog.addEventListener("keydown", (event) => {
      // Escape closes the dialog. It must not stop the running question, too.
      if (event.key === "Escape") event.stopPropagation();
    });
  }

  /** Returns whether the user wants it. */
  confirm(id, collection) {
    this.what.textContent = `“\u2068${id}\u2069” leaves the collection ${collection}, with its cached KV. This cannot be undone.`;
    this.dialog.returnValue = "";
    this.dialog.showModal();
    return new Promise((resolve) => {
      this.dialog.addEventListener("close", () => resolve(this.dialog.returnValue === "delete"), { once: true });
    });
  }
}
