// What the page shows, without a page: the tensor, its bytes, places, and the steps of one element.
"use strict";

globalThis.Model = function (tables) {
  const N = Numerics(tables);
  const L = Layouts(tables);
  const LIST = 1 << 18; // numbers that are held; a larger tensor repeats them
  const MOST = 2 ** 40; // elements

  const specOf = (name) => tables.specs.find((spec) => spec.name === name);
  const layoutOf = (name) => tables.layouts.find((layout) => layout.name === name);
  const widthOf = (spec) => tables.formats[spec.element.format].bits;
  const CANONICAL = "canonical";

  // A packing for the codes of a specification, or undefined if it has none of their width.
  const packingOf = (name, spec) => name === CANONICAL ? tables.canonical[widthOf(spec)]
    : tables.packings.find((packing) => packing.name === name).of[widthOf(spec)];

  // The shortest decimal that is this float32.
  function decimal(x) {
    if (!Number.isFinite(x)) return Number.isNaN(x) ? "nan" : x < 0 ? "-inf" : "inf";
    if (Object.is(x, -0)) return "-0";
    for (let digits = 1; digits <= 9; digits++) {
      const text = x.toPrecision(digits);
      if (N.f(Number(text)) === x) return String(Number(text));
    }
    return String(x);
  }

  // Three significant digits, for narrow cells.
  const brief = (x) => (Number.isFinite(x) && x ? String(Number(x.toPrecision(3))).replace("e+", "e") : decimal(x));

  const hex = (value, digits) => "0x" + value.toString(16).padStart(digits, "0");
  const floatBits = (x) => (Number.isNaN(x) ? "" : hex(N.bits(x), 8));

  // One number, with a decimal point: decimal, nan, inf, or the 8 hex digits of a float32; null if it is none.
  function parse(word) {
    const text = word.toLowerCase();
    if (/^0x[0-9a-f]{8}$/.test(text)) return N.fromBits(parseInt(text.slice(2), 16));
    if (/^[+-]?nan$/.test(text)) return NaN;
    if (/^[+-]?inf(inity)?$/.test(text)) return text.startsWith("-") ? -Infinity : Infinity;
    if (!/^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$/.test(text)) return null;
    const value = N.f(Number(text));
    return Number.isFinite(value) ? value : null;
  }

  // A NaN with its sign bit set, by its name or by its bits.
  const minusNan = (word) => Number.isNaN(parse(word)) && /^(-|0x[f])/i.test(word);

  // Values that differ from block to block, the same in every browser.
  function generated(count, columns) {
    const x = new Float32Array(count);
    for (let i = 0; i < count; i++) {
      let h = Math.imul(i + 1, 0x9e3779b1) >>> 0;
      h = Math.imul(h ^ (h >>> 15), 0x85ebca6b) >>> 0;
      h = (h ^ (h >>> 13)) >>> 0;
      const block = Math.floor(i / columns) * 3 + Math.floor((i % columns) / 16);
      x[i] = ((h % 193) - 96) / 32 * 2 ** ((block % 7) - 3);
    }
    return x;
  }

  // A tensor of any size: a list of numbers, repeated, and single elements that were set.
  function repeated(list, signs, count, rounded) {
    const own = new Map();
    return {
      length: count,
      at: (i) => own.get(i) ?? list[i % list.length],
      minus: (i) => !own.has(i) && signs.has(i % list.length),
      set: (i, value) => own.set(i, rounded(value)),
      own,
      // A number of the list counts if an element that was not set still has it.
      largest(keep) {
        const left = new Map();
        for (const i of own.keys()) left.set(i % list.length, (left.get(i % list.length) ?? 0) + 1);
        let most = 0;
        for (let i = 0; i < Math.min(list.length, count); i++) {
          const places = Math.floor(count / list.length) + (i < count % list.length ? 1 : 0);
          const held = places > (left.get(i) ?? 0);
          if (held && keep && Number.isNaN(list[i])) return NaN;
          if (held && Math.abs(list[i]) > most) most = Math.abs(list[i]);
        }
        for (const value of own.values()) {
          if (keep && Number.isNaN(value)) return NaN;
          if (Math.abs(value) > most) most = Math.abs(value);
        }
        return most;
      },
    };
  }

  const ROUNDED = { float32: (x) => N.f(x), bfloat16: N.bfloat16, float16: N.float16 };

  // x as asked for; throws a sentence if it cannot be.
  function tensor(rows, columns, text, dtype) {
    const count = rows * columns;
    const words = text.split(/[\s;]+|,(?=\s|$)/).filter((word) => word);
    let list = generated(Math.min(count, LIST), columns);
    const signs = new Set(words.flatMap((word, i) => (minusNan(word) ? [i] : []))); // of NaN with their sign bit set
    if (words.length) {
      const values = words.map(parse);
      const bad = values.indexOf(null);
      if (bad >= 0) {
        const hint = words[bad].includes(",") ? "; between numbers write a space, and 1.5 for one and a half" : "";
        throw new Error(`values: ${JSON.stringify(words[bad])}, need float32 numbers, or bits like 0x3f800000${hint} [NUM-3]`);
      }
      list = Float32Array.from(values);
    }
    return repeated(list.map(ROUNDED[dtype]), signs, count, ROUNDED[dtype]);
  }

  // Why a choice is impossible, with its rule; empty if it is possible.
  function refusal({ spec, direction, layout, packing, rows, columns, dtype, byte }) {
    if (!(Number.isInteger(rows) && Number.isInteger(columns) && rows > 0 && columns > 0)) {
      return `shape: ${rows} x ${columns}, need whole numbers of at least 1 [NUM-4]`;
    }
    if (rows * columns > MOST) {
      return `shape: ${rows} x ${columns} is too large for this page, need at most 2^40 elements; fp4ref where takes any`;
    }
    const layoutAsked = layoutOf(layout);
    const scales = direction === "row" ? [rows, columns] : [columns, rows];
    scales[1] = Math.ceil(scales[1] / specOf(spec).block[1]);
    const found = L.refused(layoutAsked, ...scales);
    if (found) {
      return `layout ${layout}: ${found[1]} ${found[0] ? "scale columns" : "scale rows"}, need a multiple of ${found[2]} [LAY-43]`;
    }
    const form = packingOf(packing, specOf(spec));
    if (!form) return `packing ${packing}: codes of ${widthOf(specOf(spec))} bits, which it does not hold [PACK-7]`;
    const odd = L.refused(form, ...(direction === "row" ? [rows, columns] : [columns, rows]));
    if (odd) return `packing ${packing}: ${odd[1]} ${odd[0] ? "columns" : "rows"}, need a multiple of ${odd[2]} [LAY-43]`;
    if (!(Number.isInteger(byte) && byte >= 0 && byte < 256)) return `random byte: ${byte}, need a whole number from 0 to 255 [SR-1]`;
    if (specOf(spec).hadamard !== null && direction === "column") {
      if (rows * columns > LIST) {
        return `shape: ${rows} x ${columns} with a Hadamard transform is too large for this page, need at most ${LIST} elements`;
      }
      if (rows % 16) return `${spec}, column: ${rows} rows, need a multiple of 16 [HAD-5]`;
      if (dtype !== "bfloat16") return `${spec}, column: x of type ${dtype}, need bfloat16 [HAD-5]`;
    }
    return "";
  }

  // Everything about one choice of settings.
  function build(settings, x) {
    const spec = specOf(settings.spec), layout = layoutOf(settings.layout);
    const made = N.lazy(x, settings.rows, settings.columns, spec, settings.direction, settings.dtype, settings.byte);
    const scaleShape = [made.matrix.shape[0], made.scaleColumns];
    const data = L.packed(packingOf(settings.packing, spec), ...made.matrix.shape);
    const [down, across] = made.matrix.shape, mask = (1 << data.unit) - 1;
    const codeAt = (r, c) => (r < down && c < across ? made.code(r, c) : data.fill(r));
    // The byte of codes, padding and gaps at an offset.
    const byteOf = (offset) => data.inByte(offset).reduce((all, [r, c, bit]) =>
      all | (((codeAt(r, c) & mask) << 8 >> (8 - bit)) & 255), 0);
    return { ...settings, spec, layout, x, ...made, data, byteOf, scaleShape, padded: L.padded(layout, ...scaleShape) };
  }

  // Element (row, column) of x as (row, column) of the direction's matrix, and back: the same exchange.
  const turned = (model, row, column) => (model.direction === "row" ? [row, column] : [column, row]);

  // The bits of a byte from `first` on in words; empty for a whole byte.
  function bitsInWords(bits, first) {
    if (bits !== 6) return bits === 4 ? (first ? "high nibble" : "low nibble") : "";
    const past = first + bits - 8;
    return `bits ${first} to ${Math.min(first + bits, 8) - 1}${past > 0 ? ` and, in the next byte, 0 to ${past - 1}` : ""}`;
  }

  function place(model, row, column) {
    const [r, c] = turned(model, row, column);
    const bit = model.data.bit(r, c), bits = model.data.unit;
    const scale = [r, Math.floor(c / model.spec.block[1])];
    return {
      at: [r, c],
      dataByte: Math.floor(bit / 8),
      part: bitsInWords(bits, bit % 8),
      nibble: bits === 4 ? (bit % 8 ? "high" : "low") : null,
      scale,
      linear: L.offset(layoutOf("linear"), ...scale, model.scaleColumns, model.scaleShape[0]),
      tiled: L.offset(model.layout, ...scale, model.scaleColumns, model.scaleShape[0]),
    };
  }

  // Elements of x in a data byte, in the order of their bits.
  const ofDataByte = (model, offset) => model.data.inByte(offset)
    .filter(([r, c]) => r < model.matrix.shape[0] && c < model.matrix.shape[1]).map(([r, c]) => turned(model, r, c));

  // The scale at a byte of a layout, or null for padding.
  function ofScaleByte(model, layout, offset) {
    const found = L.index(layout, offset, model.scaleColumns, model.scaleShape[0]);
    if (found === null) return null;
    const [row, column] = found;
    return row < model.scaleShape[0] && column < model.scaleShape[1] ? [row, column] : null;
  }

  // First element of x that a scale belongs to.
  const ofScale = (model, [row, column]) => turned(model, row, column * model.spec.block[1]);

  function tileOf(model, offset) {
    const [high, wide] = L.tile(model.layout);
    return { size: high * wide, number: Math.floor(offset / (high * wide)), shape: [high, wide] };
  }

  function sentence(model, row, column) {
    const found = place(model, row, column);
    const axis = model.direction === "row" ? `a K = ${model.columns}` : `an M = ${model.rows}`;
    const through = model.direction === "row" ? "" : ` in the column direction, (${found.at.join(", ")}) of x^T`;
    const tile = tileOf(model, found.tiled);
    const other = model.layout.name === "linear" ? "" : `, ${model.layout.name} byte ${found.tiled}`;
    const inTile = tile.size > 1 ? ` in tile ${tile.number}` : "";
    return (
      `element (${row}, ${column}) of ${axis} ${model.spec.label} tensor${through}: data byte ${found.dataByte}` +
      `${found.part && ` ${found.part}`}${model.packing === CANONICAL ? "" : ` in ${model.packing}`}, scale (${found.scale.join(", ")}), linear byte ${found.linear}` +
      `${other}${inTile}`
    );
  }

  // The sum that gives the byte of an element's scale in the chosen layout.
  function worked(model, row, column) {
    const { scale } = place(model, row, column);
    return `${model.layout.name} byte = ${L.worked(model.layout, ...scale, model.scaleColumns, model.scaleShape[0])}`;
  }

  // The first step whose bits differ between two specifications, or null. Steps are matched by their names.
  function firstDifference(ours, theirs) {
    const name = (step) => step.name.replace(/ 1$/, "");
    const other = new Map(theirs.map((step) => [name(step), step]));
    const differs = (step) => other.has(name(step)) && (step.bits !== other.get(name(step)).bits
      || (!step.bits && step.value !== other.get(name(step)).value));
    return ours.find((step) => step.name !== "block" && step.name !== "scale at" && differs(step)) ?? null;
  }

  // One element's way to its bytes: [{name, value, bits, rules, how}].
  function steps(model, row, column) {
    const { spec } = model, found = place(model, row, column);
    const [r, c] = found.at, [high, wide] = spec.block;
    const i = Math.floor(r / high), j = Math.floor(c / wide), inside = (r % high) * wide + (c % wide);
    const block = model.block(i, j);
    const list = [];
    const step = (name, value, rules, how, bits = floatBits(value)) =>
      list.push({ name, value: typeof value === "string" ? value : decimal(value), bits, rules, how });
    const formulas = spec.formulas;
    const raw = model.matrix.raw(r, c);
    const seen = block.values[inside];
    step(`x[${row}, ${column}]`, raw, ["NUM-3"], model.dtype);
    const { transformed } = model.matrix;
    if (spec.subnormals === "flush") step("flushed", seen, ["PRO-3"], "a subnormal becomes zero");
    if (transformed) {
      step("transformed", seen, ["HAD-2", "HAD-3"], `Hadamard transform, signs ${hex(spec.hadamard, 4)}`);
    }
    step("block", `${high}x${wide}`, ["BLK-1"], `block (${i}, ${j}) of ${model.direction === "row" ? "x" : "x^T"}`, "");
    step("block amax", block.blockAmax, ["BLK-2"], `largest magnitude of the block, NaN ${spec.amax === "ignore-nan" ? "ignored" : "kept"}`);
    if (block.amax !== null) {
      const per = spec.global_scale === "row" ? "row" : "tensor";
      const rules = [per === "row" ? "GLB-5" : "GLB-1", ...(transformed ? ["HAD-4"] : [])];
      step("global amax", block.amax, rules, `largest magnitude of the ${transformed ? "transformed " : ""}${per}`);
      step("global scale g", block.g, formulas.global_scale.rules, formulas.global_scale.words);
    } else {
      step("global scale g", 1, ["GLB-6"], "the format has none");
    }
    block.candidates.forEach((tried, number) => {
      const name = block.candidates.length > 1 ? ` ${number + 1}` : "";
      if (number) step(`scale t${name}`, tried.t, ["FOS-1"], "1.5 times the first");
      else step(`scale t${name}`, tried.t, formulas.block_scale.rules, formulas.block_scale.words);
      step(`scale byte${name}`, tried.s, spec.scale.rules, spec.scale.words, hex(tried.byte, 2));
      step(`factor${name}`, tried.factor, formulas.scaled.rules, "what an element 1 becomes");
      if (spec.stochastic) step("random byte", String(model.byte), ["SR-2"], "of every element", hex(model.byte, 2));
      step(`scaled y${name}`, tried.y[inside], formulas.scaled.rules, formulas.scaled.words);
      const code = tried.codes[inside], width = widthOf(spec);
      step(`code${name}`, N.decode(spec.element.format, code), spec.element.rules, spec.element.words, hex(code, Math.ceil(width / 4)));
      if (tried.error !== null) step(`block error${name}`, tried.error, ["FOS-3", "FOS-5"], `${spec.metric}: ${spec.four_over_six}`);
    });
    if (block.candidates.length > 1) {
      step("kept", String(block.chosen + 1), ["FOS-6"], "2 only if its error is strictly smaller", "");
    }
    const byte = model.byteOf(found.dataByte), form = packingOf(model.packing, spec);
    const part = `${found.part && `${found.part} of `}byte ${found.dataByte}`;
    const packingRule = model.packing === CANONICAL ? { 4: "PACK-1", 6: "PACK-4", 8: "PACK-3" }[model.data.unit] : form.rule;
    step("data byte", String(byte), [packingRule], part, hex(byte, 2));
    const linear = model.layout.name === "linear";
    const where = `linear byte ${found.linear}${linear ? "" : `, ${model.layout.name} byte ${found.tiled}`}`;
    step("scale at", `[${found.scale.join(", ")}]`, linear ? ["LAY-1"] : ["LAY-1", model.layout.rule], where, "");
    const value = model.value(r, c);
    step("dequantized", value, formulas.dequantized.rules, formulas.dequantized.words);
    step("error", N.f(value - seen), [], "dequantized value − input");
    return list;
  }

  return { build, tensor, refusal, place, ofDataByte, ofScaleByte, ofScale, tileOf, sentence, worked, steps, firstDifference, decimal, brief, hex, parse,
    turned, layoutOf, packingOf, numerics: N, layouts: L };
};
