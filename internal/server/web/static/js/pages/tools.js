// Tools: find one, fill in its form, call it, and see the same call as a command, as curl and as code.
import { signal } from "@preact/signals";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { html, Badge, Button, Card, Code, Empty, Failure, Head, Rows, Search, Segments, span, Text } from "../ui.js";
import { T } from "../texts.js";
import { askPerson, client, HOME, loadTools, state, tools } from "../store.js";
import { callTool } from "../rpc.js";
import { route, go, link, setQuery } from "../route.js";
import { SchemaForm, defaults } from "../form.js";
import { Result } from "../result.js";
import { snippets } from "../snippets.js";
import { me } from "../session.js";

const wanted = signal("");

/** What a search compares, by tool, so that a key that is pressed does not make it again. */
const folded = new WeakMap();

/** @param {any} t @returns {string[]} name, title and description in lower case */
function foldedOf(t) {
  let f = folded.get(t);
  if (!f) folded.set(t, f = [t.name.toLowerCase(), (t.title ?? "").toLowerCase(), (t.description ?? "").toLowerCase()]);
  return f;
}

/** Ranks tools by how their names, titles and descriptions match all words. @param {any[]} all @param {string} text */
export function searchTools(all, text) {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  if (words.length === 0) return all;
  const scored = [];
  for (const t of all) {
    const [name, title, about] = foldedOf(t);
    let score = 0;
    for (const w of words) {
      const s = name === w ? 100 : name.startsWith(w) ? 60 : name.includes(w) ? 40 : title.includes(w) ? 25 : about.includes(w) ? 8 : -1;
      if (s < 0) { score = -1; break; }
      score += s;
    }
    if (score >= 0) scored.push({ t, score });
  }
  return scored.sort((a, b) => b.score - a.score).map((s) => s.t);
}

/** @param {any} t */
function effect(t) {
  const a = t.annotations ?? {};
  if (a.readOnlyHint) return html`<${Badge} tone="good">${T.reads}<//>`;
  if (a.destructiveHint === false) return html`<${Badge} tone="info">${T.writes}<//>`;
  return html`<${Badge} tone="warn">${T.destroys}<//>`;
}

