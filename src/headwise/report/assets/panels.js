// What the reader moves, the tables that follow, and the start of it all.

const LINKS = {
  "mobile (5 up, 20 down)": [5, 20], "DSL (10 up, 50 down)": [10, 50], "fibre (100 up, 250 down)": [100, 250],
  "office (1000 up, 1000 down)": [1000, 1000], "narrow (0.25 up, 1 down)": [0.25, 1],
};

function targetTable() {
  const reach = (line) => {
    const curve = curveOf(line);
    const i = curve ? curve.mean.findIndex((m) => gain(m, chosen.target) >= 0) : -1;
    return [line.name, i < 0 ? { text: "not reached", by: 1e15 } : curve.round[i], i < 0 ? { text: "not reached", by: 1e15 } : number(curve.mb[i], 2)];
  };
  find("target-value").textContent = score(chosen.target);
  const order = (row) => (typeof row[1] === "number" ? row[1] : row[1].by);
  table(find("target-table"), ["method", "rounds", "MB sent"], shown().map(reach).sort((a, b) => order(a) - order(b)));
}

// Shares in percent; a number from the lowest to the highest of all curves.
function targetRange() {
  const values = page().lines.flatMap((l) => Object.values(l.curves).flatMap((c) => c.mean));
  const { min, max } = values.length ? range(values) : { min: 0, max: 1 };
  const ends = metric().percent ? { min: 0, max: 100, step: 0.5 } : { min, max, step: "any" };
  Object.assign(find("target"), ends);
  find("target").value = metric().percent ? chosen.target * 100 : chosen.target;
}

function clientTable() {
  const parts = page().partition;
  const line = named(chosen.line);
  if (!line) return;
  const [own, other, floors] = [clientsOf(line), reference(), page().floors];
  const most = Math.max(1, ...parts.train.flat());
  const versus = chosen.against === "floor" ? [] : [nameAt(named(chosen.against))];
  const row = (counts, c) => [
    clientName(c), ...Object.values(parts).map((part) => number(sum(part[c]))), counts.filter((n) => n).length, { node: histogram(counts, most), by: counts.indexOf(Math.max(...counts)) }, score(floors[c]),
    ...versus.map(() => score(other[c])), score(own[c]), points(own[c] == null || other[c] == null ? null : gain(own[c], other[c])),
  ];
  table(find("client-table"), ["client", ...Object.keys(parts), "classes", "train by class", "floor", ...versus, nameAt(line), unit()], parts.train.map(row));
  for (const cell of find("client-table").querySelectorAll("td:has(svg)")) cell.className = "counts";
}

function histogram(counts, most) {
  const space = "http://www.w3.org/2000/svg";
  const width = Math.max(2, Math.min(8, 120 / counts.length));
  const svg = document.createElementNS(space, "svg");
  const words = counts.flatMap((n, k) => (n ? [`${className(k)}: ${n}`] : [])).join(", ");
  for (const [k, v] of Object.entries({ width: width * counts.length, height: 20, role: "img", "aria-label": words })) svg.setAttribute(k, v);
  counts.forEach((n, k) => {
    if (!n) return;
    const bar = document.createElementNS(space, "rect");
    const tall = Math.max(1, (n / most) * 20);
    for (const [key, v] of Object.entries({ x: k * width, y: 20 - tall, width: Math.max(1, width - 1), height: tall, fill: palette(0) })) bar.setAttribute(key, v);
    svg.append(bar);
  });
  return svg;
}

function linkTable() {
  const [up, down] = ["up", "down"].map((way) => Math.max(parseFloat(find(`link-${way}`).value) || 0, 1e-6));
  const idle = page().lines.some((l) => l.traffic.idle) ? ["KB a round to all clients not drawn"] : [];
  const row = (line) => {
    const seconds = (perClient(line, "up") * 8) / (up * 1e6) + (perClient(line, "down") * 8) / (down * 1e6);
    return [
      line.name, number(perClient(line, "up") / 1024, 2), number(perClient(line, "down") / 1024, 2), { text: duration(seconds), by: seconds },
      { text: duration(seconds * line.rounds), by: seconds * line.rounds }, ...idle.map(() => number(line.traffic.idle / 1024, 1)),
    ];
  };
  table(find("link-table"), ["method", "KB up", "KB down", "per round", "all rounds", ...idle], shown().map(row));
}

