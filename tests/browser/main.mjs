// Checks in a real browser what a reader of the results site is promised. Works on a site that is
// already served, and must not know how it is made.
//
// usage: node main.mjs ADDRESS FOLDER BROWSER   (FOLDER takes the screenshots)
import { mkdir, rm } from "node:fs/promises";
import { chromium } from "playwright-core";
import * as crawl from "./crawl.mjs";
import { everyPage } from "./looks.mjs";
import { map } from "./map.mjs";
import * as ways from "./ways.mjs";

const [address, folder, executablePath] = process.argv.slice(2);
if (!executablePath) {
  console.error("usage: node main.mjs ADDRESS FOLDER BROWSER");
  process.exit(2);
}
await rm(folder, { recursive: true, force: true });
await mkdir(folder, { recursive: true });

// Some machines cannot give the browser a sandbox. It is not needed: all pages are our own.
const browser = await chromium.launch({ executablePath, args: ["--no-sandbox"] });
const faults = [];

/** Opens a page in a context of its own and records script errors and requests to other hosts. */
async function open(options = {}) {
  const context = await browser.newContext({ viewport: { width: 1280, height: 900 }, ...options });
  const page = await context.newPage();
  page.on("pageerror", (error) => faults.push(`${page.url()}: ${error.message}`));
  page.on("console", (message) => {
    if (message.type() === "error") faults.push(`${page.url()}: ${message.text()}`);
  });
  page.on("request", (request) => {
    const url = request.url();
    if (!url.startsWith(address) && !url.startsWith("data:"))
      faults.push(`${page.url()} asks ${url}`);
  });
  return page;
}

const site = await map(address);
const claims = [
  ["every kind of page looks right, wide and narrow, light and dark", everyPage],
  ...[crawl, ways].flatMap(Object.entries).map(([name, way]) => [name.replaceAll("_", " "), way]),
];
let failed = 0;
for (const [claim, hold] of claims) {
  const start = performance.now();
  const before = faults.length;
  let fault = null;
  // A claim about something that these records lack reports that, and passes.
  let without;
  try {
    without = await hold({ open, site, address, folder });
  } catch (error) {
    fault = error.message;
  }
  const noted = [fault, ...faults.slice(before)].filter(Boolean);
  const seconds = ((performance.now() - start) / 1000).toFixed(1);
  console.log(`${noted.length === 0 ? "ok" : "NOT OK"}: ${claim} (${seconds} s)`);
  if (without) console.log(`  not looked at: ${without}`);
  for (const line of noted) console.log(`  ${line}`);
  failed += noted.length === 0 ? 0 : 1;
}
await browser.close();
process.exit(failed === 0 ? 0 : 1);
