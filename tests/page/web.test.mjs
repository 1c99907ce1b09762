// `indexeddb:` of workglow-limit/web in a real browser: tabs and workers of one origin share a limit, whoever dies, reloads or stands still.
import assert from "node:assert/strict";
import { mkdtempSync, readFileSync, readdirSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test as plain } from "node:test";
import { casesOf, isLacking, kindOf, policyOf, KINDS } from "../../bindings/node/test/web/cases.mjs";
import { changes } from "./changes.mjs";
import { databases } from "./databases.mjs";
import { faults } from "./faults.mjs";
import { instances } from "./instances.mjs";
import { Tabs, crash, kept, skip } from "./tabs.mjs";
import { told } from "./told.mjs";

let tabs;
before(async () => void (skip || (tabs = await Tabs.launch())));
after(() => tabs?.close());
const test = (name, body) => plain(name, { skip }, (t) => tabs.within(() => body(t, tabs)));

plain("Chromium and the built entry are there", { skip: !process.env.WGL_ALL }, () => assert.equal(skip, false));

test("the vectors hold, with another leader before each step", async (t) => {
  const vectors = join(import.meta.dirname, "../vectors");
  const files = readdirSync(vectors).filter((file) => file.endsWith(".vec"));
  const all = files.flatMap((file) =>
    casesOf(readFileSync(join(vectors, file), "utf8")).map((one) => ({ file, one, policy: policyOf(one) })),
  );
  const able = all.filter(({ one, policy }) => policy !== undefined && !isLacking(one));
  assert.deepEqual([...new Set(able.map(({ one }) => kindOf(one)))].sort(), [...Object.keys(KINDS), "composite"].sort());
  const wrong = await tabs.run(
    t,
    async (able) => {
      const wrong = [];
      for (const [i, { file, one, policy }] of able.entries()) {
        const name = `vector ${i}`;
        // What a denial raises is not written.
        const doing = ({ line, call }) => void (window.doing = `vector ${i}: ${file}, line ${line}: ${call}`);
        const leads = ({ line }) => void (window.doing = `vector ${i}: ${file}, before line ${line}: another one leads`);
        const between = async (step) => {
          leads(step);
          if (!policy.includes("backoff")) await change(name);
          doing(step);
        };
        await cases
          .run(web, `indexeddb:${name}`, one, policy, between)
          .catch((error) => wrong.push(`${file}: ${one.name}: ${error.message}`));
      }
      return wrong;
    },
    able,
  );
  assert.deepEqual(wrong, []);
});

test("a limit is remembered when all tabs were closed", async (t) => {
  const context = await tabs.context(t);
  const first = await tabs.page(context);
  await first.evaluate(async () => {
    const store = await web.open("indexeddb:kept");
    await store.limiter("kept", "5/1h").tryAcquire({ weight: 2 });
    await store.override("kept", "6/1h");
    await store.override("kept", "1/1h", { key: "small" });
    await store.limiter("kept").pause("1h", { key: "closed" });
    await store.limiter("gone", "1/1h").tryAcquire({ key: "a" });
    await store.limiter("gone").clear();
  });
  await first.close();
  const seen = await (await tabs.page(context)).evaluate(async () => {
    const store = await web.open("indexeddb:kept");
    const [kept, gone] = [store.limiter("kept"), store.limiter("gone")];
    const remaining = async (limiter, key) => (await limiter.peek({ key })).remaining;
    const closed = await kept.canProceed({ key: "closed" });
    return [await remaining(kept), await remaining(kept, "other"), await remaining(kept, "small"), closed, await remaining(gone, "a")];
  });
  assert.deepEqual(seen, [4, 6, 1, false, 1]);
});

