// A tooltip with the facts about what is pointed at. Screen readers read it, too.

import { byId, el } from "./dom.js";

export class Tip {
  constructor() {
    this.box = byId("tip");
  }

  /** Show it above a rectangle of the window, or below if there is no room. */
  show(title, facts, beside) {
    this.box.replaceChildren(el("strong", {}, title), ...facts.map((fact) => el("span", {}, fact)));
    this.box.hidden = false;
    const { offsetWidth: width, offsetHeight: height } = this.box;
    const x = Math.min(Math.max(8, beside.left + beside.width / 2 - width / 2), innerWidth - width - 8);
    const y = beside.top - height - 8 > 0 ? beside.top - height - 8 : beside.bottom + 8;
    this.box.style.transform = `translate(${Math.round(x)}px, ${Math.round(y)}px)`;
  }

  hide() {
    this.box.hidden = true;
  }
}
