// The colour theme: the system's, or the user's choice.

import { byId } from "./dom.js";

const KEPT = "ragtree.theme";
const CHOICES = { "": "light", light: "dark", dark: "" };
const SIGNS = { "": "◐", light: "○", dark: "●" };
const NAMES = { "": "Auto", light: "Light", dark: "Dark" };

export function chooseTheme() {
  const button = byId("theme");
  const show = (theme) => {
    document.documentElement.dataset.theme = theme;
    button.textContent = `${SIGNS[theme]} ${NAMES[theme]}`;
    button.setAttribute("aria-label", `Colours: ${NAMES[theme].toLowerCase()}`);
  };
  const kept = localStorage.getItem(KEPT) ?? "";
  show(kept in NAMES ? kept : "");
  button.addEventListener("click", () => {
    const next = CHOICES[document.documentElement.dataset.theme];
    localStorage.setItem(KEPT, next);
    show(next);
  });
}
