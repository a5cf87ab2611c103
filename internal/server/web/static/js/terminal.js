// A terminal of a process: xterm.js, which is loaded when it is opened. Bytes come from process_output, which waits
// for them, and go to process_input.
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

/** @param {{id: string}} p */
export function TerminalOf({ id }) {
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
            await run("process_input", { id, input });
          }
        } catch (e) { setError(e); } finally { sending = false; }
      };
      term.onData((/** @type {string} */ d) => { waiting += d; send(); });
      const resized = () => { fit.fit(); run("process_resize", { id, cols: term.cols, rows: term.rows }).catch(() => {}); };
      size = new ResizeObserver(resized);
      size.observe(box.current);
      let since = 0;
      while (!ended.signal.aborted) {
        const got = await run("process_output", { id, since, wait: "output", timeout: 45, raw: true }, { signal: ended.signal });
        const text = got.text;
        if (text) term.write(text);
        since = got.next ?? since;
        if (got.status && got.status !== "running" && !text) { term.write("\r\n\x1b[2m" + T.processes.ended(got.exitCode) + "\x1b[0m\r\n"); return; }
      }
    })().catch((e) => { if (!ended.signal.aborted) setError(e); });
    return () => { ended.abort(); size?.disconnect(); term?.dispose(); };
  }, [id]);
  return html`<${Failure} error=${error} /><div class="terminal" ref=${box}></div>`;
}
