// Requests to the server that this page came from, and to no other.

const TOKEN = "npad-token";

export class Refused extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

/** Fetch a path of the server; throw `Refused` with the server's one line if it refuses. */
export async function request(path, options = {}) {
  const token = sessionStorage.getItem(TOKEN);
  const headers = { ...options.headers, ...(token ? { Authorization: `Bearer ${token}` } : {}) };
  let response;
  try {
    response = await fetch(path, { ...options, headers });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refused("the server does not answer; is `npad serve` still running?", 0);
  }
  if (!response.ok) {
    const answer = await response.json().catch(() => ({}));
    throw new Refused(answer.error ?? `the server answered ${response.status}`, response.status);
  }
  return response;
}

export const get = async (path) => (await request(path)).json();

export async function post(path, body, signal) {
  const response = await request(path, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(body),
    signal,
  });
  return response.json();
}

/** Keep the server's token until this tab is closed. */
export const keepToken = (token) => sessionStorage.setItem(TOKEN, token);
