// The page: settings in, grids and sentences out. One chosen element; every view follows it.
"use strict";

const M = Model(TABLES);
const byId = (id) => document.getElementById(id);
const SETTINGS = ["spec", "direction", "layout", "packing", "byte", "rows", "columns", "dtype", "show", "values", "compare"];
const ROWS = 16;
const LINE = 16;
const GRIDS = ["matrix", "data", "linear", "tiled"];
const LONGEST = 16000; // characters of values in a link
let model = null;
let other = null; // the model of the specification to compare with
let written = ""; // the last link
let tensor = null; // x with the elements that were set, and what it was made of
let made = "";
let against = ""; // why the other specification has no answer
let chosen = [37, 130];
let corner = [0, 0];
let scaleByte = null; // a chosen byte of padding: {grid, offset}
const DEFAULTS = {
  spec: "nvfp4", direction: "row", layout: "tiled_128x4", packing: "canonical", dtype: "float32", show: "codes",
  shape: "160x256", element: "37,130",
};
const UNSAID = ["packing", "dtype", "show"]; // a link does not name them where they are as at first
const focus = { matrix: null, data: null, linear: null, tiled: null };

function make(tag, attributes, text = "") {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.textContent = text;
  return element;
}

function settings() {
  const read = Object.fromEntries(SETTINGS.map((name) => [name, byId(name).value]));
  return { ...read, rows: Number(read.rows), columns: Number(read.columns), byte: read.byte === "" ? NaN : Number(read.byte) };
}

// Read the form; show why it cannot be, or everything anew. Elements that were set stay while x is made of the same.
function update() {
  const asked = settings();
  fit(asked);
  if (TABLES.specs.find((spec) => spec.name === asked.spec).hadamard !== null && asked.direction === "column") {
    byId("dtype").value = asked.dtype = "bfloat16";
  }
  const source = [asked.rows, asked.columns, asked.dtype, asked.values].join();
  let problem = M.refusal(asked);
  if (!problem && made !== source) {
    try {
      tensor = M.tensor(asked.rows, asked.columns, asked.values, asked.dtype);
      made = source;
    } catch (error) {
      problem = error.message;
    }
  }
  byId("problem").textContent = problem;
  if (problem) return clear();
  model = M.build(asked, tensor);
  other = null;
  against = "";
  if (asked.compare && asked.compare !== asked.spec) {
    const theirs = { ...asked, spec: asked.compare };
    if (!M.packingOf(asked.packing, TABLES.specs.find((one) => one.name === asked.compare))) theirs.packing = "canonical";
    against = M.refusal(theirs);
    if (!against) other = M.build(theirs, tensor);
  }
  choose(Math.min(chosen[0], model.rows - 1), Math.min(chosen[1], model.columns - 1));
}

// Offer only what the specification uses: packings of its width, and the random byte if it is stochastic.
function fit(asked) {
  const spec = TABLES.specs.find((one) => one.name === asked.spec);
  for (const option of byId("packing").options) option.disabled = !M.packingOf(option.value, spec);
  if (byId("packing").selectedOptions[0].disabled) byId("packing").value = asked.packing = "canonical";
  byId("random").hidden = !spec.stochastic;
}

// A refused request has no answer: nothing of the last one stays on the page.
function clear() {
  model = other = null;
  silence();
  for (const id of ["matrix-note", "tiled-note", ...GRIDS, ...GRIDS.map((id) => `${id}-title`)]) byId(id).textContent = "";
}

// A refused element has no answer either; the grids still show the tensor.
function silence() {
  for (const id of ["where", "worked", "difference", "hover"]) byId(id).textContent = "";
  byId("steps").querySelector("thead").textContent = byId("steps").querySelector("tbody").textContent = "";
  if (document.activeElement !== byId("value")) byId("value").value = "";
}

// Go to an element by its row and column.
function go() {
  if (!model) return;
  const said = ["row", "column"].map((id) => byId(id).value), [row, column] = said.map(Number);
  const inside = said.every((text) => /^\d+$/.test(text)) && row < model.rows && column < model.columns;
  if (inside) return choose(row, column);
  silence();
  byId("problem").textContent = `element (${said.join(", ")}) of a ${model.rows} x ${model.columns} tensor, need row < ${model.rows} and column < ${model.columns} [NUM-4]`;
}

