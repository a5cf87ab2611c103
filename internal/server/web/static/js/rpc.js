// An MCP client of revision 2026-07-28 over Streamable HTTP.

/** The revision of the protocol that every request names. */
export const REVISION = "2026-07-28";

/** The name under which pages ask for what they show; calls of a person have another one. */
export const CLIENT = "gatehouse-pages";

const prefix = "io.modelcontextprotocol/";
const tasks = prefix + "tasks";

/** The media type of the views of MCP Apps, which the page of tools shows. */
export const VIEW = "text/html;profile=mcp-app";

/** The error that a server answers a request with. */
export class RpcError extends Error {
  /** @param {string} message @param {number} code @param {any} data @param {number} status of HTTP */
  constructor(message, code, data, status) {
    super(message);
    this.code = code;
    this.data = data;
    this.status = status;
  }
}

/** A request that did not reach the server, or whose answer did not arrive whole. */
export class Unreachable extends Error {}

/**
 * @typedef {object} Options
 * @property {AbortSignal} [signal] ends the request; the server then cancels what it began
 * @property {string} [name] what the request is about: a tool, a prompt, a resource, a task
 * @property {(note: {method: string, params: any}) => void} [onNote] gets the notifications before the result
 * @property {Record<string, string>} [headers] further headers
 * @property {any} [meta] further members of _meta
 * @property {string} [client] the name of the client
 */

/** A client of one server. It keeps no state of the protocol, so that each request stands for itself. */
export class Client {
  /**
   * @param {() => Record<string, string>} credentials returns the headers that identify the user
   * @param {(status: number) => void} refused is called when the server answers 401
   */
  constructor(credentials, refused) {
    this.credentials = credentials;
    this.refused = refused;
    this.last = 0;
  }

  /**
   * Sends a request and returns its result.
   * @param {string} endpoint such as /mcp
   * @param {string} method
   * @param {Record<string, any>} params
   * @param {Options} [o]
   * @returns {Promise<any>}
   */
  async request(endpoint, method, params, o = {}) {
    const id = ++this.last;
    const body = JSON.stringify({
      jsonrpc: "2.0", id, method,
      params: {
        ...params,
        _meta: {
          [prefix + "protocolVersion"]: REVISION,
          [prefix + "clientInfo"]: { name: o.client ?? CLIENT, version: "1" },
          [prefix + "clientCapabilities"]: {
            elicitation: { form: {}, url: {} }, extensions: { [tasks]: {}, [prefix + "ui"]: { mimeTypes: [VIEW] } },
          },
          ...o.meta,
        },
      },
    });
    let answer;
    try {
      answer = await fetch(endpoint, {
        method: "POST", body, signal: o.signal, cache: "no-store", credentials: "same-origin",
        headers: {
          "Content-Type": "application/json",
          "Accept": "application/json, text/event-stream",
          "MCP-Protocol-Version": REVISION,
          "Mcp-Method": method,
          ...(o.name === undefined ? {} : { "Mcp-Name": headerValue(o.name) }),
          ...o.headers,
          ...this.credentials(),
        },
      });
    } catch (e) {
      if (o.signal?.aborted) throw e;
      throw new Unreachable(String(e));
    }
    if (answer.status === 401) this.refused(401);
    const message = await this.#read(answer, id, o);
    if (message.error) throw new RpcError(message.error.message, message.error.code, message.error.data, answer.status);
    return message.result;
  }

  /**
   * Returns the message with the result of a request.
   * @param {Response} answer @param {number} id @param {Options} o
   */
  async #read(answer, id, o) {
    const type = answer.headers.get("Content-Type") ?? "";
    if (!type.startsWith("text/event-stream")) {
      const text = await answer.text();
      try {
        const message = JSON.parse(text);
        if (message.result || message.error?.code) return message;
        throw new RpcError(message.message ?? message.error ?? text, 0, message, answer.status);
      } catch (e) {
        if (e instanceof RpcError) throw e;
        throw new RpcError(`the server answered ${answer.status}`, 0, text.slice(0, 200), answer.status);
      }
    }
    for await (const data of events(/** @type {ReadableStream<Uint8Array>} */ (answer.body))) {
      const message = JSON.parse(data);
      if (message.id === id && (message.result || message.error)) return message;
      if (message.method) o.onNote?.(message);
    }
    throw new Unreachable("the stream ended before the result");
  }
}

/**
 * Yields the data of each event of a stream of server-sent events.
 * @param {ReadableStream<Uint8Array>} body
 */
export async function* events(body) {
  const reader = body.getReader();
  const decoder = new TextDecoder();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const blocks = (rest + decoder.decode(value, { stream: true })).split(/\r?\n\r?\n/);
      rest = blocks.pop() ?? "";
      for (const block of blocks) {
        const data = block.split(/\r?\n/).filter((l) => l.startsWith("data:")).map((l) => l.slice(5).replace(/^ /, ""));
        if (data.length > 0) yield data.join("\n");
      }
    }
  } catch (e) {
    if (e instanceof Error && e.name === "AbortError") throw e;
    throw new Unreachable(String(e));
  } finally {
    reader.cancel().catch(() => {});
  }
}

