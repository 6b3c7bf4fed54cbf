// A source's passage, with the question's words marked. Passages are untrusted: they only ever become text nodes.

import { el } from "./dom.js";

const STOP_WORDS = new Set(
  ("a an and are as at be but by can did do does for from had has have how i if in into is it its me my no not of on or " +
    "so that the their them then there they this to was we were what when where which who why will with you").split(" "),
);

function segments(text) {
  return [...new Intl.Segmenter(undefined, { granularity: "word" }).segment(text)].map(({ segment, isWordLike }) => ({
    segment,
    word: isWordLike ? segment.toLowerCase() : null,
  }));
}

/** The words of a question that are worth marking. */
export function wordsOf(question) {
  const words = segments(question).map(({ word }) => word);
  return new Set(words.filter((word) => word && !STOP_WORDS.has(word)));
}

/** The text as strings, and <mark> elements for the given words. */
export function marked(text, words) {
  const parts = [""];
  for (const { segment, word } of segments(text)) {
    if (words.has(word)) parts.push(el("mark", {}, segment), "");
    else parts[parts.length - 1] += segment;
  }
  return parts.filter((part) => part !== "");
}

const range = (unit, { first, last }) => (first === last ? `, ${unit} ${first}` : `, ${unit}s ${first}–${last}`);

/** A disclosure that shows where a source lies, and its text when it is opened. */
export function passage({ text, lines, pages }, words) {
  const where = pages ? range("page", pages) : lines ? range("line", lines) : "";
  const body = el("p", { class: "passage-text", tabindex: "0", role: "region", "aria-label": "Passage" });
  const details = el("details", { class: "passage" }, el("summary", {}, `Passage${where}`), body);
  const fill = () => body.replaceChildren(...marked(text, words));
  details.addEventListener("toggle", fill, { once: true });
  return details;
}
