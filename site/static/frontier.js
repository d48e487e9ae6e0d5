// The frontier at the reader's own price and limit: a column of costs, and rows that are too slow
// put away. Works on each `table.frontier` whose rows carry `data-tokens-per-s` (of one GPU) and
// `data-speed` (tokens a second of one user); price and limit live in the address.
"use strict";

document.addEventListener("DOMContentLoaded", () => {
  const { element, state, rows } = redline;
  const tables = [...document.querySelectorAll("table.frontier")];
  if (tables.length === 0) return;

  const number = (text) => {
    const value = Number.parseFloat(text);
    return Number.isFinite(value) && value > 0 ? value : null;
  };
  const every = tables.flatMap(rows);
  const fastest = Math.ceil(Math.max(1, ...every.map((row) => number(row.dataset.speed) ?? 0)));

  const price = element("input", {
    type: "number",
    min: "0",
    step: "any",
    inputMode: "decimal",
    value: number(state.get("price")) ?? "",
  });
  const limit = element("input", {
    type: "range",
    min: "0",
    max: String(fastest),
    step: String(Math.max(1, Math.round(fastest / 100))),
    value: number(state.get("speed")) ?? 0,
  });
  const limitShown = element("output");
  const said = element("p", { className: "key" });
  said.setAttribute("role", "status");

  // Three digits: the price is the reader's, the throughput's own noise is some percent.
  const money = (value) => (value >= 1000 ? Math.round(value).toString() : value.toPrecision(3));

  for (const table of tables) {
    const head = element("th", { scope: "col", className: "n cost", hidden: true });
    head.append("Cost ", element("small", {}, "per 1M tokens"));
    table.tHead.rows[0].append(head);
    for (const row of rows(table)) {
      row.append(element("td", { className: "n cost", hidden: true }));
    }
  }

  function show() {
    const hourly = number(price.value);
    const slowest = number(limit.value) ?? 0;
    let kept = 0;
    for (const table of tables) {
      table.querySelectorAll(".cost").forEach((cell) => (cell.hidden = hourly === null));
      let cheapest = null;
      for (const row of rows(table)) {
        const rate = number(row.dataset.tokensPerS);
        const fits = (number(row.dataset.speed) ?? 0) >= slowest;
        const cell = row.querySelector("td.cost");
        const cost = hourly === null || rate === null ? null : (hourly * 1e6) / (rate * 3600);
        cell.textContent = cost === null ? "-" : money(cost);
        cell.dataset.sort = cost ?? "";
        row.hidden = !fits;
        row.classList.remove("cheapest");
        if (!fits) continue;
        kept += 1;
        if (cost !== null && (cheapest === null || cost < cheapest.cost)) cheapest = { row, cost };
      }
      cheapest?.row.classList.add("cheapest");
    }
    limitShown.textContent = `${slowest} tokens/s`;
    said.textContent = `${kept} of ${every.length} rows are at least that fast.`;
  }

  for (const [key, input] of [
    ["price", price],
    ["speed", limit],
  ]) {
    input.addEventListener("input", () => {
      state.set(key, number(input.value) === null ? "" : input.value);
      show();
    });
  }

  const first = tables[0].closest(".scroll") ?? tables[0];
  const tools = element(
    "div",
    { className: "tools" },
    element("label", {}, "Your price of a GPU-hour ", price),
    element("label", {}, "Each user gets at least ", limit),
    limitShown,
  );
  const place = document.querySelector("[data-frontier-tools]") ?? first;
  place.before(tools, said);
  show();
});
