// Ways through the site: by clicks, by keyboard only, without scripts, on paper. The name of each
// function is the claim that it checks.
import assert from "node:assert/strict";
import { stat } from "node:fs/promises";
import { join } from "node:path";
import { samples } from "./map.mjs";

/** Texts that a page must contain to answer a question. */
const QUESTIONS = {
  "fastest engine for Qwen3-8B on A100?": [
    /qwen3-8b/i,
    /a100/i,
    /lmdeploy/i,
    /sglang/i,
    /vllm/i,
    /n=1/,
  ],
  "did the release get slower?": [/redline v[\d.]+ to v[\d.]+/, /verdict/i, /minimum effect/i],
  "what did they run exactly?": [/redline serve/, /redline-bench/, /effective configuration/i],
  "can I trust this number?": [/<h2 id="checks">Checks/, /SHA-256/, /provenance|record/i],
  "how do I run it myself?": [/cargo xtask release-bench v/],
};

const words = (html) => html.replace(/^.*?<main/s, "").replace(/<footer.*$/s, "");

export async function the_five_questions_are_answered_within_two_clicks({ open, site, address }) {
  for (const [question, evidence] of Object.entries(QUESTIONS)) {
    const answer = site.find(
      ({ html, way }) => way.length <= 2 && evidence.every((e) => e.test(words(html))),
    );
    assert(answer, `no page within two clicks answers: ${question}`);
    const page = await open();
    await page.goto(address);
    for (const href of answer.way) {
      const links = await page.$$("a");
      const addresses = await Promise.all(
        links.map((link) => link.evaluate((a) => a.href.split("#")[0])),
      );
      await links[addresses.indexOf(href)].click();
      await page.waitForURL((url) => url.href.startsWith(href));
    }
    assert(await page.locator("main h1").isVisible(), question);
    await page.context().close();
  }
}

export async function the_theme_is_the_systems_until_the_reader_chooses({ open, address }) {
  const page = await open({ colorScheme: "dark" });
  await page.goto(address);
  const paper = () => page.evaluate(() => getComputedStyle(document.body).backgroundColor);
  const dark = await paper();
  await page.click(".theme");
  const light = await paper();
  assert.notEqual(light, dark);
  await page.goto(`${address}method/index.html`);
  assert.equal(await paper(), light, "the choice goes along to the next page");
  await page.click(".theme");
  assert.equal(await paper(), dark);
  assert.equal(
    await page.evaluate(() => localStorage.length),
    0,
    "the system's theme is no choice",
  );
  await page.context().close();
}

export async function keys_alone_lead_everywhere({ open, site, address }) {
  const page = await open();
  await page.goto(address);
  const focused = (read) => page.evaluate(read);
  await page.keyboard.press("Tab");
  assert.equal(await focused(() => document.activeElement.className), "skip");
  await page.keyboard.press("Enter");
  assert.equal(await focused(() => document.activeElement.id), "main");
  for (let tries = 0; tries < 40; tries += 1) {
    await page.keyboard.press("Tab");
    const outline = await focused(() => getComputedStyle(document.activeElement).outlineStyle);
    assert.notEqual(
      outline,
      "none",
      `focus is not seen on ${await focused(() => document.activeElement.outerHTML)}`,
    );
    if (await focused(() => document.activeElement.matches("main a[href]"))) break;
  }
  const target = await focused(() => document.activeElement.href);
  assert(target, "Tab reaches a link of the page");
  await page.keyboard.press("Enter");
  await page.waitForURL((url) => url.href === target);
  const sortable = site.find(({ html }) => /<table[^>]*class="[^"]*sortable/.test(html));
  await page.goto(address + sortable.path);
  // Tables of charts are folded until they are opened.
  await page.evaluate(() =>
    document.querySelectorAll("details").forEach((fold) => (fold.open = true)),
  );
  const head = page.locator("table.sortable thead th").first();
  await head.focus();
  await page.keyboard.press("Enter");
  await page.waitForFunction(
    () => document.querySelector("th[aria-sort]") && location.hash.includes("sort."),
  );
  const order = () => page.locator("table.sortable").first().locator("tbody th").allTextContents();
  const sorted = await order();
  await page.reload();
  assert.deepEqual(await order(), sorted, "the order stands in the address");
  await page.context().close();
}

