// Changes of leaders and databases, which stopped `indexeddb:` or let it admit too much once: see `faults.mjs`.
import assert from "node:assert/strict";

/** The tests: each is called with its context and the browser's tabs. */
export const changes = [];
const test = (name, body) => changes.push([name, body]);

test("who led a database that was deleted leads the next one, too", async (t, tabs) => {
  const seen = await tabs.run(t, async () => {
    const limiter = (await web.open("indexeddb:again")).limiter("again", "1 concurrent");
    await limiter.acquire();
    const waiting = limiter.acquire();
    await limiter.peek();
    await result(indexedDB.deleteDatabase("workglow-limit again"));
    await (await waiting).complete();
    return (await limiter.peek()).remaining;
  });
  assert.equal(seen, 1);
});

test("a second tab follows the leader of the next database", async (t, tabs) => {
  const seen = await tabs.run(t, async () => {
    const stores = [await web.open("indexeddb:next"), await web.open("indexeddb:next")];
    const [one, other] = stores.map((store) => store.limiter("next", "3/1h"));
    for (const limiter of [one, other]) await limiter.tryAcquire();
    await change("next");
    await other.peek();
    await result(indexedDB.deleteDatabase("workglow-limit next"));
    const permits = [await one.tryAcquire(), await other.tryAcquire(), await one.acquire()];
    return [permits.every(Boolean), (await other.peek()).remaining];
  });
  assert.deepEqual(seen, [true, 0]);
});

test("a permit of a deleted database frees nothing in the next one", async (t, tabs) => {
  const seen = await tabs.run(t, async () => {
    const limiter = (await web.open("indexeddb:former")).limiter("former", "1 concurrent");
    const former = await limiter.acquire();
    await result(indexedDB.deleteDatabase("workglow-limit former"));
    const permit = await limiter.tryAcquire();
    await former.complete();
    const full = (await limiter.peek()).remaining;
    await permit.complete();
    return [full, (await limiter.peek()).remaining];
  });
  assert.deepEqual(seen, [0, 1]);
});

test("an override that another version wrote counts as used, and stops nobody", async (t, tabs) => {
  const seen = await tabs.run(t, async () => {
    const clock = new web.ManualClock();
    const store = await web.open("indexeddb:override", { clock });
    const limiter = store.limiter("whole", "3/1h");
    for (let i = 0; i < 3; i++) await limiter.tryAcquire();
    const planned = store.limiter("planned", "3/1h");
    await store.override("planned", "1/1h", { key: "own" });
    await planned.tryAcquire({ key: "own" });
    const slots = store.limiter("slots", "2 concurrent");
    const held = await slots.acquire({ key: "a" });
    const writing = (await database("override")).transaction(["limits", "plans"], "readwrite");
    const put = (store, value, key) => writing.objectStore(store).put(value, key);
    put("limits", { policy: "3/1h", override: "of another version", changed: [] }, "whole");
    put("limits", { policy: "2 concurrent", override: "of another version", changed: [] }, "slots");
    put("plans", "of another version", ["planned", "own"]);
    await new Promise((written) => (writing.oncomplete = written));
    await change("override");
    const seen = [];
    // Whoever does not declare it finds it, too.
    for (const one of [limiter, store.limiter("whole")]) for (const key of ["", "new"]) seen.push((await one.tryAcquire({ key })) !== null);
    for (const key of ["own", "new"]) seen.push((await planned.tryAcquire({ key })) !== null);
    seen.push((await store.limiter("other", "3/1h").tryAcquire()) !== null, (await slots.peek({ key: "a" })).remaining);
    await held.complete();
    clock.advance(3_600_000);
    for (const key of ["", "new"]) seen.push((await limiter.tryAcquire({ key })) !== null);
    return [...seen, (await slots.peek({ key: "a" })).remaining];
  });
  assert.deepEqual(seen, [...Array(5).fill(false), true, true, 1, true, true, 2]);
});

