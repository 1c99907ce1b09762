// Builds the entry for browsers and edge runtimes, workglow-limit/web, into dist/web: the limits as WebAssembly, and the TypeScript.
//
//     node scripts/web.mjs
//
// It needs Rust's standard library for WebAssembly: `rustup target add wasm32-unknown-unknown`. Without it this says so and builds nothing.

import { execFileSync } from "node:child_process";
import { copyFileSync, existsSync, mkdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const TARGET = "wasm32-unknown-unknown";
const here = join(dirname(fileURLToPath(import.meta.url)), "..");
const dist = join(here, "dist/web");

/** Returns why the module cannot be built, or `null`. */
function whyNot() {
  try {
    const rustc = process.env.RUSTC ?? "rustc";
    const sysroot = execFileSync(rustc, ["--print", "sysroot"], { cwd: here, encoding: "utf8" }).trim();
    if (existsSync(join(sysroot, "lib/rustlib", TARGET, "lib"))) return null;
    return `this compiler has no standard library for it: rustup target add ${TARGET}`;
  } catch (error) {
    return error.message;
  }
}

/** Builds dist/web. Returns why that cannot be done here, or `null`. Then whoever imports the entry is told so. */
export function buildWeb() {
  rmSync(dist, { recursive: true, force: true });
  mkdirSync(dist, { recursive: true });
  const reason = whyNot();
  if (reason !== null) {
    const message = `workglow-limit/web is not part of this build of the package: ${reason}`;
    writeFileSync(join(dist, "index.js"), `throw new Error(${JSON.stringify(message)});\n`);
    writeFileSync(join(dist, "index.d.ts"), "export {};\n");
    return reason;
  }
  const run = (command, args) => execFileSync(command, args, { cwd: here, stdio: "inherit" });
  run("cargo", ["build", "--quiet", "--profile", "web", "--target", TARGET, "--package", "workglow-limit-web"]);
  const target = process.env.CARGO_TARGET_DIR ?? join(here, "../../target");
  const module = join(dist, "module.wasm");
  copyFileSync(join(target, TARGET, "web/workglow_limit_web.wasm"), module);
  const tsc = createRequire(import.meta.url).resolve("typescript/package.json");
  run(process.execPath, [tsc.replace(/package\.json$/, "bin/tsc"), "--project", "lib/web"]);
  // In JavaScript it needs no bundler, no server and no second request.
  const { version } = JSON.parse(readFileSync(join(here, "package.json"), "utf8"));
  const text = readFileSync(module).toString("base64");
  writeFileSync(
    join(dist, "bytes.js"),
    `export const version = "${version}";\nconst text = "${text}";\nexport const bytes = () => Uint8Array.from(atob(text), (byte) => byte.charCodeAt(0));\n`,
  );
  return null;
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const reason = buildWeb();
  if (reason !== null) {
    console.log(`workglow-limit/web was not built: ${reason}`);
    process.exitCode = 1;
  }
}
