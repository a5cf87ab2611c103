// A form for the arguments of a tool, made from their JSON Schema.
import { useState } from "preact/hooks";
import { html, plain, Text } from "./ui.js";
import { T } from "./texts.js";

/** @param {any} s @returns {string} the type that a field is shown as */
function kindOf(s) {
  if (Array.isArray(s.enum) && s.enum.length > 0) return "choice";
  if (Array.isArray(s.oneOf) && s.oneOf.every((/** @type {any} */ o) => "const" in o)) return "choice";
  const type = Array.isArray(s.type) ? s.type.find((/** @type {string} */ t) => t !== "null") : s.type;
  if (type === "array") {
    const items = s.items ?? {};
    if (items.enum || items.anyOf?.every((/** @type {any} */ o) => "const" in o)) return "choices";
    return items.type === "string" ? "lines" : "json";
  }
  if (type === "object") return s.properties && Object.keys(s.properties).length > 0 ? "object" : "json";
  return ["string", "number", "integer", "boolean"].includes(type) ? type : "json";
}

const long = new Set(["content", "code", "text", "stdin", "body", "message", "script", "data", "prompt", "command"]);

/**
 * @param {{schema: any, value: any, onChange: (v: any) => void, prefix?: string, onText?: (name: string, bad: boolean) => void}} p
 */
export function SchemaForm({ schema, value, onChange, prefix = "arg", onText }) {
  const required = new Set(schema?.required ?? []);
  const entries = Object.entries(schema?.properties ?? {})
    .sort(([a], [b]) => Number(required.has(b)) - Number(required.has(a)));
  if (entries.length === 0) return html`<p class="muted">${T.noArguments}</p>`;
  return html`<div class="form">${entries.map(([name, s]) => html`<${Field} key=${name} name=${name} schema=${s} id=${prefix + "-" + name}
    required=${required.has(name)} value=${value?.[name]} onText=${onText}
    onChange=${(/** @type {any} */ v) => { const next = { ...value }; if (v === undefined) delete next[name]; else next[name] = v; onChange(next); }} />`)}</div>`;
}

/** @param {{name: string, schema: any, id: string, required: boolean, value: any, onChange: (v: any) => void, onText?: any}} p */
function Field({ name, schema, id, required, value, onChange, onText }) {
  const kind = kindOf(schema);
  const help = schema.description;
  const describe = help ? id + "-help" : undefined;
  const common = { id, "aria-describedby": describe, "aria-required": required ? "true" : undefined };
  const label = html`<label for=${id}><code><${Text}>${name}<//></code>${schema.title && schema.title !== name ? html` <span><${Text}>${schema.title}<//></span>` : null}
    ${required ? html`<span class="req">${T.required}</span>` : null}</label>`;
  const note = help ? html`<p class="help" id=${describe}><${Text}>${help}<//></p>` : null;
  if (kind === "object") {
    return html`<fieldset class="field"><legend><code><${Text}>${name}<//></code>${required ? html` <span class="req">${T.required}</span>` : null}</legend>${note}
      <${SchemaForm} schema=${schema} value=${value ?? {}} prefix=${id} onText=${onText}
        onChange=${(/** @type {any} */ v) => onChange(Object.keys(v).length > 0 || required ? v : undefined)} /></fieldset>`;
  }
  return html`<div class="field">${label}<${Input} kind=${kind} schema=${schema} name=${name} common=${common} required=${required}
    value=${value} onChange=${onChange} onText=${onText} />${note}</div>`;
}

