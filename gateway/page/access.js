// Keys that the gateway asks for. They live in the tab's session storage and in no other place.

import { byId } from "./dom.js";

const kept = (kind) => `ragtree.${kind}-key`;

export const key = (kind) => sessionStorage.getItem(kept(kind)) ?? "";

/** The form for one kind of key, seen only where the gateway asks for it: `purpose` says why. `onUse` hears of a key. */
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

  /** Ask for a key, or for another one than was refused. */
  ask({ status, message }) {
    const none = status === 401 && !key(this.kind) && !key("api");
    this.form.hidden = false;
    this.note.textContent = none ? this.purpose : message;
  }

  accepted() {
    if (!this.form.hidden) this.note.textContent = "This key is in use until you close the tab.";
  }
}
