// The panel of documents: choose a collection, upload files to it, see and delete what it holds.

import { byId } from "../dom.js";
import { DropZone } from "./dropzone.js";
import { Stored } from "./stored.js";
import { Uploads } from "./uploads.js";

const NAME = /^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$/;
const REFRESH_MS = 400;

export class Documents {
  constructor(collections, keys) {
    this.collections = collections;
    this.chosen = byId("documents-collection");
    this.name = byId("new-collection");
    this.nameNote = byId("new-collection-note");
    this.timer = 0;
    this.stored = new Stored(keys, () => this.changed());
    this.uploads = new Uploads(keys, () => this.changed());
    new DropZone(byId("documents"), (files, folders) => this.add(files, folders));
    this.chosen.addEventListener("change", () => {
      this.choose();
      if (!this.chosen.value) this.name.focus();
    });
    byId("refresh").addEventListener("click", () => this.open());
  }

  /** Load the collections, and the documents of the chosen one. */
  async open() {
    const why = await this.collections.load();
    if (why) this.stored.say(why);
    else this.choose();
  }

  choose() {
    const collection = this.chosen.value;
    const isNew = !collection;
    for (const part of document.querySelectorAll(".named")) part.hidden = !isNew;
    this.nameNote.textContent = "";
    if (collection === this.stored.collection) this.stored.refresh();
    else this.stored.open(collection);
  }

  add(files, folders) {
    const collection = this.chosen.value || this.name.value.trim();
    const refused = !NAME.test(collection);
    this.nameNote.textContent = refused
      ? "Name the collection first: letters, digits, dots, dashes and underscores, beginning with a letter or a digit."
      : folders.length
        ? `Folders are not uploaded: ${folders.join(", ")}. Choose their files, or use ragtree ingest.`
        : "";
    if (refused) {
      this.name.focus();
      return;
    }
    if (!this.chosen.value) {
      this.collections.manage(collection);
      this.choose();
    }
    this.uploads.add(files, collection);
  }

  /** Load what an upload or a deletion has changed. Many may come at once. */
  changed() {
    clearTimeout(this.timer);
    this.timer = setTimeout(async () => {
      await this.collections.load();
      this.stored.refresh();
    }, REFRESH_MS);
  }
}
