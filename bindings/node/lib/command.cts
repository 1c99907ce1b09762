#!/usr/bin/env node
// The command workglow-limit: the same program that `cargo install` and the C prefix install.

import addon = require("./addon.cjs");

// This file must not touch process.stdout: Node would make it a stream, but the command writes to the file descriptor.
process.exitCode = (addon as { runCommand(args: string[]): number }).runCommand(["workglow-limit", ...process.argv.slice(2)]);