const wide = () => (byId("show").value === "values" ? 10 : 26);

function choose(row, column, padding = null) {
  chosen = [row, column];
  scaleByte = padding;
  const size = [ROWS, wide()], most = [model.rows, model.columns];
  corner = corner.map((start, axis) => {
    const at = chosen[axis];
    let first = Math.min(start, Math.max(most[axis] - size[axis], 0));
    if (at < first) first = Math.floor(at / 8) * 8;
    if (at >= first + size[axis]) first = Math.min(Math.floor(at / 8) * 8, Math.max(most[axis] - size[axis], 0));
    return at < first || at >= first + size[axis] ? at : first;
  });
  draw();
  written = link();
  try {
    history.replaceState(null, "", written);
  } catch (error) {
    location.hash = written; // pages without an origin may not replace their history
  }
}

// A link to all that is shown: settings, values, and elements that were set.
function link() {
  const values = byId("values").value.trim(), [row, column] = chosen;
  const set = [...model.x.own].map(([i, value]) => `${i}:${M.hex(M.numerics.bits(value), 8)}`).join(",");
  const parts = {
    spec: model.spec.name, direction: model.direction, layout: model.layout.name, shape: `${model.rows}x${model.columns}`,
    packing: model.packing, byte: model.spec.stochastic ? String(model.byte) : "",
    element: `${row},${column}`, dtype: model.dtype, compare: byId("compare").value,
    values: values.length <= LONGEST ? values : "", set: set.length <= LONGEST ? set : "", show: byId("show").value,
  };
  byId("link-note").textContent = Math.max(values.length, set.length) <= LONGEST ? ""
    : `The page's link does not contain the values: they take more than ${LONGEST} characters.`;
  const said = Object.entries(parts).filter(([name, text]) => text && !(UNSAID.includes(name) && text === DEFAULTS[name]));
  return `#${said.map(([name, text]) => `${name}=${encodeURIComponent(text).replace(/%2C/g, ",").replace(/%3A/g, ":")}`).join("&")}`;
}

const CHOICES = ["spec", "direction", "layout", "packing", "dtype", "compare", "show"];
const LINKED = [...CHOICES, "shape", "byte", "element", "values", "set"];

// Take the settings from the page's link; what it does not name is as on the page without a link.
function follow() {
  const start = new URLSearchParams(location.hash.slice(1)), wrong = [];
  const taken = (name, pattern, first) => {
    const text = start.get(name) ?? first;
    if (pattern.test(text)) return text;
    wrong.push(`${name}=${text}`);
    return first;
  };
  for (const name of CHOICES) {
    const asked = start.get(name) ?? DEFAULTS[name] ?? "";
    const known = [...byId(name).options].some((option) => option.value === asked);
    if (!known) wrong.push(`${name}=${asked}`);
    byId(name).value = known ? asked : (DEFAULTS[name] ?? "");
  }
  [byId("rows").value, byId("columns").value] = taken("shape", /^\d+x\d+$/, DEFAULTS.shape).split("x");
  byId("byte").value = taken("byte", /^\d+$/, byId("byte").defaultValue);
  chosen = taken("element", /^\d+,\d+$/, DEFAULTS.element).split(",").map(Number);
  byId("values").value = start.get("values") ?? "";
  made = "";
  const set = start.get("set")?.split(",").map((item) => /^(\d+):(0x[0-9a-f]{8})$/.exec(item)) ?? [];
  if (set.includes(null)) wrong.push(`set=${start.get("set")}`);
  for (const name of new Set(start.keys())) {
    if (!LINKED.includes(name) || start.getAll(name).length > 1) wrong.push(`${name}=${start.getAll(name).join(` and ${name}=`)}`);
  }
  if (wrong.length) { // another answer than the one that was asked for would be taken for it
    byId("problem").textContent = `link: ${wrong.join(", ")}, need what this page offers`;
    return clear();
  }
  const element = chosen;
  update();
  if (!model) return;
  for (const [, index, bits] of set) if (Number(index) < model.x.length) model.x.set(Number(index), M.parse(bits));
  if (start.get("set")) update();
  if (!start.has("element") || element.join() === chosen.join()) return;
  [byId("row").value, byId("column").value] = element;
  go();
}

