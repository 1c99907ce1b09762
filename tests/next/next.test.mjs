// Builds the app in this folder with Next, and serves it in three processes that share its limits, one of them from the copy that
// `output: "standalone"` makes. BUNDLER=webpack builds it with webpack instead of Turbopack.

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { existsSync, mkdirSync, renameSync, rmSync } from "node:fs";
import { get } from "node:http";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { after, before, describe, test } from "node:test";
import { Store } from "workglow-limit";
import { directory, mostInAnyWindow } from "../../bindings/node/test/helpers.mjs";
import { freePort } from "../../bindings/node/test/redis.mjs";

const here = import.meta.dirname;
const next = join(here, "node_modules/next/dist/bin/next");
const elsewhere = join(here, "../../target/next");
const env = { ...process.env, NEXT_TELEMETRY_DISABLED: "1", NO_COLOR: "1" };
delete env.NODE_ENV;
const LIMIT = 10;
const WINDOW = 500_000_000n; // ns

/** Runs Node to its end, which must succeed. */
async function run(args, more) {
  const child = spawn(process.execPath, args, { cwd: here, env: { ...env, ...more }, stdio: ["ignore", "pipe", "pipe"] });
  let said = "";
  for (const stream of [child.stdout, child.stderr]) stream.on("data", (data) => (said += data));
  const [code] = await once(child, "close");
  assert.equal(code, 0, said);
  return said;
}

/** Starts a Next server on a free port, in a process of its own. */
async function serve(t, args, more) {
  const child = spawn(process.execPath, args, { cwd: here, env: { ...env, ...more }, stdio: ["ignore", "pipe", "inherit"] });
  const exited = once(child, "exit");
  t.after(async () => {
    child.kill("SIGKILL");
    await exited;
  });
  let url;
  for await (const line of createInterface(child.stdout)) {
    url ??= /Local: +(http:\S+)/.exec(line)?.[1];
    if (line.includes("Ready")) break;
  }
  child.stdout.resume();
  assert.ok(url, "it did not start");
  return url;
}

/** Does the same where the server does not accept port 0. Another process may take the free port first. */
async function serveOnFreePort(t, args, more) {
  for (let left = 4; ; left--) {
    try {
      return await serve(t, args, { ...more, PORT: String(await freePort()) });
    } catch (error) {
      if (left === 0) throw error;
    }
  }
}

async function ask(url, headers = {}, method = "GET", body) {
  const response = await fetch(url, { headers, method, body, redirect: "manual" });
  return { status: response.status, headers: response.headers, body: await response.text() };
}

const statuses = async (...asked) => {
  const found = [];
  for (const one of asked) found.push((await ask(...one)).status);
  return found;
};

/** Waits for what a server does after its client has the response. If it never happens, the test's timeout reports it. */
async function until(isSo) {
  while (!(await isSo())) await new Promise((resolve) => setTimeout(resolve, 20));
}

