// A real OpenID Connect provider for tests, oidc-provider, on a free port of
// loopback: provider.mjs FOLDER RESOURCE SCOPE. FOLDER holds node_modules;
// access tokens for RESOURCE are JWTs and may have SCOPE (words separated by
// spaces). Whoever asks is logged in as 248289761001 and has agreed. Clients
// register, or are the one that https://client.test/oauth-client describes,
// which is fetched from nowhere, or the one of the document in OIDC_DOCUMENT.
// The client "service" with the secret "service-secret" gets tokens for itself,
// and for the token "subject" of somebody. It prints {"issuer": ...} when it listens, and
// ends with its standard input.
import { createServer } from "node:http";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const [folder, resource, scope] = process.argv.slice(2);
const find = createRequire(folder + "/");
const { Provider, errors } = await import(pathToFileURL(find.resolve("oidc-provider")));

const server = createServer();
await new Promise((listening) => server.listen(0, "127.0.0.1", listening));
const issuer = `http://127.0.0.1:${server.address().port}`;

const document = {
  client_id: "https://client.test/oauth-client",
  client_name: "described by a document",
  redirect_uris: ["https://callback.test/done"],
  token_endpoint_auth_method: "none",
  grant_types: ["authorization_code", "refresh_token"],
  response_types: ["code"],
};

const documents = [document];
if (process.env.OIDC_DOCUMENT) documents.push(JSON.parse(process.env.OIDC_DOCUMENT));
const exchange = "urn:ietf:params:oauth:grant-type:token-exchange";
const tokenFor = (audience) => ({ scope, audience, accessTokenFormat: "jwt", accessTokenTTL: 600, jwt: { sign: { alg: "RS256" } } });

const provider = new Provider(issuer, {
  fetch: async (url) => {
    const found = documents.find((d) => d.client_id === String(url));
    return found ? Response.json(found) : new Response("", { status: 404 });
  },
  clients: [
    {
      client_id: "service",
      client_secret: "service-secret",
      grant_types: ["client_credentials", exchange],
      response_types: [],
      redirect_uris: [],
    },
  ],
  issueRefreshToken: (_, client) => client.grantTypeAllowed("refresh_token"),
  scopes: ["openid", "offline_access", ...scope.split(" ")],
  cookies: { keys: ["only a test"] },
  pkce: { required: () => true },
  findAccount: (_, id) => ({ accountId: id, claims: () => ({ sub: id }) }),
  interactions: { url: (_, interaction) => `/interaction/${interaction.uid}` },
  features: {
    devInteractions: { enabled: false },
    clientCredentials: { enabled: true },
    registration: { enabled: true },
    clientIdMetadataDocument: { enabled: true, ack: "draft-02" },
    resourceIndicators: {
      enabled: true,
      defaultResource: () => undefined,
      useGrantedResource: () => true,
      getResourceServerInfo: (_, indicator) => {
        if (indicator !== resource && indicator !== "https://other.example.com/mcp") throw new errors.InvalidTarget();
        return tokenFor(indicator);
      },
    },
  },
});

provider.registerGrantType(
  exchange,
  async (ctx) => {
    const { params, client } = ctx.oidc;
    if (params.subject_token !== "subject" || !params.subject_token_type || params.resource !== resource) {
      throw new errors.InvalidGrant("it is no token that can be exchanged");
    }
    const token = new provider.ClientCredentials({ client, scope: params.scope });
    token.resourceServer = new provider.ResourceServer(resource, tokenFor(resource));
    const type = "urn:ietf:params:oauth:token-type:access_token";
    ctx.body = { access_token: await token.save(), expires_in: 600, token_type: "Bearer", issued_token_type: type };
  },
  ["subject_token", "subject_token_type", "requested_token_type", "resource", "scope"],
);

// agree logs in and grants everything that was asked for, without a person.
async function agree(ctx) {
  const { params, session, grantId } = await provider.interactionDetails(ctx.req, ctx.res);
  const accountId = session?.accountId ?? "248289761001";
  const grant = grantId ? await provider.Grant.find(grantId) : new provider.Grant({ accountId, clientId: params.client_id });
  grant.addOIDCScope(params.scope ?? "openid");
  if (params.resource) grant.addResourceScope(params.resource, scope);
  const result = { login: { accountId }, consent: { grantId: await grant.save() } };
  await provider.interactionFinished(ctx.req, ctx.res, result, { mergeWithLastSubmission: false });
}

// Clients register with the scopes they want at first, and want more later.
provider.use(async (ctx, next) => {
  await next();
  if (ctx.path !== "/reg" || ctx.status !== 201) return;
  const { scope, ...client } = await provider.Client.adapter.find(ctx.body.client_id);
  await provider.Client.adapter.upsert(client.client_id, client);
});

provider.use(async (ctx, next) => {
  if (!ctx.path.startsWith("/interaction/")) return next();
  await agree(ctx);
  ctx.respond = false;
});

provider.on("server_error", (_, err) => console.error(err.stack));
server.on("request", provider.callback());
process.stdin.resume().on("end", () => process.exit(0));
console.log(JSON.stringify({ issuer }));
