// The same as stream_readers.py for SDKs of Node.js: node stream_readers.mjs QUESTION..., in .venv-agents/node.

import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

// Packages are those of the folder in which it runs.
const found = createRequire(`${process.cwd()}/package.json`);
const load = (name) => import(pathToFileURL(found.resolve(name)).href);

const { default: OpenAI } = await load("openai");
const { default: Anthropic } = await load("@anthropic-ai/sdk");
const { streamText, tool, jsonSchema } = await load("ai");
const { createOpenAI } = await load("@ai-sdk/openai");
const { createAnthropic } = await load("@ai-sdk/anthropic");
const { createOpenAICompatible } = await load("@ai-sdk/openai-compatible");

const schema = { type: "object", properties: { at: { type: "integer" } }, required: ["at"], additionalProperties: false };
const look = { name: "look", description: "Look." };
const thinking = { type: "enabled", budget_tokens: 1024 };
const user = (content) => [{ role: "user", content }];
const words = (texts) => texts.map((one) => one.text).join("");

async function openaiChat(question) {
  const tools = [{ type: "function", function: { ...look, parameters: schema } }];
  const stream = new OpenAI().chat.completions.stream({ model: "m", messages: user(question), tools });
  const said = (await stream.finalChatCompletion()).choices[0].message;
  const calls = (said.tool_calls ?? []).map((call) => [call.function.name, JSON.parse(call.function.arguments)]);
  return { words: said.content ?? "", calls, thought: said.reasoning_content ?? "" };
}

async function openaiResponses(question) {
  const tools = [{ type: "function", ...look, parameters: schema, strict: false }];
  const stream = new OpenAI().responses.stream({ model: "m", input: question, tools });
  const output = (await stream.finalResponse()).output;
  const of = (type) => output.filter((item) => item.type === type);
  const calls = of("function_call").map((item) => [item.name, JSON.parse(item.arguments)]);
  const [said, thoughts] = ["message", "reasoning"].map((type) => words(of(type).flatMap((item) => item.content)));
  return { words: said, calls, thought: thoughts };
}

async function anthropicMessages(question) {
  const asked = { model: "m", max_tokens: 2000, messages: user(question), thinking };
  const stream = new Anthropic().messages.stream({ ...asked, tools: [{ ...look, input_schema: schema }] });
  const { content } = await stream.finalMessage();
  const of = (type) => content.filter((block) => block.type === type);
  const thought = of("thinking").map((block) => block.thinking).join("");
  return { words: words(of("text")), calls: of("tool_use").map((block) => [block.name, block.input]), thought };
}

const openai = () => createOpenAI({ baseURL: process.env.OPENAI_BASE_URL });
const compatible = () =>
  createOpenAICompatible({ name: "ours", baseURL: process.env.OPENAI_BASE_URL, apiKey: process.env.OPENAI_API_KEY });
const anthropic = () => createAnthropic({ baseURL: `${process.env.ANTHROPIC_BASE_URL}/v1` });

async function ai(model, prompt) {
  const tools = { look: tool({ description: look.description, inputSchema: jsonSchema(schema) }) };
  const providerOptions = { anthropic: { thinking: { type: "enabled", budgetTokens: 1024 } } };
  let failure;
  const onError = ({ error }) => (failure = error);
  const said = streamText({ model, prompt, tools, providerOptions, maxOutputTokens: 2000, maxRetries: 0, onError });
  const heard = { words: "", calls: [], thought: "" };
  for await (const part of said.fullStream) {
    if (part.type === "text-delta") heard.words += part.text;
    if (part.type === "reasoning-delta") heard.thought += part.text;
    if (part.type === "tool-call") heard.calls.push([part.toolName, part.input]);
  }
  if (failure) throw failure;
  return heard;
}

const readers = {
  openai_node_chat: openaiChat,
  openai_node_responses: openaiResponses,
  anthropic_node_messages: anthropicMessages,
  ai_chat: (question) => ai(openai().chat("m"), question),
  ai_compatible_chat: (question) => ai(compatible()("m"), question),
  ai_responses: (question) => ai(openai().responses("m"), question),
  ai_messages: (question) => ai(anthropic()("claude-sonnet-4-5"), question),
};

for (const [reader, read] of Object.entries(readers)) {
  for (const question of process.argv.slice(2)) {
    const told = await read(question).catch((error) => ({ error: `${error.name}: ${error.message}` }));
    console.log(JSON.stringify({ reader, question, ...told }));
  }
}