function draw() {
  const [row, column] = chosen, place = M.place(model, row, column);
  const grid = scaleByte && { linear: "linear", tiled: model.layout.name, data: "data" }[scaleByte.grid];
  const padding = scaleByte && (grid === "data" ? `data byte ${scaleByte.offset}: no element is stored here [PACK-7]`
    : unused(grid, scaleByte.offset).reduce((words, rule) => `${grid} byte ${scaleByte.offset}: ${words}, no scale is stored here [${rule}]`));
  byId("where").textContent = padding || M.sentence(model, row, column);
  byId("worked").textContent = padding ? "" : M.worked(model, row, column);
  byId("problem").textContent = against;
  [byId("row").value, byId("column").value] = chosen;
  if (document.activeElement !== byId("value")) byId("value").value = M.decimal(model.x.at(row * model.columns + column));
  drawMatrix(place);
  drawData(place);
  drawScales("linear", M.layoutOf("linear"), place.linear, 8);
  drawScales("tiled", model.layout, place.tiled, 32);
  drawSteps();
}

// Fill a grid; cells: rows of {key, text, classes, label}. One cell can be reached with Tab.
function fill(id, headers, rows, current) {
  const grid = byId(id), had = grid.contains(document.activeElement);
  grid.textContent = "";
  const head = make("div", { role: "row" });
  head.append(make("span", { role: "rowheader", "aria-label": "offset" }));
  for (const [text, classes] of headers) head.append(make("span", { role: "columnheader", class: classes }, text));
  grid.append(head);
  for (const { name, cells } of rows) {
    const line = make("div", { role: "row" });
    line.append(make("span", { role: "rowheader" }, name));
    for (const cell of cells) {
      const isCurrent = cell.key === current;
      line.append(make("span", {
        role: "gridcell", class: `${cell.classes}${isCurrent ? " chosen" : ""}`, "data-key": cell.key,
        tabindex: isCurrent ? "0" : "-1", "aria-selected": String(isCurrent), "aria-label": cell.label, title: cell.label,
      }, cell.text));
    }
    grid.append(line);
  }
  focus[id] = current;
  if (had) grid.querySelector('[tabindex="0"]')?.focus();
}

function drawMatrix(place) {
  const [rows, columns] = [Math.min(ROWS, model.rows - corner[0]), Math.min(wide(), model.columns - corner[1])];
  const values = byId("show").value === "values";
  const digits = Math.ceil(TABLES.formats[model.spec.element.format].bits / 4);
  const [high, broad] = model.spec.block;
  byId("matrix").className = values ? "values" : "";
  byId("matrix-title").textContent = `x [${model.rows}, ${model.columns}]: ${values ? "values to 3 digits" : "codes in hex"}, ${model.direction} direction`;
  const lines = [];
  for (let row = corner[0]; row < corner[0] + rows; row++) {
    const cells = [];
    for (let column = corner[1]; column < corner[1] + columns; column++) {
      const [r, c] = M.turned(model, row, column);
      const code = model.code(r, c);
      const i = Math.floor(r / high), j = Math.floor(c / broad);
      const own = i === Math.floor(place.at[0] / high) && j === Math.floor(place.at[1] / broad);
      const value = M.decimal(model.x.at(row * model.columns + column));
      cells.push({
        key: `${row},${column}`,
        text: values ? M.brief(model.x.at(row * model.columns + column)) : code.toString(16).padStart(digits, "0"),
        classes: `element ${"abcd"[(j + 2 * i) % 4]}${own ? " block" : ""}`,
        label: `element (${row}, ${column}) = ${value}, code ${M.hex(code, digits)}, block (${i}, ${j})`,
      });
    }
    lines.push({ name: String(row), cells });
  }
  const headers = Array.from({ length: columns }, (_, i) => [(corner[1] + i) % 4 ? "" : String(corner[1] + i), "element"]);
  fill("matrix", headers, lines, chosen.join(","));
  byId("matrix-note").textContent = `Rows ${corner[0]} to ${corner[0] + rows - 1}, columns ${corner[1]} to ${corner[1] + columns - 1}. Fills: blocks of ${high} x ${broad}${model.direction === "column" ? " of x^T" : ""}; framed: the chosen element's block.`;
}

