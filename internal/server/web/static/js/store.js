// What the pages know: the tools and the live state of the host, as far as the person may see them.
import { batch, computed, signal } from "@preact/signals";
import { callTool, Client, listAll, RpcError, Unreachable } from "./rpc.js";
import { Follower } from "./live.js";
import { applyPatch } from "./patch.js";
import { credentials, forget, me } from "./session.js";

/** The endpoints of the default context and of administration. */
export const HOME = "/mcp";
export const ADMIN = "/mcp/admin";
const root = "gatehouse:///public";

/** @typedef {{name: string, title?: string, description?: string, inputSchema: any, outputSchema?: any, annotations?: any, _meta?: any, endpoint: string}} Tool */

export const client = new Client(credentials, () => { if (me.value && me.value.way !== "anonymous") forget(); });

/** The tools of each endpoint that was asked for; missing until they are known. */
export const tools = signal(/** @type {Record<string, Tool[]>} */ ({}));
/** The live state of the host: the resource gatehouse:///public. */
export const state = signal(/** @type {any} */ (null));
/** Whether the stream is open; null before the first answer. */
export const connected = signal(/** @type {boolean | null} */ (null));
/** What the last changes of the state touched: pointers, with the number of the change. */
export const touched = signal(/** @type {{at: number, paths: string[]}} */ ({ at: 0, paths: [] }));
/** Whether the tools are still read for the first time. */
export const starting = signal(true);
/** Counts the changes of what is only followed by being told that it changed. */
export const updates = signal(/** @type {Record<string, number>} */ ({}));

/** The endpoint of the stream: administrators follow what they administer. */
export const home = computed(() => tools.value[ADMIN] ? ADMIN : HOME);
/** Whether the administration context exists for this person. */
export const admin = computed(() => tools.value[ADMIN] !== undefined);

/** @type {Follower | undefined} */
let follower;
let revision = "";
let following = new Set([root]);

/** Returns the tool of a name, where this person has it. @param {string} name @returns {Tool | undefined} */
export function find(name) {
  return tools.value[ADMIN]?.find((t) => t.name === name) ?? tools.value[HOME]?.find((t) => t.name === name);
}

/** @param {string} name */
export function has(name) { return find(name) !== undefined; }

/**
 * Calls a tool for a page, and returns its structured content, or else its text. An error of the tool is thrown.
 * @param {string} name @param {any} [args] @param {import("./rpc.js").Call} [c] @returns {Promise<any>}
 */
export async function run(name, args = {}, c = {}) {
  const tool = find(name);
  if (!tool) throw new Error(`you have no tool ${name}`);
  const result = await callTool(client, tool.endpoint, tool, args, { ask: askPerson, ...c });
  const whole = result.isError && result.content.find((/** @type {any} */ b) => b.type === "resource_link" && b.mimeType === "application/json");
  if (whole && textOf(result).startsWith("too_large")) return JSON.parse(await readWhole(tool.endpoint, whole.uri));
  if (result.isError) throw new ToolError(textOf(result));
  if (result.structuredContent !== undefined) return result.structuredContent;
  const fields = result._meta?.["gatehouse/fields"];
  // With fields, the last block of text repeats them for the model.
  return { ...fields, text: textOf(fields ? { content: result.content.slice(0, -1) } : result) };
}

/** Reads a resource that comes in parts, each of which ends with a line that says so. @param {string} endpoint @param {string} uri */
async function readWhole(endpoint, uri) {
  let text = "";
  for (let at = uri; ;) {
    const result = await client.request(endpoint, "resources/read", { uri: at }, { name: at });
    const part = result.contents[0].text;
    if (result._meta?.["gatehouse/done"] !== false) return text + part;
    text += part.slice(0, part.lastIndexOf("\n["));
    at = `${uri}?offset=${result._meta["gatehouse/next"]}`;
  }
}

/** The refusal or failure that a tool reports. */
export class ToolError extends Error {}

