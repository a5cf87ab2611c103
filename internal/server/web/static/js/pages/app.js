// Views of MCP Apps (SEP-1865): a document of a server in a frame without an origin, and the bridge over which it
// talks to this page. A view may call the tools and read the resources of its own server, as the person who looks at
// it; each of its tools that changes something is asked for once.
import { useEffect, useRef, useState } from "preact/hooks";
import { html, Badge, Button, Dialog, Failure, Text } from "../ui.js";
import { T } from "../texts.js";
import { askPerson, client, tools } from "../store.js";
import { callTool, listAll, RpcError, VIEW } from "../rpc.js";
import { credentials } from "../session.js";
import { Value } from "../result.js";

const A = T.app;

const REVISION = "2026-01-26"; // of the bridge

const mostBytes = 1 << 20; // of one message of a view
const mostOpen = 8; // requests of a view that wait for an answer
const mostCalls = 120; // requests of a view in a minute
const tallest = 900; // pixels

/** The package, and the package's own address, of ui://x as it is offered on this host. @param {string} uri */
function serverOf(uri) {
  const m = /^package:\/\/([a-z0-9][a-z0-9_-]*)\/(ui:\/\/.+)$/s.exec(uri);
  return m && { id: m[1], prefix: `package://${m[1]}/`, own: m[2] };
}

/**
 * Returns the tool that a view means by its server's own name for it: a tool of the same package that this person has
 * in the same context.
 * @param {string} id of the package @param {string} own @param {string} endpoint
 */
function toolOf(id, own, endpoint) {
  const tool = tools.value[endpoint]?.find((t) => {
    const from = t._meta?.["gatehouse/origin"];
    return from?.package === id && from.name === own;
  });
  const to = tool?._meta?.ui?.visibility;
  return !Array.isArray(to) || to.includes("app") ? tool : undefined;
}

/** @param {{uri: string, tool: any, args: any, result: any}} p */
export default function View({ uri, tool, args, result }) {
  const [at, setAt] = useState(/** @type {{address: string, reaches: string[]} | null} */ (null));
  const [error, setError] = useState(/** @type {any} */ (null));
  useEffect(() => {
    let over = false;
    open(uri, tool.endpoint).then((v) => { if (!over) setAt(v); }, (e) => { if (!over) setError(e); });
    return () => { over = true; };
  }, [uri]);
  if (error) return html`<${Failure} error=${error} />`;
  return at ? html`<${Frame} key=${at.address} at=${at} uri=${uri} tool=${tool} args=${args} result=${result} />` : html`<span class="spinner"></span>`;
}

/** Reads a view and returns an address that shows it once. @param {string} uri @param {string} endpoint */
async function open(uri, endpoint) {
  const read = await client.request(endpoint, "resources/read", { uri }, { name: uri });
  const content = read.contents?.find((/** @type {any} */ c) => c.mimeType === VIEW);
  if (!content) throw new Error(A.notAView);
  const text = content.text ?? new TextDecoder().decode(Uint8Array.from(atob(content.blob ?? ""), (c) => c.charCodeAt(0)));
  const declared = content._meta?.ui?.csp ?? {};
  /** @type {Record<string, string[]>} */
  const csp = {};
  for (const kind of ["connectDomains", "resourceDomains", "frameDomains", "baseUriDomains"]) {
    if (Array.isArray(declared[kind])) csp[kind] = declared[kind].filter((/** @type {any} */ d) => typeof d === "string");
  }
  const answer = await fetch("/ui/view/", {
    method: "POST", credentials: "same-origin", cache: "no-store", body: JSON.stringify({ html: text, csp }),
    headers: { "Content-Type": "application/json", ...credentials() },
  });
  if (!answer.ok) throw new Error(await answer.text());
  return answer.json();
}

