// Whether workglow-limit/web is built: a compiler may have no standard library for WebAssembly (`make web` says so).

import { existsSync } from "node:fs";
import { join } from "node:path";

export const skip = existsSync(join(import.meta.dirname, "../../dist/web/bytes.js"))
  ? false
  : "workglow-limit/web is not built: see what `make web` says";

/** The entry, if it is built. */
export const web = skip ? null : await import("workglow-limit/web");
