// What a method costs: bytes by field, seconds by phase; and what it tells about its inside.

const perClient = (line, way) => sum(Object.values(line.traffic[way])) / Math.max(line.traffic.clients, 1);

function bars(lines, pieces, unit, { stack, value }) {
  const made = pieces.map((piece, i) => ({
    type: "bar", name: piece, stack: stack ? "all" : undefined, color: palette(i), barMaxWidth: 22, data: lines.map((l) => value(l, piece)),
  }));
  return {
    grid: { left: 12, right: 24, top: 40, bottom: 36, containLabel: true }, legend: { type: "scroll", top: 0, textStyle: { color: ink("ink") }, pageTextStyle: { color: ink("ink") } },
    aria: patterns(),
    xAxis: axis(unit), yAxis: categories(lines.map((l) => l.label ?? l.name)),
    tooltip: tooltip({ formatter: (p) => tip([[element("b", {}, p.name)], `${p.seriesName}: ${number(p.value, 3)} ${unit.split(" ")[0]}`]) }), series: made,
  };
}

chart("traffic", () => {
  const lines = shown();
  const ways = lines.flatMap((l) => [{ ...l, label: `↑ ${short(l.name)}`, way: "up" }, { ...l, label: `↓ ${short(l.name)}`, way: "down" }]);
  const fields = [...new Set(ways.flatMap((l) => Object.keys(l.traffic[l.way])))];
  const value = (l, field) => (l.traffic[l.way][field] ?? 0) / Math.max(l.traffic.clients, 1) / 1024;
  if (!page().lines.length) return null;
  return {
    height: 110 + ways.length * BAR, marks: ways.length * fields.length,
    option: bars(ways, fields, "KB per client and round", { stack: true, value }),
    head: ["message", ...fields.map((f) => `${f}, KB`)],
    rows: ways.map((l) => [l.label, ...fields.map((f) => number(value(l, f), 3))]),
  };
});

chart("cost", () => {
  const lines = shown();
  if (!page().lines.length) return null;
  const phases = [...new Set(lines.flatMap((l) => Object.keys(l.cost.seconds)))];
  const value = (l, phase) => l.cost.seconds[phase] ?? 0;
  return {
    height: 110 + lines.length * (14 + phases.length * 14), marks: lines.length * phases.length,
    option: bars(lines, phases, "seconds per round", { stack: false, value }),
    head: ["method", ...phases.map((p) => `${p}, s`)],
    rows: lines.map((l) => [l.name, ...phases.map((p) => number(value(l, p), 4))]),
  };
});

// -- inside a method: a number per client over rounds, or a matrix in one round
const quantity = () => named(chosen.inside)?.inside[chosen.what];
const snapshot = () => quantity().rounds[chosen.at] ?? quantity().rounds.at(-1);
const labelsOf = (name, size, now, q) => Array.from({ length: size }, (_, i) => (name === q.axes[0] ? now.ids[i] : i));

chart("inside", () => {
  const q = quantity();
  if (!q) return null;
  return q.axes.length === 1 ? overRounds(q) : heat(q);
});

function overRounds(q) {
  const clients = [...new Set(q.rounds.flatMap((r) => r.ids))].sort((a, b) => a - b);
  const path = (c) => q.rounds.flatMap((r) => { const i = r.ids.indexOf(c); return i < 0 ? [] : [[r.round, r.values[i]]]; });
  const tell = (p) => tip([`client ${p.seriesName}, round ${p.value[0]}`, number(p.value[1], 4)]);
  return {
    height: narrow() ? 320 : 400, marks: clients.length * q.rounds.length,
    option: {
      grid: { left: 12, right: 20, top: 28, bottom: 36, containLabel: true },
      xAxis: axis("round", { splitLine: { show: false } }), yAxis: axis(chosen.what, { nameLocation: "end", nameGap: 10, scale: true, nameTextStyle: { color: ink("soft"), align: "left" } }), tooltip: tooltip({ formatter: tell }),
      series: clients.map((c) => ({ type: "line", name: clientName(c), data: path(c), color: palette(0), lineStyle: { width: 1.5, opacity: 0.6 }, symbolSize: 5, emphasis: { focus: "series" } })),
    },
    words: `A line for each of ${clients.length} clients.`,
    head: ["client", ...q.rounds.map((r) => `round ${r.round}`)],
    rows: clients.map((c) => [clientName(c), ...q.rounds.map((r) => number(r.values[r.ids.indexOf(c)], 4))]),
  };
}

function heat(q) {
  const now = snapshot();
  const matrix = q.axes.length === 3 ? now.values[Math.min(chosen.index, now.values.length - 1)] : now.values;
  const [down, across] = q.axes.slice(-2);
  const rows = labelsOf(down, matrix.length, now, q);
  const columns = labelsOf(across, matrix[0]?.length ?? 0, now, q);
  const cells = matrix.flatMap((row, i) => row.map((v, j) => [j, i, v])).filter((cell) => cell[2] != null);
  const all = q.rounds.flatMap((r) => r.values.flat(2)).filter((v) => v != null);
  const [low, high] = all.reduce(([a, b], v) => [Math.min(a, v), Math.max(b, v)], [Infinity, -Infinity]);
  const scale = ["#00224e", "#35456c", "#666970", "#948e77", "#c8b866", "#fee838"]; // cividis: even in grey and for all kinds of sight
  return {
    height: Math.min(700, 150 + rows.length * 16), marks: cells.length,
    option: {
      grid: { left: 12, right: 20, top: 28, bottom: 84, containLabel: true },
      xAxis: axis(across, { type: "category", data: columns, nameGap: 24 }), yAxis: axis(down, { type: "category", data: rows, inverse: true, nameLocation: "start", nameGap: 10 }),
      visualMap: { min: low, max: high === low ? low + 1 : high, calculable: true, orient: "horizontal", left: "center", bottom: 0, precision: 2, inRange: { color: scale }, textStyle: { color: ink("ink") } },
      tooltip: tooltip({ formatter: (p) => tip([`${down} ${rows[p.value[1]]}, ${across} ${columns[p.value[0]]}`, number(p.value[2], 4)]) }),
      series: [{ type: "heatmap", data: cells, itemStyle: { borderColor: ink("paper"), borderWidth: cells.length > 1500 ? 0 : 1 } }],
    },
    words: `Round ${now.round}, from ${number(low, 3)} to ${number(high, 3)}.`,
    head: [down, ...columns.map((c) => `${across} ${c}`)],
    rows: matrix.map((row, i) => [rows[i], ...row.map((v) => number(v, 4))]),
  };
}
