// Calls to the gateway's API with the entered keys. Addresses are relative, because a proxy may add a path prefix.

import { key } from "./access.js";

/** A failed call. `said` is why, `message` adds when to try again. `status` and `retryAfter` are 0 if unknown. */
export class Problem extends Error {
  constructor(said, status = 0, retryAfter = 0) {
    super(retryAfter ? `${said} Try again in ${retryAfter} s.` : said);
    this.said = said;
    this.status = status;
    this.retryAfter = retryAfter;
  }
}

export const noAnswer = () =>
  new Problem("The gateway does not answer. It may be stopped, or the connection may be lost.");

export function authorization({ admin = false } = {}) {
  const bearer = (admin && key("admin")) || key("api");
  return bearer ? { Authorization: `Bearer ${bearer}` } : {};
}

export async function call(path, { admin, ...options } = {}) {
  const headers = { ...options.headers, ...authorization({ admin }) };
  let response;
  try {
    response = await fetch(path, { ...options, headers, credentials: "omit" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw noAnswer();
  }
  if (!response.ok) throw await refusal(response);
  return response;
}

export const json = async (path, options) => (await call(path, options)).json();

/** What a reply that is no success says. */
export async function refusal(response) {
  let said = "";
  try {
    said = (await response.json()).error.message;
  } catch {
    // The reply is not the gateway's: a proxy in front of it sent it.
  }
  const after = Number(response.headers.get("Retry-After")) || 0;
  return new Problem(said || `The gateway replied with status ${response.status}.`, response.status, after);
}
