// The versions that are installed here are those that the package promises.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";

const read = (file) => JSON.parse(readFileSync(join(import.meta.dirname, file), "utf8"));
const { peerDependencies } = read("../../bindings/node/package.json");
const { dependencies } = read("package.json");

for (const [name, range] of Object.entries(peerDependencies)) {
  test(`${name}: the lowest version of ${range} is tested`, () => {
    const [, lowest] = /^(?:\^|>=)(\d+\.\d+\.\d+)\b/.exec(range) ?? assert.fail("it promises no lowest version");
    const installed = Object.keys(dependencies).filter((as) => as === name || dependencies[as].startsWith(`npm:${name}@`));
    const versions = installed.map((as) => read(`node_modules/${as}/package.json`).version);
    assert.ok(versions.includes(lowest), `installed: ${versions}`);
  });
}
