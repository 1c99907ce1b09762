// workglow-limit/web in the package: what a build without it says, and what its types allow.

import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { cpSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { pathToFileURL } from "node:url";
import { skip } from "./built.mjs";

const root = join(import.meta.dirname, "../..");

test("a build without the entry says why where it is imported, and is not packed for a release", async (t) => {
  const dir = mkdtempSync(join(tmpdir(), "workglow-limit-web-"));
  t.after(() => rmSync(dir, { recursive: true, force: true }));
  for (const part of ["scripts", "package.json"]) cpSync(join(root, part), join(dir, part), { recursive: true });
  mkdirSync(join(dir, "dist/cjs"), { recursive: true });
  writeFileSync(join(dir, "dist/cjs/platforms.cjs"), "module.exports = [];\n");
  const run = (...args) =>
    spawnSync(process.execPath, args, { cwd: dir, encoding: "utf8", env: { ...process.env, RUSTC: "no-such-rustc" } });
  const built = run("scripts/web.mjs");
  assert.equal(built.status, 1);
  assert.match(built.stdout, /^workglow-limit\/web was not built: .*no-such-rustc/);
  const entry = pathToFileURL(join(dir, "dist/web/index.js")).href;
  await assert.rejects(import(entry), /^Error: workglow-limit\/web is not part of this build of the package: .*no-such-rustc/);
  const packed = run("scripts/pack.mjs", join(dir, "out"), "main");
  assert.equal(packed.status, 1);
  assert.match(packed.stderr, /^the main package lacks workglow-limit\/web: rustup target add/);
});

test("only stores make limiters, only limiters make permits, and only `open` makes stores", { skip }, () => {
  for (const [file, classes] of [
    ["limiter", ["Limiter", "Permit"]],
    ["store", ["Store"]],
  ]) {
    const types = readFileSync(join(root, `dist/web/${file}.d.ts`), "utf8");
    for (const name of classes) assert.match(types, new RegExp(`class ${name} \\{[^}]*private constructor`), name);
  }
});
