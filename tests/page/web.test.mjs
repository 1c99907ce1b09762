// `indexeddb:` of workglow-limit/web in a real browser: tabs and workers of one origin share a limit, whoever dies, reloads or hangs.
//
// The tests need Chromium (CHROMIUM=path, or a usual name in PATH) and the built entry (`make web`), and are skipped without them.
import assert from "node:assert/strict";
import { existsSync, readFileSync } from "node:fs";
import { createServer } from "node:http";
import { delimiter, join } from "node:path";
import { after, before, test } from "node:test";
import { chromium } from "playwright-core";

const built = join(import.meta.dirname, "../../bindings/node/dist/web");
const named = (name) => process.env.PATH.split(delimiter).map((directory) => join(directory, name));
const executablePath = [process.env.CHROMIUM, ...["chromium", "chromium-browser", "google-chrome"].flatMap(named)].find(
  (path) => path && existsSync(path),
);
const skip = !executablePath
  ? "no Chromium is installed"
  : !existsSync(join(built, "bytes.js"))
    ? "not built: see what `make web` says"
    : false;
const ARGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-sync"];
const PATIENCE = 120_000;

// Tells the server of each start: when its call began and ended. What begins, or waits, elsewhere is not told.
const STORM = `
import { open } from "/index.js";
const now = () => performance.timeOrigin + performance.now();
export async function storm(policy) {
  const limiter = (await open("indexeddb:storm")).limiter("storm", policy);
  for (;;) {
    const before = now();
    const permit = await limiter.tryAcquire();
    if (permit === null) await new Promise((resolve) => setTimeout(resolve, 5 + 20 * Math.random()));
    else await fetch("/started", { method: "POST", body: JSON.stringify([before, now()]), keepalive: true });
  }
}`;
const WORKER = `import { storm } from "/storm.js"; onmessage = ({ data }) => storm(data);`;
// Leads and starts one, and then hangs for good.
const HANGING = `
import { open } from "/index.js";
const limiter = (await open("indexeddb:hanging")).limiter("hanging", "2/1h");
await limiter.tryAcquire();
onmessage = () => { for (;;); };
postMessage("leads");`;
const PAGE = `<!doctype html><script type="module">
import { open } from "/index.js"; import { storm } from "/storm.js";
window.web = { open, storm, worker: (policy) => { const worker = new Worker("/worker.js", { type: "module" }); worker.postMessage(policy); return worker; } };
window.ready = true;</script>`;

let browser;
let server;
let starts = [];

