// State: the live tree of the host. What has just changed is lit.
import { useEffect, useRef, useState } from "preact/hooks";
import { html, Card, Head, Search, Text } from "../ui.js";
import { T } from "../texts.js";
import { state, touched } from "../store.js";
import { route, setQuery } from "../route.js";

const most = 200;

export default function State() {
  const [text, setText] = useState(route.value.query.get("q") ?? "");
  const lit = useRef(/** @type {Map<string, number>} */ (new Map()));
  const [log, setLog] = useState(/** @type {{at: number, path: string}[]} */ ([]));
  const [, paint] = useState(0);
  const seen = useRef(touched.value.at);
  useEffect(() => touched.subscribe(({ at, paths }) => {
    if (at === seen.current) return;
    seen.current = at;
    const now = Date.now();
    for (const p of paths) lit.current.set(p, now);
    setLog((l) => [...paths.map((path) => ({ at: now, path })).reverse(), ...l].slice(0, 50));
    setTimeout(() => {
      for (const [p, t] of lit.current) if (Date.now() - t > 2400) lit.current.delete(p);
      paint((n) => n + 1);
    }, 2500);
  }), []);
  return html`<${Head} title=${T.pages.state} sub=${T.state.sub} actions=${html`<${Search} value=${text} onInput=${(/** @type {string} */ v) => { setText(v); setQuery(v ? { q: v } : {}); }} label=${T.state.filter} />`} />
    <div class="grid two"><${Card} title="gatehouse:///public"><div class="tree" role="tree" aria-label=${T.pages.state}>
      <${Node} name="public" value=${state.value} path="" lit=${lit.current} text=${text.toLowerCase()} level=${0} key="root" /></div><//>
      <${Card} title=${T.now.events} flush>${log.length === 0 ? html`<p class="muted pad">${T.now.noEvents}</p>` : html`<ul class="changes-list">${log.map((l) => html`<li><time class="muted num">${new Date(l.at).toLocaleTimeString([], { hour12: false })}</time><code class="clip"><${Text}>${l.path}<//></code></li>`)}</ul>`}<//></div>`;
}

/** @param {any} value @param {string} name @param {string} text @returns {boolean} */
function matches(value, name, text) {
  if (name.toLowerCase().includes(text)) return true;
  if (value !== null && typeof value === "object") return Object.entries(value).some(([k, v]) => matches(v, k, text));
  return String(value).toLowerCase().includes(text);
}

/** @param {{name: string, value: any, path: string, lit: Map<string, number>, text: string, level: number}} p @returns {any} */
function Node({ name, value, path, lit, text, level }) {
  const deep = value !== null && typeof value === "object";
  const [open, setOpen] = useState(level < 1 || level < 2 && deep && Object.keys(value).length < 12);
  const [shown, setShown] = useState(most);
  const glow = lit.has(path) ? " lit" : "";
  if (text && !matches(value, name, text)) return null;
  if (!deep) return html`<div class=${"leaf" + glow} role="treeitem" aria-level=${level + 1}><span class="key"><${Text}>${name}<//></span> <span class=${"v-" + (value === null ? "null" : typeof value)}><${Text}>${String(value)}<//></span></div>`;
  const entries = Object.entries(value);
  const isOpen = open || Boolean(text);
  return html`<div class="branch" role="treeitem" aria-expanded=${isOpen ? "true" : "false"} aria-level=${level + 1}>
    <button type="button" class=${"twig" + glow} onClick=${() => setOpen(!open)}><span class="twist" aria-hidden="true">${isOpen ? "▾" : "▸"}</span><span class="key"><${Text}>${name}<//></span><span class="muted small num">${entries.length}</span></button>
    ${isOpen && entries.length > 0 ? html`<div role="group" class="twigs">${entries.slice(0, shown).map(([k, v]) => html`<${Node} key=${k} name=${k} value=${v} path=${path + "/" + k.replaceAll("~", "~0").replaceAll("/", "~1")} lit=${lit} text=${name.toLowerCase().includes(text) ? "" : text} level=${level + 1} />`)}
      ${entries.length > shown ? html`<button type="button" class="link" onClick=${() => setShown(shown + most)}>${T.moreRows(entries.length - shown)}</button>` : null}</div>` : null}</div>`;
}
