// Snapshots of a store, and its metrics: as text, and through OpenTelemetry's SDK.

import assert from "node:assert/strict";
import { readdirSync } from "node:fs";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { metrics as global } from "@opentelemetry/api";
import { AggregationTemporality, InMemoryMetricExporter, MeterProvider, PeriodicExportingMetricReader } from "@opentelemetry/sdk-metrics";
import { InvalidArgument, ManualClock, metricsContentType, Store, StoreError, SyncUnsupported } from "workglow-limit";
import { instrument } from "workglow-limit/opentelemetry";
import { directory, patiently } from "./helpers.mjs";
import { startPostgres } from "./postgres.mjs";
import { startRedis } from "./redis.mjs";

let server;
let postgres;
before(async () => ([server, postgres] = await Promise.all([startRedis(), startPostgres()])));
after(() => Promise.all([server.stop(), postgres.stop()]));

const urls = (t) => ["memory:", `sqlite:${join(directory(t), "limits.db")}`];

/** Permits that are collected complete. */
const kept = [];

/** Makes a store of two limits, one of them nearly full. */
async function used(url) {
  const store = new Store(url, { clock: new ManualClock() });
  const rate = store.limiter("rate", "10/1m");
  for (let i = 0; i < 9; i++) await rate.tryAcquireAsync();
  await rate.tryAcquireAsync({ weight: 2 });
  kept.push(await store.limiter("jobs", "2 concurrent").tryAcquireAsync());
  return store;
}

test("a snapshot has all fields", async (t) => {
  for (const url of urls(t)) {
    const store = await used(url);
    const limiter = store.limiter("rate");
    await limiter.open();
    await store.override("rate", "20/1m");
    // A synchronous one would give a file only 40 ms.
    const first = url === "memory:" ? store.snapshot() : await store.snapshotAsync();
    for (const seen of [first, await store.snapshotAsync({ keys: 0 })]) {
      assert.ok(seen.at instanceof Date && Math.abs(seen.at - Date.now()) < 3_600_000);
      assert.deepEqual([seen.store, seen.failures], [url, 0]);
      const [jobs, rate] = seen.limits;
      assert.deepEqual([jobs.name, jobs.kind, jobs.override, jobs.grants], ["jobs", "concurrency", null, null]);
      assert.deepEqual(jobs.usage, [{ limit: 2, used: 1, window: null }]);
      assert.deepEqual([rate.policy, rate.declared, rate.override], ["20/1m", "10/1m", "20/1m"]);
      assert.deepEqual(rate.usage[0], { limit: 20, used: 9, window: 60_000 });
      assert.deepEqual(rate.stats, await patiently(() => limiter.stats()));
      assert.equal(rate.waits.counts.length, rate.waits.bounds.length + 1);
      assert.deepEqual(rate.waits.bounds.slice(0, 4), [10, 100, 500, 1000]);
      assert.equal(rate.near, false);
    }
    await store.lift("rate");
    assert.equal((await store.snapshotAsync()).limits[1].near, true);
  }
});

