// The question form. It runs one question at a time; the user can stop it.

import { Problem, call } from "./api.js";
import { byId } from "./dom.js";
import { count } from "./numbers.js";
import { events } from "./sse.js";

export class Ask {
  /** `mode` says how the graph is used, and `graph` shows what was used of it. `onEnd` is called when a question ends, with the timeline if the answer is complete. */
  constructor(answer, graph, mode, keys, onEnd) {
    this.answer = answer;
    this.graph = graph;
    this.mode = mode;
    this.keys = keys;
    this.onEnd = onEnd;
    this.form = byId("ask");
    this.question = byId("question");
    this.collection = byId("collection");
    this.submit = byId("submit");
    this.stop = byId("stop");
    this.running = null;
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.ask();
    });
    this.question.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        this.form.requestSubmit();
      }
    });
    document.addEventListener("keydown", (event) => {
      if (event.key === "Escape") this.running?.abort();
    });
    this.stop.addEventListener("click", () => this.running?.abort());
  }

  async ask() {
    const question = this.question.value.trim();
    if (!question || this.running) return;
    const running = (this.running = new AbortController());
    this.busy(true);
    this.answer.begin(question);
    this.graph.begin();
    let timeline;
    try {
      timeline = await this.read(question, running.signal);
    } catch (error) {
      if (running.signal.aborted) this.answer.stopped();
      else this.refused(error, (why) => this.answer.failed(why));
    } finally {
      this.running = null;
      this.busy(false);
      this.onEnd(timeline);
    }
  }

  /** Stream the answer into the page. Returns its timeline. */
  async read(question, signal) {
    const body = { query: question, stream: true, include: ["stages", "timeline", "results.text"] };
    if (this.collection.value) body.collection = this.collection.value;
    if (this.mode.value !== "naive") body.mode = this.mode.value;
    const headers = { "Content-Type": "application/json", Accept: "text/event-stream" };
    const response = await call("query", { method: "POST", headers, body: JSON.stringify(body), signal });
    try {
      for await (const event of events(response)) {
        this.take(event);
        if (event.type === "query.completed") return event.response.timeline;
      }
    } catch (error) {
      if (!(error instanceof TypeError)) throw error;
      // A broken connection raises TypeError.
    }
    throw new Problem("The connection ended before the answer did.");
  }

  take(event) {
    const { answer } = this;
    switch (event.type) {
      case "retrieval.stage":
        answer.say(`Searching, stage ${event.stage}`);
        break;
      case "retrieval.completed":
        answer.found(event.results);
        this.graph.show(event.graph);
        answer.say("Queued");
        break;
      case "cache.resolved":
        answer.say(
          `Writing; ${count(event.cached_tokens)} of ${count(event.prompt_tokens)} prompt tokens were cached` +
            (event.reuse === "composed" ? `, ${count(event.composed_tokens)} composed` : ""),
        );
        break;
      case "output_text.annotation.added":
        answer.given(event.annotation);
        break;
      case "output_text.delta":
        answer.add(event.delta);
        break;
      case "query.completed":
        answer.completed(event);
        break;
      case "query.incomplete":
        throw new Problem("The query timed out before its answer was complete.");
      case "query.failed":
        throw new Problem(event.error.message);
      default:
    }
  }

  refused(error, tell) {
    if (!(error instanceof Problem)) console.error(error);
    if (error.status === 401) this.keys.ask(error);
    tell(error instanceof Problem ? error.message : "The page cannot read the reply.");
  }

  busy(busy) {
    // Hiding a focused control loses the focus.
    if (!busy && document.activeElement === this.stop) this.question.focus();
    this.stop.hidden = !busy;
    this.submit.setAttribute("aria-disabled", busy);
    this.form.classList.toggle("busy", busy);
  }
}
