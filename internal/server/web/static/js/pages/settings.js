// Settings: every setting with its value and where it comes from.
import { useState } from "preact/hooks";
import { html, Badge, Button, Dialog, Failure, Head, Rows, Search, Text, toast, useLoad } from "../ui.js";
import { T } from "../texts.js";
import { has, run } from "../store.js";
import { route, setQuery } from "../route.js";
import { Editor } from "../editor.js";

const S = T.settings;

export default function Settings() {
  const { value, error, again } = useLoad(() => run("config_show"), []);
  const [text, setText] = useState(route.value.query.get("q") ?? "");
  const [changed, setChanged] = useState(false);
  const [open, setOpen] = useState(/** @type {any} */ (null));
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  const list = (value?.settings ?? []).filter((/** @type {any} */ s) => (!changed || s.source !== "default") && words.every((w) => (s.path + " " + s.doc).toLowerCase().includes(w)));
  return html`<${Head} title=${T.pages.settings} sub=${value?.file ? S.file(value.file) : S.noFile} actions=${html`<label class="check"><input type="checkbox" checked=${changed} onChange=${(/** @type {any} */ e) => setChanged(e.target.checked)} /> ${S.onlySet}</label>
      <${Search} value=${text} onInput=${(/** @type {string} */ v) => { setText(v); setQuery(v ? { q: v } : {}); }} label=${S.search} />`} />
    <${Failure} error=${error} />
    ${value?.restart?.length > 0 ? html`<div class="notice warn"><span>${S.restart} <code>${value.restart.join(", ")}</code></span></div>` : null}
    <div class="card list-card">${value ? html`<${Rows} items=${list} height=${76} label=${T.pages.settings} keyOf=${(/** @type {any} */ s) => s.path} row=${(/** @type {any} */ s) => html`
      <button type="button" class="setting-row" onClick=${() => setOpen(s)}><span class="stack-1"><strong class="mono"><${Text}>${s.path}<//></strong><span class="muted small clip-2"><${Text}>${s.doc}<//></span></span>
        <span class="mono small clip value"><${Text}>${s.secret && s.value !== undefined ? "••••••" : s.value === undefined ? "" : JSON.stringify(s.value)}<//></span>
        <${Badge} tone=${s.source === "default" ? "" : "info"}><${Text}>${s.source}<//><//></button>`} />` : null}</div>
    ${open ? html`<${One} s=${open} onClose=${() => { setOpen(null); again(); }} />` : null}`;
}

/** @param {{s: any, onClose: () => void}} p */
function One({ s, onClose }) {
  const [text, setText] = useState(s.value === undefined ? "" : JSON.stringify(s.value, null, 2));
  const [error, setError] = useState(/** @type {any} */ (null));
  const save = async (/** @type {boolean} */ clear) => {
    try {
      const got = await run("config_set", { path: s.path, ...(clear ? {} : { value: JSON.parse(text) }) });
      toast(got.restart.length > 0 ? S.needsRestart : T.saved);
      onClose();
    } catch (e) { setError(e); }
  };
  return html`<${Dialog} wide title=${s.path} onClose=${onClose}><div class="stack"><p class="prose"><${Text}>${s.doc}<//></p>
    <p class="row wrap"><${Badge}>${s.type}<//><${Badge} tone=${s.source === "default" ? "" : "info"}><${Text}>${s.source}<//><//>${s.live ? html`<${Badge} tone="good">${S.live}<//>` : html`<${Badge} tone="warn">${S.needsRestart}<//>`}</p>
    ${s.secret ? html`<p class="muted">${S.secret}</p>` : s.enum ? html`<select aria-label=${s.path} value=${text} onChange=${(/** @type {any} */ e) => setText(e.target.value)}>${s.enum.map((/** @type {string} */ v) => html`<option value=${JSON.stringify(v)}>${v}</option>`)}</select>`
      : html`<${Editor} text=${text} onChange=${setText} label=${s.path} readOnly=${!has("config_set")} />`}
    <${Failure} error=${error} />${has("config_set") && !s.secret ? html`<div class="row"><${Button} kind="primary" onClick=${() => save(false)}>${T.save}<//><${Button} onClick=${() => save(true)}>${S.clear}<//></div>` : html`<p class="muted">${T.readOnly}</p>`}</div><//>`;
}
