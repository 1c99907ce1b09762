// Instances of the module of `indexeddb:`, of which a browser has room for few: see `faults.mjs`.
import assert from "node:assert/strict";

/** The tests: each is called with its context and the browser's tabs. */
export const instances = [];
const test = (name, body) => instances.push([name, body]);

test("however often a program leads, and opens stores, it has few instances of the module", async (t, tabs) => {
  const [leading, opening] = await tabs.run(t, async () => {
    const { instantiate } = WebAssembly;
    let made = 0;
    WebAssembly.instantiate = (...given) => {
      made++;
      return instantiate(...given);
    };
    const store = await web.open("indexeddb:often");
    const limiter = store.limiter("often", "100/1h + 2 concurrent");
    for (let i = 0; i < 30; i++) {
      await (await limiter.tryAcquire()).complete();
      await change("often");
    }
    if ((await limiter.peek()).remaining !== 2) throw new Error("a leader has forgotten something");
    store.close();
    const leading = made;
    for (let i = 0; i < 30; i++) {
      const store = await web.open(`indexeddb:opened ${i}`);
      // What another store had is not this one's.
      if (!(await store.limiter("often", "1/1h").tryAcquire())) throw new Error("it was used");
      store.close();
    }
    return [leading, made - leading];
  });
  // The store's own one and the leader's; and perhaps others', while the one before ends.
  assert.ok(leading <= 4 && opening <= 4, `${leading} for 30 leaders, ${opening} for 30 stores`);
});

test("an instance that has failed is not used again", async (t, tabs) => {
  const seen = await tabs.run(t, async () => {
    const { instantiate } = WebAssembly;
    const failed = new Set();
    let [fails, used] = [false, false];
    WebAssembly.instantiate = async (...given) => {
      const { exports } = await instantiate(...given);
      const instance = {};
      const wgl_decide = (...given) => {
        used ||= failed.has(instance);
        if (!fails) return exports.wgl_decide(...given);
        fails = false;
        failed.add(instance);
        throw new WebAssembly.RuntimeError("unreachable");
      };
      return Object.assign(instance, { exports: { ...exports, wgl_decide } });
    };
    const limiter = (await web.open("indexeddb:poor")).limiter("poor", "100/1h");
    const codes = [];
    for (let i = 0; i < 5; i++) {
      await limiter.tryAcquire();
      fails = true;
      codes.push(await limiter.tryAcquire().catch(({ code }) => code));
      await limiter.tryAcquire();
    }
    return [new Set(codes).size, codes[0], failed.size, used, (await limiter.peek()).remaining];
  });
  assert.deepEqual(seen, [1, "store_failure", 5, false, 90]);
});
