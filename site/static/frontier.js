// The frontier at the reader's own price and limit: a column of costs, and rows that are too slow
// put away. Works on each `table.frontier` whose rows carry `data-tokens-per-s` (of one GPU) and
// `data-speed` (tokens a second of one user); price and limit live in the address.
"use strict";

(() => {
  const { element, state, rows } = redline;

  const positive = (text) => {
    const value = Number.parseFloat(text);
    return Number.isFinite(value) && value > 0 ? value : null;
  };

  // Three digits: the price is the reader's, and the throughput's own noise is some percent.
  const money = (value) => (value >= 1000 ? Math.round(value).toString() : value.toPrecision(3));

  /** Gives `table` its column of costs, hidden until there is a price. */
  function addColumn(table) {
    const head = element("th", { scope: "col", className: "n cost", hidden: true });
    head.append("Cost ", element("small", {}, "per 1M tokens"));
    table.tHead.rows[0].append(head);
    for (const row of rows(table)) {
      row.append(element("td", { className: "n cost", hidden: true }));
    }
  }

  /** Shows what serves each user at least `slowest` tokens a second; tells how many rows do. */
  function price(table, hourly, slowest) {
    for (const cell of table.querySelectorAll(".cost")) cell.hidden = hourly === null;
    let cheapest = null;
    let kept = 0;
    for (const row of rows(table)) {
      const rate = positive(row.dataset.tokensPerS);
      const cost = hourly === null || rate === null ? null : (hourly * 1e6) / (rate * 3600);
      const cell = row.querySelector("td.cost");
      cell.textContent = cost === null ? "-" : money(cost);
      cell.dataset.sort = cost ?? "";
      row.classList.remove("cheapest");
      row.hidden = (positive(row.dataset.speed) ?? 0) < slowest;
      if (row.hidden) continue;
      kept += 1;
      if (cost !== null && (cheapest === null || cost < cheapest.cost)) cheapest = { row, cost };
    }
    cheapest?.row.classList.add("cheapest");
    return kept;
  }

  /** The two inputs, as the address has them. */
  function inputs(fastest) {
    const number = { type: "number", min: "0", step: "any", inputMode: "decimal" };
    const step = String(Math.max(1, Math.round(fastest / 100)));
    const range = { type: "range", min: "0", max: String(fastest), step };
    return {
      price: element("input", { ...number, value: positive(state.get("price")) ?? "" }),
      speed: element("input", { ...range, value: positive(state.get("speed")) ?? 0 }),
    };
  }

  document.addEventListener("DOMContentLoaded", () => {
    const tables = [...document.querySelectorAll("table.frontier")];
    if (tables.length === 0) return;
    const every = tables.flatMap(rows);
    const speeds = every.map((row) => positive(row.dataset.speed) ?? 0);
    const asked = inputs(Math.ceil(Math.max(1, ...speeds)));
    const limit = element("output");
    const said = element("p", { className: "key" });
    said.setAttribute("role", "status");
    tables.forEach(addColumn);

    function show() {
      const slowest = positive(asked.speed.value) ?? 0;
      const hourly = positive(asked.price.value);
      const kept = tables.reduce((sum, table) => sum + price(table, hourly, slowest), 0);
      limit.textContent = `${slowest} tokens/s`;
      said.textContent = `${kept} of ${every.length} rows are at least that fast.`;
    }

    for (const [key, input] of Object.entries(asked)) {
      input.addEventListener("input", () => {
        state.set(key, positive(input.value) === null ? "" : input.value);
        show();
      });
    }
    const place = document.querySelector("[data-frontier-tools]") ?? tables[0];
    place.before(
      element(
        "div",
        { className: "tools" },
        element("label", {}, "Your price of a GPU-hour ", asked.price),
        element("label", {}, "Each user gets at least ", asked.speed),
        limit,
      ),
      said,
    );
    show();
  });
})();
