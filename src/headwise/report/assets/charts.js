// The charts: each function gives what ECharts draws, how tall it is, and the table behind it.

const MOMENTS = {
  pre: "right after a download (pre)",
  post: "right after training, participants only (post)",
  stale: "each client's own last model (stale)",
  global: "the one global model (global)",
};
const PARTS = { train: "training", val: "validation", test: "test" };
const curveOf = (line) => line.curves[chosen.moment];
const SAME = 0.0005; // a smaller difference is printed as 0.0 points or 0.000
const BAR = 26; // pixels for a line of a bar chart

function band(line, curve, xs) {
  const low = curve.mean.map((m, i) => [xs[i], m - curve.std[i]]);
  const high = curve.mean.map((m, i) => [xs[i], m + curve.std[i]]).reverse();
  const polygon = (params, api) => params.dataIndex ? null : {
    type: "polygon", shape: { points: [...low, ...high].map((p) => api.coord(p)) },
    style: { fill: colour(line), opacity: 0.15 },
  };
  return { type: "custom", silent: true, clip: true, renderItem: polygon, data: low, z: 1, tooltip: { show: false } };
}

chart("accuracy", () => {
  const lines = shown().filter(curveOf);
  if (!page().lines.some(curveOf)) return null;
  const xs = (line) => curveOf(line)[chosen.x];
  const series = lines.flatMap((line) => {
    const curve = curveOf(line);
    const drawn = {
      type: "line", name: line.name, data: curve.mean.map((m, i) => [xs(line)[i], m, curve.std[i], i]), symbol: mark(line), symbolSize: 5,
      showSymbol: curve.mean.length < 40, color: colour(line), lineStyle: { width: 2.2, type: dash(line) }, z: 2, emphasis: { focus: "series" },
    };
    return curve.std.some((s) => s > 0) ? [band(line, curve, xs(line)), drawn] : [drawn];
  });
  const level = (y, text) => ({ yAxis: y, label: { formatter: text, position: "insideStartTop", color: ink("soft") }, lineStyle: { color: ink("mark"), type: "dashed" } });
  const levels = [level(chosen.target, "target")];
  if (page().floor != null) levels.push(level(page().floor, "floor: guessing"));
  series.push({ type: "line", data: [], markLine: { silent: true, symbol: "none", precision: 6, data: levels } });
  const overlap = { show: true, type: "slider", height: 18, bottom: 6, brushSelect: false, borderColor: ink("line"), textStyle: { color: ink("soft") } };
  const title = chosen.x === "round" ? "round" : "megabytes sent, up and down";
  const tell = (p) => tip([[element("b", {}, p.seriesName)], `${chosen.x === "round" ? "round" : "after"} ${number(p.value[0])}${chosen.x === "mb" ? " MB" : ""}`, `${score(p.value[1])} ± ${spread(p.value[2])}`]);
  const best = [...lines].sort((a, b) => gain(curveOf(b).mean.at(-1), curveOf(a).mean.at(-1)))[0];
  return {
    height: narrow() ? 360 : 460, marks: sum(lines.map((l) => curveOf(l).mean.length)),
    option: {
      grid: { left: 12, right: 20, top: 28, bottom: 52, containLabel: true },
      xAxis: axis(title, { splitLine: { show: false }, minInterval: chosen.x === "round" ? 1 : 0 }), yAxis: scores("", { scale: true }),
      dataZoom: [overlap, { type: "inside", zoomOnMouseWheel: "ctrl", moveOnMouseWheel: false }],
      tooltip: tooltip({ trigger: "item", formatter: tell }), series,
    },
    words: best ? `Best at the end: ${best.name}, ${score(curveOf(best).mean.at(-1))}.` : "No method is shown.",
    head: ["method", "round", "MB sent", metric().label, "± std over seeds"],
    rows: lines.flatMap((l) => curveOf(l).round.map((t, i) => [l.name, t, number(curveOf(l).mb[i], 3), score(curveOf(l).mean[i]), spread(curveOf(l).std[i])])),
  };
});

