// Sandboxes: the pool, what each may use and uses, its files, commands, and what it asked of the network.
import { useState } from "preact/hooks";
import { html, Age, Badge, Button, bytes, Card, Code, Empty, Facts, Failure, Head, Segments, Table, Text, useLoad } from "../ui.js";
import { T } from "../texts.js";
import { has, run, state } from "../store.js";
import { go, link, route } from "../route.js";
import { Value } from "../result.js";
import { inSandbox, TerminalOf } from "../terminal.js";

const S = T.sandboxes;

export default function Sandboxes() {
  const id = route.value.rest[0];
  return id ? html`<${One} key=${id} id=${id} />` : html`<${All} />`;
}

function All() {
  const { value, error, again } = useLoad(() => run("sandbox_list"), [state.value?.sandboxes]);
  const pool = useLoad(() => run("sandbox_stats"), [state.value?.sandboxes]);
  const [failed, setFailed] = useState(/** @type {any} */ (null));
  const [busy, setBusy] = useState(false);
  const list = value?.sandboxes ?? [];
  const make = async () => {
    setBusy(true);
    try { const got = await run("sandbox_create"); again(); go("sandboxes", [got.sandbox_id]); } catch (e) { setFailed(e); } finally { setBusy(false); }
  };
  return html`<${Head} title=${T.pages.sandboxes} sub=${S.sub} actions=${has("sandbox_create") ? html`<${Button} kind="primary" icon="plus" busy=${busy} onClick=${make}>${S.create}<//>` : null} />
    <${Failure} error=${failed ?? error ?? pool.error} />
    ${pool.value ? html`<div class="grid two"><${Card} title=${S.pool}>${pool.value.missing ? html`<div class="notice warn"><${Text}>${pool.value.missing}<//></div>` : null}
        <${Facts} of=${[[S.driver, pool.value.driver], [S.drivers, pool.value.drivers.join(", ")], [S.yours, pool.value.yours], [S.ready, pool.value.pool?.waiting], [S.booting, pool.value.pool?.booting],
          [S.hits, pool.value.pool ? `${pool.value.pool.hits} / ${pool.value.pool.hits + pool.value.pool.misses}` : undefined], [S.claim, pool.value.pool?.claim_mean_ms === undefined ? undefined : pool.value.pool.claim_mean_ms.toFixed(1) + " ms"]]} /><//>
      <${Card} title=${S.held}>${pool.value.held ? html`<${Value} value=${pool.value.held} />` : html`<p class="muted">${T.none}</p>`}<//></div>` : null}
    ${value && list.length === 0 ? html`<${Card}><${Empty} icon="sandboxes" title=${S.none}>${S.noneMore}<//><//>` : null}
    ${list.length > 0 ? html`<${Card} flush><${Table} label=${T.pages.sandboxes} rows=${list} keyOf=${(/** @type {any} */ b) => b.sandbox_id} columns=${[
      { title: S.sandbox, of: (b) => html`<a class="text-link mono" href=${link("sandboxes", [b.sandbox_id])}><${Text}>${b.name ?? b.sandbox_id}<//></a>` },
      { title: S.state, of: (b) => html`<${Badge} tone=${b.state === "running" || b.state === "ready" ? "good" : ""} dot>${b.state}<//>` }, { title: S.driver, of: (b) => b.driver }, { title: S.isolation, of: (b) => b.isolation },
      { title: T.now.memory, num: true, of: (b) => b.memory_mib ? b.memory_mib + " MiB" : "" }, { title: S.created, of: (b) => html`<${Age} at=${b.created_at} />` }]} /><//>` : null}`;
}

/** @param {{id: string}} p */
function One({ id }) {
  const [tab, setTab] = useState("use");
  const [failed, setFailed] = useState(/** @type {any} */ (null));
  const destroy = async () => { try { await run("sandbox_destroy", { sandbox_id: id }); go("sandboxes"); } catch (e) { setFailed(e); } };
  return html`<${Head} title=${S.sandbox} sub=${id} actions=${has("sandbox_destroy") ? html`<${Button} kind="danger" icon="close" onClick=${destroy}>${S.destroy}<//>` : null} />
    <a class="text-link" href=${link("sandboxes")}>← ${T.pages.sandboxes}</a><${Failure} error=${failed} />
    <div><${Segments} label=${T.showAs} value=${tab} onChange=${setTab} options=${[["use", S.use], ["files", S.files], ["run", S.command], ...has("sandbox_start") ? [["terminal", S.terminal]] : [], ["network", S.network]]} /></div>
    ${tab === "use" ? html`<${Use} id=${id} />` : tab === "files" ? html`<${Files} id=${id} />` : tab === "run" ? html`<${Run} id=${id} />` : tab === "terminal" ? html`<${Shells} id=${id} />` : html`<${Network} id=${id} />`}`;
}

/** @param {{id: string}} p */
function Use({ id }) {
  const { value, error, again } = useLoad(() => run("sandbox_stats", { sandbox_id: id }), [id, state.value?.sandboxes?.[id]]);
  const b = value?.sandbox;
  return html`<${Failure} error=${error} />${b ? html`<div class="grid two"><${Card} title=${S.use} actions=${html`<${Button} kind="small" icon="refresh" onClick=${again}>${T.refresh}<//>`}><${Facts} of=${[
      [T.now.memory, b.usage?.memory_bytes === undefined ? "" : bytes(b.usage.memory_bytes)], [S.peak, b.usage?.peak_memory_bytes === undefined ? "" : bytes(b.usage.peak_memory_bytes)], ["CPU", b.usage?.cpu_seconds === undefined ? "" : b.usage.cpu_seconds.toFixed(2) + " s"],
      [T.pages.processes, b.usage?.processes], [T.now.disk, b.usage?.disk_bytes === undefined ? "" : bytes(b.usage.disk_bytes)], [S.calls, b.calls], [S.expires, new Date(b.expires_at).toLocaleString()]]} /><//>
    <${Card} title=${S.limits}><${Value} value=${b.limits} /><//></div>` : null}`;
}

