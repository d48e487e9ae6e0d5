// Every run as a point, against time or another metric: choices of axes and names live in the
// address. Draws with uPlot over `explore.json`, which is made with the site.
"use strict";

document.addEventListener("DOMContentLoaded", async () => {
  const { element, state } = redline;
  const home = document.querySelector("#explorer");
  const said = home.querySelector("p");
  let data;
  try {
    const answer = await fetch(home.dataset.source);
    if (!answer.ok) throw new Error(`${answer.status} ${answer.statusText}`);
    data = await answer.json();
  } catch (error) {
    said.textContent =
      `The runs could not be read (${error.message}). Opened as a file, a page may not read others: ` +
      "`cargo xtask site --open` serves it.";
    return;
  }
  const NAMES = Object.keys(data.names);
  const SERIES_MAX = 6;
  const ROWS_MAX = 200;
  const metric = (name) => data.metrics.find((found) => found.name === name);

  const runs = data.runs.map((cells) => {
    const run = { id: cells[NAMES.length], time: Date.parse(cells[NAMES.length + 1] ?? "") / 1000 };
    NAMES.forEach((name, index) => (run[name] = data.names[name][cells[index]]));
    data.metrics.forEach((found, index) => (run[found.name] = cells[NAMES.length + 2 + index]));
    return run;
  });

  function choice(key, label, options, fallback) {
    const select = element("select", {});
    for (const [value, text] of options) {
      select.append(element("option", { value, textContent: text }));
    }
    const wanted = state.get(key);
    select.value = options.some(([value]) => value === wanted) ? wanted : fallback;
    select.addEventListener("change", () => {
      state.set(key, select.value === fallback ? "" : select.value);
      show();
    });
    return { select, label: element("label", {}, `${label} `, select) };
  }

  const axes = data.metrics.map((found) => [found.name, `${found.title} ${found.unit}`.trim()]);
  const x = choice("x", "Across", [["time", "time"], ...axes], "time");
  const y = choice("y", "Up", axes, "output_tokens_per_s");
  const by = choice(
    "by",
    "Apart by",
    NAMES.map((name) => [name, name]),
    "release",
  );
  const filters = NAMES.map((name) => {
    const options = data.names[name].map((text) => [text, text]);
    return { name, ...choice(name, name, [["", "every"], ...options], "") };
  });

  const drawing = element("div", { className: "drawing" });
  const body = element("tbody");
  const heads = element("tr");
  const table = element("table", {}, element("thead", {}, heads), body);
  const box = element("div", { className: "scroll", tabIndex: 0 }, table);
  box.setAttribute("role", "region");
  box.setAttribute("aria-label", "The runs that are drawn");
  drawing.setAttribute("role", "img");
  said.setAttribute("role", "status");
  home.prepend(
    element("div", { className: "tools" }, y.label, x.label, by.label),
    element("div", { className: "tools" }, ...filters.map((filter) => filter.label)),
  );
  home.append(drawing, box);

  const DAY_S = 86_400;
  const value = (run, axis) => (axis === "time" ? run.time : run[axis] / metric(axis).divisor);
  const known = (number) => typeof number === "number" && Number.isFinite(number);
  const title = (name) =>
    name === "time" ? "time, UTC" : `${metric(name).title} ${metric(name).unit}`.trim();
  const minutes = (seconds) =>
    new Date(seconds * 1000).toISOString().slice(0, 16).replace("T", " ");
  const times = (_, ticks) =>
    ticks.map((seconds) =>
      ticks.at(-1) - ticks[0] > 2 * DAY_S
        ? minutes(seconds).slice(0, 10)
        : minutes(seconds).slice(11),
    );
  // A canvas knows no variables: what a color is in this theme, an element tells.
  const probe = element("span", { hidden: true });
  home.append(probe);
  function color(name) {
    probe.style.color = `var(${name})`;
    return getComputedStyle(probe).color;
  }
  let plot = null;

  function show() {
    const [across, up, apart] = [x.select.value, y.select.value, by.select.value];
    const fits = (run) =>
      filters.every(({ name, select }) => !select.value || run[name] === select.value);
    const asked = runs.filter(fits);
    const drawn = asked.filter(
      (run) => known(run[up]) && known(across === "time" ? run.time : run[across]),
    );
    drawn.sort((a, b) => value(a, across) - value(b, across));
    const counts = new Map();
    for (const run of drawn) counts.set(run[apart], (counts.get(run[apart]) ?? 0) + 1);
    const largest = [...counts].sort((a, b) => b[1] - a[1]).map(([name]) => name);
    const series = largest
      .slice(0, SERIES_MAX)
      .sort((a, b) => a.localeCompare(b, "en", { numeric: true }));
    const left = largest.length - series.length;
    said.textContent =
      `${drawn.length} of ${asked.length} runs know both figures.` +
      (left > 0
        ? ` Drawn are the ${SERIES_MAX} largest groups; ${left} more are in the table.`
        : "");
    drawPlot(
      drawn.filter((run) => series.includes(run[apart])),
      series,
      { across, up, apart },
    );
    fillTable(drawn, { across, up });
    drawing.setAttribute(
      "aria-label",
      `${metric(up).title} of ${drawn.length} runs; the table below has them`,
    );
  }

  function drawPlot(drawn, series, { across, up, apart }) {
    plot?.destroy();
    if (drawn.length === 0) return void (plot = null);
    const columns = series.map((name) =>
      drawn.map((run) => (run[apart] === name ? value(run, up) : null)),
    );
    const axis = (label) => ({
      label,
      font: `12px ${getComputedStyle(document.body).fontFamily}`,
      labelFont: `13px ${getComputedStyle(document.body).fontFamily}`,
      stroke: color("--soft"),
      grid: { stroke: color("--line"), width: 1 },
      ticks: { stroke: color("--line"), width: 1 },
    });
    const style = (name, index) => ({
      label: name,
      stroke: color(`--s${index}`),
      paths: () => null,
      points: { show: true, size: 8, fill: color(`--s${index}`) },
    });
    plot = new uPlot(
      {
        width: Math.max(280, drawing.clientWidth),
        height: 380,
        scales: { x: { time: across === "time" } },
        tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1000), "Etc/UTC"),
        axes: [
          { ...axis(title(across)), ...(across === "time" ? { values: times } : {}) },
          { ...axis(title(up)), size: 70 },
        ],
        series: [
          across === "time"
            ? { label: title(across), value: (_, at) => (at ? minutes(at) : "-") }
            : { label: title(across) },
          ...series.map(style),
        ],
      },
      [drawn.map((run) => value(run, across)), ...columns],
      drawing,
    );
  }

  function fillTable(drawn, { across, up }) {
    const shown = [...drawn].reverse().slice(0, ROWS_MAX);
    const head = (text, className = "") =>
      element("th", { scope: "col", className, textContent: text });
    heads.replaceChildren(
      head("run"),
      ...NAMES.map((name) => head(name)),
      head("started, UTC"),
      head(title(up), "n"),
    );
    if (across !== "time") heads.append(head(title(across), "n"));
    body.replaceChildren(
      ...shown.map((run) => {
        const figure = (axis) =>
          element("td", {
            className: "n",
            textContent: value(run, axis).toLocaleString("en", { maximumSignificantDigits: 4 }),
          });
        const link = element(
          "a",
          { href: `../run/${run.id}/index.html` },
          element("code", { textContent: run.id }),
        );
        // A name that could not stand in a path has another address; the table of all data has it.
        const id = /^[\w@+-][\w.@+-]{0,119}$/.test(run.id) ? link : run.id;
        const started = known(run.time) ? minutes(run.time) : "-";
        const row = element("tr", {}, element("th", { scope: "row" }, id));
        row.append(
          ...NAMES.map((name) => element("td", { textContent: run[name] })),
          element("td", { textContent: started }),
          figure(up),
        );
        if (across !== "time") row.append(figure(across));
        return row;
      }),
    );
    if (drawn.length > ROWS_MAX) said.textContent += ` The table has ${ROWS_MAX} of them.`;
  }

  document.addEventListener("theme", show);
  new ResizeObserver(() =>
    plot?.setSize({ width: Math.max(280, drawing.clientWidth), height: 380 }),
  ).observe(drawing);
  show();
});
