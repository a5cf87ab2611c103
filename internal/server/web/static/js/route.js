// The address of what is shown: #/page/rest?query, so that each view can be linked to.
import { signal } from "@preact/signals";

/** @typedef {{page: string, rest: string[], query: URLSearchParams}} Route */

/** @returns {Route} */
function parse() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  const [page, ...rest] = path.split("/").map((part) => { try { return decodeURIComponent(part); } catch { return part; } });
  return { page: page || "now", rest, query: new URLSearchParams(query) };
}

export const route = signal(parse());

addEventListener("hashchange", () => { route.value = parse(); });

/**
 * Returns the link to a page.
 * @param {string} page @param {string[]} [rest] @param {Record<string, string>} [query]
 */
export function link(page, rest = [], query = {}) {
  const q = new URLSearchParams(Object.entries(query).filter(([, v]) => v)).toString();
  return "#/" + [page, ...rest].map(encodeURIComponent).join("/") + (q ? "?" + q : "");
}

/** @param {string} page @param {string[]} [rest] @param {Record<string, string>} [query] */
export function go(page, rest, query) { location.hash = link(page, rest, query).slice(1); }

/** Changes the query of the present address without a new entry in the history. @param {Record<string, string>} query */
export function setQuery(query) {
  history.replaceState(null, "", link(route.value.page, route.value.rest, query));
}
