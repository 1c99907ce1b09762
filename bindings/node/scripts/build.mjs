// Builds the package into dist/: the addon for this machine, and the TypeScript as CommonJS, with ES modules that re-export it.
//
//     npm run build              as it is published
//     npm run build -- dev       compiles in a third of the time, and runs slower

import { execFileSync } from "node:child_process";
import { copyFileSync, mkdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const here = join(dirname(fileURLToPath(import.meta.url)), "..");
const dist = join(here, "dist");
const run = (command, args, stdout) => execFileSync(command, args, { cwd: here, stdio: ["ignore", stdout, "inherit"] });

rmSync(dist, { recursive: true, force: true });
mkdirSync(dist);

const profile = process.argv[2] === "dev" ? [] : ["--release"];
// Without debug information, which is six times as large as the code.
const flags = [...profile, "--package", "workglow-limit-node", "--lib", "--message-format=json-render-diagnostics"];
const messages = run("cargo", ["rustc", ...flags, "--", "-C", "strip=debuginfo"], "pipe")
  .toString()
  .trim()
  .split("\n");
const isAddon = ({ reason, target }) => reason === "compiler-artifact" && target.name === "workglow_limit_node";
const [library] = messages.map((line) => JSON.parse(line)).find(isAddon).filenames;
const musl = process.platform === "linux" && !process.report.getReport().header.glibcVersionRuntime;
const abi = { linux: musl ? "-musl" : "-gnu", win32: "-msvc" }[process.platform] ?? "";
copyFileSync(library, join(dist, `workglow-limit.${process.platform}-${process.arch}${abi}.node`));

const tsc = createRequire(import.meta.url)
  .resolve("typescript/package.json")
  .replace(/package\.json$/, "bin/tsc");
run(process.execPath, [tsc, "--project", "lib"], "inherit");
const write = (file, text) => writeFileSync(join(dist, file), text);
write("cjs/package.json", `${JSON.stringify({ type: "commonjs", sideEffects: false })}\n`);
mkdirSync(join(dist, "esm"));
// There is one copy of the code for `require` and `import`, so that both have the same `Store`.
const { exports } = JSON.parse(readFileSync(join(here, "package.json")));
for (const path of Object.keys(exports).filter((path) => path !== "./package.json")) {
  const entry = path === "." ? "index" : path.slice(2);
  const names = Object.keys(createRequire(import.meta.url)(join(dist, "cjs", `${entry}.js`)));
  write(`esm/${entry}.js`, `export { ${names.join(", ")} } from "../cjs/${entry}.js";\n`);
  write(`esm/${entry}.d.ts`, `export * from "../cjs/${entry}.js";\n`);
}
