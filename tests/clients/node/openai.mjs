// OpenAI's client for Node: chat completions and responses.
import OpenAI from "openai";
import { VERSION } from "openai/version";
import { SIMULATED, TOOL, TURN_TOKENS, URL, run } from "./flows.mjs";

const common = {
  name: "openai (Node)",
  version: VERSION,
  errors: {
    timeout: (error) => error instanceof OpenAI.APIConnectionTimeoutError,
    400: (error) => error instanceof OpenAI.BadRequestError,
    401: (error) => error instanceof OpenAI.AuthenticationError,
    404: (error) => error instanceof OpenAI.NotFoundError,
    413: (error) => error instanceof OpenAI.APIError && error.status === 413, // it has no class for this status
    429: (error) => error instanceof OpenAI.RateLimitError,
  },
};
const connect = ({ key, retries, timeoutMs }) =>
  new OpenAI({ baseURL: `${URL}/v1`, apiKey: key, maxRetries: retries, timeout: timeoutMs });

const chat = {
  ...common,
  api: "chat completions",
  lacks: {},
  body: ({ model }, { prompt, maxTokens, stop, n, temperature, topP, schema }) => ({
    model,
    messages: [{ role: "user", content: prompt }],
    max_completion_tokens: maxTokens,
    stop,
    n,
    temperature,
    top_p: topP,
    response_format: schema && { type: "json_schema", json_schema: { name: "place", schema, strict: true } },
  }),
  async ask(setup, request) {
    const made = await connect(setup).chat.completions.create(chat.body(setup, request));
    return {
      texts: made.choices.map((choice) => choice.message.content),
      input: made.usage.prompt_tokens,
      output: made.usage.completion_tokens,
    };
  },
  async stream(setup, request, onText) {
    const body = { ...chat.body(setup, request), stream: true, stream_options: { include_usage: true } };
    let usage;
    for await (const chunk of await connect(setup).chat.completions.create(body, { signal: request.signal })) {
      if (chunk.choices[0]?.delta.content) onText(chunk.choices[0].delta.content);
      usage = chunk.usage ?? usage;
    }
    return { input: usage?.prompt_tokens, output: usage?.completion_tokens };
  },
  async converse(setup, turns, call) {
    const messages = [];
    const texts = [];
    for (const turn of turns) {
      messages.push({ role: "user", content: turn });
      const weather = { name: "weather", parameters: TOOL, parse: JSON.parse, function: call };
      const body = { model: setup.model, max_completion_tokens: TURN_TOKENS };
      const runner = connect(setup).chat.completions.runTools({
        ...body,
        messages,
        tools: [{ type: "function", function: weather }],
        tool_choice: SIMULATED ? "auto" : { type: "function", function: { name: "weather" } },
      });
      await runner.done();
      messages.splice(0, messages.length, ...runner.messages);
      if (!SIMULATED) // with a named function, the runner ends after its call
        messages.push((await connect(setup).chat.completions.create({ ...body, messages })).choices[0].message);
      texts.push(messages.at(-1).content);
    }
    return texts;
  },
};

const responses = {
  ...common,
  api: "responses",
  lacks: { stop: "the API has no stop strings", n: "the API has no n" },
  body: ({ model }, { prompt, maxTokens, topP, schema }) => ({
    model,
    input: prompt,
    max_output_tokens: maxTokens,
    top_p: topP,
    text: schema && { format: { type: "json_schema", name: "place", schema, strict: true } },
  }),
  async ask(setup, request) {
    const made = await connect(setup).responses.create(responses.body(setup, request));
    return { texts: [made.output_text], input: made.usage.input_tokens, output: made.usage.output_tokens };
  },
  async stream(setup, request, onText) {
    const body = { ...responses.body(setup, request), stream: true };
    let usage;
    for await (const event of await connect(setup).responses.create(body, { signal: request.signal })) {
      if (event.type === "response.output_text.delta") onText(event.delta);
      usage = event.response?.usage ?? usage;
    }
    return { input: usage?.input_tokens, output: usage?.output_tokens };
  },
  async converse(setup, turns, call) {
    const input = [];
    const texts = [];
    const tools = [{ type: "function", name: "weather", parameters: TOOL, strict: true }];
    for (const turn of turns) {
      input.push({ role: "user", content: turn });
      for (let choice = SIMULATED ? "auto" : "required"; ; choice = "auto") {
        const made = await connect(setup).responses.create({
          model: setup.model,
          input,
          tools,
          tool_choice: choice,
          max_output_tokens: TURN_TOKENS,
        });
        input.push(...made.output);
        const calls = made.output.filter((item) => item.type === "function_call");
        if (!calls.length) {
          texts.push(made.output_text);
          break;
        }
        for (const one of calls)
          input.push({
            type: "function_call_output",
            call_id: one.call_id,
            output: call(JSON.parse(one.arguments)),
          });
      }
    }
    return texts;
  },
};

await run(chat, responses);