/** @param {{id: string}} p */
function Files({ id }) {
  const [path, setPath] = useState("/");
  const [file, setFile] = useState(/** @type {any} */ (null));
  const { value, error } = useLoad(() => run("sandbox_dir", { sandbox_id: id, path, limit: 500 }), [id, path]);
  const read = async (/** @type {string} */ at) => { try { setFile({ at, ...await run("sandbox_read", { sandbox_id: id, path: at, length: 100000 }) }); } catch (e) { setFile({ at, text: /** @type {Error} */ (e).message }); } };
  const join = (/** @type {string} */ n) => (path === "/" ? "" : path) + "/" + n;
  return html`<${Failure} error=${error} /><div class="grid two"><${Card} title=${path} actions=${path === "/" ? null : html`<${Button} kind="small" onClick=${() => setPath(path.slice(0, path.lastIndexOf("/")) || "/")}>..<//>`} flush>
    <${Table} label=${S.files} rows=${value?.entries ?? []} columns=${[{ title: S.name, of: (e) => html`<button type="button" class="link mono left" onClick=${() => e.is_dir ? setPath(join(e.name)) : read(join(e.name))}><${Text}>${e.name}<//>${e.is_dir ? "/" : ""}</button>` },
      { title: S.size, num: true, of: (e) => e.is_dir ? "" : bytes(e.size) }, { title: S.mode, of: (e) => html`<code>${e.mode ?? ""}</code>` }]} /><//>
    ${file ? html`<${Card} title=${file.at}><${Code} text=${file.text ?? ""} /><//>` : null}</div>`;
}

/** @param {{id: string}} p */
function Run({ id }) {
  const [command, setCommand] = useState("");
  const [said, setSaid] = useState(/** @type {string[]} */ ([]));
  const [busy, setBusy] = useState(false);
  const go1 = async (/** @type {Event} */ e) => {
    e.preventDefault();
    setBusy(true);
    try { const got = await run("sandbox_exec", { sandbox_id: id, command }); setSaid((s) => [...s.slice(-50), "$ " + command, got.text.trimEnd()]); } catch (e2) { setSaid((s) => [...s.slice(-50), "$ " + command, String(/** @type {Error} */ (e2).message)]); }
    setCommand("");
    setBusy(false);
  };
  return html`<${Card} title=${S.command}>${said.length > 0 ? html`<${Code} text=${said.join("\n")} />` : null}
    <form class="row" onSubmit=${go1}><input class="mono grow" aria-label=${S.command} placeholder="ls -la" required value=${command} onInput=${(/** @type {any} */ e) => setCommand(e.target.value)} /><${Button} kind="primary" icon="play" type="submit" busy=${busy}>${T.call}<//></form><//>`;
}

/** The terminals of a sandbox: those that run, and a new one if there is none. @param {{id: string}} p */
function Shells({ id }) {
  const [shown, setShown] = useState(/** @type {string | null} */ (null));
  const { value, error, again } = useLoad(() => run("sandbox_processes", { sandbox_id: id }), [id]);
  const [failed, setFailed] = useState(/** @type {any} */ (null));
  const open = (value?.processes ?? []).filter((/** @type {any} */ p) => p.terminal && (p.running || p.process_id === shown));
  const begin = async () => {
    try {
      const got = await run("sandbox_start", { sandbox_id: id, command: "exec $(command -v bash || echo sh)", terminal: true, cols: 100, rows: 28 });
      setShown(got.process_id);
      again();
    } catch (e) { setFailed(e); }
  };
  const one = open.find((/** @type {any} */ p) => p.process_id === shown) ?? open[0];
  return html`<${Failure} error=${failed ?? error} /><${Card} title=${S.terminal} actions=${html`<${Button} kind="small" icon="plus" onClick=${begin}>${S.newTerminal}<//>`}>
    ${open.length > 1 ? html`<${Segments} label=${S.terminal} value=${one.process_id} onChange=${setShown} options=${open.map((/** @type {any} */ p, /** @type {number} */ i) => [p.process_id, String(i + 1)])} />` : null}
    ${one ? html`<${TerminalOf} key=${one.process_id} id=${one.process_id} tools=${inSandbox(id, one.process_id)} />` : value ? html`<p class="muted">${S.noTerminal}</p>` : null}<//>`;
}

/** @param {{id: string}} p */
function Network({ id }) {
  const { value, error, again } = useLoad(() => run("sandbox_network", { sandbox_id: id, action: "show" }), [id]);
  return html`<${Failure} error=${error} />${value ? html`<div class="grid two"><${Card} title=${S.decisions} flush actions=${html`<${Button} kind="small" icon="refresh" onClick=${again}>${T.refresh}<//>`}>
      ${value.decisions.length === 0 ? html`<p class="muted pad">${T.none}</p>` : html`<${Table} label=${S.decisions} rows=${value.decisions.slice().reverse()} columns=${[
      { title: "", of: (d) => html`<${Badge} tone=${d.allowed ? "good" : "bad"} dot>${d.allowed ? S.allowed : S.denied}<//>` }, { title: S.target, of: (d) => html`<code><${Text}>${d.target}<//></code>` }, { title: S.why, of: (d) => html`<${Text}>${d.reason}<//>` }]} />`}<//>
    <${Card} title=${S.rules}><${Value} value=${{ allow: value.allow, deny: value.deny, secrets: value.secrets }} /><//></div>` : null}`;
}