test("records of no shape count as used", async (t, tabs) => {
  const seen = await tabs.run(t, async () => {
    const store = await web.open("indexeddb:shapes");
    for (const name of ["a", "b", "c"]) await store.limiter(name, "3/1h").tryAcquire();
    const writing = (await database("shapes")).transaction(["limits", "keys"], "readwrite");
    writing.objectStore("keys").put(null, ["a", ""]);
    writing.objectStore("limits").put({ policy: "3/1h", override: "" }, "b");
    await new Promise((written) => (writing.oncomplete = written));
    await change("shapes");
    const seen = [];
    for (const name of ["a", "b", "c"]) seen.push((await store.limiter(name, "3/1h").peek()).remaining);
    return seen;
  });
  assert.deepEqual(seen, [0, 0, 2]);
});

for (const hears of [true, false]) {
  const name = hears ? "a leader that has heard late does not make the next one early" : "nor one that the next one has not heard of";
  test(name, async (t, tabs) => {
    const seen = await tabs.run(
      t,
      async (hears) => {
        const clocks = [1, 2, 3].map(() => new web.ManualClock());
        const advance = (ms) => clocks.forEach((clock) => clock.advance(ms));
        const today = Date.now();
        Date.now = () => today;
        // Each store hears of others when it is let.
        const { set } = Object.getOwnPropertyDescriptor(BroadcastChannel.prototype, "onmessage");
        const kept = [null, [], null];
        const [stores, pause] = [[], () => new Promise((resolve) => setTimeout(resolve, 5))];
        const open = async () => {
          const i = stores.length;
          Object.defineProperty(BroadcastChannel.prototype, "onmessage", {
            configurable: true,
            set(hears) {
              set.call(this, (event) => (kept[i] ? kept[i].push(() => hears(event)) : hears(event)));
            },
          });
          stores.push(await web.open("indexeddb:late", { clock: clocks[i] }));
          Object.defineProperty(BroadcastChannel.prototype, "onmessage", { configurable: true, set });
        };
        const limiter = (i) => stores[i].limiter("late", "5/4s");
        await open();
        await limiter(0).peek();
        await open();
        const asked = limiter(1).peek();
        while (kept[1].length === 0) await pause();
        await open();
        await limiter(2).peek();
        advance(1_500);
        // The second one hears the time of then, and nothing later.
        for (const hear of kept[1]) hear();
        kept[1] = null;
        if (!hears) kept[2] = [];
        stores[0].close();
        await asked;
        let started = 0;
        for (let i = 0; i < 6; i++) started += (await limiter(1).tryAcquire()) === null ? 0 : 1;
        if (hears) await limiter(2).peek();
        stores[1].close();
        kept[2] = null;
        await limiter(2).peek();
        advance(3_999);
        const early = (await limiter(2).tryAcquire()) !== null;
        advance(1);
        return [started, early, (await limiter(2).tryAcquire()) !== null];
      },
      hears,
    );
    assert.deepEqual(seen, [5, false, true]);
  });
}

test("while some tab is open, the time of day is not asked", async (t, tabs) => {
  const seen = await tabs.run(t, async () => {
    const first = await web.open("indexeddb:day");
    await first.limiter("day", "1/30m").tryAcquire();
    // It has asked nothing.
    const messages = [];
    new BroadcastChannel("workglow-limit leader day").onmessage = ({ data }) => messages.push(data.kind);
    const idle = await web.open("indexeddb:day");
    while (messages.length === 0) await new Promise((resolve) => setTimeout(resolve, 5));
    await first.limiter("day").peek();
    const { now } = Date;
    Date.now = () => now() + 3_600_000;
    first.close();
    return (await idle.limiter("day").tryAcquire()) !== null;
  });
  assert.equal(seen, false);
});

