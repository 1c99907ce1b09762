// Builds the package into dist/: the addon of this machine, and the TypeScript as ES modules and as CommonJS.

import { execFileSync } from "node:child_process";
import { copyFileSync, mkdirSync, rmSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const here = join(dirname(fileURLToPath(import.meta.url)), "..");
const dist = join(here, "dist");
const run = (command, args, stdout) => execFileSync(command, args, { cwd: here, stdio: ["ignore", stdout, "inherit"] });

rmSync(dist, { recursive: true, force: true });
mkdirSync(dist);

// Without debug information, which is six times the code.
const flags = ["--release", "--package", "workglow-limit-node", "--lib", "--message-format=json-render-diagnostics"];
const told = run("cargo", ["rustc", ...flags, "--", "-C", "strip=debuginfo"], "pipe").toString().trim().split("\n");
const isAddon = ({ reason, target }) => reason === "compiler-artifact" && target.name === "workglow_limit_node";
const [library] = told.map((line) => JSON.parse(line)).find(isAddon).filenames;
const musl = process.platform === "linux" && !process.report.getReport().header.glibcVersionRuntime;
const abi = { linux: musl ? "-musl" : "-gnu", win32: "-msvc" }[process.platform] ?? "";
copyFileSync(library, join(dist, `workglow-limit.${process.platform}-${process.arch}${abi}.node`));

const tsc = createRequire(import.meta.url).resolve("typescript/package.json").replace(/package\.json$/, "bin/tsc");
for (const [type, ...options] of [["esm"], ["cjs", "--module", "commonjs", "--moduleResolution", "bundler"]]) {
  run(process.execPath, [tsc, "--project", "lib", "--outDir", join(dist, type), ...options], "inherit");
  const format = type === "esm" ? "module" : "commonjs";
  writeFileSync(join(dist, type, "package.json"), `${JSON.stringify({ type: format, sideEffects: false })}\n`);
}
