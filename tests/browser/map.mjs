// Finds the pages of a site as a reader does: by links from the start page.

/** Largest number of clicks from the start page; a reader is promised an answer within two. */
const CLICKS_MAX = 3;
const PAGES_MAX = 400;

/** Kind of a page, by its address: pages of one kind come from one template. */
export function kind(path) {
  const parts = path.split("/").slice(0, -1);
  const [first = "start"] = parts;
  // In these folders the depth of a page determines its kind.
  return ["r", "imports", "trend"].includes(first) ? `${first}-${parts.length}` : first;
}

/** All pages within reach, each with its path, its HTML, and the links that lead to it. */
export async function map(address) {
  const pages = new Map([["index.html", { path: "index.html", way: [] }]]);
  for (const page of pages.values()) {
    page.html = await (await fetch(address + page.path)).text();
    page.kind = kind(page.path);
    if (page.way.length === CLICKS_MAX) continue;
    for (const [, href] of page.html.matchAll(/<a [^>]*?href="([^"#]+)[^"]*"/g)) {
      const url = new URL(href, address + page.path);
      const path = decodeURI(url.href.slice(address.length));
      if (!url.href.startsWith(address) || !path.endsWith(".html") || pages.has(path)) continue;
      if (pages.size < PAGES_MAX) pages.set(path, { path, way: [...page.way, url.href] });
    }
  }
  return [...pages.values()];
}

/** The largest page of each kind, since layout problems show there first. */
export function samples(site) {
  const largest = new Map();
  for (const page of site) {
    const known = largest.get(page.kind);
    if (!known || page.html.length > known.html.length) largest.set(page.kind, page);
  }
  return [...largest.values()];
}