export default function Tools() {
  const context = route.value.query.get("context") ?? "";
  const endpoint = context === "" ? HOME : HOME + "/" + context;
  useEffect(() => { if (!tools.value[endpoint]) loadTools(endpoint).catch(() => {}); }, [endpoint]);
  const all = tools.value[endpoint];
  const name = route.value.rest[0];
  const found = useMemo(() => searchTools(all ?? [], wanted.value), [all, wanted.value]);
  const contexts = Object.keys(state.value?.contexts ?? {}).sort();
  const tool = all?.find((t) => t.name === name);
  return html`<${Head} title=${T.pages.tools} sub=${all ? T.toolCount(found.length, all.length) : ""} actions=${html`
      ${contexts.length > 1 ? html`<label class="row small">${T.context} <select value=${context} onChange=${(/** @type {any} */ e) => go("tools", [], { context: e.target.value })}>
        <option value="">${T.defaultContext}</option>${contexts.map((c) => html`<option value=${c}>${c}</option>`)}</select></label>` : null}
      <${Search} value=${wanted.value} onInput=${(/** @type {string} */ v) => { wanted.value = v; }} label=${T.searchTools} />`} />
    <div class=${"split " + (tool ? "open" : "")}>
      <div class="split-list card">
        ${all && found.length === 0 ? html`<${Empty} icon="search" title=${T.nothingFound} />` : html`
        <${Rows} items=${found} height=${64} label=${T.pages.tools} keyOf=${(/** @type {any} */ t) => t.name} row=${(/** @type {any} */ t) => html`
          <a class="tool-row" href=${link("tools", [t.name], { context })} aria-current=${t.name === name ? "true" : undefined}>
            <span class="row between"><strong class="mono"><${Text}>${t.name}<//></strong>${effect(t)}</span>
            <span class="muted small clip"><${Text}>${t.title ?? t.description ?? ""}<//></span></a>`} />`}
      </div>
      <div class="split-main">${tool ? html`<${OneTool} key=${endpoint + " " + tool.name} tool=${tool} back=${link("tools", [], { context })} />`
        : html`<${Empty} icon="tools" title=${T.chooseTool}>${T.chooseToolMore}<//>`}</div>
    </div>`;
}

/** @param {{tool: import("../store.js").Tool, back: string}} p */
function OneTool({ tool, back }) {
  const [args, setArgs] = useState(() => {
    try { return JSON.parse(route.value.query.get("args") ?? ""); } catch { return defaults(tool.inputSchema); }
  });
  const [run, setRun] = useState(/** @type {any} */ (null));
  const [raw, setRaw] = useState("form");
  const stop = useRef(/** @type {AbortController | null} */ (null));
  const heading = useRef(/** @type {HTMLElement | null} */ (null));
  useEffect(() => { heading.current?.scrollIntoView?.({ block: "nearest" }); return () => stop.current?.abort(); }, []);
  const change = (/** @type {any} */ v) => {
    setArgs(v);
    const context = route.value.query.get("context") ?? "";
    setQuery({ context, ...(Object.keys(v).length > 0 ? { args: JSON.stringify(v) } : {}) });
  };
  const call = async (/** @type {Event} */ e) => {
    e.preventDefault();
    if (run?.busy) return;
    const ended = stop.current = new AbortController();
    const began = performance.now();
    const show = (/** @type {any} */ more) => setRun((/** @type {any} */ r) => ({ ...r, ...more }));
    setRun({ busy: true, logs: [] });
    try {
      const result = await callTool(client, tool.endpoint, tool, args, {
        signal: ended.signal, ask: askPerson, client: "gatehouse-web",
        onProgress: (p) => show({ progress: p }),
        onTask: (task) => show({ task }),
        onLog: (l) => setRun((/** @type {any} */ r) => ({ ...r, logs: [...r.logs.slice(-99), l] })),
      });
      setRun({ result, args, took: performance.now() - began });
    } catch (error) {
      setRun({ error: ended.signal.aborted ? new Error(T.cancelled) : error, took: performance.now() - began });
    }
  };
  const missing = (tool.inputSchema?.required ?? []).filter((/** @type {string} */ n) => args[n] === undefined);
  return html`<div class="stack">
    <${Card}><div class="stack" ref=${heading}>
      <a class="back" href=${back}>← ${T.pages.tools}</a>
      <div class="row between wrap"><div><h2 class="mono tool-name"><${Text}>${tool.name}<//></h2>
        ${tool.title ? html`<p class="muted"><${Text}>${tool.title}<//></p>` : null}</div>
        <div class="row">${effect(tool)}${tool.annotations?.idempotentHint ? html`<${Badge}>${T.idempotent}<//>` : null}${tool.annotations?.openWorldHint !== false ? html`<${Badge}>${T.openWorld}<//>` : null}</div></div>
      <p class="prose"><${Text}>${tool.description ?? ""}<//></p></div><//>
    <form onSubmit=${call}><${Card} title=${T.arguments} actions=${html`<${Segments} label=${T.showAs} value=${raw} onChange=${setRaw} options=${[["form", T.form], ["json", "JSON"]]} />`}>
      ${raw === "form" ? html`<${SchemaForm} schema=${tool.inputSchema} value=${args} onChange=${change} />`
        : html`<${SchemaForm} schema=${{ properties: { arguments: {} } }} value=${{ arguments: args }} onChange=${(/** @type {any} */ v) => change(v.arguments ?? {})} />`}
      <div class="row form-end">
        <${Button} kind="primary" icon="play" type="submit" disabled=${missing.length > 0} busy=${run?.busy}>${T.call}<//>
        ${run?.busy ? html`<${Button} icon="stop" onClick=${() => stop.current?.abort()}>${T.cancel}<//>` : null}
        ${missing.length > 0 ? html`<span class="muted small">${T.missing(missing.join(", "))}</span>` : null}
      </div><//></form>
    ${run ? html`<${Card} title=${T.result} actions=${run.took !== undefined ? html`<span class="muted small num">${span(run.took)}</span>` : null}>
      <div aria-live="polite">${run.busy ? html`<${Progress} run=${run} />` : null}
      <${Failure} error=${run.error} />
      ${run.result ? html`<${AppView} run=${run} tool=${tool} /><${Result} result=${run.result} endpoint=${tool.endpoint} />` : null}</div><//>` : null}
    <${Same} tool=${tool} args=${args} />
  </div>`;
}

/** The view that a tool has declared for its results, in a module that is loaded when there is one. @param {{run: any, tool: any}} p */
function AppView({ run, tool }) {
  const [shown, show] = useState(/** @type {any} */ (null));
  const uri = tool._meta?.ui?.resourceUri ?? tool._meta?.["ui/resourceUri"];
  const has = typeof uri === "string" && /^package:\/\/[^/]+\/ui:\/\//.test(uri);
  useEffect(() => { if (has) import("./app.js").then((m) => show(() => m.default)); }, [has]);
  const C = shown;
  return has && C && !run.result.isError ? html`<${C} key=${run.took} uri=${uri} tool=${tool} args=${run.args} result=${run.result} />` : null;
}

/** @param {{run: any}} p */
function Progress({ run }) {
  const p = run.progress;
  const share = p?.total ? Math.min(1, p.progress / p.total) : undefined;
  const text = p?.message ?? run.task?.statusMessage ?? (run.task ? T.task(run.task.status) : T.running);
  return html`<div class="stack"><div class="row"><span class="spinner" aria-hidden="true"></span><${Text}>${text}<//>${share === undefined ? null : html`<span class="num muted">${Math.round(share * 100)} %</span>`}</div>
    <progress max="1" value=${share} aria-label=${T.progress}></progress>
    ${run.logs?.length > 0 ? html`<${Code} label=${T.log} text=${run.logs.map((/** @type {any} */ l) => typeof l.data === "string" ? l.data : JSON.stringify(l.data)).join("\n")} />` : null}</div>`;
}

/** @param {{tool: any, args: any}} p */
function Same({ tool, args }) {
  const [as, setAs] = useState("command");
  const all = useMemo(() => snippets(tool, args, location.origin, me.value && me.value.way !== "anonymous"), [tool, args, me.value]);
  return html`<${Card} title=${T.sameCall} actions=${html`<${Segments} label=${T.sameCall} value=${as} onChange=${setAs} options=${[["command", T.command], ["curl", "curl"], ["js", "JavaScript"], ["python", "Python"], ["go", "Go"]]} />`}>
    <${Code} text=${all[as]} /><//>`;
}
