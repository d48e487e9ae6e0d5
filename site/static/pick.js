// The picker of the overview: model, hardware and number of users are chosen, and the answer comes
// from the rows of the page's own tables of picks. The choice lives in the address. Every command
// (`pre.copy`) gets a button that copies it.
"use strict";

(() => {
  const { element, state, rows } = redline;

  /** Gives a command its button. */
  function offerCopy(block) {
    const button = element("button", { type: "button", className: "copy", textContent: "Copy" });
    button.addEventListener("click", async () => {
      const code = block.querySelector("code");
      try {
        await navigator.clipboard.writeText(code.textContent);
        button.textContent = "Copied";
      } catch {
        // Without the right to the clipboard, the text is selected for the reader to copy.
        getSelection().selectAllChildren(code);
        button.textContent = "Selected";
      }
    });
    block.after(button);
    return button;
  }

  const distinct = (texts) => [...new Set(texts)];

  /** Readable names of hardware by id; only those that belong to one id. */
  function namedHardware() {
    const named = [...document.querySelectorAll("[data-device]")].map((entry) => [
      entry.dataset.device,
      entry.querySelector("bdi").textContent,
    ]);
    const isAlone = ([id, name]) => named.every(([other, own]) => other === id || own !== name);
    return new Map(named.filter(isAlone));
  }

  /** Fills `select` with `options` and keeps what was chosen, where it is still there. */
  function fill(select, options, wanted, names) {
    select.replaceChildren(...options.map((text) => new Option(names.get(text) ?? text, text)));
    select.value = options.includes(wanted) ? wanted : options[0];
  }

  /** Shows the pick of a table's row in the card. */
  function show(card, row, names) {
    const link = row.querySelector("th a");
    const set = (name, ...nodes) => {
      const part = card.querySelector(`[data-part="${name}"]`);
      part?.replaceChildren(...nodes);
      return part;
    };
    for (const name of ["engine", "figure", "lead", "ttft", "tpot", "evidence"]) {
      const source = row.querySelector(`[data-part="${name}"]`);
      set(name, ...source.cloneNode(true).childNodes);
    }
    set("model", row.dataset.model);
    set("hardware", row.dataset.hardware);
    set("device", names.get(row.dataset.hardware) ?? "");
    set("limits", row.dataset.limits);
    set("users", row.dataset.load).setAttribute("href", link.getAttribute("href"));
    set("command", row.dataset.command || "The command of this server was not recorded.");
    set("notes", row.dataset.notes.replaceAll("`", ""));
    set("price", row.dataset.price);
    const block = card.querySelector(".pick");
    block.classList.toggle("claimed", row.classList.contains("claimed"));
    const copy = card.querySelector("button.copy");
    if (copy) [copy.textContent, copy.hidden] = ["Copy", !row.dataset.command];
  }

  function offerChoice(card) {
    const all = [...document.querySelectorAll("table.picks")].flatMap(rows);
    const shown = card.querySelector('[data-part="users"]').getAttribute("href");
    const first = all.find((row) => row.querySelector("th a").getAttribute("href") === shown);
    if (!first) return;
    const keys = ["model", "hardware", "load"];
    const labels = { model: "Model ", hardware: "Hardware ", load: "Users " };
    const names = namedHardware();
    const selects = keys.map((key) => element("select", { name: key }));

    /** Rows that agree with the choices before the one with this index. */
    const left = (index) =>
      all.filter((row) => keys.slice(0, index).every((k, at) => row.dataset[k] === selects[at].value));

    function choose(wanted) {
      keys.forEach((key, index) => {
        const options = distinct(left(index).map((row) => row.dataset[key]));
        fill(selects[index], options, wanted[key], names);
      });
      const [row] = left(keys.length);
      show(card, row, names);
    }

    const asked = Object.fromEntries(keys.map((key) => [key, state.get(key) || first.dataset[key]]));
    choose(asked);
    selects.forEach((select) => {
      select.addEventListener("change", () => {
        choose(Object.fromEntries(keys.map((key, index) => [key, selects[index].value])));
        keys.forEach((key, index) => state.set(key, selects[index].value));
      });
    });
    const fields = keys.map((key, index) => element("label", {}, labels[key], selects[index]));
    card.prepend(element("div", { className: "tools" }, ...fields));
    card.setAttribute("role", "group");
    card.setAttribute("aria-label", "Choose a configuration");
    card.querySelector(".pick").setAttribute("aria-live", "polite");
  }

  document.addEventListener("DOMContentLoaded", () => {
    document.querySelectorAll("pre.copy").forEach(offerCopy);
    const card = document.getElementById("picker");
    if (card) offerChoice(card);
  });
})();
