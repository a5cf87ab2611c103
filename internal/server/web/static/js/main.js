// The frame of the pages: login, navigation, the page that the address names, dialogs.
import { render } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { computed, signal } from "@preact/signals";
import { html, Badge, Button, Dialog, Failure, Icon, nextTask, Text, toasts } from "./ui.js";
import { T } from "./texts.js";
import { accept, ask, codeInAddress, hasKey, identify, logout, me } from "./session.js";
import { admin, connected, has, questions, start, starting, state, tools } from "./store.js";
import { usePasskey } from "./passkeys.js";
import { link, route } from "./route.js";
import { SchemaForm } from "./form.js";

/**
 * The pages: a group of the navigation, and what a person must have to see it.
 * @type {Record<string, {group: keyof typeof T.groups, load: () => Promise<any>, if?: () => boolean}>}
 */
const pages = {
  now: { group: "watch", load: () => import("./pages/now.js") },
  approvals: { group: "watch", load: () => import("./pages/approvals.js"), if: () => has("approval_list") },
  review: { group: "watch", load: () => import("./pages/review.js"), if: () => has("review_list") },
  ledger: { group: "watch", load: () => import("./pages/ledger.js"), if: () => has("audit_query") },
  measures: { group: "watch", load: () => import("./pages/measures.js"), if: () => has("metrics_series") },
  state: { group: "watch", load: () => import("./pages/state.js"), if: () => state.value !== null },
  tools: { group: "use", load: () => import("./pages/tools.js") },
  packages: { group: "use", load: () => import("./pages/packages.js"), if: () => has("package_list") },
  sandboxes: { group: "use", load: () => import("./pages/sandboxes.js"), if: () => has("sandbox_list") },
  processes: { group: "use", load: () => import("./pages/processes.js"), if: () => has("process_list") },
  connect: { group: "use", load: () => import("./pages/connect.js") },
  contexts: { group: "govern", load: () => import("./pages/contexts.js"), if: () => Object.keys(state.value?.contexts ?? {}).length > 0 },
  people: { group: "govern", load: () => import("./pages/people.js"), if: () => has("user_list") || has("auth_session_list") },
  settings: { group: "govern", load: () => import("./pages/settings.js"), if: () => has("config_show") },
  doctor: { group: "govern", load: () => import("./pages/doctor.js"), if: () => has("doctor_run") },
};

const dark = matchMedia("(prefers-color-scheme: dark)");
const theme = signal(localStorage.getItem("gatehouse.theme") ?? "system");

/** @param {string} value */
function setTheme(value) {
  theme.value = value;
  if (value === "system") {
    localStorage.removeItem("gatehouse.theme");
    delete document.documentElement.dataset.theme;
  } else {
    localStorage.setItem("gatehouse.theme", value);
    document.documentElement.dataset.theme = value;
  }
}
if (theme.value !== "system") document.documentElement.dataset.theme = theme.value;

const palette = signal(false);
const menu = signal(false);
const failure = signal(/** @type {any} */ (null));
const shown = computed(() => Object.keys(pages).filter((p) => pages[p].if?.() ?? true));

function App() {
  if (me.value === false) return html`<${Login} />`;
  if (failure.value && !tools.value["/mcp"]) return html`<main class="login"><${Failure} error=${failure.value} /><${Button} onClick=${() => location.reload()}>${T.cancel}<//></main>`;
  if (!me.value || !tools.value["/mcp"]) return html`<div id="splash" role="status"><span class="spinner"></span></div>`;
  return html`<${Shell} />`;
}

function Shell() {
  const name = route.value.page in pages ? route.value.page : "now";
  const visible = shown.value.includes(name);
  useEffect(() => {
    document.title = `${/** @type {any} */ (T.pages)[name]} · ${state.value?.serverInfo?.title ?? "Gatehouse"}`;
    menu.value = false;
  }, [name]);
  return html`<a class="skip" href="#main" onClick=${(/** @type {Event} */ e) => { e.preventDefault(); document.getElementById("main")?.focus(); }}>${T.skip}</a>
    <div class=${"shell " + (menu.value ? "menu-open" : "")}>
      <${Side} name=${name} />
      <div class="body">
        <${Top} />
        ${connected.value === false ? html`<div class="notice warn banner" role="status"><${Icon} name="alert" />${T.offline}</div>` : null}
        <main id="main" tabindex="-1" class=${"page page-" + name}>${visible ? html`<${Page} key=${name} name=${name} />`
          : starting.value ? html`<div class="loading"><span class="spinner"></span></div>` : html`<p class="muted">${T.nothingFound}</p>`}</main>
      </div>
    </div>
    <${Questions} />
    ${palette.value ? html`<${Palette} />` : null}
    <div class="toasts" role="status" aria-live="polite">${toasts.value.map((t) => html`<div key=${t.id} class=${"toast " + t.tone}><${Text}>${t.text}<//></div>`)}</div>`;
}