test("a database that takes longer to open than others wait for a leader is waited for", async (t, tabs) => {
  const context = await tabs.context(t);
  const pages = await Promise.all([1, 2, 3].map(() => tabs.page(context)));
  for (const page of pages) {
    await page.evaluate(async () => {
      const limiter = (window.limiter = (await web.open("indexeddb:slow")).limiter("slow", "9/1h"));
      await limiter.peek();
      const { open } = IDBFactory.prototype;
      window.opened = 0;
      IDBFactory.prototype.open = function (...given) {
        window.opened++;
        const request = {};
        const later = () => {
          const real = open.apply(this, given);
          real.onsuccess = () => request.onsuccess(void (request.result = real.result));
          real.onerror = () => request.onerror(void (request.error = real.error));
        };
        setTimeout(later, 3_000);
        return request;
      };
    });
  }
  await pages[0].close();
  const told = await Promise.all(pages.slice(1).map((page) => page.evaluate(async () => (await limiter.tryAcquire()) !== null)));
  assert.deepEqual(told, [true, true]);
});

test("transactions that take longer than a leader may doze are waited for", async (t, tabs) => {
  const isAdmitted = await tabs.run(t, async () => {
    const limiter = (await web.open("indexeddb:transactions")).limiter("transactions", "9/1h");
    await limiter.peek();
    const { set } = Object.getOwnPropertyDescriptor(IDBTransaction.prototype, "oncomplete");
    Object.defineProperty(IDBTransaction.prototype, "oncomplete", {
      set(done) {
        set.call(this, (event) => setTimeout(() => done.call(this, event), 1_200));
      },
    });
    await new Promise((resolve) => setTimeout(resolve, 1_200));
    return (await limiter.tryAcquire()) !== null;
  });
  assert.equal(isAdmitted, true);
});

test("a tab that dies gives its slots back, while a former leader stands still", async (t, tabs) => {
  const context = await tabs.context(t);
  const [first, holder] = [await tabs.page(context), await tabs.page(context)];
  await first.evaluate(async () => {
    window.worker = await hanging("indexeddb:watched", "1 concurrent", "onmessage = hang;");
  });
  await holder.evaluate(async () => {
    window.permit = await (await web.open("indexeddb:watched")).limiter("hanging").acquire();
  });
  const held = await first.evaluate(async () => {
    window.worker.postMessage(null);
    window.slots = (await web.open("indexeddb:watched")).limiter("hanging");
    return (await window.slots.tryAcquire()) === null;
  });
  await holder.close();
  const remaining = await first.evaluate(async () => {
    await (await window.slots.acquire()).complete();
    return (await window.slots.peek()).remaining;
  });
  assert.deepEqual([held, remaining], [true, 1]);
});

test("a timeout ends a wait, and a signal one that has not begun, though nobody leads", async (t, tabs) => {
  const seen = await tabs.run(t, async () => {
    const store = await web.open("indexeddb:nobody");
    const limiter = store.limiter("nobody", "1 concurrent");
    await limiter.acquire();
    const waiting = limiter.acquire({ timeout: 10 });
    // Nobody can lead from here on.
    await limiter.peek();
    void navigator.locks.request("workglow-limit lead nobody", { steal: true }, () => new Promise(() => {}));
    const { request } = LockManager.prototype;
    LockManager.prototype.request = function (...given) {
      return given[1]?.steal ? new Promise(() => {}) : request.apply(this, given);
    };
    const told = [await waiting.catch(({ code }) => code), await limiter.acquire({ timeout: 10 }).catch(({ code }) => code)];
    const leaving = new AbortController();
    const left = store.limiter("another", "1 concurrent").acquire({ signal: leaving.signal });
    leaving.abort();
    return [...told, await left.catch(({ name }) => name)];
  });
  assert.deepEqual(seen, ["acquire_timeout", "acquire_timeout", "AbortError"]);
});

test("a database that cannot be opened any more is not tried while nobody asks", async (t, tabs) => {
  const seen = await tabs.run(t, async () => {
    const limiter = (await web.open("indexeddb:gone")).limiter("gone", "3/1h");
    await limiter.tryAcquire();
    const { open } = IDBFactory.prototype;
    let tried = 0;
    IDBFactory.prototype.open = () => {
      tried++;
      throw new DOMException("not now", "UnknownError");
    };
    await navigator.locks.request("workglow-limit lead gone", { steal: true }, () => {});
    while (tried === 0) await new Promise((resolve) => setTimeout(resolve, 5));
    // Longer than many tries took.
    await new Promise((resolve) => setTimeout(resolve, 1_500));
    const idle = tried;
    const failed = await limiter.tryAcquire().catch(({ code }) => code);
    IDBFactory.prototype.open = open;
    return [idle, failed, (await limiter.tryAcquire()) !== null];
  });
  assert.deepEqual(seen, [1, "store_failure", true]);
});

