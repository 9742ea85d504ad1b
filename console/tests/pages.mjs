// Pages of the console in a browser, for all scenarios.

export const DEADLINE_MS = 30_000;
export const WIDE = { viewport: { width: 1440, height: 1000 } };
export const PHONE = { viewport: { width: 390, height: 844 } };

/** A page whose errors and requests are recorded. */
export async function open(browser, url, options = {}) {
  const context = await browser.newContext({ ...WIDE, ...options });
  const page = await context.newPage();
  page.setDefaultTimeout(DEADLINE_MS);
  page.errors = [];
  page.hosts = new Set();
  page.on("console", (message) => {
    if (message.type() === "error") page.errors.push(message.text());
  });
  page.on("pageerror", (error) => page.errors.push(String(error)));
  page.on("request", (request) => page.hosts.add(new URL(request.url()).host));
  await page.goto(url);
  return page;
}

/** What `evaluate` returns in the page, once it is true. */
export async function until(page, evaluate, argument) {
  const handle = await page.waitForFunction(evaluate, argument, { timeout: DEADLINE_MS });
  return handle.jsonValue();
}

export async function signIn(page, key) {
  await page.getByLabel("Admin token or API key").fill(key);
  await page.getByRole("button", { name: "Open" }).click();
}

export const tableOf = (page, what) => page.getByRole("region", { name: `Table of ${what}` });