export async function nothing_is_missing_without_scripts({ open, site, address }) {
  const [bare, whole] = [await open({ javaScriptEnabled: false }), await open()];
  for (const { path } of samples(site).filter(({ kind }) => kind !== "explore")) {
    const read = async (page) => {
      await page.goto(address + path);
      const cells = await page.locator("main td, main th").allTextContents();
      return cells.map((text) => text.trim()).sort();
    };
    const [without, withScripts] = [await read(bare), await read(whole)];
    for (const text of withScripts.filter((text) => !without.includes(text))) {
      // Cells that scripts fill stay empty until the reader chooses something.
      assert(
        ["", "-"].includes(text) || /^Cost /.test(text),
        `${path} lacks \`${text}\` without scripts`,
      );
    }
    assert(without.length <= withScripts.length, `${path}: scripts take something away`);
    assert.equal(
      await bare.locator(".theme, .tools").count(),
      0,
      `${path} offers what cannot work`,
    );
  }
  await Promise.all([bare.context().close(), whole.context().close()]);
}

/** Width of an A4 page within the browsers' default margins, in CSS pixels. */
const PAPER_WIDTH = 718;

export async function every_kind_of_page_prints_on_white_within_the_paper({
  open,
  site,
  address,
  folder,
}) {
  const viewport = { width: PAPER_WIDTH, height: 1000 };
  const page = await open({ colorScheme: "dark", viewport });
  for (const { path, kind } of samples(site)) {
    await page.emulateMedia({ media: "print" });
    await page.goto(address + path);
    const found = await page.evaluate(() => ({
      paper: getComputedStyle(document.body).backgroundColor,
      over: document.scrollingElement.scrollWidth - innerWidth,
      folded: [...document.querySelectorAll("main > details, section > details")].filter(
        (fold) => fold.lastElementChild.getBoundingClientRect().height === 0,
      ).length,
    }));
    assert.deepEqual(found, { paper: "rgb(255, 255, 255)", over: 0, folded: 0 }, path);
    assert(!(await page.locator("body > header nav").isVisible()), path);
    assert(await page.locator("main h1").isVisible(), path);
    const pdf = join(folder, `${kind}.pdf`);
    await page.pdf({ path: pdf, format: "A4", margin: { left: "10mm", right: "10mm" } });
    assert((await stat(pdf)).size > 10_000, `${path}: the paper is not empty`);
  }
  await page.context().close();
}

export async function a_chart_stands_alone_in_a_frame_of_another_page({ open, site, address }) {
  const charted = site.find(({ html }) => html.includes("<figure id="));
  const page = await open();
  await page.goto(address + charted.path);
  // A forest plot is a table already, and has none to unfold.
  const figure = page.locator("figure:has(summary)").first();
  await figure.locator("summary").click();
  const alone = await figure.getByText("Alone, for a frame").evaluate((link) => link.href);
  const other = await open();
  await other.setContent(`<iframe src="${alone}" width="400" height="500"></iframe>`);
  const frame = other.frameLocator("iframe");
  await frame.locator("figure .panels > svg").first().waitFor();
  assert.equal(await frame.locator("figure").count(), 1);
  assert.equal(await frame.locator("body > header, body > footer, h1").count(), 0);
  const source = await frame.locator("a[target=_top]").evaluate((link) => link.href);
  assert(source.startsWith(address + charted.path.replace("index.html", "")), source);
  await page.goto(source);
  assert(await page.locator(`figure[id="${new URL(source).hash.slice(1)}"]`).isVisible());
  await Promise.all([page.context().close(), other.context().close()]);
}

