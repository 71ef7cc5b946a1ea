"use strict";
// Filters, sorting, cells side by side, steps, zoom. Without it the page is complete, only less handy.
(() => {
  const all = (what, within = document) => [...within.querySelectorAll(what)];
  const one = (what, within = document) => within.querySelector(what);
  const form = one("#controls");
  const table = one("#verdict-table");
  if (!form || !table) return;
  form.hidden = false;

  // Filters: a row and its card share their data attributes.
  const selects = all("select[data-by]", form);
  const rows = all("tbody", table);
  const cards = all("details.card");
  const fits = (node) => selects.every((s) => !s.value || node.dataset[s.dataset.by] === s.value);
  const filter = () => {
    let shown = 0;
    for (const body of rows) { body.hidden = !fits(body); shown += !body.hidden; }
    for (const card of cards) card.hidden = !fits(card);
    one("#shown").textContent = `${shown} of ${rows.length} cells shown`;
  };
  for (const select of selects) select.addEventListener("change", filter);
  form.addEventListener("reset", () => setTimeout(filter));

  // Sorting: a button in every head; equal rows keep their order.
  const words = (cell) => (one(":scope > span:last-child", cell) || cell).textContent.trim();
  const number = (text) => (text.startsWith("≈") ? 0 : parseFloat(text.replace("∞", "Infinity").replace("−", "-")));
  const heads = all("thead th", table);
  heads.forEach((head, place) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") === "ascending";
      for (const other of heads) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const key = (body) => words(one("tr.cell", body).children[place]);
      const sorted = rows.map((body, i) => [key(body), i, body]).sort(([a, i], [b, j]) => {
        const [x, y] = [number(a), number(b)];
        const numeric = !Number.isNaN(x) || !Number.isNaN(y);
        if (numeric && (Number.isNaN(x) || Number.isNaN(y))) return Number.isNaN(x) - Number.isNaN(y);
        const order = numeric ? x - y : a.localeCompare(b);
        return (down ? -order : order) || i - j;
      });
      for (const [, , body] of sorted) table.append(body);
    });
  });

  // Side by side: what is ticked is copied beside each other; names are not copied with it.
  const beside = one("#beside");
  const ticks = all("input.tick");
  const compare = () => {
    const chosen = ticks.filter((t) => t.checked).map((t) => one(`#cell-${t.value}`).closest("details"));
    const copies = chosen.map((card) => {
      const copy = card.cloneNode(true);
      copy.open = true; copy.hidden = false; copy.classList.add("copy");
      for (const named of all("[id]", copy)) named.removeAttribute("id");
      all("[data-steps]", copy).forEach(steps);
      all(".shot img", copy).forEach(zoomable);
      return copy;
    });
    one(".columns", beside).replaceChildren(...copies);
    beside.hidden = copies.length === 0;
  };
  for (const tick of ticks) { tick.closest("label").hidden = false; tick.addEventListener("change", compare); }
  one("#beside-none").addEventListener("click", () => { for (const t of ticks) t.checked = false; compare(); ticks[0].focus(); });

  // Steps: what the attack had, and how far it was from explaining the update.
  function steps(box) {
    const told = JSON.parse(box.dataset.steps);
    const range = one("input", box), out = one("output", box), text = one(".then", box);
    const show = () => {
      const at = told[Number(range.value)];
      out.textContent = `step ${at.step}: residual ${at.residual}${at.score ? `, ${at.score}` : ""}`;
      range.setAttribute("aria-valuetext", out.textContent);
      text.replaceChildren(...(at.text || []).map((line) => {
        const p = document.createElement("p"); p.textContent = line; return p;
      }));
    };
    range.max = told.length - 1; range.value = told.length - 1;
    range.addEventListener("input", show);
    box.hidden = false;
    show();
  }
  all("[data-steps]").forEach(steps);

  // Zoom: every picture opens, by mouse or by Enter; Escape closes.
  const dialog = one("#zoom");
  function zoomable(image) {
    image.tabIndex = 0;
    image.setAttribute("role", "button");
    const open = () => {
      const large = new Image();
      large.src = image.src; large.alt = image.alt;
      one("p", dialog).replaceChildren(large, image.alt);
      dialog.showModal();
    };
    image.addEventListener("click", open);
    image.addEventListener("keydown", (event) => {
      if (event.key !== "Enter") return;
      event.preventDefault(); // or the same key would press the button that closes
      open();
    });
  }
  all(".shot img").forEach(zoomable);

  one("#unfold").addEventListener("click", (event) => {
    const open = event.currentTarget.getAttribute("aria-pressed") !== "true";
    event.currentTarget.setAttribute("aria-pressed", open);
    for (const card of cards) card.open = open;
  });
  filter();
})();