const nameAt = (line) => `${line.name} (${line.moment})`;
const clientsOf = (line) => (line ? line.clients[line.moment] ?? line.clients.global ?? [] : []);
const has = (values) => values.filter((v) => v != null);

chart("spread", () => {
  const lines = page().order.map(named).filter((l) => !chosen.hidden.has(l.name) && has(clientsOf(l)).length);
  if (!page().order.length) return null;
  const jitter = (c) => ((c * 0.6180339887) % 1) - 0.5; // evenly scattered, and the same each time
  const dots = lines.flatMap((l, i) => clientsOf(l).flatMap((v, c) => (v == null ? [] : [{ value: [v, i + jitter(c) * 0.55, c], itemStyle: { color: colour(l) }, name: l.name, symbol: mark(l) }])));
  const at = (f) => lines.map((l, i) => ({ value: [f(l), i], name: l.name }));
  const tell = (p) => tip([[element("b", {}, p.name)], p.seriesName === "clients" ? `client ${clientName(p.value[2])}: ${score(p.value[0])}` : `${p.seriesName}: ${score(p.value[0])}`]);
  return {
    height: 90 + Math.max(lines.length, 1) * 38, marks: dots.length,
    option: {
      xAxis: scores(`${metric().label} (${lines[0]?.moment})`, { ...(metric().percent && dots.length ? range(dots.map((d) => d.value[0])) : {}), scale: true, axisLine: { show: false } }),
      yAxis: [{ type: "value", min: -0.5, max: Math.max(lines.length, 1) - 0.5, inverse: true, show: false }, categories(lines.map((l) => l.name), { position: "left" })],
      grid: { left: 12, right: 20, top: 12, bottom: 36, containLabel: true }, tooltip: tooltip({ formatter: tell }),
      series: [
        { type: "scatter", name: "clients", data: dots, symbolSize: dots.length > 800 ? 5 : 8, itemStyle: { opacity: 0.6 } },
        { type: "scatter", name: "mean over clients", data: at((l) => mean(has(clientsOf(l)))), symbol: "diamond", symbolSize: 16, itemStyle: { color: ink("paper"), borderColor: ink("ink"), borderWidth: 2 } },
        { type: "scatter", name: "worst tenth", data: at((l) => l.worst), symbol: "rect", symbolSize: [4, 24], itemStyle: { color: ink("ink") } },
        { type: "bar", yAxisIndex: 1, data: lines.map(() => null) },
      ],
    },
    head: ["method", "mean over clients", "worst tenth", "lowest", "highest"],
    rows: lines.map((l) => [l.name, score(mean(has(clientsOf(l)))), score(l.worst), score(Math.min(...has(clientsOf(l)))), score(Math.max(...has(clientsOf(l))))]),
  };
});

const reference = () => (chosen.against === "floor" ? page().floors : clientsOf(named(chosen.against)));

chart("against", () => {
  const line = named(chosen.line);
  const other = reference();
  const pairs = clientsOf(line).map((v, c) => [other[c], v, c]).filter((p) => p[0] != null && p[1] != null);
  if (!line || !pairs.length) return null;
  const title = chosen.against === "floor" ? "guessing, without inputs" : nameAt(named(chosen.against));
  const ends = range(pairs.flatMap((p) => p.slice(0, 2)));
  const tell = (p) => tip([`client ${clientName(p.value[2])}`, `${score(p.value[1])}, against ${score(p.value[0])}`, `${points(gain(p.value[1], p.value[0]))} ${unit()}`]);
  const better = (p) => { const g = gain(p[1], p[0]); return Math.abs(g) < SAME ? 0 : Math.sign(g); };
  const looks = { "1": ["circle", palette(0)], "-1": ["triangle", palette(1)], "0": ["rect", ink("mark")] };
  const dot = (p) => ({ value: p, symbol: looks[better(p)][0], itemStyle: { color: looks[better(p)][1] } });
  const diagonal = { silent: true, symbol: "none", lineStyle: { color: ink("mark") }, data: [[{ coord: [ends.min, ends.min] }, { coord: [ends.max, ends.max] }]] };
  const count = (sign) => pairs.filter((p) => better(p) === sign).length;
  return {
    height: narrow() ? 340 : 440, marks: pairs.length,
    option: {
      grid: { left: 12, right: 24, top: 28, bottom: 36, containLabel: true },
      xAxis: scores(short(title), ends), yAxis: scores(short(nameAt(line)), { ...ends, nameLocation: "end", nameGap: 10, nameTextStyle: { color: ink("soft"), align: "left" } }),
      tooltip: tooltip({ formatter: tell }),
      series: [{ type: "scatter", symbolSize: 10, data: pairs.map(dot), itemStyle: { opacity: 0.8 }, markLine: diagonal }],
    },
    words: `${count(1)} clients gain (dots), ${count(-1)} lose (triangles), ${count(0)} do neither (squares).`,
    head: ["client", nameAt(line), title, unit()],
    rows: pairs.map(([x, y, c]) => [clientName(c), score(y), score(x), points(gain(y, x))]),
  };
});