/** @type {Record<string, any>} */
const loaded = {};

/** @param {{name: string}} p */
function Page({ name }) {
  const [, again] = useState(0);
  const [error, fail] = useState(/** @type {any} */ (null));
  useEffect(() => {
    if (!loaded[name]) pages[name].load().then(async (m) => { await nextTask(); loaded[name] = m.default; again((n) => n + 1); }).catch(fail);
  }, [name]);
  const C = loaded[name];
  if (error) return html`<${Failure} error=${error} />`;
  return C ? html`<${C} />` : html`<div class="loading"><span class="spinner"></span></div>`;
}

/** @param {{name: string}} p */
function Side({ name }) {
  return html`<nav class="side" aria-label=${T.navigation}>
    <a class="brand" href="#/now"><svg width="26" height="26" viewBox="0 0 32 32" aria-hidden="true"><rect width="32" height="32" rx="8" class="brand-back" /><path d="M8 25V13a8 8 0 0 1 16 0v12M13 25V15.500a3 3 0 0 1 6 0V25" fill="none" stroke="#fff" stroke-width="2.600" stroke-linecap="round" /></svg>
      <span><${Text}>${state.value?.serverInfo?.title ?? state.value?.serverInfo?.name ?? "Gatehouse"}<//></span></a>
    <div class="side-pages">${Object.entries(T.groups).map(([group, title]) => {
      const inGroup = shown.value.filter((p) => pages[p].group === group);
      return inGroup.length === 0 ? null : html`<div class="side-group" key=${group}><h2>${title}</h2>${inGroup.map((p) => html`
        <a key=${p} href=${link(p)} aria-current=${p === name ? "page" : undefined}><${Icon} name=${p} />${/** @type {any} */ (T.pages)[p]}<${Count} page=${p} /></a>`)}</div>`;
    })}</div>
    <${Account} />
  </nav>`;
}

/** The number beside a page that something waits on. @param {{page: string}} p */
function Count({ page }) {
  const n = page === "approvals" ? Object.keys(state.value?.approvals ?? {}).length : 0;
  return n > 0 ? html`<span class="count">${n}</span>` : null;
}

function Account() {
  const person = me.value;
  if (!person) return null;
  const known = person.way !== "anonymous";
  return html`<div class="account">
    <span class="avatar" aria-hidden="true">${known ? person.user.slice(0, 1).toUpperCase() : html`<${Icon} name="user" size=${16} />`}</span>
    <span class="account-name"><strong class="clip"><${Text}>${known ? person.user : T.anonymous}<//></strong>
      <span class="muted small">${admin.value ? "admin" : person.roles.join(", ")}</span></span>
    ${known ? html`<button type="button" class="link" onClick=${() => logout()}>${T.logOut}</button>`
      : html`<button type="button" class="link" onClick=${() => { me.value = false; }}>${T.logIn}</button>`}
  </div>`;
}

function Top() {
  const status = connected.value;
  const next = theme.value === "system" ? (dark.matches ? "light" : "dark") : "system";
  return html`<header class="top">
    <button type="button" class="icon-button only-narrow" aria-label=${T.menu} aria-expanded=${menu.value ? "true" : "false"} onClick=${() => { menu.value = !menu.value; }}><${Icon} name="menu" /></button>
    <button type="button" class="palette-button" onClick=${() => { palette.value = true; }}><${Icon} name="search" size=${16} /><span>${T.paletteHint}</span><kbd>${/Mac/.test(navigator.platform) ? "⌘" : "Ctrl"} K</kbd></button>
    <span class="grow"></span>
    <${Badge} tone=${status ? "good" : status === false ? "bad" : ""} dot>${status ? T.live : status === false ? T.reconnecting : T.connecting}<//>
    <button type="button" class="icon-button" title=${T.theme} aria-label=${T.theme} onClick=${() => setTheme(next)}><${Icon} name=${(theme.value === "dark" || theme.value === "system" && dark.matches) ? "sun" : "moon"} /></button>
  </header>`;
}

