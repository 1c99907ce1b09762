// What clients and leaders of `indexeddb:` tell each other is late, lost or repeated: see `faults.mjs`.
import assert from "node:assert/strict";

/** The tests: each is called with its context and the browser's tabs. */
export const told = [];
const test = (name, body) => told.push([name, body]);

test("units are given back once, though the leader that did it told nobody", async (t, tabs) => {
  const remaining = await tabs.run(t, async () => {
    const code = `
      // What has no answer is a declaration, and then the end of a start.
      let ended = 0;
      const { postMessage } = BroadcastChannel.prototype;
      BroadcastChannel.prototype.postMessage = function (message) {
        if (message.kind === "answer" && message.answer === null && ended++ === 1) hang();
        postMessage.call(this, message);
      };`;
    window.worker = await hanging("indexeddb:ends", "20/1h burst 20", code);
    const limiter = (await web.open("indexeddb:ends")).limiter("hanging");
    const permits = [await limiter.tryAcquire({ weight: 4 }), await limiter.tryAcquire({ weight: 5 })];
    await permits[0].cancel();
    return (await limiter.peek()).remaining;
  });
  // Given back twice, they were 18 or 19.
  assert.equal(remaining, 15);
});

test("units are given back once, though the first attempt failed", async (t, tabs) => {
  const seen = await tabs.run(t, async () => {
    const store = await web.open("indexeddb:twice", { clock: new web.ManualClock() });
    const { put } = IDBObjectStore.prototype;
    const seen = [];
    for (const policy of ["3/1h burst 3", "5000/1h", "100/1h fixed", "10/1h burst 10 + 5 concurrent"]) {
      const limiter = store.limiter(policy, policy);
      const [permit, other] = [await limiter.tryAcquire(), await limiter.tryAcquire()];
      const before = (await limiter.peek()).remaining;
      IDBObjectStore.prototype.put = () => {
        throw new DOMException("the disk is full", "QuotaExceededError");
      };
      const failed = await permit.cancel().catch(({ code }) => code);
      IDBObjectStore.prototype.put = put;
      await permit.cancel();
      seen.push([failed, (await limiter.peek()).remaining - before]);
      await other.settle(1);
    }
    return seen;
  });
  assert.deepEqual(seen, Array(4).fill(["store_failure", 1]));
});

test("a start is not remembered when its client has heard that it was ended, or has died", async (t, tabs) => {
  const seen = await tabs.run(t, async () => {
    const [store, other] = [await web.open("indexeddb:ended"), await web.open("indexeddb:ended")];
    const [limiter, others] = [store, other].map((store) => store.limiter("ended", "9/1h"));
    const own = await database("ended");
    const records = () => result(own.transaction("holds").objectStore("holds").getAll());
    for (let i = 0; i < 3; i++) await (await limiter.tryAcquire()).cancel();
    const [record] = await records();
    store.close();
    while ((await records()).length > 0) await others.peek();
    return [record.ended.length, (await others.peek()).remaining];
  });
  assert.deepEqual(seen, [1, 9]);
});

test("a waiter that hears late of its start gives it back, and starts when there is room again", async (t, tabs) => {
  const seen = await tabs.run(t, async () => {
    const { first, second, pause, advance, freeze, answers, thaw } = await freezing("thaws", "1/5s");
    await first.acquire();
    let started = 0;
    for (let i = 0; i < 3; i++) void second.acquire().then(() => started++);
    await second.peek();
    freeze();
    for (let i = 1; i <= 3; i++) {
      advance(5_000);
      await answers(i);
    }
    thaw();
    const seen = [];
    for (let i = 1; i <= 3; i++) {
      while (started < i) await pause();
      await second.peek();
      seen.push(started);
      advance(5_000);
    }
    return seen;
  });
  assert.deepEqual(seen, [1, 2, 3]);
});

test("a waiter that hears late of its start does not wait in vain", async (t, tabs) => {
  const isStarted = await tabs.run(t, async () => {
    const { first, second, advance, freeze, answers, thaw } = await freezing("vain", "1/1h");
    await first.acquire();
    advance(3_590_000);
    const waiting = second.acquire({ timeout: "30m" });
    await second.peek();
    freeze();
    advance(20_000);
    await answers(1);
    advance(20_000);
    thaw();
    // Its own start, which it gives back, keeps the limit closed for longer than it waits.
    return (await waiting) !== null;
  });
  assert.equal(isStarted, true);
});