test("what could not be written is forgotten some time", async (t, tabs) => {
  const [failed, written, remaining] = await tabs.run(t, async () => {
    const limiter = (await web.open("indexeddb:much")).limiter("much", "3/1h");
    await limiter.tryAcquire();
    const { put, delete: remove } = IDBObjectStore.prototype;
    IDBObjectStore.prototype.put = () => {
      throw new DOMException("the disk is full", "QuotaExceededError");
    };
    let failed = 0;
    const ask = (key) => limiter.tryAcquire({ key }).catch(({ code }) => void (code === "store_failure" && failed++));
    for (let i = 0; i < 5_000; i += 500) await Promise.all(Array.from({ length: 500 }, (_, j) => ask(`${i + j}`)));
    let written = 0;
    IDBObjectStore.prototype.put = function (...given) {
      written++;
      return put.apply(this, given);
    };
    IDBObjectStore.prototype.delete = function (...given) {
      written++;
      return remove.apply(this, given);
    };
    while ((await limiter.tryAcquire({ key: "last" }).catch(() => null)) === null);
    return [failed, written, (await limiter.peek()).remaining];
  });
  assert.equal(failed, 5_000);
  assert.ok(written <= 3_500, `${written} changes`);
  assert.equal(remaining, 2);
});

test("whoever asks all the time takes over from a leader that stands still", async (t, tabs) => {
  const remaining = await tabs.run(t, async () => {
    window.worker = await hanging("indexeddb:often", "3/1h", "onmessage = hang;");
    const limiter = (await web.open("indexeddb:often")).limiter("hanging");
    await limiter.peek();
    window.worker.postMessage(null);
    const asking = setInterval(() => limiter.peek().catch(() => {}), 50);
    const { remaining } = await limiter.peek();
    clearInterval(asking);
    return remaining;
  });
  assert.equal(remaining, 3);
});

test("a leader that learns late that it has lost the lock asks the next one", async (t, tabs) => {
  const seen = await tabs.run(t, async () => {
    // The first store is told late.
    const { request } = LockManager.prototype;
    let told;
    const later = new Promise((tell) => (told = tell));
    LockManager.prototype.request = function (...given) {
      const asked = request.apply(this, given);
      return asked.catch((error) => later.then(() => Promise.reject(error)));
    };
    const first = (await web.open("indexeddb:lost")).limiter("lost", "3/1h");
    await first.peek();
    LockManager.prototype.request = request;
    const second = (await web.open("indexeddb:lost")).limiter("lost", "3/1h");
    await second.peek();
    await change("lost");
    const before = first.tryAcquire();
    await second.peek();
    told();
    return [await before, await first.tryAcquire()].every(Boolean);
  });
  assert.equal(seen, true);
});

test("a module that fails is an error of one call, and the next leader has a new one", async (t, tabs) => {
  const seen = await tabs.run(t, async () => {
    const { instantiate } = WebAssembly;
    let fails = false;
    WebAssembly.instantiate = async (...given) => {
      const { exports } = await instantiate(...given);
      const wgl_decide = (...given) => {
        if (!fails) return exports.wgl_decide(...given);
        fails = false;
        throw new WebAssembly.RuntimeError("unreachable");
      };
      return { exports: { ...exports, wgl_decide } };
    };
    const limiter = (await web.open("indexeddb:fails")).limiter("fails", "3/1h");
    await limiter.tryAcquire();
    fails = true;
    const told = await limiter.tryAcquire().catch(({ code, message }) => `${code}: ${message}`);
    return [told, (await limiter.peek()).remaining];
  });
  assert.deepEqual(seen, ["store_failure: the leader has failed: RuntimeError: unreachable", 2]);
});
