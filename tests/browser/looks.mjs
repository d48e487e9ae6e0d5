// Appearance of the pages: narrow and wide windows, both themes, assistive technology.
import { readFile } from "node:fs/promises";
import { createRequire } from "node:module";
import { join } from "node:path";
import { samples } from "./map.mjs";

const axe = await readFile(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
const WIDTHS = [1280, 390];
// Themes, and the rules of axe for each: a theme changes colors alone, while a width also shows other
// parts of a page.
const THEMES = { light: {}, dark: { runOnly: ["color-contrast", "link-in-text-block"] } };

export async function everyPage({ open, site, address, folder }) {
  const page = await open();
  const wrong = [];
  for (const { path, kind } of samples(site)) {
    await page.goto(address + path);
    await page.evaluate(axe);
    for (const width of WIDTHS) {
      await page.setViewportSize({ width, height: 900 });
      const over = await page.evaluate(() => document.scrollingElement.scrollWidth - innerWidth);
      if (over > 0) wrong.push(`${path} at ${width} is ${over} pixels too wide`);
      for (const [colorScheme, rules] of Object.entries(THEMES)) {
        await page.emulateMedia({ colorScheme });
        const options = { resultTypes: ["violations"], ...rules };
        const found = await page.evaluate((options) => axe.run(document, options), options);
        for (const { id, nodes } of found.violations) {
          const where = nodes.slice(0, 3).map((node) => node.html.slice(0, 160));
          wrong.push(`${path} at ${width}, ${colorScheme}: ${id}: ${where.join(" | ")}`);
        }
        const picture = join(folder, `${kind}-${width}-${colorScheme}`);
        await page.screenshot({ path: `${picture}.png`, fullPage: true });
        if (kind === "start") await page.screenshot({ path: `${picture}-top.png` });
      }
    }
  }
  await page.context().close();
  if (wrong.length > 0) throw new Error(wrong.join("\n  "));
}
