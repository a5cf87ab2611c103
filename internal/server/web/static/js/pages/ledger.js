// Ledger: what was done on this host, and by whom. It is read in pages, and followed while the page is open.
import { useEffect, useRef, useState } from "preact/hooks";
import { html, Badge, Button, Dialog, Empty, Failure, Head, Rows, Search, span, Text, timeFormat, toast } from "../ui.js";
import { T } from "../texts.js";
import { client, find, has, run, state } from "../store.js";
import { callTool } from "../rpc.js";
import { route, setQuery } from "../route.js";
import { Value } from "../result.js";

const L = T.ledger;
const when = timeFormat({ month: "short", day: "numeric", hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });
const page = 60; // fits in one answer

/** Turns words such as "tool:file_read outcome:denied" into filters of audit_query. @param {string} text */
export function filtersOf(text) {
  /** @type {Record<string, string>} */
  const out = {};
  for (const word of text.split(/\s+/).filter(Boolean)) {
    const m = /^(principal|tool|outcome|level|kind|context|session|call|since|until):(.+)$/.exec(word);
    if (m) out[m[1]] = m[2];
    else out.tool = word;
  }
  return out;
}

/** @param {any} l */
export function toneOf(l) {
  switch (l.outcome) {
    case "ok": return l.level === "security" ? "info" : "good";
    case undefined: case "started": case "asked": case "task": case "pending": return "info";
    case "denied": case "refused": case "cancelled": return "warn";
    default: return "bad";
  }
}

export default function Ledger() {
  const [text, setText] = useState(route.value.query.get("q") ?? "");
  const [lines, setLines] = useState(/** @type {any[]} */ ([]));
  const [more, setMore] = useState(false);
  const [error, setError] = useState(/** @type {any} */ (null));
  const [open, setOpen] = useState(/** @type {any} */ (null));
  const [report, setReport] = useState(/** @type {any} */ (null));
  const [follow, setFollow] = useState(true);
  const [read, setRead] = useState(false);
  const busy = useRef(false);
  const turn = useRef(0);
  const waits = useRef(false); // older lines were wanted while others were read
  const known = useRef(lines);
  known.current = lines;
  const last = state.value?.ledger?.last;

  /** Reads the first lines of a filter, which ends a read that goes on, or newer or older ones. @param {"first" | "newer" | "older"} which */
  const load = async (which) => {
    if (busy.current && which !== "first") {
      if (which === "older") waits.current = true;
      return;
    }
    busy.current = true;
    const mine = ++turn.current;
    const older = which === "older";
    try {
      const before = older ? known.current.at(-1)?.seq : undefined;
      const got = await run("audit_query", { ...filtersOf(text), last: page, ...(before === undefined ? {} : { before }) });
      if (mine !== turn.current) return;
      const fresh = got.lines.slice().reverse();
      if (older) {
        setLines((now) => [...now, ...fresh]);
        setMore(Boolean(got.more));
      } else {
        setLines((now) => fresh.length > 0 && now.length > 0 && fresh.at(-1).seq <= now[0].seq ? [...fresh.filter((/** @type {any} */ l) => l.seq > now[0].seq), ...now] : fresh);
        setMore((now) => now || Boolean(got.more));
      }
      setError(null);
    } catch (e) { if (mine === turn.current) setError(e); } finally { if (mine === turn.current) { busy.current = false; setRead(true); } }
    if (mine === turn.current && waits.current) setTimeout(() => { waits.current = false; load("older"); }, 0);
  };
  useEffect(() => {
    setLines([]);
    setMore(false);
    setRead(false);
    const wait = setTimeout(() => { load("first"); setQuery(text ? { q: text } : {}); }, 200);
    return () => clearTimeout(wait);
  }, [text]);
  // The line of this page's own last question is no news.
  useEffect(() => { if (follow && last !== undefined && last > (lines[0]?.seq ?? -2) + 1) load("newer"); }, [last]);

  const verify = async () => { try { setReport(await run("audit_verify")); } catch (e) { setError(e); } };
  const take = async () => {
    try {
      let after = 0, out = "";
      const tool = /** @type {any} */ (find("audit_export"));
      for (;;) {
        const result = await callTool(client, tool.endpoint, tool, after > 0 ? { after } : {});
        if (result.isError) throw new Error(result.content[0].text);
        const part = result.content.filter((/** @type {any} */ b) => b.type === "text" || b.type === "resource").map((/** @type {any} */ b) => b.text ?? b.resource.text).join("");
        const rows = part.split("\n").filter((/** @type {string} */ l) => l.startsWith("{"));
        if (rows.length === 0) break;
        out += rows.join("\n") + "\n";
        const seq = JSON.parse(rows.at(-1)).seq;
        if (!(seq > after)) break;
        after = seq;
      }
      const a = document.createElement("a");
      a.href = URL.createObjectURL(new Blob([out], { type: "application/jsonl" }));
      a.download = "ledger.jsonl";
      a.click();
      URL.revokeObjectURL(a.href);
      toast(L.exported);
    } catch (e) { setError(e); }
  };
  return html`<${Head} title=${T.pages.ledger} sub=${L.sub} actions=${html`
      <${Search} value=${text} onInput=${setText} label=${L.filter} wide />
      <${Button} aria-pressed=${follow ? "true" : "false"} icon=${follow ? "check" : "play"} onClick=${() => { setFollow(!follow); load("newer"); }}>${L.follow}<//>
      ${has("audit_verify") ? html`<${Button} icon="approvals" onClick=${verify}>${L.verify}<//>` : null}
      ${has("audit_export") ? html`<${Button} icon="download" onClick=${take}>${L.export}<//>` : null}`} />
    <${Failure} error=${error} />
    ${report ? html`<div class=${"notice " + (report.ok ? "info" : "bad")} role="status"><span>${report.ok ? L.sound(report.lines) : L.broken(report.problems.length)}
      ${report.problems.map((/** @type {any} */ p) => html`<br /><${Text}>${p.message}<//>`)}</span></div>` : null}
    <div class="card list-card">${lines.length === 0 ? read ? html`<${Empty} icon="ledger" title=${L.none}>${L.help}<//>` : html`<div class="loading"><span class="spinner"></span></div>` : html`
      <${Rows} items=${lines} height=${40} label=${T.pages.ledger} keyOf=${(/** @type {any} */ l) => String(l.seq)} end=${more ? () => load("older") : undefined} row=${(/** @type {any} */ l) => html`
        <button type="button" class="ledger-row" onClick=${() => setOpen(l)}>
          <span class="num muted">${l.seq}</span><time class="num muted" datetime=${l.at}>${when(l.at)}</time>
          <span class="clip"><${Text}>${l.principal ?? ""}<//></span><span class="mono clip grow-cell"><${Text}>${l.tool ?? l.kind}<//></span>
          <${Badge} tone=${toneOf(l)}>${l.outcome ?? l.kind}<//><span class="num muted">${span(l.ms)}</span></button>`} />`}</div>
    ${open ? html`<${Dialog} wide title=${L.line(open.seq)} onClose=${() => setOpen(null)}><${Value} value=${open} /><//>` : null}`;
}
