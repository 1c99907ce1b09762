// Builds the package into dist/: the addon for this machine, and the TypeScript as CommonJS, with ES modules that re-export it.
//
//     npm run build              compiles the addon with Cargo's profile "release"
//     npm run build -- quick     with another profile
//     npm run build -- FILE      packs this library, which is built already

import { execFileSync } from "node:child_process";
import { copyFileSync, mkdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { buildWeb } from "./web.mjs";

const here = join(dirname(fileURLToPath(import.meta.url)), "..");
const dist = join(here, "dist");
const run = (command, args, stdout) => execFileSync(command, args, { cwd: here, stdio: ["ignore", stdout, "inherit"] });

rmSync(dist, { recursive: true, force: true });
mkdirSync(dist);

const library = process.argv[2] ?? "release";
const isProfile = !library.includes(".");
if (isProfile) run("cargo", ["build", "--quiet", "--profile", library, "--package", "workglow-limit-node"], "inherit");
const targets = process.env.CARGO_TARGET_DIR ?? join(here, "../../target");
const extension = { darwin: ".dylib", win32: ".dll" }[process.platform] ?? ".so";
const file = `${process.platform === "win32" ? "" : "lib"}workglow_limit_node${extension}`;
const built = isProfile ? join(targets, library === "dev" ? "debug" : library, file) : library;
const musl = process.platform === "linux" && !process.report.getReport().header.glibcVersionRuntime;
const abi = { linux: musl ? "-musl" : "-gnu", win32: "-msvc" }[process.platform] ?? "";
const addon = join(dist, `workglow-limit.${process.platform}-${process.arch}${abi}.node`);
copyFileSync(built, addon);
// Debug information is most of the file.
if (process.platform === "linux") run("strip", ["--strip-debug", addon], "inherit");

const tsc = createRequire(import.meta.url)
  .resolve("typescript/package.json")
  .replace(/package\.json$/, "bin/tsc");
run(process.execPath, [tsc, "--project", "lib"], "inherit");
const write = (file, text) => writeFileSync(join(dist, file), text);
write("cjs/package.json", `${JSON.stringify({ type: "commonjs", sideEffects: false })}\n`);
mkdirSync(join(dist, "esm"));
// There is one copy of the code for `require` and `import`, so that both have the same `Store`.
const { exports } = JSON.parse(readFileSync(join(here, "package.json")));
for (const path of Object.keys(exports).filter((path) => path !== "./package.json" && !path.startsWith("./web"))) {
  const entry = path === "." ? "index" : path.slice(2);
  const names = Object.keys(createRequire(import.meta.url)(join(dist, "cjs", `${entry}.js`)));
  write(`esm/${entry}.js`, `export { ${names.join(", ")} } from "../cjs/${entry}.js";\n`);
  write(`esm/${entry}.d.ts`, `export * from "../cjs/${entry}.js";\n`);
}
// That entry has no native code, and is for programs that have no `require`.
const reason = buildWeb();
if (reason !== null) console.log(`workglow-limit/web was not built: ${reason}`);
