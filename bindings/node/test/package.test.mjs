// The package as it is installed: both module systems, and the loader of the native half.

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { cpSync, readFileSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";
import { test } from "node:test";
import * as esm from "workglow-limit";
import { directory } from "./helpers.mjs";

const root = join(import.meta.dirname, "..");
const manifest = JSON.parse(readFileSync(join(root, "package.json"), "utf8"));

test("ES modules and CommonJS export the same, and work", () => {
  const cjs = createRequire(import.meta.url)("workglow-limit");
  assert.notEqual(cjs.Store, esm.Store);
  assert.deepEqual(Object.keys(cjs).sort(), Object.keys(esm).sort());
  for (const { RateLimiter, Store } of [cjs, esm]) {
    const limiter = new RateLimiter(new Store("memory:"), "x", { maxExecutions: 1, windowSizeInSeconds: 60 });
    assert.ok(limiter.tryAcquire());
    assert.equal(limiter.tryAcquire(), null);
  }
});

test("nothing is needed at run time, and nothing runs at installation", () => {
  assert.equal(manifest.dependencies, undefined);
  for (const script of ["preinstall", "install", "postinstall", "prepare"]) assert.equal(manifest.scripts[script], undefined);
});

test("the package's version is the addon's", () => {
  const [, version] = /\[workspace\.package\]\nversion = "(.*)"/.exec(readFileSync(join(root, "../../Cargo.toml"), "utf8"));
  assert.equal(manifest.version, version);
});

test("without native code the error says what was looked for", (t) => {
  const dir = directory(t);
  cpSync(join(root, "dist"), join(dir, "dist"), { recursive: true });
  for (const file of readdirSync(join(dir, "dist"))) if (file.endsWith(".node")) rmSync(join(dir, "dist", file));
  const load = () =>
    execFileSync(process.execPath, ["-e", 'try { require("./dist/cjs") } catch (e) { console.log(e.message) }'], {
      cwd: dir,
      encoding: "utf8",
    });
  const target = `${process.platform}-${process.arch}`;
  assert.match(load(), new RegExp(`no native code for ${target}.*@workglow-limit/${target}.*${target}.*no such file`));
  for (const libc of process.platform === "linux" ? ["-gnu", "-musl"] : [""]) {
    writeFileSync(join(dir, "dist", `workglow-limit.${target}${libc}.node`), "not a library");
  }
  assert.match(load(), /workglow-limit\..*\.node \(.*(short|invalid|not).*\)/);
});
