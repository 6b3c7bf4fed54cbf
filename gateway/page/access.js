// API keys. They are stored only in the tab's session storage.

import { byId } from "./dom.js";

const kept = (kind) => `ragtree.${kind}-key`;

export const key = (kind) => sessionStorage.getItem(kept(kind)) ?? "";

/** The form for one kind of key. `purpose` says why it is needed. `onUse` is called when the user enters a key. */
export class KeyForm {
  constructor(kind, purpose, onUse) {
    this.kind = kind;
    this.purpose = purpose;
    this.form = byId(`${kind}-key`);
    this.field = byId(`${kind}-key-field`);
    this.note = byId(`${kind}-key-note`);
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      sessionStorage.setItem(kept(kind), this.field.value.trim());
      this.field.value = "";
      this.note.textContent = "";
      onUse();
    });
  }

  /** Show the form: no key is set, or the gateway refused the one in use. */
  ask({ status, message }) {
    const none = status === 401 && !key(this.kind) && !key("api");
    this.form.hidden = false;
    this.note.textContent = none ? this.purpose : message;
  }

  accepted() {
    if (!this.form.hidden) this.note.textContent = "This key is in use until you close the tab.";
  }
}