before(async () => {
  if (skip) return;
  browser = await chromium.launch({ executablePath, args: ARGS });
  const texts = { "/storm.js": STORM, "/worker.js": WORKER, "/hanging.js": HANGING };
  server = createServer((request, response) => {
    if (request.url === "/started") {
      let body = "";
      request.on("data", (data) => (body += data)).on("end", () => void (starts.push(JSON.parse(body)), response.end()));
      return;
    }
    const isPage = request.url === "/";
    response.setHeader("Content-Type", isPage ? "text/html" : "text/javascript");
    const file = join(built, request.url);
    if (isPage || texts[request.url] || existsSync(file)) response.end(isPage ? PAGE : (texts[request.url] ?? readFileSync(file)));
    else response.writeHead(404).end();
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
});
after(async () => {
  await browser?.close();
  server?.close();
});

async function newPage(context) {
  const page = await context.newPage();
  page.setDefaultTimeout(PATIENCE);
  await page.goto(`http://127.0.0.1:${server.address().port}/`);
  await page.waitForFunction("window.ready");
  return page;
}

/** The most starts whose calls lie wholly within a window. */
const mostIn = (all, window) => Math.max(...all.map(([from]) => all.filter(([a, b]) => a >= from && b < from + window).length));

async function until(count) {
  const deadline = Date.now() + PATIENCE;
  while (starts.length < count) {
    assert.ok(Date.now() < deadline, `${starts.length} starts of ${count}`);
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
}

test("eight tabs and four workers share a limit, while they are killed, reloaded and hang", { skip }, async (t) => {
  const [limit, window] = [20, 500];
  const policy = `${limit}/${window}ms`;
  const context = await browser.newContext();
  starts = [];
  const pages = await Promise.all(Array.from({ length: 8 }, () => newPage(context)));
  const begin = (page) => page.evaluate((policy) => void web.storm(policy), policy);
  const employ = (page) => page.evaluate((policy) => void (window.worker = web.worker(policy)), policy);
  const employers = new Set([1, 3, 5, 7]);
  await Promise.all(pages.map(async (page, i) => [await begin(page), employers.has(i) && (await employ(page))]));
  await until(60);
  // In this order they began to ask for the lock, so that most of those who are killed lead.
  for (let round = 0; round < pages.length; round++) {
    const [reloaded, hanging] = [1, 2].map((i) => pages[(round + i) % pages.length]);
    await pages[round].close();
    await until(starts.length + limit);
    pages[round] = await newPage(context);
    await begin(pages[round]);
    if (employers.has(round)) await employ(pages[round]);
    await reloaded.reload();
    await reloaded.waitForFunction("window.ready");
    await begin(reloaded);
    // Longer than the others are patient with a leader.
    const loop = () => {
      const end = Date.now() + 3_000;
      while (Date.now() < end);
    };
    if (round % 3 === 0) await hanging.evaluate(`void setTimeout(${loop})`);
    await until(starts.length + limit);
  }
  await context.close();
  const most = mostIn(starts, window);
  const time = Math.max(...starts.map(([, end]) => end)) - Math.min(...starts.map(([begun]) => begun));
  t.diagnostic(
    `${starts.length} starts, ${most} at most in ${window} ms, ${Math.round((100 * starts.length * window) / (limit * time))} % of the limit`,
  );
  assert.ok(most <= limit, `${most} starts in ${window} ms`);
});

test("a leader that hangs stops nobody", { skip }, async () => {
  const context = await browser.newContext();
  const page = await newPage(context);
  await page.evaluate(async () => {
    const worker = (window.worker = new Worker("/hanging.js", { type: "module" }));
    // It leads, and has started one.
    await new Promise((resolve) => (worker.onmessage = resolve));
    const limiter = (await web.open("indexeddb:hanging")).limiter("hanging", "2/1h");
    await limiter.peek();
    worker.postMessage("hang");
    window.started = [await limiter.tryAcquire(), await limiter.tryAcquire()];
    worker.terminate();
  });
  assert.deepEqual(await page.evaluate(() => window.started.map(Boolean)), [true, false]);
  await context.close();
});

test("what a former leader writes is refused", { skip }, async () => {
  const context = await browser.newContext();
  const page = await newPage(context);
  const seen = await page.evaluate(async () => {
    const { Database, NotLeading } = await import("/database.js");
    const [former, latter] = [await Database.open("epochs"), await Database.open("epochs")];
    const about = { time: 0, unixUs: 0 };
    const records = (value) => [[["key", "a", "b"], value]];
    const first = (await former.lead()).epoch;
    await former.write(first, about, records("first"));
    const second = (await latter.lead()).epoch;
    const refused = await former.write(first, about, records("late")).catch((error) => error instanceof NotLeading);
    await latter.write(second, about, []);
    return [refused, (await latter.lead()).records];
  });
  assert.deepEqual(seen, [true, [[["key", "a", "b"], "first"]]]);
  await context.close();
});

test("a limit remembers its starts when all tabs were closed", { skip }, async () => {
  const context = await browser.newContext();
  const first = await newPage(context);
  await first.evaluate(async () => {
    const store = await web.open("indexeddb:kept");
    await store.limiter("kept", "5/1h").tryAcquire({ weight: 2 });
    await store.override("kept", "6/1h");
    await store.limiter("kept").pause("1h", { key: "closed" });
  });
  await first.close();
  const second = await newPage(context);
  const seen = await second.evaluate(async () => {
    const kept = (await web.open("indexeddb:kept")).limiter("kept");
    return [(await kept.peek()).remaining, (await kept.peek({ key: "other" })).remaining, await kept.canProceed({ key: "closed" })];
  });
  assert.deepEqual(seen, [4, 6, false]);
  await context.close();
});

test("a tab that dies gives its slots back, and its waiters leave", { skip }, async () => {
  const context = await browser.newContext();
  const [holder, other] = [await newPage(context), await newPage(context)];
  await holder.evaluate(async () => {
    const slots = (await web.open("indexeddb:slots")).limiter("slots", "1 concurrent");
    window.permit = await slots.acquire();
    void slots.acquire();
  });
  await other.evaluate(async () => {
    window.slots = (await web.open("indexeddb:slots")).limiter("slots", "1 concurrent");
    window.denied = (await slots.tryAcquire()) === null;
    window.started = slots.acquire();
  });
  assert.equal(await other.evaluate(() => window.denied), true);
  await holder.close();
  await other.evaluate(() => window.started);
  await context.close();
});
