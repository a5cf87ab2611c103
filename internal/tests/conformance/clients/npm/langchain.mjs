// Has an agent of LangChain call the tools that a model asks for, until it asks
// for none: langchain.mjs MODEL_URL MCP_URL
import { MultiServerMCPClient } from "@langchain/mcp-adapters";
import { ChatOpenAI } from "@langchain/openai";
import { createAgent } from "langchain";

const [modelURL, mcpURL] = process.argv.slice(2);
const client = new MultiServerMCPClient({
  mcpServers: { gatehouse: { transport: "http", url: mcpURL } },
});
try {
  const agent = createAgent({
    model: new ChatOpenAI({
      model: "mock",
      apiKey: "none",
      maxRetries: 0,
      configuration: { baseURL: modelURL },
    }),
    tools: await client.getTools(),
  });
  const { messages } = await agent.invoke(
    { messages: [{ role: "user", content: "Go on." }] },
    { recursionLimit: 1000 },
  );
  console.log(messages.at(-1).text);
} finally {
  await client.close();
}