export async function a_point_of_a_trend_leads_to_its_run({ open, site, address }) {
  const isTrend = ({ path, html }) => path.startsWith("trend/") && /<svg[^>]*role="group"/.test(html);
  const trend = site.find(isTrend);
  if (!trend) return "no series has two releases";
  const page = await open();
  await page.goto(address + trend.path);
  const point = page.locator("svg a").first();
  const name = await point.textContent();
  await point.click();
  await page.waitForURL(/\/run\//);
  const release = name.split(":")[0];
  assert((await page.locator("main").textContent()).includes(release), name);
  await page.context().close();
}

export async function the_figures_of_a_chart_can_be_saved({ open, site, address }) {
  const charted = site.find(({ html }) => html.includes("data:text/csv"));
  const page = await open();
  await page.goto(address + charted.path);
  const link = page.locator('a[href^="data:text/csv"]').first();
  await link.evaluate((a) => (a.closest("details").open = true));
  const [download] = await Promise.all([page.waitForEvent("download"), link.click()]);
  assert.match(download.suggestedFilename(), /^[a-z0-9-]+\.csv$/);
  const text = (await (await download.createReadStream()).toArray()).join("");
  assert(text.split("\r\n").length > 2, text);
  await page.context().close();
}

export async function the_explorer_draws_what_is_chosen_and_keeps_it_in_the_address({
  open,
  address,
  folder,
}) {
  const page = await open();
  await page.goto(`${address}explore/index.html`);
  await page.waitForSelector(".uplot canvas");
  const all = await page.locator("#explorer tbody tr").count();
  assert(all > 1, "runs are listed");
  const engines = page.locator(".tools select").nth(3);
  // Imported records have no time of measurement, so only Redline is drawn over time.
  const engine = "redline";
  await engines.selectOption(engine);
  await page.waitForFunction((engine) => location.hash.includes(`engine=${engine}`), engine);
  const some = await page.locator("#explorer tbody tr").count();
  assert(some > 0 && some <= all, `${some} of ${all}`);
  await page.reload();
  await page.waitForSelector("#explorer tbody tr");
  assert.equal(await engines.inputValue(), engine);
  await page.screenshot({ path: join(folder, "explore-chosen.png"), fullPage: true });
  await page.context().close();
}

export async function a_long_table_is_searched_and_its_rows_are_compared({ open, site, address }) {
  const long = site.find(({ html }) =>
    [...html.matchAll(/<table class="sortable">.*?<\/table>/gs)].some(
      ([table]) => table.split("<tr").length > 10,
    ),
  );
  if (!long) return "no table is long enough";
  const page = await open();
  await page.goto(address + long.path);
  await page.evaluate(() =>
    document.querySelectorAll("details").forEach((fold) => (fold.open = true)),
  );
  const tools = page.locator(".tools").first();
  const table = page.locator(".tools + .scroll table").first();
  const shown = () => table.locator("tbody tr:visible").count();
  const all = await shown();
  await tools.locator("input").fill("no row says this");
  assert.equal(await shown(), 0);
  await tools.locator("input").fill("");
  for (const row of [0, 1]) await table.locator("tbody tr").nth(row).locator("input").check();
  await tools.locator("button").click();
  assert.equal(await shown(), 2);
  const words = await table.locator("tbody tr:visible").allTextContents();
  await page.reload();
  await page.evaluate(() =>
    document.querySelectorAll("details").forEach((fold) => (fold.open = true)),
  );
  assert.deepEqual(await table.locator("tbody tr:visible").allTextContents(), words);
  await tools.locator("button").click();
  assert.equal(await shown(), all);
  await page.context().close();
}

export async function a_price_of_the_readers_own_makes_costs({ open, site, address }) {
  const frontier = site.find(({ html }) => /<table class="[^"]*frontier/.test(html));
  if (!frontier) return "no model has a frontier";
  const page = await open();
  await page.goto(address + frontier.path);
  assert.equal(await page.locator("td.cost:visible").count(), 0, "no price, no cost");
  await page.locator('.tools input[type="number"]').fill("3.6");
  const row = page.locator("table.frontier tbody tr:visible").first();
  const rate = Number(await row.getAttribute("data-tokens-per-s"));
  const cost = Number(await row.locator("td.cost").textContent());
  assert(Math.abs(cost / (1000 / rate) - 1) < 0.01, `${cost} at ${rate} tokens/s`);
  const before = await page.locator("table.frontier tbody tr:visible").count();
  const limit = page.locator('.tools input[type="range"]');
  await limit.fill(await limit.getAttribute("max"));
  const after = await page.locator("table.frontier tbody tr:visible").count();
  assert(after < before || before === 1, `${after} of ${before} rows are left`);
  await page.reload();
  assert.equal(await page.locator("table.frontier tbody tr:visible").count(), after);
  assert.equal(await page.locator('.tools input[type="number"]').inputValue(), "3.6");
  await page.context().close();
}

