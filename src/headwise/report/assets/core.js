"use strict";
// What all charts and tables share: the data, what the reader has chosen, and how things are put on the page.
// Names come from run folders and may hold anything: they only ever become text nodes.

let pages = JSON.parse(document.getElementById("data").textContent);
const chosen = { setting: 0, hidden: new Set(), x: "round", moment: "pre", part: "train", target: null };
const page = () => pages[chosen.setting];
const find = (id) => document.getElementById(id);
const shown = () => page().lines.filter((line) => !chosen.hidden.has(line.name));
const named = (name) => page().lines.find((line) => line.name === name);
const narrow = () => window.innerWidth < 640;

// Okabe and Ito's colours, which people of all kinds of sight tell apart; darker or lighter where a theme needs it.
const COLOURS = {
  light: ["#0072b2", "#d55e00", "#007a5a", "#b3478c", "#9a6a00", "#2b8cc4", "#5c3d99", "#8a1c1c"],
  dark: ["#56b4e9", "#ff8c42", "#2fd3a2", "#e59bc8", "#f0c541", "#9ad0ff", "#b9a3f5", "#ff9a9a"],
};
const DASHES = ["solid", [8, 4], [2, 3], [12, 3, 2, 3], [6, 2, 2, 2, 2, 2]];
const MARKS = ["circle", "rect", "triangle", "diamond", "roundRect"];

const theme = () => document.documentElement.dataset.theme;
const ink = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
const palette = (i) => COLOURS[theme()][i % 8];
const colour = (line) => (line.slot < 0 ? ink("mark") : palette(line.slot));
const dash = (line) => (line.slot < 0 ? "solid" : DASHES[Math.floor(line.slot / 8) % DASHES.length]);
const mark = (line) => (line.slot < 0 ? "circle" : MARKS[Math.floor(line.slot / 8) % MARKS.length]);

const percent = (v) => (v == null ? "–" : `${(v * 100).toFixed(1)} %`);
const number = (v, digits = 1) => (v == null ? "–" : v.toLocaleString("en", { maximumFractionDigits: digits }));
// What judges the runs: a share in percent, or a number; more of it is better, or less.
const metric = () => page().metric;
const score = (v) => (metric().percent ? percent(v) : v == null ? "–" : v.toFixed(3));
const spread = (v) => (metric().percent ? (v * 100).toFixed(1) : v.toFixed(3));
const gain = (v, other) => (metric().better === "up" ? v - other : other - v);
const points = (v) => (v == null ? "–" : `${v >= 0 ? "+" : "−"}${spread(Math.abs(v))}`);
const unit = () => (metric().percent ? "points" : "gain");
const mean = (values) => values.reduce((a, b) => a + b, 0) / values.length;
const sum = (values) => values.reduce((a, b) => a + b, 0);
function duration(s) {
  if (s >= 7200) return `${number(s / 3600)} h`;
  return s >= 120 ? `${number(s / 60)} min` : s >= 1 ? `${number(s)} s` : `${number(s * 1000)} ms`;
}

function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

function fill(select, options, value) {
  select.replaceChildren(...options.map(([v, text]) => element("option", { value: v }, text)));
  select.value = options.some(([v]) => String(v) === String(value)) ? value : options[0]?.[0] ?? "";
  return select.value;
}

// -- tables: cells are texts, or {text, by} with the value to sort by, or {node, by}
function table(target, head, rows, sortable = true) {
  const first = (cell, i) => element(i ? "td" : "th", i ? {} : { scope: "row" }, i ? content(cell) : element("bdi", {}, content(cell)));
  const body = element("tbody", {}, ...rows.map((row) => element("tr", {}, ...row.map(first))));
  rows.forEach((row, r) => row.forEach((cell, i) => { if (cell?.by !== undefined) body.rows[r].cells[i].dataset.by = cell.by; }));
  const top = element("thead", {}, element("tr", {}, ...head.map((name) => element("th", { scope: "col" }, name))));
  target.replaceChildren(top, body);
  if (sortable) makeSortable(target);
}

const content = (cell) => cell?.node ?? String(cell?.text ?? cell);

function makeSortable(target) {
  [...target.tHead.rows[0].cells].forEach((cell, i) => {
    const button = element("button", { type: "button" }, cell.textContent);
    cell.replaceChildren(button);
    button.addEventListener("click", () => sortBy(target, i, cell));
  });
}

function sortBy(target, i, cell) {
  const up = cell.getAttribute("aria-sort") === "descending" || (i === 0 && !cell.hasAttribute("aria-sort"));
  for (const other of target.tHead.rows[0].cells) other.removeAttribute("aria-sort");
  cell.setAttribute("aria-sort", up ? "ascending" : "descending");
  const key = (row) => row.cells[i].dataset.by ?? row.cells[i].textContent;
  const value = (row) => { const v = parseFloat(key(row).replace(/[,+]/g, "").replace("−", "-")); return Number.isNaN(v) ? null : v; };
  const order = (a, b) => {
    const [x, y] = [value(a), value(b)];
    if (x === null && y === null) return key(a).localeCompare(key(b));
    return x === null ? -1 : y === null ? 1 : x - y;
  };
  const rows = [...target.tBodies[0].rows].sort(order);
  target.tBodies[0].replaceChildren(...(up ? rows : rows.reverse()));
}

