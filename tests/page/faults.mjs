// What went wrong with `indexeddb:` once, or may: each with one leader, client or write that does what it should not.
import assert from "node:assert/strict";
import { crash } from "./tabs.mjs";

/** The tests: each is called with its context and the browser's tabs. */
export const faults = [];
const test = (name, body) => faults.push([name, body]);

test("a leader that stands still where it reads or writes stops nobody", async (t, tabs) => {
  const seen = await tabs.run(t, async () => {
    // At the end of each turn in which it uses the database.
    const code = `
      const { transaction } = IDBDatabase.prototype;
      IDBDatabase.prototype.transaction = function (...given) { queueMicrotask(hang); return transaction.apply(this, given); };
      setTimeout(() => limiter.tryAcquire());`;
    window.worker = await hanging("indexeddb:hangs", "3/1h", code);
    const limiter = (await web.open("indexeddb:hangs")).limiter("hanging");
    const told = [];
    for (let i = 0; i < 4; i++) told.push((await limiter.tryAcquire()) !== null);
    return told;
  });
  // Whether the worker's start was written when it stood still.
  assert.deepEqual([seen[0], seen[1], seen[3]], [true, true, false]);
});

test("a start that was written but not told is told by the next leader", async (t, tabs) => {
  const seen = await tabs.run(t, async () => {
    const code = `
      const { postMessage } = BroadcastChannel.prototype;
      BroadcastChannel.prototype.postMessage = function (message) {
        if (message.kind === "answer" && message.answer?.admitted) hang();
        postMessage.call(this, message);
      };`;
    window.worker = await hanging("indexeddb:untold", "1 concurrent", code);
    const limiter = (await web.open("indexeddb:untold")).limiter("hanging");
    const permit = await limiter.acquire();
    const isFull = (await limiter.tryAcquire()) === null;
    await permit.complete();
    return [isFull, (await limiter.peek()).remaining];
  });
  assert.deepEqual(seen, [true, 1]);
});

test("a start that its caller does not wait for any more is given back", async (t, tabs) => {
  const seen = await tabs.run(t, async () => {
    const code = `
      const { postMessage } = BroadcastChannel.prototype;
      BroadcastChannel.prototype.postMessage = function (message) {
        if (message.kind === "answer" && message.answer?.admitted) hang();
        postMessage.call(this, message);
      };`;
    const worker = await hanging("indexeddb:left", "1 concurrent", code);
    const limiter = (await web.open("indexeddb:left")).limiter("hanging");
    const leaving = new AbortController();
    const waiting = limiter.acquire({ signal: leaving.signal }).catch((error) => error.name);
    const holds = async () => (await result((await database("left")).transaction("holds").objectStore("holds").count())) > 0;
    while (!(await holds())) await new Promise((resolve) => setTimeout(resolve, 20));
    leaving.abort();
    worker.terminate();
    await (await limiter.acquire()).complete();
    return [await waiting, await holds(), (await limiter.peek()).remaining];
  });
  assert.deepEqual(seen, ["AbortError", false, 1]);
});

test("a start whose call has failed meanwhile is given back", async (t, tabs) => {
  const seen = await tabs.run(t, async () => {
    const code = `
      const { postMessage } = BroadcastChannel.prototype;
      BroadcastChannel.prototype.postMessage = function (message) {
        if (message.kind === "answer" && message.answer?.admitted) hang();
        postMessage.call(this, message);
      };`;
    window.worker = await hanging("indexeddb:failed", "1 concurrent", code);
    const limiter = (await web.open("indexeddb:failed")).limiter("hanging");
    const { open } = IDBFactory.prototype;
    IDBFactory.prototype.open = () => {
      throw new DOMException("not now", "UnknownError");
    };
    const failed = await limiter.acquire().catch(({ code }) => code);
    IDBFactory.prototype.open = open;
    await (await limiter.acquire()).complete();
    return [failed, (await limiter.peek()).remaining];
  });
  assert.deepEqual(seen, ["store_failure", 1]);
});

