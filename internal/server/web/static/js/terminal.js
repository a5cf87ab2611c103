// A terminal of a process: xterm.js, which is loaded when it is opened. Its bytes come over a WebSocket, or where
// there is none from the tool that returns output, which waits for them. What is typed goes to the tool for input, so
// that its rules hold.
import { useEffect, useRef, useState } from "preact/hooks";
import { html, Failure } from "./ui.js";
import { T } from "./texts.js";
import { run } from "./store.js";

let stamped = false;

/** Gives the style elements that xterm makes the nonce of the document, without which they do nothing. */
function stampStyles() {
  if (stamped) return;
  stamped = true;
  const nonce = /** @type {HTMLElement} */ (document.querySelector("style[nonce]")).nonce ?? "";
  const create = document.createElement.bind(document);
  document.createElement = /** @type {any} */ ((/** @type {string} */ tag, /** @type {any} */ o) => {
    const e = create(tag, o);
    if (tag === "style") e.nonce = nonce;
    return e;
  });
}

/**
 * Follows the output of a terminal over a WebSocket, whose path has a ticket that works once. It returns the exit code
 * of the process, null if that is not known, and undefined if the connection ended before the process.
 * @param {string} path @param {AbortSignal} signal
 * @param {(bytes: Uint8Array) => void} show @param {(bytes: number) => void} lost
 * @returns {Promise<number | null | undefined>}
 */
function follow(path, signal, show, lost) {
  return new Promise((done) => {
    const socket = new WebSocket(new URL(path, location.origin.replace(/^http/, "ws")));
    socket.binaryType = "arraybuffer";
    /** @type {number | null | undefined} */
    let code;
    socket.onmessage = ({ data }) => {
      if (typeof data !== "string") return show(new Uint8Array(data));
      const said = JSON.parse(data);
      if (said.lost) lost(said.lost);
      else code = said.exitCode ?? null;
    };
    socket.onclose = () => done(code);
    signal.addEventListener("abort", () => { socket.close(); done(undefined); }, { once: true });
  });
}

/**
 * The tools of a terminal: one of a process of the host, and one of a process in a sandbox.
 * @typedef {{type: (text: string) => Promise<any>, resize: (cols: number, rows: number) => Promise<any>,
 *   socket: (since: number, o: any) => Promise<any>,
 *   read: (since: number, o: any) => Promise<{text: string, next?: number, ended: boolean, exitCode?: number}>}} Tools
 */

/** @param {string} id @returns {Tools} */
export const ofProcess = (id) => ({
  type: (input) => run("process_input", { id, input }),
  resize: (cols, rows) => run("process_resize", { id, cols, rows }),
  socket: (since, o) => run("process_output", { id, since, socket: true }, o),
  read: async (since, o) => {
    const got = await run("process_output", { id, since, wait: "output", timeout: 45, raw: true }, o);
    return { ...got, ended: Boolean(got.status) && got.status !== "running" };
  },
});

/** @param {string} sandbox_id @param {string} process_id @returns {Tools} */
export const inSandbox = (sandbox_id, process_id) => ({
  type: (text) => run("sandbox_input", { sandbox_id, process_id, text }),
  resize: (cols, rows) => run("sandbox_input", { sandbox_id, process_id, cols, rows }),
  socket: (since, o) => run("sandbox_output", { sandbox_id, process_id, since, socket: true }, o),
  read: async (since, o) => {
    const got = await run("sandbox_output", { sandbox_id, process_id, since, wait: 40, raw: true }, o);
    return { ...got, ended: !got.running, exitCode: got.exit_code };
  },
});

/** @param {{id: string, tools: Tools}} p */
export function TerminalOf({ id, tools }) {
  const box = useRef(/** @type {HTMLElement | null} */ (null));
  const [error, setError] = useState(/** @type {any} */ (null));
  useEffect(() => {
    const ended = new AbortController();
    /** @type {any} */
    let term;
    /** @type {ResizeObserver | undefined} */
    let size;
    (async () => {
      stampStyles();
      const link = document.createElement("link");
      link.rel = "stylesheet";
      link.href = new URL("../lib/@xterm/xterm/xterm.css", import.meta.url).href;
      document.head.append(link);
      const [{ Terminal }, { FitAddon }] = await Promise.all([import("@xterm/xterm"), import("@xterm/addon-fit")]);
      if (ended.signal.aborted || !box.current) return;
      term = new Terminal({ cursorBlink: true, fontSize: 13, fontFamily: "ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace", theme: { background: "#0d0f13" }, screenReaderMode: true, scrollback: 5000 });
      const fit = new FitAddon();
      term.loadAddon(fit);
      term.open(box.current);
      fit.fit();
      let waiting = "", sending = false;
      const send = async () => {
        if (sending) return;
        sending = true;
        try {
          while (waiting) {
            const input = waiting;
            waiting = "";
            await tools.type(input);
          }
        } catch (e) { setError(e); } finally { sending = false; }
      };
      term.onData((/** @type {string} */ d) => { waiting += d; send(); });
      const resized = () => { fit.fit(); tools.resize(term.cols, term.rows).catch(() => {}); };
      size = new ResizeObserver(resized);
      size.observe(box.current);
      const end = (/** @type {number | undefined} */ code) => term.write("\r\n\x1b[2m" + T.processes.ended(code) + "\x1b[0m\r\n");
      let since = 0;
      for (let failed = 0; !ended.signal.aborted && failed < 3; failed++) {
        const { socket } = await tools.socket(since, { signal: ended.signal }).catch(() => ({}));
        if (!socket) break; // a host without the stream, or a person who may not use it: it is read by calls
        const from = since;
        const code = await follow(socket, ended.signal, (bytes) => { since += bytes.length; term.write(bytes); }, (lost) => { since += lost; });
        if (code !== undefined) return end(code ?? undefined);
        if (since > from) failed = -1;
      }
      while (!ended.signal.aborted) {
        const got = await tools.read(since, { signal: ended.signal });
        if (got.text) term.write(got.text);
        since = got.next ?? since;
        if (got.ended && !got.text) return end(got.exitCode);
      }
    })().catch((e) => { if (!ended.signal.aborted) setError(e); });
    return () => { ended.abort(); size?.disconnect(); term?.dispose(); };
  }, [id]);
  return html`<${Failure} error=${error} /><div class="terminal" ref=${box}></div>`;
}
