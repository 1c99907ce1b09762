// Requests to the server, and its events.

// A token comes after the # of the URL, which browsers do not send. It is removed from the URL at once, and kept in the tab.
const fragment = new URLSearchParams(location.hash.slice(1));
if (fragment.has("token")) {
  sessionStorage.setItem("token", fragment.get("token"));
  fragment.delete("token");
  history.replaceState(null, "", location.pathname + (fragment.size ? `#${fragment}` : ""));
}

export const token = {
  get: () => sessionStorage.getItem("token"),
  set: (text) => (text ? sessionStorage.setItem("token", text) : sessionStorage.removeItem("token")),
};

/** An error response, with the server's message. */
export class Refused extends Error {
  constructor(status, error) {
    super(error?.message ?? `The server responded with status ${status}.`);
    this.status = status;
    this.hint = error?.hint ?? "";
  }
}

async function ask(path, options = {}) {
  const headers = { ...options.headers };
  if (token.get()) headers.Authorization = `Bearer ${token.get()}`;
  const response = await fetch(path, { ...options, headers, cache: "no-store", credentials: "omit", redirect: "error" });
  if (response.ok) return response;
  const body = await response.json().catch(() => null);
  throw new Refused(response.status, body?.error);
}

export const get = async (path, parameters, signal) => (await ask(`${path}?${new URLSearchParams(parameters)}`, { signal })).json();

export const post = async (path, body) =>
  (await ask(path, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) })).json();

const SILENCE = 12_000; // The server sends at least a comment every 5 s.
const SLOWEST = 15_000;

/**
 * Receives the server's events, and reconnects. (An EventSource cannot send a token.) `received(name, data)` is called for each event,
 * `changed(state, seconds)` when the connection changes: connecting, live, lost, refused.
 */
export class Stream {
  #parameters = {};
  #abort = null;
  #timer = 0;
  #failures = 0;

  constructor(received, changed) {
    Object.assign(this, { received, changed });
    document.addEventListener("visibilitychange", () => (document.hidden ? this.close() : this.open()));
    addEventListener("online", () => this.retry());
  }

  /** Changes the requested data. */
  want(parameters) {
    this.#parameters = parameters;
    this.open();
  }

  retry() {
    this.#failures = 0;
    this.open();
  }

  close() {
    clearTimeout(this.#timer);
    this.#abort?.abort();
    this.#abort = null;
  }

  async open() {
    this.close();
    if (document.hidden) return; // A hidden page needs no events.
    const abort = (this.#abort = new AbortController());
    if (this.#failures) this.changed("connecting");
    try {
      await this.#listen(abort);
      if (abort !== this.#abort) return;
      throw new Error("the server has ended the stream");
    } catch (error) {
      if (abort !== this.#abort) return;
      this.#abort = null;
      if (error instanceof Refused && error.status === 401) return this.changed("refused", 0, error);
      const wait = Math.min(SLOWEST, 1000 * 2 ** this.#failures++) * (0.75 + Math.random() / 2);
      this.changed("lost", Math.ceil(wait / 1000), error);
      this.#timer = setTimeout(() => this.open(), wait);
    }
  }

  async #listen(abort) {
    let silence = setTimeout(() => abort.abort(new Error("the server is silent")), SILENCE);
    try {
      const response = await ask(`/api/events?${new URLSearchParams(this.#parameters)}`, { signal: abort.signal });
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      for (let rest = ""; ; ) {
        const { value, done } = await reader.read();
        if (done || abort !== this.#abort) return;
        clearTimeout(silence);
        silence = setTimeout(() => abort.abort(new Error("the server is silent")), SILENCE);
        const events = (rest + value).split("\n\n");
        rest = events.pop();
        for (const text of events) {
          const [, name, data] = /^event: (.*)\ndata: (.*)$/.exec(text) ?? [];
          if (!name) continue;
          if (this.#failures || name === "hello") this.changed("live");
          this.#failures = 0;
          this.received(name, JSON.parse(data));
        }
      }
    } finally {
      clearTimeout(silence);
    }
  }
}