test("whoever has left is not asked for again, and a waiter joins once", async (t, tabs) => {
  const seen = await tabs.run(t, async () => {
    const [first, second] = [await web.open("indexeddb:waits"), await web.open("indexeddb:waits")];
    const [one, other] = [first, second].map((store) => store.limiter("waits", "2 concurrent"));
    const permits = [await one.acquire(), await one.acquire()];
    const leaving = new AbortController();
    const left = other.acquire({ signal: leaving.signal }).catch((error) => error.name);
    const waiting = other.acquire();
    // More calls than the leader could remember.
    for (let i = 0; i < 10_100; i += 100) await Promise.all(Array.from({ length: 100 }, () => other.peek()));
    leaving.abort();
    await other.peek();
    // Each leader is asked for each waiter once.
    const asked = [];
    new BroadcastChannel("workglow-limit leader waits").onmessage = ({ data }) =>
      data.call?.op === "wait" && asked.push(`${data.call.waiter} of ${data.to.number}`);
    // As often as both lead.
    for (let i = 0; i < 4; i++) await change("waits");
    for (const permit of permits) await permit.complete();
    await (await waiting).complete();
    const [waiters, times] = [asked.map((text) => text.split(" ")[0]), asked.length - new Set(asked).size];
    return [await left, new Set(waiters).size, times, (await one.peek()).remaining];
  });
  assert.deepEqual(seen, ["AbortError", 1, 0, 2]);
});

test("a tab that asks nothing hears nothing of other tabs' calls", async (t, tabs) => {
  const heard = await tabs.run(t, async () => {
    const heard = [];
    const { set } = Object.getOwnPropertyDescriptor(BroadcastChannel.prototype, "onmessage");
    const stores = [await web.open("indexeddb:quiet"), await web.open("indexeddb:quiet")];
    const limiters = stores.map((store) => store.limiter("quiet", "9/1h"));
    for (const limiter of limiters) await limiter.peek();
    // Of the channels of the third store, from here on.
    Object.defineProperty(BroadcastChannel.prototype, "onmessage", {
      set(hears) {
        set.call(this, (event) => {
          heard.push(event.data.kind);
          hears(event);
        });
      },
    });
    await web.open("indexeddb:quiet");
    for (const limiter of limiters) for (let i = 0; i < 5; i++) await limiter.tryAcquire();
    return heard;
  });
  // (Leaders may change.)
  assert.deepEqual(
    heard.filter((kind) => kind !== "begins" && kind !== "leads"),
    [],
  );
});

for (const how of ["in time", "late"]) {
  test(`waiters keep their order, also among tabs and leaders, if they hear of their starts ${how}`, async (t, tabs) => {
    const order = await tabs.run(
      t,
      async (how) => {
        const clock = new web.ManualClock();
        const stores = await Promise.all(Array.from({ length: 3 }, () => web.open("indexeddb:order", { clock })));
        const limiters = stores.map((store) => store.limiter("order", "1 concurrent"));
        const first = await limiters[0].acquire();
        const { postMessage } = BroadcastChannel.prototype;
        BroadcastChannel.prototype.postMessage = function (message) {
          postMessage.call(this, message);
          if (message.kind === "answer" && message.start && how === "late") queueMicrotask(() => clock.advance(5_000));
        };
        const [order, waiting] = [[], []];
        for (let i = 0; i < 9; i++) {
          const ran = async (permit) => void (order.push(i), await permit.complete());
          waiting.push(limiters[(7 * i) % 3].acquire().then(ran));
          await limiters[(7 * i) % 3].peek();
        }
        await change("order");
        await first.complete();
        await Promise.all(waiting);
        return order;
      },
      how,
    );
    assert.deepEqual(order, [0, 1, 2, 3, 4, 5, 6, 7, 8]);
  });
}

test("starts of two leaders have different numbers", async (t, tabs) => {
  const seen = await tabs.run(t, async () => {
    const clock = new web.ManualClock();
    const limiter = (await web.open("indexeddb:numbers", { clock })).limiter("numbers", "1 concurrent lease 1s");
    const late = await limiter.acquire();
    clock.advance(2_000);
    // Nothing is left of the key.
    await limiter.clear();
    await change("numbers");
    const permit = await limiter.acquire();
    await late.complete();
    const isHeld = (await limiter.tryAcquire()) === null;
    await permit.complete();
    return [isHeld, (await limiter.peek()).remaining];
  });
  assert.deepEqual(seen, [true, 1]);
});

test("a leader whose lock is stolen while it begins does not lead", async (t, tabs) => {
  const events = await tabs.run(t, async () => {
    const events = [];
    const { transaction } = IDBDatabase.prototype;
    new BroadcastChannel("workglow-limit all stolen").onmessage = ({ data }) => data.kind === "leads" && events.push("leads");
    const store = await web.open("indexeddb:stolen");
    const limiter = store.limiter("stolen", "1/1h");
    IDBDatabase.prototype.transaction = function (...given) {
      IDBDatabase.prototype.transaction = transaction;
      const stolen = navigator.locks.request("workglow-limit lead stolen", { steal: true }, () => new Promise(() => {}));
      stolen.catch(() => events.push("stolen back"));
      return transaction.apply(this, given);
    };
    if ((await limiter.tryAcquire()) !== null) events.push("started");
    store.close();
    return events;
  });
  assert.deepEqual(events.slice(0, 2).concat(events.at(-1)), ["stolen back", "leads", "started"]);
});

