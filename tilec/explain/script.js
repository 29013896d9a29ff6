// What the page does: links lines of source and stages, draws layouts, moves by keys. Without a
// library and without the network.
(() => {
"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const $ = id => document.getElementById(id);
const all = (query, at = document) => [...at.querySelectorAll(query)];
let line = 0, shown = null, rows = [], cursor = -1;

// --- source and stages ---

function make(tag, kind, text) {
  const made = document.createElement(tag);
  if (kind) made.className = kind;
  if (text !== undefined) made.textContent = text;
  return made;
}

function show(number) {
  const stage = data.stages[number];
  if (!stage || shown === number) return;
  shown = number; cursor = -1;
  const pane = $("stage"), part = document.createDocumentFragment();
  rows = stage.lines.map((text, i) => {
    const place = stage.places[i], row = make("div", place ? "row" : "row none");
    row.append(make("span", "n", place || ""), make("span", "", text));
    row.dataset.at = i;
    part.append(row);
    return row;
  });
  pane.replaceChildren(part);
  pane.scrollTop = 0;
  $("stages").value = number;
  $("about").textContent = stage.about;
  mark(true);
}

function hits() {
  const places = shown === null ? [] : data.stages[shown].places;
  return rows.filter((_, i) => line && places[i] === line);
}

function mark(scroll) {
  for (const row of rows) row.classList.remove("hit");
  const found = hits();
  for (const row of found) row.classList.add("hit");
  if (scroll && found.length) within($("stage"), found[0]);
  const stage = data.stages[shown];
  $("status").textContent = !line ? "no line is selected"
    : `line ${line}: ${found.length} of ${rows.length} lines of ${stage.name}`;
}

// Scrolls a pane, and not the page, so that a row is seen.
function within(pane, row) {
  const top = row.offsetTop - pane.offsetTop, height = pane.clientHeight;
  if (top < pane.scrollTop + 20 || top > pane.scrollTop + height - 40) pane.scrollTop = top - height / 3;
}

function select(number, from) {
  line = number;
  for (const e of all(".sel")) e.classList.remove("sel");
  for (const e of all(`[data-line="${line}"]`)) {
    if (e.matches("button")) { const tr = e.closest("tr"); if (tr) tr.classList.add("sel"); }
    else e.classList.add("sel");
  }
  const row = $(`L${line}`);
  if (row) {
    within($("source"), row);
    $("source").setAttribute("aria-activedescendant", row.id);
  }
  mark(from !== "stage");
}

function step(by) {
  const lines = all("#source .row").map(r => +r.dataset.line);
  const at = lines.indexOf(line);
  select(lines[Math.max(0, Math.min(lines.length - 1, at < 0 ? 0 : at + by))]);
}

function move(to) {
  if (!rows.length) return;
  if (rows[cursor]) rows[cursor].classList.remove("cursor");
  cursor = Math.max(0, Math.min(rows.length - 1, to));
  rows[cursor].classList.add("cursor");
  within($("stage"), rows[cursor]);
  const place = data.stages[shown].places[cursor];
  if (place) select(place, "stage");
}

function next(by) {
  const found = hits().map(r => +r.dataset.at);
  if (!found.length) return;
  const ahead = by > 0 ? found.find(i => i > cursor) : found.findLast(i => i < cursor);
  move(ahead === undefined ? found[by > 0 ? 0 : found.length - 1] : ahead);
}

data.stages.forEach((stage, i) => {
  const option = make("option", "", `${i + 1}. ${stage.name}`);
  option.value = i;
  $("stages").append(option);
});
$("stages").addEventListener("change", () => show(+$("stages").value));
$("before").addEventListener("click", () => show(shown - 1));
$("after").addEventListener("click", () => show(shown + 1));
$("source").addEventListener("click", e => {
  const row = e.target.closest(".row");
  if (row) select(+row.dataset.line);
});
$("stage").addEventListener("click", e => {
  const row = e.target.closest(".row");
  if (row) move(+row.dataset.at);
});
$("source").addEventListener("keydown", e => {
  const by = { ArrowDown: 1, ArrowUp: -1, PageDown: 15, PageUp: -15, Home: -1e6, End: 1e6 }[e.key];
  if (by) { step(by); e.preventDefault(); }
});
$("stage").addEventListener("keydown", e => {
  const by = { ArrowDown: 1, ArrowUp: -1, PageDown: 25, PageUp: -25, Home: -1e6, End: 1e6 }[e.key];
  if (by) { move(cursor + by); e.preventDefault(); }
});
document.addEventListener("click", e => {
  const button = e.target.closest("button.line");
  if (!button) return;
  select(+button.dataset.line);
  $("source").focus({ preventScroll: true });
  $("source-stages").scrollIntoView();
});
document.addEventListener("keydown", e => {
  if (e.ctrlKey || e.metaKey || e.altKey || e.target.matches("select, input")) return;
  const act = { "[": () => show(shown - 1), "]": () => show(shown + 1), n: () => next(1), p: () => next(-1),
    t: theme }[e.key];
  if (act) { act(); e.preventDefault(); }
});

// --- light and dark ---

function theme() {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark"
    : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  if (drawn) draw();
}
$("theme").addEventListener("click", theme);

// --- timelines ---

for (const svg of all("svg.timeline")) {
  const bars = all(".b", svg).filter(b => !b.matches(".wait"));
  const told = svg.closest(".scroll").nextElementSibling;
  let at = -1;
  const go = (i, choose) => {
    if (bars[at]) bars[at].classList.remove("cursor");
    at = Math.max(0, Math.min(bars.length - 1, i));
    bars[at].classList.add("cursor");
    told.textContent = bars[at].dataset.told;
    if (choose) select(+bars[at].dataset.line);
  };
  svg.addEventListener("mouseover", e => {
    const bar = e.target.closest(".b");
    if (bar) told.textContent = bar.dataset.told;
  });
  svg.addEventListener("click", e => {
    const bar = e.target.closest(".b");
    if (bar && bars.includes(bar)) go(bars.indexOf(bar), true);
  });
  svg.addEventListener("keydown", e => {
    const by = { ArrowRight: 1, ArrowLeft: -1, Home: -1e6, End: 1e6 }[e.key];
    if (by) { go(at + by, false); e.preventDefault(); }
    if (e.key === "Enter" && at >= 0) { select(+bars[at].dataset.line); e.preventDefault(); }
  });
}

// --- layouts ---

let drawn = null, spot = [0, 0];

// The coordinates that each index of an owner adds, and those that it crosses (XOR).
function parts(layout, owner) {
  const made = [];
  for (let i = 0; i < layout.sizes[owner]; i++) {
    const add = layout.shape.map(() => 0), cross = layout.shape.map(() => 0);
    for (const [who, weight, radix, steps, inside] of layout.digits) {
      const n = who === owner ? Math.floor(i / weight) % radix : 0;
      if (n) steps.forEach((s, k) => { if (inside) cross[k] ^= s; else add[k] += n * s; });
    }
    made.push([add, cross]);
  }
  return made;
}

// Where each element lives, by its row-major number: the first of its places, and how many it has.
function solve(layout) {
  const size = layout.shape.reduce((a, b) => a * b, 1);
  const found = { count: new Int32Array(size) };
  const memory = layout.space === "shared";
  const owners = memory ? ["offset"] : ["warp", "lane", "reg"];
  for (const o of owners) found[o] = new Int32Array(size).fill(-1);
  const lists = owners.map(o => parts(layout, o)), at = owners.map(() => 0);
  const total = lists.reduce((n, l) => n * l.length, 1);
  for (let i = 0; i < total; i++) {
    let rest = i;
    for (let k = owners.length - 1; k >= 0; k--) { at[k] = rest % lists[k].length; rest = Math.floor(rest / lists[k].length); }
    let number = 0;
    layout.shape.forEach((extent, d) => {
      let sum = 0, cross = 0;
      lists.forEach((l, k) => { sum += l[at[k]][0][d]; cross ^= l[at[k]][1][d]; });
      number = number * extent + sum + cross;
    });
    found.count[number]++;
    if (found[owners[0]][number] < 0) owners.forEach((o, k) => {
      const v = at[k];
      found[o][number] = o === "offset" && layout.pad ? v + Math.floor(v / layout.pad[0]) * layout.pad[1] : v;
    });
  }
  return found;
}

const BANKS = 32, WIDE = 16;  // columns of the part that is shown large
const WAYS = {
  fragment: [["thread", "by warp and lane"], ["warp", "by warp"], ["lane", "by lane"], ["reg", "by register"]],
  shared: [["bank", "by bank"], ["chunk", "by 16 bytes of a row of banks"], ["offset", "by address"]],
};

function value(p, i, way) {
  const l = p.layout;
  switch (way) {
    case "thread": return p.at.warp[i] * l.sizes.lane + p.at.lane[i];
    case "bank": return Math.floor(p.at.offset[i] * l.bits / 32) % BANKS;
    case "chunk": return Math.floor(p.at.offset[i] * l.bits / 128) % 8;
    default: return p.at[way][i];
  }
}

function colour(p, i, way) {
  const l = p.layout, v = value(p, i, way);
  if (way === "thread") {
    const hue = p.at.warp[i] * 360 / Math.max(l.sizes.warp, 4), lane = p.at.lane[i] / l.sizes.lane;
    return `hsl(${hue} 62% ${58 + 30 * lane}%)`;
  }
  const most = { warp: l.sizes.warp, lane: l.sizes.lane, reg: l.sizes.reg, bank: BANKS, chunk: 8,
    offset: l.sizes.offset }[way];
  return `hsl(${Math.round(330 * v / Math.max(most, 1))} 62% 70%)`;
}

function told(p, i, at) {
  const l = p.layout, where = `[${at.join(", ")}]`;
  if (l.space === "shared") {
    const offset = p.at.offset[i], byte = offset * l.bits / 8;
    return `${l.name}${where}: element ${offset} of the buffer, byte ${byte}, bank ${value(p, i, "bank")}`;
  }
  const copies = p.at.count[i] > 1 ? `; ${p.at.count[i]} places hold it` : "";
  return `${l.name}${where}: thread ${value(p, i, "thread")} (warp ${p.at.warp[i]}, lane ${p.at.lane[i]}), `
    + `element ${p.at.reg[i]} of the thread${copies}`;
}

function plane(layout) {
  const columns = layout.shape[layout.shape.length - 1];
  return [layout.shape.slice(0, -1).reduce((a, b) => a * b, 1), columns];
}

function open(number) {
  const layout = data.layouts[number];
  drawn = { layout, at: solve(layout), plane: plane(layout) };
  spot = [0, 0];
  all("#buffers button").forEach((b, i) => {
    b.setAttribute("aria-selected", i === number);
    b.tabIndex = i === number ? 0 : -1;
  });
  const way = $("way");
  way.replaceChildren(...WAYS[layout.space].map(([v, words]) => { const o = make("option", "", words); o.value = v; return o; }));
  const stages = layout.stages > 1 ? `, ${layout.stages} slots of a ring` : "";
  const facts = $("layout-facts");
  facts.replaceChildren(
    `${layout.space} ${layout.shape.join(" x ")} ${layout.dtype}${stages}`, make("br"),
    "layout ", make("code", "", layout.text), make("br"),
    layout.reason ? `because of ${layout.reason.replace(/^\w+: /, "")}` : "made by a pass");
  draw();
}

function draw() {
  const p = drawn, [height, width] = p.plane, way = $("way").value;
  const scale = Math.max(1, Math.min(16, Math.floor(560 / width), Math.floor(420 / height) || 1));
  const canvas = $("tile"), g = canvas.getContext("2d");
  canvas.width = width * scale; canvas.height = height * scale;
  for (let i = 0; i < height; i++) for (let j = 0; j < width; j++) {
    g.fillStyle = colour(p, i * width + j, way);
    g.fillRect(j * scale, i * scale, scale, scale);
  }
  const [top, left] = corner();
  g.strokeStyle = "#000"; g.lineWidth = 2;
  g.strokeRect(left * scale, top * scale, Math.min(WIDE, width) * scale, Math.min(8, height) * scale);
  g.strokeStyle = "#fff"; g.lineWidth = 1;
  g.strokeRect(left * scale, top * scale, Math.min(WIDE, width) * scale, Math.min(8, height) * scale);
  zoom(top, left, way);
}

function corner() {
  const [height, width] = drawn.plane;
  return [Math.max(0, Math.min(height - 8, spot[0] & ~7)), Math.max(0, Math.min(width - WIDE, spot[1] - spot[1] % WIDE))];
}

function zoom(top, left, way) {
  const p = drawn, [height, width] = p.plane, table = $("zoom"), body = make("tbody");
  const head = make("tr");
  head.append(make("th", "", p.layout.space === "shared" ? "bank" : ""));
  for (let j = left; j < Math.min(left + WIDE, width); j++) head.append(make("th", "", j));
  body.append(head);
  for (let i = top; i < Math.min(top + 8, height); i++) {
    const row = make("tr");
    row.append(make("th", "", i));
    for (let j = left; j < Math.min(left + WIDE, width); j++) {
      const n = i * width + j;
      const words = p.layout.space === "shared" ? value(p, n, "bank") : `T${value(p, n, "thread")}:${p.at.reg[n]}`;
      const cell = make("td", i === spot[0] && j === spot[1] ? "at" : "", words);
      cell.style.background = colour(p, n, way);
      row.append(cell);
    }
    body.append(row);
  }
  table.replaceChildren(body);
  const n = spot[0] * width + spot[1], at = [];
  let rest = n;
  for (let d = p.layout.shape.length - 1; d >= 0; d--) { at.unshift(rest % p.layout.shape[d]); rest = Math.floor(rest / p.layout.shape[d]); }
  $("spot").textContent = told(p, n, at);
}

function go(i, j) {
  const [height, width] = drawn.plane;
  spot = [Math.max(0, Math.min(height - 1, i)), Math.max(0, Math.min(width - 1, j))];
  draw();
}

if (data.layouts.length) {
  data.layouts.forEach((layout, i) => {
    const button = make("button", "", layout.name);
    button.setAttribute("role", "tab");
    button.addEventListener("click", () => open(i));
    button.addEventListener("keydown", e => {
      const by = { ArrowRight: 1, ArrowLeft: -1 }[e.key];
      if (!by) return;
      const to = (i + by + data.layouts.length) % data.layouts.length;
      open(to);
      all("#buffers button")[to].focus();
    });
    $("buffers").append(button);
  });
  $("way").addEventListener("change", draw);
  $("tile").addEventListener("click", e => {
    const box = $("tile").getBoundingClientRect(), [height, width] = drawn.plane;
    go(Math.floor((e.clientY - box.top) / box.height * height), Math.floor((e.clientX - box.left) / box.width * width));
  });
  $("tile").addEventListener("keydown", e => {
    const by = { ArrowDown: [1, 0], ArrowUp: [-1, 0], ArrowRight: [0, 1], ArrowLeft: [0, -1],
      PageDown: [8, 0], PageUp: [-8, 0], Home: [-1e6, -1e6], End: [1e6, 1e6] }[e.key];
    if (by) { go(spot[0] + by[0], spot[1] + by[1]); e.preventDefault(); }
  });
  open(0);
}

show(Math.max(0, data.stages.findIndex(s => s.name === data.first)));
if (data.line) select(data.line);
window.tilec = { data, solve, select, show };
})();