function lines(first, count, size, cell) {
  const found = [];
  for (let start = first; start < Math.min(first + count * LINE, size); start += LINE) {
    const cells = [];
    for (let offset = start; offset < Math.min(start + LINE, size); offset++) cells.push(cell(offset));
    found.push({ name: String(start), cells });
  }
  return found;
}

const HEADERS = Array.from({ length: LINE }, (_, i) => [`+${i}`, "byte"]);
const byteText = (value) => value.toString(16).padStart(2, "0");

function drawData(place) {
  const [high, broad] = model.spec.block;
  byId("data-title").textContent = `Data: ${model.data.bytes} bytes, ${model.data.rowBytes ? `${model.data.rowBytes} to a row of ${model.direction === "row" ? "x" : "x^T"}` : `packed as ${model.packing}`}`;
  const chosenByte = scaleByte && scaleByte.grid === "data" ? scaleByte.offset : place.dataByte;
  const first = Math.max(Math.floor(chosenByte / LINE) * LINE - 3 * LINE, 0);
  const rows = lines(first, 8, model.data.bytes, (offset) => {
    const elements = M.ofDataByte(model, offset), value = M.hex(model.byteOf(offset), 2);
    if (!elements.length) {
      return { key: String(offset), text: "··", classes: "byte pad", label: `data byte ${offset}: no element` };
    }
    const [r, c] = M.turned(model, ...elements[0]), names = ["low", "high"];
    const said = elements.map((e, i) => `(${e.join(", ")})${place.nibble && elements.length > 1 ? ` ${names[i]}` : ""}`);
    return {
      key: String(offset), text: value.slice(2),
      classes: `byte ${"abcd"[(Math.floor(c / broad) + 2 * Math.floor(r / high)) % 4]}`,
      label: `data byte ${offset} = ${value}: element${elements.length > 1 ? "s" : ""} ${said.join(", ")}`,
    };
  });
  fill("data", HEADERS, rows, String(chosenByte));
  const byte = byId("data").querySelector(".chosen"), digits = byte.textContent;
  if (place.nibble && chosenByte === place.dataByte) {
    const nibble = make("u", {}, digits[place.nibble === "high" ? 0 : 1]);
    byte.replaceChildren(...(place.nibble === "high" ? [nibble, digits[1]] : [digits[0], nibble]));
  }
}

function drawScales(id, layout, offset, count) {
  const shape = M.layouts.padded(layout, ...model.scaleShape), size = shape.reduce((all, one) => all * one, 1);
  const at = scaleByte && scaleByte.grid === id ? scaleByte.offset : offset;
  const [high, across] = M.layouts.tile(layout), tile = high * across;
  const tiled = tile > 1;
  const inside = Math.floor(at % tile / (count * LINE)) * count * LINE; // of a tile that is larger than what is drawn
  const first = tiled ? Math.floor((Math.floor(at / tile) * tile + inside) / LINE) * LINE : Math.max(Math.floor(at / LINE) * LINE - 3 * LINE, 0);
  const part = tiled ? `, tile ${Math.floor(at / tile)}: bytes ${Math.floor(at / tile) * tile} to ${(Math.floor(at / tile) + 1) * tile - 1}` : "";
  byId(`${id}-title`).textContent = `Scales, ${layout.name} [${shape.join(", ")}]${part}`;
  const { radices } = layout.axes[layout.shown[0]], band = radices.length > 2 && radices[0] ? radices[0] : 1;
  const rows = lines(first, count, size, (byte) => {
    const scale = M.ofScaleByte(model, layout, byte);
    const value = scale ? model.scale(...scale) : 0;
    return {
      key: String(byte), text: scale ? byteText(value) : "··",
      classes: `byte ${tiled && tile < count * LINE && Math.floor(byte / tile) === Math.floor(at / tile) ? "block " : ""}${scale ? "abcd"[(tiled ? Math.floor(scale[0] / band) : Math.floor(scale[1] / 4)) % 4] : "pad"}`,
      label: scale ? `${layout.name} byte ${byte} = ${M.hex(value, 2)}: scale (${scale.join(", ")})` : `${layout.name} byte ${byte}: ${unused(layout.name, byte)[0]}`,
    };
  });
  fill(id, HEADERS, rows, String(at));
  if (id === "tiled") {
    byId("tiled-note").textContent = tiled
      ? `Fills: ${band > 1 ? `rows of the tile, ${band} each` : "rows, modulo 4"}. Hatched: ${hatched(layout, first, count, size)}${tile < count * LINE ? "; framed: the tile" : ""}. [${layout.rule}]`
      : `This layout has no tiles. [${layout.rule}]`;
  }
}

