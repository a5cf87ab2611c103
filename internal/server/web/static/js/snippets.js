// One call in other words: as a command, as curl, and as code of official SDKs.
import { REVISION, headerValue, paramHeaders } from "./rpc.js";

/** @param {string} s */
const quoted = (s) => /^[A-Za-z0-9_@%+=:,./-]+$/.test(s) ? s : "'" + s.replaceAll("'", `'\\''`) + "'";

/**
 * @param {any} tool @param {any} args @param {string} origin @param {any} login whether the call needs a token
 * @returns {Record<string, string>}
 */
export function snippets(tool, args, origin, login) {
  const url = origin + tool.endpoint;
  const json = JSON.stringify(args);
  const meta = "io.modelcontextprotocol/";
  const body = JSON.stringify({
    jsonrpc: "2.0", id: 1, method: "tools/call",
    params: { name: tool.name, arguments: args, _meta: { [meta + "protocolVersion"]: REVISION, [meta + "clientCapabilities"]: {} } },
  });
  const headers = {
    "Content-Type": "application/json", "Accept": "application/json, text/event-stream",
    "MCP-Protocol-Version": REVISION, "Mcp-Method": "tools/call", "Mcp-Name": headerValue(tool.name),
    ...paramHeaders(tool.inputSchema, args),
  };
  const scalars = Object.values(args).every((v) => v === null || typeof v !== "object");
  const words = scalars ? Object.entries(args).map(([k, v]) => quoted(`${k}=${v}`)).join(" ") : "--json " + quoted(json);
  return {
    command: `gatehouse call --url ${url} ${tool.name} ${words}`.trim(),
    curl: `curl -s ${url} \\\n` + Object.entries(headers).map(([k, v]) => `  -H '${k}: ${v}' \\\n`).join("") +
      (login ? `  -H "Authorization: Bearer $GATEHOUSE_TOKEN" \\\n` : "") + `  -d ${quoted(body)}`,
    js: `import { Client, StreamableHTTPClientTransport } from "@modelcontextprotocol/client";

const client = new Client({ name: "example", version: "1.0.0" });
await client.connect(new StreamableHTTPClientTransport(new URL(${JSON.stringify(url)})${login ? `, {
  requestInit: { headers: { Authorization: \`Bearer \${process.env.GATEHOUSE_TOKEN}\` } },
}` : ""}));
const result = await client.callTool({ name: ${JSON.stringify(tool.name)}, arguments: ${JSON.stringify(args, null, 2)} });
console.log(result.content);
await client.close();`,
    python: `import asyncio, json${login ? ", os" : ""}
from mcp import ClientSession
from mcp.client.streamable_http import streamablehttp_client

async def main():
    ${login ? `headers = {"Authorization": "Bearer " + os.environ["GATEHOUSE_TOKEN"]}\n    ` : ""}async with streamablehttp_client(${JSON.stringify(url)}${login ? ", headers=headers" : ""}) as (read, write, _):
        async with ClientSession(read, write) as session:
            await session.initialize()
            print(await session.call_tool(${JSON.stringify(tool.name)}, json.loads(${JSON.stringify(json)})))

asyncio.run(main())`,
    go: `client := mcp.NewClient(&mcp.Implementation{Name: "example", Version: "1.0.0"}, nil)
session, err := client.Connect(ctx, &mcp.StreamableClientTransport{Endpoint: ${JSON.stringify(url)}}, nil)
if err != nil {
	return err
}
defer session.Close()
result, err := session.CallTool(ctx, &mcp.CallToolParams{
	Name:      ${JSON.stringify(tool.name)},
	Arguments: json.RawMessage(${JSON.stringify(json)}),
})`,
  };
}
