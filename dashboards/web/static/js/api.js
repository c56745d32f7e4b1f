// The one place that fetches: everything a page shows comes from /api/v1 through these functions.

const ROOT = "/api/v1";
const TOKEN_KEY = "s2bench.token";

/** A request that failed; `problem` is the server's problem+json (RFC 9457), or null when it did not answer. */
export class ApiError extends Error {
  constructor(message, status, problem) {
    super(message);
    this.name = "ApiError";
    this.status = status;
    this.problem = problem;
  }

  /** One sentence per field that the server objected to. */
  get details() {
    return (this.problem?.errors ?? []).map((error) => {
      const got = error.got === undefined ? "" : ` got ${error.got}`;
      const expected = error.expected === undefined ? "" : `, expected ${error.expected}`;
      return `${error.field}:${got}${expected}`;
    });
  }
}

/** Return the URL of a path below /api/v1 with its query; parameters that are null or empty are left out. */
export function apiUrl(path, query = {}) {
  const parameters = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    if (value !== null && value !== undefined && value !== "") parameters.set(name, value);
  }
  const text = parameters.toString();
  return `${ROOT}${path}${text ? `?${text}` : ""}`;
}

export const get = (path, query) => request(apiUrl(path, query), { method: "GET" });

export const post = (path, body = null) => send("POST", path, body);
export const patch = (path, body) => send("PATCH", path, body);

const send = (method, path, body) =>
  request(apiUrl(path), {
    method,
    headers: body === null ? {} : { "Content-Type": "application/json" },
    body: body === null ? null : JSON.stringify(body),
  });

/** Keep a token for this browser tab only; an empty one forgets it. */
export function rememberToken(token) {
  if (token) sessionStorage.setItem(TOKEN_KEY, token);
  else sessionStorage.removeItem(TOKEN_KEY);
}

/**
 * Follow the events of a job. The browser reconnects by itself and sends Last-Event-ID, so no event is missed;
 * `onState` hears "open", "lost" and "closed".
 */
export function followJob(jobId, kinds, onEvent, onState) {
  const source = new EventSource(apiUrl(`/jobs/${encodeURIComponent(jobId)}/events`));
  const receive = (message) => onEvent({ id: message.lastEventId, kind: message.type, ...JSON.parse(message.data) });
  for (const kind of kinds) source.addEventListener(kind, receive);
  source.addEventListener("open", () => onState("open"));
  source.addEventListener("error", () => onState(source.readyState === EventSource.CLOSED ? "closed" : "lost"));
  return () => source.close();
}

async function request(url, options) {
  const token = sessionStorage.getItem(TOKEN_KEY);
  const headers = { Accept: "application/json", ...options.headers };
  if (token) headers.Authorization = `Bearer ${token}`;
  let response;
  try {
    response = await fetch(url, { ...options, headers });
  } catch {
    throw new ApiError("The server does not answer. Is `s2bench up` or `s2bench api` still running?", 0, null);
  }
  const body = await response.json().catch(() => null);
  if (response.ok) return body;
  const message = body?.detail ?? body?.title ?? `The server answered ${response.status} ${response.statusText}`;
  throw new ApiError(message, response.status, body);
}
