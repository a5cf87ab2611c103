// What a tool answered: text, images, sounds, resources, and structured content as tables.
import { useState } from "preact/hooks";
import { html, Badge, Button, Code, Segments, Table, Text } from "./ui.js";
import { T } from "./texts.js";
import { client } from "./store.js";

/** @param {{result: any, endpoint: string}} p */
export function Result({ result, endpoint }) {
  const [as, setAs] = useState("view");
  const structured = result.structuredContent;
  const fields = result._meta?.["gatehouse/fields"];
  const content = result.content ?? [];
  const blocks = (fields ? content.slice(0, -1) : content).filter((/** @type {any} */ b) =>
    !(structured !== undefined && b.type === "text" && sameJson(b.text, structured)));
  return html`<div class="result">
    <div class="row between"><div class="row">${result.isError ? html`<${Badge} tone="bad" dot>${T.failed}<//>` : html`<${Badge} tone="good" dot>${T.succeeded}<//>`}</div>
      <${Segments} label=${T.showAs} value=${as} onChange=${setAs} options=${[["view", T.view], ["json", "JSON"]]} /></div>
    ${as === "json" ? html`<${Code} text=${JSON.stringify(result, null, 2)} />` : html`
      ${blocks.map((/** @type {any} */ b) => html`<${Block} block=${b} endpoint=${endpoint} />`)}
      ${structured !== undefined ? html`<${Value} value=${structured} />` : null}
      ${fields ? html`<${Value} value=${fields} />` : null}`}
  </div>`;
}

/** @param {string} text @param {any} value */
function sameJson(text, value) {
  try { return JSON.stringify(JSON.parse(text)) === JSON.stringify(value); } catch { return false; }
}

const images = new Set(["image/png", "image/jpeg", "image/gif", "image/webp", "image/avif"]);

/** @param {{block: any, endpoint: string}} p @returns {any} */
export function Block({ block, endpoint }) {
  switch (block.type) {
    case "text":
      return html`<${Code} text=${block.text} label=${T.text} />`;
    case "image":
      if (!images.has(block.mimeType)) return html`<p class="muted">${T.notShown(block.mimeType)}</p>`;
      return html`<img class="shot" alt=${T.imageOfResult} src=${"data:" + block.mimeType + ";base64," + block.data} />`;
    case "audio":
      return html`<p class="muted">${T.notShown(block.mimeType)}</p>`;
    case "resource_link":
      return html`<${Linked} link=${block} endpoint=${endpoint} />`;
    case "resource":
      return html`<div><p class="muted small"><${Text}>${block.resource.uri}<//></p><${Contents} of=${block.resource} /></div>`;
    default:
      return html`<${Code} text=${JSON.stringify(block, null, 2)} />`;
  }
}

/** @param {{link: any, endpoint: string}} p */
function Linked({ link, endpoint }) {
  const [got, setGot] = useState(/** @type {any} */ (null));
  const read = async () => {
    try {
      setGot(await client.request(endpoint, "resources/read", { uri: link.uri }, { name: link.uri }));
    } catch (e) { setGot({ failed: /** @type {Error} */ (e).message }); }
  };
  return html`<div class="linked"><div class="row"><${Text}>${link.title ?? link.name ?? link.uri}<//>
    <span class="muted small"><${Text}>${link.uri}<//></span><${Button} kind="small" onClick=${read}>${T.read}<//></div>
    ${got?.failed ? html`<p class="bad-text"><${Text}>${got.failed}<//></p>` : null}
    ${got?.contents?.map((/** @type {any} */ c) => html`<${Contents} of=${c} />`)}</div>`;
}

/** @param {{of: any}} p */
function Contents({ of }) {
  if (of.text !== undefined) return html`<${Code} text=${of.text} />`;
  if (images.has(of.mimeType)) return html`<img class="shot" alt=${T.imageOfResult} src=${"data:" + of.mimeType + ";base64," + of.blob} />`;
  return html`<p class="muted">${T.notShown(of.mimeType ?? "")}</p>`;
}

const most = 100;

/** A JSON value: lists of objects as tables, objects as names and values. @param {{value: any, level?: number}} p @returns {any} */
export function Value({ value, level = 0 }) {
  const [shown, setShown] = useState(most);
  if (value === null || value === undefined) return html`<span class="muted">${String(value)}</span>`;
  if (typeof value !== "object") return html`<${Scalar} value=${value} />`;
  if (level > 5) return html`<code><${Text}>${JSON.stringify(value)}<//></code>`;
  if (Array.isArray(value)) {
    if (value.length === 0) return html`<span class="muted">${T.none}</span>`;
    const some = value.slice(0, shown);
    const rest = value.length > shown ? html`<${Button} kind="small" onClick=${() => setShown(shown + most)}>${T.moreRows(value.length - shown)}<//>` : null;
    if (value.every((v) => v !== null && typeof v === "object" && !Array.isArray(v))) {
      const names = [...new Set(some.flatMap((v) => Object.keys(v)))].slice(0, 12);
      return html`<${Table} label=${T.table} rows=${some} columns=${names.map((n) => ({
        title: n, num: some.every((v) => v[n] === undefined || typeof v[n] === "number"),
        of: (/** @type {any} */ r) => r[n] === undefined ? "" : html`<${Value} value=${r[n]} level=${level + 1} />`,
      }))} />${rest}`;
    }
    return html`<ul class="plain">${some.map((v) => html`<li><${Value} value=${v} level=${level + 1} /></li>`)}</ul>${rest}`;
  }
  const entries = Object.entries(value);
  if (entries.length === 0) return html`<span class="muted">${T.none}</span>`;
  return html`<dl class="kv">${entries.map(([k, v]) => html`<div><dt><${Text}>${k}<//></dt><dd><${Value} value=${v} level=${level + 1} /></dd></div>`)}</dl>`;
}

/** @param {{value: any}} p */
function Scalar({ value }) {
  if (typeof value === "boolean") return html`<${Badge} tone=${value ? "good" : ""}>${value ? T.yes : T.no}<//>`;
  if (typeof value === "number") return html`<span class="num">${Number.isInteger(value) && Math.abs(value) > 9999 ? value.toLocaleString("en-US") : String(value)}</span>`;
  return html`<span class="str"><${Text}>${value}<//></span>`;
}