export async function the_picker_shows_the_row_that_is_chosen({ open, address }) {
  const page = await open();
  await page.goto(address);
  const card = page.locator("#picker");
  const rows = page.locator("table.picks tbody tr");
  for (const index of [(await rows.count()) - 1, 0]) {
    const row = rows.nth(index);
    for (const key of ["model", "hardware", "load"]) {
      const wanted = await row.getAttribute(`data-${key}`);
      await card.locator(`select[name=${key}]`).selectOption(wanted);
    }
    const part = (from, name) => from.locator(`[data-part=${name}]`).textContent();
    for (const name of ["engine", "figure", "lead", "evidence"]) {
      assert.equal(await part(card, name), await part(row, name), name);
    }
    const shown = await card.locator(".pick").textContent();
    await page.reload();
    assert.equal(await card.locator(".pick").textContent(), shown, "the choice is in the address");
  }
  assert(await card.getByRole("button", { name: "Copy" }).isVisible());
  await page.context().close();
}

/** Smallest size of a letter in a chart, in CSS pixels. */
const LETTER_MIN = 11;

export async function a_chart_fills_its_column_and_its_text_is_never_scaled({ open, site, address }) {
  const page = await open();
  for (const { path } of samples(site).filter(({ html }) => html.includes('class="panels"'))) {
    await page.goto(address + path);
    for (const width of [1280, 390]) {
      await page.setViewportSize({ width, height: 900 });
      const wrong = await page.evaluate((least) => {
        const charts = [...document.querySelectorAll(".panels > svg.chart, .forest svg.chart")];
        const faults = [];
        for (const chart of charts) {
          const own = chart.getBoundingClientRect();
          const column = chart.closest(".panels > *, td, th").parentElement.getBoundingClientRect();
          if (own.right > innerWidth || own.width > column.width + 1) faults.push("too wide");
          for (const text of chart.querySelectorAll("text")) {
            const size = Number.parseFloat(getComputedStyle(text).fontSize);
            const scale = text.getScreenCTM().a;
            if (size * scale < least) faults.push(`${text.textContent}: ${size * scale} px`);
            const box = text.getBoundingClientRect();
            if (box.left < 0 || box.right > innerWidth) faults.push(`${text.textContent} is cut`);
          }
        }
        for (const panels of document.querySelectorAll(".panels")) {
          const charts = panels.querySelectorAll(":scope > svg");
          const filled = charts.length > 1 || charts[0].getBoundingClientRect().width >= panels.clientWidth - 1;
          if (!filled) faults.push("a single drawing does not fill its figure");
        }
        return faults;
      }, LETTER_MIN);
      assert.deepEqual(wrong, [], `${path} at ${width}`);
    }
  }
  await page.context().close();
}

export async function a_point_of_a_chart_says_what_it_is_when_the_keyboard_reaches_it({
  open,
  site,
  address,
}) {
  const charted = site.find(({ path, html }) => /^(frontier|trend)\//.test(path) && /role="group"/.test(html));
  if (!charted) return "no chart has points";
  const page = await open();
  await page.goto(address + charted.path);
  const point = page.locator(".chart a").first();
  await point.focus();
  const tip = page.locator(".tip");
  await tip.waitFor({ state: "visible" });
  assert.match(await tip.textContent(), /n = \d/);
  await page.keyboard.press("Escape");
  await tip.waitFor({ state: "hidden" });
  await page.context().close();
}
