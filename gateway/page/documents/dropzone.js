// Chooses files: by the system's dialog, or by dropping them on the panel.

import { byId } from "../dom.js";

const filesIn = (event) => event.dataTransfer.types.includes("Files");

export class DropZone {
  /** `onFiles` is called with the files, and with the names of dropped folders, which cannot be uploaded. */
  constructor(panel, onFiles) {
    this.zone = byId("drop");
    const field = byId("files");
    byId("choose").addEventListener("click", () => field.click());
    field.addEventListener("change", () => {
      const files = [...field.files];
      // Otherwise the same file cannot be chosen again.
      field.value = "";
      onFiles(files, []);
    });
    panel.addEventListener("dragover", (event) => this.over(event, true));
    panel.addEventListener("dragleave", (event) => this.over(event, panel.contains(event.relatedTarget)));
    panel.addEventListener("drop", (event) => {
      this.over(event, false);
      if (filesIn(event)) onFiles(...dropped(event.dataTransfer));
    });
    // A file dropped beside the panel would replace the page.
    window.addEventListener("dragover", (event) => {
      if (!filesIn(event) || event.defaultPrevented) return;
      event.preventDefault();
      event.dataTransfer.dropEffect = "none";
    });
    window.addEventListener("drop", (event) => filesIn(event) && event.preventDefault());
  }

  over(event, inside) {
    if (!filesIn(event)) return;
    if (event.type !== "dragleave") event.preventDefault();
    this.zone.classList.toggle("over", inside);
  }
}

function dropped({ items }) {
  const [files, folders] = [[], []];
  for (const item of items) {
    if (item.kind !== "file") continue;
    const entry = item.webkitGetAsEntry();
    if (entry?.isDirectory) folders.push(entry.name);
    else files.push(item.getAsFile());
  }
  return [files, folders];
}