const short = (text) => (text.length > 40 ? `${text.slice(0, 39)}…` : text);
const clientName = (c) => (page().names ? `${c} (${short(page().names[c])})` : String(c));
const className = (k) => page().classes?.[k] ?? `class ${k}`;

chart("labels", () => {
  const counts = page().partition[chosen.part];
  const cells = counts.flatMap((row, c) => row.flatMap((n, k) => (n ? [[c, k, n]] : [])));
  if (!cells.length) return null;
  const [clients, classes] = [counts.length, counts[0].length];
  const most = Math.max(...cells.map((cell) => cell[2]));
  const height = Math.min(900, 90 + classes * (classes > 30 ? 9 : 24));
  const room = Math.min((find("fig-labels").clientWidth - 90) / clients, (height - 70) / classes) * 1.15;
  return {
    height, marks: cells.length,
    option: {
      grid: { left: 12, right: 20, top: 26, bottom: 36, containLabel: true },
      xAxis: axis("client", { type: "category", data: counts.map((_, c) => clientName(c)), splitLine: { show: false } }),
      yAxis: axis("class", { nameLocation: "start", nameGap: 6, type: "category", data: counts[0].map((_, k) => className(k)), inverse: true, splitLine: { show: classes <= 30, lineStyle: { color: ink("line") } }, axisLabel: { color: ink("soft"), width: narrow() ? 70 : 140, overflow: "truncate" } }),
      tooltip: tooltip({ formatter: (p) => tip([`client ${clientName(p.value[0])}, ${className(p.value[1])}`, `${number(p.value[2])} samples`]) }),
      series: [{ type: "scatter", data: cells, symbolSize: (v) => Math.max(2.5, Math.sqrt(v[2] / most) * Math.min(room, 34)), itemStyle: { color: palette(0), opacity: 0.75 } }],
    },
    words: `${clients} clients, ${classes} classes; the largest bubble is ${most} samples.`,
    head: ["client", ...counts[0].map((_, k) => className(k))],
    rows: counts.map((row, c) => [clientName(c), ...row]),
  };
});

chart("sizes", () => {
  const parts = Object.entries(page().partition);
  const { train } = page().partition;
  const bars = (name, counts, i) => ({ type: "bar", name, stack: "all", data: counts.map(sum), color: palette(i), barCategoryGap: "15%" });
  return {
    height: 260, marks: train.length * parts.length,
    option: {
      grid: { left: 12, right: 20, top: 34, bottom: 36, containLabel: true }, legend: { top: 0, textStyle: { color: ink("ink") } },
      aria: patterns(),
      xAxis: axis("client", { type: "category", data: train.map((_, c) => clientName(c)), splitLine: { show: false } }), yAxis: axis(""),
      tooltip: tooltip({ formatter: (p) => tip([`client ${p.name}`, `${p.seriesName}: ${number(p.value)} samples`]) }),
      series: parts.map(([part, counts], i) => bars(`${PARTS[part]} samples`, counts, i)),
    },
    head: ["client", ...parts.map(([part]) => `${PARTS[part]} samples`), "classes"],
    rows: train.map((row, c) => [clientName(c), ...parts.map(([, counts]) => sum(counts[c])), row.filter((n) => n).length]),
  };
});
