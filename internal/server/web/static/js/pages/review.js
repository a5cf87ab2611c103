// Review: what staged calls have changed. A person accepts all of it, some files or nothing, and can undo that.
import { useState } from "preact/hooks";
import { html, Age, Badge, Button, Card, Empty, Facts, Failure, Head, Icon, Segments, Text, toast, useLoad } from "../ui.js";
import { T } from "../texts.js";
import { has, run } from "../store.js";
import { me } from "../session.js";
import { go, link, route } from "../route.js";
import { DiffLines } from "../diff.js";

const R = T.review;
const most = 1000; // changes that are shown

/** @param {string} s */
const tone = (s) => ({ open: "warn", accepted: "good" })[s] ?? "";
/** @param {string} k */
const kindTone = (k) => ({ created: "good", deleted: "bad", modified: "info" })[k] ?? "warn";

export default function Review() {
  const id = route.value.rest[0];
  return id ? html`<${One} key=${id} id=${id} />` : html`<${Tasks} />`;
}

function Tasks() {
  const view = route.value.query.get("view") ?? "waiting";
  const { value, error, loading, again } = useLoad(() => run("review_list", { all: view === "all" }), [view]);
  const list = value?.tasks ?? [];
  return html`<${Head} title=${T.pages.review} sub=${R.sub} actions=${html`
      <${Segments} label=${T.showAs} value=${view} onChange=${(/** @type {string} */ v) => go("review", [], { view: v === "waiting" ? "" : v })} options=${[["waiting", R.waiting], ["all", R.all]]} />
      <${Button} icon="refresh" onClick=${again}>${T.refresh}<//>`} />
    <${Failure} error=${error} />
    ${!loading && list.length === 0 ? html`<${Card}><${Empty} icon="review" title=${R.none}>${R.noneMore}<//><//>` : null}
    <div class="cards">${list.map((/** @type {any} */ t) => html`<a class="card package" key=${t.id} href=${link("review", [t.id])}>
      <div class="row between"><strong class="mono clip"><${Text}>${t.id}<//></strong><${Badge} tone=${tone(t.state)} dot>${t.state}<//></div>
      <p class="muted small clip"><${Text}>${t.principal}/${t.context}<//> · <${Text}>${t.client ?? ""}<//></p>
      ${(t.layers ?? []).map((/** @type {any} */ l) => html`<p class="small mono clip"><${Text}>${l.folder}<//></p>`)}
      <p class="muted small">${R.last} <${Age} at=${t.used} />${t.state === "open" ? html` · ${R.expires} ${new Date(t.expires).toLocaleDateString()}` : null}</p></a>`)}</div>`;
}

/** @param {{id: string}} p */
function One({ id }) {
  const { value: r, error, again } = useLoad(() => run("review_show", { task: id, most }), [id]);
  const [failed, fail] = useState(/** @type {any} */ (null));
  const [busy, setBusy] = useState("");
  const [skip, setSkip] = useState(/** @type {Set<string>} */ (new Set()));
  const [branch, setBranch] = useState("");
  const [sure, setSure] = useState(false);
  const may = me.value && me.value.person;
  const open = r?.task.state === "open";
  const changes = r?.changes ?? [];
  const chosen = changes.filter((/** @type {any} */ c) => !skip.has(c.path) && !c.conflict).map((/** @type {any} */ c) => c.path);
  const act = (/** @type {string} */ name, /** @type {any} */ args, /** @type {(got: any) => string} */ says) => async () => {
    setBusy(name + Object.keys(args).length);
    fail(null);
    try {
      toast(says(await run(name, { task: id, ...args })));
      setSkip(new Set());
    } catch (e) { fail(e); } finally { setBusy(""); setSure(false); again(); }
  };
  const accept = (/** @type {any} */ args) => act("review_accept", { etag: r.etag, ...args }, (got) => R.accepted(got.done?.length ?? 0, got.by));
  return html`<${Head} title=${id} sub=${r ? html`<${Text}>${r.task.principal}/${r.task.context}<//>` : null} actions=${html`<${Button} icon="refresh" onClick=${again}>${T.refresh}<//>`} />
    <a class="text-link" href=${link("review")}>← ${T.pages.review}</a>
    <${Failure} error=${failed ?? error} />
    ${me.value && !me.value.person ? html`<div class="notice info"><${Icon} name="lock" /><span>${R.onlyPeople}</span></div>` : null}
    ${r?.note ? html`<div class="notice warn"><${Icon} name="alert" /><span><${Text}>${r.note}<//></span></div>` : null}
    ${!r ? null : html`<${About} r=${r} />
    <div class="row wrap">${open && has("review_accept") ? html`
      <${Button} kind="primary" icon="check" disabled=${!may || changes.length === 0} busy=${busy === "review_accept1"} onClick=${accept({})}>${R.acceptAll}<//>
      <${Button} disabled=${!may || chosen.length === 0} busy=${busy === "review_accept3"} onClick=${accept({ paths: chosen, exact: true })}>${R.acceptSome(chosen.length)}<//>
      ${sure ? html`<${Button} kind="danger" icon="close" disabled=${!may} busy=${busy === "review_refuse0"} onClick=${act("review_refuse", {}, () => R.refused)}>${R.sureRefuse}<//>`
        : html`<${Button} kind="danger" disabled=${!may} onClick=${() => setSure(true)}>${R.refuse}<//>`}
      <input aria-label=${R.branch} placeholder=${R.branch} value=${branch} onInput=${(/** @type {any} */ e) => setBranch(e.target.value)} />
      <${Button} disabled=${!may || !branch || chosen.length === 0} busy=${busy === "review_accept4"} onClick=${accept({ paths: chosen, exact: true, branch })}>${R.acceptBranch}<//>` : null}
      ${(r.accepted ?? []).length > (r.undone ?? []).length && has("review_undo") ? html`<${Button} icon="refresh" disabled=${!may} busy=${busy === "review_undo0"} onClick=${act("review_undo", {}, (got) => R.undone(got.done?.length ?? 0, got.by))}>${R.undo}<//>` : null}</div>
    <${Decisions} r=${r} />
    <${Files} r=${r} open=${open} skip=${skip} setSkip=${setSkip} />
    <div class="grid two"><${Things} title=${R.programs} of=${r.programs} /><${Things} title=${R.hosts} of=${r.hosts} />
      <${Things} title=${R.secrets} of=${r.secrets} /><${Things} title=${R.packages} of=${r.packages} /></div>
    <${Calls} calls=${r.calls ?? []} />`}`;
}

/** @param {{r: any}} p */
function About({ r }) {
  const t = r.task;
  return html`<${Card} title=${T.packages.about}><${Facts} of=${[[R.state, html`<${Badge} tone=${tone(t.state)} dot>${t.state}<//>`], [R.client, t.client ? html`<${Text}>${t.client}<//>` : ""],
    [R.folders, (t.layers ?? []).map((/** @type {any} */ l) => html`<div class="mono breaks"><${Text}>${l.folder}<//></div>`)], [R.last, html`<${Age} at=${t.used} />`],
    [R.expires, t.state === "open" ? new Date(t.expires).toLocaleString() : ""], [R.etag, html`<code>${r.etag}</code>`], [R.note, t.note ? html`<${Text}>${t.note}<//>` : ""]]} /><//>`;
}

/** @param {{r: any}} p */
function Decisions({ r }) {
  const all = [...(r.accepted ?? []).map((/** @type {any} */ d) => ({ ...d, says: R.accepted })), ...(r.undone ?? []).map((/** @type {any} */ d) => ({ ...d, says: R.undone }))];
  if (all.length === 0) return null;
  return html`<${Card} title=${R.history}><ul class="plain">${all.map((d) => html`<li>${d.says(d.done?.length ?? 0, d.by)} · <${Age} at=${d.at} />${d.note ? html` · <${Text}>${d.note}<//>` : null}
    ${(d.conflict ?? []).map((/** @type {any} */ c) => html`<p class="bad-text small breaks">${R.left} <span class="mono"><${Text}>${c.path}<//></span>: <${Text}>${c.why}<//></p>`)}</li>`)}</ul><//>`;
}

/**
 * Makes one row of each change, and one of all that git's objects in a folder are.
 * @param {any[]} changes
 */
function rows(changes) {
  const all = /** @type {any[]} */ ([]);
  for (const c of changes) {
    const last = all[all.length - 1];
    if (c.group && last?.group === c.group) last.paths.push(c.path);
    else all.push(c.group ? { kind: c.kind, path: c.group, group: c.group, paths: [c.path] } : { ...c, paths: [c.path] });
  }
  return all;
}

/** @param {{r: any, open: boolean, skip: Set<string>, setSkip: (s: Set<string>) => void}} p */
function Files({ r, open, skip, setSkip }) {
  const all = r.changes ?? [];
  if (r.task.state !== "open") return null;
  const set = (/** @type {any} */ row, /** @type {boolean} */ yes) => {
    const next = new Set(skip);
    for (const path of row.paths) if (yes) next.delete(path); else next.add(path);
    setSkip(next);
  };
  return html`<${Card} title=${R.files(all.length + (r.omitted ?? 0))} flush actions=${all.length === 0 ? null : html`<label class="check"><input type="checkbox" checked=${skip.size === 0} onChange=${(/** @type {any} */ e) => setSkip(e.target.checked ? new Set() : new Set(all.map((/** @type {any} */ c) => c.path)))} /> ${R.chooseAll}</label>`}>
    ${all.length === 0 ? html`<p class="muted pad">${R.noFiles}</p>` : null}
    <ul class="checks">${rows(all).map((/** @type {any} */ c) => html`<li key=${c.path}>
      <input type="checkbox" aria-label=${R.choose(c.path)} disabled=${!open || !!c.conflict} checked=${!c.paths.some((/** @type {string} */ p) => skip.has(p)) && !c.conflict} onChange=${(/** @type {any} */ e) => set(c, e.target.checked)} />
      <div class="stack grow"><div class="row wrap"><${Badge} tone=${kindTone(c.kind)}>${c.kind}<//><span class="mono breaks"><${Text}>${c.path}<//></span>
          ${c.group ? html`<span class="muted small">${R.objects(c.paths.length)}</span>` : null}
          ${c.modes ? html`<span class="muted small mono"><${Text}>${c.modes}<//></span>` : null}${c.linked ? html`<span class="muted small breaks"><${Text}>${R.linked(c.linked)}<//></span>` : null}</div>
        ${c.conflict ? html`<p class="bad-text small"><${Text}>${R.conflict(c.conflict)}<//></p>` : null}
        ${c.diff ? html`<${DiffLines} lines=${c.diff.split("\n").slice(c.diff.startsWith("--- ") ? 2 : 0)} />` : null}</div></li>`)}</ul>
    ${r.omitted ? html`<p class="muted pad">${R.omitted(r.omitted)}</p>` : null}<//>`;
}

/** @param {{title: string, of: any[] | undefined}} p */
function Things({ title, of }) {
  return html`<${Card} title=${title}>${!of || of.length === 0 ? html`<p class="muted">${R.none2}</p>` : html`<ul class="plain">${of.map((d) => html`<li class="row wrap"><span class="mono breaks"><${Text}>${d.name}<//></span>
    ${d.times > 1 ? html`<span class="muted small">${R.times(d.times)}</span>` : null}${d.direct ? html`<${Badge} tone="warn">${R.direct}<//>` : null}${d.denied ? html`<${Badge} tone="bad">${R.denied}<//>` : null}</li>`)}</ul>`}<//>`;
}

/** @param {{calls: any[]}} p */
function Calls({ calls }) {
  return html`<${Card} title=${R.calls} flush><ul class="lines">${calls.map((c) => html`<li><span class="clip"><span class="mono"><${Text}>${c.tool || c.kind}<//></span> <span class="muted small mono"><${Text}>${c.args ? JSON.stringify(c.args) : ""}<//></span></span>
    <span class="row">${c.direct ? html`<${Badge} tone="warn">${R.direct}<//>` : null}<${Badge} tone=${c.outcome === "ok" ? "good" : ""}>${c.outcome ?? c.kind}<//></span><span class="muted small"><${Age} at=${c.at} /></span></li>`)}</ul><//>`;
}
