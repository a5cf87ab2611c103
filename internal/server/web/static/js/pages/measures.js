// Measures: calls, errors and times by tool, person or package; drag over a chart to zoom.
import { useEffect, useRef, useState } from "preact/hooks";
import { html, Badge, Button, bytes, Card, Empty, Failure, Head, Segments, span, Table, Text, useLoad } from "../ui.js";
import { T } from "../texts.js";
import { run } from "../store.js";
import { route, setQuery } from "../route.js";

const M = T.measures;
const ranges = { "1h": "1m", "24h": "1h", "7d": "1h", "90d": "1d" };
const colors = ["#6366f1", "#0ea5a4", "#e08a00", "#d6409f", "#3b82f6", "#65a30d", "#a855f7", "#ef4444"];

export default function Measures() {
  const [by, setBy] = useState(route.value.query.get("by") ?? "tool");
  const [since, setSince] = useState(route.value.query.get("since") ?? "1h");
  const step = /** @type {any} */ (ranges)[since] ?? "1h";
  const { value, error, again } = useLoad(() => run("metrics_series", { by, since, step }), [by, since]);
  const total = useLoad(() => run("metrics_series", { by: "total", since, step }), [since]);
  useEffect(() => setQuery({ by: by === "tool" ? "" : by, since: since === "1h" ? "" : since }), [by, since]);
  const series = (value?.series ?? []).slice().sort((/** @type {any} */ a, /** @type {any} */ b) => b.calls - a.calls);
  const all = total.value?.series[0]?.points ?? [];
  const sum = (/** @type {string} */ k) => all.reduce((/** @type {number} */ n, /** @type {any} */ p) => n + p[k], 0);
  const most = (/** @type {any[]} */ points, /** @type {string} */ k) => points.reduce((n, p) => Math.max(n, p[k]), 0);
  return html`<${Head} title=${T.pages.measures} sub=${M.sub} actions=${html`
      <${Segments} label=${M.by} value=${by} onChange=${setBy} options=${[["tool", M.tool], ["principal", M.principal], ["package", M.package]]} />
      <${Segments} label=${M.range} value=${since} onChange=${setSince} options=${Object.keys(ranges).map((r) => [r, r])} /><${Button} icon="refresh" onClick=${() => { again(); total.again(); }}>${T.refresh}<//>`} />
    <${Failure} error=${error ?? total.error} />
    <div class="stats">${[[M.calls, sum("calls").toLocaleString("en-US")], [M.errors, sum("errors").toLocaleString("en-US")], ["p95", span(most(all, "p95"))], ["p99", span(most(all, "p99"))], [M.bytesOut, bytes(sum("bytesOut"))], [M.tokens, sum("tokens").toLocaleString("en-US")]]
      .map(([k, v]) => html`<div class="stat card"><span><strong class="num">${v}</strong><span class="muted small">${k}</span></span></div>`)}</div>
    ${value && series.length === 0 ? html`<${Card}><${Empty} icon="measures" title=${M.none} /><//>` : html`
    <div class="grid halves"><${Card} title=${M.calls}><${Chart} label=${M.calls} lines=${series.slice(0, 8).map((/** @type {any} */ s) => ({ name: s.name || M.all, points: s.points, of: "calls" }))} /><//>
      <${Card} title=${M.times}><${Chart} label=${M.times} unit="ms" lines=${["p50", "p95", "p99"].map((of) => ({ name: of, points: all, of }))} /><//></div>
    <${Card} flush><${Table} label=${T.pages.measures} rows=${series.slice(0, 200)} columns=${[
      { title: /** @type {any} */ (M)[by], of: (s) => html`<span class="mono"><${Text}>${s.name || T.none}<//></span>` }, { title: M.calls, num: true, of: (s) => s.calls.toLocaleString("en-US") },
      { title: M.errors, num: true, of: (s) => { const n = s.points.reduce((/** @type {number} */ k, /** @type {any} */ p) => k + p.errors, 0); return n > 0 ? html`<${Badge} tone="bad">${n}<//>` : "0"; } },
      ...["p50", "p95", "p99"].map((k) => ({ title: k, num: true, of: (/** @type {any} */ s) => span(most(s.points, k)) })),
      { title: M.bytesOut, num: true, of: (s) => bytes(s.points.reduce((/** @type {number} */ n, /** @type {any} */ p) => n + p.bytesOut, 0)) }, { title: M.tokens, num: true, of: (s) => s.points.reduce((/** @type {number} */ n, /** @type {any} */ p) => n + p.tokens, 0).toLocaleString("en-US") }]} /><//>`}`;
}

/** @param {{lines: {name: string, points: any[], of: string}[], label: string, unit?: string}} p */
function Chart({ lines, label, unit }) {
  const box = useRef(/** @type {HTMLElement | null} */ (null));
  useEffect(() => {
    let over = false;
    /** @type {any} */
    let plot;
    /** @type {ResizeObserver | undefined} */
    let size;
    const link = document.getElementById("uplot-style") ?? document.head.appendChild(Object.assign(document.createElement("link"), {
      id: "uplot-style", rel: "stylesheet", href: new URL("../../lib/uplot/uPlot.min.css", import.meta.url).href }));
    import("uplot").then(({ default: UPlot }) => {
      if (over || !box.current || !link) return;
      const times = [...new Set(lines.flatMap((l) => l.points.map((p) => Date.parse(p.at) / 1000)))].sort((a, b) => a - b);
      if (times.length === 1) times.unshift(times[0] - 60); // one point has no range
      const data = [times, ...lines.map((l) => { const at = new Map(l.points.map((p) => [Date.parse(p.at) / 1000, p[l.of]])); return times.map((t) => at.get(t) ?? (unit ? null : 0)); })];
      const axis = { stroke: getComputedStyle(box.current).color, grid: { stroke: "rgba(128,136,150,.16)", width: 1 }, ticks: { show: false }, font: "11px system-ui" };
      plot = new UPlot({
        width: box.current.clientWidth, height: 230, padding: [8, 22, 0, 0], cursor: { drag: { x: true, y: false } }, legend: { show: true, live: true },
        scales: { x: { range: (/** @type {any} */ _, /** @type {number} */ min, /** @type {number} */ max) => max - min < 60 ? [max - 600, max + 60] : [min, max] } },
        axes: [{ ...axis }, { ...axis, size: 46, values: (/** @type {any} */ _, /** @type {number[]} */ v) => v.map((n) => n >= 1000 ? n / 1000 + "k" : String(n)) }],
        series: [{}, ...lines.map((l, i) => ({ label: l.name, stroke: colors[i % 8], width: 2, points: { show: times.length < 3 }, spanGaps: true, fill: i === 0 && !unit ? colors[0] + "1c" : undefined }))],
      }, /** @type {any} */ (data), box.current);
      size = new ResizeObserver(() => { if (box.current) plot.setSize({ width: box.current.clientWidth, height: 230 }); });
      size.observe(box.current);
    });
    return () => { over = true; size?.disconnect(); plot?.destroy(); };
  }, [JSON.stringify(lines)]);
  return html`<div class="chart" role="img" aria-label=${label} ref=${box}></div>`;
}
