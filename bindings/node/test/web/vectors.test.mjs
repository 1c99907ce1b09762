// Runs the cases of tests/vectors on "memory:" of workglow-limit/web.

import assert from "node:assert/strict";
import { readFileSync, readdirSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";
import { skip, web } from "./built.mjs";
import { KINDS, casesOf, isLacking, kindOf, policyOf, run } from "./cases.mjs";

const vectors = join(import.meta.dirname, "../../../../tests/vectors");

/** The number of cases that ran, by kind. */
const ran = new Map();

for (const file of readdirSync(vectors).filter((file) => file.endsWith(".vec"))) {
  test(file, { skip }, async (t) => {
    for (const one of casesOf(readFileSync(join(vectors, file), "utf8"))) {
      const policy = policyOf(one);
      if (policy === undefined || isLacking(one)) continue;
      await t.test(one.name, () => run(web, "memory:", one, policy));
      ran.set(kindOf(one), (ran.get(kindOf(one)) ?? 0) + 1);
    }
  });
}

test("every kind has cases", { skip }, () => {
  assert.deepEqual([...ran.keys()].sort(), [...Object.keys(KINDS), "composite"].sort());
});
