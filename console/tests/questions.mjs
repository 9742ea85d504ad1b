// The questions of docs/design/console-questions.md: `node questions.mjs SCENE '{"admin": URL, …}'`. tests/console/ starts the scenes.
//
// Each is asked twice: first until its answer is true in the scene, then in a new page, whose clicks are counted. A line of the output
// is one question; its seconds are those of the page and of the script, from the address to the answer on the screen.

import assert from "node:assert/strict";
import { createInterface } from "node:readline";
import { chromium } from "playwright-core";
import { PHONE, WIDE, open, signIn, tableOf } from "./pages.mjs";

const TRUE_MS = 120_000;
const [scene, given] = process.argv.slice(2);
const at = JSON.parse(given);
const answers = createInterface({ input: process.stdin })[Symbol.asyncIterator]();

/** What a reader does to the page, counted: clicks, typed words, keys and scrolled screens. */
class Reader {
  constructor(page) {
    this.page = page;
    this.clicks = 0;
  }

  async click(target) {
    this.clicks += 1;
    await target.click();
  }

  async type(target, word) {
    this.clicks += 1;
    await target.fill(word);
  }

  async press(key) {
    this.clicks += 1;
    await this.page.keyboard.press(key);
  }

  /** The answer is in the part of the page that the screen shows. */
  async sees(target, timeout = TRUE_MS) {
    const first = target.first();
    await first.waitFor({ timeout });
    const box = await first.boundingBox();
    const { height } = this.page.viewportSize();
    assert.ok(box && box.y >= 0 && box.y + box.height <= height, `not on the screen: ${await first.textContent()}`);
  }
}

const verdict = (page) => page.getByRole("region", { name: "Verdict" });
const problems = (page) => page.getByRole("navigation", { name: "Problems" });
const card = (page, name) => page.locator(".card", { hasText: name });
const link = (page, name) => page.getByRole("navigation", { name: "Pages" }).getByRole("link", { name });

async function openRequest(reader, id) {
  await reader.type(reader.page.getByLabel("Find"), id);
  await reader.press("Enter");
}

const FLOOD = /took \d+% of the service, owed \d+%; hurt: acme\/(chat|rerank)/;

