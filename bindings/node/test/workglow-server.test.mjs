// Workglow's real JobQueueServer, in its releases with and without `complete`, with limiters of this package.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import * as current from "@workglow/job-queue";
import * as older from "workglow-job-queue-0.2.31";
import * as package_ from "workglow-limit";
import { WorkglowRateLimiterStorage } from "workglow-limit/workglow";
import { manual, settle, together } from "./helpers.mjs";
import { startPostgres } from "./postgres.mjs";
import { startRedis } from "./redis.mjs";

const { CompositeLimiter, ConcurrencyLimiter, Store, toWorkglow } = package_;

// Workglow expects it, and Node has it from version 22.
Promise.withResolvers ??= () => {
  let resolve, reject;
  const promise = new Promise((...both) => ([resolve, reject] = both));
  return { promise, resolve, reject };
};

/** Makes a server that runs `work(input)` for each job and stops at the end of the test, and a function that sends it a job. */
async function serve(t, { JobQueueServer, JobQueueClient, Job, InMemoryQueueStorage }, limiter, work, workerCount = 3) {
  class Work extends Job {
    execute = (input) => work(input);
  }
  const storage = new InMemoryQueueStorage("mail");
  const server = new JobQueueServer(Work, { storage, queueName: "mail", limiter, workerCount, stopTimeoutMs: 1_000 });
  const client = new JobQueueClient({ storage, queueName: "mail" });
  client.attach(server);
  await server.start();
  t.after(() => server.stop());
  const send = (input, options) => (client.send ?? client.submit).call(client, input, options);
  return { server, send };
}

/** Waits until a condition holds. If it never does, the test's timeout reports it. */
async function until(t, isSo) {
  for (; !isSo(); await settle()) t.signal.throwIfAborted();
}

const timeout = 60_000;

const servers = {};
before(async () => Object.assign(servers, { redis: await startRedis(), postgres: await startPostgres() }));
after(() => Promise.all(Object.values(servers).map((server) => server.stop())));

const sendAll = (send, count) => Promise.all(Array.from({ length: count }, (_, i) => send({ i })));

for (const [version, workglow] of Object.entries({ "0.2.37": current, "0.2.31": older })) {
  test(`${version}: concurrent jobs are limited, and no slot is lost`, { timeout }, async (t) => {
    const slots = new ConcurrencyLimiter(2);
    let running = 0;
    let most = 0;
    let done = 0;
    const meet = together(2);
    const { send } = await serve(t, workglow, toWorkglow(slots), async ({ i }) => {
      most = Math.max(most, ++running);
      await meet();
      await settle();
      running--;
      done++;
      if (i % 4 === 1) throw new workglow.PermanentJobError("it fails, which ends it too");
      return {};
    });
    await sendAll(send, 12);
    await until(t, () => done === 12 && slots.peek().remaining === 2);
    assert.equal(most, 2);
  });

  for (const kind of ["redis", "postgres"]) {
    test(`${version}: a limit on ${kind} holds`, { timeout }, async (t) => {
      const store = new Store(servers[kind].url, { timeout: "20s" });
      const slots = new ConcurrencyLimiter(2, { store, name: `slots of ${version}` });
      const limiter = new CompositeLimiter([slots, store.limiter(`rate of ${version}`, "5/1h")]);
      let running = 0;
      let most = 0;
      let done = 0;
      const { send } = await serve(t, workglow, toWorkglow(limiter), async () => {
        most = Math.max(most, ++running);
        await settle();
        running--;
        done++;
        return {};
      });
      await sendAll(send, 8);
      await until(t, () => done === 5 && running === 0);
      assert.equal(most <= 2, true);
      assert.equal((await limiter.peekAsync()).deniedBy, `rate of ${version}`);
    });
  }

  for (const wait of [undefined, "25s"]) {
    test(`${version}: a rate holds, ${wait ? "waiting" : "polling"}`, { timeout }, async (t) => {
      const { limiter, clock } = manual(package_, 3, 20);
      let started = 0;
      const { send } = await serve(t, workglow, toWorkglow(limiter, { wait }), async () => ({ started: started++ }));
      await sendAll(send, 8);
      for (const then of [3, 6, 8]) {
        await until(t, () => started === then);
        await settle();
        assert.equal(started, then);
        clock.advance("21s");
      }
      if (wait) assert.equal(limiter.stats().denied, 0);
    });
  }

  test(`${version}: a job that never ran frees its place`, { timeout }, async (t) => {
    const { limiter } = manual(package_, 2, 60);
    const ran = [];
    const { send, server } = await serve(t, workglow, toWorkglow(limiter), async ({ i }) => (ran.push(i), {}));
    const past = { timeoutSeconds: -1, deadlineAt: new Date(0) };
    await assert.rejects((await send({ i: 0 }, past)).waitFor());
    await (await send({ i: 1 })).waitFor();
    await until(t, () => server.getStats().failedJobs === 1 && limiter.stats().cancelled === 1);
    assert.deepEqual(ran, [1]);
    assert.equal(limiter.peek().remaining, 1);
  });

  test(`${version}: a stopped worker frees the place that it waited for`, { timeout }, async (t) => {
    const { limiter, clock } = manual(package_, 1, 20);
    const held = limiter.tryAcquire();
    const { send, server } = await serve(t, workglow, toWorkglow(limiter, { wait: "25s" }), async () => ({}), 1);
    await send({ i: 0 });
    await until(t, () => limiter.peek().retryAfter > 20_000);
    const stopped = server.stop();
    clock.advance("21s");
    await stopped;
    held.complete();
    assert.equal(server.getStats().completedJobs, 0);
    assert.equal(limiter.stats().cancelled, 1);
    assert.equal(limiter.peek().remaining, 1);
  });

  test(`${version}: Workglow's RateLimiter uses our storage, and a job can pause it`, { timeout }, async (t) => {
    const { store, limiter, clock } = manual(package_, 2, 60, "mail");
    const backoff = { initialBackoffDelay: 1, maxBackoffDelay: 2 };
    const storage = new WorkglowRateLimiterStorage(store);
    const theirs = new workglow.RateLimiter(storage, "mail", { maxExecutions: 2, windowSizeInSeconds: 60, ...backoff });
    const attempts = [];
    const { send } = await serve(t, workglow, theirs, async ({ i }) => {
      attempts.push(i);
      if (attempts.length > 1) return {};
      await theirs.setNextAvailableTime(new Date(Date.now() + 600_000));
      throw new workglow.RetryableJobError("429", new Date());
    });
    const handle = await send({ i: 0 });
    await until(t, () => attempts.length === 1 && limiter.stats().denied > 0);
    clock.advance("61s");
    await settle();
    assert.deepEqual(attempts, [0], "the pause ended with the window");
    clock.advance("10m");
    await handle.waitFor();
    assert.deepEqual(attempts, [0, 0]);
  });
}
