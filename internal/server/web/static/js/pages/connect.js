// Connect a client: what to put into its settings, with a token made on the spot.
import { useState } from "preact/hooks";
import { html, Button, Card, Code, Failure, Head, Segments} from "../ui.js";
import { T } from "../texts.js";
import { has, run, state } from "../store.js";
import { me } from "../session.js";

const C = T.connect;

export default function Connect() {
  const [token, setToken] = useState("");
  const [context, setContext] = useState("");
  const [client, setClient] = useState("claude-code");
  const [error, setError] = useState(/** @type {any} */ (null));
  const contexts = Object.keys(state.value?.contexts ?? {}).filter((c) => c !== "admin").sort();
  const url = location.origin + "/mcp" + (context ? "/" + context : "");
  const make = async () => {
    try { setToken((await run("token_create", { name: client, ...(me.value && me.value.person ? { user: me.value.user } : {}), ...(context ? { context } : {}), expires: "90d" })).token); setError(null); } catch (e) { setError(e); }
  };
  const bearer = token || "TOKEN";
  const http = (/** @type {string} */ key) => JSON.stringify({ [key]: { gatehouse: { type: "http", url, headers: { Authorization: "Bearer " + bearer } } } }, null, 2);
  /** @type {Record<string, {title: string, text: string, where: string}>} */
  const all = {
    "claude-code": { title: "Claude Code", where: C.atPrompt, text: `claude mcp add --transport http gatehouse ${url} \\\n  --header "Authorization: Bearer ${bearer}"` },
    "codex": { title: "Codex", where: "~/.codex/config.toml", text: `[mcp_servers.gatehouse]\nurl = "${url}"\nhttp_headers = { Authorization = "Bearer ${bearer}" }` },
    "cursor": { title: "Cursor", where: "~/.cursor/mcp.json", text: http("mcpServers") },
    "vscode": { title: "VS Code", where: ".vscode/mcp.json", text: http("servers") },
    "local": { title: C.local, where: C.localMore, text: JSON.stringify({ mcpServers: { gatehouse: { command: "gatehouse", args: ["stdio"] } } }, null, 2) },
    "curl": { title: "curl", where: C.atPrompt, text: `curl -s ${url} -H 'Authorization: Bearer ${bearer}' -H 'Content-Type: application/json' \\\n  -H 'Accept: application/json' -d '{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}'` },
  };
  return html`<${Head} title=${T.pages.connect} sub=${C.sub} />
    <div class="stack narrow"><${Card} title=${C.one}><div class="row wrap"><label class="row">${T.context} <select value=${context} onChange=${(/** @type {any} */ e) => { setContext(e.target.value); setToken(""); }}><option value="">${T.defaultContext}</option>${contexts.map((c) => html`<option value=${c}>${c}</option>`)}</select></label>
      ${has("token_create") ? html`<${Button} kind="primary" icon="lock" onClick=${make}>${C.token}<//>` : null}</div>
      <p class="help">${token ? C.made : has("token_create") ? C.tokenMore : C.tokenAsk}</p><${Failure} error=${error} /><//>
    <${Card} title=${C.two} actions=${html`<${Segments} label=${C.client} value=${client} onChange=${setClient} options=${Object.entries(all).map(([k, v]) => [k, v.title])} />`}>
      <p class="muted small">${all[client].where}</p><${Code} text=${all[client].text} /><p class="help">${C.setup}</p><//></div>`;
}
