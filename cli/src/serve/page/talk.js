// What is said to the server and what it says.

// A token comes behind the # of the address, which browsers keep to themselves. It leaves the address at once, and the tab keeps it.
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

/** What the server refuses, in its own words. */
export class Refused extends Error {
  constructor(status, error) {
    super(error?.message ?? `The server answers ${status}.`);
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

export const get = async (path, parameters, signal) =>
  (await ask(`${path}?${new URLSearchParams(parameters)}`, { signal })).json();

export const post = async (path, body) =>
  (await ask(path, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) })).json();

const SILENCE = 12_000; // The server shows every 5 s that it is there.
const SLOWEST = 15_000;

/**
 * Listens to the server's events, again and again. (An EventSource cannot show a token.)
 * `told(name, data)` hears events; `changed(state, seconds)` whether there is a connection: connecting, live, lost, refused.
 */
export class Stream {
  #parameters = {};
  #abort = null;
  #timer = 0;
  #failures = 0;

  constructor(told, changed) {
    Object.assign(this, { told, changed });
    document.addEventListener("visibilitychange", () => (document.hidden ? this.close() : this.open()));
    addEventListener("online", () => this.retry());
  }

  /** Asks for something else from now on. */
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
    if (document.hidden) return; // Nobody looks, so the store need not be looked at.
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
    let silence = setTimeout(() => abort.abort(new Error("the server says nothing")), SILENCE);
    try {
      const response = await ask(`/api/events?${new URLSearchParams(this.#parameters)}`, { signal: abort.signal });
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      for (let rest = ""; ; ) {
        const { value, done } = await reader.read();
        if (done || abort !== this.#abort) return;
        clearTimeout(silence);
        silence = setTimeout(() => abort.abort(new Error("the server says nothing")), SILENCE);
        const events = (rest + value).split("\n\n");
        rest = events.pop();
        for (const text of events) {
          const [, name, data] = /^event: (.*)\ndata: (.*)$/.exec(text) ?? [];
          if (!name) continue;
          if (this.#failures || name === "hello") this.changed("live");
          this.#failures = 0;
          this.told(name, JSON.parse(data));
        }
      }
    } finally {
      clearTimeout(silence);
    }
  }
}