/**
 * Encodes a text as the value of a header, as the revision demands.
 * @param {string} text
 */
export function headerValue(text) {
  if (/^[\x21-\x7e]([\x20-\x7e]*[\x21-\x7e])?$/.test(text) && !/^=\?base64\?.*\?=$/.test(text)) return text;
  let bytes = "";
  for (const b of new TextEncoder().encode(text)) bytes += String.fromCharCode(b);
  return `=?base64?${btoa(bytes)}?=`;
}

/**
 * Returns the headers that a tool wants arguments repeated in (x-mcp-header).
 * @param {any} schema @param {any} args @param {Record<string, string>} [out]
 */
export function paramHeaders(schema, args, out = {}) {
  for (const [key, property] of Object.entries(schema?.properties ?? {})) {
    const value = args?.[key];
    if (value === undefined || value === null) continue;
    if (property["x-mcp-header"]) out["Mcp-Param-" + property["x-mcp-header"]] = headerValue(String(value));
    if (property.type === "object") paramHeaders(property, value, out);
  }
  return out;
}

/**
 * @typedef {object} Call
 * @property {AbortSignal} [signal]
 * @property {string} [client] the name of the client
 * @property {(progress: {progress: number, total?: number, message?: string}) => void} [onProgress]
 * @property {(log: any) => void} [onLog]
 * @property {(questions: Record<string, any>) => Promise<Record<string, any>>} [ask] answers questions by their keys
 * @property {(task: any) => void} [onTask] gets each state of a call that goes on as a task
 */

/**
 * Calls a tool until it has a result: it answers questions, and follows a task.
 * @param {Client} client @param {string} endpoint @param {{name: string, inputSchema?: any}} tool
 * @param {any} args @param {Call} [c]
 * @returns {Promise<any>}
 */
export async function callTool(client, endpoint, tool, args, c = {}) {
  const extra = /** @type {any} */ ({});
  const token = "call-" + Math.random().toString(36).slice(2);
  for (;;) {
    const result = await client.request(endpoint, "tools/call", { name: tool.name, arguments: args, ...extra }, {
      name: tool.name,
      signal: c.signal, client: c.client,
      headers: paramHeaders(tool.inputSchema, args),
      meta: { progressToken: token },
      onNote: (n) => {
        if (n.method === "notifications/progress") c.onProgress?.(n.params);
        if (n.method === "notifications/message") c.onLog?.(n.params);
      },
    });
    if (result.resultType === "task") return followTask(client, endpoint, result, c);
    if (result.resultType !== "input_required") return result;
    if (result.inputRequests) {
      if (!c.ask) throw new Error("this call has questions, and nobody to answer them");
      extra.inputResponses = await c.ask(result.inputRequests);
    }
    extra.requestState = result.requestState;
  }
}

/**
 * @param {Client} client @param {string} endpoint @param {any} task @param {Call} c
 * @returns {Promise<any>}
 */
async function followTask(client, endpoint, task, c) {
  const id = task.taskId;
  const about = { name: id };
  const cancel = () => { client.request(endpoint, "tasks/cancel", { taskId: id }, about).catch(() => {}); };
  c.signal?.addEventListener("abort", cancel, { once: true });
  try {
    for (let pause = 100; ; pause = Math.min(pause * 1.6, Math.max(task.pollIntervalMs ?? 0, 3000))) {
      c.onTask?.(task);
      switch (task.status) {
        case "completed": return task.result;
        case "failed": throw new RpcError(task.error?.message ?? task.statusMessage ?? "failed", task.error?.code ?? 0, task.error?.data, 200);
        case "cancelled": throw new DOMException("cancelled", "AbortError");
        case "input_required":
          if (c.ask && task.inputRequests) {
            const inputResponses = await c.ask(task.inputRequests);
            await client.request(endpoint, "tasks/update", { taskId: id, inputResponses }, about);
          }
      }
      await new Promise((done) => { setTimeout(done, pause); });
      c.signal?.throwIfAborted();
      task = await client.request(endpoint, "tasks/get", { taskId: id }, about);
    }
  } finally {
    c.signal?.removeEventListener("abort", cancel);
  }
}

/**
 * Returns all items of a list that comes in pages.
 * @param {Client} client @param {string} endpoint @param {string} method such as tools/list @param {string} member such as tools
 * @param {(items: any[]) => void} [first] gets those of the first page, if more follow
 */
export async function listAll(client, endpoint, method, member, first) {
  const all = [];
  for (let cursor; ;) {
    const page = await client.request(endpoint, method, cursor === undefined ? {} : { cursor });
    all.push(...page[member]);
    if (page.nextCursor === undefined) return all;
    if (cursor === undefined) first?.(page[member]);
    cursor = page.nextCursor;
  }
}