function Palette() {
  const [text, setText] = useState("");
  const [at, setAt] = useState(0);
  const close = () => { palette.value = false; };
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  const matches = (/** @type {string} */ line) => words.every((w) => line.toLowerCase().includes(w));
  const items = shown.value.filter((p) => matches(/** @type {any} */ (T.pages)[p])).map((p) => ({ icon: p, text: /** @type {any} */ (T.pages)[p], more: "", href: link(p) }));
  for (const t of words.length > 0 ? tools.value["/mcp"] ?? [] : []) {
    if (items.length >= 30) break;
    if (matches(t.name + " " + (t.title ?? ""))) items.push({ icon: "tools", text: t.name, more: t.title ?? "", href: link("tools", [t.name]) });
  }
  const pick = (/** @type {number} */ i) => { if (items[i]) { location.hash = items[i].href; close(); } };
  return html`<${Dialog} title=${T.palette} onClose=${close}>
    <input class="palette-input" autofocus role="combobox" aria-expanded="true" aria-controls="palette-list" aria-label=${T.paletteHint} placeholder=${T.paletteHint} value=${text} autocomplete="off"
      aria-activedescendant=${items[at] ? "palette-" + at : undefined}
      onInput=${(/** @type {any} */ e) => { setText(e.target.value); setAt(0); }}
      onKeyDown=${(/** @type {KeyboardEvent} */ e) => {
        if (e.key === "ArrowDown") { e.preventDefault(); setAt(Math.min(at + 1, items.length - 1)); }
        if (e.key === "ArrowUp") { e.preventDefault(); setAt(Math.max(at - 1, 0)); }
        if (e.key === "Enter") { e.preventDefault(); pick(at); }
      }} />
    <div class="palette-list" id="palette-list" role="listbox" aria-label=${T.palette}>${items.map((item, i) => html`<div id=${"palette-" + i} role="option" aria-selected=${i === at ? "true" : "false"} class="palette-item"
      onMouseMove=${() => setAt(i)} onClick=${() => pick(i)}><${Icon} name=${item.icon} size=${16} /><span><${Text}>${item.text}<//></span><span class="muted small clip"><${Text}>${item.more}<//></span></div>`)}
      ${items.length === 0 ? html`<p class="muted pad">${T.nothingFound}</p>` : null}</div><//>`;
}

function Questions() {
  const q = questions.value[0];
  return q ? html`<${Question} key=${JSON.stringify(q.requests)} q=${q} />` : null;
}

/** @param {{q: any}} p */
function Question({ q }) {
  const [values, setValues] = useState(/** @type {any} */ ({}));
  const keys = Object.keys(q.requests);
  const done = (/** @type {string} */ action) => q.answer(Object.fromEntries(keys.map((k) => [k, {
    action, ...(action === "accept" && q.requests[k].params.mode !== "url" ? { content: values[k] ?? {} } : {}),
  }])));
  const missing = keys.some((k) => (q.requests[k].params.requestedSchema?.required ?? []).some((/** @type {string} */ n) => values[k]?.[n] === undefined));
  return html`<${Dialog} title=${T.question.title} onClose=${() => done("cancel")}><form class="stack" onSubmit=${(/** @type {Event} */ e) => { e.preventDefault(); done("accept"); }}>
    ${keys.map((k) => {
      const p = q.requests[k].params;
      return html`<div class="stack" key=${k}><p class="prose"><${Text}>${p.message}<//></p>${p.mode === "url" ? html`<p>${T.question.link}</p><p class="mono breaks"><${Text}>${p.url}<//></p>
        ${/^https?:/.test(p.url) ? html`<a class="button" href=${p.url} target="_blank" rel="noopener noreferrer">${T.question.open}</a>` : null}`
        : html`<${SchemaForm} schema=${p.requestedSchema} value=${values[k]} prefix=${"q-" + k} onChange=${(/** @type {any} */ v) => setValues({ ...values, [k]: v })} />`}</div>`;
    })}
    <div class="row form-end"><${Button} kind="primary" type="submit" disabled=${missing}>${T.question.send}<//><${Button} onClick=${() => done("decline")}>${T.question.decline}<//></div></form><//>`;
}

