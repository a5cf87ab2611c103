// Has the official TypeScript client come in at a host that issues tokens itself, knowing nothing but its address:
// issued.mjs legacy|modern URL USER PASSWORD. It reads a.txt, has its access token refreshed, and reads it again. It
// prints what it got as one JSON object.
import { Client, StreamableHTTPClientTransport, UnauthorizedError } from "@modelcontextprotocol/client";

const [mode, target, user, password] = process.argv.slice(2);

// allow is the browser of a user who fills in the consent page.
async function allow(url) {
  const page = await (await fetch(url)).text();
  const form = new URLSearchParams();
  const text = (s) => s.replaceAll("&#34;", '"').replaceAll("&#39;", "'").replaceAll("&lt;", "<").replaceAll("&gt;", ">").replaceAll("&amp;", "&");
  for (const [, name, value] of page.matchAll(/<input type="hidden" name="([^"]*)" value="([^"]*)">/g)) form.set(name, text(value));
  form.set("grant", "asked");
  form.set("user", user);
  form.set("password", password);
  form.set("decision", "allow");
  const answer = await fetch(new URL("/auth/authorize", url), {
    method: "POST", body: form, redirect: "manual", headers: { origin: new URL(url).origin },
  });
  const to = answer.headers.get("location");
  if (answer.status !== 303 || !to) throw new Error(`the consent page answered ${answer.status}: ${await answer.text()}`);
  return new URL(to).searchParams;
}

let callback;
class Person {
  redirectUrl = "https://callback.test/done";
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
    callback = await allow(url);
    if (callback.get("state") !== "kept") throw new Error("another state came back");
  }
}

const person = new Person();
const client = new Client(
  { name: "typescript-client", version: "2.4.0" },
  { versionNegotiation: { mode: mode === "modern" ? { pin: "2026-07-28" } : mode } },
);
let transport;
for (let times = 0; ; times++) {
  try {
    transport = new StreamableHTTPClientTransport(new URL(target), { authProvider: person });
    await client.connect(transport);
    break;
  } catch (error) {
    if (!(error instanceof UnauthorizedError) || times > 2) throw error;
    await transport.finishAuth(callback);
  }
}
const read = async () => (await client.callTool({ name: "file_read", arguments: { path: "a.txt" } })).content[0].text;
const got = { read: await read(), first: person.token.access_token };
person.token = { ...person.token, access_token: person.token.access_token.slice(0, -8) + "aaaaaaaa" };
got.again = await read();
got.second = person.token.access_token;
got.scope = person.token.scope;
await client.close();
console.log(JSON.stringify(got));
