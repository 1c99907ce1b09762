// Makes the npm packages: the main package, and one with the native code for each platform of lib/platforms.cts.
//
//     node scripts/pack.mjs OUT main [without-web]
//     node scripts/pack.mjs OUT PLATFORM ADDON
//
// Run `npm run build` first: the main package contains its JavaScript. Without the entry for browsers it is packed for tests only.

import { execFileSync } from "node:child_process";
import { copyFileSync, cpSync, existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";

const here = join(import.meta.dirname, "..");
const platforms = createRequire(import.meta.url)("../dist/cjs/platforms.cjs");
const manifest = JSON.parse(readFileSync(join(here, "package.json"), "utf8"));
const { version, license, engines } = manifest;

function main(folder) {
  const isPortable = (file) => !file.endsWith(".node");
  cpSync(join(here, "dist"), join(folder, "dist"), { recursive: true, filter: isPortable });
  copyFileSync(join(here, "README.md"), join(folder, "README.md"));
  const { scripts, devDependencies, ...about } = manifest;
  const natives = platforms.map(({ name }) => [`@workglow-limit/${name}`, version]);
  return { ...about, optionalDependencies: { ...about.optionalDependencies, ...Object.fromEntries(natives) } };
}

function platform(folder, { name, os, cpu, libc }, addon) {
  const description = `The native code of workglow-limit for ${name}`;
  copyFileSync(addon, join(folder, "workglow-limit.node"));
  writeFileSync(join(folder, "README.md"), `# @workglow-limit/${name}\n\n${description}.\n`);
  const contents = { main: "workglow-limit.node", files: ["workglow-limit.node", "LICENSE-*"] };
  const about = { name: `@workglow-limit/${name}`, version, description, license, engines };
  return { ...about, os: [os], cpu: [cpu], libc: [libc], ...contents };
}

const [out, what, addon] = process.argv.slice(2);
const chosen = platforms.find(({ name }) => name === what);
if (out === undefined || (what === "main" ? ![undefined, "without-web"].includes(addon) : chosen === undefined || addon === undefined)) {
  const names = platforms.map(({ name }) => name).join(", ");
  console.error(
    `expected OUT main [without-web], or OUT PLATFORM ADDON with one of ${names}; got ${process.argv.slice(2).join(" ") || "nothing"}`,
  );
  process.exit(2);
}
if (what === "main" && addon === undefined && !existsSync(join(here, "dist/web/module.wasm"))) {
  console.error("the main package lacks workglow-limit/web: rustup target add wasm32-unknown-unknown, and build it again");
  process.exit(1);
}
mkdirSync(out, { recursive: true });
const folder = mkdtempSync(join(tmpdir(), "workglow-limit-"));
try {
  const about = chosen ? platform(folder, chosen, addon) : main(folder);
  for (const file of ["LICENSE-APACHE", "LICENSE-MIT"]) copyFileSync(join(here, "../..", file), join(folder, file));
  // `make node` writes it; the main package has only code of its own.
  if (chosen) copyFileSync(join(here, "LICENSE-THIRD-PARTY"), join(folder, "LICENSE-THIRD-PARTY"));
  writeFileSync(join(folder, "package.json"), `${JSON.stringify(about, null, 2)}\n`);
  // Prints the file's name.
  execFileSync("npm", ["pack", "--silent", "--pack-destination", resolve(out)], { cwd: folder, stdio: "inherit" });
} finally {
  rmSync(folder, { recursive: true });
}