for (const how of ["abort", "timeout"]) {
  test(`whoever leaves before it hears late of its start leaves nothing behind: ${how}`, async (t, tabs) => {
    const seen = await tabs.run(
      t,
      async (how) => {
        const { setTimeout: real } = window;
        // However busy this machine is.
        const usual = (call, ms, ...given) => real(call, ms === 3_000 ? 1e9 : ms, ...given);
        window.setTimeout = usual;
        const { first, second, advance, freeze, answers, thaw } = await freezing("leaves", "10/1h");
        await first.acquire({ weight: 10 });
        const [leaving, timeout] = [new AbortController(), 7_200_000];
        let leave = () => leaving.abort();
        window.setTimeout = (call, ms, ...given) => {
          if (ms !== timeout) return usual(call, ms, ...given);
          leave = call;
          return 0;
        };
        const options = how === "abort" ? { signal: leaving.signal } : { timeout };
        const waiting = second.acquire({ weight: 10, ...options }).catch(({ name, retryAfter }) => [name, retryAfter > 0]);
        await second.peek();
        window.setTimeout = usual;
        freeze();
        advance(3_600_100);
        await answers(1);
        advance(3_600_100);
        await first.tryAcquire({ weight: 5 });
        thaw(() => leave());
        const left = await waiting;
        await second.peek();
        return [left, (await first.tryAcquire()) !== null];
      },
      how,
    );
    assert.deepEqual(seen, [how === "abort" ? ["AbortError", false] : ["TimeoutError", true], true]);
  });
}

test("starts that were ended are not remembered for ever, though the leader changes", async (t, tabs) => {
  const lengths = await tabs.run(t, async () => {
    const stores = [await web.open("indexeddb:names"), await web.open("indexeddb:names")];
    const limiter = stores[1].limiter("names", "100000/1h");
    for (let i = 0; i < 3; i++) {
      const permits = await Promise.all(Array.from({ length: 100 }, () => limiter.tryAcquire()));
      await Promise.all(permits.map((permit) => permit.cancel()));
      await limiter.peek();
      await change("names");
      await limiter.peek();
    }
    for (let i = 0; i < 3; i++) await (await limiter.tryAcquire()).cancel();
    const records = await result((await database("names")).transaction("holds").objectStore("holds").getAll());
    return records.map(({ ended }) => ended.length);
  });
  assert.deepEqual(lengths, [1]);
});

for (const kind of ["call", "answer", "placed", "leads", "begins", "beat"]) {
  test(`a message that is lost stops nobody: ${kind}`, async (t, tabs) => {
    const seen = await tabs.run(
      t,
      async (kind) => {
        const open = async () => (await web.open("indexeddb:lost")).limiter("lost", "1 concurrent");
        const [first, second] = [await open(), await open()];
        for (const limiter of [first, second]) await limiter.peek();
        const held = await first.acquire();
        const { postMessage } = BroadcastChannel.prototype;
        let lost = 0;
        BroadcastChannel.prototype.postMessage = function (message) {
          if (message.kind === kind && lost++ === 0) return;
          postMessage.call(this, message);
        };
        // One of the two is not the leader.
        const waiting = [first, second].map(async (limiter) => (await limiter.acquire()).complete());
        await second.peek();
        await held.complete();
        if (["leads", "begins"].includes(kind)) await navigator.locks.request("workglow-limit lead lost", { steal: true }, () => {});
        await Promise.all(waiting);
        return [lost > 0 || kind === "beat", (await first.peek()).remaining];
      },
      kind,
    );
    assert.deepEqual(seen, [true, 1]);
  });
}

test("a message that is lost stops nobody, however many wait before it", async (t, tabs) => {
  const remaining = await tabs.run(t, async () => {
    const open = async () => (await web.open("indexeddb:behind")).limiter("behind", "1 concurrent");
    const leader = await open();
    const held = await leader.acquire();
    const client = await open();
    await client.peek();
    // It beats more often. (Not so often that the leader seems to be silent.)
    const { setTimeout: usual } = window;
    window.setTimeout = (call, ms) => usual(call, ms === 250 ? 50 : ms);
    const leaving = new AbortController();
    const waiting = Array.from({ length: 2_500 }, () => client.acquire({ signal: leaving.signal }).catch(() => {}));
    await client.peek();
    const { postMessage } = BroadcastChannel.prototype;
    BroadcastChannel.prototype.postMessage = function (message) {
      if (message.kind !== "call") return postMessage.call(this, message);
      BroadcastChannel.prototype.postMessage = postMessage;
    };
    const { remaining } = await client.peek();
    leaving.abort();
    await held.complete();
    await Promise.all(waiting);
    return remaining;
  });
  assert.equal(remaining, 0);
});

