// Loads the native half: the file that was built beside this package's code, or the optional package of this platform.

import fs = require("node:fs");
import path = require("node:path");
import platforms = require("./platforms.cjs");

const root = path.join(__dirname, "..", "..");
const versionIn = (manifest: string): string => JSON.parse(fs.readFileSync(manifest, "utf8")).version;
// The rest of such a message is who required it.
const firstLine = (error: unknown) => String((error as Error).message).split("\n", 1)[0];

function load(): unknown {
  const built = fs.readdirSync(path.join(root, "dist")).filter((file) => file.endsWith(".node"));
  const here = platforms.filter(({ os, cpu }) => os === process.platform && cpu === process.arch);
  const broken: string[] = [];

  for (const file of built) {
    try {
      return require(path.join(root, "dist", file));
    } catch (error) {
      broken.push(`${file} (${firstLine(error)})`);
    }
  }
  // Package managers that do not know of C libraries install the packages of both; the wrong one's does not load.
  for (const { name } of here) {
    const part = `@workglow-limit/${name}`;
    let manifest: string;
    try {
      manifest = require.resolve(`${part}/package.json`);
    } catch {
      continue;
    }
    const [version, expected] = [versionIn(manifest), versionIn(path.join(root, "package.json"))];
    if (version !== expected) {
      broken.push(`${part} (it is version ${version} beside workglow-limit ${expected})`);
      continue;
    }
    try {
      return require(part);
    } catch (error) {
      broken.push(`${part} (${firstLine(error)})`);
    }
  }
  throw new Error(explanation(here, broken));
}

/** What is missing here, and what to do about it. */
function explanation(here: typeof platforms, broken: readonly string[]): string {
  const machine = `${process.platform}-${process.arch}`;
  const head = `workglow-limit has no native code for ${machine} that loads`;
  if (broken.length > 0) return `${head}. Tried: ${broken.join("; ")}.`;
  if (here.length === 0) {
    const names = platforms.map(({ name }) => name).join(", ");
    return `${head}: there are packages for ${names} only. See "From the sources" in the README of workglow-limit.`;
  }
  const header = (process.report.getReport() as { header: { glibcVersionRuntime?: string } }).header;
  const libc = header.glibcVersionRuntime === undefined ? "musl" : "glibc";
  const part = here.find((platform) => platform.libc === libc) ?? here[0];
  return (
    `${head}: its optional dependency @workglow-limit/${part?.name} is not installed. ` +
    `"--omit=optional", "--no-optional" and node_modules or a lockfile from another platform leave it out. Install again ` +
    `without them, or: npm install @workglow-limit/${part?.name}@${versionIn(path.join(root, "package.json"))}`
  );
}

export = load();
