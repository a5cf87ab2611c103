// The parts that pages are made of.
import { h, Fragment } from "preact";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { signal } from "@preact/signals";
import htm from "htm";
import { T } from "./texts.js";

/** @type {(strings: TemplateStringsArray, ...values: any[]) => any} */
export const html = htm.bind(h);
export { Fragment };

/** Paths of icons on a grid of 24, drawn with strokes. */
const icons = {
  now: "M3 12h4l3-8 4 16 3-8h4",
  approvals: "M12 3l7 3v5c0 5-3 8-7 10-4-2-7-5-7-10V6zM9 12l2 2 4-4",
  review: "M5 4h9l5 5v11H5zM14 4v5h5M9 13h6M12 10v6M9 18h6",
  tools: "M14.700 6.300a4 4 0 0 0-5 5L3 18l3 3 6.700-6.700a4 4 0 0 0 5-5l-2.700 2.700-2.500-.5-.5-2.500z",
  packages: "M12 3l8 4.500v9L12 21l-8-4.500v-9zM4 7.500l8 4.500 8-4.500M12 12v9",
  ledger: "M5 4h14v16H5zM9 8h6M9 12h6M9 16h4",
  contexts: "M12 3l9 5-9 5-9-5zM3 12l9 5 9-5M3 16l9 5 9-5",
  sandboxes: "M4 4h16v16H4zM4 9h16M9 9v11",
  processes: "M5 5h14v14H5zM9 10l2 2-2 2M13 14h3",
  state: "M12 4v5M6 20v-4h12v4M12 9v7M10 4h4",
  measures: "M4 20V4M4 20h16M8 16v-4M12 16V8M16 16v-6",
  settings: "M4 7h10M18 7h2M4 17h2M10 17h10M16 5v4M8 15v4",
  doctor: "M12 5v14M5 12h14M4 4h16v16H4z",
  connect: "M9 15l6-6M8 11l-2 2a3.500 3.500 0 0 0 5 5l2-2M16 13l2-2a3.500 3.500 0 0 0-5-5l-2 2",
  people: "M9 11a3.500 3.500 0 1 0 0-7 3.500 3.500 0 0 0 0 7zM3 20c0-4 3-6 6-6s6 2 6 6M16 5a3 3 0 0 1 0 6M18 14.500c2 .8 3 2.500 3 5",
  search: "M11 4a7 7 0 1 0 0 14 7 7 0 0 0 0-14zM16 16l4 4",
  sun: "M12 8a4 4 0 1 0 0 8 4 4 0 0 0 0-8zM12 2v3M12 19v3M2 12h3M19 12h3M5 5l2 2M17 17l2 2M5 19l2-2M17 7l2-2",
  moon: "M20 14a8 8 0 1 1-9-11 6.500 6.500 0 0 0 9 11z",
  menu: "M4 6h16M4 12h16M4 18h16",
  close: "M6 6l12 12M18 6L6 18",
  copy: "M9 9h11v11H9zM5 15V4h11",
  check: "M5 12l5 5 9-10",
  alert: "M12 4l9 16H3zM12 10v4M12 17v.5",
  play: "M7 4l12 8-12 8z",
  stop: "M6 6h12v12H6z",
  chevron: "M9 6l6 6-6 6",
  user: "M12 12a4 4 0 1 0 0-8 4 4 0 0 0 0 8zM4 21c0-4 4-6 8-6s8 2 8 6",
  plus: "M12 5v14M5 12h14",
  lock: "M6 11h12v9H6zM8 11V8a4 4 0 0 1 8 0v3",
  refresh: "M20 11a8 8 0 1 0-2 6M20 4v7h-7",
  download: "M12 4v11M7 11l5 5 5-5M4 20h16",
};

/** @param {{name: keyof typeof icons, size?: number}} p */
export function Icon({ name, size = 18 }) {
  return html`<svg class="icon" width=${size} height=${size} viewBox="0 0 24 24" fill="none" stroke="currentColor"
    stroke-width="1.7" stroke-linecap="round" stroke-linejoin="round" aria-hidden="true"><path d=${icons[name]} /></svg>`;
}

