// What a page gains by JavaScript: a theme of the reader's own, sorting, charts that stand alone, and
// filters and comparisons that live in the address. Everything can be read without it. It asks nothing of the
// network, and keeps nothing but the theme.
"use strict";

const redline = (() => {
  const root = document.documentElement;
  // A host may serve other sites too, and storage is the host's.
  const KEPT = "redline-theme";
  const dark = matchMedia("(prefers-color-scheme: dark)");

  // A reader who forbids storage still has the theme of the system, and the button for a page.
  const kept = (change) => {
    try {
      return change(localStorage);
    } catch {
      return null;
    }
  };

  const theme = () => root.dataset.theme ?? (dark.matches ? "dark" : "light");

  function choose(wanted) {
    // A choice that the system shares is none: the page follows the system again.
    if (wanted === (dark.matches ? "dark" : "light")) {
      delete root.dataset.theme;
      kept((storage) => storage.removeItem(KEPT));
    } else {
      root.dataset.theme = wanted;
      kept((storage) => storage.setItem(KEPT, wanted));
    }
    document.dispatchEvent(new Event("theme"));
  }

  // Before the first paint, since this script stands in the head.
  const stored = kept((storage) => storage.getItem(KEPT));
  if (stored === "light" || stored === "dark") root.dataset.theme = stored;

  function themeButton() {
    const button = element("button", { type: "button", className: "theme" });
    const name = () => {
      button.textContent = theme() === "dark" ? "Light" : "Dark";
      button.setAttribute("aria-label", `${button.textContent} theme`);
    };
    button.addEventListener("click", () => choose(theme() === "dark" ? "light" : "dark"));
    document.addEventListener("theme", name);
    dark.addEventListener("change", () => document.dispatchEvent(new Event("theme")));
    name();
    document.querySelector("body > header nav")?.append(button);
  }

  function element(name, properties = {}, ...children) {
    const made = Object.assign(document.createElement(name), properties);
    made.append(...children);
    return made;
  }

  // State lives in the address as `#key=value&…`; whatever has no `=` is an anchor.
  const state = {
    read() {
      const text = location.hash.slice(1);
      return new URLSearchParams(text.includes("=") ? text : "");
    },
    get: (key) => state.read().get(key) ?? "",
    set(key, value) {
      const all = state.read();
      if (value) all.set(key, value);
      else all.delete(key);
      const text = all.toString();
      history.replaceState(null, "", text ? `#${text}` : location.pathname + location.search);
    },
  };

  /** From so many rows on, a table can be searched and its rows be compared. */
  const ROWS_TO_SEARCH = 8;

  const rows = (table) => [...table.querySelectorAll("tbody tr")];
  const keyOf = (row) => row.dataset.key ?? row.cells[0].textContent.trim();

  // Figures carry thousands, spreads and units; they sort by the number that they begin with.
  function prepare(table) {
    for (const cell of table.querySelectorAll("tbody .v, tbody .n")) {
      const text = cell.firstChild?.textContent ?? "";
      const number = Number.parseFloat(text.replace(/[,\s]/g, "").replace("\u2212", "-"));
      cell.dataset.sort ??= Number.isNaN(number) ? "" : String(number);
    }
    table.classList.add("n-last");
    for (const head of table.tHead.rows[0].cells) {
      head.tabIndex = 0;
      head.addEventListener("keydown", (event) => {
        if (event.key !== "Enter" && event.key !== " ") return;
        event.preventDefault();
        head.click();
      });
    }
  }

  function keepSorting(table, key) {
    const [column, direction] = state.get(`sort.${key}`).split(".");
    const head = table.tHead.rows[0].cells[Number.parseInt(column, 10)];
    if (head && ["ascending", "descending"].includes(direction)) {
      head.setAttribute("aria-sort", direction);
      sortSortable(table);
    }
    table.addEventListener("sort-end", () => {
      const sorted = table.tHead.querySelector("[aria-sort]");
      state.set(`sort.${key}`, `${sorted.cellIndex}.${sorted.getAttribute("aria-sort")}`);
    });
  }

  function tools(table, key) {
    const chosen = new Set(state.get(`only.${key}`).split("~").filter(Boolean));
    const words = element("input", { type: "search", value: state.get(`find.${key}`) });
    const compare = element("button", { type: "button", textContent: "Compare the chosen" });
    const count = element("output");
    let alone = chosen.size > 0;

    function show() {
      const wanted = words.value.toLowerCase().split(/\s+/).filter(Boolean);
      let shown = 0;
      for (const row of rows(table)) {
        const text = row.textContent.toLowerCase();
        const fits = alone ? chosen.has(keyOf(row)) : wanted.every((word) => text.includes(word));
        row.hidden = !fits;
        shown += fits ? 1 : 0;
      }
      count.textContent = `${shown} of ${rows(table).length}`;
      compare.disabled = chosen.size === 0;
      compare.setAttribute("aria-pressed", String(alone));
    }

    const seen = new Map();
    for (const row of rows(table)) {
      // Rows of different models may begin with the same words.
      const name = keyOf(row);
      const times = (seen.get(name) ?? 0) + 1;
      seen.set(name, times);
      const key = times > 1 ? `${name} ${times}` : name;
      row.dataset.key = key;
      const box = element("input", { type: "checkbox", checked: chosen.has(key) });
      box.setAttribute("aria-label", `choose ${key}`);
      box.addEventListener("change", () => {
        if (box.checked) chosen.add(key);
        else chosen.delete(key);
        remember();
      });
      row.cells[0].dataset.sort ??= key;
      row.cells[0].prepend(box);
    }

    function remember() {
      alone = alone && chosen.size > 0;
      state.set(`find.${key}`, words.value);
      state.set(`only.${key}`, alone ? [...chosen].join("~") : "");
      show();
    }

    words.addEventListener("input", remember);
    compare.addEventListener("click", () => {
      alone = !alone;
      remember();
    });
    const label = element("label", {}, "Find ", words);
    const box = table.closest(".scroll") ?? table;
    box.before(element("div", { className: "tools" }, label, compare, count));
    show();
  }

  /** Leaves of the page `figure` alone, for a frame on another page. */
  function embed(figure) {
    const address = `${location.pathname}#${figure.id}`;
    const source = element("a", { href: address, target: "_top", textContent: document.title });
    const main = element("main", { className: "embedded" }, figure, element("p", {}, source));
    document.body.replaceChildren(main);
  }

  function offerEmbedding() {
    for (const figure of document.querySelectorAll("figure[id]")) {
      const address = `?embed=${encodeURIComponent(figure.id)}`;
      const link = element("a", { href: address, textContent: "Alone, for a frame" });
      figure.querySelector("details > p:last-child")?.append(" ", link);
    }
  }

  /** Shows what a chart's point says while it has the focus, and at once when it is pointed at. */
  function offerTips() {
    const tip = element("div", { className: "tip", hidden: true });
    // The link itself says the same to a screen reader.
    tip.setAttribute("aria-hidden", "true");
    document.body.append(tip);
    const pointOf = (event) => event.target.closest?.(".chart a");
    const hide = () => (tip.hidden = true);
    function show(event) {
      const point = pointOf(event);
      if (!point) return;
      tip.textContent = point.textContent;
      tip.hidden = false;
      const at = point.getBoundingClientRect();
      const width = document.documentElement.clientWidth;
      const left = Math.min(at.left, width - tip.offsetWidth - 8);
      const above = at.top - tip.offsetHeight - 8;
      tip.style.left = `${Math.max(8, left) + scrollX}px`;
      tip.style.top = `${(above > 0 ? above : at.bottom + 8) + scrollY}px`;
    }
    for (const name of ["focusin", "pointerover"]) document.addEventListener(name, show);
    for (const name of ["focusout", "pointerout"]) document.addEventListener(name, hide);
    document.addEventListener("keydown", (event) => event.key === "Escape" && hide());
  }

  document.addEventListener("DOMContentLoaded", () => {
    offerEmbedding();
    offerTips();
    const wanted = new URLSearchParams(location.search).get("embed");
    const figure = wanted && document.getElementById(wanted);
    if (figure) embed(figure);
    else themeButton();
    document.querySelectorAll("table.sortable").forEach((table, index) => {
      prepare(table);
      const key = table.id || `t${index + 1}`;
      // A frontier has tools of its own, and a few rows are seen at a glance.
      const long = rows(table).length >= ROWS_TO_SEARCH && !table.matches(".frontier");
      if (long) tools(table, key);
      keepSorting(table, key);
    });
  });

  return { element, state, rows, theme };
})();
