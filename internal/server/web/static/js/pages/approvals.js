// Approvals: calls that wait for a yes, with everything that the decision is about.
import { useEffect, useState } from "preact/hooks";
import { html, Age, Badge, Button, Card, Code, Dialog, Empty, Failure, Head, Icon, Segments, Text, toast, useLoad } from "../ui.js";
import { T } from "../texts.js";
import { has, run, state } from "../store.js";
import { me } from "../session.js";
import { Value } from "../result.js";
import { Diff } from "../diff.js";
import { Alerts } from "../alerts.js";
import { usePasskey } from "../passkeys.js";
import { route} from "../route.js";

const A = T.approvals;

export default function Approvals() {
  const [show, setShow] = useState("waiting");
  const waiting = state.value?.approvals;
  const { value, error, loading, again } = useLoad(() => run("approval_list", { all: show === "all" }), [show, JSON.stringify(Object.keys(waiting ?? {}))]);
  const list = value?.approvals ?? [];
  const wanted = route.value.rest[0];
  useEffect(() => { if (wanted) document.getElementById("approval-" + wanted)?.scrollIntoView(); }, [wanted, list.length]);
  return html`<${Head} title=${T.pages.approvals} sub=${A.sub} actions=${html`
      <${Segments} label=${T.showAs} value=${show} onChange=${setShow} options=${[["waiting", A.waiting], ["all", A.all]]} />
      <${Button} icon="refresh" onClick=${again}>${T.refresh}<//>`} />
    <${Failure} error=${error} />
    ${me.value && !me.value.person ? html`<div class="notice info"><${Icon} name="lock" /><span>${A.onlyPeople}</span></div>` : null}
    ${!loading && list.length === 0 ? html`<${Card}><${Empty} icon="approvals" title=${A.none}>${A.noneMore}<//><//>` : null}
    <div class="stack">${list.map((/** @type {any} */ a) => html`<${One} key=${a.id} a=${a} proof=${value?.proof} done=${again} />`)}
      ${has("alert_list") ? html`<${Alerts} />` : null}</div>`;
}

/** @param {{a: any, proof: string | undefined, done: () => void}} p */
function One({ a, proof, done }) {
  const [busy, setBusy] = useState("");
  const [error, setError] = useState(/** @type {any} */ (null));
  const [phrase, setPhrase] = useState("");
  const [always, setAlways] = useState(false);
  const open = a.state === "waiting" || a.state === "pending" || a.state === "open";
  const may = me.value && me.value.person && !a.mine;
  const decide = async (/** @type {string} */ decision) => {
    setBusy(decision);
    setError(null);
    try {
      const assertion = proof === "passkey" && decision === "approve"
        ? await usePasskey({ challenge: a.challenge, rpId: location.hostname, userVerification: "required" }) : undefined;
      await run("approval_decide", { id: a.id, decision, ...(proof === "passphrase" ? { passphrase: phrase } : {}), ...(assertion ? { assertion } : {}) });
      toast(decision === "approve" ? A.approved : A.denied);
      done();
    } catch (e) { setError(e); } finally { setBusy(""); }
  };
  return html`<section class="card" id=${"approval-" + a.id} aria-label=${a.tool}>
    <header class="card-head"><div class="row wrap"><h2 class="mono"><${Text}>${a.tool}<//></h2>
      <${Badge} tone=${open ? "warn" : a.state === "approved" || a.state === "used" ? "good" : ""} dot>${a.state}<//>
      ${a.mine ? html`<${Badge}>${A.mine}<//>` : null}</div>
      <span class="muted small"><${Age} at=${a.created} />${open ? html` · ${A.until} ${new Date(a.until).toLocaleTimeString()}` : null}</span></header>
    <div class="card-body stack">
      <dl class="facts wide"><div><dt>${A.by}</dt><dd><${Text}>${a.owner}<//></dd></div>${a.rule ? html`<div><dt>${A.rule}</dt><dd class="mono"><${Text}>${a.rule}<//></dd></div>` : null}
        ${a.by ? html`<div><dt>${A.decidedBy}</dt><dd><${Text}>${a.by}<//></dd></div>` : null}</dl>
      <${Arguments} value=${a.arguments} />
      <${Failure} error=${error} />
      ${open ? html`<div class="row wrap">
        ${proof === "passphrase" && may ? html`<label class="row">${A.passphrase} <input type="password" autocomplete="off" value=${phrase} onInput=${(/** @type {any} */ e) => setPhrase(e.target.value)} /></label>` : null}
        <${Button} kind="primary" icon="check" disabled=${!may || proof === "passphrase" && !phrase} busy=${busy === "approve"} onClick=${() => decide("approve")}>${A.once}<//>
        <${Button} kind="danger" icon="close" disabled=${!may || proof === "passphrase" && !phrase} busy=${busy === "deny"} onClick=${() => decide("deny")}>${A.deny}<//>
        ${has("config_set") ? html`<${Button} disabled=${!may} onClick=${() => setAlways(true)}>${A.always}<//>` : null}</div>` : null}
    </div>
    ${always ? html`<${Always} a=${a} onClose=${() => setAlways(false)} approve=${() => decide("approve")} />` : null}</section>`;
}

/** What a call asks for, in full; edits as what they change. @param {{value: any}} p */
function Arguments({ value }) {
  if (value && typeof value === "object" && typeof value.old_string === "string" && typeof value.new_string === "string") {
    const { old_string, new_string, ...rest } = value;
    return html`<${Value} value=${rest} /><${Diff} from=${old_string} to=${new_string} />`;
  }
  if (Array.isArray(value?.edits)) {
    const { edits, ...rest } = value;
    return html`<${Value} value=${rest} />${edits.map((/** @type {any} */ e) => html`<${Diff} from=${e.old_string ?? ""} to=${e.new_string ?? ""} />`)}`;
  }
  return html`<${Value} value=${value ?? {}} />`;
}

/** @param {{a: any, onClose: () => void, approve: () => Promise<void>}} p */
function Always({ a, onClose, approve }) {
  const [error, setError] = useState(/** @type {any} */ (null));
  const principal = a.owner.split("/")[0];
  const rule = { name: `always-${a.tool}-${principal}`.slice(0, 60), principals: [principal], names: [a.tool], then: "allow" };
  const add = async () => {
    try {
      const shown = await run("config_show");
      const now = shown.settings.find((/** @type {any} */ s) => s.path === "rules")?.value ?? [];
      await run("config_set", { path: "rules", value: [rule, ...now] });
      await approve();
      onClose();
    } catch (e) { setError(e); }
  };
  return html`<${Dialog} title=${A.always} onClose=${onClose}><div class="stack"><p>${A.alwaysMore}</p>
    <${Code} text=${"rules:\n- " + Object.entries(rule).map(([k, v]) => `${k}: ${JSON.stringify(v)}`).join("\n  ")} />
    <${Failure} error=${error} /><div class="row"><${Button} kind="primary" onClick=${add}>${A.addRule}<//><${Button} onClick=${onClose}>${T.cancel}<//></div></div><//>`;
}
