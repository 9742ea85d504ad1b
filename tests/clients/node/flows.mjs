// The flows of ../flows.py for clients in JavaScript. A client has: name, version, api, lacks, errors, and functions.
import assert from "node:assert/strict";

export const { CLIENTS_URL: URL, CLIENTS_KEY: KEY, CLIENTS_LIMITED_KEY: LIMITED_KEY, CLIENTS_MODEL: MODEL } =
  process.env;
export const SIMULATED = process.env.CLIENTS_TARGET === "simulator";
const TENANTS = process.env.CLIENTS_TENANTS.split(",");
const QUESTION = "What can you tell me about the sea and the sky?";
const LONG = "Tell me story 36059 about the sea, from its beginning to its end.";
const TOKENS = 12;
export const TURN_TOKENS = 300;

export const SCHEMA = {
  type: "object",
  properties: { is_near: { type: "boolean" }, unit: { enum: ["metre", "mile"] } },
  required: ["is_near", "unit"],
  additionalProperties: false,
};
export const TOOL = {
  type: "object",
  properties: { city: { type: "string", enum: ["Accra", "Lima"] }, days: { type: "integer", enum: [1, 2, 7] } },
  required: ["city", "days"],
  additionalProperties: false,
};

const FLOWS = {
  async whole(ask) {
    assert.ok((await ask({ prompt: QUESTION, maxTokens: TOKENS })).texts[0] || !SIMULATED);
  },
  async streamed(ask, client) {
    const pieces = [];
    await client.stream(setup(), { prompt: QUESTION, maxTokens: TOKENS }, (piece) => pieces.push(piece));
    assert.ok(pieces.length > (SIMULATED ? 3 : 0), `${pieces}`);
    const [text] = (await ask({ prompt: QUESTION, maxTokens: TOKENS })).texts;
    if (SIMULATED) assert.equal(pieces.join(""), text);
  },
  async usage(ask, client) {
    const whole = await ask({ prompt: QUESTION, maxTokens: TOKENS });
    const streamed = await client.stream(setup(), { prompt: QUESTION, maxTokens: TOKENS }, () => {});
    assert.ok(whole.input > 10);
    assert.equal(streamed.input, whole.input);
    for (const output of [whole.output, streamed.output]) // a random model may end early
      assert.ok(output === TOKENS || (!SIMULATED && output > 0 && output < TOKENS), `${output}`);
  },
  async tools(ask, client) {
    let calls = 0;
    const turns = ["How warm is it?", "And tomorrow?", "And in the week after that?"];
    const texts = await client.converse(setup(), turns, ({ city, days }) => {
      assert.ok(typeof city === "string" && Number.isInteger(days));
      calls += 1;
      return "It will be 20 degrees.";
    });
    assert.ok(calls === turns.length || (!SIMULATED && calls > turns.length), `${calls}`);
    assert.ok(texts.length === turns.length && texts.every(Boolean), `${texts}`);
  },
  async JSON(ask) {
    const given = JSON.parse((await ask({ prompt: "Where is it?", schema: SCHEMA, maxTokens: 200 })).texts[0]);
    assert.deepEqual(Object.keys(given).sort(), ["is_near", "unit"]);
    assert.ok(typeof given.is_near === "boolean" && SCHEMA.properties.unit.enum.includes(given.unit));
  },
  async stop(ask) {
    const request = { prompt: QUESTION, maxTokens: TOKENS, temperature: 0 };
    const [text] = (await ask(request)).texts;
    const longest = text.match(/[a-z]+/g).reduce((found, word) => (word.length > found.length ? word : found));
    const word = longest.slice(-4);
    const [cut] = (await ask({ ...request, stop: [word] })).texts;
    assert.equal(cut, text.slice(0, text.indexOf(word)), `${text} | ${word}`);
  },
  async n(ask) {
    const { texts } = await ask({ prompt: QUESTION, maxTokens: TOKENS, n: 3 });
    assert.ok(texts.length === 3 && texts.every(Boolean));
    if (SIMULATED) assert.equal(new Set(texts).size, 3);
  },
  async cancel(ask, client) {
    const before = await counted("client_gone");
    const abort = new AbortController();
    let pieces = 0;
    const request = { prompt: LONG, maxTokens: 2000, signal: abort.signal };
    await client.stream(setup(), request, () => ++pieces === 2 && abort.abort()).catch(() => {});
    assert.ok(pieces >= 2 && abort.signal.aborted);
    await waitFor("client_gone", before + 1);
  },
  async timeout(ask, client) {
    const before = await counted("client_gone");
    await fails(client, "timeout", () => ask({ prompt: LONG, maxTokens: 2000 }, { timeoutMs: 700 }));
    await waitFor("client_gone", before + 1);
  },
  400: (ask, client) => fails(client, "400", () => ask({ prompt: QUESTION, maxTokens: TOKENS, topP: 2 })),
  401: (ask, client) => fails(client, "401", () => ask({ prompt: QUESTION, maxTokens: TOKENS }, { key: "sk-wrong" })),
  404: (ask, client) => fails(client, "404", () => ask({ prompt: QUESTION, maxTokens: TOKENS }, { model: "missing" })),
  413: (ask, client) => fails(client, "413", () => ask({ prompt: "word ".repeat(20_000), maxTokens: TOKENS })),
  429: (ask, client) =>
    fails(client, "429", async () => {
      for (let i = 0; i < 8; i++) await ask({ prompt: QUESTION, maxTokens: 2 }, { key: LIMITED_KEY });
    }),
  async "Retry-After"(ask) {
    const before = await counted("rate_limited");
    for (let i = 0; i < 2; i++)
      await ask({ prompt: QUESTION, maxTokens: 2 }, { key: LIMITED_KEY, retries: 1 });
    assert.ok((await counted("rate_limited")) > before, "no request was refused");
  },
};
// Numbers come first in an object, so the order is written once more.
const ORDER = ["whole", "streamed", "usage", "tools", "JSON", "stop", "n", "cancel", "timeout"].concat(
  ["400", "401", "404", "413", "429", "Retry-After"],
);

