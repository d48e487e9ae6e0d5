// Every run as a point, against time or another metric: choices of axes and names live in the
// address. Draws with uPlot over `explore.json`, which is made with the site.
"use strict";

(() => {
  const { element, state } = redline;
  const SERIES_MAX = 6;
  const ROWS_MAX = 200;
  const HEIGHT = 380;
  const NARROWEST = 280;
  const DAY_S = 86_400;

  const known = (number) => typeof number === "number" && Number.isFinite(number);
  const minutes = (seconds) =>
    new Date(seconds * 1000).toISOString().slice(0, 16).replace("T", " ");
  const natural = (a, b) => a.localeCompare(b, "en", { numeric: true });

  /** What the file says, with each run as an object of its names and figures. */
  async function read(source) {
    const answer = await fetch(source);
    if (!answer.ok) throw new Error(`${answer.status} ${answer.statusText}`);
    const data = await answer.json();
    const names = Object.keys(data.names);
    const metrics = new Map(data.metrics.map((metric) => [metric.name, metric]));
    const runs = data.runs.map((cells) => {
      const [id, started, ...figures] = cells.slice(names.length);
      const run = { id, time: Date.parse(started ?? "") / 1000 };
      names.forEach((name, index) => (run[name] = data.names[name][cells[index]]));
      data.metrics.forEach(({ name }, index) => (run[name] = figures[index]));
      return run;
    });
    return { names, texts: data.names, colors: data.colors, metrics, runs };
  }

  /** A list to choose from, whose choice stands in the address unless it is the usual one. */
  function choice(key, label, options, usual, changed) {
    const select = element("select");
    for (const [value, text] of options) {
      select.append(element("option", { value, textContent: text }));
    }
    const wanted = state.get(key);
    select.value = options.some(([value]) => value === wanted) ? wanted : usual;
    select.addEventListener("change", () => {
      state.set(key, select.value === usual ? "" : select.value);
      changed();
    });
    return { name: key, select, label: element("label", {}, `${label} `, select) };
  }

  function controls({ names, texts, metrics }, changed) {
    const axes = [...metrics.values()].map(({ name, title, unit }) => [
      name,
      `${title} ${unit}`.trim(),
    ]);
    const each = names.map((name) => [name, name]);
    const y = choice("y", "Y axis", axes, "output_tokens_per_s", changed);
    const x = choice("x", "X axis", [["time", "time"], ...axes], "time", changed);
    const by = choice("by", "Colour by", each, "engine", changed);
    const filters = names.map((name) => {
      const options = texts[name].map((text) => [text, text]);
      return choice(name, name, [["", "every"], ...options], "", changed);
    });
    const row = (choices) =>
      element("div", { className: "tools" }, ...choices.map((made) => made.label));
    return { x, y, by, filters, rows: [row([y, x, by]), row(filters)] };
  }

  /** The page's parts: what is said, the drawing and its table. */
  class Explorer {
    constructor(home, data) {
      this.data = data;
      this.said = home.querySelector("p");
      this.said.setAttribute("role", "status");
      this.controls = controls(data, () => this.show());
      this.drawing = element("div", { className: "drawing" });
      this.drawing.setAttribute("role", "img");
      this.heads = element("tr");
      this.body = element("tbody");
      const table = element("table", {}, element("thead", {}, this.heads), this.body);
      const box = element("div", { className: "scroll", tabIndex: 0 }, table);
      box.setAttribute("role", "region");
      box.setAttribute("aria-label", "The runs that are drawn");
      // A canvas knows no variables: what a color is in this theme, an element tells.
      this.probe = element("span", { hidden: true });
      home.prepend(...this.controls.rows);
      home.append(this.drawing, box, this.probe);
      this.plot = null;
      document.addEventListener("theme", () => this.show());
      new ResizeObserver(() => this.plot?.setSize(this.size())).observe(this.drawing);
    }

    size() {
      return { width: Math.max(NARROWEST, this.drawing.clientWidth), height: HEIGHT };
    }

    color(name) {
      this.probe.style.color = `var(${name})`;
      return getComputedStyle(this.probe).color;
    }

    /** The variable with the color of a series: an engine has its own on every page. */
    hue(name, index, apart) {
      return apart === "engine" ? this.data.colors[name] : `--s${index}`;
    }

    title(axis) {
      if (axis === "time") return "time, UTC";
      const { title, unit } = this.data.metrics.get(axis);
      return `${title} ${unit}`.trim();
    }

    value(run, axis) {
      return axis === "time" ? run.time : run[axis] / this.data.metrics.get(axis).divisor;
    }

    show() {
      const { x, y, by, filters } = this.controls;
      const axes = { across: x.select.value, up: y.select.value, apart: by.select.value };
      const fits = (run) =>
        filters.every(({ name, select }) => ["", run[name]].includes(select.value));
      const asked = this.data.runs.filter(fits);
      const drawn = asked.filter((run) => known(run[axes.up]) && known(run[axes.across]));
      drawn.sort((a, b) => this.value(a, axes.across) - this.value(b, axes.across));
      const groups = Map.groupBy(drawn, (run) => run[axes.apart]);
      const largest = [...groups].sort((a, b) => b[1].length - a[1].length).map(([name]) => name);
      const series = largest.slice(0, SERIES_MAX).sort(natural);
      const left = largest.length - series.length;
      this.said.textContent = [
        `${drawn.length} of ${asked.length} runs have both metrics.`,
        left > 0
          ? `Drawn are the ${SERIES_MAX} largest groups, ${left} more are in the table.`
          : "",
        drawn.length > ROWS_MAX ? `The table has ${ROWS_MAX} runs.` : "",
      ].join(" ");
      const what = `${this.title(axes.up)} of ${drawn.length} runs; the table below has them`;
      this.drawing.setAttribute("aria-label", what);
      this.draw(
        drawn.filter((run) => series.includes(run[axes.apart])),
        series,
        axes,
      );
      this.list([...drawn].reverse().slice(0, ROWS_MAX), axes);
    }

    draw(drawn, series, { across, up, apart }) {
      this.plot?.destroy();
      this.plot = null;
      if (drawn.length === 0) return;
      const timed = across === "time";
      const of = (name) => drawn.map((run) => (run[apart] === name ? this.value(run, up) : null));
      const columns = [drawn.map((run) => this.value(run, across)), ...series.map(of)];
      const options = {
        ...this.size(),
        scales: { x: { time: timed } },
        tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1000), "Etc/UTC"),
        axes: [this.axis(across), { ...this.axis(up), size: 70 }],
        series: [
          {
            label: this.title(across),
            value: (_, at) => (timed && at ? minutes(at) : (at ?? "-")),
          },
          ...series.map((name, index) => this.dots(name, this.color(this.hue(name, index, apart)))),
        ],
      };
      this.plot = new uPlot(options, columns, this.drawing);
    }

    dots(label, color) {
      return {
        label,
        stroke: color,
        paths: () => null,
        points: { show: true, size: 8, fill: color },
      };
    }

    axis(name) {
      const { fontFamily } = getComputedStyle(document.body);
      const line = { stroke: this.color("--line"), width: 1 };
      const day = (at) => minutes(at).slice(0, 10);
      const moment = (at) => minutes(at).slice(5);
      const times = (_, at) => at.map(at.at(-1) - at[0] > 2 * DAY_S ? day : moment);
      return {
        label: this.title(name),
        stroke: this.color("--soft"),
        font: `12px ${fontFamily}`,
        labelFont: `13px ${fontFamily}`,
        grid: line,
        ticks: line,
        ...(name === "time" ? { values: times } : {}),
      };
    }

    list(shown, { across, up }) {
      const { names } = this.data;
      const axes = across === "time" ? [up] : [up, across];
      const head = (text, className = "") =>
        element("th", { scope: "col", className, textContent: text });
      this.heads.replaceChildren(
        head("run"),
        ...names.map((name) => head(name)),
        head("started, UTC"),
        ...axes.map((axis) => head(this.title(axis), "n")),
      );
      this.body.replaceChildren(...shown.map((run) => this.line(run, axes)));
    }

    line(run, axes) {
      const text = (textContent, className = "") => element("td", { className, textContent });
      const figure = (axis) =>
        text(this.value(run, axis).toLocaleString("en", { maximumSignificantDigits: 4 }), "n");
      const id = element("code", { textContent: run.id });
      const page = element("a", { href: `../run/${run.id}/index.html` }, id);
      // An id that could not stand in a path has another address, which is not known here.
      const plain = /^[\w@+-][\w.@+-]{0,119}$/.test(run.id);
      return element(
        "tr",
        {},
        element("th", { scope: "row" }, plain ? page : id),
        ...this.data.names.map((name) => text(run[name])),
        text(known(run.time) ? minutes(run.time) : "-"),
        ...axes.map(figure),
      );
    }
  }

  document.addEventListener("DOMContentLoaded", async () => {
    const home = document.querySelector("#explorer");
    try {
      new Explorer(home, await read(home.dataset.source)).show();
    } catch (error) {
      home.querySelector("p").textContent =
        `The runs could not be read: ${error.message}. A page that was opened as a file may not ` +
        "read others: `cargo xtask site --open` serves it.";
    }
  });
})();
