// Bundles by esbuild and webpack: native code stays where it is installed, or an error says what to do.

import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { cpSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import esbuild from "esbuild";
import webpack from "webpack";

const program = `
import { RateLimiter, Store } from "workglow-limit";
import { limitFetch } from "workglow-limit/fetch";
import { heed } from "workglow-limit/http";
const limiter = new RateLimiter(new Store("memory:"), "api", { maxExecutions: 1, windowSizeInSeconds: 60 });
const send = limitFetch(limiter, { fetch: async () => new Response("sent") });
send("http://localhost/").then(async (response) => {
  console.log(await response.text(), limiter.tryAcquire(), await heed(limiter, new Response(null, { status: 429 })));
});
`;

/** Makes a folder with the program, in which the package is installed. */
function folder(t) {
  const dir = mkdtempSync(join(tmpdir(), "workglow-limit-bundle-"));
  t.after(() => rmSync(dir, { recursive: true, force: true }));
  cpSync(join(import.meta.dirname, "node_modules/workglow-limit"), join(dir, "node_modules/workglow-limit"), { recursive: true });
  writeFileSync(join(dir, "package.json"), "{}");
  writeFileSync(join(dir, "program.mjs"), program);
  return dir;
}

const bundlers = {
  esbuild: (dir, outfile, options) =>
    esbuild.build({ entryPoints: [join(dir, "program.mjs")], outfile, bundle: true, platform: "node", logLevel: "error", ...options }),
  webpack: (dir, outfile, options) =>
    new Promise((resolve, reject) => {
      const output = { path: join(outfile, ".."), filename: outfile.split("/").at(-1) };
      webpack({ entry: join(dir, "program.mjs"), target: "node", mode: "production", output, ...options }, (error, stats) => {
        if (error || stats.hasErrors()) reject(error ?? new Error(stats.toString()));
        else if (stats.hasWarnings()) reject(new Error(stats.toString()));
        else resolve();
      });
    }),
};

function run(file) {
  const { stdout, stderr } = spawnSync(process.execPath, [file], { cwd: tmpdir(), encoding: "utf8", timeout: 60_000 });
  return stdout || stderr;
}

const banner = { js: `import { createRequire } from "node:module"; const require = createRequire(import.meta.url);` };
for (const [name, bundler, file, options] of [
  ["esbuild", "esbuild", "dist/bundle.js", {}],
  ["esbuild, minified", "esbuild", "dist/bundle.js", { minify: true }],
  ["esbuild, an ES module with a require", "esbuild", "dist/bundle.mjs", { format: "esm", banner }],
  ["esbuild, an ES module, the package external", "esbuild", "dist/bundle.mjs", { format: "esm", external: ["workglow-limit"] }],
  ["webpack", "webpack", "dist/bundle.js", {}],
  ["webpack, the package external", "webpack", "dist/bundle.js", { externals: [/^workglow-limit/], externalsType: "commonjs" }],
]) {
  test(`${name}: a bundle runs`, async (t) => {
    const dir = folder(t);
    await bundlers[bundler](dir, join(dir, file), options);
    assert.equal(run(join(dir, file)), "sent null 1000\n");
  });
}

for (const bundler of Object.keys(bundlers)) {
  test(`${bundler}: a bundle that was moved away names what is missing`, async (t) => {
    const dir = folder(t);
    await bundlers[bundler](dir, join(dir, "dist/bundle.js"), {});
    const elsewhere = mkdtempSync(join(tmpdir(), "workglow-limit-elsewhere-"));
    t.after(() => rmSync(elsewhere, { recursive: true, force: true }));
    mkdirSync(join(elsewhere, "app"));
    cpSync(join(dir, "dist/bundle.js"), join(elsewhere, "app/bundle.js"));
    const said = run(join(elsewhere, "app/bundle.js"));
    assert.match(
      said,
      /workglow-limit is bundled in .*bundle\.js, but its native code is not: install workglow-limit where the bundle runs/,
    );
    assert.match(said, /--external:workglow-limit for esbuild/);
  });
}
