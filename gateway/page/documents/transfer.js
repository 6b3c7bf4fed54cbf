// Sends a file. fetch does not tell how much of a body is sent, so this uses XMLHttpRequest.

import { Problem, authorization, noAnswer, refusal } from "../api.js";

/** Send the file, and return the reply's JSON. `onSent` gets the bytes sent so far. Raises Problem. */
export function transfer({ method, path, type, file, onSent, signal }) {
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest();
    request.open(method, path);
    for (const [name, value] of Object.entries(authorization())) request.setRequestHeader(name, value);
    request.setRequestHeader("Content-Type", type);
    request.upload.addEventListener("progress", ({ loaded }) => onSent(loaded));
    request.upload.addEventListener("load", () => onSent(file.size));
    request.addEventListener("load", () => reply(request).then(resolve, reject));
    request.addEventListener("error", async () => reject(await lost(file)));
    request.addEventListener("abort", () => reject(new Problem("Cancelled.")));
    signal.addEventListener("abort", () => request.abort());
    request.send(file);
  });
}

async function reply(request) {
  const headers = { "Retry-After": request.getResponseHeader("Retry-After") ?? "" };
  const response = new Response(request.responseText, { status: request.status, headers });
  if (!response.ok) throw await refusal(response);
  return response.json();
}

/** The reason of a request without a reply: a file that changed since it was chosen cannot be read either. */
async function lost(file) {
  try {
    await file.slice(0, 1).arrayBuffer();
    return noAnswer();
  } catch {
    return new Problem("The file cannot be read any more. Choose it again.", 400);
  }
}
