// JSON Patch (RFC 6902) with add, replace and remove, as the host's resources send it.

/**
 * Returns a document with a patch applied. What the patch does not touch is the same object as before.
 * @param {any} doc @param {{op: string, path: string, value?: any}[]} patch
 */
export function applyPatch(doc, patch) {
  for (const { op, path, value } of patch) doc = change(doc, split(path), op, value);
  return doc;
}

/** @param {string} pointer */
export function split(pointer) {
  return pointer === "" ? [] : pointer.slice(1).split("/").map((p) => p.replaceAll("~1", "/").replaceAll("~0", "~"));
}

/** @param {any} node @param {string[]} path @param {string} op @param {any} value @returns {any} */
function change(node, path, op, value) {
  if (path.length === 0) return op === "remove" ? null : value;
  const [key, ...rest] = path;
  if (Array.isArray(node)) {
    const copy = node.slice();
    const at = key === "-" ? copy.length : Number(key);
    if (!(at >= 0 && at <= copy.length)) throw new Error(`there is no element ${key}`);
    if (rest.length > 0) copy[at] = change(copy[at], rest, op, value);
    else if (op === "add") copy.splice(at, 0, value);
    else if (op === "remove") copy.splice(at, 1);
    else copy[at] = value;
    return copy;
  }
  if (node === null || typeof node !== "object") throw new Error(`there is nothing at ${key}`);
  const copy = { ...node };
  if (rest.length > 0) copy[key] = change(copy[key], rest, op, value);
  else if (op === "remove") delete copy[key];
  else copy[key] = value;
  return copy;
}