test("what was told is on the disk when the whole browser is killed", async (t) => {
  const profile = mkdtempSync(join(tmpdir(), "wgl-profile-"));
  t.after(() => rmSync(profile, { recursive: true, force: true, maxRetries: 9 }));
  const seen = [];
  for (const count of [3, 1]) {
    const { context, kill } = await kept(profile);
    t.after(kill);
    const page = await tabs.page(context);
    const told = await page.evaluate(async (count) => {
      const store = await web.open("indexeddb:disk");
      const [limiter, slots] = [store.limiter("disk", "5/1h"), store.limiter("slots", "4 concurrent")];
      window.permits = [];
      for (let i = 0; i < count; i++) window.permits.push(await limiter.tryAcquire(), await slots.tryAcquire());
      return [window.permits.every(Boolean), (await limiter.peek()).remaining, (await slots.peek()).remaining];
    }, count);
    seen.push(told);
    await kill();
  }
  // Those who held slots are dead.
  assert.deepEqual(seen, [
    [true, 2, 1],
    [true, 1, 3],
  ]);
});

test("eight tabs and four workers use a limit up, while they are killed, reloaded and frozen", async (t) => {
  const limit = 6_000;
  const context = await tabs.context(t);
  tabs.starts = [];
  const begin = (page, i) =>
    page.evaluate(
      ([policy, works]) => {
        window.over = storm("indexeddb:storm", policy, false);
        if (works) window.worker = worker("/worker.js", "indexeddb:storm", policy, false);
      },
      [`${limit}/1h`, i % 2 === 0],
    );
  const pages = await Promise.all(Array.from({ length: 8 }, () => tabs.page(context)));
  await Promise.all(pages.map(begin));
  const some = (count) => {
    const wanted = Math.min(tabs.starts.length + count, limit * 0.9);
    return tabs.until((starts) => starts.length >= wanted);
  };
  // In this order they asked for the lock, so that most of those who are killed lead.
  for (let i = 0; i < pages.length; i++) {
    await some(100);
    const [reloaded, frozen] = [1, 2].map((after) => pages[(i + after) % pages.length]);
    if (i % 2 === 0) await pages[i].close();
    else await crash(context, pages[i]);
    await tabs.load(reloaded);
    await begin(reloaded, i + 1);
    pages[i] = await tabs.page(context);
    await begin(pages[i], i);
    const cdp = await context.newCDPSession(frozen);
    await cdp.send("Page.setWebLifecycleState", { state: "frozen" });
    await some(100);
    await cdp.send("Page.setWebLifecycleState", { state: "active" });
  }
  const before = tabs.starts.length;
  await Promise.all(pages.map((page) => page.evaluate(() => window.over)));
  t.diagnostic(`${tabs.starts.length} starts of ${limit} were told, ${before} when the last tab was frozen`);
  assert.ok(tabs.starts.length <= limit);
  assert.ok(tabs.starts.length >= limit * 0.95);
});

test("no window holds more, while a leader stands still and goes on", async (t) => {
  const [limit, window] = [20, 500];
  const context = await tabs.context(t);
  tabs.starts = [];
  const pages = await Promise.all(Array.from({ length: 4 }, () => tabs.page(context)));
  const policy = `${limit}/${window}ms`;
  await Promise.all(pages.map((page) => page.evaluate((policy) => void storm("indexeddb:windows", policy, true), policy)));
  for (const page of pages) {
    const some = tabs.starts.length + 3 * limit;
    await tabs.until((starts) => starts.length >= some);
    const cdp = await context.newCDPSession(page);
    await cdp.send("Page.setWebLifecycleState", { state: "frozen" });
    const more = tabs.starts.length + 3 * limit;
    await tabs.until((starts) => starts.length >= more);
    await cdp.send("Page.setWebLifecycleState", { state: "active" });
  }
  // The most starts whose calls lie wholly within a window.
  const all = tabs.starts;
  const most = Math.max(...all.map(([from]) => all.filter(([a, b]) => a >= from && b < from + window).length));
  const time = Math.max(...all.map(([, end]) => end)) - Math.min(...all.map(([begun]) => begun));
  t.diagnostic(
    `${all.length} starts, at most ${most} in ${window} ms; ${Math.round((100 * all.length * window) / (limit * time))} % of the limit`,
  );
  assert.ok(most <= limit, `${most} starts in ${window} ms`);
});

for (const [name, body] of [...faults, ...changes, ...told, ...databases, ...instances]) test(name, body);
