// Packages: servers of others. Find one, see what it asks for, install it, follow it, and decide about its changes.
import { useState } from "preact/hooks";
import { html, Badge, Button, Card, Code, Dialog, Empty, Facts, Failure, Head, Icon, Segments, span, Text, toast, useLoad } from "../ui.js";
import { T } from "../texts.js";
import { has, run, state } from "../store.js";
import { route, link, go } from "../route.js";
import { DiffLines } from "../diff.js";
import { Table } from "../ui.js";

const P = T.packages;

/** @param {string} s */
const tone = (s) => ({ running: "good", idle: "good", broken: "bad", waiting: "warn", starting: "info", installing: "info" })[s] ?? "";

export default function Packages() {
  const id = route.value.rest[0];
  const view = route.value.query.get("view") ?? "installed";
  if (id) return html`<${One} key=${id} id=${id} />`;
  return html`<${Head} title=${T.pages.packages} sub=${P.sub} actions=${html`<${Segments} label=${T.showAs} value=${view} onChange=${(/** @type {string} */ v) => go("packages", [], { view: v === "installed" ? "" : v })}
      options=${[["installed", P.installed], ...(has("package_search") ? [["find", P.find]] : [])]} />`} />
    ${view === "find" ? html`<${Find} />` : html`<${Installed} />`}`;
}