function Login() {
  const [ways, setWays] = useState(/** @type {any} */ (null));
  const [error, setError] = useState(failure.value);
  const [busy, setBusy] = useState(false);
  const form = useRef(/** @type {any} */ (null));
  useEffect(() => { ask("GET", "/auth/ways").then(({ status, body }) => setWays(status === 200 ? body : { password: true })); }, []);
  const enter = async (/** @type {() => Promise<{status: number, body: any}>} */ f) => {
    setBusy(true);
    setError(null);
    try {
      const { status, body } = await f();
      if (status !== 200) setError(new Error(body.message ?? T.login.failed));
      else await accept(body);
    } catch (e) { setError(e); } finally { setBusy(false); }
  };
  const submit = (/** @type {Event} */ e) => {
    e.preventDefault();
    const f = form.current;
    const body = { user: f.user.value, password: f.password.value };
    enter(() => ways?.pairing ? ask("POST", "/auth/pair", { ...body, code: f.code.value })
      .then((r) => r.status < 300 ? ask("POST", "/auth/login", body) : r) : ask("POST", "/auth/login", { ...body, lasting: f.lasting.checked }));
  };
  return html`<main class="login"><div class="login-box">
    <div class="login-brand"><svg width="44" height="44" viewBox="0 0 32 32" aria-hidden="true"><rect width="32" height="32" rx="8" class="brand-back" /><path d="M8 25V13a8 8 0 0 1 16 0v12M13 25V15.500a3 3 0 0 1 6 0V25" fill="none" stroke="#fff" stroke-width="2.600" stroke-linecap="round" /></svg>
      <h1>${ways?.pairing ? T.login.pair : T.login.title}</h1><p class="muted">${ways?.pairing ? T.login.pairMore : T.login.welcome}</p></div>
    <${Failure} error=${error} />
    ${ways === null ? html`<span class="spinner"></span>` : html`
    ${ways.password !== false || ways.pairing ? html`<form class="stack" ref=${form} onSubmit=${submit}>
      ${ways.pairing ? html`<label class="field"><span>${T.login.code}</span><input name="code" required autocomplete="off" /></label>` : null}
      <label class="field"><span>${T.login.user}</span><input name="user" required autocomplete="username" autofocus /></label>
      <label class="field"><span>${T.login.password}</span><input name="password" type="password" required autocomplete=${ways.pairing ? "new-password" : "current-password"} /></label>
      ${ways.pairing ? null : html`<label class="check"><input type="checkbox" name="lasting" /> ${T.login.keep}</label>`}
      <${Button} kind="primary wide" type="submit" busy=${busy}>${ways.pairing ? T.login.pair : T.login.title}<//></form>` : null}
    ${ways.passkey || ways.oidc?.length > 0 ? html`<p class="or"><span>${T.login.or}</span></p>` : null}
    ${ways.passkey ? html`<${Button} kind="wide" icon="lock" onClick=${() => enter(() => passkey(form.current?.lasting?.checked ?? false))}>${T.login.passkey}<//>` : null}
    ${ways.oidc?.map((/** @type {any} */ o) => html`<a class="button wide" href=${"/auth/oidc/start?id=" + encodeURIComponent(o.id)}>${T.login.with(o.title)}</a>`)}
    <p class="muted small">${T.login.link}</p>`}
  </div></main>`;
}

/** @param {boolean} lasting */
async function passkey(lasting) {
  const began = await ask("POST", "/auth/passkey/login", {});
  if (began.status !== 200) return began;
  const response = await usePasskey(began.body.options.publicKey);
  return ask("POST", "/auth/passkey/login/finish", { ceremony: began.body.ceremony, lasting, response });
}

addEventListener("keydown", (e) => {
  const typing = /^(INPUT|TEXTAREA|SELECT)$/.test(/** @type {HTMLElement} */ (e.target).tagName ?? "") || /** @type {HTMLElement} */ (e.target).isContentEditable;
  if ((e.ctrlKey || e.metaKey) && e.key.toLowerCase() === "k") { e.preventDefault(); palette.value = !palette.value; }
  if (e.key === "/" && !typing) { const s = document.getElementById("search"); if (s) { e.preventDefault(); s.focus(); } }
  if (e.key === "Escape") menu.value = false;
});

async function boot() {
  const code = codeInAddress();
  if (code) {
    if (hasKey()) await identify();
    const person = me.value;
    if (!person || person.way === "anonymous" || confirm(T.login.other(person.user))) {
      const { status, body } = await ask("POST", "/auth/link", { code });
      if (status === 200) await accept(body);
      else failure.value = new Error(T.login.linkOver);
    }
  }
  if (me.value === null) await identify();
  let begun = false;
  const begin = async () => {
    if (!me.value || begun) return;
    begun = true;
    try { await start(); } catch (e) { failure.value = e; }
  };
  let last = me.value;
  me.subscribe((person) => {
    if (begun && person && last === false) location.reload();
    last = person;
    begin();
  });
}

render(html`<${App} />`, /** @type {HTMLElement} */ (document.getElementById("app")));
boot().catch((e) => { failure.value = e; });