// What does not show, or changes how the rest shows: controls, marks of direction, spaces of no width, tags.
const hidden = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff9-\ufffb]|[\u{e0000}-\u{e0fff}]/gu;

/** The name of a character that would hide. @param {string} c */
const nameOf = (c) => c === "\u001b" ? "ESC" : "U+" + /** @type {number} */ (c.codePointAt(0)).toString(16).toUpperCase().padStart(4, "0");

/** Text that others wrote, where only a text can be and no Text: in an attribute, or an option. @param {any} text */
export function plain(text) { return String(text ?? "").replace(hidden, (c) => c === "\r" ? "" : `[${nameOf(c)}]`); }

/** Text that others wrote: what would hide in it is shown by its number. @param {{children?: any}} p */
export function Text({ children }) {
  const text = Array.isArray(children) ? children.join("") : String(children ?? "");
  if (text.search(hidden) < 0) return html`<bdi>${text}</bdi>`;
  const parts = [];
  let from = 0;
  for (const m of text.matchAll(hidden)) {
    if (m[0] === "\r") continue;
    if (m.index > from) parts.push(text.slice(from, m.index));
    parts.push(html`<span class="hidden-char" title=${T.hiddenCharacter}>${nameOf(m[0])}</span>`);
    from = m.index + m[0].length;
  }
  parts.push(text.slice(from));
  return html`<bdi>${parts}</bdi>`;
}

/** What a part of a page shows: texts can be of others, so that they are shown as Text does. @param {any} v */
const shownAs = (v) => typeof v === "string" ? html`<${Text}>${v}<//>` : v;

/** @param {{tone?: string, children?: any, dot?: boolean}} p */
export function Badge({ tone = "", children, dot }) {
  return html`<span class=${"badge " + tone}>${dot ? html`<i class="dot" />` : null}${shownAs(children)}</span>`;
}

/** @param {any} p */
export function Button({ kind = "", icon, children, busy, ...rest }) {
  return html`<button type="button" class=${"button " + kind} disabled=${busy || rest.disabled} aria-busy=${busy ? "true" : undefined} ...${rest}>
    ${icon ? html`<${Icon} name=${icon} size=${16} />` : null}${children}</button>`;
}

/** @param {{title?: any, actions?: any, children?: any, flush?: boolean, id?: string}} p */
export function Card({ title, actions, children, flush, id }) {
  return html`<section class="card" id=${id} aria-label=${typeof title === "string" ? title : undefined}>
    ${title || actions ? html`<header class="card-head"><h2>${shownAs(title)}</h2><div class="row">${actions}</div></header>` : null}
    <div class=${flush ? "card-body flush" : "card-body"}>${children}</div></section>`;
}

/** @param {{title: string, sub?: any, actions?: any}} p */
export function Head({ title, sub, actions }) {
  return html`<div class="page-head"><div><h1 tabindex="-1">${shownAs(title)}</h1>${sub ? html`<p class="muted">${shownAs(sub)}</p>` : null}</div>
    <div class="row wrap">${actions}</div></div>`;
}

/** @param {{icon?: string, title: string, children?: any, action?: any}} p */
export function Empty({ icon = "check", title, children, action }) {
  return html`<div class="empty"><span class="empty-icon"><${Icon} name=${icon} size=${22} /></span><strong>${title}</strong>
    ${children ? html`<p class="muted">${children}</p>` : null}${action}</div>`;
}

/** @param {{error: any}} p */
export function Failure({ error }) {
  return error ? html`<div class="notice bad" role="alert"><${Icon} name="alert" /><${Text}>${error.message ?? String(error)}<//></div>` : null;
}

/** Resolves in a task of its own, so that what a page does at a time stays short. @returns {Promise<void>} */
export function nextTask() { return new Promise((done) => { setTimeout(done, 0); }); }

/** Counts up four times a minute, so that ages are right without a timer each. */
const clock = signal(Date.now());
setInterval(() => { if (!document.hidden) clock.value = Date.now(); }, 15000);

