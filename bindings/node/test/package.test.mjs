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

test("required and imported objects work together", async () => {
  const require = createRequire(import.meta.url);
  // (workglow-limit/web has one form.)
  for (const path of Object.keys(manifest.exports).filter((path) => path !== "./package.json" && !path.startsWith("./web"))) {
    const entry = path.slice(1);
    const cjs = require(`workglow-limit${entry}`);
    const imported = await import(`workglow-limit${entry}`);
    for (const name of Object.keys(cjs)) assert.equal(cjs[name], imported[name], name);
    assert.ok(Object.keys(cjs).length > 0);
  }
  const { Store } = require("workglow-limit");
  const limiter = new esm.RateLimiter(new Store("memory:"), "x", { maxExecutions: 1, windowSizeInSeconds: 60 });
  assert.ok(limiter.tryAcquire());
  assert.equal(limiter.tryAcquire(), null);
});

test("the package has no dependencies and no install scripts", () => {
  assert.equal(manifest.dependencies, undefined);
  for (const script of ["preinstall", "install", "postinstall", "prepare"]) assert.equal(manifest.scripts[script], undefined);
});

test("only entries that are named after a package need its types", () => {
  const peers = Object.keys(manifest.peerDependencies);
  const cjs = join(root, "dist/cjs");
  for (const file of readdirSync(cjs).filter((file) => file.endsWith(".d.ts"))) {
    const imported = [...readFileSync(join(cjs, file), "utf8").matchAll(/(?:from|import|module) "([^."][^"]*)"/g)].map(([, name]) => name);
    const allowed =
      { "fastify-rate-limit.d.ts": "@fastify/rate-limit", "opentelemetry.d.ts": "@opentelemetry/api" }[file] ?? file.replace(".d.ts", "");
    for (const name of imported) assert.ok(!peers.includes(name) || name === allowed, `${file} needs ${name}`);
  }
});

test("the edge runtime of Next.js gets an error with advice", () => {
  for (const entry of ["workglow-limit", "workglow-limit/next"]) {
    const program = `try { require("${entry}") } catch (e) { console.log(e.message) }`;
    const said = execFileSync(process.execPath, ["--conditions=edge-light", "-e", program], { cwd: root, encoding: "utf8" });
    assert.match(
      said,
      /^workglow-limit loads native code, which the edge runtime of Next\.js does not support\. Limit requests in route handlers/,
    );
  }
});

test("the package and the addon have the same version", () => {
  const [, version] = /\[workspace\.package\]\nversion = "(.*)"/.exec(readFileSync(join(root, "../../Cargo.toml"), "utf8"));
  assert.equal(manifest.version, version);
});

test("native code that does not load is named, with the reason", (t) => {
  const dir = directory(t);
  for (const part of ["dist", "package.json"]) cpSync(join(root, part), join(dir, part), { recursive: true });
  const [addon] = readdirSync(join(dir, "dist")).filter((file) => file.endsWith(".node"));
  writeFileSync(join(dir, "dist", addon), "not a library");
  const program = 'try { require("./dist/cjs") } catch (e) { console.log(e.message) }';
  const said = execFileSync(process.execPath, ["-e", program], { cwd: dir, encoding: "utf8" });
  const target = `${process.platform}-${process.arch}`;
  assert.match(said, new RegExp(`no native code for ${target} that loads. Tried: ${addon} \\(.*(short|invalid|not|format).*\\)`));
});

test("a platform without a package is told which there are, and what to do", (t) => {
  const dir = directory(t);
  for (const part of ["dist", "package.json"]) cpSync(join(root, part), join(dir, part), { recursive: true });
  for (const file of readdirSync(join(dir, "dist"))) if (file.endsWith(".node")) rmSync(join(dir, "dist", file));
  const on = (platform, arch) => {
    const machine = `for (const [name, value] of [["platform", "${platform}"], ["arch", "${arch}"]]) Object.defineProperty(process, name, { value });`;
    const program = `${machine} try { require("./dist/cjs") } catch (e) { console.log(e.message) }`;
    return execFileSync(process.execPath, ["-e", program], { cwd: dir, encoding: "utf8" });
  };
  const packages = "there are packages for linux-x64-gnu, linux-x64-musl, linux-arm64-gnu, linux-arm64-musl";
  assert.match(on("darwin", "arm64"), new RegExp(`no native code for darwin-arm64 that loads: ${packages}. It runs on Linux only`));
  assert.match(on("linux", "riscv64"), new RegExp(`no native code for linux-riscv64 that loads: ${packages}. Build it from the sources`));
  assert.match(on("linux", process.arch), /its optional dependency @workglow-limit\/linux-.* is not installed/);
});
