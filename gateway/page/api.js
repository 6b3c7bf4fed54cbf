// Calls to the gateway's API with the entered keys. Addresses are relative, because a proxy may add a path prefix.

import { key } from "./access.js";

/** A failed call. `message` is shown to the user. `status` is 0 if there was no reply. */
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
    // The reply is not the gateway's: a proxy in front of it sent it.
  }
  const after = Number(response.headers.get("Retry-After"));
  const again = after ? ` Try again in ${after} s.` : "";
  return (said || `The gateway replied with status ${response.status}.`) + again;
}
