// Processes: what runs, with a terminal for those that have one.
import { useState } from "preact/hooks";
import { html, Age, Badge, Button, bytes, Card, Code, Dialog, Empty, Failure, Head, Table, Text, useLoad } from "../ui.js";
import { T } from "../texts.js";
import { has, run, state } from "../store.js";
import { go, route } from "../route.js";
import { ofProcess, TerminalOf } from "../terminal.js";

const P = T.processes;

export default function Processes() {
  const id = route.value.rest[0];
  const { value, error, again } = useLoad(() => run("process_list", { usage: true }), [state.value?.processes]);
  const [failed, setFailed] = useState(/** @type {any} */ (null));
  const [fresh, setFresh] = useState(false);
  const list = (value?.processes ?? []).slice().reverse();
  const one = list.find((/** @type {any} */ p) => p.id === id);
  const act = (/** @type {string} */ name, /** @type {string} */ of) => async () => { try { await run(name, { id: of }); setFailed(null); again(); } catch (e) { setFailed(e); } };
  return html`<${Head} title=${T.pages.processes} sub=${P.sub} actions=${has("process_start") ? html`<${Button} kind="primary" icon="plus" onClick=${() => setFresh(true)}>${P.terminal}<//>` : null} />
    <${Failure} error=${failed ?? error} />
    ${one ? html`<${Card} title=${[one.command, ...one.args].join(" ")} actions=${html`<${Badge} tone=${one.status === "running" ? "good" : ""} dot>${one.status}<//>
        <${Button} kind="small" icon="close" onClick=${() => go("processes")}>${T.close}<//>`}>
      ${one.terminal ? html`<${TerminalOf} key=${one.id} id=${one.id} tools=${ofProcess(one.id)} />` : html`<${Output} key=${one.id} id=${one.id} />`}<//>` : null}
    ${value && list.length === 0 ? html`<${Card}><${Empty} icon="processes" title=${P.none}>${P.noneMore}<//><//>` : null}
    ${list.length > 0 ? html`<${Card} flush><${Table} label=${T.pages.processes} rows=${list} keyOf=${(/** @type {any} */ p) => p.id} columns=${[
      { title: P.command, of: (p) => html`<button type="button" class="link mono left" onClick=${() => go("processes", [p.id])}><${Text}>${[p.command, ...p.args].join(" ")}<//></button>` },
      { title: P.status, of: (p) => html`<${Badge} tone=${p.status === "running" ? "good" : p.status === "exited" && p.exitCode === 0 ? "" : "warn"} dot>${p.status}${p.exitCode ? " " + p.exitCode : ""}<//>` },
      { title: P.started, of: (p) => html`<${Age} at=${p.startedAt} />` }, { title: "CPU", num: true, of: (p) => p.cpuSeconds === undefined ? "" : p.cpuSeconds.toFixed(1) + " s" },
      { title: T.now.memory, num: true, of: (p) => p.memory ? bytes(p.memory) : "" }, { title: P.ports, of: (p) => (p.ports ?? []).join(", ") },
      { title: "", of: (p) => p.status === "running" ? html`<${Button} kind="small danger" disabled=${!has("process_stop")} onClick=${act("process_stop", p.id)}>${P.stop}<//>`
        : has("process_remove") ? html`<${Button} kind="small" onClick=${act("process_remove", p.id)}>${P.remove}<//>` : null }]} /><//>` : null}
    ${fresh ? html`<${Fresh} onClose=${() => setFresh(false)} />` : null}`;
}

/** @param {{id: string}} p */
function Output({ id }) {
  const { value, error, again } = useLoad(() => run("process_output", { id, tail: 400 }), [id, state.value?.processes?.[id]]);
  return html`<${Failure} error=${error} /><${Code} label=${P.output} text=${value?.text ?? ""} /><${Button} kind="small" icon="refresh" onClick=${again}>${T.refresh}<//>`;
}

/** @param {{onClose: () => void}} p */
function Fresh({ onClose }) {
  const [command, setCommand] = useState("bash");
  const [error, setError] = useState(/** @type {any} */ (null));
  const begin = async (/** @type {Event} */ e) => {
    e.preventDefault();
    try {
      const [program, ...args] = command.trim().split(/\s+/);
      const got = await run("process_start", { command: program, args, terminal: true, cols: 100, rows: 28 });
      onClose();
      go("processes", [got.id]);
    } catch (e2) { setError(e2); }
  };
  return html`<${Dialog} title=${P.terminal} onClose=${onClose}><form class="stack" onSubmit=${begin}><label class="field"><span>${P.program}</span><input id="program" autofocus required class="mono" value=${command} onInput=${(/** @type {any} */ e) => setCommand(e.target.value)} /></label>
    <${Failure} error=${error} /><div class="row"><${Button} kind="primary" icon="play" type="submit">${P.start}<//></div></form><//>`;
}
