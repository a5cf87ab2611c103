// A server of the official TypeScript SDK over HTTP+SSE alone, the HTTP transport of
// revision 2024-11-05: sseserver.mjs FOLDER-OF-NODE-MODULES [mute]. It prints its address,
// and ends with its standard input. With mute it has no subscriptions.
import { createRequire } from "node:module";
import { createServer } from "node:http";

const require = createRequire(process.argv[2] + "/x.js");
const { Server } = require("@modelcontextprotocol/sdk/server/index.js");
const { SSEServerTransport } = require("@modelcontextprotocol/sdk/server/sse.js");
const types = require("@modelcontextprotocol/sdk/types.js");

function serverOfASession() {
  const server = new Server(
    { name: "sse", version: "1" },
    { capabilities: { tools: {}, resources: { subscribe: process.argv[3] !== "mute" }, logging: {} } },
  );
  server.setRequestHandler(types.ListToolsRequestSchema, async () => ({
    tools: ["echo", "touch"].map((name) => ({ name, inputSchema: { type: "object" } })),
  }));
  server.setRequestHandler(types.CallToolRequestSchema, async (request, { sendNotification }) => {
    if (request.params.name === "touch") {
      await sendNotification({ method: "notifications/resources/updated", params: { uri: "test://watched" } });
    }
    const token = request.params._meta?.progressToken;
    if (token !== undefined) {
      await sendNotification({
        method: "notifications/progress",
        params: { progressToken: token, progress: 1, message: "half" },
      });
    }
    return { content: [{ type: "text", text: "echo " + JSON.stringify(request.params.arguments) }] };
  });
  server.setRequestHandler(types.ListResourcesRequestSchema, async () => ({
    resources: [{ uri: "test://watched", name: "watched" }],
  }));
  server.setRequestHandler(types.ReadResourceRequestSchema, async (request) => ({
    contents: [{ uri: request.params.uri, text: "watched" }],
  }));
  if (process.argv[3] !== "mute") {
    server.setRequestHandler(types.SubscribeRequestSchema, async (request) => {
      if (request.params.uri !== "test://watched") throw new Error("no such resource");
      return {};
    });
    server.setRequestHandler(types.UnsubscribeRequestSchema, async () => ({}));
  }
  return server;
}

const open = new Map();
const http = createServer(async (req, res) => {
  const url = new URL(req.url, "http://localhost");
  if (req.method === "GET" && url.pathname === "/sse") {
    const transport = new SSEServerTransport("/messages", res);
    open.set(transport.sessionId, transport);
    res.on("close", () => open.delete(transport.sessionId));
    await serverOfASession().connect(transport);
  } else if (req.method === "POST" && url.pathname === "/messages") {
    const transport = open.get(url.searchParams.get("sessionId"));
    if (transport) await transport.handlePostMessage(req, res);
    else res.writeHead(404).end("Session not found");
  } else if (req.method === "POST" && url.pathname === "/drop") {
    for (const transport of open.values()) await transport.close();
    res.end(String(open.size));
  } else {
    res.writeHead(url.pathname === "/sse" ? 405 : 404).end();
  }
});
http.listen(0, "127.0.0.1", () => console.log(`http://127.0.0.1:${http.address().port}`));
process.stdin.resume().on("end", () => process.exit(0));