describe("next build and next start", { timeout: 240_000 }, () => {
  let store, builtWith, a, b, copied;
  const used = async (name, key = "") => {
    const { limit, remaining } = await store.limiter(name).peekAsync({ key });
    return limit - remaining;
  };

  const ends = [];
  const suite = { after: (end) => ends.unshift(end) };
  after(async () => {
    for (const end of ends) await end();
  });

  before(async () => {
    const STORE = `sqlite:${directory(suite)}/limits.db`;
    store = new Store(STORE, { timeout: "60s" });
    await run([next, "build", ...(process.env.BUNDLER ? [`--${process.env.BUNDLER}`] : [])], { STORE });
    builtWith = await store.names();
    // A folder without other packages.
    mkdirSync(join(elsewhere, ".."), { recursive: true });
    rmSync(elsewhere, { recursive: true, force: true });
    renameSync(join(here, ".next/standalone"), elsewhere);
    suite.after(() => rmSync(elsewhere, { recursive: true, force: true }));
    const start = [next, "start", "-p", "0", "-H", "127.0.0.1"];
    [a, b, copied] = await Promise.all([
      serve(suite, start, { STORE }),
      serve(suite, start, { STORE }),
      serveOnFreePort(suite, [join(elsewhere, "server.js")], { STORE, HOSTNAME: "127.0.0.1" }),
    ]);
  });

  test("three processes never admit more than the limit", async () => {
    const starts = [];
    const [answers, pids] = [new Set(), new Set()];
    let refused = 0;
    const hammer = async (url) => {
      while (starts.length < 4 * LIMIT || pids.size < 3 || refused === 0) {
        const { status, body } = await ask(`${url}/shared`);
        if (status === 200) {
          assert.ok(!answers.has(body), "a response was cached");
          answers.add(body);
          const [pid, from, to] = body.split(" ");
          starts.push([BigInt(from), BigInt(to)]);
          pids.add(pid);
        } else {
          assert.equal(status, 429);
          refused++;
          await new Promise((resolve) => setTimeout(resolve, 20));
        }
      }
    };
    await Promise.all(Array(5).fill([a, b, copied]).flat().map(hammer));
    assert.ok(mostInAnyWindow(starts, WINDOW) <= LIMIT);
  });

  test("each process refuses with the right headers, and headers can be keys", async () => {
    const asked = (key) => [{ "X-API-Key": key, "Content-Type": "application/json" }, "POST", '{"n":1}'];
    const first = await ask(`${a}/address`, ...asked("k"));
    assert.deepEqual([first.status, first.body, first.headers.get("retry-after")], [200, '{"n":1}', null]);
    assert.equal(first.headers.get("ratelimit-policy"), '"header";q=2;w=3600');
    assert.match(first.headers.get("ratelimit"), /^"header";r=1;t=3600$/);
    assert.equal((await ask(`${b}/address`, ...asked("k"))).status, 200);
    for (const url of [a, b]) {
      const { status, headers, body } = await ask(`${url}/address`, ...asked("k"));
      assert.equal(status, 429);
      assert.equal(headers.get("content-type"), "application/problem+json");
      const after = Number(headers.get("retry-after"));
      assert.ok(Number.isInteger(after) && after >= 1 && after <= 3600);
      assert.equal(headers.get("ratelimit"), `"header";r=0;t=${after}`);
      assert.equal(headers.get("ratelimit-policy"), '"header";q=2;w=3600');
      assert.deepEqual(JSON.parse(body), {
        type: "https://iana.org/assignments/http-problem-types#quota-exceeded",
        title: "Request cannot be satisfied as assigned quota has been exceeded",
        status: 429,
        "violated-policies": ["header"],
      });
    }
    assert.equal((await ask(`${b}/address`, ...asked("another"))).status, 200);
  });

  test("an address comes from a trusted proxy, or else is that of the peer", async () => {
    const from = (url, address) => [`${url}/address`, address && { "X-Forwarded-For": address }];
    assert.deepEqual(await statuses(from(a), from(b), from(a)), [200, 200, 429]);
    assert.equal(await used("address", "127.0.0.1"), 2);
    assert.deepEqual(await statuses(from(a, "192.0.2.1"), from(b, "6.6.6.6, 192.0.2.1, 10.0.0.9"), from(a, "192.0.2.1")), [200, 200, 429]);
    assert.deepEqual(await statuses(from(a, "2001:db8::1"), from(b, "2001:db8::2"), from(b, "2001:db8::3")), [200, 200, 429]);
  });

  test("a handler that reads nothing of its request is limited, and not cached at build time", async () => {
    assert.ok(existsSync(join(here, ".next/server/app/proxied.body")), "other handlers are cached at build time");
    assert.deepEqual(builtWith, [], "the build took a permit");
    assert.deepEqual(await statuses([`${a}/plain`], [`${b}/plain`], [`${copied}/plain`]), [200, 429, 429]);
  });

  test("a request needs all of several limits, and a refusal takes units of none", async () => {
    const first = await ask(`${a}/several?q=2`);
    assert.deepEqual([first.status, first.body], [200, '{"q":"2"}']);
    assert.equal(first.headers.get("ratelimit-policy"), '"wide";q=9;w=3600, "narrow";q=3;w=3600');
    const refused = await ask(`${b}/several?q=2`);
    assert.equal(refused.status, 429);
    assert.deepEqual(JSON.parse(refused.body)["violated-policies"], ["narrow"]);
    assert.deepEqual([await used("wide"), await used("narrow")], [1, 2]);
    assert.equal((await ask(`${b}/several?q=1`)).status, 200);
  });

  test("params reach the handler, and keys come from the request", async () => {
    const first = await ask(`${a}/of/one`);
    assert.deepEqual([first.status, JSON.parse(first.body)], [200, { tenant: "one" }]);
    assert.deepEqual(await statuses([`${b}/of/one`], [`${b}/of/two`]), [429, 200]);
  });

  test("a stream holds its permit until its last byte, or its client disconnects", async () => {
    const response = await fetch(`${a}/stream`);
    const reader = response.body.getReader();
    assert.equal(new TextDecoder().decode((await reader.read()).value), "first ");
    const refused = await ask(`${b}/stream`);
    assert.equal(refused.status, 429);
    assert.equal(refused.headers.get("ratelimit-policy"), '"running";q=1;qu="concurrent-requests"');
    assert.equal((await ask(`${a}/stream`, {}, "POST")).status, 204);
    assert.equal(new TextDecoder().decode((await reader.read()).value), "last");
    assert.ok((await reader.read()).done);
    await until(async () => (await used("running")) === 0);

    await new Promise((resolve, reject) => {
      const request = get(`${b}/stream`, { agent: false }, (answer) => answer.once("data", () => resolve(request.destroy())));
      request.once("error", reject);
    });
    await until(async () => (await used("running")) === 0);
  });

  test("failures do not count with skipFailed; a redirect is not a failure", async () => {
    const how = (name) => `${a}/failing?how=${name}`;
    for (const [name, status] of [
      ["throws", 500],
      ["missing", 404],
      ["answers", 503],
    ]) {
      assert.equal((await ask(how(name))).status, status);
      await until(async () => (await used("failing")) === 0);
    }
    const redirect = await ask(how("redirects"));
    assert.deepEqual([redirect.status, redirect.headers.get("location")], [307, "/plain"]);
    assert.deepEqual(await statuses([how("succeeds")], [how("succeeds")], [how("throws")]), [200, 429, 429]);
    assert.equal(await used("failing"), 2);
  });

  test("a proxy.js limits the routes behind it", async () => {
    const asked = (url, key) => [`${url}/proxied`, { "X-API-Key": key }];
    const first = await ask(...asked(a, "k"));
    assert.deepEqual([first.status, first.body], [200, "behind the proxy"]);
    assert.equal(first.headers.get("ratelimit"), '"proxy";r=0;t=3600');
    const refused = await ask(...asked(b, "k"));
    assert.equal(refused.status, 429);
    assert.deepEqual(JSON.parse(refused.body)["violated-policies"], ["proxy"]);
    assert.ok(refused.headers.get("retry-after"));
    assert.equal((await ask(...asked(b, "another"))).status, 200);
  });
});