/** @param {number | string | Date | undefined} at */
export function age(at) {
  if (!at) return "";
  const s = Math.max(0, (clock.value - new Date(at).getTime()) / 1000);
  if (s < 5) return T.justNow;
  if (s < 60) return T.ago(Math.floor(s) + " s");
  if (s < 3600) return T.ago(Math.floor(s / 60) + " min");
  if (s < 86400) return T.ago(Math.floor(s / 3600) + " h");
  return T.ago(Math.floor(s / 86400) + " d");
}

/**
 * Returns a function that formats times. The format is made when it is first used, because making one takes longer
 * than to start the rest of the pages. @param {Intl.DateTimeFormatOptions} options @returns {(at: any) => string}
 */
export function timeFormat(options) {
  /** @type {Intl.DateTimeFormat | undefined} */
  let made;
  return (at) => (made ??= new Intl.DateTimeFormat([], options)).format(new Date(at));
}

const dateAndTime = timeFormat({ dateStyle: "medium", timeStyle: "medium" });

/** @param {{at: any}} p */
export function Age({ at }) {
  return at ? html`<time datetime=${new Date(at).toISOString()} title=${dateAndTime(at)}>${age(at)}</time>` : null;
}

export const clockTime = timeFormat({ timeStyle: "medium", hour12: false });

/** @param {number} n */
export function bytes(n) {
  if (!(n >= 1000)) return `${n ?? 0} B`;
  const unit = ["kB", "MB", "GB", "TB"][Math.min(3, Math.floor(Math.log10(n) / 3) - 1)];
  const v = n / 10 ** (3 * (["kB", "MB", "GB", "TB"].indexOf(unit) + 1));
  return `${v < 10 ? v.toFixed(1) : Math.round(v)} ${unit}`;
}

/** @param {number | undefined} ms */
export function span(ms) {
  if (ms === undefined || ms === null || Number.isNaN(ms)) return "";
  if (ms < 0.1) return "< 0.1 ms";
  if (ms < 10) return `${ms.toFixed(1)} ms`;
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 60000) return `${(ms / 1000).toFixed(1)} s`;
  return `${Math.floor(ms / 60000)} min ${Math.round(ms / 1000) % 60} s`;
}

/** What pops up for some seconds. */
export const toasts = signal(/** @type {{id: number, text: string, tone: string}[]} */ ([]));
let lastToast = 0;

/** @param {string} text @param {string} [tone] */
export function toast(text, tone = "") {
  const id = ++lastToast;
  toasts.value = [...toasts.value.slice(-3), { id, text, tone }];
  setTimeout(() => { toasts.value = toasts.value.filter((t) => t.id !== id); }, 6000);
}

/** @param {string} text */
export async function copy(text) {
  await navigator.clipboard.writeText(text);
  toast(T.copied);
}

/** Text of a program, with a button that copies it. @param {{text: string, label?: string}} p */
export function Code({ text, label }) {
  return html`<div class="code"><pre tabindex="0" aria-label=${label ?? T.code}><${Text}>${text}<//></pre>
    <button type="button" class="icon-button" onClick=${() => copy(text)} aria-label=${T.copy} title=${T.copy}><${Icon} name="copy" size=${15} /></button></div>`;
}

/** @param {{options: [string, string][], value: string, onChange: (v: string) => void, label: string}} p */
export function Segments({ options, value, onChange, label }) {
  return html`<div class="segments" role="group" aria-label=${label}>${options.map(([v, text]) => html`
    <button type="button" aria-pressed=${v === value ? "true" : "false"} onClick=${() => onChange(v)}>${text}</button>`)}</div>`;
}

/** A field of search, which / leads to. @param {{value: string, onInput: (v: string) => void, label: string, id?: string, wide?: boolean}} p */
export function Search({ value, onInput, label, id = "search", wide = false }) {
  return html`<label class=${wide ? "search wide" : "search"}><${Icon} name="search" size=${16} /><span class="sr">${label}</span>
    <input id=${id} type="search" placeholder=${label} value=${value} autocomplete="off" spellcheck=${false}
      onInput=${(/** @type {any} */ e) => onInput(e.target.value)} /></label>`;
}

/**
 * A list of which only the rows in view are in the document. All rows are of one height.
 * @param {{items: any[], row: (item: any, index: number) => any, height: number, label: string, role?: string, head?: any, keyOf?: (item: any) => string, end?: () => void}} p
 */
