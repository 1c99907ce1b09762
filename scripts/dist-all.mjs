// Builds all published packages that this machine can build, into target/dist/all: `make dist-all`.
//
//     node scripts/dist-all.mjs [sources | PLATFORM …]
//
// A platform (bindings/node/lib/platforms.cts) gives wheels, an npm package and a C library with the command; "sources" gives Python's source
// distribution and the main npm package. zig is the linker, so a build on a new machine runs on an old one: with glibc from
// 2.17 on, with musl from 1.2 on. Without arguments, platforms whose Rust target is not installed are reported and left out.
// Run `make node` first.

import { execFileSync } from "node:child_process";
import { copyFileSync, existsSync, mkdirSync, rmSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";

const root = join(import.meta.dirname, "..");
const out = join(root, "target/dist/all");
const built = join(root, "target/portable");
const python = join(root, "bindings/python");
const LICENCES = ["LICENSE-APACHE", "LICENSE-MIT"];
const FREE_THREADED = ["python3.14t"];
const require = createRequire(import.meta.url);
const platforms = require("../bindings/node/dist/cjs/platforms.cjs");
const { version } = require("../bindings/node/package.json");

function run(command, args, env = {}) {
  const all = { ...process.env, CARGO_TARGET_DIR: built, ...env };
  execFileSync(command, args, { cwd: root, stdio: ["ignore", "inherit", "inherit"], env: all });
}
const npmPack = (...args) => run("node", ["bindings/node/scripts/pack.mjs", join(out, "npm"), ...args]);

function sources() {
  run("maturin", ["sdist", "--manifest-path", join(python, "Cargo.toml"), "--out", join(out, "python")]);
  npmPack("main");
}

const rustTarget = ({ cpu, libc }) => `${{ x64: "x86_64", arm64: "aarch64" }[cpu]}-unknown-linux-${libc === "musl" ? "musl" : "gnu"}`;
const sysroot = execFileSync("rustc", ["--print", "sysroot"]).toString().trim();
const isInstalled = (target) => existsSync(join(sysroot, "lib/rustlib", target, "lib"));

function native(platform) {
  const target = rustTarget(platform);
  const isMusl = platform.libc === "musl";
  // A library shares the C library of the program that loads it.
  const env = isMusl ? { RUSTFLAGS: "-C target-feature=-crt-static" } : {};
  const oldest = isMusl ? ["musllinux_1_2", target] : ["manylinux_2_17", `${target}.2.17`];
  const forZig = `-target ${oldest[1].replace("-unknown", "")}`;
  // Binary tools that this machine has for another processor have names of Debian's.
  const tools = platform.cpu === process.arch ? "" : `${target.split("-")[0]}-linux-gnu-`;
  // maturin and cargo-zigbuild would pass a C compiler of their own each, though both are zig. cargo would then compile what contains C,
  // and the core on it, once for each.
  const compiler = join(built, `${target}-cc`);
  mkdirSync(built, { recursive: true });
  writeFileSync(compiler, `#!/bin/sh\nexec cargo-zigbuild zig cc -- -g -fno-sanitize=all ${forZig} "$@"\n`, { mode: 0o755 });
  env[`CC_${target.replaceAll("-", "_")}`] = compiler;
  env[`AR_${target.replaceAll("-", "_")}`] = `${tools}ar`;

  const wheel = ["--manifest-path", join(python, "Cargo.toml"), "--out", join(out, "python"), "--compatibility", oldest[0]];
  for (const interpreter of [[], ...FREE_THREADED.map((free) => ["--interpreter", free])]) {
    run("maturin", ["build", "--quiet", "--release", "--zig", "--target", target, ...wheel, ...interpreter], env);
  }

  const release = ["zigbuild", "--quiet", "--release", "--target", oldest[1]];
  run("cargo", [...release, "--package", "workglow-limit-node"], env);
  const addon = join(built, `${platform.name}.node`);
  // (With cargo's own option `strip`, it would compile all crates a second time.)
  run(`${tools}strip`, ["--strip-debug", "-o", addon, join(built, target, "release/libworkglow_limit_node.so")]);
  npmPack(platform.name, addon);

  const name = `workglow-limit-c-${version}-${platform.name}`;
  const c = join(built, "c", platform.name);
  // The command's man pages are the same everywhere: that of the npm package, which this machine can run, writes them.
  const own = "C_RUN=node bindings/node/dist/cjs/command.cjs";
  const library = [`C=${c}`, `C_BUILD=cargo ${release.join(" ")}`, `C_BUILT=${join(built, target, "release")}`, `C_TOOLS=${tools}`, own];
  library.push(`C_LINK=python3 -m ziglang cc ${forZig}`, "C_LIBS=-lutil -lrt -lpthread -lm -ldl -lunwind");
  rmSync(c, { recursive: true, force: true });
  run("make", ["install", ...library, `PREFIX=/${name}`, `DESTDIR=${c}/root`], env);
  for (const file of LICENCES) copyFileSync(join(root, file), join(c, "root", name, file));
  mkdirSync(join(out, "c"), { recursive: true });
  run("tar", ["-czf", join(out, "c", `${name}.tar.gz`), "--owner=0", "--group=0", "-C", join(c, "root"), name]);
}

const names = platforms.map(({ name }) => name);
const wanted = process.argv.slice(2);
const unknown = wanted.filter((name) => name !== "sources" && !names.includes(name));
if (unknown.length > 0) {
  console.error(`no platform named ${unknown.join(", ")}; there are ${names.join(", ")}, and "sources"`);
  process.exit(2);
}
const isWanted = (name) => wanted.length === 0 || wanted.includes(name);

rmSync(out, { recursive: true, force: true });
mkdirSync(out, { recursive: true });
for (const file of LICENCES) copyFileSync(join(root, file), join(python, file));
writeFileSync(join(python, "LICENSE-THIRD-PARTY"), execFileSync(join(root, "scripts/notices"), ["workglow-limit-python"]));
if (isWanted("sources")) sources();
for (const platform of platforms.filter(({ name }) => isWanted(name))) {
  const target = rustTarget(platform);
  if (isInstalled(target)) native(platform);
  else {
    console.error(`${platform.name} is not built, because its Rust target is missing: rustup target add ${target}`);
    if (wanted.length > 0) process.exitCode = 1;
  }
}
