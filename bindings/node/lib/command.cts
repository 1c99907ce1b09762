#!/usr/bin/env node
// The command workglow-limit: the same program that `cargo install` and the C prefix have.

import addon = require("./addon.cjs");

// Nothing here touches process.stdout: Node would make it a stream that the command, which writes by itself, does not expect.
process.exitCode = (addon as { runCommand(args: string[]): number }).runCommand(["workglow-limit", ...process.argv.slice(2)]);
