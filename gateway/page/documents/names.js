// Document ids of files, and the addresses of documents.

import { Problem } from "../api.js";

const CONTROL = /[\u0000-\u001f\u007f]/g;
const JSON_LINES = /\.(jsonl|ndjson)$/i;

/** The id of a file's document: its name. Letters are composed, since systems differ. No id has control characters. */
export const documentId = (name) => name.toWellFormed().normalize("NFC").replace(CONTROL, " ");

export const isBatch = (name) => JSON_LINES.test(name);

export const collectionPath = (collection) => `v1/collections/${encodeURIComponent(collection)}/documents`;

export function documentPath(collection, id) {
  // A browser resolves these segments, even escaped, so the request would name something else.
  if (id === "." || id === "..") throw new Problem(`A browser cannot address a document with the id "${id}".`, 400);
  return `${collectionPath(collection)}/${encodeURIComponent(id)}`;
}

/** The id with a number before its suffix that makes it differ from those in use. */
export function numbered(id, taken) {
  const dot = id.lastIndexOf(".");
  const end = dot > 0 ? dot : id.length;
  for (let number = 2; ; number += 1) {
    const other = `${id.slice(0, end)} (${number})${id.slice(end)}`;
    if (!taken.has(other)) return other;
  }
}
