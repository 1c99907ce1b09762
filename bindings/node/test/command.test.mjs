// The command that the package installs. The command's own tests check what it does.

import assert from "node:assert/strict";
import { spawn, spawnSync } from "node:child_process";
import { once } from "node:events";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";
import { Store } from "workglow-limit";
import { directory } from "./helpers.mjs";

const root = join(import.meta.dirname, "..");
const manifest = JSON.parse(readFileSync(join(root, "package.json"), "utf8"));
const program = join(root, manifest.bin["workglow-limit"]);
const run = (...args) => spawnSync(process.execPath, [program, ...args], { encoding: "utf8", timeout: 120_000 });

async function store(t) {
  const url = `sqlite:${directory(t)}/limits.db`;
  const made = new Store(url);
  assert.ok(await made.limiter("mail", "1/1h").tryAcquireAsync({ key: "acme" }));
  await made.flush();
  return url;
}

test("the command runs", async (t) => {
  const url = await store(t);
  assert.match(readFileSync(program, "utf8"), /^#!\/usr\/bin\/env node\n/);
  assert.equal(run("--version").stdout, `workglow-limit ${manifest.version}\n`);
  const { status, stdout, stderr } = run("--store", url, "status", "--json");
  assert.equal(status, 0, stderr);
  assert.deepEqual(
    JSON.parse(stdout).limits.map(({ name }) => name),
    ["mail"],
  );
  assert.equal(run("--store", url, "peek", "mail", "acme").status, 4);
  assert.equal(run("--store", url, "peek", "mai").status, 3);
  assert.equal(run("wrong").status, 2);
});

test("signals end the command", async (t) => {
  const url = await store(t);
  for (const signal of ["SIGINT", "SIGTERM"]) {
    const watch = spawn(process.execPath, [program, "--store", url, "watch"], { stdio: ["ignore", "pipe", "inherit"] });
    const [line] = await once(watch.stdout, "data");
    assert.equal(JSON.parse(line).event, "watching");
    watch.kill(signal);
    assert.deepEqual(await once(watch, "exit"), [null, signal]);
  }
});