/** @param {any} p */
function Input({ kind, schema, name, common, required, value, onChange, onText }) {
  const hint = plain(schema.default !== undefined ? JSON.stringify(schema.default) : schema.examples?.[0]);
  switch (kind) {
    case "choice": {
      const options = schema.enum ?? schema.oneOf.map((/** @type {any} */ o) => o.const);
      const title = (/** @type {any} */ o, /** @type {number} */ i) => schema.oneOf?.[i]?.title ?? schema.enumNames?.[i] ?? String(o);
      return html`<select ...${common} value=${value === undefined ? "" : String(options.indexOf(value))}
        onChange=${(/** @type {any} */ e) => onChange(e.target.value === "" ? undefined : options[Number(e.target.value)])}>
        ${required && value !== undefined ? null : html`<option value="">${schema.default !== undefined ? T.defaultIs(plain(schema.default)) : T.choose}</option>`}
        ${options.map((/** @type {any} */ o, /** @type {number} */ i) => html`<option value=${String(i)}>${plain(title(o, i))}</option>`)}</select>`;
    }
    case "choices": {
      const options = schema.items.enum ?? schema.items.anyOf.map((/** @type {any} */ o) => o.const);
      const now = new Set(value ?? []);
      return html`<div class="choices" role="group" id=${common.id} aria-label=${name}>${options.map((/** @type {any} */ o, /** @type {number} */ i) => html`<label class="check">
        <input type="checkbox" checked=${now.has(o)} onChange=${(/** @type {any} */ e) => {
          if (e.target.checked) now.add(o); else now.delete(o);
          onChange(now.size > 0 ? [...now] : undefined);
        }} /> <${Text}>${schema.items.anyOf?.[i]?.title ?? o}<//></label>`)}</div>`;
    }
    case "boolean":
      return html`<label class="switch"><input type="checkbox" role="switch" ...${common} checked=${value ?? schema.default ?? false}
        onChange=${(/** @type {any} */ e) => onChange(e.target.checked)} /><span aria-hidden="true"></span></label>`;
    case "integer":
    case "number":
      return html`<input type="number" ...${common} step=${kind === "integer" ? 1 : "any"} min=${schema.minimum} max=${schema.maximum}
        placeholder=${hint} value=${value ?? ""} onInput=${(/** @type {any} */ e) => onChange(e.target.value === "" ? undefined : Number(e.target.value))} />`;
    case "string":
      if (long.has(name) || schema.format === "multiline" || (schema.maxLength ?? 0) > 2000) {
        return html`<textarea ...${common} rows=${Math.min(12, Math.max(2, String(value ?? "").split("\n").length + 1))} spellcheck=${false}
          placeholder=${hint} value=${value ?? ""} onInput=${(/** @type {any} */ e) => onChange(e.target.value === "" && !required ? undefined : e.target.value)} />`;
      }
      return html`<input type=${/password|secret|passphrase/i.test(name) ? "password" : { email: "email", uri: "url", date: "date" }[/** @type {string} */ (schema.format)] ?? "text"}
        ...${common} autocomplete="off" spellcheck=${false} placeholder=${hint} minlength=${schema.minLength} maxlength=${schema.maxLength} value=${value ?? ""}
        onInput=${(/** @type {any} */ e) => onChange(e.target.value === "" ? undefined : e.target.value)} />`;
    case "lines":
      return html`<textarea ...${common} rows=${Math.max(2, (value?.length ?? 0) + 1)} placeholder=${T.onePerLine} spellcheck=${false}
        value=${(value ?? []).join("\n")} onInput=${(/** @type {any} */ e) => onChange(e.target.value === "" ? undefined : e.target.value.split("\n"))} />`;
    default:
      return html`<${JsonInput} common=${common} value=${value} onChange=${onChange} name=${name} onText=${onText} />`;
  }
}

/** @param {any} p */
function JsonInput({ common, value, onChange, name, onText }) {
  const [text, setText] = useState(value === undefined ? "" : JSON.stringify(value, null, 1));
  const [bad, setBad] = useState("");
  return html`<textarea ...${common} class="mono" rows=${3} placeholder=${T.anyJson} spellcheck=${false} value=${text} aria-invalid=${bad ? "true" : undefined}
    onInput=${(/** @type {any} */ e) => {
      setText(e.target.value);
      try {
        onChange(e.target.value.trim() === "" ? undefined : JSON.parse(e.target.value));
        setBad(""); onText?.(name, false);
      } catch (err) { setBad(String(err)); onText?.(name, true); }
    }} />${bad ? html`<p class="help bad-text">${bad}</p>` : null}`;
}

/** Returns the arguments that a schema gives by itself. @param {any} schema */
export function defaults(schema) {
  /** @type {any} */
  const out = {};
  for (const [name, s] of Object.entries(schema?.properties ?? {})) {
    if (/** @type {any} */ (s).default !== undefined && (schema.required ?? []).includes(name)) out[name] = /** @type {any} */ (s).default;
  }
  return out;
}
