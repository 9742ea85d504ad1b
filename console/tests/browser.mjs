// Scenarios in a real browser: `node browser.mjs SCENARIO '{"admin": URL, …}'`. tests/console/ starts the routers.
//
// A scenario that needs the test to act writes a line with a word to standard output, and reads a line when it is done.

import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { createRequire } from "node:module";
import { createInterface } from "node:readline";
import { chromium } from "playwright-core";
import { DEADLINE_MS, PHONE, open, signIn, tableOf, until } from "./pages.mjs";

const [scenario, given] = process.argv.slice(2);
const at = JSON.parse(given);
const answers = createInterface({ input: process.stdin })[Symbol.asyncIterator]();

/** Let the test do something, and wait until it is done. */
async function ask(word) {
  console.log(word);
  await answers.next();
}

async function accessible(page, where) {
  const source = await readFile(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
  await page.evaluate(source);
  const { violations } = await page.evaluate(() => globalThis.axe.run());
  const found = violations.map(({ id, impact, nodes }) => `${impact} ${id}: ${nodes[0].html}`);
  assert.deepEqual(found, [], where);
}

/** The page as a picture, for people: where the test gives a folder. */
async function shot(page, name) {
  if (at.shots) await page.screenshot({ path: `${at.shots}/${name}.png`, fullPage: true });
}

/** The sentence of the verdict, once it is so. */
const saysIn = (page, text) => page.getByRole("region", { name: "Verdict" }).locator(".sentence").filter({ hasText: text });

/** A wide screen and a phone; both must be accessible. */
async function screens(browser, url) {
  const wide = await open(browser, url);
  const phone = await open(browser, url, PHONE);
  return [["wide", wide], ["phone", phone]];
}

async function looks(page, name) {
  await accessible(page, name);
  await shot(page, name);
  const wider = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
  assert.ok(wider <= 0, `${name} is ${wider} pixels wider than the screen`);
}

/** A table that is wider than a phone fades at the edge beyond which there is more, and only there. */
async function fades(phone) {
  const edges = () => tableOf(phone, "replicas").evaluate((box) => [...box.classList].filter((name) => name.startsWith("more")));
  const mask = () => tableOf(phone, "replicas").evaluate((box) => getComputedStyle(box).maskImage);
  await phone.locator('[aria-label="Table of replicas"].more-right').waitFor();
  assert.deepEqual(await edges(), ["more-right"]);
  assert.match(await mask(), /gradient/);
  await tableOf(phone, "replicas").evaluate((box) => box.scrollTo(box.scrollWidth, 0));
  await phone.locator('[aria-label="Table of replicas"].more-left').waitFor();
  assert.deepEqual(await edges(), ["more-left"]);
  await accessible(phone, "phone, scrolled table");
  await phone.setViewportSize({ width: 1440, height: 1000 });
  await phone.locator('[aria-label="Table of replicas"]:not(.more-left, .more-right)').waitFor();
  assert.equal(await mask(), "none");
}

const SCENARIOS = {
  /** Every replica fails every request: the page says so at its head, and nothing on it is green. */
  async outage(browser) {
    for (const [name, page] of await screens(browser, `${at.admin}/console/`)) {
      await saysIn(page, /No client is served: all \d+ requests that ended failed/).waitFor();
      assert.equal(await page.locator(".verdict.fair").count(), 0);
      assert.equal(await page.getByRole("status").textContent(), "No client is served.");
      await page.getByText(/in the last minute, by cause/).waitFor();
      const problems = page.getByRole("navigation", { name: "Problems" });
      await problems.getByRole("link", { name: /requests of the last minute failed/ }).waitFor();
      await looks(page, `outage-${name}`);
      await problems.getByRole("link", { name: /^Replica r. failed 100% of its latest requests/ }).first().click();
      await until(page, () => document.activeElement.id === "replicas");
      assert.match(await tableOf(page, "replicas").textContent(), /ready, but fails/);
    }
  },

  /** No replica at all: requests are held, and count as waiting. */
  async empty(browser) {
    for (const [name, page] of await screens(browser, `${at.admin}/console/`)) {
      await saysIn(page, /No client is served: there is no replica; \d+ requests wait, the oldest for \d+ s\./).waitFor();
      await page.getByText("No replica is configured.").waitFor();
      const waiting = page.locator(".card", { hasText: "Waiting" }).locator(".value");
      assert.ok(Number(await waiting.textContent()) > 0, "held requests wait");
      await looks(page, `empty-${name}`);
    }
  },

  /** A replica hangs: no token comes. Then its clients give up, and the minute remembers it. */
  async hung(browser) {
    const pages = await screens(browser, `${at.admin}/console/`);
    for (const [name, page] of pages) {
      await saysIn(page, /Held up: no token for \d+ s: 8 requests wait at replica r0\./).waitFor();
      assert.equal(await page.locator(".verdict.fair").count(), 0);
      assert.equal(await page.locator(".card", { hasText: "Waiting" }).locator(".value").textContent(), "8");
      const problems = page.getByRole("navigation", { name: "Problems" });
      await problems.getByRole("link", { name: /^No token for \d+ s while requests wait: r0\./ }).waitFor();
      const row = tableOf(page, "clients").getByRole("row", { name: /acme\/chat/ });
      assert.match(await row.textContent(), /No token for \d+ s: 8 requests wait\./);
      assert.match(await tableOf(page, "replicas").textContent(), /silent/);
      await looks(page, `hung-${name}`);
    }
    await ask("leave");
    for (const [name, page] of pages) {
      await saysIn(page, /Held up: no token came for \d+ s of the last minute(, until \d+ s ago)?, while requests waited; 8 of 28 requests of the last minute were given up\./).waitFor();
      assert.equal(await page.locator(".verdict.fair").count(), 0);
      await page.getByText(/in the last minute, by cause: client gone 8/).waitFor();
      const row = tableOf(page, "clients").getByRole("row", { name: /acme\/chat/ });
      assert.match(await row.textContent(), /Requests are given up: 8 of 28 in the last minute\./);
      await looks(page, `given-up-${name}`);
    }
  },

  /** Without an answer the page judges nothing. */
  async silent(browser) {
    const page = await open(browser, `${at.admin}/console/`);
    await saysIn(page, /Fair/).waitFor();
    await ask("stop");
    await page.getByRole("alert").waitFor();
    await saysIn(page, /Nothing is known since/).waitFor();
    assert.equal(await page.locator(".verdict.fair, .live .pill.good").count(), 0);
    await looks(page, "silent-wide");
  },

  /** A flood under LPM: who takes, who is hurt, and how long they have waited. */
  async flood(browser) {
    for (const [name, page] of await screens(browser, `${at.admin}/console/`)) {
      await saysIn(page, /Unfair: in the last minute acme\/flood took \d+% of the service, owed \d+%; hurt: /).waitFor();
      await page.getByRole("figure").first().waitFor();
      const rows = tableOf(page, "clients").locator("tbody tr");
      assert.match(await rows.first().textContent(), /Gets too little/);
      assert.doesNotMatch(await rows.first().textContent(), /acme\/flood/);
      assert.match(await tableOf(page, "clients").getByRole("row", { name: /acme\/flood/ }).textContent(), /Takes what others are owed/);
      const ttft = await rows.first().locator("td").nth(name === "wide" ? 2 : 2).textContent();
      assert.match(ttft, /\d/, "who waits has a time to first token");
      const legend = page.getByRole("figure").first().getByRole("table");
      for (const client of ["acme/flood", "acme/chat"]) await legend.getByRole("link", { name: client }).waitFor();
      await looks(page, `flood-${name}`);
    }
  },

  /** Two hundred clients of twenty tenants on one screen; a tenant's row opens. */
  async crowd(browser) {
    const page = await open(browser, `${at.admin}/console/`);
    const table = tableOf(page, "clients");
    await table.getByRole("button", { name: "tenant-7" }).waitFor();
    await until(page, () => document.querySelectorAll('[aria-label="Table of clients"] tbody tr').length >= 21);
    const { height } = await table.boundingBox();
    assert.ok(height < 1000, `the table is ${height} pixels high`);
    const button = table.getByRole("button", { name: "tenant-7" });
    assert.equal(await button.getAttribute("aria-expanded"), "false");
    await button.press("Enter");
    await table.getByRole("link", { name: "tenant-7/client-27" }).waitFor();
    await looks(page, "crowd-wide");
    await page.getByLabel("Find").fill("client-27");
    await until(page, () => document.querySelectorAll('[aria-label="Table of clients"] tbody tr').length === 1);
    const phone = await open(browser, `${at.admin}/console/`, PHONE);
    await tableOf(phone, "clients").getByRole("button", { name: "tenant-7" }).waitFor();
    const shown = await tableOf(phone, "clients").locator("thead th:visible").allTextContents();
    assert.deepEqual(shown, ["Client", "Given of owed", "TTFT", "Waiting", "Oldest", "Failed"]);
    const hidden = await tableOf(phone, "clients").evaluate((box) => box.scrollWidth - box.clientWidth);
    assert.ok(hidden <= 0, `${hidden} pixels of the table are hidden`);
    await looks(phone, "crowd-phone");
  },

  /** Why was this request slow: from the list of requests to the reasons; a tenant sees its own only. */
  async why(browser) {
    const page = await open(browser, `${at.admin}/console/#/requests`);
    await page.getByRole("link", { name: at.id, exact: true }).click();
    await page.getByRole("heading", { level: 1, name: `Request ${at.id}` }).waitFor();
    await page.getByText(/^The (first token|whole answer) came after/).waitFor();
    await page.getByRole("heading", { name: "Who was ahead" }).waitFor();
    await looks(page, "request-wide");
    await page.getByRole("link", { name: "← Requests" }).click();
    await page.getByRole("heading", { level: 1, name: "Requests" }).waitFor();
    await page.getByLabel("First").selectOption("slowest first token");
    await looks(page, "requests-wide");
    const phone = await open(browser, `${at.admin}/console/#/requests`, PHONE);
    await phone.getByRole("link", { name: at.id, exact: true }).waitFor();
    await looks(phone, "requests-phone");
    const own = await open(browser, `${at.traffic}/console/`);
    await signIn(own, at.key);
    await own.getByRole("heading", { level: 1, name: "Tenant acme" }).waitFor();
    await own.getByRole("heading", { name: "Limits" }).waitFor();
    await own.getByText("600 requests per minute").waitFor();
    await looks(own, "tenant-wide");
    await own.getByRole("link", { name: "Requests" }).click();
    await own.getByRole("link", { name: at.id, exact: true }).waitFor();
    assert.doesNotMatch(await own.locator("body").innerText(), new RegExp(at.other));
    await own.goto(`${at.traffic}/console/#/requests/${at.others_id}`);
    await own.getByText("This router keeps no request with this id.").waitFor();
    assert.deepEqual(page.errors, []);
  },

  /** Several models: all together, then one, by keyboard; the choice is in the address and holds on every page. */
  async models(browser) {
    for (const [name, page] of await screens(browser, `${at.admin}/console/`)) {
      const models = tableOf(page, "models");
      await models.getByRole("link", { name: "smart" }).waitFor();
      await page.getByRole("figure").first().waitFor();
      assert.equal(await models.locator("tbody tr").count(), 2);
      await page.getByRole("heading", { name: "Service by model" }).waitFor();
      await saysIn(page, /^.?Fair in/).waitFor();
      assert.equal(await tableOf(page, "replicas").locator("tbody tr").count(), 2);
      await looks(page, `models-${name}`);
      const chooser = page.getByLabel("Model", { exact: true });
      await chooser.focus();
      await page.keyboard.press("ArrowDown");
      await until(page, () => location.hash === "#/?model=smart");
      await tableOf(page, "replicas").getByText("big-0").waitFor();
      assert.equal(await tableOf(page, "replicas").locator("tbody tr").count(), 1);
      assert.equal(await models.count(), 0, "one model has no table of models");
      assert.equal(await page.evaluate(() => document.activeElement.tagName), "SELECT", "the focus stays");
      assert.match(await page.title(), /smart/);
      await page.getByRole("figure").first().waitFor();
      await looks(page, `model-${name}`);
      await page.getByRole("link", { name: at.client }).first().click();
      await page.getByRole("heading", { level: 1, name: at.client }).waitFor();
      await until(page, () => location.hash.endsWith("?model=smart"));
      await page.getByRole("link", { name: "Requests" }).click();
      const rows = tableOf(page, "requests").locator("tbody tr");
      await rows.first().waitFor();
      await chooser.selectOption("All models");
      await until(page, () => location.hash === "#/requests");
      if (name === "wide") await page.getByRole("cell", { name: "small-8b", exact: true }).first().waitFor();
      await looks(page, `models-requests-${name}`);
      assert.deepEqual(page.errors, []);
    }
    const deep = await open(browser, `${at.admin}/console/#/client/${encodeURIComponent(at.identity)}?model=small-8b`);
    await deep.getByRole("heading", { level: 1, name: at.client }).waitFor();
    assert.equal(await deep.getByLabel("Model", { exact: true }).inputValue(), "small-8b");
    await deep.getByRole("cell", { name: "small-0" }).or(deep.getByRole("rowheader", { name: "small-0" })).first().waitFor();
    await deep.getByLabel("Model", { exact: true }).selectOption("All models");
    await deep.getByRole("rowheader", { name: "smart: big-0" }).waitFor();
    await looks(deep, "models-client-wide");
    const gone = await open(browser, `${at.admin}/console/#/?model=gone`);
    await gone.getByRole("alert").getByText(/model must be one of smart, small-8b, not 'gone'/).waitFor();
    await gone.getByRole("link", { name: "Show all models" }).click();
    await tableOf(gone, "models").waitFor();
    const own = await open(browser, `${at.traffic}/console/`);
    await signIn(own, at.key);
    await own.getByRole("heading", { level: 1, name: "Tenant acme" }).waitFor();
    await tableOf(own, "models").getByRole("link", { name: "smart" }).click();
    await until(own, () => location.hash === "#/?model=smart");
    await own.getByRole("link", { name: at.client }).first().waitFor();
    await looks(own, "model-tenant");
    const other = await open(browser, `${at.traffic}/console/`);
    await signIn(other, at.other_key);
    await other.getByRole("heading", { level: 1, name: "Tenant rival" }).waitFor();
    assert.equal(await other.getByLabel("Model", { exact: true }).count(), 0, "one model needs no selector");
    assert.doesNotMatch(await other.locator("body").innerText(), /small-8b/);
  },

  /** The page loads, follows the fleet, and shows nothing but what this router sends. */
  async live(browser) {
    const page = await open(browser, `${at.admin}/console/`);
    await page.getByRole("heading", { name: "Who gets what" }).waitFor();
    await page.getByRole("link", { name: at.client }).first().waitFor();
    await page.getByRole("figure").first().waitFor();
    const service = page.locator(".card", { has: page.getByText("Service", { exact: true }) }).locator(".value");
    const before = await service.textContent();
    const deadline = Date.now() + DEADLINE_MS;
    while ((await service.textContent()) === before) {
      assert.ok(Date.now() < deadline, `the service shown is still ${before}`);
      await page.waitForTimeout(100);
    }
    await saysIn(page, /(Fair|Unfair|Not judged yet):/).waitFor();
    assert.equal(await page.locator('[aria-labelledby="replicas"] tbody tr').count(), 2);
    assert.deepEqual([...page.hosts], [new URL(at.admin).host], "requests to other hosts");
    assert.deepEqual(page.errors, []);
  },

  /** A client's page, with the keyboard alone. */
  async client(browser) {
    const page = await open(browser, `${at.admin}/console/`);
    await page.getByRole("figure").first().waitFor();
    const link = page.getByRole("region", { name: "Table of clients" }).getByRole("link", { name: at.client });
    await link.focus();
    await page.keyboard.press("Enter");
    const heading = page.getByRole("heading", { level: 1, name: at.client });
    await heading.waitFor();
    assert.equal(await page.evaluate(() => document.activeElement.tagName), "H1", "the focus follows the page");
    assert.match(await page.title(), new RegExp(at.client));
    await page.getByRole("heading", { name: "Given and owed" }).waitFor();
    await page.getByRole("heading", { name: "At replicas" }).waitFor();
    await page.goBack();
    await page.getByRole("heading", { name: "Who gets what" }).waitFor();
    await page.getByRole("button", { name: "Waiting" }).press("Enter");
    await page.locator('th[aria-sort="descending"]', { hasText: "Waiting" }).first().waitFor();
    await page.getByLabel("Find").fill("no such client");
    await page.getByText("No client has such a name.").waitFor();
    assert.deepEqual(page.errors, []);
  },

  /** A wrong token is refused, the right one is kept in this tab only. */
  async token(browser) {
    const page = await open(browser, `${at.admin}/console/`);
    await signIn(page, "wrong");
    await page.getByText("The router refused this token or key.").waitFor();
    await signIn(page, at.token);
    await page.getByRole("heading", { name: "Who gets what" }).waitFor();
    await page.getByRole("button", { name: "Sign out" }).waitFor();
    await page.reload();
    await page.getByRole("heading", { name: "Replicas" }).waitFor();
    const other = await open(browser, `${at.admin}/console/`);
    await other.getByLabel("Admin token or API key").waitFor();
    await page.getByRole("button", { name: "Sign out" }).click();
    await page.getByLabel("Admin token or API key").waitFor();
    // The browser itself reports each answer 401.
    assert.deepEqual(page.errors.filter((text) => !text.includes("401")), []);
  },

  /** A tenant sees its own clients, and nothing of others. */
  async tenant(browser) {
    const page = await open(browser, `${at.traffic}/console/`);
    await signIn(page, at.key);
    await page.getByRole("heading", { level: 1, name: "Tenant acme" }).waitFor();
    await page.getByRole("figure").first().waitFor();
    const text = await page.locator("body").innerText();
    assert.match(text, /acme\/chat/);
    assert.doesNotMatch(text, new RegExp(`${at.other}|Replicas|Ledger|r0`));
    assert.deepEqual(page.errors.filter((error) => !error.includes("401")), []);
  },

  /** The router restarts while the page is open. */
  async restart(browser) {
    const page = await open(browser, `${at.admin}/console/`);
    await page.getByRole("figure").first().waitFor();
    await ask("stop");
    await page.getByRole("alert").waitFor();
    assert.match(await page.getByRole("alert").textContent(), /does not answer/);
    assert.ok(await page.getByRole("figure").count(), "the last figures stay");
    await ask("start");
    await page.getByRole("alert").waitFor({ state: "detached" });
    await page.getByRole("figure").first().waitFor();
    const unexpected = page.errors.filter((text) => !/ERR_CONNECTION|ERR_EMPTY|Failed to load/.test(text));
    assert.deepEqual(unexpected, []);
  },

  /** A thousand clients: the work of the main thread for each update, by the browser's own count. */
  async many(browser) {
    const page = await open(browser, `${at.admin}/console/`);
    await page.getByRole("figure").first().waitFor();
    await tableOf(page, "clients").getByRole("button", { name: "tenant-7" }).click();
    await page.getByText("1 to 50 of 7").waitFor();
    const rows = await page.getByRole("region", { name: "Table of clients" }).locator("tbody tr").count();
    assert.equal(rows, 50);
    const session = await page.context().newCDPSession(page);
    await session.send("Performance.enable");
    const busy = async () => {
      const { metrics } = await session.send("Performance.getMetrics");
      return metrics.find(({ name }) => name === "TaskDuration").value;
    };
    let updates = 0;
    page.on("response", (response) => {
      if (new URL(response.url()).pathname === "/v1/console") updates += 1;
    });
    const begin = await busy();
    while (updates < 10) await page.waitForTimeout(100);
    await page.waitForTimeout(500);
    const figures = { clients: at.clients, updates, main_thread_ms_per_update: (1000 * ((await busy()) - begin)) / updates };
    console.log(JSON.stringify(figures));
    assert.deepEqual(page.errors, []);
  },

  /** What the page says of a client that gets too little, a replica that drains, and a condition that is true. */
  async problems(browser) {
    for (const colorScheme of ["light", "dark"]) {
      const page = await open(browser, "about:blank", { colorScheme });
      await page.route("**/v1/console", async (route) => {
        const response = await route.fetch();
        const state = await response.json();
        const last = state.clients.at(-1);
        Object.assign(state, { fair: false, level: "Unfair", verdict: "Unfair: one was given 43% of what it was owed while it waited." });
        Object.assign(last, { fair: false, tenant: "zz", client: "last", words: "Gets too little.", share: 0.1, owed: 0.4 });
        Object.assign(state.replicas[0], { routable: false, unschedulable_reason: "draining" });
        state.conditions.unshift({ alert: "EvenkeelShareSkewed", problem: true, message: "The share error is 57%.", runbook: "https://wiki.example/share-skewed.md" });
        await route.fulfill({ response, json: state });
      });
      await page.goto(`${at.admin}/console/`);
      await page.getByRole("figure").first().waitFor();
      assert.equal(await page.getByRole("status").textContent(), "The service is unfair.");
      const first = page.getByRole("region", { name: "Table of clients" }).locator("tbody tr").first();
      assert.match(await first.textContent(), /zz\/last.*Gets too little\./);
      assert.match(await page.getByRole("row", { name: /r0/ }).textContent(), /draining/);
      await page.getByRole("link", { name: "The share error is 57%." }).waitFor();
      const runbook = page.getByRole("navigation", { name: "Problems" }).getByRole("link", { name: "EvenkeelShareSkewed" });
      assert.equal(await runbook.getAttribute("href"), "https://wiki.example/share-skewed.md");
      await accessible(page, `problems, ${colorScheme}`);
      await page.route("**/v1/console", (route) => route.abort());
      await page.getByRole("alert").waitFor();
      await accessible(page, `no answer, ${colorScheme}`);
    }
  },

  /** No finding of axe, in both colour schemes and on a phone. */
  async axe(browser) {
    for (const colorScheme of ["light", "dark"]) {
      const page = await open(browser, `${at.admin}/console/`, { colorScheme });
      await page.getByRole("figure").first().waitFor();
      await page.getByText("What the figures mean").click();
      await accessible(page, `all clients, ${colorScheme}`);
      await page.getByRole("region", { name: "Table of clients" }).getByRole("link", { name: at.client }).click();
      await page.getByRole("heading", { name: "Given and owed" }).waitFor();
      await accessible(page, `one client, ${colorScheme}`);
      const unsigned = await open(browser, `${at.traffic}/console/`, { colorScheme });
      await unsigned.getByLabel("Admin token or API key").waitFor();
      await accessible(unsigned, `sign in, ${colorScheme}`);
    }
    const phone = await open(browser, `${at.admin}/console/`, PHONE);
    await phone.getByRole("figure").first().waitFor();
    await accessible(phone, "phone");
    await fades(phone);
    const wider = await phone.evaluate(() => document.documentElement.scrollWidth - innerWidth);
    assert.ok(wider <= 0, `the page is ${wider} pixels wider than a phone`);
  },

  /** The pictures of the documentation. */
  async pictures(browser) {
    const wide = { viewport: { width: 1440, height: 1420 }, deviceScaleFactor: 1 };
    const narrow = { viewport: { width: 390, height: 844 }, deviceScaleFactor: 2 };
    for (const [name, path, options] of [
      ["light", "", { ...wide, colorScheme: "light" }],
      ["dark", "", { ...wide, colorScheme: "dark" }],
      ["phone", "", { ...narrow, colorScheme: "light" }],
      ["client", `#/client/${encodeURIComponent(at.identity)}`, { ...wide, colorScheme: "light" }],
    ]) {
      const page = await open(browser, `${at.admin}/console/${path}`, options);
      await page.getByRole("figure").first().waitFor();
      await page.waitForTimeout(500);
      await page.screenshot({ path: `${at.folder}/console-${name}.png`, fullPage: name === "client" });
    }
  },
};

const browser = await chromium.launch({ executablePath: at.chromium, args: ["--no-sandbox"] });
try {
  await SCENARIOS[scenario](browser);
} finally {
  await browser.close();
  process.stdin.destroy();
}
