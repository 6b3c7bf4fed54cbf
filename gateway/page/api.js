// The gateway's API, asked with the keys that were typed in. Addresses are relative: a proxy may serve it under a path.

import { key } from "./access.js";

/** What went wrong, in words; `status` is 0 where there was no reply. */
export class Problem extends Error {
  constructor(message, status = 0) {
    super(message);
    this.status = status;
  }
}

export async function call(path, { admin = false, ...options } = {}) {
  const bearer = (admin && key("admin")) || key("api");
  const headers = { ...options.headers, ...(bearer && { Authorization: `Bearer ${bearer}` }) };
  let response;
  try {
    response = await fetch(path, { ...options, headers, credentials: "omit" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem("The gateway does not answer. It may be stopped, or the connection may be lost.");
  }
  if (!response.ok) throw new Problem(await words(response), response.status);
  return response;
}

export const json = async (path, options) => (await call(path, options)).json();

async function words(response) {
  let said = "";
  try {
    said = (await response.json()).error.message;
  } catch {
    // Not the gateway's own reply: something in front of it.
  }
  const after = Number(response.headers.get("Retry-After"));
  const again = after ? ` Try again in ${after} s.` : "";
  return (said || `The gateway replied with status ${response.status}.`) + again;
}
