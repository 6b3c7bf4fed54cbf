// Follows ingestion jobs. The retriever runs them in order, so only the oldest are asked for, one after another.

import { Problem, json } from "../api.js";

const SOON_MS = 250;
const LATEST_MS = 4000;
const OLDEST = 4;

const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

export class Jobs {
  /** `changed` is called with an upload, `unauthorised` with the problem. */
  constructor({ changed, unauthorised }) {
    this.changed = changed;
    this.unauthorised = unauthorised;
    this.followed = [];
    this.watching = false;
  }

  follow(upload) {
    this.followed.push(upload);
    this.take(upload, upload.job);
    if (!this.watching) this.watch();
  }

  forget(upload) {
    this.followed = this.followed.filter((other) => other !== upload);
  }

  async watch() {
    this.watching = true;
    let rest = SOON_MS;
    while (this.followed.length) {
      await pause(rest);
      const before = this.followed.length;
      const asked = await this.look();
      rest = this.followed.length < before ? SOON_MS : Math.max(asked, Math.min(rest * 1.5, LATEST_MS));
    }
    this.watching = false;
  }

  /** Ask for the oldest jobs. Returns the milliseconds that the gateway wants to be left alone. */
  async look() {
    for (const upload of this.followed.slice(0, OLDEST)) {
      try {
        this.take(upload, await json(`v1/jobs/${encodeURIComponent(upload.job.job_id)}`));
      } catch (error) {
        if (!(error instanceof Problem)) throw error;
        if (error.status === 401) this.unauthorised(error);
        if (error.status === 404) {
          upload.fail(error);
          this.forget(upload);
        } else upload.problems = [error.said];
        this.changed(upload);
        if (error.status !== 404) return error.retryAfter * 1000 || LATEST_MS;
      }
    }
    return 0;
  }

  take(upload, job) {
    if (!this.followed.includes(upload)) return;
    upload.follow(job);
    if (upload.ended) this.forget(upload);
    this.changed(upload);
  }
}