function costTable() {
  const phases = [...new Set(shown().flatMap((l) => Object.keys(l.cost.workers)))];
  const row = (l) => [
    l.name, number(l.cost.seconds.round, 3), number(l.cost.samples_per_second), l.cost.memory == null ? "not recorded" : number(l.cost.memory / 2 ** 20),
    ...phases.map((p) => number(l.cost.workers[p] ?? 0, 4)),
  ];
  table(find("cost-table"), ["method", "seconds per round", "samples per second", "memory, MB", ...phases.map((p) => `workers: ${p}, s`)], shown().map(row));
}

function insideControls() {
  const lines = page().lines.filter((l) => Object.keys(l.inside).length);
  find("inside").hidden = !lines.length;
  if (!lines.length) { chosen.inside = null; return; }
  chosen.inside = fill(find("inside-line"), lines.map((l) => [l.name, l.name]), chosen.inside);
  const names = Object.keys(named(chosen.inside).inside);
  chosen.what = fill(find("inside-what"), names.map((n) => [n, n]), chosen.what);
  const q = quantity();
  const last = q.rounds.length - 1;
  chosen.at = Math.min(chosen.at ?? last, last);
  Object.assign(find("inside-round"), { max: last, value: chosen.at });
  find("inside-round").parentElement.hidden = q.axes.length === 1 || last === 0;
  find("inside-value").textContent = `${snapshot().round}`;
  find("inside-index").parentElement.hidden = q.axes.length < 3;
  if (q.axes.length === 3) {
    const labels = labelsOf(q.axes[0], snapshot().values.length, snapshot(), q);
    chosen.index = Number(fill(find("inside-index"), labels.map((v, i) => [i, `${q.axes[0]} ${v}`]), chosen.index ?? 0));
  }
}

function legend() {
  const order = [...page().order, ...page().lines.map((l) => l.name).filter((n) => !page().order.includes(n))];
  const toggle = (name) => {
    const button = element("button", { type: "button", "aria-pressed": String(!chosen.hidden.has(name)), title: name }, swatch(named(name)), element("bdi", {}, name));
    button.addEventListener("click", () => {
      chosen.hidden.has(name) ? chosen.hidden.delete(name) : chosen.hidden.add(name);
      button.setAttribute("aria-pressed", String(!chosen.hidden.has(name)));
      followLines();
    });
    return button;
  };
  const all = element("button", { type: "button" }, chosen.hidden.size ? "Show all" : "Hide all");
  all.addEventListener("click", () => { chosen.hidden = new Set(chosen.hidden.size ? [] : order); legend(); followLines(); });
  find("legend").replaceChildren(...order.map(toggle), ...(order.length > 2 ? [all] : []));
}

function followLines() {
  targetTable(); linkTable(); costTable();
  redraw("accuracy", "spread", "traffic", "cost");
}

const FEW = 10; // more lines than this are too many to look at at once
function startSetting() {
  const order = page().order;
  chosen.hidden = new Set(order.length > FEW ? order.slice(8).filter((n) => n !== page().local) : []);
  const target = named(page().local ?? order[0]);
  chosen.moment = named(order[0])?.moment ?? "pre";
  const last = target?.curves[target.moment]?.mean.at(-1) ?? 0.5;
  chosen.target = metric().percent ? Math.floor(last * 200) / 200 : last;
  chosen.line = order.find((n) => n !== page().local) ?? order[0];
  chosen.against = page().local && page().local !== chosen.line ? page().local : "floor";
  chosen.at = null;
}

function controls() {
  for (const part of document.querySelectorAll(".of-setting")) part.hidden = Number(part.dataset.setting) !== chosen.setting;
  chosen.part = fill(find("part"), Object.keys(page().partition).map((p) => [p, PARTS[p]]), chosen.part);
  if (!find("legend")) return;
  const moments = Object.keys(MOMENTS).filter((m) => page().lines.some((l) => l.curves[m]));
  chosen.moment = fill(find("moment"), moments.map((m) => [m, MOMENTS[m]]), chosen.moment);
  chosen.x = fill(find("xaxis"), [["round", "rounds"], ["mb", "megabytes sent"]], chosen.x);
  targetRange();
  chosen.line = fill(find("client-line"), page().order.map((n) => [n, n]), chosen.line);
  const others = [...page().order.map((n) => [n, n]), ["floor", "guessing (floor)"]];
  chosen.against = fill(find("against"), others, chosen.against);
  insideControls(); legend(); targetTable(); clientTable(); linkTable(); costTable();
}