// -- charts: each has a function that gives ECharts' option, its height, and the table behind it
const charts = {};
function chart(id, make) {
  if (find(`fig-${id}`)) charts[id] = { make, figure: find(`fig-${id}`), drawn: null, fresh: false };
}

function draw(id) {
  const c = charts[id];
  const plot = c.figure.querySelector(".plot");
  const made = c.make();
  c.figure.hidden = !made;
  c.fresh = true;
  if (!made) return;
  plot.style.height = `${made.height}px`;
  const renderer = made.marks > 3000 ? "canvas" : "svg"; // thousands of elements are slow
  if (c.drawn && c.renderer !== renderer) { c.drawn.dispose(); c.drawn = null; }
  c.renderer = renderer;
  c.drawn ??= echarts.init(plot, null, { renderer });
  c.drawn.resize();
  c.drawn.setOption({ ...common(), ...made.option }, { notMerge: true });
  plot.setAttribute("aria-label", `${c.figure.querySelector("figcaption").textContent}. ${made.words ?? ""}`);
  const details = c.figure.querySelector("details");
  const numbers = () => { if (details.open) { const t = element("table"); details.querySelector(".scroll").replaceChildren(t); table(t, made.head, made.rows); } };
  details.ontoggle = numbers;
  numbers();
}

const seen = new IntersectionObserver((entries) => {
  for (const entry of entries) {
    const id = entry.target.id.slice(4);
    charts[id].near = entry.isIntersecting;
    if (entry.isIntersecting && !charts[id].fresh) draw(id);
  }
}, { rootMargin: "400px" });

// Charts near the screen at once, the others when the reader comes to them.
function redraw(...ids) {
  for (const id of ids.length ? ids : Object.keys(charts)) {
    if (!charts[id]) continue;
    charts[id].fresh = false;
    if (charts[id].near || charts[id].figure.hidden) draw(id);
  }
}

function common() {
  return {
    animation: false,
    textStyle: { fontFamily: "system-ui, sans-serif", color: ink("ink") },
    grid: { left: 12, right: 20, top: 28, bottom: 12, containLabel: true },
  };
}

function axis(name, more = {}) {
  return {
    type: "value", name, nameLocation: "middle", nameGap: 32, nameTextStyle: { color: ink("soft") },
    axisLabel: { color: ink("soft"), hideOverlap: true }, axisLine: { lineStyle: { color: ink("mark") } },
    splitLine: { lineStyle: { color: ink("line") } }, ...more,
  };
}

function categories(names, more = {}) {
  const label = { color: ink("ink"), width: narrow() ? 92 : 170, overflow: "truncate", interval: 0 };
  return { type: "category", data: names, inverse: true, axisLabel: label, axisTick: { show: false }, axisLine: { lineStyle: { color: ink("mark") } }, ...more };
}

// Faint patterns beside the colours, for those who can't tell the colours apart.
function patterns() {
  const faint = theme() === "dark" ? "rgba(0, 0, 0, 0.28)" : "rgba(255, 255, 255, 0.3)";
  const lines = (rotation, gap) => ({ color: faint, dashArrayX: [1, 0], dashArrayY: [2, gap], rotation });
  const dots = { color: faint, symbol: "circle", symbolSize: 0.5, dashArrayX: [[6, 6], [0, 6, 6, 0]], dashArrayY: [6, 0] };
  return { enabled: true, decal: { show: true, decals: [{ symbol: "none" }, lines(0.8, 6), dots, lines(-0.8, 6), lines(0, 5), lines(1.57, 5)] } };
}

function scores(name, more = {}) {
  const made = axis(name, more);
  return metric().percent ? { ...made, axisLabel: { ...made.axisLabel, formatter: (v) => `${Number((v * 100).toFixed(1))} %` } } : made;
}

// Where an axis with these values begins and ends.
function range(values) {
  const [low, high] = [Math.min(...values), Math.max(...values)];
  if (metric().percent) {
    const ends = { min: Math.max(0, Math.floor(low * 10) / 10), max: Math.max(1, high) };
    return { ...ends, interval: ends.max - ends.min > 0.25 ? 0.1 : 0.05 }; // or ECharts puts ticks at 80 and 81
  }
  const step = 10 ** Math.floor(Math.log10(Math.max(high - low, Math.abs(high) / 10, 1e-9)));
  return { min: Math.floor(low / step) * step, max: Math.ceil(high / step) * step };
}

function tip(lines) {
  const text = (line) => { const p = element("p"); p.append(...(Array.isArray(line) ? line : [line])); return p; };
  return element("div", { class: "tip" }, ...lines.map(text));
}

function tooltip(more) {
  return { confine: true, transitionDuration: 0, backgroundColor: ink("panel"), borderColor: ink("mark"), textStyle: { color: ink("ink") }, ...more };
}

function swatch(line) {
  const space = "http://www.w3.org/2000/svg";
  const svg = document.createElementNS(space, "svg");
  for (const [k, v] of Object.entries({ width: 26, height: 10, "aria-hidden": "true" })) svg.setAttribute(k, v);
  const path = document.createElementNS(space, "line");
  const pattern = dash(line) === "solid" ? "" : dash(line).join(" ");
  for (const [k, v] of Object.entries({ x1: 0, x2: 26, y1: 5, y2: 5, stroke: colour(line), "stroke-width": 4, "stroke-dasharray": pattern })) path.setAttribute(k, v);
  svg.append(path);
  return svg;
}
