// The collections of the key's tenant, offered wherever the page chooses one.

import { Problem, json } from "./api.js";
import { byId, el } from "./dom.js";
import { count } from "./numbers.js";

const DEFAULT = "default";

export class Collections {
  constructor(keys) {
    this.keys = keys;
    this.asked = byId("collection");
    this.managed = byId("documents-collection");
    this.note = byId("collection-note");
    this.sizes = new Map();
    this.graphs = new Map();
    this.onLoad = () => {};
  }

  /** Load the list. Returns why it did not come, else "". A choice stays if the list still has it. */
  async load() {
    try {
      const { data } = await json("v1/collections");
      this.sizes = new Map(data.map(({ name, documents }) => [name, documents]));
      this.graphs = new Map(data.map(({ name, graph }) => [name, graph]));
    } catch (error) {
      if (!(error instanceof Problem)) console.error(error);
      if (error.status === 401) this.keys.ask(error);
      this.note.textContent = error.status === 401 ? "" : error.message;
      return error.status === 401 ? "To see documents, enter the key at the top of the page." : error.message;
    }
    offer(this.asked, [...this.sizes]);
    const managed = this.sizes.size ? [...this.sizes] : [[DEFAULT, 0]];
    offer(this.managed, managed, el("option", { value: "" }, "New collection …"));
    const none = [...this.sizes.values()].every((documents) => !documents);
    this.note.textContent = none ? "No documents are stored yet: upload some below, or with ragtree ingest." : "";
    this.keys.accepted();
    this.onLoad();
    return "";
  }

  /** Choose a collection to manage. It may be new. */
  manage(name) {
    if (!this.sizes.has(name)) this.managed.prepend(option([name, 0]));
    this.managed.value = name;
  }
}

const option = ([name, documents]) => el("option", { value: name }, `${name} (${count(documents)})`);

function offer(select, collections, ...more) {
  const [first, chosen] = [!select.length, select.value];
  select.replaceChildren(...collections.map(option), ...more);
  if (!first && [...select.options].some(({ value }) => value === chosen)) select.value = chosen;
}
