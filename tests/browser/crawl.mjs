// Crawl of the whole site: links and anchors of every page, and how every page but those of single
// runs fits a phone and a desk. Pages of single runs come from one template: some of them stand for
// all.
import assert from "node:assert/strict";

const WIDTHS = [1280, 390];
/** Number of pages of single runs that are opened; links are followed on all of them. */
const RUNS_OPENED = 12;
const AT_ONCE = 4;

/** Paths of all pages of the site, each with its HTML, by following every link from the start. */
async function everyPage(address) {
  const pages = new Map([["index.html", null]]);
  const waiting = ["index.html"];
  const read = async () => {
    for (let path = waiting.pop(); path !== undefined; path = waiting.pop()) {
      const response = await fetch(address + path);
      const html = await response.text();
      pages.set(path, { path, html, ids: ids(html), isFound: response.ok });
      for (const { to } of links(address, path, html)) {
        if (!to.endsWith(".html") || pages.has(to)) continue;
        pages.set(to, null);
        waiting.push(to);
      }
    }
  };
  // A reader that finds nothing to do ends, so the first one reads the start page alone.
  await read();
  return pages;
}

/** Links of a page to places on the same site, each as path and anchor. */
function links(address, path, html) {
  const found = [];
  for (const [, href] of html.matchAll(/<(?:a|link|script|img)\b[^>]*?(?:href|src)="([^"]*)"/g)) {
    const url = new URL(href.replaceAll("&amp;", "&"), address + path);
    if (!url.href.startsWith(address)) continue;
    const to = decodeURI(url.href.slice(address.length).split("#")[0]);
    found.push({ to, anchor: decodeURIComponent(url.hash.slice(1)) });
  }
  return found;
}

const ids = (html) => new Set([...html.matchAll(/\bid="([^"]*)"/g)].map(([, id]) => id));

export async function no_link_and_no_anchor_of_any_page_is_broken({ address }) {
  const pages = await everyPage(address);
  const files = new Map();
  const isThere = async (path) => {
    if (pages.has(path)) return pages.get(path).isFound;
    if (!files.has(path)) files.set(path, (await fetch(address + path, { method: "HEAD" })).ok);
    return files.get(path);
  };
  const broken = [];
  let followed = 0;
  for (const { path, html } of pages.values()) {
    for (const { to, anchor } of links(address, path, html)) {
      followed += 1;
      if (!(await isThere(to))) broken.push(`${path} links to ${to}`);
      // Scripts keep what a reader chose behind the `#`.
      const isState = anchor.includes("=");
      if (anchor && !isState && pages.has(to) && !pages.get(to).ids.has(anchor))
        broken.push(`${path} links to ${to}#${anchor}`);
    }
  }
  assert(followed > pages.size && pages.size > 20, `${followed} links on ${pages.size} pages`);
  assert.deepEqual([...new Set(broken)].slice(0, 40), []);
}

/** What a page shows at the window's width: overflow, tables without a cue, answers out of sight. */
function shown() {
  const faults = [];
  const over = document.scrollingElement.scrollWidth - innerWidth;
  if (over > 0) faults.push(`is ${over} pixels too wide`);
  for (const table of document.querySelectorAll("main table")) {
    if (!table.checkVisibility()) continue;
    const box = table.closest(".scroll");
    const name = box?.getAttribute("aria-label") ?? table.caption?.textContent ?? "a table";
    const room = (box ?? table.parentElement).clientWidth;
    if (table.getBoundingClientRect().width <= room + 1) continue;
    const hasCue = box && getComputedStyle(box).backgroundImage.includes("gradient");
    if (!hasCue) faults.push(`${name}: is ${table.offsetWidth} wide in ${room}, without a cue`);
    if (!box || box.tabIndex < 0) faults.push(`${name}: cannot be scrolled by keyboard`);
  }
  const isInSight = (node) => node.getBoundingClientRect().right <= innerWidth + 1;
  for (const part of ["engine", "figure"]) {
    const nodes = document.querySelectorAll(`table.picks td [data-part="${part}"], .pick [data-part="${part}"]`);
    const hidden = [...nodes].filter((node) => node.checkVisibility() && !isInSight(node));
    if (hidden.length > 0)
      faults.push(`${hidden.length} picks: ${part} is out of sight, first ${hidden[0].textContent}`);
  }
  for (const head of document.querySelectorAll('table.summary th[title="output_tokens_per_s"]')) {
    if (head.checkVisibility() && !isInSight(head)) faults.push("output tokens/s is out of sight");
  }
  return faults;
}

export async function every_page_fits_a_phone_and_a_desk({ open, address }) {
  const all = [...(await everyPage(address)).keys()].sort();
  const isRun = (path) => path.startsWith("run/");
  const runs = all.filter(isRun);
  const step = Math.max(1, Math.floor(runs.length / RUNS_OPENED));
  const some = runs.filter((_, index) => index % step === 0);
  const waiting = [...all.filter((path) => !isRun(path)), ...some];
  const faults = [];
  const opened = waiting.length;
  const look = async () => {
    const page = await open();
    for (let path = waiting.pop(); path !== undefined; path = waiting.pop()) {
      await page.goto(address + path);
      for (const width of WIDTHS) {
        await page.setViewportSize({ width, height: 844 });
        for (const fault of await page.evaluate(shown)) faults.push(`${path} at ${width}: ${fault}`);
      }
    }
    await page.context().close();
  };
  await Promise.all(Array.from({ length: AT_ONCE }, look));
  assert(opened > 20, `${opened} pages`);
  assert.deepEqual(faults.sort().slice(0, 60), [], `${faults.length} faults on ${opened} pages`);
}
