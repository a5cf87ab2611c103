// Has the official TypeScript client come in with OAuth, knowing nothing but
// the address of a server: oauth.mjs legacy|modern registers|document URL. It
// reads a.txt, has its access token refreshed, and writes b.txt, for which it
// has to ask for more. It prints what it got, and which steps it took, as one
// JSON object.
import { Client, StreamableHTTPClientTransport, UnauthorizedError } from "@modelcontextprotocol/client";

const [mode, known, target] = process.argv.slice(2);
const steps = [];

// note keeps what is worth knowing of a request.
async function note(url, init) {
  const body = init?.body instanceof URLSearchParams ? init.body : new URLSearchParams(String(init?.body ?? ""));
  const response = await fetch(url, init);
  const at = new URL(url).pathname;
  if (at === new URL(target).pathname) {
    const challenge = response.headers.get("www-authenticate") ?? "";
    const part = (name) => challenge.match(new RegExp(name + '="([^"]*)"'))?.[1] ?? "";
    if (challenge) steps.push(`${response.status} ${part("error")} [${part("scope")}]`);
  } else if (at.startsWith("/.well-known/oauth-protected-resource")) steps.push(`metadata ${response.status}`);
  else if (at === "/reg") steps.push(`registration ${response.status}`);
  else if (at === "/token") steps.push(`token ${body.get("grant_type")} ${response.status}${body.has("resource") ? " for the resource" : ""}`);
  return response;
}

// walk is the browser of somebody who agrees to everything.
const cookies = new Map();
async function walk(url) {
  for (let hop = 0; hop < 10; hop++) {
    const cookie = [...cookies].map(([k, v]) => `${k}=${v}`).join("; ");
    const response = await fetch(url, { redirect: "manual", headers: { cookie } });
    for (const c of response.headers.getSetCookie()) {
      const [name, value] = c.split(";")[0].split("=");
      cookies.set(name, value);
    }
    url = new URL(response.headers.get("location") ?? "https://nowhere.test/" + response.status, url);
    if (url.host === "callback.test") return url.searchParams;
  }
  throw new Error("there is no end to the redirections");
}

let callback;
class Person {
  redirectUrl = "https://callback.test/done";
  clientMetadataUrl = known === "document" ? "https://client.test/oauth-client" : undefined;
  clientMetadata = {
    client_name: "typescript-client",
    redirect_uris: ["https://callback.test/done"],
    token_endpoint_auth_method: "none",
    grant_types: ["authorization_code", "refresh_token"],
    response_types: ["code"],
  };
  state() { return "kept"; }
  clientInformation() { return this.client; }
  saveClientInformation(client) { this.client = client; }
  tokens() { return this.token; }
  saveTokens(token) { this.token = token; }
  codeVerifier() { return this.verifier; }
  saveCodeVerifier(verifier) { this.verifier = verifier; }
  discoveryState() { return this.discovered; }
  saveDiscoveryState(state) { this.discovered = state; }
  async redirectToAuthorization(url) {
    const ask = url.searchParams;
    steps.push(`authorize [${ask.get("scope")}] ${ask.get("code_challenge_method")}${ask.has("resource") ? " for the resource" : ""}`);
    callback = await walk(url);
    if (callback.get("state") !== "kept") throw new Error("another state came back");
  }
}

const person = new Person();
const client = new Client(
  { name: "typescript-client", version: "2.4.0" },
  { versionNegotiation: { mode: mode === "modern" ? { pin: "2026-07-28" } : mode } },
);
let transport;

// agreeing does something, and comes back with a token when one is wanted.
async function agreeing(what) {
  for (let times = 0; ; times++) {
    try {
      return await what();
    } catch (error) {
      if (!(error instanceof UnauthorizedError) || times > 2) throw error;
      await transport.finishAuth(callback);
    }
  }
}

await agreeing(async () => {
  transport = new StreamableHTTPClientTransport(new URL(target), { authProvider: person, fetch: note });
  await client.connect(transport);
});
const call = (name, args) => agreeing(async () => (await client.callTool({ name, arguments: args })).content[0].text);
const names = async () => (await client.listTools({}, { cacheMode: "refresh" })).tools.map((t) => t.name);

const got = { era: client.getProtocolEra(), revision: client.getNegotiatedProtocolVersion() };
got.before = await names();
got.read = await call("file_read", { path: "a.txt" });
steps.push("- the token goes bad");
person.token = { ...person.token, access_token: person.token.access_token.slice(0, -8) + "AAAAAAAA" };
got.again = await call("file_read", { path: "a.txt" });
steps.push("- a tool that needs more");
await call("file_write", { path: "b.txt", content: "written" });
got.after = await names();
got.written = await call("file_read", { path: "b.txt" });
got.client = person.client.client_id;
got.steps = steps;
await client.close();
console.log(JSON.stringify(got));