function Installed() {
  const { value, error, loading } = useLoad(() => run("package_list"), [state.value?.packageData]);
  const list = value?.packages ?? [];
  return html`<${Failure} error=${error} />${!loading && list.length === 0 ? html`<${Card}><${Empty} icon="packages" title=${P.none} action=${has("package_search") ? html`<${Button} kind="primary" icon="search" onClick=${() => go("packages", [], { view: "find" })}>${P.find}<//>` : null}>${P.noneMore}<//><//>` : null}
    <div class="cards">${list.map((/** @type {any} */ p) => html`<a class="card package" key=${p.id} href=${link("packages", [p.id])}>
      <div class="row between"><strong class="clip"><${Text}>${p.title}<//></strong><${Badge} tone=${tone(p.status)} dot>${p.status}<//></div>
      <p class="muted small mono clip"><${Text}>${p.id}<//> <${Text}>${p.version ?? ""}<//></p>
      <div class="row wrap"><${Badge}>${P.tools(p.tools)}<//><${Badge} tone=${p.confinement === "sandbox" ? "good" : p.confinement === "remote" ? "info" : "warn"}>${p.confinement}<//>
        ${p.quarantined ? html`<${Badge} tone="warn">${P.quarantined(p.quarantined)}<//>` : null}${p.login ? html`<${Badge} tone="warn">${P.login}<//>` : null}</div>
      ${p.error ? html`<p class="bad-text small"><${Text}>${p.error}<//></p>` : null}</a>`)}</div>`;
}

function Find() {
  const [word, setWord] = useState("");
  const [asked, setAsked] = useState("");
  const [install, setInstall] = useState(/** @type {any} */ (null));
  const { value, error, loading } = useLoad(async () => asked ? run("package_search", { word: asked, limit: 40 }) : undefined, [asked]);
  return html`<form class="row" onSubmit=${(/** @type {Event} */ e) => { e.preventDefault(); setAsked(word); }}>
      <label class="search grow"><${Icon} name="search" size=${16} /><span class="sr">${P.find}</span><input id="search" type="search" class="grow" value=${word} placeholder=${P.findMore} onInput=${(/** @type {any} */ e) => setWord(e.target.value)} /></label>
      <${Button} kind="primary" type="submit" busy=${asked && loading}>${T.search}<//></form>
    <${Failure} error=${error} />
    ${value?.hits.length === 0 ? html`<${Empty} icon="search" title=${T.nothingFound} />` : null}
    <div class="cards">${(value?.hits ?? []).map((/** @type {any} */ h) => html`<div class="card package"><div class="row between"><strong class="clip"><${Text}>${h.title ?? h.name}<//></strong><${Badge}>${h.found}<//></div>
      <p class="muted small mono clip"><${Text}>${h.name}<//> <${Text}>${h.version ?? ""}<//></p><p class="small lines-3"><${Text}>${h.description ?? ""}<//></p>
      <ul class="plain small muted">${h.facts.slice(0, 4).map((/** @type {string} */ f) => html`<li><${Text}>${f}<//></li>`)}</ul>
      ${h.missing ? html`<p class="bad-text small"><${Text}>${h.missing}<//></p>` : html`<div><${Button} icon="plus" disabled=${!has("package_install")} onClick=${() => setInstall(h)}>${P.install}<//></div>`}</div>`)}</div>
    ${value?.sources.filter((/** @type {any} */ s) => s.error).map((/** @type {any} */ s) => html`<p class="muted small"><${Text}>${s.kind}<//>: <${Text}>${s.error}<//></p>`)}
    ${install ? html`<${Install} hit=${install} onClose=${() => setInstall(null)} />` : null}`;
}

/** @param {{hit: any, onClose: () => void}} p */
function Install({ hit, onClose }) {
  const [id, setId] = useState(hit.name.split("/").pop().toLowerCase().replace(/[^a-z0-9]+/g, "-").replace(/^-|-$/g, "").slice(0, 32));
  const [env, setEnv] = useState("");
  const [error, setError] = useState(/** @type {any} */ (null));
  const [busy, setBusy] = useState(false);
  const begin = async (/** @type {Event} */ e) => {
    e.preventDefault();
    setBusy(true);
    setError(null);
    try {
      await run("package_install", {
        id, ...(hit.source ? { source: hit.source } : {}), ...(hit.command ? { command: hit.command[0], args: hit.command.slice(1) } : {}),
        ...(env.trim() ? { env: Object.fromEntries(env.trim().split("\n").map((l) => [l.split("=")[0], l.slice(l.indexOf("=") + 1)])) } : {}),
      });
      toast(P.begun);
      onClose();
      go("packages", [id]);
    } catch (e2) { setError(e2); } finally { setBusy(false); }
  };
  return html`<${Dialog} title=${P.installTitle(hit.title ?? hit.name)} onClose=${onClose}><form class="stack" onSubmit=${begin}>
    <label class="field"><span>${P.id}</span><input required pattern="[a-z0-9][a-z0-9-]*" value=${id} onInput=${(/** @type {any} */ e) => setId(e.target.value)} /></label>
    <label class="field"><span>${P.env}</span><textarea rows="2" placeholder="NAME=value" value=${env} onInput=${(/** @type {any} */ e) => setEnv(e.target.value)} /></label>
    <h3>${P.asks}</h3><ul class="plain">${hit.facts.map((/** @type {string} */ f) => html`<li><${Text}>${f}<//></li>`)}</ul>
    ${hit.command ? html`<${Code} text=${hit.command.join(" ")} />` : null}
    <${Failure} error=${error} /><div class="row"><${Button} kind="primary" type="submit" busy=${busy}>${P.install}<//><${Button} onClick=${onClose}>${T.cancel}<//></div></form><//>`;
}

/** @param {{id: string}} p */
function One({ id }) {
  const live = state.value?.packageData?.[id];
  const { value: info, error, again } = useLoad(() => run("package_info", { id }), [id, live]);
  const [tab, setTab] = useState("about");
  const [failed, setFailed] = useState(/** @type {any} */ (null));
  const act = (/** @type {string} */ name, /** @type {any} */ args = {}) => async () => {
    setFailed(null);
    try {
      const got = await run(name, { id, ...args });
      if (name === "package_remove") go("packages");
      if (got.url && /^https?:/.test(got.url)) open(got.url, "_blank", "noopener");
      again();
    } catch (e) { setFailed(e); }
  };
  const jobs = Object.entries(state.value?.jobs ?? {}).filter(([, j]) => /** @type {any} */ (j).package === id || /** @type {any} */ (j).subject === id);
  return html`<${Head} title=${info?.title ?? id} sub=${info?.version} actions=${info ? html`
      ${has("package_start") && (info.status === "stopped" || info.status === "broken") ? html`<${Button} icon="play" onClick=${act("package_start")}>${P.start}<//>` : null}
      ${has("package_restart") ? html`<${Button} icon="refresh" onClick=${act("package_restart")}>${P.restart}<//>` : null}
      ${has("package_stop") && info.status !== "stopped" ? html`<${Button} icon="stop" onClick=${act("package_stop")}>${P.stop}<//>` : null}
      ${has("package_login") && info.login ? html`<${Button} icon="lock" kind="primary" onClick=${act("package_login")}>${P.doLogin}<//>` : null}
      ${has("package_remove") ? html`<${Button} kind="danger" icon="close" onClick=${act("package_remove")}>${P.remove}<//>` : null}` : null} />
    <${Failure} error=${failed ?? error} />
    <a class="text-link" href=${link("packages")}>← ${T.pages.packages}</a>
    ${live?.progress || jobs.length > 0 ? html`<${Card} title=${P.phases}><ul class="lines">${jobs.map(([jid, j]) => html`<li key=${jid}><${Text}>${/** @type {any} */ (j).title ?? jid}<//><${Badge}>${/** @type {any} */ (j).phase ?? /** @type {any} */ (j).status ?? ""}<//><span></span></li>`)}</ul>
      ${live?.progress ? html`<p><${Text}>${typeof live.progress === "string" ? live.progress : JSON.stringify(live.progress)}<//></p>` : null}<//>` : null}
    <div><${Segments} label=${T.showAs} value=${tab} onChange=${setTab} options=${[["about", P.about], ["tools", T.pages.tools], ["changes", P.changes + (info?.quarantined ? ` (${info.quarantined})` : "")], ["logs", P.logs]]} /></div>
    ${!info ? null : tab === "about" ? html`<${About} info=${info} />` : tab === "tools" ? html`<${Tools} id=${id} act=${act} />`
      : tab === "changes" ? html`<${Changes} id=${id} done=${again} />` : html`<${Logs} id=${id} />`}`;
}

/** @param {{info: any}} p */
function About({ info }) {
  return html`<div class="grid two"><${Card} title=${P.about}><${Facts} of=${[[P.id, info.id], [P.state, html`<${Badge} tone=${tone(info.status)} dot>${info.status}<//>`], [P.source, html`<${Text}>${info.source}<//>`], [P.confinement, info.confinement],
      [P.protocol, info.protocol], [P.calls, info.health.calls], ["p50", span(info.health.p50_ms)], ["p99", span(info.health.p99_ms)], [P.restarts, info.health.restarts], [P.digest, info.digest ? html`<code class="breaks">${info.digest}</code>` : ""],
      [P.installedAt, new Date(info.installed).toLocaleString()], [P.by, info.by]]} /><//>
    <${Card} title=${P.may}>${info.may.length === 0 ? html`<p class="muted">${T.none}</p>` : html`<ul class="plain">${info.may.map((/** @type {string} */ m) => html`<li><${Text}>${m}<//></li>`)}</ul>`}
      ${info.error ? html`<div class="notice bad"><${Text}>${info.error}<//></div>` : null}<//></div>`;
}

/** @param {{id: string, act: any}} p */
function Tools({ id, act }) {
  const { value, error, again } = useLoad(() => run("package_tools", { id }), [id]);
  return html`<${Failure} error=${error} /><${Card} flush><${Table} label=${T.pages.tools} rows=${value?.tools ?? []} columns=${[
    { title: T.pages.tools, of: (r) => html`<a class="text-link mono" href=${link("tools", [r.name])}><${Text}>${r.name}<//></a>` },
    { title: P.description, of: (r) => html`<span class="small"><${Text}>${r.description ?? ""}<//></span>` }, { title: P.state, of: (r) => r.state ?? "" },
    { title: P.offered, of: (r) => html`<label class="switch"><input type="checkbox" role="switch" aria-label=${r.name} checked=${!r.off} onChange=${async () => { await act("package_tools", r.off ? { on: [r.own ?? r.name] } : { off: [r.own ?? r.name] })(); again(); }} /><span aria-hidden="true"></span></label>` }]} /><//>`;
}

/** @param {{id: string, done: () => void}} p */
function Changes({ id, done }) {
  const { value, error, again } = useLoad(() => run("package_changes", { id }), [id]);
  const [failed, setFailed] = useState(/** @type {any} */ (null));
  const decide = async (/** @type {any} */ more) => {
    try { await run("package_approve", { id, seen: value?.seen, ...more }); again(); done(); } catch (e) { setFailed(e); }
  };
  const list = value?.changes ?? [];
  return html`<${Failure} error=${failed ?? error} />
    ${value && list.length === 0 ? html`<${Card}><${Empty} icon="check" title=${P.noChanges}>${P.noChangesMore}<//><//>` : null}
    <div class="stack">${list.map((/** @type {any} */ c) => html`<${Card} key=${c.name} title=${c.name} actions=${html`<${Badge} tone="warn">${c.state}<//>
        ${has("package_approve") && c.state !== "refused" ? html`<${Button} kind="small primary" onClick=${() => decide({ tools: [c.own ?? c.name] })}>${P.approve}<//><${Button} kind="small" onClick=${() => decide({ tools: [c.own ?? c.name], refuse: true })}>${P.refuse}<//>` : null}`}>
      ${c.diff?.length > 0 ? html`<${DiffLines} lines=${c.diff} />` : html`<p class="muted"><${Text}>${c.kind}<//></p>`}<//>`)}</div>`;
}

/** @param {{id: string}} p */
function Logs({ id }) {
  const { value, error, again } = useLoad(() => run("package_logs", { id, limit: 300 }), [id]);
  return html`<${Failure} error=${error} /><${Card} title=${P.logs} actions=${html`<${Button} kind="small" icon="refresh" onClick=${again}>${T.refresh}<//>`}>
    <${Code} label=${P.logs} text=${(value?.entries ?? []).map((/** @type {any} */ e) => e.timestamp + "  " + e.message).join("\n") || T.none} /><//>`;
}
