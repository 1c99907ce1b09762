// Loads the native half: the file beside this package's code, or the optional package of this platform.

import fs = require("node:fs");
import path = require("node:path");

const base = `${process.platform}-${process.arch}`;
// On Linux either C library may be there; the wrong one's file does not load.
const targets =
  process.platform === "linux" ? [`${base}-gnu`, `${base}-musl`] : process.platform === "win32" ? [`${base}-msvc`] : [base];

function load(): unknown {
  const tried: string[] = [];
  for (const target of targets) {
    const beside = path.join(__dirname, "..", `workglow-limit.${target}.node`);
    for (const place of fs.existsSync(beside) ? [beside] : [`@workglow-limit/${target}`]) {
      try {
        return require(place);
      } catch (error) {
        // The rest of such a message is who required it.
        tried.push(`${place} (${String((error as Error).message).split("\n", 1)[0]})`);
      }
    }
    if (!tried.some((place) => place.startsWith(beside))) tried.push(`${beside} (no such file)`);
  }
  throw new Error(`workglow-limit has no native code for ${base} here. Looked for: ${tried.join("; ")}`);
}

export = load();
