// Tabs and workers of one origin in Chromium, for the tests of workglow-limit/web: one browser, and a server that hears of starts.
//
// It needs Chromium (CHROMIUM=path, or a usual name in PATH) and the built entry (`make web`): `skip` says what is missing.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { existsSync, readFileSync } from "node:fs";
import { createServer } from "node:http";
import { delimiter, join } from "node:path";
import { chromium } from "playwright-core";
import { inTime, watch } from "./deadline.mjs";

const root = join(import.meta.dirname, "../..");
const built = join(root, "bindings/node/dist/web");
const named = (name) => process.env.PATH.split(delimiter).map((directory) => join(directory, name));
const executablePath = [process.env.CHROMIUM, ...["chromium", "chromium-browser", "google-chrome"].flatMap(named)].find(
  (path) => path && existsSync(path),
);
export const skip = !executablePath
  ? "no Chromium is installed"
  : !existsSync(join(built, "bytes.js"))
    ? "not built: see what `make web` says"
    : false;

const ARGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-sync"];
/** Of what has to happen at some time, in ms. */
const PATIENCE = 240_000;

// What pages and workers have.
const TEXTS = {
  // Tells the server of each start. Its call lies between two moments of the server, whose clock is that of all. Ends when the limit is used up.
  "/storm.js": `
import { open } from "/index.js";
export async function storm(store, policy, retries) {
  const limiter = (await open(store)).limiter("storm", policy);
  for (;;) {
    const before = retries ? await (await fetch("/now")).text() : "0";
    // (While many die, some calls fail.)
    const permit = await limiter.tryAcquire().catch((error) => {
      if (error.code !== "store_failure") throw error;
    });
    if (permit === undefined) continue;
    if (permit !== null) await fetch("/started", { method: "POST", body: before, keepalive: true });
    else if (!retries) return;
    else await new Promise((resolve) => setTimeout(resolve, 5 + 20 * Math.random()));
  }
}`,
  "/worker.js": `import { storm } from "/storm.js"; onmessage = ({ data }) => storm(...data);`,
  // Leads, and stands still for good as soon as it has done what it is told: with the code that it is given.
  "/hanging.js": `
import { open } from "/index.js";
onmessage = async ({ data: [store, policy, code] }) => {
  const limiter = (await open(store)).limiter("hanging", policy);
  await limiter.peek();
  const hang = () => { for (;;); };
  new Function("hang", "limiter", code)(hang, limiter);
  postMessage("leads");
};`,
  "/": `<!doctype html><script type="module">
import * as web from "/index.js"; import * as cases from "/cases.mjs"; import { storm } from "/storm.js";
const worker = (script, ...data) => { const worker = new Worker(script, { type: "module" }); worker.postMessage(data); return worker; };
// Somebody else has the lock of a store's leader for a moment: so the leader changes, also if it is the same program.
const change = async (name) => {
  const leads = new Promise((heard) => {
    const channel = new BroadcastChannel("workglow-limit all " + name);
    channel.onmessage = ({ data }) => data.kind === "leads" && data.holds && (channel.close(), heard());
  });
  await navigator.locks.request("workglow-limit lead " + name, { steal: true }, () => {});
  await leads;
};
// A worker that leads a store and is about to hang.
const hanging = (...data) => new Promise((leads) => { const hangs = worker("/hanging.js", ...data); hangs.onmessage = () => leads(hangs); });
// Two limiters of two stores with clocks. While the second store is frozen, it hears nothing, and sends nothing of its own accord.
const freezing = async (name, policy) => {
  const clocks = [1, 2].map(() => new web.ManualClock());
  const open = async (clock) => (await web.open("indexeddb:" + name, { clock })).limiter(name, policy);
  const first = await open(clocks[0]);
  await first.peek();
  const { set } = Object.getOwnPropertyDescriptor(BroadcastChannel.prototype, "onmessage");
  let kept = null;
  Object.defineProperty(BroadcastChannel.prototype, "onmessage", {
    configurable: true,
    set(hears) {
      set.call(this, (event) => (kept ? kept.push({ ...event.data, hear: () => hears(event) }) : hears(event)));
    },
  });
  const second = await open(clocks[1]);
  Object.defineProperty(BroadcastChannel.prototype, "onmessage", { configurable: true, set });
  const { setTimeout: usual } = window;
  const pause = () => new Promise((resolve) => usual(resolve, 5));
  const advance = (ms) => clocks.forEach((clock) => clock.advance(ms));
  const freeze = () => {
    window.setTimeout = () => 0;
    kept = [];
  };
  // Until so many answers wait for it.
  const answers = async (count) => {
    while (kept.filter(({ kind }) => kind === "answer").length < count) await pause();
  };
  // Its timers come first.
  const thaw = (due = () => {}) => {
    window.setTimeout = usual;
    due();
    const late = kept;
    kept = null;
    for (const { hear } of late) hear();
  };
  return { first, second, pause, advance, freeze, answers, thaw };
};
const database = (name) => new Promise((opened) => { const request = indexedDB.open("workglow-limit " + name); request.onsuccess = () => opened(request.result); });
const result = (request) => new Promise((done, failed) => { request.onsuccess = () => done(request.result); request.onerror = () => failed(request.error); });
Object.assign(window, { web, cases, storm, worker, change, hanging, freezing, database, result, ready: true });</script>`,
};

