// Doctor: what this machine has and lacks, with the line that mends it.
import { html, Button, Card, Failure, Head, Icon, Text, useLoad } from "../ui.js";
import { T } from "../texts.js";
import { run } from "../store.js";

export default function Doctor() {
  const { value, error, loading, again } = useLoad(() => run("doctor_run"), []);
  const all = value?.checks ?? [];
  const order = { fail: 0, warn: 1, ok: 2 };
  const sorted = all.slice().sort((/** @type {any} */ a, /** @type {any} */ b) => /** @type {any} */ (order)[a.grade] - /** @type {any} */ (order)[b.grade]);
  const n = (/** @type {string} */ g) => all.filter((/** @type {any} */ c) => c.grade === g).length;
  return html`<${Head} title=${T.pages.doctor} sub=${value ? T.doctor.sum(n("ok"), n("warn"), n("fail")) : T.running} actions=${html`<${Button} icon="refresh" busy=${loading} onClick=${again}>${T.doctor.again}<//>`} />
    <${Failure} error=${error} />
    <${Card} flush><ul class="checks">${sorted.map((/** @type {any} */ c) => html`<li class=${c.grade}><span class="grade"><${Icon} name=${c.grade === "ok" ? "check" : "alert"} size=${16} /></span><div><p><span class="sr">${c.grade}: </span><${Text}>${c.what}<//></p>
      ${c.fix ? html`<p class="muted small fix"><${Text}>${c.fix}<//></p>` : null}</div></li>`)}</ul><//>`;
}
