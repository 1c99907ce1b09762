// Runs the tests of the Node package's integrations with the lowest version that its `peerDependencies` promise of each package.
//
// A copy of the built package and its tests finds the packages of this folder, because modules look for others next to themselves.

import { spawnSync } from "node:child_process";
import { cpSync, mkdirSync, readdirSync, rmSync, symlinkSync } from "node:fs";
import { join } from "node:path";

const here = import.meta.dirname;
const source = join(here, "../../bindings/node");
const copy = join(here, "../../target/node-lowest");

rmSync(copy, { recursive: true, force: true });
mkdirSync(copy, { recursive: true });
for (const part of ["dist", "test", "package.json"]) cpSync(join(source, part), join(copy, part), { recursive: true });
symlinkSync(join(here, "node_modules"), join(copy, "node_modules"));

// What uses other packages.
const peers = ["bullmq", "graphile-worker", "metrics", "pg-boss"].map((name) => `test/${name}.test.mjs`);
const folders = ["clients", "serving"].flatMap((folder) =>
  readdirSync(join(copy, "test", folder))
    .filter((file) => file.endsWith(".test.mjs"))
    .map((file) => `test/${folder}/${file}`),
);
const files = [join(here, "versions.test.mjs"), ...peers, ...folders];
process.exit(spawnSync(process.execPath, ["--test", "--test-timeout=900000", ...files], { cwd: copy, stdio: "inherit" }).status ?? 1);
