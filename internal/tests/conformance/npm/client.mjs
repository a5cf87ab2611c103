// Has the official TypeScript client try a server and prints what it got as
// one JSON object: client.mjs legacy|auto|modern http URL
//                  client.mjs legacy|auto|modern stdio COMMAND ARGS...
import { Client, StreamableHTTPClientTransport } from "@modelcontextprotocol/client";
import { StdioClientTransport } from "@modelcontextprotocol/client/stdio";

const [mode, door, target, ...args] = process.argv.slice(2);

const client = new Client(
  { name: "typescript-client", version: "2.4.0" },
  {
    capabilities: { elicitation: { form: {} }, sampling: {}, roots: { listChanged: true } },
    versionNegotiation: { mode: mode === "modern" ? { pin: "2026-07-28" } : mode },
  },
);

const forms = [];
client.setRequestHandler("elicitation/create", async (request) => {
  forms.push(request.params.message);
  const content = {};
  for (const [name, p] of Object.entries(request.params.requestedSchema.properties))
    content[name] = p.type === "boolean" ? true : "typed " + name;
  return { action: "accept", content };
});
client.setRequestHandler("sampling/createMessage", async () => ({
  role: "assistant",
  model: "none",
  content: { type: "text", text: "a completion" },
}));
client.setRequestHandler("roots/list", async () => ({ roots: [{ uri: "file:///srv/project", name: "project" }] }));

// The client's own onprogress forgets its handler with the response, and may
// drop what came with it in one piece; so the notifications are taken as such.
const progress = [];
client.setNotificationHandler("notifications/progress", async (n) => {
  if (n.params.progressToken === "progress-1") progress.push(n.params.progress);
});

let changed;
const change = new Promise((done) => (changed = done));
client.setNotificationHandler("notifications/tools/list_changed", async () => changed(true));

const transport =
  door === "http"
    ? new StreamableHTTPClientTransport(new URL(target))
    : new StdioClientTransport({ command: target, args, stderr: "ignore" });
await client.connect(transport);

const text = (result) => result.content.map((c) => c.text ?? c.type).join("\n");
const call = async (name, args = {}) => text(await client.callTool({ name, arguments: args }));
const got = { revision: client.getNegotiatedProtocolVersion(), era: client.getProtocolEra() };

got.tools = (await client.listTools()).tools.map((t) => t.name);
got.prompts = (await client.listPrompts()).prompts.map((p) => p.name);
got.resources = (await client.listResources()).resources.map((r) => r.uri);
got.templates = (await client.listResourceTemplates()).resourceTemplates.map((r) => r.uriTemplate);
got.read = (await client.readResource({ uri: "test://template/77/data" })).contents[0].text;
got.prompt = (
  await client.getPrompt({ name: "test_prompt_with_arguments", arguments: { arg1: "one", arg2: "two" } })
).messages[0].content.text;
got.completed = (
  await client.complete({
    ref: { type: "ref/prompt", name: "test_prompt_with_arguments" },
    argument: { name: "arg1", value: "pa" },
  })
).completion.values;
got.simple = await call("test_simple_text");
got.mixed = (await client.callTool({ name: "test_multiple_content_types", arguments: {} })).content.map((c) => c.type);
got.structured = (await client.callTool({ name: "test_structured_content", arguments: {} })).structuredContent;
got.header = await call("test_x_mcp_header", { region: "Zürich", priority: 7, query: "weather" });
got.failed = (await client.callTool({ name: "test_error_handling", arguments: {} })).isError;
got.invalid = (await client.callTool({ name: "greet", arguments: {} })).isError;
got.unknown = await client.callTool({ name: "no_such_tool", arguments: {} }).then(
  () => "no error",
  (error) => error.code,
);
await client.callTool({ name: "test_tool_with_progress", arguments: {}, _meta: { progressToken: "progress-1" } });
for (let i = 0; i < 500 && progress.length < 3; i++) await new Promise((done) => setTimeout(done, 10));
got.progress = progress;
got.elicited = await call("test_elicitation", { message: "Who are you?" });
got.rounds = await call("test_input_required_result_multi_round");
got.three = await call("test_input_required_result_multiple_inputs");
got.sampled = await call("test_sampling", { prompt: "Say something" });
got.state = await call("test_input_required_result_request_state");
got.forms = forms;

const subscription = got.era === "modern" ? await client.listen({ toolsListChanged: true }) : undefined;
await call("test_trigger_tool_change");
let timer;
got.changed = await Promise.race([change, new Promise((done) => (timer = setTimeout(done, 10000, false)))]);
clearTimeout(timer);
await subscription?.close();

await client.close();
console.log(JSON.stringify(got));
