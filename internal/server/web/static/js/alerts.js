// Web Push: this browser is told that a call waits, also while no page is open.
import { useState } from "preact/hooks";
import { html, Age, Button, Card, Failure, Icon, Table, Text, toast, useLoad } from "./ui.js";
import { T } from "./texts.js";
import { has, run } from "./store.js";
import { me } from "./session.js";
import { trustedScript } from "./live.js";

const A = T.alerts;

/** The folder for which the service worker stands; no page is below it, so that it comes between nothing. */
const scope = "/ui/push/";

const possible = () => "serviceWorker" in navigator && "PushManager" in globalThis && "Notification" in globalThis;

/** Returns the service worker of this build, which shows the alerts. */
export async function register() {
  const address = new URL("../push.js", import.meta.url);
  address.searchParams.set("title", A.waits);
  address.searchParams.set("task", A.expires);
  const made = await navigator.serviceWorker.register(trustedScript(address.href), { scope });
  const worker = made.installing ?? made.waiting;
  if (worker && !made.active) {
    await new Promise((done) => { worker.addEventListener("statechange", () => { if (worker.state === "activated") done(undefined); }); });
  }
  return made;
}

/** Subscribes this browser. @param {string} key of the host */
async function subscribe(key) {
  if (await Notification.requestPermission() !== "granted") throw new Error(A.refused);
  const made = await register();
  const raw = Uint8Array.from(atob(key.replaceAll("-", "+").replaceAll("_", "/")), (c) => c.charCodeAt(0));
  const old = await made.pushManager.getSubscription();
  if (old && String(new Uint8Array(old.options.applicationServerKey ?? new ArrayBuffer(0))) !== String(raw)) await old.unsubscribe();
  const got = (await made.pushManager.subscribe({ userVisibleOnly: true, applicationServerKey: raw })).toJSON();
  await run("alert_subscribe", { endpoint: got.endpoint, p256dh: got.keys?.p256dh, auth: got.keys?.auth, name: browserName() });
}

/** What this browser calls itself, shortly. */
function browserName() {
  const brands = /** @type {any} */ (navigator).userAgentData?.brands ?? [];
  const brand = brands.find((/** @type {any} */ b) => !/not.?a.?brand/i.test(b.brand))?.brand ?? (/Firefox|Safari/.exec(navigator.userAgent)?.[0] ?? "");
  return `${brand} ${/** @type {any} */ (navigator).userAgentData?.platform ?? ""}`.trim();
}

/** The card of alerts, below the approvals. */
export function Alerts() {
  const [error, setError] = useState(/** @type {any} */ (null));
  const [busy, setBusy] = useState("");
  const { value, error: failed, again } = useLoad(() => run("alert_list"), []);
  const act = (/** @type {string} */ name, /** @type {() => Promise<any>} */ f) => async () => {
    setBusy(name);
    setError(null);
    try { await f(); again(); } catch (e) { setError(e); } finally { setBusy(""); }
  };
  const test = async () => {
    const got = await run("alert_test");
    if (got.failed?.length) throw new Error(got.failed.join("; "));
    toast(A.sent(got.delivered));
  };
  const may = me.value && me.value.person;
  const some = value && (value.browsers.length > 0 || value.webhook);
  return html`<${Card} title=${A.title} actions=${html`
      ${some ? html`<${Button} kind="small" busy=${busy === "test"} onClick=${act("test", test)}>${A.test}<//>` : null}
      ${possible() && has("alert_subscribe") ? html`<${Button} kind="small" icon="plus" disabled=${!may || !value} busy=${busy === "add"} onClick=${act("add", () => subscribe(value.key))}>${A.here}<//>` : null}`}>
    <div class="stack"><${Failure} error=${error ?? failed} />
      <p class="muted">${possible() ? A.about : A.impossible}</p>
      ${value?.webhook ? html`<p class="row"><${Icon} name="check" />${A.webhook}</p>` : null}
      ${value?.browsers.length > 0 ? html`<${Table} label=${A.title} rows=${value.browsers} keyOf=${(/** @type {any} */ b) => b.id} columns=${[
        { title: A.browser, of: (/** @type {any} */ b) => html`<${Text}>${b.name || b.id}<//>` }, { title: A.user, of: (/** @type {any} */ b) => html`<${Text}>${b.user}<//>` },
        { title: A.service, of: (/** @type {any} */ b) => html`<${Text}>${b.service}<//>` }, { title: A.since, of: (/** @type {any} */ b) => html`<${Age} at=${b.created} />` },
        { title: "", of: (/** @type {any} */ b) => html`<${Button} kind="small danger" onClick=${act("remove" + b.id, () => run("alert_remove", { id: b.id }))}>${A.remove}<//>` }]} />` : null}
    </div><//>`;
}
