// People: users, their roles and tokens, logins, and secrets.
import { useState } from "preact/hooks";
import { html, Age, Badge, Button, Card, Code, Dialog, Empty, Failure, Head, Segments, Table, Text, toast, useLoad } from "../ui.js";
import { T } from "../texts.js";
import { find, has, run } from "../store.js";
import { go, route } from "../route.js";
import { SchemaForm } from "../form.js";
import { registerPasskey } from "../passkeys.js";

const P = T.people;

export default function People() {
  const tab = route.value.query.get("view") ?? (has("user_list") ? "users" : "logins");
  const tabs = [["users", "user_list", P.users], ["tokens", "token_list", P.tokens], ["logins", "auth_session_list", P.logins], ["secrets", "secret_list", P.secrets]].filter(([, t]) => has(t));
  return html`<${Head} title=${T.pages.people} sub=${P.sub} actions=${html`<${Segments} label=${T.showAs} value=${tab} onChange=${(/** @type {string} */ v) => go("people", [], { view: v })} options=${tabs.map(([v, , t]) => [v, t])} />`} />
    ${tab === "users" ? html`<${List} list="user_list" member="users" add="user_add" columns=${users} />` : tab === "tokens" ? html`<${List} list="token_list" member="tokens" add="token_create" columns=${tokens} />`
      : tab === "secrets" ? html`<${List} list="secret_list" member="secrets" add="secret_set" columns=${secrets} />` : html`<${Logins} />`}`;
}

