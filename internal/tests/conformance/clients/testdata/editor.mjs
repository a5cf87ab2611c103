// An editor of the Agent Client Protocol, on the protocol's own SDK. It starts the agent of its arguments, sends prompts
// and prints one line of JSON with what came of them.
import * as acp from "@agentclientprotocol/sdk";
import { spawn } from "node:child_process";
import { Readable, Writable } from "node:stream";

const [command, ...args] = process.argv.slice(2);
const agent = spawn(command, args, { stdio: ["pipe", "pipe", "inherit"] });
const seen = { text: "", plan: 0, asked: "" };
const app = acp
  .client({ name: "editor" })
  .onNotification("session/update", ({ params }) => {
    const u = params.update;
    if (u.sessionUpdate === "agent_message_chunk") seen.text += u.content.text;
    if (u.sessionUpdate === "plan") seen.plan = u.entries.length;
  })
  .onRequest("session/request_permission", ({ params }) => {
    seen.asked = params.toolCall.title;
    return { outcome: { outcome: "selected", optionId: "y" } };
  });
const result = await app.connectWith(
  acp.ndJsonStream(Writable.toWeb(agent.stdin), Readable.toWeb(agent.stdout)),
  async (connection) => {
    const hello = await connection.request("initialize", {
      protocolVersion: 1,
      clientCapabilities: { fs: { readTextFile: true, writeTextFile: true } },
    });
    const other = { name: "other", command: "/bin/true", args: [], env: [] };
    const { sessionId } = await connection.request("session/new", { cwd: process.cwd(), mcpServers: [other] });
    const answers = {};
    for (const text of ["hello", "plan", "ask", "mcp"]) {
      seen.text = "";
      const { stopReason } = await connection.request("session/prompt", { sessionId, prompt: [{ type: "text", text }] });
      answers[text] = { text: seen.text, stopReason };
    }
    seen.text = "";
    await connection.request("session/load", { sessionId, cwd: process.cwd(), mcpServers: [] });
    await connection.request("session/prompt", { sessionId, prompt: [{ type: "text", text: "mcp" }] });
    return { hello, answers, loaded: seen.text, plan: seen.plan, asked: seen.asked };
  },
);
console.log(JSON.stringify(result));
agent.stdin.end();
agent.on("exit", (code) => process.exit(code ?? 1));
