"use strict";
(() => {
  const root = document.documentElement;
  const make = (name, properties, ...children) => {
    const node = Object.assign(document.createElement(name), properties);
    node.append(...children);
    return node;
  };
  const store = {
    // Pages from files may have no storage.
    get: () => { try { return localStorage.getItem("theme"); } catch { return null; } },
    set: (theme) => { try { localStorage.setItem("theme", theme); } catch { /* The choice lasts as long as the page. */ } },
  };

  // The theme: that of the browser until another is chosen.
  const theme = make("button", { type: "button", id: "theme" });
  const isDark = () => (root.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
  const name = () => { theme.textContent = isDark() ? "Light theme" : "Dark theme"; };
  theme.onclick = () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    store.set(root.dataset.theme);
    name();
  };
  const chosen = store.get();
  if (chosen === "light" || chosen === "dark") root.dataset.theme = chosen;
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", name);
  name();
  document.querySelector("header").append(theme);

  // Tables: sorted by a column. Cells that start with a number are compared by it; empty ones and dashes are last.
  const units = { K: 2 ** 10, M: 2 ** 20, G: 2 ** 30, T: 2 ** 40 };
  const number = (text) => {
    const found = /^(-?[\d,]*\.?\d+(?:e[-+]?\d+)?)([KMGT])?/.exec(text);
    return found ? Number(found[1].replaceAll(",", "")) * (units[found[2]] ?? 1) : NaN;
  };
  const none = (text) => text === "" || text === "-";
  const words = new Intl.Collator("en", { numeric: true });
  const compare = (a, b, sign) => {
    if (none(a) || none(b)) return none(a) - none(b);
    const [x, y] = [number(a), number(b)];
    if (Number.isNaN(x) || Number.isNaN(y)) return sign * words.compare(a, b);
    return sign * (x - y);
  };
  const tables = () => document.querySelectorAll("table").forEach((table) => {
    const body = table.tBodies[0];
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, column) => {
      const button = make("button", { type: "button" }, ...head.childNodes);
      head.append(button);
      button.onclick = () => {
        const down = head.getAttribute("aria-sort") === "ascending";
        heads.forEach((other) => other.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", down ? "descending" : "ascending");
        const cell = (row) => row.cells[column].textContent;
        const rows = [...body.rows].sort((a, b) => compare(cell(a), cell(b), down ? -1 : 1));
        body.append(...rows);
      };
    });
    if (body.rows.length > 15) {
      const count = make("output", {});
      const filter = make("input", { type: "search" });
      filter.oninput = () => {
        const wanted = filter.value.toLowerCase().split(/\s+/);
        let shown = 0;
        for (const row of body.rows) {
          const text = [...row.cells].map((cell) => cell.textContent).join(" ").toLowerCase();
          row.hidden = !wanted.every((word) => text.includes(word));
          shown += !row.hidden;
        }
        count.textContent = ` ${shown} of ${body.rows.length} rows`;
      };
      table.parentElement.before(make("label", { className: "filter" }, "Rows with ", filter, count));
    }
  });

  // Charts: the values at one place of the horizontal axis, under the pointer or by the arrow keys.
  const tip = make("div", { className: "tip", hidden: true });
  tip.setAttribute("role", "status");
  document.body.append(tip);
  const hide = () => {
    tip.hidden = true;
    document.querySelectorAll(".cursor").forEach((line) => line.remove());
  };
  const charts = () => document.querySelectorAll(".panels .chart").forEach((chart) => {
    const points = [...chart.querySelectorAll(".point")].map((node) => {
      const title = node.querySelector("title");
      const text = title.textContent;
      title.remove();
      const matrix = node.querySelector("path").transform.baseVal.consolidate().matrix;
      return { node, text, index: Number(node.dataset.i), x: matrix.e, y: matrix.f };
    });
    if (points.length === 0) return;
    const places = [...new Set(points.map((point) => point.index))].sort((a, b) => a - b);
    const axes = [...chart.querySelectorAll(".axis")].map((axis) => axis.getBBox());
    const bottom = Math.max(...axes.map((box) => box.y + box.height));
    let at = -1;
    const show = (index) => {
      hide();
      at = index;
      const shown = points.filter((point) => point.index === index && !point.node.classList.contains("off"));
      if (shown.length === 0) return;
      shown.sort((a, b) => a.y - b.y);
      tip.replaceChildren(...shown.map((point) => make("p", { className: point.node.classList[1] }, point.text)));
      const line = document.createElementNS(chart.namespaceURI, "path");
      line.setAttribute("class", "cursor");
      line.setAttribute("d", `M${shown[0].x} 6V${bottom}`);
      chart.prepend(line);
      const box = chart.getBoundingClientRect();
      const scale = box.width / chart.viewBox.baseVal.width;
      tip.hidden = false;
      const width = root.clientWidth;
      const left = box.left + shown[0].x * scale + 12;
      const fits = left + tip.offsetWidth < width;
      tip.style.left = `${scrollX + Math.max(4, fits ? left : Math.min(left - 24 - tip.offsetWidth, width - tip.offsetWidth - 4))}px`;
      tip.style.top = `${scrollY + Math.max(4, box.top + 8)}px`;
    };
    chart.onpointermove = (event) => {
      const box = chart.getBoundingClientRect();
      const x = (event.clientX - box.left) * chart.viewBox.baseVal.width / box.width;
      const near = points.reduce((best, point) => Math.abs(point.x - x) < Math.abs(best.x - x) ? point : best);
      if (near.index !== at || tip.hidden) show(near.index);
    };
    chart.onpointerleave = hide;
    chart.tabIndex = 0;
    chart.onfocus = () => { if (chart.matches(":focus-visible")) show(places[0]); };
    chart.onblur = hide;
    chart.onkeydown = (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (event.key === "Escape") hide();
      if (step === undefined) return;
      event.preventDefault();
      show(places[Math.min(places.length - 1, Math.max(0, places.indexOf(at) + step))]);
    };
  });

  // Legends: a series is hidden and shown again.
  const legends = () => document.querySelectorAll("figure").forEach((figure) => {
    figure.querySelectorAll(".legend li").forEach((entry, index) => {
      const button = make("button", { type: "button" }, ...entry.childNodes);
      button.setAttribute("aria-pressed", "true");
      entry.append(button);
      button.onclick = () => {
        const off = button.getAttribute("aria-pressed") === "true";
        button.setAttribute("aria-pressed", String(!off));
        figure.querySelectorAll(`.panels [data-k="${index}"]`).forEach((node) => node.classList.toggle("off", off));
      };
    });
  });

  const enhance = () => {
    tables();
    charts();
    legends();
  };
  enhance();

  // A measurement that is under way: new rows every few seconds, until its process has ended.
  const live = document.querySelector(".live");
  const update = async () => {
    let text;
    try {
      text = await (await fetch(location.href)).text();
    } catch {
      live.textContent = "The measurement has ended. This page has the rows up to the last update.";
      return;
    }
    const fresh = new DOMParser().parseFromString(text, "text/html");
    if (tip.hidden) {
      live.textContent = fresh.querySelector(".live").textContent;
      const open = [...document.querySelectorAll("details")].map((each) => each.open);
      for (const part of ["nav", "main"]) document.querySelector(part).replaceWith(fresh.querySelector(part));
      document.querySelectorAll("details").forEach((each, index) => { each.open = open[index] ?? each.open; });
      enhance();
    }
    setTimeout(update, 3000);
  };
  if (live) setTimeout(update, 3000);
})();