/** @param {{at: {address: string, reaches: string[]}, uri: string, tool: any, args: any, result: any}} p */
function Frame({ at, uri, tool, args, result }) {
  const frame = useRef(/** @type {HTMLIFrameElement | null} */ (null));
  const [height, setHeight] = useState(240);
  const [asked, setAsked] = useState(/** @type {any} */ (null));
  useEffect(() => {
    const bridge = new Bridge({
      frame: /** @type {HTMLIFrameElement} */ (frame.current), uri, tool, args, result,
      resize: (h) => setHeight(Math.max(40, Math.min(tallest, Math.ceil(h)))),
      consent: (q) => new Promise((done) => setAsked({ ...q, done: (/** @type {string} */ a) => { setAsked(null); done(a); } })),
    });
    return () => bridge.close();
  }, []);
  return html`<div class="view"><p class="view-of muted small row wrap"><${Badge} tone="info">${A.view}<//><span>${A.from} <strong><${Text}>${serverOf(uri)?.id ?? ""}<//></strong></span>
      ${at.reaches.length > 0 ? html`<span>${A.reaches} <${Text}>${at.reaches.join(", ")}<//></span>` : html`<span>${A.reachesNothing}</span>`}</p>
    <iframe ref=${frame} src=${at.address} sandbox="allow-scripts" referrerpolicy="no-referrer" title=${A.title(tool.title ?? tool.name)} style=${{ height: height + "px" }}></iframe>
    ${asked ? html`<${Dialog} title=${asked.title} onClose=${() => asked.done("no")}><div class="stack"><p>${asked.text}</p>${asked.value !== undefined ? html`<${Value} value=${asked.value} />` : null}
      <div class="row wrap form-end"><${Button} kind="primary" onClick=${() => asked.done("once")}>${A.once}<//>
        ${asked.always ? html`<${Button} onClick=${() => asked.done("always")}>${A.always}<//>` : null}<${Button} onClick=${() => asked.done("no")}>${A.refuse}<//></div></div><//>` : null}</div>`;
}

/**
 * @typedef {object} Ends what a bridge connects
 * @property {HTMLIFrameElement} frame @property {string} uri @property {any} tool @property {any} args @property {any} result
 * @property {(height: number) => void} resize
 * @property {(question: {title: string, text: string, value?: any, always?: boolean}) => Promise<string>} consent
 */

/** The page's end of the bridge: JSON-RPC over postMessage with one frame. */
class Bridge {
  /** @param {Ends} ends */
  constructor(ends) {
    this.ends = ends;
    const server = serverOf(ends.uri);
    if (!server) throw new Error(A.notAView);
    this.server = server;
    this.open = 0;
    this.asking = Promise.resolve("");
    /** @type {number[]} */
    this.times = [];
    this.greeted = false;
    /** @type {Set<string>} */
    this.agreed = new Set();
    this.ended = new AbortController();
    addEventListener("message", (e) => this.take(e), { signal: this.ended.signal });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
      if (this.greeted) this.note("ui/notifications/host-context-changed", { theme: theme() });
    }, { signal: this.ended.signal });
  }

  close() {
    this.send({ jsonrpc: "2.0", id: "teardown", method: "ui/resource-teardown", params: {} });
    this.ended.abort();
  }

  /** The frame has no origin that could be named; its parent's policy keeps it on this server. @param {any} message */
  send(message) { this.ends.frame.contentWindow?.postMessage(message, "*"); }

  /** @param {string} method @param {any} params */
  note(method, params) { this.send({ jsonrpc: "2.0", method, params }); }

  /** @param {MessageEvent} e */
  async take(e) {
    const m = e.data;
    if (e.source !== this.ends.frame.contentWindow || e.origin !== "null" || m?.jsonrpc !== "2.0" || typeof m.method !== "string") return;
    const params = m.params && typeof m.params === "object" ? m.params : {};
    if (m.id === undefined) return this.noted(m.method, params);
    if (typeof m.id !== "string" && typeof m.id !== "number") return;
    const refuse = (/** @type {number} */ code, /** @type {string} */ message) => this.send({ jsonrpc: "2.0", id: m.id, error: { code, message } });
    const now = Date.now();
    this.times = this.times.filter((t) => now - t < 60000);
    if (this.open >= mostOpen || this.times.length >= mostCalls) return refuse(-32000, A.tooMany);
    this.times.push(now);
    this.open++;
    try {
      let size = mostBytes + 1;
      try { size = JSON.stringify(m).length; } catch { /* a cycle, or what JSON cannot say */ }
      if (size > mostBytes) return refuse(-32600, A.tooLarge);
      this.send({ jsonrpc: "2.0", id: m.id, result: await this.answer(m.method, params) });
    } catch (error) {
      const known = error instanceof RpcError;
      refuse(known && error.code || -32603, error instanceof Error ? error.message : String(error));
    } finally { this.open--; }
  }

  /** @param {string} method @param {any} params */
  noted(method, params) {
    if (method === "ui/notifications/initialized" && !this.greeted) {
      this.greeted = true;
      this.note("ui/notifications/tool-input", { arguments: this.ends.args });
      this.note("ui/notifications/tool-result", this.ends.result);
    }
    if (method === "ui/notifications/size-changed" && Number.isFinite(params.height)) this.ends.resize(params.height);
  }

  /** @param {string} method @param {any} params @returns {Promise<any>} */
  async answer(method, params) {
    const { tool } = this.ends;
    switch (method) {
      case "ping": return {};
      case "ui/initialize": return {
        protocolVersion: REVISION, hostInfo: { name: "gatehouse", version: "1" },
        hostCapabilities: { openLinks: {}, serverTools: {}, serverResources: {}, logging: {} },
        hostContext: {
          theme: theme(), displayMode: "inline", availableDisplayModes: ["inline"], platform: "web",
          locale: navigator.language, timeZone: Intl.DateTimeFormat().resolvedOptions().timeZone,
          containerDimensions: { width: this.ends.frame.clientWidth, maxHeight: tallest }, styles: { variables: variables() },
          toolInfo: { tool: { name: tool.name, inputSchema: tool.inputSchema } },
        },
      };
      case "tools/call": return this.call(params);
      case "resources/read": return this.read(params);
      case "resources/list": {
        const all = await listAll(client, tool.endpoint, "resources/list", "resources");
        return { resources: all.filter((r) => r.uri.startsWith(this.server.prefix)).map((r) => ({ ...r, uri: r.uri.slice(this.server.prefix.length) })) };
      }
      case "ui/open-link": return this.link(params);
      case "ui/request-display-mode": return { mode: "inline" };
      default: throw new RpcError(A.noMethod(method.slice(0, 60)), -32601, undefined, 200);
    }
  }

  /** Asks the person, one question after another. @param {{title: string, text: string, value?: any, always?: boolean}} q */
  ask(q) {
    this.asking = this.asking.then(() => this.ended.signal.aborted ? "no" : this.ends.consent(q));
    return this.asking;
  }

  /** @param {any} params */
  async call({ name, arguments: args = {} }) {
    const { endpoint } = this.ends.tool;
    const tool = typeof name === "string" ? toolOf(this.server.id, name, endpoint) : undefined;
    if (!tool) throw new RpcError(A.noTool(String(name).slice(0, 100)), -32602, undefined, 200);
    if (!tool.annotations?.readOnlyHint && !this.agreed.has(tool.name)) {
      const said = await this.ask({ title: A.calls, text: A.callsMore(this.server.id, tool.name), value: args, always: true });
      if (said === "no") throw new RpcError(A.refused, -32000, undefined, 200);
      if (said === "always") this.agreed.add(tool.name);
    }
    const result = await callTool(client, endpoint, tool, args, { signal: this.ended.signal, ask: askPerson, client: "gatehouse-view" });
    const { resultType: _, ...rest } = result;
    return rest;
  }

  /** @param {any} params */
  async read({ uri }) {
    if (typeof uri !== "string") throw new RpcError(A.noMethod("uri"), -32602, undefined, 200);
    const here = this.server.prefix + uri;
    const got = await client.request(this.ends.tool.endpoint, "resources/read", { uri: here }, { name: here, signal: this.ended.signal });
    return { contents: got.contents.map((/** @type {any} */ c) => ({ ...c, uri })) };
  }

  /** @param {any} params */
  async link({ url }) {
    const to = URL.canParse(url) ? new URL(url) : undefined;
    if (to?.protocol !== "https:" && to?.protocol !== "http:" || to.origin === location.origin) return { isError: true };
    const said = await this.ask({ title: A.link, text: A.linkMore(this.server.id), value: { address: to.href } });
    if (said === "no") return { isError: true };
    window.open(to.href, "_blank", "noopener,noreferrer");
    return {};
  }
}

function theme() {
  const set = document.documentElement.dataset.theme;
  return set ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
}

/** The colours and fonts of this page, by the names that views know. */
function variables() {
  const s = getComputedStyle(document.documentElement);
  const of = (/** @type {string} */ n) => s.getPropertyValue(n).trim();
  return {
    "--color-background-primary": of("--card"), "--color-background-secondary": of("--bg"), "--color-background-info": of("--info-soft"),
    "--color-background-danger": of("--bad-soft"), "--color-background-success": of("--good-soft"), "--color-background-warning": of("--warn-soft"),
    "--color-text-primary": of("--text"), "--color-text-secondary": of("--muted"), "--color-text-info": of("--info"),
    "--color-text-danger": of("--bad"), "--color-text-success": of("--good"), "--color-text-warning": of("--warn"),
    "--color-border-primary": of("--line"), "--color-ring-primary": of("--accent"), "--font-sans": "system-ui, sans-serif",
    "--font-mono": of("--mono"), "--border-radius-md": "8px",
  };
}
