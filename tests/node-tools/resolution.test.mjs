// The types of each entry, with each module resolution of TypeScript.

import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { cpSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";

const installed = join(import.meta.dirname, "node_modules/workglow-limit");
const { exports } = JSON.parse(readFileSync(join(installed, "package.json"), "utf8"));
// (workglow-limit/web is an ES module with the types of browsers, which CommonJS cannot import.)
const entries = Object.keys(exports).filter((entry) => !entry.endsWith(".json") && !entry.startsWith("./web"));

for (const [moduleResolution, module] of [
  ["node10", "commonjs"],
  ["node16", "node16"],
  ["nodenext", "nodenext"],
  ["bundler", "esnext"],
]) {
  test(`${moduleResolution}: the types of ${entries.length} entries`, (t) => {
    const dir = mkdtempSync(join(tmpdir(), "workglow-limit-types-"));
    t.after(() => rmSync(dir, { recursive: true, force: true }));
    cpSync(installed, join(dir, "node_modules/workglow-limit"), { recursive: true });
    const names = entries.map((entry) => entry.replace(".", "workglow-limit"));
    const imports = names.map((name, at) => `import * as _${at} from "${name}";`);
    // A missing module is an error; a module without types would be `any`.
    const uses = names.map(
      (_, at) => `type IsAny${at} = 0 extends 1 & typeof _${at} ? true : false;\nexport const is${at}: IsAny${at} = false;`,
    );
    writeFileSync(join(dir, "program.ts"), [...imports, ...uses].join("\n"));
    writeFileSync(
      join(dir, "tsconfig.json"),
      JSON.stringify({
        compilerOptions: {
          module,
          moduleResolution,
          strict: true,
          noEmit: true,
          target: "es2022",
          lib: ["es2022", "esnext.disposable"],
          types: ["node"],
          typeRoots: [join(import.meta.dirname, "node_modules/@types")],
          skipLibCheck: true,
        },
        files: ["program.ts"],
      }),
    );
    const tsc = join(import.meta.dirname, "node_modules/typescript/bin/tsc");
    const { status, stdout } = spawnSync(process.execPath, [tsc, "--project", dir], { encoding: "utf8" });
    assert.equal(status, 0, stdout);
  });
}
