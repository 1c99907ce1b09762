// Invalid input of workglow-limit/web: an error names the parameter and the value, as in the main entry, and nothing is taken.

import assert from "node:assert/strict";
import { test } from "node:test";
import { skip, web } from "./built.mjs";

const about = (parameter) => (error) => {
  assert.ok(error instanceof web.InvalidArgument, String(error));
  assert.match(error.message, new RegExp(`^${parameter} is .+: expected `));
  return true;
};
const OTHERS = [null, 1, Symbol("s"), new Map(), [], () => {}, true];

test("keys and names are well-formed texts", { skip }, async () => {
  const store = await web.open("memory:");
  const limiter = store.limiter("x", "1/1h");
  for (const key of [...OTHERS, "\ud800", "a\udc00b"]) {
    for (const call of ["decide", "tryAcquire", "peek", "canProceed", "acquire", "clear"]) {
      await assert.rejects(limiter[call]({ key }), about("key"));
    }
    await assert.rejects(limiter.pause(1, { key }), about("key"));
    await assert.rejects(store.override("x", "2/1h", { key }), about("key"));
    await assert.rejects(store.lift("x", { key }), about("key"));
  }
  const long = "k".repeat(1_025);
  for (const call of ["decide", "peek", "acquire", "clear"]) await assert.rejects(limiter[call]({ key: long }), about("key"));
  await assert.rejects(store.override("x", "2/1h", { key: long }), about("key"));
  await assert.rejects(store.lift("x", { key: long }), about("key"));
  for (const name of [...OTHERS, undefined, "\ud800"]) {
    assert.throws(() => store.limiter(name, "1/1h"), about("name"));
    await assert.rejects(store.override(name, "1/1h"), about("name"));
  }
  for (const policy of [...OTHERS, "1/1h\ud800"]) assert.throws(() => store.limiter("y", policy), about("policy"));
  await assert.rejects(web.open("memory:\ud800"), about("url"));
  assert.ok(await limiter.tryAcquire());
});

test("options are objects, and their values have the right type", { skip }, async () => {
  const store = await web.open("memory:");
  const limiter = store.limiter("x", "1/1h");
  for (const options of [null, "key", 5, [], Symbol("s"), () => {}]) {
    for (const call of ["decide", "tryAcquire", "peek", "canProceed", "acquire", "clear"]) {
      await assert.rejects(limiter[call](options), about("options"));
    }
    await assert.rejects(limiter.pause(1, options), about("options"));
    await assert.rejects(
      limiter.schedule(() => {}, options),
      about("options"),
    );
    await assert.rejects(store.lift("x", options), about("options"));
    await assert.rejects(web.open("memory:", options), about("options"));
  }
  await assert.rejects(limiter.canProceed({ weight: 1 }), about("options"));
  for (const signal of [{}, null, 1, "now"]) await assert.rejects(limiter.acquire({ signal }), about("signal"));
  for (const priority of [null, "1", 0.5, NaN, 2 ** 31, -(2 ** 31) - 1, 1n]) {
    await assert.rejects(limiter.acquire({ priority }), about("priority"));
  }
  for (const timeout of [-1, NaN, null, "soon", {}]) await assert.rejects(limiter.acquire({ timeout }), about("timeout"));
  assert.throws(() => limiter.wrap(() => {}, 5), about("options"));
  assert.ok(await limiter.tryAcquire());
});

/** A module that exports `wgl_version`, which returns 7. */
const OTHER = [
  [0, 97, 115, 109, 1, 0, 0, 0, 1, 5, 1, 96, 0, 1, 127, 3, 2, 1, 0, 7, 15, 1, 11],
  [..."wgl_version"].map((letter) => letter.charCodeAt(0)),
  [0, 0, 10, 6, 1, 4, 0, 65, 7, 11],
].flat();

test("a module of another version is refused", { skip }, async () => {
  for (const bytes of [OTHER, OTHER.slice(0, 8)]) {
    const module = new WebAssembly.Module(Uint8Array.from(bytes));
    await assert.rejects(web.open("memory:", { module }), { name: "InvalidArgument", message: /^module is .* of this package, version 0/ });
  }
  await assert.rejects(web.open("memory:", { module: {} }), about("module"));
});
