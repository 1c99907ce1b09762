// Loads the native half: the file that was built into this package, or the optional package of this platform.

import fs = require("node:fs");
import modules = require("node:module");
import path = require("node:path");
import platforms = require("./platforms.cjs");

/** This file; in a bundle, the bundle, or the program if the bundle has no `__filename`: one of Turbopack, or an ES module. */
const here = typeof __filename === "string" && fs.existsSync(__filename) ? __filename : path.resolve(process.argv[1] ?? "program");
// Not the `require` of this file: a bundler would resolve it at build time, and leave no call for run time.
const requireHere = modules.createRequire(here);
const manifestIn = (file: string): { name?: string; version: string } => JSON.parse(fs.readFileSync(file, "utf8"));
const versionIn = (manifest: string): string => manifestIn(manifest).version;

/** Advice for tools that copy the files of a program, and miss files that are found only at run time. */
const COPIED =
  `If Next.js copied it (output: "standalone"), add to its configuration: ` +
  `outputFileTracingIncludes: { "/*": ["node_modules/workglow-limit/**/*", "node_modules/@workglow-limit/**/*"] }`;

/** Returns where this package is installed. Its native code is there, and never in a bundle. */
function packageFolder(): string {
  const own = path.join(path.dirname(here), "..", "..");
  try {
    if (manifestIn(path.join(own, "package.json")).name === "workglow-limit") return own;
  } catch {
    // This is a bundle.
  }
  try {
    return path.dirname(requireHere.resolve("workglow-limit/package.json"));
  } catch {
    throw new Error(
      `workglow-limit is bundled in ${here}, but its native code is not: install workglow-limit where the bundle runs. ` +
        `Or leave it out of the bundle: --external:workglow-limit for esbuild, externals: ["workglow-limit"] for webpack, ` +
        `serverExternalPackages: ["workglow-limit"] for Next.js. ${COPIED}`,
    );
  }
}

const root = packageFolder();
const requireThere = modules.createRequire(path.join(root, "package.json"));
// The other lines of such a message are the stack of `require` calls.
const firstLine = (error: unknown) => String((error as Error).message).split("\n", 1)[0];

function load(): unknown {
  const built = fs.readdirSync(path.join(root, "dist")).filter((file) => file.endsWith(".node"));
  const fitting = platforms.filter(({ os, cpu }) => os === process.platform && cpu === process.arch);
  const broken: string[] = [];

  for (const file of built) {
    try {
      return requireThere(path.join(root, "dist", file));
    } catch (error) {
      broken.push(`${file} (${firstLine(error)})`);
    }
  }
  // Package managers that ignore `libc` install the packages for both C libraries; the wrong one does not load.
  for (const { name } of fitting) {
    const part = `@workglow-limit/${name}`;
    let manifest: string;
    try {
      manifest = requireThere.resolve(`${part}/package.json`);
    } catch {
      continue;
    }
    const [version, expected] = [versionIn(manifest), versionIn(path.join(root, "package.json"))];
    if (version !== expected) {
      broken.push(`${part} (it has version ${version}, and workglow-limit ${expected})`);
      continue;
    }
    try {
      return requireThere(part);
    } catch (error) {
      broken.push(`${part} (${firstLine(error)})`);
    }
  }
  throw new Error(explanation(fitting, broken));
}

/** Returns what is missing, and what to do. */
function explanation(here: typeof platforms, broken: readonly string[]): string {
  const machine = `${process.platform}-${process.arch}`;
  const head = `workglow-limit has no native code for ${machine} that loads`;
  if (broken.length > 0) return `${head}. Tried: ${broken.join("; ")}.`;
  if (here.length === 0) {
    const names = platforms.map(({ name }) => name).join(", ");
    const remedy =
      process.platform === "linux"
        ? `Build it from the sources, with Rust: npm ci && npm run build, in their folder bindings/node`
        : `It runs on Linux only, so far: use a Linux container, or WSL 2`;
    return `${head}: there are packages for ${names}. ${remedy}.`;
  }
  const header = (process.report.getReport() as { header: { glibcVersionRuntime?: string } }).header;
  const libc = header.glibcVersionRuntime === undefined ? "musl" : "glibc";
  const part = here.find((platform) => platform.libc === libc) ?? here[0];
  return (
    `${head}: its optional dependency @workglow-limit/${part?.name} is not installed. ` +
    `"--omit=optional", "--no-optional", or node_modules or a lockfile from another platform leave it out. Install again ` +
    `without them, or run: npm install @workglow-limit/${part?.name}@${versionIn(path.join(root, "package.json"))}. ${COPIED}`
  );
}

export = load();
