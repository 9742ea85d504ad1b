// Asks the search of a built site, with the worker that its pages run: `node site_search.mjs SITE` reads a JSON list of queries
// from stdin and writes, for each, the paths of the pages found, the best one first.
import { readFileSync, readdirSync } from "node:fs";
import vm from "node:vm";

const site = process.argv[2];
const folder = `${site}/assets/javascripts/workers`;
const worker = readdirSync(folder).find((name) => /^search\..*\.js$/.test(name));
const { config, docs } = JSON.parse(readFileSync(`${site}/search/search_index.json`, "utf8"));
const page = readFileSync(`${site}/index.html`, "utf8");
const { features } = JSON.parse(/<script id="__config" type="application\/json">(.*?)<\/script>/s.exec(page)[1]);

let receive;
let answered;
const context = vm.createContext({
  console,
  addEventListener: (_, handler) => (receive = handler),
  postMessage: (message) => answered(message),
});
context.self = context;
vm.runInContext(readFileSync(`${folder}/${worker}`, "utf8"), context);

// Types of messages: 0 sets the index up, 2 is a query (src/templates/assets/javascripts/integrations/search/worker of the theme).
function ask(type, data) {
  return new Promise((resolve) => {
    answered = resolve;
    receive({ data: { type, data } });
  });
}

await ask(0, { config, docs, options: { suggest: features.includes("search.suggest") } });
const found = [];
for (const query of JSON.parse(readFileSync(0, "utf8"))) {
  const { data } = await ask(2, query);
  found.push(data.items.map((sections) => sections[0].location.split("#")[0]));
}
console.log(JSON.stringify(found));
