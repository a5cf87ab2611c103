// The lines that differ between two texts.
import { html, Text } from "./ui.js";
import { T } from "./texts.js";

/**
 * Returns the lines of both texts with " ", "-" or "+" before each: the longest common lines stay. Texts of more than
 * 2,000 lines are shown as replaced whole.
 * @param {string} from @param {string} to @returns {string[]}
 */
export function diffLines(from, to) {
  const a = from.split("\n"), b = to.split("\n");
  if (a.length * b.length > 4e6) return [...a.map((l) => "-" + l), ...b.map((l) => "+" + l)];
  const w = b.length + 1;
  const best = new Uint32Array((a.length + 1) * w);
  for (let i = a.length - 1; i >= 0; i--) {
    for (let j = b.length - 1; j >= 0; j--) {
      best[i * w + j] = a[i] === b[j] ? best[(i + 1) * w + j + 1] + 1 : Math.max(best[(i + 1) * w + j], best[i * w + j + 1]);
    }
  }
  const out = [];
  let i = 0, j = 0;
  while (i < a.length || j < b.length) {
    if (i < a.length && j < b.length && a[i] === b[j]) { out.push(" " + a[i]); i++; j++; }
    else if (i < a.length && (j >= b.length || best[(i + 1) * w + j] >= best[i * w + j + 1])) out.push("-" + a[i++]);
    else out.push("+" + b[j++]);
  }
  return out;
}

/** @param {{from: string, to: string}} p */
export function Diff({ from, to }) { return html`<${DiffLines} lines=${diffLines(from, to)} />`; }

/** Lines of a diff that begin with their sign. @param {{lines: string[]}} p */
export function DiffLines({ lines }) {
  return html`<div class="diff" role="group" tabindex="0" aria-label=${T.changes}>${lines.map((l) => html`<div class=${l[0] === "+" ? "add" : l[0] === "-" ? "del" : ""}><${Text}>${l}<//></div>`)}</div>`;
}
