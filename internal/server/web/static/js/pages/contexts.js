// Contexts: what each shows, two side by side, and what a role may do in one.
import { useEffect, useState } from "preact/hooks";
import { html, Badge, Button, Card, Empty, Failure, Head, Text, toast, useLoad } from "../ui.js";
import { T } from "../texts.js";
import { has, HOME, loadTools, run, state, tools } from "../store.js";
import { route, link, go } from "../route.js";
import { Editor } from "../editor.js";
import { Value } from "../result.js";

const C = T.contexts;

/** @param {string} name */
const endpointOf = (name) => HOME + "/" + name;

export default function Contexts() {
  const names = Object.keys(state.value?.contexts ?? {}).sort();
  const name = route.value.rest[0];
  const other = route.value.query.get("with") ?? "";
  return html`<${Head} title=${T.pages.contexts} sub=${C.sub} />
    <div class=${"split " + (name ? "open" : "")}>
      <div class="split-list card"><ul class="picks">${names.map((n) => html`<li key=${n}><a href=${link("contexts", [n])} aria-current=${n === name ? "true" : undefined}>
        <span class="row between"><strong><${Text}>${n}<//></strong>${state.value.contexts[n].default ? html`<${Badge}>${C.default}<//>` : null}</span>
        <span class="muted small clip"><${Text}>${state.value.contexts[n].description ?? ""}<//></span></a></li>`)}</ul></div>
      <div class="split-main stack">${name ? html`<a class="back" href=${link("contexts")}>← ${T.pages.contexts}</a><${Sees} key=${name} name=${name} other=${other} names=${names} />
        ${has("context_get") ? html`<${Edit} key=${"e" + name} name=${name} />` : null}
        ${has("context_check") ? html`<${Try} key=${"t" + name} name=${name} />` : null}` : html`<${Empty} icon="contexts" title=${C.choose} />`}</div>
    </div>`;
}

/** @param {{name: string, other: string, names: string[]}} p */
function Sees({ name, other, names }) {
  const [error, setError] = useState(/** @type {any} */ (null));
  useEffect(() => {
    for (const n of [name, other]) if (n && !tools.value[endpointOf(n)]) loadTools(endpointOf(n)).catch(setError);
  }, [name, other]);
  const own = (tools.value[endpointOf(name)] ?? []).map((t) => t.name);
  const others = other ? tools.value[endpointOf(other)] : null; // undefined until it is loaded
  const theirs = others ? new Set(others.map((t) => t.name)) : null;
  const all = theirs ? [...new Set([...own, ...theirs])].sort() : own;
  const mine = new Set(own);
  return html`<${Card} title=${C.sees(name, own.length)} actions=${html`<label class="row small">${C.compare} <select value=${other} onChange=${(/** @type {any} */ e) => go("contexts", [name], { with: e.target.value })}>
      <option value="">${T.none}</option>${names.filter((n) => n !== name).map((n) => html`<option value=${n}>${n}</option>`)}</select></label>`}>
    <${Failure} error=${error} />
    <div class="chips tools-chips">${all.map((n) => html`<a key=${n} class=${"chip mono " + (theirs ? (!mine.has(n) ? "only-other" : !theirs.has(n) ? "only-own" : "") : "")} href=${link("tools", [n], { context: mine.has(n) ? name : other })}><${Text}>${n}<//></a>`)}</div>
    ${theirs ? html`<p class="small muted row wrap legend"><span class="chip only-own">${C.onlyIn(name)}</span><span class="chip only-other">${C.onlyIn(other)}</span></p>` : null}<//>`;
}

/** @param {{name: string}} p */
function Edit({ name }) {
  const { value, error, again } = useLoad(() => run("context_get", { name }), [name]);
  const [text, setText] = useState("");
  const [failed, setFailed] = useState(/** @type {any} */ (null));
  useEffect(() => {
    if (!value) return;
    const { revision, created, updated, by, fixed, name: own, ...rest } = value;
    setText(JSON.stringify(rest, null, 2));
  }, [value]);
  let bad = "";
  try { if (text) JSON.parse(text); } catch (e) { bad = String(e); }
  const save = async () => {
    try {
      const next = JSON.parse(text);
      const gone = Object.keys(value).filter((k) => !(k in next) && !["revision", "created", "updated", "by", "fixed", "name"].includes(k));
      await run("context_update", { name, revision: value.revision, ...next, ...(gone.length > 0 ? { clear: gone } : {}) });
      toast(T.saved);
      setFailed(null);
      again();
    } catch (e) { setFailed(e); }
  };
  if (!value) return html`<${Failure} error=${error} />`;
  return html`<${Card} title=${C.definition} actions=${value.fixed ? html`<${Badge}>${C.fixed}<//>` : html`<${Button} kind="small primary" disabled=${Boolean(bad) || !has("context_update")} onClick=${save}>${T.save}<//>`}>
    <${Failure} error=${failed} />${bad ? html`<p class="bad-text small">${bad}</p>` : null}
    <${Editor} text=${text} onChange=${setText} label=${C.definition} readOnly=${value.fixed || !has("context_update")} /><//>`;
}

/** @param {{name: string}} p */
function Try({ name }) {
  const [ask, setAsk] = useState({ user: "", roles: "", tool: "" });
  const [got, setGot] = useState(/** @type {any} */ (null));
  const [error, setError] = useState(/** @type {any} */ (null));
  const check = async (/** @type {Event} */ e) => {
    e.preventDefault();
    try {
      setGot(await run("context_check", { context: name, tool: ask.tool, ...(ask.user ? { user: ask.user } : {}), ...(ask.roles ? { roles: ask.roles.split(/[\s,]+/).filter(Boolean) } : {}) }));
      setError(null);
    } catch (e2) { setError(e2); setGot(null); }
  };
  const field = (/** @type {"user" | "roles" | "tool"} */ key, /** @type {string} */ label, /** @type {any} */ more = {}) => html`<label class="field"><span>${label}</span><input value=${ask[key]} ...${more} onInput=${(/** @type {any} */ e) => setAsk({ ...ask, [key]: e.target.value })} /></label>`;
  return html`<${Card} title=${C.try}><form class="fields" onSubmit=${check}>${field("user", T.login.user)}${field("roles", C.roles)}${field("tool", C.tool, { required: true, list: "context-tools" })}
    <datalist id="context-tools">${(tools.value[endpointOf(name)] ?? []).map((t) => html`<option value=${t.name}></option>`)}</datalist><${Button} kind="primary" type="submit">${C.check}<//></form>
    <${Failure} error=${error} />${got ? html`<div class="stack"><div class="row"><${Badge} tone=${got.verdict === "allow" ? "good" : got.verdict === "deny" ? "bad" : "warn"} dot>${got.verdict}<//><span class="muted">${got.listed ? C.listed : C.notListed}</span></div><${Value} value=${got} /></div>` : null}<//>`;
}