test("metrics are text in two formats", async (t) => {
  for (const url of urls(t)) {
    const store = await used(url);
    const text = url === "memory:" ? store.metrics() : await store.metricsAsync();
    assert.ok(text.endsWith("# EOF\n"));
    assert.match(text, /^workglow_limit_units_used\{limit="rate",window="60"\} 9$/m);
    assert.match(text, /^workglow_limit_denied_total\{limit="rate"\} 1$/m);
    const older = await store.metricsAsync({ format: "prometheus", keys: 3, showKeys: true });
    assert.match(older, /^# TYPE workglow_limit_denied_total counter$/m);
    assert.ok(!older.includes("# EOF") && (await store.metricsAsync({ format: undefined, keys: undefined })).includes("# EOF"));
  }
  assert.equal(metricsContentType(), "application/openmetrics-text; version=1.0.0; charset=utf-8");
  assert.equal(metricsContentType("prometheus"), "text/plain; version=0.0.4; charset=utf-8");
});

test("a snapshot of a server is taken on the thread pool only", async () => {
  for (const url of [server.url, postgres.url]) {
    const store = new Store(url, { timeout: "20s" });
    for (const name of ["metrics", "snapshot"]) {
      assert.throws(
        () => store[name](),
        (error) => {
          assert.ok(error instanceof SyncUnsupported, String(error));
          assert.match(error.message, new RegExp(`^${name}\\(\\) would have to ask a server, .* await ${name}Async\\(\\)$`));
          return true;
        },
      );
    }
    await store.limiter("rate", "10/1m").tryAcquireAsync();
    assert.match(await store.metricsAsync(), /^workglow_limit_admitted_total\{limit="rate"\} 1$/m);
    assert.equal((await store.snapshotAsync()).limits[0].stats.admitted, 1);
  }
});

test("a server that does not reply does not block the event loop", async () => {
  const store = new Store(`${server.url}?db=7`, { timeout: "20s" });
  await store.limiter("rate", "10/1m").tryAcquireAsync();
  process.kill(server.pid, "SIGSTOP");
  try {
    const text = new Store(`${server.url}?db=7`, { timeout: "20s" }).metricsAsync();
    const turns = (async () => {
      for (let i = 0; i < 20; i++) await new Promise((resolve) => setTimeout(resolve, 1));
      return "turns";
    })();
    assert.equal(await Promise.race([text, turns]), "turns");
    process.kill(server.pid, "SIGCONT");
    assert.match(await text, /limit="rate"/);
  } finally {
    process.kill(server.pid, "SIGCONT");
  }
});

test("options are checked, and nothing is created", async (t) => {
  const dir = directory(t);
  const store = new Store(`sqlite:${join(dir, "limits.db")}`);
  const about = (parameter) => (error) =>
    error instanceof InvalidArgument && new RegExp(`^${parameter} is .+: expected `).test(error.message);
  const wrong = [
    ["keys", [-1, 1001, 1.5, NaN, Infinity, 2 ** 70, "5", null, true, 5n]],
    ["showKeys", [0, 1, "yes", null]],
    ["format", ["json", "", null, 1]],
    ["options", [null, 5, []]],
  ];
  for (const [parameter, values] of wrong) {
    for (const value of values) {
      const options = parameter === "options" ? value : { [parameter]: value };
      assert.throws(() => store.metrics(options), about(parameter));
      await assert.rejects(store.metricsAsync(options), about(parameter));
      assert.throws(() => store.snapshot(options), about(parameter === "format" ? "options" : parameter));
      await assert.rejects(store.snapshotAsync(options), about(parameter === "format" ? "options" : parameter));
      assert.throws(() => instrument(store, options), about(parameter === "format" ? "options" : parameter));
    }
  }
  for (const format of ["json", null]) assert.throws(() => metricsContentType(format), about("format"));
  for (const meterProvider of [null, 5, {}]) assert.throws(() => instrument(store, { meterProvider }), about("meterProvider"));
  for (const no of [undefined, {}, "memory:"]) assert.throws(() => instrument(no), about("store"));
  assert.deepEqual(readdirSync(dir), []);
});

/** Returns the exported values of one collection, by name and attributes. */
function collector() {
  const exporter = new InMemoryMetricExporter(AggregationTemporality.CUMULATIVE);
  const reader = new PeriodicExportingMetricReader({ exporter, exportIntervalMillis: 3_600_000 });
  const meterProvider = new MeterProvider({ readers: [reader] });
  const collect = async () => {
    exporter.reset();
    await reader.forceFlush();
    const metrics = exporter.getMetrics().flatMap(({ scopeMetrics }) => scopeMetrics.flatMap((scope) => scope.metrics));
    return Object.fromEntries(
      metrics.map(({ descriptor, dataPoints }) => [
        descriptor.name.replace("workglow_limit.", ""),
        { unit: descriptor.unit, points: dataPoints.map(({ value, attributes }) => ({ value, ...attributes })) },
      ]),
    );
  };
  return { meterProvider, collect };
}

test("OpenTelemetry gets the metrics, with one snapshot per collection", async (t) => {
  for (const url of urls(t)) {
    const store = await used(url);
    const { meterProvider, collect } = collector();
    const end = instrument(store, { meterProvider });
    let looks = 0;
    const { snapshotAsync } = store;
    store.snapshotAsync = (options) => (looks++, snapshotAsync.call(store, options));
    const seen = await collect();
    assert.deepEqual(seen["units.used"], {
      unit: "{unit}",
      points: [
        { value: 1, limit: "jobs" },
        { value: 9, limit: "rate", window: "60" },
      ],
    });
    assert.deepEqual(seen["units.allowed"].points[1], { value: 10, limit: "rate", window: "60" });
    assert.deepEqual(seen["starts.denied"].points[1], { value: 1, limit: "rate" });
    assert.deepEqual(
      seen.near.points.map(({ value }) => value),
      [0, 1],
    );
    assert.deepEqual(seen.leases.points, [{ value: 1, limit: "jobs" }]);
    assert.deepEqual(seen["ledger.lag"].unit, "s");
    assert.deepEqual(seen["collection.errors"].points, [{ value: 0 }]);
    await collect();
    assert.equal(looks, 2);
    end();
    await collect();
    assert.equal(looks, 2);
    await meterProvider.shutdown();
  }
});

test("a failing store breaks no collection, and failures are counted", async (t) => {
  const store = new Store(`sqlite:${join(directory(t), "no/limits.db")}`);
  await assert.rejects(store.metricsAsync(), StoreError);
  const { meterProvider, collect } = collector();
  meterProvider.getMeter("another").createCounter("workglow_limit.others").add(1);
  instrument(store, { meterProvider, keys: 10, showKeys: true });
  for (const count of [1, 2]) {
    const seen = await collect();
    assert.deepEqual(seen.others.points, [{ value: 1 }]);
    assert.deepEqual(seen["collection.errors"].points, [{ value: count }]);
    assert.deepEqual(seen["units.used"]?.points ?? [], []);
  }
  await meterProvider.shutdown();
});

test("the default provider is the global one", async () => {
  const { meterProvider, collect } = collector();
  global.setGlobalMeterProvider(meterProvider);
  instrument(await used("memory:"));
  assert.equal((await collect()).near.points.length, 2);
  global.disable();
  await meterProvider.shutdown();
});
