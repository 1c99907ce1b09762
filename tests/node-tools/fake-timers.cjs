// Tests under faked timers, for any test runner.

const assert = require("node:assert/strict");

/** `fake` fakes the timers, and `advance` advances them by ms. */
module.exports = ({ test, fake, real, advance, package_, limitFetch }) => {
  const { ConcurrencyLimiter, ManualClock, RateLimiter, Store, TimeoutError } = package_;
  const rate = (max, seconds, options) =>
    new RateLimiter(new Store("memory:", options), "api", { maxExecutions: max, windowSizeInSeconds: seconds });

  const faked = (name, body) =>
    test(name, async () => {
      fake();
      try {
        assert.notEqual(globalThis.setTimeout, real, "the timers are not faked");
        await body();
      } finally {
        fake.end();
      }
    });

  faked("a waiter starts in real time", async () => {
    const limiter = rate(2, 0.05);
    for (let i = 0; i < 6; i++) await limiter.acquire();
    const short = rate(1, 0.002); // Timers are too coarse for it.
    for (let i = 0; i < 6; i++) await short.acquire();
    assert.equal(limiter.stats().admitted + short.stats().admitted, 12);
  });

  faked("a timeout ends in real time", async () => {
    const limiter = new ConcurrencyLimiter(1);
    const held = limiter.tryAcquire();
    await assert.rejects(limiter.acquire({ timeout: 20 }), (error) => error instanceof TimeoutError);
    const waiting = limiter.acquire();
    held.complete();
    await waiting;
  });

  faked("faked time frees no units, and a manual clock does", async () => {
    const clock = new ManualClock();
    for (const limiter of [rate(1, 3600), rate(1, 3600, { clock })]) {
      limiter.tryAcquire();
      let isOver = false;
      const waiting = limiter
        .acquire()
        .finally(() => (isOver = true))
        .catch((error) => error.name);
      await advance(7_200_000);
      assert.equal(isOver, false);
      clock.advance("2h");
      assert.equal(isOver, false);
      if (limiter.peek().retryAfter > 0) {
        void limiter.stop();
        assert.equal(await waiting, "Stopped");
      } else {
        await waiting;
      }
      assert.equal(isOver, true);
    }
  });

  faked("hooks are called, and a client retries", async () => {
    const limiter = new ConcurrencyLimiter(1);
    const event = new Promise((resolve) => limiter.on("throttled", resolve));
    const held = limiter.tryAcquire();
    limiter.tryAcquire();
    assert.equal((await event).limit, limiter.name);
    held.complete();
    let refusals = 2;
    const send = limitFetch(limiter, {
      fetch: async () => new Response("body", { status: refusals-- > 0 ? 503 : 200 }),
      retries: 2,
      heed: { default: 5 },
    });
    assert.equal((await send("http://localhost/")).status, 200);
  });
};