test("what no longer matters is removed, and a leader reads only what it is asked for", async (t, tabs) => {
  const [written, read, left] = await tabs.run(t, async () => {
    const clock = new web.ManualClock();
    const store = await web.open("indexeddb:many", { clock });
    const limiter = store.limiter("many", "2/1h");
    const own = await database("many");
    const count = () => result(own.transaction("keys").objectStore("keys").count());
    for (let i = 0; i < 30_000; i += 1_000) {
      await Promise.all(Array.from({ length: 1_000 }, (_, j) => limiter.tryAcquire({ key: `${i + j}` })));
    }
    const written = await count();
    let read = 0;
    for (const [of, name] of [IDBObjectStore, IDBIndex].flatMap((of) => ["get", "getAll", "openCursor"].map((name) => [of, name]))) {
      const before = of.prototype[name];
      of.prototype[name] = function (...given) {
        const request = before.apply(this, given);
        request.addEventListener("success", () => (read += Array.isArray(request.result) ? request.result.length : 1));
        return request;
      };
    }
    await change("many");
    if ((await limiter.peek({ key: "29999" })).remaining !== 1) throw new Error("it was forgotten");
    const [taken] = [read];
    clock.advance(3 * 3_600_000);
    for (let i = 0; (await count()) > 28_000 && i < 400; i++) await limiter.tryAcquire({ key: `new ${i}` });
    return [written, taken, await count()];
  });
  assert.equal(written, 30_000);
  assert.ok(read <= 20, `${read} records`);
  assert.ok(left <= 28_000, `${left} records`);
});

test("a write that fails is an error, its start is taken back, and the next one is written", async (t, tabs) => {
  const [error, ...seen] = await tabs.run(t, async () => {
    const limiter = (await web.open("indexeddb:quota")).limiter("quota", "3/1h");
    await limiter.tryAcquire();
    const { put } = IDBObjectStore.prototype;
    IDBObjectStore.prototype.put = () => {
      throw new DOMException("the disk is full", "QuotaExceededError");
    };
    const error = await limiter.tryAcquire().catch(({ name, code, message }) => `${name} ${code}: ${message}`);
    await limiter.pause("1h", { key: "paused" }).catch(() => {});
    IDBObjectStore.prototype.put = put;
    const started = (await limiter.tryAcquire()) !== null;
    await change("quota");
    return [error, started, (await limiter.peek()).remaining, await limiter.canProceed({ key: "paused" })];
  });
  assert.equal(error, "StoreError store_failure: writing the store: QuotaExceededError: the disk is full");
  assert.deepEqual(seen, [true, 1, false]);
});

test("records that nobody can read count as used, and concern nobody else", async (t, tabs) => {
  const seen = await tabs.run(t, async () => {
    const clock = new web.ManualClock();
    const open = () => web.open("indexeddb:damaged", { clock });
    const before = await open();
    const [whole, other] = ["whole", "other"].map((name) => before.limiter(name, "3/1h"));
    for (const key of ["a", "b"]) await whole.tryAcquire({ key });
    const slots = before.limiter("slots", "2 concurrent");
    const held = await slots.acquire();
    await other.tryAcquire();
    const writing = (await database("damaged")).transaction(["limits", "keys", "holds"], "readwrite");
    const put = (store, value, key) => writing.objectStore(store).put(value, key);
    put("limits", { policy: "of another version", override: "", changed: [] }, "other");
    put("limits", null, "nothing");
    put("holds", {}, ["nobody", 1]);
    put("keys", { words: new Uint8Array(16), saved: 0, until: 9e15 }, ["whole", "a"]);
    put("keys", { words: new Uint8Array(16), saved: 0, until: 9e15 }, ["slots", ""]);
    put("keys", "nothing", ["whole", "c"]);
    await new Promise((written) => (writing.oncomplete = written));
    await change("damaged");
    const remaining = async (limiter, key) => (await limiter.peek({ key })).remaining;
    const seen = [await remaining(whole, "a"), await remaining(whole, "b"), await remaining(whole, "c"), await remaining(slots)];
    await held.complete();
    seen.push(await remaining(slots), await remaining(other));
    const again = (await open()).limiter("other", "3/1h");
    seen.push(await remaining(again));
    clock.advance(3_600_000);
    return [...seen, await remaining(again), await remaining(whole, "a")];
  });
  assert.deepEqual(seen, [0, 2, 0, 1, 2, 0, 0, 3, 3]);
});

