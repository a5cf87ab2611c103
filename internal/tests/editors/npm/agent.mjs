// An agent of the Agent Client Protocol, on the protocol's own SDK, which checks every message by the schema.
// It answers a prompt by what its text says: plan, ask, mcp, slow or anything else, which it repeats.
import * as acp from "@agentclientprotocol/sdk";
import { Readable, Writable } from "node:stream";

const sessions = new Map();

const say = (client, sessionId, update) => client.notify("session/update", { sessionId, update });
const text = (client, sessionId, words) =>
  say(client, sessionId, { sessionUpdate: "agent_message_chunk", content: { type: "text", text: words } });

async function prompt(params, client) {
  const id = params.sessionId;
  const words = params.prompt.map((block) => block.text ?? "").join("");
  const known = sessions.get(id);
  if (!known) throw new Error("unknown session " + id);
  if (words === "plan") {
    await say(client, id, {
      sessionUpdate: "plan",
      entries: [
        { content: "read the code", priority: "high", status: "completed" },
        { content: "write the test", priority: "medium", status: "in_progress" },
      ],
    });
    await text(client, id, "planned");
  } else if (words === "ask") {
    await say(client, id, { sessionUpdate: "tool_call", toolCallId: "c1", title: "delete a.txt", kind: "delete", status: "pending" });
    const answer = await client.request("session/request_permission", {
      sessionId: id,
      toolCall: { toolCallId: "c1", title: "delete a.txt" },
      options: [
        { optionId: "y", name: "Allow", kind: "allow_once" },
        { optionId: "n", name: "Reject", kind: "reject_once" },
      ],
    });
    await text(client, id, "answer: " + JSON.stringify(answer.outcome));
  } else if (words === "mcp") {
    await text(client, id, JSON.stringify(known.mcpServers));
  } else if (words === "slow") {
    await new Promise((done) => setTimeout(done, 11000));
    await text(client, id, "at last");
  } else {
    for (const part of ["you said ", words, known.loaded ? " again" : ""]) await text(client, id, part);
  }
  return { stopReason: "end_turn" };
}

const app = acp
  .agent({ name: "fixture" })
  .onRequest("initialize", () => ({ protocolVersion: 1, agentCapabilities: { loadSession: true } }))
  .onRequest("session/new", ({ params }) => {
    const sessionId = "s" + process.pid + "-" + sessions.size;
    sessions.set(sessionId, params);
    return { sessionId };
  })
  .onRequest("session/load", async ({ params, client }) => {
    sessions.set(params.sessionId, { ...params, loaded: true });
    await text(client, params.sessionId, "an old answer");
    return {};
  })
  .onRequest("session/prompt", ({ params, client }) => prompt(params, client));
app.connect(acp.ndJsonStream(Writable.toWeb(process.stdout), Readable.toWeb(process.stdin)));
