// Has the AI SDK call the tools that a model asks for, until it asks for none:
// aisdk.mjs MODEL_URL MCP_URL
import { createMCPClient } from "@ai-sdk/mcp";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, isStepCount } from "ai";

const [modelURL, mcpURL] = process.argv.slice(2);
const client = await createMCPClient({ transport: { type: "http", url: mcpURL } });
try {
  const { text } = await generateText({
    model: createOpenAICompatible({ name: "mock", baseURL: modelURL, apiKey: "none" })("mock"),
    tools: await client.tools(),
    stopWhen: isStepCount(1000),
    maxRetries: 0,
    prompt: "Go on.",
  });
  console.log(text);
} finally {
  await client.close();
}