// A byte without a scale is padding, or a gap that no index has.
const unused = (name, offset) => M.layouts.unused(M.layoutOf(name), offset, model.scaleColumns, model.scaleShape[0]);

function hatched(layout, first, count, size) {
  const bytes = Array.from({ length: Math.min(count * LINE, size - first) }, (_, i) => first + i);
  const found = new Set(bytes.filter((byte) => !M.ofScaleByte(model, layout, byte)).map((byte) => unused(layout.name, byte)[0]));
  return [...found].sort().reverse().join(" or ") || "padding";
}

// Rules as links to their pages where the site has them, else with their headings under the pointer.
function ruleCell(rules) {
  const cell = make("td", {});
  for (const rule of rules) {
    const title = { title: TABLES.rules[rule] ?? rule };
    cell.append(TABLES.site ? make("a", { href: `${TABLES.site}rule/${rule.toLowerCase()}.html`, ...title }, rule) : make("abbr", title, rule), " ");
  }
  return cell;
}

function drawSteps() {
  const head = byId("steps").querySelector("thead"), body = byId("steps").querySelector("tbody");
  head.textContent = body.textContent = "";
  const ours = M.steps(model, ...chosen), theirs = other ? M.steps(other, ...chosen) : [];
  const first = other ? M.firstDifference(ours, theirs) : null;
  const names = other ? ["step", model.spec.label, "bits", other.spec.label, "bits", "rules", "how"] : ["step", "value", "bits", "rules", "how"];
  const titles = make("tr", {});
  for (const name of names) titles.append(make("th", { scope: "col" }, name));
  head.append(titles);
  for (const step of ours) {
    const kept = ["code", "scale byte", "kept"].includes(step.name);
    const line = make("tr", { class: `${kept ? "kept" : ""}${step === first ? " first" : ""}` });
    for (const text of [step.name, step.value, step.bits]) line.append(make("td", {}, text));
    const same = theirs.find((one) => one.name.replace(/ 1$/, "") === step.name.replace(/ 1$/, ""));
    if (other) for (const text of [same?.value ?? "–", same?.bits ?? ""]) line.append(make("td", {}, text));
    line.append(ruleCell(step.rules), make("td", {}, step.how));
    body.append(line);
  }
  byId("difference").textContent = !other ? "" : first
    ? `First step that differs between ${model.spec.label} and ${other.spec.label} for this element: ${first.name}.`
    : `${model.spec.label} and ${other.spec.label} agree in every step that both have, for this element.`;
}

// What a cell of a grid stands for becomes the choice.
function pick(id, key) {
  if (id === "matrix") return choose(...key.split(",").map(Number));
  const offset = Number(key);
  if (id === "data") {
    const elements = M.ofDataByte(model, offset);
    if (!elements.length) return choose(...chosen, { grid: id, offset });
    return choose(...(elements.find((e) => e.join() === chosen.join()) ?? elements[0]));
  }
  const layout = id === "linear" ? M.layoutOf("linear") : model.layout;
  const scale = M.ofScaleByte(model, layout, offset);
  if (scale === null) return choose(...chosen, { grid: id, offset });
  const same = M.place(model, ...chosen).scale.join() === scale.join();
  return choose(...(same ? chosen : M.ofScale(model, scale)));
}

const MOVES = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0], PageUp: [-8, 0], PageDown: [8, 0] };

