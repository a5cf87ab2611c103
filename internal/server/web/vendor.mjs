// Vendors the libraries of the pages from the npm registry: node vendor.mjs [--check]
//
// It packs each package below in its version, checks the integrity that npm states, and writes the files
// that the pages load to lib/, compressed, with lib/index.json: version, licence, integrity of the package
// and SHA-256 of each file. With --check it writes nothing, and fails if lib/ differs.
import { execFileSync } from "node:child_process";
import { createHash } from "node:crypto";
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync, existsSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { gzipSync, gunzipSync } from "node:zlib";

/** The packages: version, the module that an import of the name loads, and what else is served. */
const packages = {
  "preact": ["11.2.0", { "preact": "dist/preact.mjs", "preact/hooks": "hooks/dist/hooks.mjs" }],
  "htm": ["3.1.1", { "htm": "dist/htm.mjs" }],
  "@preact/signals-core": ["1.14.5", { "@preact/signals-core": "dist/signals-core.mjs" }],
  "@preact/signals": ["2.11.4", { "@preact/signals": "dist/signals.mjs" }],
  "uplot": ["1.6.32", { "uplot": "dist/uPlot.esm.js" }, ["dist/uPlot.min.css"]],
  "@xterm/xterm": ["6.0.0", { "@xterm/xterm": "lib/xterm.mjs" }, ["css/xterm.css"]],
  "@xterm/addon-fit": ["0.11.0", { "@xterm/addon-fit": "lib/addon-fit.mjs" }],
  "@codemirror/state": ["6.7.6", { "@codemirror/state": "dist/index.js" }],
  "@codemirror/view": ["6.43.15", { "@codemirror/view": "dist/index.js" }],
  "@codemirror/language": ["6.13.1", { "@codemirror/language": "dist/index.js" }],
  "@codemirror/streamparser": ["6.0.0", { "@codemirror/streamparser": "dist/index.js" }],
  "@codemirror/commands": ["6.11.1", { "@codemirror/commands": "dist/index.js" }],
  "@codemirror/lang-yaml": ["6.1.3", { "@codemirror/lang-yaml": "dist/index.js" }],
  "@lezer/common": ["1.5.5", { "@lezer/common": "dist/index.js" }],
  "@lezer/highlight": ["1.2.5", { "@lezer/highlight": "dist/index.js" }],
  "@lezer/lr": ["1.4.12", { "@lezer/lr": "dist/index.js" }],
  "@lezer/yaml": ["1.0.4", { "@lezer/yaml": "dist/index.js" }],
  "style-mod": ["4.1.4", { "style-mod": "src/style-mod.js" }],
  "w3c-keyname": ["2.2.8", { "w3c-keyname": "index.js" }],
  "crelt": ["1.0.7", { "crelt": "index.js" }],
  "@marijn/find-cluster-break": ["1.0.4", { "@marijn/find-cluster-break": "src/index.js" }],
};

const here = dirname(fileURLToPath(import.meta.url));
const lib = join(here, "lib");
const work = mkdtempSync(join(tmpdir(), "vendor"));
const check = process.argv.includes("--check");
const index = [];
const files = new Map();

function digest(algorithm, bytes, encoding) {
  return createHash(algorithm).update(bytes).digest(encoding);
}

try {
  for (const [name, [version, imports, more = []]] of Object.entries(packages)) {
    const said = execFileSync("npm", ["pack", `${name}@${version}`, "--json"], { cwd: work, encoding: "utf8" });
    const packed = Object.values(JSON.parse(said))[0];
    const archive = join(work, packed.filename.replace("@", "").replace("/", "-"));
    const integrity = "sha512-" + digest("sha512", readFileSync(archive), "base64");
    if (integrity !== packed.integrity) throw new Error(`${name}: got ${integrity}, the registry says ${packed.integrity}`);
    const folder = join(work, name.replace("/", "-"));
    mkdirSync(folder);
    execFileSync("tar", ["xzf", archive, "-C", folder, "--strip-components=1"]);
    const manifest = JSON.parse(readFileSync(join(folder, "package.json"), "utf8"));
    const licence = ["LICENSE", "LICENSE.md", "LICENCE"].filter((f) => existsSync(join(folder, f)));
    if (licence.length === 0) throw new Error(`${name}: no licence file`);
    const entry = { name, version, licence: manifest.license, integrity, imports: {}, files: {} };
    for (const path of [...Object.values(imports), ...more, licence[0]]) {
      const bytes = Buffer.from(readFileSync(join(folder, path), "utf8").replace(/\n?\/\/# sourceMappingURL=\S*\s*$/, "\n"));
      const at = `${name}/${path.split("/").pop()}`;
      entry.files[at] = digest("sha256", bytes, "hex");
      files.set(at, bytes);
    }
    for (const [word, path] of Object.entries(imports)) entry.imports[word] = `${name}/${path.split("/").pop()}`;
    index.push(entry);
  }
  const text = JSON.stringify(index, null, 1) + "\n";
  if (check) {
    if (readFileSync(join(lib, "index.json"), "utf8") !== text) throw new Error("lib/index.json differs: run node vendor.mjs");
    for (const [at, bytes] of files) {
      if (!gunzipSync(readFileSync(join(lib, at + ".gz"))).equals(bytes)) throw new Error(`lib/${at}.gz differs`);
    }
  } else {
    rmSync(lib, { recursive: true, force: true });
    for (const [at, bytes] of files) {
      mkdirSync(dirname(join(lib, at)), { recursive: true });
      writeFileSync(join(lib, at + ".gz"), gzipSync(bytes, { level: 9 }));
    }
    writeFileSync(join(lib, "index.json"), text);
  }
} finally {
  rmSync(work, { recursive: true, force: true });
}
