// The streamed answer and its sources.

import { byId, el } from "./dom.js";
import { count, duration, percent } from "./numbers.js";
import { passage, wordsOf } from "./passage.js";

const FALLBACKS = {
  model: "this model's KV cannot be moved",
  gate: "this model has not passed the gate",
  no_donor: "none of them is cached elsewhere",
  slower: "computing them was expected to be sooner",
  deviation: "these documents change each other too much",
  failed: "the engine failed to, and computed them",
};

const FACTS_FALLBACKS = {
  model: "this model has no attention within trees",
  gate: "this model has not passed the gate of dependency attention",
  failed: "the engine failed to compute them in trees",
};

const RERANK_FAILURES = {
  timeout: "the reranker took too long",
  unavailable: "the reranker did not answer",
  refused: "the reranker refused the question",
  invalid: "the reranker's answer made no sense",
  paused: "the reranker has just failed",
};

export class Answer {
  constructor() {
    this.area = byId("answer");
    this.progress = byId("progress");
    this.figures = byId("figures");
    this.sources = byId("sources");
    this.noSources = byId("no-sources");
    this.cards = [];
  }

  begin(question) {
    this.words = wordsOf(question);
    this.text = document.createTextNode("");
    this.area.replaceChildren(el("p", { class: "text" }, this.text));
    this.area.setAttribute("aria-busy", "true");
    this.figures.hidden = true;
    this.sources.replaceChildren();
    this.noSources.hidden = false;
    this.cards = [];
    this.say("Searching");
  }

  say(what) {
    this.progress.textContent = what;
  }

  add(delta) {
    this.text.appendData(delta);
  }

  found(results) {
    this.noSources.hidden = results.length > 0;
    this.cards = results.map((result) => card(result, results[0].score, this.words));
    this.sources.replaceChildren(...this.cards);
  }

  /** Mark the sources of these documents while something that they state is pointed at. */
  point(stating) {
    for (const card of this.cards) card.classList.toggle("pointed", stating.has(card.dataset.document));
  }

  /** Mark a source that is part of the prompt. */
  given(citation) {
    this.cards[citation.index]?.classList.add("given");
  }

  completed({ response }) {
    const { timings, usage } = response;
    const share = (tokens) => (usage.prompt_tokens ? percent(tokens / usage.prompt_tokens) : "none");
    const { cached_tokens: cached, composed_tokens: composed, recomputed_tokens: again } = usage.prompt_tokens_details;
    const figures = [
      ["First token", duration(timings.ttft_ms)],
      ["Total", duration(timings.total_ms)],
      ["Prompt", `${count(usage.prompt_tokens)} tokens`],
      ["Cached", share(cached)],
      ...(response.reuse === "composed" ? [["Composed", share(composed)], ["Computed again", share(again)]] : []),
      ["Answer", `${count(usage.completion_tokens)} tokens`],
    ];
    this.figures.replaceChildren(
      ...figures.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value))),
    );
    this.figures.hidden = false;
    for (const { index, overlap } of response.cited) {
      const card = this.cards[index];
      card.classList.add("cited");
      card.lastChild.before(el("p", { class: "rests" }, `Cited: ${percent(overlap)} of a sentence stands here`));
    }
    for (const card of this.cards) {
      if (!card.classList.contains("given")) card.lastChild.before(el("p", { class: "left-out" }, "Did not fit the prompt"));
    }
    const notes = [
      response.finish_reason === "length" && "The answer reached its maximum length.",
      response.fallback && `No documents were composed: ${FALLBACKS[response.fallback]}.`,
      response.facts_fallback && `Facts are told in full: ${FACTS_FALLBACKS[response.facts_fallback]}.`,
      response.reranking?.reason && `The sources are not reranked: ${RERANK_FAILURES[response.reranking.reason]}.`,
      response.partial && `Parts of the index did not answer: ${response.missing_shards.join(", ")}.`,
    ].filter(Boolean);
    if (notes.length) this.area.append(el("p", { class: "note" }, notes.join(" ")));
    this.end("Complete");
  }

  stopped() {
    this.area.append(el("p", { class: "note" }, "Stopped. The text above is incomplete."));
    this.end("Stopped");
  }

  failed(why) {
    this.area.append(el("p", { class: "problem" }, why));
    this.end("Failed");
  }

  end(how) {
    this.area.setAttribute("aria-busy", "false");
    this.say(how);
  }
}

function card(result, best, words) {
  const { index, filename, title, document_id: documentId, chunk_id: chunkId, score } = result;
  const share = el("span", { class: "share" });
  // Scores have no common scale: those of hybrid searches are sums, and BM25 has no upper end.
  share.style.setProperty("--share", Math.max(0, score) / Math.max(best, Number.EPSILON));
  return el(
    "li",
    { class: "source", "data-document": documentId },
    el("span", { class: "number", "aria-label": `Source ${index + 1}` }, String(index + 1)),
    el("p", { class: "filename", title: filename }, filename),
    ...(title ? [el("p", { class: "title", title }, title)] : []),
    el("p", { class: "chunk" }, documentId === filename ? chunkId : `${documentId} · ${chunkId}`),
    el(
      "p",
      { class: "score" },
      el("span", { class: "unseen" }, "Score "),
      el("span", { class: "track", "aria-hidden": "true" }, share),
      score.toFixed(3),
    ),
    passage(result, words),
  );
}