function moved(id, key, name) {
  if (id === "matrix") {
    let [row, column] = key.split(",").map(Number);
    if (name === "Home") column = 0;
    else if (name === "End") column = model.columns - 1;
    else [row, column] = [row + MOVES[name][0], column + MOVES[name][1]];
    return row >= 0 && column >= 0 && row < model.rows && column < model.columns ? `${row},${column}` : null;
  }
  const layout = id === "linear" ? M.layoutOf("linear") : model.layout;
  const shape = M.layouts.padded(layout, ...model.scaleShape);
  const size = id === "data" ? model.data.bytes : shape.reduce((all, one) => all * one, 1);
  const at = Number(key), start = Math.floor(at / LINE) * LINE;
  const next = name === "Home" ? start : name === "End" ? Math.min(start + LINE, size) - 1 : at + MOVES[name][0] * LINE + MOVES[name][1];
  return next >= 0 && next < size ? String(next) : null;
}

const keyOf = (target) => target.closest("[data-key]")?.dataset.key;

for (const id of Object.keys(focus)) {
  const grid = byId(id);
  grid.addEventListener("click", (event) => {
    const key = keyOf(event.target);
    if (key === undefined) return;
    pick(id, key);
    grid.querySelector('[tabindex="0"]')?.focus();
  });
  grid.addEventListener("keydown", (event) => {
    if (!(event.key in MOVES || event.key === "Home" || event.key === "End")) return;
    event.preventDefault();
    const next = moved(id, keyOf(event.target), event.key);
    if (next !== null) pick(id, next);
  });
  grid.addEventListener("pointerover", (event) => hover(id, keyOf(event.target)));
  grid.addEventListener("pointerleave", () => hover(id, undefined));
}

// The pointer's cell, and where its element's bytes are among those shown.
function hover(id, key) {
  for (const cell of document.querySelectorAll(".hovered")) cell.classList.remove("hovered");
  byId("hover").textContent = "";
  if (key === undefined || !model) return;
  let element = null;
  if (id === "matrix") element = key.split(",").map(Number);
  else if (id === "data") element = M.ofDataByte(model, Number(key))[0] ?? null;
  else {
    const scale = M.ofScaleByte(model, id === "linear" ? M.layoutOf("linear") : model.layout, Number(key));
    if (scale) element = M.ofScale(model, scale);
    else byId("hover").textContent = `byte ${key}: ${unused(id === "linear" ? "linear" : model.layout.name, Number(key))[0]}`;
  }
  if (!element) return;
  const place = M.place(model, ...element);
  byId("hover").textContent = M.sentence(model, ...element);
  const keys = { matrix: element.join(","), data: place.dataByte, linear: place.linear, tiled: place.tiled };
  for (const [grid, name] of Object.entries(keys)) byId(grid).querySelector(`[data-key="${name}"]`)?.classList.add("hovered");
}

// Options in groups by owner: the part of a name before its first dot.
function offer(id, entries) {
  const groups = new Map();
  for (const { name, label } of entries) {
    const owner = name.includes(".") ? name.slice(0, name.indexOf(".")) : "this standard";
    if (!groups.has(owner)) groups.set(owner, make("optgroup", { label: owner }));
    groups.get(owner).append(make("option", { value: name }, label ?? name));
  }
  byId(id).append(...groups.values());
}

offer("spec", TABLES.specs);
offer("compare", TABLES.specs);
offer("layout", TABLES.layouts);
offer("packing", [{ name: "canonical" }, ...TABLES.packings]);
if (TABLES.left_out.length) byId("left-out").textContent = `Registered, but not offered here: ${TABLES.left_out.join("; ")}.`;
for (const name of SETTINGS) byId(name).addEventListener("change", () => update());
byId("controls").addEventListener("submit", (event) => event.preventDefault());
byId("value").addEventListener("change", () => {
  if (!model) return;
  const value = M.parse(byId("value").value.trim().replace(/^([+-]?\d+),(\d+)$/, "$1.$2"));
  if (value === null) {
    byId("problem").textContent = `value: ${JSON.stringify(byId("value").value)}, need one float32 number, or bits like 0x3f800000 [NUM-3]`;
    return;
  }
  model.x.set(chosen[0] * model.columns + chosen[1], value);
  update();
});
for (const id of ["row", "column"]) byId(id).addEventListener("change", go);
window.addEventListener("hashchange", () => location.hash !== written && follow());
follow();