export async function run(...clients) {
  const wanted = (process.env.CLIENTS_FLOWS || ORDER.join(",")).split(",");
  for (const client of clients)
    for (const flow of ORDER.filter((name) => wanted.includes(name))) {
      const lack = client.lacks[flow];
      const [passed, detail] = lack ? [null, lack] : await runOne(flow, client);
      const { name, version, api } = client;
      process.stdout.write(JSON.stringify({ client: name, version, api, flow, passed, detail }) + "\n");
    }
}

async function runOne(flow, client) {
  let detail;
  for (let i = 0; i < (SIMULATED ? 1 : 3); i++) // a random model may end an answer before a flow can cancel it
    try {
      await FLOWS[flow]((request, changes) => client.ask(setup(changes), request), client);
      return [true, ""];
    } catch (error) {
      detail = `${error.stack}`;
    }
  return [false, detail];
}

function setup(changes = {}) {
  return { key: KEY, model: MODEL, retries: 0, timeoutMs: 60_000, ...changes };
}

async function fails(client, flow, call) {
  try {
    await call();
  } catch (error) {
    const given = client.errors[flow];
    assert.ok(given(error), `another error: ${error.name} ${error.stack}`);
    return;
  }
  assert.fail("no error");
}

async function counted(code) {
  const lines = (await (await fetch(process.env.CLIENTS_METRICS)).text()).split("\n");
  return lines
    .filter((line) => line.startsWith("evenkeel_router_request_error_total{") && line.includes(`error_code="${code}"`))
    .filter((line) => TENANTS.some((tenant) => line.includes(`tenant="${tenant}"`)))
    .reduce((sum, line) => sum + Number(line.slice(line.lastIndexOf(" "))), 0);
}

async function waitFor(code, number) {
  for (let i = 0; i < 200; i++) {
    if ((await counted(code)) >= number) return;
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
  assert.fail(`the router counted no further ${code}`);
}