/** @param {any} result */
export function textOf(result) {
  return (result.content ?? []).filter((/** @type {any} */ b) => b.type === "text").map((/** @type {any} */ b) => b.text).join("");
}

/** What waits for an answer of the person: the dialog shows the first. */
export const questions = signal(/** @type {{requests: Record<string, any>, answer: (a: any) => void, refuse: (e: any) => void}[]} */ ([]));

/** @param {Record<string, any>} requests @returns {Promise<any>} */
export function askPerson(requests) {
  return new Promise((answer, refuse) => {
    const q = {
      requests,
      answer: (/** @type {any} */ a) => { questions.value = questions.value.filter((x) => x !== q); answer(a); },
      refuse: (/** @type {any} */ e) => { questions.value = questions.value.filter((x) => x !== q); refuse(e); },
    };
    questions.value = [...questions.value, q];
  });
}

/** Reads the tools of an endpoint again. The first page of a long list is there at once. @param {string} endpoint */
export async function loadTools(endpoint) {
  const keep = (/** @type {any[]} */ list) => {
    for (const t of list) t.endpoint = endpoint;
    tools.value = { ...tools.value, [endpoint]: list };
  };
  keep(await listAll(client, endpoint, "tools/list", "tools", (list) => { if (!tools.value[endpoint]) keep(list); }));
}

/** Reads the state, and says which revision it is. */
async function loadState() {
  try {
    const result = await client.request(home.value, "resources/read", { uri: root }, { name: root });
    batch(() => {
      revision = result._meta?.["gatehouse/revision"] ?? "";
      state.value = JSON.parse(result.contents[0].text);
    });
  } catch (e) {
    if (!(e instanceof RpcError || e instanceof Unreachable)) throw e;
  }
}

/** Reads what is shown first, and follows it. */
export async function start() {
  const own = loadTools(HOME);
  if (me.value && me.value.admin !== false) await loadTools(ADMIN).catch(() => {});
  await Promise.all([own.finally(() => { starting.value = false; }), loadState()]);
  follower = new Follower({ note, state: reconnected, refused: () => { if (me.value && me.value.way !== "anonymous") forget(); } },
    new URL("./worker.js", import.meta.url).href);
  want();
}

function want() {
  follower?.want({ endpoint: home.value, credentials: credentials(), uris: [...following], tasks: [] });
}

/** Follows a further resource; its changes count in updates. @param {string} uri */
export function follow(uri) {
  if (following.has(uri)) return;
  following = new Set([...following, uri]);
  want();
}

/** @param {boolean} now */
function reconnected(now) {
  const before = connected.value;
  connected.value = now;
  if (now && before === false) {
    loadState();
    for (const endpoint of Object.keys(tools.value)) loadTools(endpoint).catch(() => {});
    updates.value = Object.fromEntries(Object.entries(updates.value).map(([k, n]) => [k, n + 1]));
  }
}

/** @param {{method: string, params: any}} n */
function note({ method, params }) {
  if (method === "notifications/tools/list_changed") {
    for (const endpoint of Object.keys(tools.value)) loadTools(endpoint).catch(() => {});
  }
  if (method !== "notifications/resources/updated") return;
  if (params.uri !== root) {
    updates.value = { ...updates.value, [params.uri]: (updates.value[params.uri] ?? 0) + 1 };
    return;
  }
  const meta = params._meta ?? {};
  const patch = meta["gatehouse/patch"];
  if (meta["gatehouse/revision"] && meta["gatehouse/revision"] === revision) return;
  if (!patch || meta["gatehouse/from"] !== revision) {
    loadState();
    return;
  }
  batch(() => {
    const before = state.value;
    state.value = applyPatch(before, patch);
    revision = meta["gatehouse/revision"];
    touched.value = { at: touched.value.at + 1, paths: patch.map((/** @type {any} */ p) => p.path) };
    if (before.modules !== state.value.modules && home.value !== HOME) loadTools(HOME).catch(() => {});
  });
}
