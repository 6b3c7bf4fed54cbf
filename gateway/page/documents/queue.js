// Sends uploads, a few at once, and pauses while the gateway asks for patience.

import { Problem } from "../api.js";
import { numbered } from "./names.js";

const AT_ONCE = 2;
const MOST_REFUSALS = 5;

export class Queue {
  /** `changed` is called with an upload, `removed` with one that leaves the list, `unauthorised` with the problem. */
  constructor(jobs, { changed, removed, unauthorised }) {
    this.jobs = jobs;
    this.changed = changed;
    this.removed = removed;
    this.unauthorised = unauthorised;
    this.uploads = [];
    this.sending = 0;
    this.until = 0;
    this.clock = 0;
  }

  /** Whether leaving the page would lose an upload. */
  get busy() {
    return this.uploads.some(({ state }) => ["queued", "held", "sending", "reading"].includes(state));
  }

  add(uploads) {
    for (const upload of uploads) {
      const twins = upload.batch ? [] : this.twins(upload);
      // The file is chosen again, perhaps in a better version.
      for (const twin of twins.filter(({ state }) => state === "failed")) this.remove(twin);
      if (twins.some(({ ended }) => !ended)) upload.enter("doubled");
      this.uploads.push(upload);
      this.changed(upload);
    }
    this.start();
  }

  twins({ collection, id }) {
    return this.uploads.filter((other) => !other.batch && other.collection === collection && other.id === id);
  }

  /** The id under which a doubled upload can go on. */
  otherId({ collection, id }) {
    return numbered(id, new Set(this.uploads.filter((other) => other.collection === collection).map((other) => other.id)));
  }

  rename(upload) {
    upload.id = this.otherId(upload);
    this.retry(upload);
  }

  retry(upload) {
    upload.refusals = 0;
    upload.enter("queued");
    this.changed(upload);
    this.start();
  }

  /** Take an upload off the list. What is not sent yet is cancelled. */
  remove(upload) {
    this.uploads = this.uploads.filter((other) => other !== upload);
    upload.abort?.abort();
    this.jobs.forget(upload);
    this.removed(upload);
  }

  start() {
    while (this.sending < AT_ONCE && Date.now() >= this.until) {
      const next = this.uploads.find(({ state }) => state === "queued");
      if (!next) return;
      this.send(next);
    }
  }

  async send(upload) {
    this.sending += 1;
    const changed = () => this.uploads.includes(upload) && this.changed(upload);
    try {
      await upload.send(changed);
      if (this.uploads.includes(upload)) this.jobs.follow(upload);
    } catch (error) {
      if (!(error instanceof Problem)) console.error(error);
      this.refused(upload, error instanceof Problem ? error : new Problem("The page cannot read the reply."));
      changed();
    }
    this.sending -= 1;
    this.start();
  }

  refused(upload, problem) {
    if (problem.status === 401) this.unauthorised(problem);
    upload.refusals += 1;
    if (!problem.retryAfter || upload.refusals > MOST_REFUSALS) {
      upload.fail(problem);
      return;
    }
    upload.enter("held");
    upload.problems = [problem.said];
    this.until = Math.max(this.until, Date.now() + problem.retryAfter * 1000);
    this.clock ||= setInterval(() => this.tick(), 1000);
  }

  get secondsHeld() {
    return Math.max(0, Math.ceil((this.until - Date.now()) / 1000));
  }

  tick() {
    const goesOn = Date.now() >= this.until;
    for (const upload of this.uploads.filter(({ state }) => state === "held")) {
      if (goesOn) upload.enter("queued");
      this.changed(upload);
    }
    if (!goesOn) return;
    clearInterval(this.clock);
    this.clock = 0;
    this.start();
  }
}
