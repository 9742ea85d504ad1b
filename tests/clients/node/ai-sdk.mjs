// Vercel's AI SDK: its providers for OpenAI (responses, its default, and chat completions) and Anthropic.
import { createRequire } from "node:module";
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { APICallError, Output, generateText, isStepCount, jsonSchema, streamText, tool } from "ai";
import { SIMULATED, TOOL, TURN_TOKENS, URL, run } from "./flows.mjs";

const require = createRequire(import.meta.url);
// Otherwise it sends references to items of earlier responses, which no replica stores.
const NOT_STORED = { openai: { store: false } };
const hasStatus = (status) => (error) => APICallError.isInstance(error) && error.statusCode === status;

function client(api, connect, lacks = {}) {
  const settings = (setup, { prompt, maxTokens, stop, temperature, topP, schema, signal }) => ({
    model: connect(setup),
    prompt,
    maxOutputTokens: maxTokens,
    stopSequences: stop,
    temperature,
    topP,
    maxRetries: setup.retries,
    timeout: setup.timeoutMs,
    abortSignal: signal,
    providerOptions: NOT_STORED,
    output: schema && Output.object({ schema: jsonSchema(schema) }),
  });
  return {
    name: "AI SDK",
    version: require("ai/package.json").version,
    api,
    lacks: { n: "it asks for one answer", ...lacks },
    errors: {
      timeout: (error) => error.name === "TimeoutError",
      ...Object.fromEntries([400, 401, 404, 413, 429].map((status) => [status, hasStatus(status)])),
    },
    async ask(setup, request) {
      const made = await generateText(settings(setup, request));
      const text = request.schema ? JSON.stringify(made.output) : made.text;
      return { texts: [text], input: made.usage.inputTokens, output: made.usage.outputTokens };
    },
    async stream(setup, request, onText) {
      const made = streamText({ ...settings(setup, request), onError() {} });
      for await (const piece of made.textStream) onText(piece);
      const usage = await made.usage;
      return { input: usage.inputTokens, output: usage.outputTokens };
    },
    async converse(setup, turns, call) {
      const weather = tool({ inputSchema: jsonSchema(TOOL), execute: call });
      const messages = [];
      const texts = [];
      for (const turn of turns) {
        messages.push({ role: "user", content: turn });
        const made = await generateText({
          model: connect(setup),
          messages,
          tools: { weather },
          maxOutputTokens: TURN_TOKENS,
          // A random model calls a tool only if the request requires it.
          prepareStep: ({ stepNumber }) => ({ toolChoice: SIMULATED || stepNumber > 0 ? "auto" : "required" }),
          stopWhen: isStepCount(3),
          providerOptions: NOT_STORED,
        });
        messages.push(...made.response.messages);
        texts.push(made.text);
      }
      return texts;
    },
  };
}

const openai = ({ key }) => createOpenAI({ baseURL: `${URL}/v1`, apiKey: key });
const anthropic = ({ key }) => createAnthropic({ baseURL: `${URL}/v1`, apiKey: key });
await run(
  client("chat completions", (setup) => openai(setup).chat(setup.model)),
  client("responses", (setup) => openai(setup)(setup.model), { stop: "the API has no stop strings" }),
  client("messages", (setup) => anthropic(setup)(setup.model)),
);