/** By scene: the number of the question, who asks it, and how it is answered. */
const QUESTIONS = {
  outage: [
    { number: 1, ask: (reader, page) => reader.sees(verdict(page).getByText(/No client is served/)) },
    { number: 2, ask: (reader, page) => reader.sees(problems(page).getByText(/^Replica r. failed 100% of its latest requests/)) },
    {
      number: 4,
      ask: async (reader, page) => {
        const opened = page.context().waitForEvent("page", { timeout: TRUE_MS });
        await reader.click(problems(page).getByRole("link", { name: "EvenkeelRequestsFailing" }));
        const runbook = await opened;
        await runbook.getByText(/EvenkeelRequestsFailing/).first().waitFor();
      },
    },
    { number: 10, ask: (reader, page) => reader.sees(page.getByText(/in the last minute, by cause: replica failed [\d,]+/)) },
  ],
  empty: [
    { number: 1, ask: (reader, page) => reader.sees(verdict(page).getByText(/No client is served/)) },
    { number: 2, ask: (reader, page) => reader.sees(verdict(page).getByText(/there is no replica/)) },
    { number: 3, ask: (reader, page) => reader.sees(verdict(page).getByText(/4 requests wait, the oldest for \d+ s/)) },
  ],
  silent: [
    { number: 2, stop: true, ask: (reader, page) => reader.sees(page.getByRole("alert").getByText(/The router does not answer/)) },
  ],
  flood: [
    { number: 16, tenant: true, ask: (reader, page) => reader.sees(verdict(page).getByText(/hurt: acme\/\w+ \(given \d+% of what it was owed/)) },
    { number: 5, ask: (reader, page) => reader.sees(verdict(page).getByText(FLOOD)) },
    { number: 6, ask: (reader, page) => reader.sees(verdict(page).getByText(/research\/notebook took \d+% of the service, owed \d+%/)) },
    { number: 7, ask: (reader, page) => reader.sees(card(page, "Time to first token").getByText(/within share; p95 \d/)) },
    { number: 14, screen: PHONE, ask: (reader, page) => reader.sees(verdict(page).getByText(FLOOD)) },
  ],
  bad_replica: [
    { number: 8, ask: (reader, page) => reader.sees(problems(page).getByText(/^Replica r2 is suspect: the replica answered 500/)) },
    {
      number: 9,
      ask: async (reader, page) => {
        await reader.click(link(page, "Replicas"));
        await reader.sees(tableOf(page, "replicas").getByRole("row", { name: /^r3 loading/ }));
        await reader.sees(tableOf(page, "replicas").getByRole("row", { name: /^r4 gone/ }));
      },
    },
  ],
  crowd: [
    {
      number: 11,
      ask: async (reader, page) => {
        const failing = tableOf(page, "clients").getByRole("row", { name: /Requests fail: / });
        for (let row = 0; row < 5; row += 1) await reader.sees(failing.nth(row));
        const names = await failing.getByRole("link").allTextContents();
        assert.deepEqual(new Set(names.slice(0, 5)), new Set(at.worst));
      },
    },
    {
      number: 14,
      screen: PHONE,
      ask: (reader, page) => reader.sees(verdict(page).getByText(/Held up: \d+ of [\d,]+ requests of the last minute failed/)),
    },
  ],
  explained: [
    {
      number: 12,
      ask: async (reader, page) => {
        await openRequest(reader, "abc");
        await reader.sees(page.getByText(/s at replica r0: its queue/));
      },
    },
    {
      number: 13,
      ask: async (reader, page) => {
        await openRequest(reader, "abc");
        await reader.sees(page.getByRole("heading", { name: "Who was ahead" }));
        await reader.sees(page.getByRole("row", { name: /^research\/notebook/ }));
      },
    },
    {
      number: 17,
      tenant: true,
      ask: async (reader, page) => {
        await openRequest(reader, "abc");
        await reader.sees(page.getByRole("row", { name: /^other tenants/ }));
      },
    },
  ],
  failing: [
    {
      number: 18,
      tenant: true,
      ask: async (reader, page) => {
        await reader.click(page.getByRole("region", { name: "Errors" }).getByRole("link", { name: /^replica failed/ }));
        await reader.sees(tableOf(page, "requests").getByRole("row", { name: /^acme\/rerank.*replica failed/ }));
        assert.equal(await tableOf(page, "requests").getByText("answered").count(), 0);
      },
    },
  ],
  limited: [
    { number: 15, tenant: true, ask: (reader, page) => reader.sees(verdict(page).getByText(/^.?Fair/)) },
    {
      number: 19,
      tenant: true,
      ask: async (reader, page) => {
        await reader.click(link(page, "Limits"));
        await reader.sees(tableOf(page, "limits").getByRole("row", { name: /^120 requests per minute \d+ [1-9]\d*% \d+ s/ }));
      },
    },
    { number: 20, tenant: true, ask: (reader, page) => reader.sees(card(page, "Between tokens").getByText(/^[\d.]+ m?s$/)) },
  ],
};

/** A page as its reader finds it: a tenant has signed in. */
async function opened(browser, { tenant = false, screen = WIDE }) {
  const page = await open(browser, tenant ? `${at.traffic}/console/` : "about:blank", screen);
  const begun = performance.now();
  if (tenant) await signIn(page, at.key);
  else await page.goto(`${at.admin}/console/`);
  return [new Reader(page), page, begun];
}

async function answer(browser, question) {
  const [reader, page, begun] = await opened(browser, question);
  await page.getByRole("region", { name: "Verdict" }).waitFor();
  if (question.stop) {
    console.log("stop");
    await answers.next();
  }
  await question.ask(reader, page);
  const seconds = (performance.now() - begun) / 1000;
  const { clicks } = reader;
  await page.screenshot({ path: at.shots ? `${at.shots}/question-${question.number}-${scene}.png` : undefined });
  await page.context().close();
  return { scene, number: question.number, clicks, seconds: Number(seconds.toFixed(2)) };
}

const browser = await chromium.launch({ executablePath: at.chromium, args: ["--no-sandbox"] });
try {
  for (const question of QUESTIONS[scene]) {
    if (!question.stop) await answer(browser, question);
    console.log(JSON.stringify(await answer(browser, question)));
  }
} finally {
  await browser.close();
  process.stdin.destroy();
}
