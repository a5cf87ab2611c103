#!/usr/bin/env node
// Starts the program that the package of this platform holds. Signals and the exit code are
// passed on; standard input and output are the program's own.
"use strict";

const { spawn } = require("node:child_process");
const os = require("node:os");

const name = `gatehouse-${process.platform}-${process.arch}`;
const file = process.platform === "win32" ? "gatehouse.exe" : "gatehouse";

let program;
try {
  program = require.resolve(`${name}/bin/${file}`);
} catch {
  console.error(
    `gatehouse: the package ${name} is not installed. Install gatehouse again without --no-optional ` +
      `and --omit=optional; if there is no such package, there is no program for this platform.`,
  );
  process.exit(1);
}

const child = spawn(program, process.argv.slice(2), { stdio: "inherit" });
for (const signal of ["SIGINT", "SIGTERM", "SIGHUP"]) {
  process.on(signal, () => child.kill(signal));
}
child.on("error", (error) => {
  console.error(`gatehouse: ${error.message}`);
  process.exit(1);
});
child.on("exit", (code, signal) => process.exit(signal ? 128 + os.constants.signals[signal] : code));