function on(id, event, act) {
  find(id)?.addEventListener(event, (e) => act(e.target.value));
}

function setTheme(name) {
  document.documentElement.dataset.theme = name;
  find("theme").textContent = name === "dark" ? "Light theme" : "Dark theme";
}

function retheme(name) {
  setTheme(name);
  controls();
  redraw();
}

function listen() {
  on("setting", "change", (v) => { chosen.setting = Number(v); startSetting(); controls(); redraw(); });
  on("moment", "change", (v) => { chosen.moment = v; targetTable(); redraw("accuracy"); });
  on("xaxis", "change", (v) => { chosen.x = v; redraw("accuracy"); });
  on("target", "input", (v) => { chosen.target = metric().percent ? v / 100 : Number(v); targetTable(); redraw("accuracy"); });
  on("client-line", "change", (v) => { chosen.line = v; clientTable(); redraw("against"); });
  on("against", "change", (v) => { chosen.against = v; clientTable(); redraw("against"); });
  on("part", "change", (v) => { chosen.part = v; redraw("labels"); });
  on("link", "change", (v) => { [find("link-up").value, find("link-down").value] = LINKS[v]; linkTable(); });
  for (const way of ["up", "down"]) on(`link-${way}`, "input", linkTable);
  on("inside-line", "change", (v) => { chosen.inside = v; chosen.at = null; insideControls(); redraw("inside"); });
  on("inside-what", "change", (v) => { chosen.what = v; chosen.at = null; insideControls(); redraw("inside"); });
  on("inside-index", "change", (v) => { chosen.index = Number(v); redraw("inside"); });
  on("inside-round", "input", (v) => { chosen.at = Number(v); insideControls(); redraw("inside"); });
  find("theme").addEventListener("click", () => retheme(theme() === "dark" ? "light" : "dark"));
  find("print").addEventListener("click", () => window.print());
  let screen = theme();
  window.addEventListener("beforeprint", () => {
    screen = theme();
    document.body.classList.add("on-paper"); // as wide as a sheet, or charts would be cut off
    setTheme("light");
    controls();
    Object.keys(charts).forEach(draw);
  });
  window.addEventListener("afterprint", () => { document.body.classList.remove("on-paper"); retheme(screen); });
  let width = window.innerWidth; // a phone changes its height whenever it scrolls
  window.addEventListener("resize", () => { if (width !== window.innerWidth) { width = window.innerWidth; redraw(); } });
  document.addEventListener("click", async (e) => {
    if (!e.target.matches(".copy")) return;
    await navigator.clipboard.writeText(e.target.previousElementSibling.textContent);
    e.target.textContent = "Copied";
  });
}

// -- a live page asks for news; a page from disk never does
async function follow({ live, version }) {
  const banner = document.querySelector(".live");
  let shape = null;
  for (;;) {
    try {
      const news = await (await fetch(`${live}?since=${version}`)).json();
      shape ??= JSON.stringify(news.shape);
      if (news.shape && JSON.stringify(news.shape) !== shape) return location.reload();
      if (news.data) show(news);
      version = news.version;
      banner.textContent = news.status;
    } catch {
      banner.textContent = "headwise watch has ended: these are the last numbers";
    }
    await new Promise((done) => setTimeout(done, 1000));
  }
}

function show(news) {
  pages = news.data;
  find("sections").innerHTML = news.sections; // made by the same template, which escapes all names
  document.querySelectorAll("#sections .sortable").forEach(makeSortable);
  controls();
  redraw();
}

setTheme(matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
if (find("link")) {
  fill(find("link"), Object.keys(LINKS).map((n) => [n, n]), Object.keys(LINKS)[0]);
  [find("link-up").value, find("link-down").value] = LINKS[find("link").value];
}
document.querySelectorAll("#sections .sortable").forEach(makeSortable);
startSetting();
listen();
controls();
for (const c of Object.values(charts)) seen.observe(c.figure);
if (document.body.dataset.live) follow(document.body.dataset);
