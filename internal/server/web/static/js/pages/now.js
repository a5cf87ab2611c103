// Now: what waits for a yes, what happens, and what runs.
import { useEffect, useState } from "preact/hooks";
import { html, Age, Badge, bytes, Card, clockTime, Empty, Facts, Head, Icon, plain, span, Text } from "../ui.js";
import { T } from "../texts.js";
import { has, run, state } from "../store.js";
import { CLIENT } from "../rpc.js";
import { link } from "../route.js";
import { toneOf } from "./ledger.js";

/** @param {any} o */
const entries = (o) => Object.entries(o ?? {});

export default function Now() {
  const s = state.value ?? {};
  const packages = entries(s.packageData);
  const modules = entries(s.modules);
  const broken = modules.filter(([, m]) => m.state === "failed").length + packages.filter(([, p]) => p.status === "broken" || p.status?.value === "broken").length;
  const ok = s.serverInfo?.status?.state === "running" && broken === 0;
  return html`<${Head} title=${T.pages.now} sub=${T.now.sub} actions=${html`<${Badge} tone=${ok ? "good" : "warn"} dot>${ok ? T.now.allWell : T.now.degraded}<//>`} />
    <${Waiting} of=${entries(s.approvals)} />
    <div class="stats">
      <${Stat} icon="connect" title=${T.now.sessions} n=${entries(s.sessions).length} />
      <${Stat} icon="measures" title=${T.now.jobs} n=${entries(s.jobs).filter(([, j]) => j.state === "running" || j.status === "working").length} />
      <${Stat} icon="processes" title=${T.now.processes} n=${entries(s.processes).length} href=${link("processes")} />
      <${Stat} icon="sandboxes" title=${T.now.sandboxes} n=${entries(s.sandboxes).length} href=${link("sandboxes")} />
      <${Stat} icon="packages" title=${T.now.packages} n=${packages.length} href=${link("packages")} />
      <${Stat} icon="tools" title=${T.pages.tools} n=${modules.reduce((n, [, m]) => n + (m.tools?.length ?? 0), 0)} href=${link("tools")} />
    </div>
    <div class="grid two">
      <div class="stack">
        ${has("audit_query") ? html`<${Calls} last=${s.ledger?.last} />` : null}
        <${Running} s=${s} />
      </div>
      <div class="stack">
        <${Machine} info=${s.serverInfo} />
        <${Card} title=${T.now.modules}><div class="chips">${modules.map(([id, m]) => html`<span class="chip" title=${plain(m.error ?? m.state)}><i class=${"dot " + (m.state === "running" ? "good" : "bad")}></i><${Text}>${id}<//> <span class="muted num">${m.tools?.length ?? 0}</span></span>`)}</div><//>
      </div>
    </div>`;
}

/** @param {{icon: string, title: string, n: number, href?: string}} p */
function Stat({ icon, title, n, href }) {
  const body = html`<span class="stat-icon"><${Icon} name=${icon} /></span><span><strong class="num">${n}</strong><span class="muted small">${title}</span></span>`;
  return href ? html`<a class="stat card" href=${href}>${body}</a>` : html`<div class="stat card">${body}</div>`;
}

/** What waits for a person. @param {{of: [string, any][]}} p */
function Waiting({ of }) {
  if (of.length === 0) return null;
  return html`<section class="card waiting" aria-label=${T.now.waiting}><header class="card-head"><h2 class="row"><${Icon} name="approvals" />${T.now.waiting}</h2><a class="text-link" href=${link("approvals")}>${T.now.see}</a></header>
    <ul class="lines">${of.slice(0, 5).map(([id, a]) => html`<li key=${id}><a class="text-link mono clip" href=${link("approvals", [id])}><${Text}>${a.tool}<//></a><span class="muted"><${Text}>${a.owner}<//></span><span class="muted small"><${Age} at=${a.created} /></span></li>`)}</ul></section>`;
}

/** The newest calls, which are read again when the ledger grows. @param {{last: number | undefined}} p */
function Calls({ last }) {
  const [lines, setLines] = useState(/** @type {any[]} */ ([]));
  useEffect(() => {
    if (last !== undefined && lines.length > 0 && last <= lines[0].seq + 1) return;
    run("audit_query", { last: 60 }).then((got) => setLines(got.lines.slice().reverse()), () => {});
  }, [last]);
  const shown = lines.filter((l) => l.kind === "call" && l.outcome !== "started" && !l.client?.startsWith(CLIENT + "/")).slice(0, 12);
  return html`<${Card} title=${T.now.calls} flush actions=${html`<a class="text-link small" href=${link("ledger")}>${T.now.see}</a>`}>
    ${shown.length === 0 ? html`<${Empty} icon="now" title=${T.now.noCalls}>${T.now.noCallsMore}<//>` : html`<ul class="lines calls">${shown.map((l) => html`<li key=${l.seq}><time class="muted small num" datetime=${l.at}>${clockTime(l.at)}</time>
      <span class="mono clip"><${Text}>${l.tool ?? l.method}<//></span><span class="muted clip small"><${Text}>${l.principal ?? ""}${l.client ? " · " + l.client.split("/")[0] : ""}<//></span><${Badge} tone=${toneOf(l)}>${l.outcome}<//><span class="muted small num">${span(l.ms)}</span></li>`)}</ul>`}<//>`;
}

/** @param {{s: any}} p */
function Running({ s }) {
  const jobs = entries(s.jobs);
  const processes = entries(s.processes);
  const sandboxes = entries(s.sandboxes);
  const sessions = entries(s.sessions);
  const line = (/** @type {any} */ id, /** @type {any} */ what, /** @type {any} */ badge, /** @type {any} */ at) => html`<li key=${id}><span class="mono clip"><${Text}>${what}<//></span>${badge}<span class="muted small"><${Age} at=${at} /></span></li>`;
  const tone = (/** @type {string} */ v) => ({ running: "info", working: "info", completed: "good", done: "good", exited: "", failed: "bad", killed: "bad" })[v] ?? "";
  const part = (/** @type {string} */ title, /** @type {[string, any][]} */ list, /** @type {(id: string, v: any) => any} */ f) => list.length === 0 ? null : html`<${Card} title=${title} flush>
    <ul class="lines">${list.slice(-20).reverse().map(([id, v]) => f(id, v))}</ul><//>`;
  return html`
    ${jobs.length + processes.length + sandboxes.length + sessions.length === 0 ? html`<p class="muted small">${T.now.nothing}</p>` : null}
    ${part(T.now.jobs, jobs, (id, j) => line(id, j.title ?? j.action ?? id, html`<${Badge} tone=${tone(j.status ?? j.state)}>${j.status ?? j.state}<//>`, j.created ?? j.started))}
    ${part(T.now.processes, processes, (id, p) => line(id, p.command, html`<span class="muted small num">${p.pid}</span>`, p.started))}
    ${part(T.now.sandboxes, sandboxes, (id, b) => line(id, b.name ?? id, html`<${Badge} tone=${tone(b.state)}>${b.state}<//>`, b.created_at ?? b.created))}
    ${part(T.now.sessions, sessions, (id, b) => line(id, b.client?.name ?? b.client ?? id, html`<${Badge}>${b.principal ?? b.user ?? ""}<//>`, b.opened ?? b.created ?? b.started))}`;
}

/** @param {{info: any}} p */
function Machine({ info }) {
  if (!info) return null;
  const m = info.metrics;
  const bar = (/** @type {string} */ title, /** @type {number} */ share, /** @type {string} */ text) => html`<div class="gauge"><div class="row between"><span>${title}</span><span class="muted small num">${text}</span></div>
    <meter min="0" max="100" low="70" high="90" optimum="0" value=${share} aria-label=${title}></meter></div>`;
  return html`<${Card} title=${T.now.machine}><div class="stack">
    ${m?.cpu ? bar(T.now.cpu, m.cpu.percentageUsed, `${Math.round(m.cpu.percentageUsed)} %`) : null}
    ${m?.memory ? bar(T.now.memory, m.memory.percentageUsed, `${bytes(m.memory.used)} / ${bytes(m.memory.total)}`) : null}
    ${m?.disk ? bar(T.now.disk, m.disk.percentageUsed, `${bytes(m.disk.capacity - m.disk.available)} / ${bytes(m.disk.capacity)}`) : null}
    <${Facts} of=${[[T.now.version, info.version], [T.now.up, html`<${Age} at=${info.started} />`], [T.now.platform, info.platform]]} /></div><//>`;
}