/** @param {(tool: string, args: any) => void} act */
const users = (act) => [{ title: P.name, of: (/** @type {any} */ u) => html`<strong><${Text}>${u.name}<//></strong>` }, { title: P.roles, of: (/** @type {any} */ u) => html`<span class="chips">${(u.roles ?? []).map((/** @type {string} */ r) => html`<${Badge}>${r}<//>`)}</span>` },
  { title: P.password, of: (/** @type {any} */ u) => u.password ? T.yes : T.no }, { title: P.tokens, num: true, of: (/** @type {any} */ u) => u.tokens }, { title: P.created, of: (/** @type {any} */ u) => html`<${Age} at=${u.created} />` },
  { title: "", of: (/** @type {any} */ u) => html`<span class="row">${has("user_roles") ? html`<${Button} kind="small" onClick=${() => act("user_roles", { name: u.name, roles: u.roles })}>${P.roles}<//>` : null}
    ${has("user_password") ? html`<${Button} kind="small" onClick=${() => act("user_password", { name: u.name })}>${P.password}<//>` : null}${has("user_remove") ? html`<${Button} kind="small danger" onClick=${() => act("user_remove", { name: u.name })}>${P.remove}<//>` : null}</span>` }];
/** @param {(tool: string, args: any) => void} act */
const tokens = (act) => [{ title: P.name, of: (/** @type {any} */ t) => html`<strong><${Text}>${t.name ?? t.id}<//></strong>` }, { title: P.user, of: (/** @type {any} */ t) => t.user }, { title: T.context, of: (/** @type {any} */ t) => t.context ?? "" }, { title: P.scopes, of: (/** @type {any} */ t) => (t.scopes ?? []).join(" ") },
  { title: P.created, of: (/** @type {any} */ t) => html`<${Age} at=${t.created} />` }, { title: P.until, of: (/** @type {any} */ t) => t.until ? new Date(t.until).toLocaleDateString() : P.never }, { title: P.used, of: (/** @type {any} */ t) => html`<${Age} at=${t.lastUsed} />` },
  { title: "", of: (/** @type {any} */ t) => has("token_revoke") ? html`<${Button} kind="small danger" onClick=${() => act("token_revoke", { id: t.id })}>${P.revoke}<//>` : null }];
/** @param {(tool: string, args: any) => void} act */
const secrets = (act) => [{ title: P.name, of: (/** @type {any} */ s) => html`<code><${Text}>${s.name}<//></code>` }, { title: P.set, of: (/** @type {any} */ s) => html`<${Age} at=${s.set} />` },
  { title: "", of: (/** @type {any} */ s) => has("secret_remove") ? html`<${Button} kind="small danger" onClick=${() => act("secret_remove", { name: s.name })}>${P.remove}<//>` : null }];

/** @type {Record<string, string>} */
const empty = { users: "noUsers", tokens: "noTokens", secrets: "noSecrets" };

/** @param {{list: string, member: string, add: string, columns: (act: any) => any[]}} p */
function List({ list, member, add, columns }) {
  const { value, error, again } = useLoad(() => run(list), [list]);
  const [asked, setAsked] = useState(/** @type {any} */ (null));
  return html`<${Failure} error=${error} /><${Card} flush title=${/** @type {any} */ (P)[member]} actions=${has(add) ? html`<${Button} kind="small primary" icon="plus" onClick=${() => setAsked({ tool: add, args: {} })}>${P.add}<//>` : null}>
    ${value && !value[member]?.length ? html`<${Empty} icon=${member === "users" ? "people" : "lock"} title=${/** @type {any} */ (P)[empty[member]]}>${/** @type {any} */ (P)[empty[member] + "More"]}<//>` : html`<${Table} label=${/** @type {any} */ (P)[member]} rows=${value?.[member] ?? []} columns=${columns((/** @type {string} */ tool, /** @type {any} */ args) => setAsked({ tool, args }))} />`}<//>
    ${asked ? html`<${Ask} ...${asked} onClose=${() => { setAsked(null); again(); }} />` : null}`;
}

/** A dialog that calls a tool by its form. @param {{tool: string, args: any, onClose: () => void}} p */
function Ask({ tool, args, onClose }) {
  const [values, setValues] = useState(args);
  const [error, setError] = useState(/** @type {any} */ (null));
  const [got, setGot] = useState(/** @type {any} */ (null));
  const t = /** @type {any} */ (find(tool));
  const send = async (/** @type {Event} */ e) => {
    e.preventDefault();
    try {
      const answer = await run(tool, values);
      if (answer.token || answer.password) setGot(answer);
      else { toast(T.saved); onClose(); }
    } catch (e2) { setError(e2); }
  };
  return html`<${Dialog} title=${t.title ?? tool} onClose=${onClose}>${got ? html`<div class="stack"><p>${P.once}</p><${Code} text=${got.token ?? got.password} /><${Button} kind="primary" onClick=${onClose}>${T.close}<//></div>`
    : html`<form class="stack" onSubmit=${send}><p class="muted"><${Text}>${t.description}<//></p><${SchemaForm} schema=${t.inputSchema} value=${values} onChange=${setValues} prefix="ask" /><${Failure} error=${error} />
    <div class="row"><${Button} kind="primary" type="submit">${t.title ?? tool}<//><${Button} onClick=${onClose}>${T.cancel}<//></div></form>`}<//>`;
}

function Logins() {
  const { value, error, again } = useLoad(() => run("auth_session_list"), []);
  const rows = Object.entries(value?.sessions ?? {}).map(([id, s]) => ({ id, .../** @type {any} */ (s) }));
  const end = async (/** @type {string} */ id) => { await run("auth_session_kill", { ids: [id] }); again(); };
  return html`<${Failure} error=${error} /><${Card} flush title=${P.logins}><${Table} label=${P.logins} rows=${rows} columns=${[{ title: P.user, of: (s) => html`<${Text}>${s.user}<//>${s.id === value?.current ? html` <${Badge} tone="info">${P.current}<//>` : null}` }, { title: P.browser, of: (s) => html`<span class="small"><${Text}>${s.userAgent ?? ""}<//></span>` },
    { title: P.used, of: (s) => html`<${Age} at=${s.lastActive} />` }, { title: P.until, of: (s) => new Date(s.expires).toLocaleString() }, { title: "", of: (s) => has("auth_session_kill") ? html`<${Button} kind="small danger" onClick=${() => end(s.id)}>${P.end}<//>` : null }]} /><//>
    ${has("auth_passkey_list") ? html`<${Passkeys} />` : null}`;
}

/** The passkeys of the user; they are registered here and nowhere else. */
function Passkeys() {
  const { value, error, again } = useLoad(() => run("auth_passkey_list"), []);
  const [failed, setFailed] = useState(/** @type {any} */ (null));
  const act = async (/** @type {() => Promise<any>} */ f) => {
    setFailed(null);
    try { await f(); again(); } catch (e) { setFailed(e); }
  };
  const add = (/** @type {Event} */ e) => {
    e.preventDefault();
    const form = /** @type {HTMLFormElement} */ (e.target);
    act(() => registerPasskey(form.passkey.value).then(() => form.reset()));
  };
  return html`<${Failure} error=${failed ?? error} /><${Card} flush title=${P.passkeys} actions=${html`<form class="row" onSubmit=${add}>
      <input name="passkey" aria-label=${P.passkeyName} placeholder=${P.passkeyName} maxlength="64" /><${Button} kind="small primary" icon="plus" type="submit">${P.addPasskey}<//></form>`}>
    <${Table} label=${P.passkeys} rows=${value?.passkeys ?? []} columns=${[{ title: P.name, of: (/** @type {any} */ k) => html`<strong><${Text}>${k.name}<//></strong>` }, { title: P.origin, of: (/** @type {any} */ k) => html`<code><${Text}>${k.origin}<//></code>` },
    { title: P.decides, of: (/** @type {any} */ k) => k.decides ? T.yes : P.afterRestart }, { title: P.used, of: (/** @type {any} */ k) => html`<${Age} at=${k.lastUsed} />` },
    { title: "", of: (/** @type {any} */ k) => html`<${Button} kind="small danger" onClick=${() => act(() => run("auth_passkey_remove", { id: k.id }))}>${P.remove}<//>` }]} /><//>`;
}
