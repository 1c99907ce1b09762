// Databases, clocks, origins and memory of `indexeddb:`: see `faults.mjs`.
import assert from "node:assert/strict";

/** The tests: each is called with its context and the browser's tabs. */
export const databases = [];
const test = (name, body) => databases.push([name, body]);

test("a database that is deleted while a leader begins is followed by another one", async (t, tabs) => {
  const remaining = await tabs.run(t, async () => {
    const { instantiate } = WebAssembly;
    let made = 0;
    WebAssembly.instantiate = async (...given) => {
      // The second one is the leader's, which has read the database.
      if (++made === 2) await result(indexedDB.deleteDatabase("workglow-limit begins"));
      return instantiate(...given);
    };
    const limiter = (await web.open("indexeddb:begins")).limiter("begins", "3/1h");
    await limiter.tryAcquire();
    return (await limiter.peek()).remaining;
  });
  assert.equal(remaining, 2);
});

test("a database of a later version is an error, and untouched", async (t, tabs) => {
  const seen = await tabs.run(t, async () => {
    const store = await web.open("indexeddb:later");
    const limiter = store.limiter("later", "3/1h");
    await limiter.tryAcquire();
    // Whoever upgrades it does not wait for those who have it open.
    const request = indexedDB.open("workglow-limit later", 2);
    request.onupgradeneeded = () => request.result.createObjectStore("later");
    (await result(request)).close();
    const code = ({ code, message }) => [code, message.includes("version")];
    const errors = [await limiter.tryAcquire().catch(code), await web.open("indexeddb:later").catch(code)];
    const later = await new Promise((opened) => {
      const request = indexedDB.open("workglow-limit later");
      request.onsuccess = () => opened(request.result);
    });
    const names = [later.version, later.objectStoreNames.contains("later"), later.objectStoreNames.contains("keys")];
    later.close();
    await result(indexedDB.deleteDatabase("workglow-limit later"));
    return [...errors, names, (await limiter.tryAcquire()) !== null];
  });
  assert.deepEqual(seen, [["store_failure", true], ["store_failure", true], [2, true, true], true]);
});

test("a time of day that was set back does not keep a limit closed", async (t, tabs) => {
  const seen = await tabs.run(t, async () => {
    let today = Date.now() + 86_400_000;
    Date.now = () => today;
    const open = async () => {
      const store = await web.open("indexeddb:back");
      return [store, store.limiter("back", "1/1h")];
    };
    const [wrong, limiter] = await open();
    await limiter.tryAcquire();
    wrong.close();
    today -= 86_400_000;
    const [right, denied] = await open();
    const seen = [await denied.canProceed()];
    right.close();
    today += 3_601_000;
    const [, free] = await open();
    return [...seen, await free.canProceed()];
  });
  assert.deepEqual(seen, [false, true]);
});

test("keys leave memory when many were used or looked at, and are remembered", async (t, tabs) => {
  const [bytes, ...seen] = await tabs.run(t, async () => {
    const { instantiate } = WebAssembly;
    let memory;
    WebAssembly.instantiate = async (...given) => {
      const instance = await instantiate(...given);
      memory = instance.exports.memory;
      return instance;
    };
    const clock = new web.ManualClock();
    const store = await web.open("indexeddb:memory", { clock });
    const limiter = store.limiter("memory", "1000/1h");
    await limiter.tryAcquire({ key: "full", weight: 1_000 });
    const waiting = limiter.acquire({ key: "full" });
    await store.override("memory", "9/1h", { key: "small" });
    // Each has more than 8 KB.
    const all = async (ask) => {
      for (let i = 0; i < 12_000; i += 1_000) await Promise.all(Array.from({ length: 1_000 }, (_, j) => ask(`${i + j}`)));
    };
    await all((key) => limiter.tryAcquire({ key }));
    const bytes = [memory.buffer.byteLength];
    // The next leader has none of them in its memory, and writes nothing.
    await change("memory");
    await all((key) => limiter.peek({ key }));
    bytes.push(memory.buffer.byteLength);
    const remaining = async (key) => (await limiter.peek({ key })).remaining;
    const seen = [await remaining("0"), await remaining("11999"), await remaining("small"), await remaining("full")];
    clock.advance(3_599_999);
    seen.push(await remaining("full"));
    clock.advance(1);
    await waiting;
    return [Math.max(...bytes), ...seen, await remaining("full")];
  });
  assert.ok(bytes < 80e6, `${bytes} bytes`);
  assert.deepEqual(seen, [999, 999, 9, 0, 0, 999]);
});

test("a database that opens too late is closed again", async (t, tabs) => {
  const error = await tabs.run(t, async () => {
    const [{ setTimeout: usual }, { open }] = [window, IDBFactory.prototype];
    let opening;
    // It takes longer than anybody waits.
    window.setTimeout = (call, ms) => usual(call, ms === 10_000 ? 0 : ms);
    IDBFactory.prototype.open = function (...given) {
      const request = (opening = open.apply(this, given));
      let hear;
      Object.defineProperty(request, "onsuccess", { set: (hears) => void (hear = hears) });
      opening.hear = () => hear();
      return request;
    };
    await web.open("indexeddb:slow").catch(() => {});
    if (opening.readyState !== "done") await new Promise((resolve) => opening.addEventListener("success", resolve));
    opening.hear();
    try {
      return opening.result.transaction("keys").mode;
    } catch ({ name }) {
      return name;
    }
  });
  assert.equal(error, "InvalidStateError");
});

test("another origin has limits of its own", async (t, tabs) => {
  const context = await tabs.context(t);
  const seen = [];
  for (const url of [tabs.url, tabs.url.replace("127.0.0.1", "localhost")]) {
    const page = await tabs.page(context, url);
    seen.push(
      await page.evaluate(async () => (await (await web.open("indexeddb:origin")).limiter("origin", "1/1h").tryAcquire()) !== null),
    );
  }
  assert.deepEqual(seen, [true, true]);
});

test("a page that is reloaded while it writes holds nothing, and gets no start twice", async (t, tabs) => {
  const page = await tabs.page(await tabs.context(t));
  let begun = 0;
  for (let i = 0; i < 8; i++) {
    const [waits, peeked] = await page.evaluate(async (i) => {
      const store = await web.open("indexeddb:reloaded");
      const [slots, rate] = [store.limiter("slots", "3 concurrent"), store.limiter("rate", "1000/1h")];
      // Those of the page before are dead.
      const permits = await Promise.all([1, 2, 3].map(() => slots.acquire()));
      for (const permit of permits) await permit.complete();
      const { remaining } = await rate.peek();
      for (let j = 0; j <= i; j++) void Promise.all([slots.acquire(), rate.tryAcquire(), rate.acquire()]);
      // In mid-write, more or less.
      for (let j = 0; j < i; j++) await new Promise((resolve) => setTimeout(resolve));
      return [2 * (i + 1), remaining];
    }, i);
    assert.ok(1_000 - peeked <= begun, `${1_000 - peeked} of ${begun}`);
    begun += waits;
    await page.reload();
    await page.waitForFunction("window.ready");
  }
});