test("a message that is lost twice stops nobody, while many others come and go", async (t, tabs) => {
  const rounds = await tabs.run(t, async () => {
    const open = async () => (await web.open("indexeddb:passing")).limiter("passing", "1 concurrent");
    const held = await (await open()).acquire();
    const client = await open();
    await client.peek();
    const { setTimeout: usual } = window;
    window.setTimeout = (call, ms) => usual(call, ms === 250 ? 50 : ms);
    const [waiting, leaving] = [[], []];
    const wait = () => {
      const signal = new AbortController();
      leaving.push(signal);
      waiting.push(client.acquire({ signal: signal.signal }).catch(() => {}));
    };
    for (let i = 0; i < 2_500; i++) wait();
    const { postMessage } = BroadcastChannel.prototype;
    let [lost, rounds] = [0, 0];
    const stuck = Promise.withResolvers();
    BroadcastChannel.prototype.postMessage = function (message) {
      if (message.kind === "call" && message.call.op === "peek" && lost++ < 2) return;
      postMessage.call(this, message);
      if (message.kind !== "beat" || message.open === undefined) return;
      // As many leave as are asked for at a time.
      if (++rounds > 20) return stuck.reject(new Error("it is not asked for again"));
      for (const signal of leaving.splice(0, 1_000)) signal.abort();
      for (let i = 0; i < 1_000; i++) wait();
    };
    await Promise.race([client.peek(), stuck.promise]);
    BroadcastChannel.prototype.postMessage = postMessage;
    for (const signal of leaving) signal.abort();
    await held.complete();
    await Promise.all(waiting);
    return rounds;
  });
  assert.ok(rounds <= 20, `${rounds} rounds`);
});

test("whoever has left when it had started does not wait at the next leader", async (t, tabs) => {
  const isAdmitted = await tabs.run(t, async () => {
    const code = `
      const { postMessage } = BroadcastChannel.prototype;
      BroadcastChannel.prototype.postMessage = function (message) {
        if (message.kind === "answer" && message.start) hang();
        postMessage.call(this, message);
      };`;
    window.worker = await hanging("indexeddb:ghost", "3/1h", code);
    const limiter = (await web.open("indexeddb:ghost")).limiter("hanging");
    await limiter.canProceed();
    const turns = async () => {
      for (let i = 0; i < 20; i++) await null;
    };
    // While the leader writes this, the others come: it answers them together.
    void limiter.pause(1, { key: "other" });
    await turns();
    const leaving = new AbortController();
    void limiter.acquire({ weight: 2, signal: leaving.signal }).catch(() => {});
    await turns();
    leaving.abort();
    // (What is asked in one go with them is written, too. A look is not.)
    await limiter.peek();
    return (await limiter.tryAcquire()) !== null;
  });
  assert.equal(isAdmitted, true);
});

test("a first call with a short timeout starts if there is room", async (t, tabs) => {
  const seen = await tabs.run(t, async () => {
    const store = await web.open("indexeddb:timeout");
    await store.limiter("another", "1/1h").peek();
    // However busy this machine is.
    const { setTimeout: usual } = window;
    window.setTimeout = (call, ms, ...given) => usual(call, ms === 3_000 ? 1e9 : ms, ...given);
    const ask = (policy) => store.limiter("free", policy).acquire({ timeout: 0 });
    const permit = await ask("1/1h");
    const { code, retryAfter } = await ask("1/1h").catch((error) => error);
    return [permit !== null, code, retryAfter > 0];
  });
  assert.deepEqual(seen, [true, "acquire_timeout", true]);
});

test("what a scheduled job returns stands, though the store cannot be told of its end", async (t, tabs) => {
  const seen = await tabs.run(t, async () => {
    const slots = (await web.open("indexeddb:jobs")).limiter("jobs", "1 concurrent");
    const { put } = IDBObjectStore.prototype;
    const failing = async (result) => {
      IDBObjectStore.prototype.put = () => {
        throw new DOMException("the disk is full", "QuotaExceededError");
      };
      return result;
    };
    const told = await slots.schedule(() => failing("done"));
    IDBObjectStore.prototype.put = put;
    const thrown = await slots.schedule(() => failing(Promise.reject(new Error("failed")))).catch(({ message }) => message);
    IDBObjectStore.prototype.put = put;
    await (await slots.acquire()).complete();
    return [told, thrown, (await slots.peek()).remaining];
  });
  assert.deepEqual(seen, ["done", "failed", 1]);
});

test("a permit can be completed when its store was closed, which has given its units back", async (t, tabs) => {
  const seen = await tabs.run(t, async () => {
    const [store, other] = [await web.open("indexeddb:closed"), await web.open("indexeddb:closed")];
    const permit = await store.limiter("closed", "1 concurrent").acquire();
    store.close();
    await permit.complete();
    const started = await other.limiter("closed").acquire();
    return [
      await store
        .limiter("closed")
        .peek()
        .catch(({ code }) => code),
      started !== null,
    ];
  });
  assert.deepEqual(seen, ["store_closed", true]);
});
