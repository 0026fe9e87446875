// Ask the site's own search what readers ask: node docs/site/search.mjs SITE
// Each question must lead to its page among the first three hits.
import { readFileSync, readdirSync } from "node:fs";

const [SETUP, READY, QUERY, RESULT] = [0, 1, 2, 3];
const site = process.argv[2];
const workers = `${site}/assets/javascripts/workers/`;
const questions = JSON.parse(readFileSync(new URL("questions.json", import.meta.url)));

// The browser's worker talks to a page by these names.
const waiting = [];
const listeners = [];
globalThis.self = globalThis;
globalThis.location = new URL("http://localhost/" + workers);
globalThis.addEventListener = (kind, listener) => listeners.push(listener);
globalThis.postMessage = (message) => waiting.shift()(message);
const ask = (type, data) =>
  new Promise((answer) => {
    waiting.push(answer);
    listeners.forEach((listener) => listener({ data: { type, data } }));
  });

const name = readdirSync(workers).find((file) => file.startsWith("search.") && file.endsWith(".js"));
(0, eval)(readFileSync(workers + name, "utf8"));
const index = JSON.parse(readFileSync(`${site}/search/search_index.json`));
await ask(SETUP, { ...index, options: { suggest: false } });

let missed = 0;
for (const [question, page] of Object.entries(questions)) {
  const { data } = await ask(QUERY, question);
  const found = data.items.slice(0, 3).map((hits) => hits[0].location);
  if (!found.some((location) => location.startsWith(page))) {
    missed += 1;
    console.error(`the search for "${question}" must find ${page} among the first three, not ${found.join(", ") || "nothing"}`);
  }
}
// In words of people who had not read the page of forty questions: how many find their answer, or its page, first.
let first = 0;
let asked = 0;
for (const [answer, wordings] of Object.entries(JSON.parse(readFileSync(new URL("wordings.json", import.meta.url))))) {
  for (const wording of wordings) {
    const { data } = await ask(QUERY, wording);
    asked += 1;
    first += data.items.length > 0 && data.items[0][0].location === `docs/questions.html#${answer}`;
  }
}
console.log(`${first} of ${asked} wordings find their answer first`);
console.log(`${Object.keys(questions).length - missed} of ${Object.keys(questions).length} questions find their page`);
process.exit(missed ? 1 : 0);