export class Tabs {
  /** The calls that started. */
  starts = [];
  #browser;
  #server;

  static async launch() {
    const tabs = new Tabs();
    tabs.#browser = await chromium.launch({ executablePath, args: ARGS, timeout: PATIENCE });
    tabs.#server = createServer((request, response) => {
      if (request.url === "/now") return response.end(`${performance.now()}`);
      if (request.url === "/started") {
        const took = (body) => void (tabs.starts.push([Number(body), performance.now()]), response.end());
        let body = "";
        request.on("data", (data) => (body += data)).on("end", () => took(body));
        return;
      }
      const file = request.url === "/cases.mjs" ? join(root, "bindings/node/test/web/cases.mjs") : join(built, request.url);
      const text = TEXTS[request.url] ?? (existsSync(file) ? readFileSync(file) : null);
      if (text === null) return response.writeHead(404).end();
      response.setHeader("Content-Type", request.url === "/" ? "text/html" : "text/javascript");
      response.end(text);
    });
    await new Promise((resolve) => tabs.#server.listen(0, "127.0.0.1", resolve));
    return tabs;
  }

  get url() {
    return `http://127.0.0.1:${this.#server.address().port}/`;
  }

  /** Returns a new profile, closed when the test is over. */
  async context(t) {
    const context = await this.#browser.newContext();
    t.after(() => context.close());
    return context;
  }

  async page(context, url = this.url) {
    const page = await context.newPage();
    page.setDefaultTimeout(PATIENCE);
    watch(page);
    await this.load(page, url);
    return page;
  }

  async load(page, url = this.url) {
    await page.goto(url);
    await page.waitForFunction("window.ready");
  }

  /** Runs a function in a page of a new profile. */
  async run(t, body, argument) {
    return (await this.page(await this.context(t))).evaluate(body, argument);
  }

  /** Runs the body of a test. What does not end says what its pages were doing: `window.doing`, if they set it. */
  within(body, deadline) {
    return inTime(body, () => this.#browser.contexts().flatMap((context) => context.pages()), deadline);
  }

  /** Waits until this is true of the starts that were told. */
  async until(isDone) {
    for (const deadline = Date.now() + PATIENCE; !isDone(this.starts); ) {
      assert.ok(Date.now() < deadline, `${this.starts.length} starts`);
      await new Promise((resolve) => setTimeout(resolve, 20));
    }
  }

  async close() {
    await this.#browser?.close();
    this.#server?.close();
  }
}

/** Starts a browser of its own with this profile, to be killed. */
export async function kept(profile) {
  const args = [...ARGS, "--headless", "--remote-debugging-port=0", `--user-data-dir=${profile}`, "about:blank"];
  const program = spawn(executablePath, args, { detached: true, stdio: ["ignore", "ignore", "pipe"] });
  const over = new Promise((over) => program.once("exit", over));
  const kill = () => {
    if (program.exitCode === null && program.signalCode === null) process.kill(-program.pid, "SIGKILL");
    return over;
  };
  const address = await new Promise((told, failed) => {
    let text = "";
    program.stderr.on("data", (data) => {
      text += data;
      const [, address] = /DevTools listening on (ws:\S+)/.exec(text) ?? [];
      if (address) told(address);
    });
    program.once("error", failed).once("exit", () => failed(new Error(`the browser has ended: ${text}`)));
  });
  const browser = await chromium.connectOverCDP(address, { timeout: PATIENCE });
  return { context: browser.contexts()[0], kill };
}

/** Crashes a page's process. */
export async function crash(context, page) {
  const cdp = await context.newCDPSession(page);
  const crashed = page.waitForEvent("crash");
  cdp.send("Page.crash").catch(() => {});
  await crashed;
  await page.close();
}
