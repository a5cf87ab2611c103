// Writes the schema of each protocol revision, as the suite carries it in its
// own source, to a folder: schemas.mjs FOLDER.
import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";

const out = process.argv[2];
const source = readFileSync(new URL("./node_modules/conformance-0.2/dist/index.js", import.meta.url), "utf8");

// Each schema is an object literal that begins with its dialect.
const begin = /\{\$schema:`https?:\/\/json-schema\.org\/[^`]*schema#?`,(?:\$defs|definitions):\{/g;

// literal is the balanced text from an opening brace on.
function literal(start) {
  let depth = 0;
  let quote = "";
  for (let i = start; i < source.length; i++) {
    const c = source[i];
    if (quote) {
      if (c === "\\") i++;
      else if (c === quote) quote = "";
    } else if (c === '"' || c === "'" || c === "`") quote = c;
    else if (c === "{") depth++;
    else if (c === "}" && --depth === 0) return source.slice(start, i + 1);
  }
  throw new Error("a schema has no end");
}

// The revisions are told apart by what each was the first to define.
function revision(defs) {
  if (!defs.JSONRPCMessage) return "";
  if (defs.DiscoverResult) return "2026-07-28";
  if (defs.CreateTaskResult) return "2025-11-25";
  if (defs.ElicitRequest) return "2025-06-18";
  return "2025-03-26";
}

for (const found of source.matchAll(begin)) {
  const schema = new Function("return " + literal(found.index))();
  const name = revision(schema.$defs ?? schema.definitions);
  if (name) writeFileSync(join(out, name + ".json"), JSON.stringify(schema));
}
