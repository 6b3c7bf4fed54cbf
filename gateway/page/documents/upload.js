// One file on its way: from the queue over the gateway to the end of its ingestion job.

import { collectionPath, documentId, documentPath, isBatch } from "./names.js";
import { transfer } from "./transfer.js";

/** Statuses of files that will be refused again. */
const FINAL = new Set([400, 403, 409, 413, 415, 422]);
const ENDED = new Set(["stored", "unchanged", "failed"]);

/**
 * `state` is one of: "queued", "held" (the gateway asked for patience), "doubled" (another file has its id), "sending",
 * "reading" (by the gateway), "ingesting", "stored", "unchanged", "failed".
 */
export class Upload {
  constructor(file, collection) {
    this.file = file;
    this.collection = collection;
    this.batch = isBatch(file.name);
    this.id = documentId(file.name);
    this.state = "queued";
    this.sent = 0;
    this.problems = [];
    this.retryable = false;
    this.refusals = 0;
    this.job = null;
    this.abort = null;
  }

  get ended() {
    return ENDED.has(this.state);
  }

  /** Send the file. Its job is in `job` then. `changed` is called at each step. Raises Problem. */
  async send(changed) {
    this.enter("sending");
    this.sent = 0;
    this.abort = new AbortController();
    changed();
    this.job = await transfer({
      ...this.request(),
      file: this.file,
      signal: this.abort.signal,
      onSent: (sent) => {
        this.sent = sent;
        if (sent >= this.file.size) this.enter("reading");
        changed();
      },
    });
    this.enter("ingesting");
    changed();
  }

  request() {
    if (this.batch) {
      return { method: "POST", path: `${collectionPath(this.collection)}:batch`, type: "application/x-ndjson" };
    }
    // The gateway tells the format by the file's name. Browsers know few types.
    const filename = encodeURIComponent(documentId(this.file.name));
    const path = `${documentPath(this.collection, this.id)}?filename=${filename}`;
    return { method: "PUT", path, type: "application/octet-stream" };
  }

  enter(state) {
    this.state = state;
    this.problems = [];
  }

  fail(problem) {
    this.enter("failed");
    this.problems = [problem.message];
    this.retryable = !FINAL.has(problem.status);
  }

  /** Take in the job's state. */
  follow(job) {
    this.job = job;
    if (job.status === "queued" || job.status === "in_progress") {
      this.problems = job.stale ? ["The retriever is away. This is its last known state."] : [];
      return;
    }
    this.enter(job.status === "failed" ? "failed" : job.stored ? "stored" : "unchanged");
    this.retryable = job.status === "failed";
    this.problems = job.errors.map(({ message, line, document_id: id }) =>
      this.batch ? `${line ? `Line ${line}` : id}: ${message}` : message,
    );
  }
}
