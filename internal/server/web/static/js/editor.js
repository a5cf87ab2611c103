// A text editor for settings: CodeMirror, which is loaded when it is first shown.
import { useEffect, useRef } from "preact/hooks";
import { html } from "./ui.js";

/** @param {{text: string, onChange: (text: string) => void, label: string, readOnly?: boolean}} p */
export function Editor({ text, onChange, label, readOnly = false }) {
  const box = useRef(/** @type {HTMLElement | null} */ (null));
  const view = useRef(/** @type {any} */ (null));
  const changed = useRef(onChange);
  changed.current = onChange;
  useEffect(() => {
    let over = false;
    Promise.all([import("@codemirror/state"), import("@codemirror/view"), import("@codemirror/language"), import("@codemirror/commands"), import("@codemirror/lang-yaml"), import("@lezer/highlight")])
      .then(([{ EditorState }, { EditorView, keymap, lineNumbers, highlightActiveLine }, { syntaxHighlighting, HighlightStyle, bracketMatching }, { history, historyKeymap, defaultKeymap }, { yaml }, { tags }]) => {
        if (over || !box.current) return;
        const nonce = /** @type {HTMLElement} */ (document.querySelector("style[nonce]")).nonce ?? "";
        view.current = new EditorView({
          parent: box.current,
          state: EditorState.create({
            doc: text,
            extensions: [
              lineNumbers(), history(), bracketMatching(), highlightActiveLine(), yaml(), 
              syntaxHighlighting(HighlightStyle.define([
                { tag: tags.definition(tags.propertyName), color: "var(--accent-text)" }, { tag: tags.propertyName, color: "var(--accent-text)" },
                { tag: tags.string, color: "var(--good)" }, { tag: tags.content, color: "var(--text)" }, { tag: tags.number, color: "var(--info)" },
                { tag: [tags.keyword, tags.bool, tags.null], color: "var(--warn)" }, { tag: tags.comment, color: "var(--muted)" },
              ])),
              keymap.of([...defaultKeymap, ...historyKeymap]), EditorView.lineWrapping, EditorView.cspNonce.of(nonce),
              EditorView.contentAttributes.of({ "aria-label": label }), EditorState.readOnly.of(readOnly),
              EditorView.updateListener.of((u) => { if (u.docChanged) changed.current(u.state.doc.toString()); }),
            ],
          }),
        });
      });
    return () => { over = true; view.current?.destroy(); view.current = null; };
  }, [readOnly]);
  useEffect(() => {
    const v = view.current;
    if (v && v.state.doc.toString() !== text) v.dispatch({ changes: { from: 0, to: v.state.doc.length, insert: text } });
  }, [text]);
  return html`<div class="editor" ref=${box}></div>`;
}