test("a database can be deleted, and then all begin anew", async (t, tabs) => {
  const seen = await tabs.run(t, async () => {
    const stores = [await web.open("indexeddb:deleted"), await web.open("indexeddb:deleted")];
    const limiters = stores.map((store) => store.limiter("deleted", "3/1h"));
    for (const limiter of limiters) await limiter.tryAcquire();
    await result(indexedDB.deleteDatabase("workglow-limit deleted"));
    const permits = [await limiters[0].tryAcquire(), await limiters[1].tryAcquire()];
    return [permits.every(Boolean), (await limiters[0].peek()).remaining];
  });
  assert.deepEqual(seen, [true, 1]);
});

test("stores of similar names share nothing", async (t, tabs) => {
  const seen = await tabs.run(t, async () => {
    const names = ["n", "n steal", "lead n", "n client", " n"];
    const limiters = await Promise.all(names.map(async (name) => (await web.open(`indexeddb:${name}`)).limiter("x", "1/1h")));
    return Promise.all(limiters.map(async (limiter) => [(await limiter.tryAcquire()) !== null, (await limiter.tryAcquire()) !== null]));
  });
  assert.deepEqual(seen, Array(5).fill([true, false]));
});

test("a former leader's write is refused as a whole", async (t, tabs) => {
  const seen = await tabs.run(t, async () => {
    const { Database, NotLeading } = await import("/database.js");
    const [former, latter] = [await Database.open("epochs"), await Database.open("epochs")];
    const about = { number: 0, unixUs: 0, time: 0, wall: 0 };
    const [yes, no] = [() => true, () => false];
    const write = (of, { epoch }, value) => of.write({ ...about, epoch: epoch.number }, [["limits", "a", value]]);
    const refused = async (written) => written.catch((error) => error instanceof NotLeading);
    const before = await former.lead("former", yes, no);
    await write(former, before, "first");
    const after = await latter.lead("latter", yes, no);
    const late = await refused(write(former, before, "late"));
    await write(latter, after, "second");
    const later = await refused(write(former, before, "later"));
    // However many lead meanwhile, the leader that may be alive is refused.
    for (let i = 0; i < 200; i++) await latter.lead("another", (client) => client === "former", no);
    const latest = await refused(write(former, before, "latest"));
    // Whoever is deposed before it has begun deposes nobody.
    const deposed = await refused(former.lead("former", yes, yes));
    const kept = await latter.lead("last", no, no);
    return [late, later, latest, deposed, kept.epoch.number, kept.epoch.database === before.epoch.database, kept.limits];
  });
  assert.deepEqual(seen, [true, true, true, true, 203, true, [["a", "second"]]]);
});

test("a tab that dies gives its slots back, and its waiters leave", async (t, tabs) => {
  const context = await tabs.context(t);
  const [holder, other] = [await tabs.page(context), await tabs.page(context)];
  await holder.evaluate(async () => {
    const slots = (await web.open("indexeddb:slots")).limiter("slots", "1 concurrent");
    window.permit = await slots.acquire();
    void slots.acquire();
    await slots.peek();
  });
  const isDenied = await other.evaluate(async () => {
    const slots = (window.slots = (await web.open("indexeddb:slots")).limiter("slots", "1 concurrent"));
    const isDenied = (await slots.tryAcquire()) === null;
    window.started = slots.acquire();
    return isDenied;
  });
  await crash(context, holder);
  const remaining = await other.evaluate(async () => {
    await (await window.started).complete();
    return (await slots.peek()).remaining;
  });
  assert.deepEqual([isDenied, remaining], [true, 1]);
});

test("a page without IndexedDB is told so", async (t, tabs) => {
  const told = await tabs.run(t, async () => {
    const open = () => web.open("indexeddb:none").catch(({ name, code, message }) => `${name} ${code}: ${message}`);
    const { open: usual } = IDBFactory.prototype;
    IDBFactory.prototype.open = () => {
      throw new DOMException("access is denied for this document", "SecurityError");
    };
    const denied = await open();
    IDBFactory.prototype.open = usual;
    Object.defineProperty(globalThis, "indexedDB", { value: undefined });
    return [denied, await open()];
  });
  assert.deepEqual(told, [
    'StoreError store_failure: opening the database "workglow-limit none": SecurityError: access is denied for this document',
    'StoreError store_failure: opening the database "workglow-limit none": this page has no IndexedDB',
  ]);
});
