"use strict";
(() => {
  const root = document.documentElement;
  const all = (selector, within = document) => [...within.querySelectorAll(selector)];

  const dark = matchMedia("(prefers-color-scheme: dark)");
  const theme = () => root.dataset.theme || (dark.matches ? "dark" : "light");
  const nameTheme = () => {
    document.getElementById("theme-word").textContent = theme() === "dark" ? "Light" : "Dark";
  };
  document.getElementById("theme").addEventListener("click", () => {
    root.dataset.theme = theme() === "dark" ? "light" : "dark";
    try { localStorage.setItem("kvsuite-theme", root.dataset.theme); } catch (error) { /* a file page may have no storage */ }
    nameTheme();
  });
  dark.addEventListener("change", nameTheme);
  nameTheme();

  const reveal = () => {
    const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
    for (let node = target; node; node = node.parentElement) if (node.tagName === "DETAILS") node.open = true;
    if (target) target.scrollIntoView();
  };
  addEventListener("hashchange", reveal);
  if (location.hash) reveal();

  const select = (node) => {
    const range = document.createRange();
    range.selectNodeContents(node);
    getSelection().removeAllRanges();
    getSelection().addRange(range);
  };
  for (const button of all(".copy")) button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(button.dataset.copy);
      button.textContent = "Copied";
    } catch (error) {
      select(button.previousElementSibling);
      button.textContent = document.execCommand("copy") ? "Copied" : "Selected";
    }
    setTimeout(() => { button.textContent = "Copy"; }, 1600);
  });

  const filter = document.getElementById("filter");
  if (filter) filter.addEventListener("input", () => {
    const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    const rows = all("#other-table tbody tr");
    for (const row of rows) row.hidden = !words.every((word) => row.textContent.toLowerCase().includes(word));
    const shown = rows.filter((row) => !row.hidden).length;
    document.getElementById("filter-count").textContent = words.length ? `${shown} of ${rows.length}` : "";
  });

  const links = new Map(all(".toc > ol > li > a").map((link) => [link.hash.slice(1), link]));
  const here = new IntersectionObserver((entries) => {
    for (const entry of entries) if (entry.isIntersecting) {
      for (const link of links.values()) link.removeAttribute("aria-current");
      links.get(entry.target.id).setAttribute("aria-current", "true");
    }
  }, { rootMargin: "-15% 0px -75% 0px" });
  for (const id of links.keys()) here.observe(document.getElementById(id));

  const holder = document.getElementById("charts");
  if (!holder) return;
  const { figures, arrays } = JSON.parse(holder.textContent);
  const unpack = (value) => {
    if (Array.isArray(value)) return value.map(unpack);
    if (value === null || typeof value !== "object") return value;
    if ("$array" in value) return arrays[value.$array];
    return Object.fromEntries(Object.entries(value).map(([name, item]) => [name, unpack(item)]));
  };
  const config = { responsive: true, displayModeBar: false };
  const charts = all(".chart").map((element) => ({ element, ...figures[element.dataset.chart], drawn: false }));
  let following = false;
  const follow = (chart, event) => {
    const reset = event["xaxis.autorange"];
    const range = [event["xaxis.range[0]"], event["xaxis.range[1]"]];
    if (following || !chart.group || !(reset || range[0] !== undefined)) return;
    following = true;
    const change = reset ? { "xaxis.autorange": true } : { "xaxis.range": range };
    const others = charts.filter((other) => other !== chart && other.group === chart.group && other.drawn);
    Promise.all(others.map((other) => Plotly.relayout(other.element, change))).finally(() => { following = false; });
  };
  const draw = (chart) => {
    if (chart.drawn) return;
    chart.drawn = true;
    const { data, layout } = unpack(chart.figure);
    Plotly.newPlot(chart.element, data, layout, config);
    chart.element.on("plotly_relayout", (event) => follow(chart, event));
  };
  const drawNext = () => {
    const next = charts.find((chart) => !chart.drawn);
    if (next) { draw(next); setTimeout(drawNext); }
  };
  drawNext();

  for (const chip of all("button.chip")) chip.addEventListener("click", () => {
    const on = chip.getAttribute("aria-pressed") !== "true";
    chip.setAttribute("aria-pressed", String(on));
    const chart = charts.find((other) => other.element.dataset.chart === chip.dataset.chart);
    draw(chart);
    Plotly.restyle(chart.element, { visible: on }, chip.dataset.traces.split(",").map(Number));
  });

  const halfWidth = (element) => {
    const grid = element.closest(".grid");
    return grid && (grid.childElementCount % 2 === 0 || grid.lastElementChild !== element.parentElement);
  };
  const closed = [];
  addEventListener("beforeprint", () => {
    for (const details of all("details:not([open]):not(.data)")) { closed.push(details); details.open = true; }
    for (const chart of charts) { draw(chart); Plotly.relayout(chart.element, { width: halfWidth(chart.element) ? 308 : 660 }); }
  });
  addEventListener("afterprint", () => {
    for (const details of closed.splice(0)) details.open = false;
    for (const chart of charts) Plotly.relayout(chart.element, { width: null, autosize: true });
  });
})();