export function Rows({ items, row, height, label, head, keyOf, end }) {
  const box = useRef(/** @type {HTMLElement | null} */ (null));
  const [view, setView] = useState({ top: 0, size: 800 });
  useLayoutEffect(() => {
    const el = /** @type {HTMLElement} */ (box.current);
    const look = () => setView({ top: el.scrollTop, size: el.clientHeight });
    look();
    const size = new ResizeObserver(look);
    size.observe(el);
    el.addEventListener("scroll", look, { passive: true });
    return () => { size.disconnect(); el.removeEventListener("scroll", look); };
  }, []);
  const first = Math.max(0, Math.floor(view.top / height) - 10);
  const last = Math.min(items.length, Math.ceil((view.top + view.size) / height) + 10);
  useEffect(() => { if (end && last >= items.length) end(); }, [last, items.length]);
  return html`<div class="rows" ref=${box} tabindex="0" role="group" aria-label=${label}>
    ${head}
    <div class="rows-space" role="list" style=${{ height: items.length * height + "px" }}>
      ${items.slice(first, last).map((item, i) => html`<div class="rows-row" role="listitem" key=${keyOf ? keyOf(item) : first + i}
        style=${{ top: (first + i) * height + "px", height: height + "px" }}>${row(item, first + i)}</div>`)}
    </div></div>`;
}

/** @param {{title: string, onClose: () => void, children?: any, wide?: boolean}} p */
export function Dialog({ title, onClose, children, wide }) {
  const ref = useRef(/** @type {HTMLDialogElement | null} */ (null));
  useEffect(() => {
    const el = /** @type {HTMLDialogElement} */ (ref.current);
    const before = /** @type {HTMLElement | null} */ (document.activeElement);
    el.showModal();
    return () => { el.close(); before?.focus?.(); };
  }, []);
  return html`<dialog ref=${ref} class=${wide ? "wide" : ""} aria-label=${title} onCancel=${(/** @type {Event} */ e) => { e.preventDefault(); onClose(); }}>
    <header class="card-head"><h2>${shownAs(title)}</h2><button type="button" class="icon-button" onClick=${onClose} aria-label=${T.close}><${Icon} name="close" /></button></header>
    <div class="card-body">${children}</div></dialog>`;
}

/**
 * Runs an asynchronous function when its dependencies change, and returns what came of it.
 * @template V @param {() => Promise<V>} f @param {any[]} deps
 * @returns {{value: V | undefined, error: any, loading: boolean, again: () => void}}
 */
export function useLoad(f, deps) {
  const [got, set] = useState(/** @type {{value: V | undefined, error: any, loading: boolean}} */ ({ value: undefined, error: undefined, loading: true }));
  const [round, again] = useState(0);
  useEffect(() => {
    let over = false;
    f().then((value) => { if (!over) set({ value, error: undefined, loading: false }); },
      (error) => { if (!over) set((g) => ({ value: g.value, error, loading: false })); });
    return () => { over = true; };
  }, [...deps, round]);
  return { ...got, again: () => again((n) => n + 1) };
}

/** A line of names and values. @param {{of: [string, any][]}} p */
export function Facts({ of }) {
  return html`<dl class="facts">${of.filter(([, v]) => v !== undefined && v !== null && v !== "").map(([k, v]) => html`<div><dt>${shownAs(k)}</dt><dd>${shownAs(v)}</dd></div>`)}</dl>`;
}

/** @param {{columns: {title: string, of: (row: any) => any, num?: boolean}[], rows: any[], label: string, keyOf?: (row: any) => string}} p */
export function Table({ columns, rows, label, keyOf }) {
  return html`<div class="table" tabindex="0" role="group" aria-label=${label}><table><thead><tr>${columns.map((c) => html`<th class=${c.num ? "num" : ""} scope="col">${c.title || html`<span class="sr">${T.actions}</span>`}</th>`)}</tr></thead>
    <tbody>${rows.map((r, i) => html`<tr key=${keyOf ? keyOf(r) : i}>${columns.map((c) => html`<td class=${c.num ? "num" : ""}>${shownAs(c.of(r))}</td>`)}</tr>`)}</tbody></table></div>`;
}
