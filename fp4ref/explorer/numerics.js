// Quantization in float32, operation by operation. Every float32 operation is one operation on doubles followed by
// Math.fround, which is the correctly rounded float32 result of + - * / on float32 operands.
// `tables` is written by the code that the page explains; nothing here repeats a value of it.
"use strict";

globalThis.Numerics = function (tables) {
  const f = Math.fround;
  const TINY = 2 ** -126;
  const TYPES = ["float32", "bfloat16", "float16"];
  const negative = (x) => x < 0 || Object.is(x, -0);
  const minus = (x, m) => (Number.isNaN(x) ? m : negative(x)); // the sign bit

  const buffer = new DataView(new ArrayBuffer(4));
  function bits(x) {
    buffer.setFloat32(0, x);
    return buffer.getUint32(0);
  }
  function fromBits(value) {
    buffer.setUint32(0, value);
    return buffer.getFloat32(0);
  }

  // Nearest bfloat16, ties to even, held as float32.
  function bfloat16(x) {
    if (!Number.isFinite(x)) return x;
    const value = bits(f(x));
    return fromBits(((value + 0x7fff + ((value >>> 16) & 1)) & 0xffff0000) >>> 0);
  }

  // Nearest float16, ties to even, held as float32.
  function float16(x) {
    if (!Number.isFinite(x) || x === 0) return x;
    const exponent = Math.max(((bits(x) >>> 23) & 255) - 127, -14);
    const scaled = Math.abs(x) / 2 ** (exponent - 10), low = Math.floor(scaled), rest = scaled - low;
    const count = rest > 0.5 || (rest === 0.5 && low % 2) ? low + 1 : low;
    const magnitude = count * 2 ** (exponent - 10);
    return (negative(x) ? -1 : 1) * (magnitude > 65504 ? Infinity : magnitude);
  }

  // How many numbers of a rising list are below x (or not above it).
  function count(list, x, equal) {
    let low = 0, high = list.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (equal ? list[middle] <= x : list[middle] < x) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  for (const form of Object.values(tables.formats)) {
    form.midpoints = form.values.slice(1).map((value, i) => (form.values[i] + value) / 2);
  }

  // Index into the grid; one past the last code means overflow. byte: the random one, for stochastic rounding.
  function gridIndex(codec, x, byte) {
    const { values, midpoints, codes } = tables.formats[codec.format], magnitude = Math.abs(x);
    const at = (list, equal) => count(list, magnitude, equal);
    const rounded = {
      even: () => (at(midpoints, false) % 2 === 0 ? at(midpoints, false) : at(midpoints, true)),
      down: () => at(midpoints, false),
      away: () => at(midpoints, true),
      up: () => at(values, false),
      truncate: () => Math.max(at(values, true) - 1, 0),
      stochastic: () => {
        const lower = Math.min(Math.max(at(values, true) - 1, 0), codes - 2);
        const moved = f(magnitude + ((values[lower + 1] - values[lower]) * byte) / 256);
        return Math.max(count(values, moved, true) - 1, 0);
      },
    };
    return Number.isNaN(x) ? codes : Math.min(rounded[codec.rounding](), codes);
  }

  // The code of x; m: if x is NaN, whether its sign bit is set.
  function encode(codec, x, m, byte) {
    if (Number.isNaN(x)) return codec.nan[m ? 1 : 0];
    const { codes, sign_bit: sign, complement } = tables.formats[codec.format], index = gridIndex(codec, x, byte);
    let code = index >= codes ? codec.overflow ?? codes - 1 : index;
    if (codec.infinity !== null && Math.abs(x) === Infinity) code = codec.infinity;
    const below = { bit: negative(x), negative: x < 0, "not-positive": x <= 0, nonzero: x < 0 && code !== 0 }[codec.sign];
    if (!below) return code;
    return complement ? (2 * sign - code) % (2 * sign) : code | sign;
  }

  // The value that encode picks, before an overflow turns into a code.
  function nearest(codec, x, m) {
    const { codes, values } = tables.formats[codec.format];
    if (![null, codec.overflow].includes(codec.infinity) && Math.abs(x) === Infinity) return NaN;
    const value = values[Math.min(gridIndex(codec, x), codec.overflow === null ? codes - 1 : codes)];
    return minus(x, m) ? -value : value;
  }

  function decode(format, code) {
    const { codes, values, sign_bit: sign, mask, infinity, complement, second_zero: zero } = tables.formats[format];
    if (complement) return (code & sign ? code - 2 * sign : code) * values[1];
    const index = code & mask;
    if (zero) return code === codes ? 0 : values[index];
    const value = index < codes ? values[index] : infinity && index === codes ? Infinity : NaN;
    return sign & code ? -value : value;
  }

  const negativeNan = (format, code) => Boolean(code & tables.formats[format].sign_bit);

  const ARITHMETICS = Arithmetics({ f, bits, fromBits, bfloat16, float16, minus, encode, decode, negativeNan });

  function hadamard(group, mask) {
    let values = group.map((x, i) => f(x * ((mask >> i) & 1 ? -0.25 : 0.25)));
    for (const stride of [1, 2, 4, 8]) {
      const next = values.slice();
      for (let i = 0; i < 16; i++) {
        if (i & stride) continue;
        next[i] = f(values[i] + values[i + stride]);
        next[i + stride] = f(values[i] - values[i + stride]);
      }
      values = next;
    }
    return values.map((x) => bfloat16(f(x + 0)));
  }

  // A running maximum from +0; NaN is ignored, or stays.
  function largest(values, keep) {
    let most = 0;
    for (const x of values) {
      if (Number.isNaN(x) && keep) return NaN;
      if (Math.abs(x) > most) most = Math.abs(x);
    }
    return most;
  }

  const flushed = (x) => (Math.abs(x) < TINY ? (negative(x) ? -0 : 0) : x);

  // The matrix of a direction: read(row, column) of x or of x^T, transformed or flushed where the specification says so;
  // minus(row, column): whether a NaN has its sign bit set.
  function matrixOf(x, rows, columns, spec, direction) {
    const turned = direction === "column";
    const shape = turned ? [columns, rows] : [rows, columns];
    const index = turned ? (r, c) => c * columns + r : (r, c) => r * columns + c;
    const raw = (r, c) => x.at(index(r, c)), sign = (r, c) => x.minus(index(r, c));
    if (!(turned && spec.hadamard !== null)) {
      const read = spec.subnormals === "flush" ? (r, c) => flushed(raw(r, c)) : raw;
      return { shape, raw, read, minus: sign, transformed: false };
    }
    const made = new Float32Array(shape[0] * shape[1]);
    for (let r = 0; r < shape[0]; r++) {
      for (let c = 0; c < shape[1]; c += 16) {
        made.set(hadamard(Array.from({ length: 16 }, (_, i) => raw(r, c + i)), spec.hadamard), r * shape[1] + c);
      }
    }
    return { shape, raw, read: (r, c) => made[r * shape[1] + c], minus: () => true, transformed: true };
  }

  // The global maximum of a row as a function of it: of the tensor, of the row, or null.
  function globalAmax(matrix, spec, x) {
    if (spec.global_scale === "none") return () => null;
    const [rows, columns] = matrix.shape, known = new Map(), keep = spec.amax === "propagate-nan";
    function* of(first, stop) {
      for (let r = first; r < stop; r++) for (let c = 0; c < columns; c++) yield matrix.read(r, c);
    }
    const listed = () => (spec.subnormals === "flush" ? flushed(x.largest(keep)) : x.largest(keep));
    const whole = () => (x.largest && !matrix.transformed ? listed() : largest(of(0, rows), keep));
    return (row) => {
      const key = spec.global_scale === "row" ? row : 0;
      if (!known.has(key)) known.set(key, spec.global_scale === "row" ? largest(of(row, row + 1), keep) : whole());
      return known.get(key);
    };
  }

  // Values of the block (i, j), row by row, +0 past the matrix, and the signs of NaN.
  function blockOf(matrix, spec, i, j) {
    const [high, wide] = spec.block;
    const values = [], signs = [];
    for (let r = i * high; r < (i + 1) * high; r++) {
      for (let c = j * wide; c < (j + 1) * wide; c++) {
        const inside = r < matrix.shape[0] && c < matrix.shape[1];
        values.push(inside ? matrix.read(r, c) : 0);
        signs.push(inside && matrix.minus(r, c));
      }
    }
    return { values, signs };
  }

  // A NaN result has the sign of the first operand that is NaN, else its sign bit is set. operands: numbers and signs.
  function madeNan([value], ...operands) {
    for (let i = 0; i < operands.length; i += 2) if (Number.isNaN(operands[i])) return [value, operands[i + 1]];
    return [value, true];
  }

  const METRIC = { mae: (e) => Math.abs(e), mse: (e) => f(e * e), max: (e) => Math.abs(e) };

  // A scale that a block tries, and what becomes of the block. with: functions, specification, g and the maximum.
  function candidate({ values, signs }, t, tm, within, byte) {
    const { call, spec, g, gm, own } = within;
    const scaleByte = encode(spec.scale, t, tm);
    const s = decode(spec.scale.format, scaleByte), sm = negativeNan(spec.scale.format, scaleByte);
    const [w, wm] = call("working_scale", t, tm, s, sm, spec.scale, values);
    const scaled = (x, m) => madeNan(call("scaled", x, m, w, wm, g, gm, spec.scale, values), x, m, w, wm, g, gm);
    const pairs = values.map((x, i) => scaled(x, signs[i]));
    const y = pairs.map((pair) => pair[0]);
    const made = { t, byte: scaleByte, s, y, codes: pairs.map(([x, m]) => encode(spec.element, x, m, byte)), error: null };
    const ones = values.map(() => 1);
    made.factor = call("scaled", 1, false, w, wm, g, gm, spec.scale, ones)[0];
    if (spec.four_over_six !== null) {
      const errors = pairs.map(([x, m], i) => METRIC[spec.metric](call("difference", nearest(spec.element, x, m), m, s, sm,
        g, gm, own, false, values[i], signs[i], spec.scale, values)[0]));
      made.error = spec.metric === "max" ? Math.max(...errors) : call("total", errors);
    }
    return made;
  }

  // Every intermediate of the block (i, j) of a matrix; own: its global maximum, or null.
  function quantizeBlock(matrix, spec, i, j, own, dtype, byte) {
    const type = TYPES.indexOf(dtype);
    const call = (name, ...given) => ARITHMETICS[spec.functions[name][type]](...given);
    const [g, gm] = own === null ? [1, false] : madeNan(call("global_scale", own, false, spec.scale, []), own, false);
    const block = blockOf(matrix, spec, i, j);
    const blockAmax = largest(block.values, spec.amax !== "ignore-nan");
    const [t, tm] = madeNan(call("block_scale", blockAmax, false, g, gm, spec.scale, block.values), blockAmax, false, g, gm);
    const tried = spec.four_over_six === null ? [t] : [t, f(t * 1.5)];
    const candidates = tried.map((scale) => candidate(block, scale, tm, { call, spec, g, gm, own }, byte));
    const chosen = candidates.length > 1 && candidates[1].error < candidates[0].error ? 1 : 0;
    return { values: block.values, amax: own, g, blockAmax, candidates, chosen, kept: candidates[chosen], call };
  }

  function dequantize(code, block, spec) {
    const q = decode(spec.element.format, code), { s } = block.kept;
    if (block.amax === null) return f(q * s);
    return block.call("dequantized", q, true, s, true, block.amax, false, spec.scale, [])[0];
  }

  // One direction of a tensor, block by block as they are asked for. x: an object with at(index), minus(index), and
  // largest(keep) if it has a faster way to its maximum. byte: the random byte of every element.
  function lazy(x, rows, columns, spec, direction, dtype, byte) {
    const matrix = matrixOf(x, rows, columns, spec, direction);
    const [high, wide] = spec.block, scaleColumns = Math.ceil(matrix.shape[1] / wide);
    const amaxOf = globalAmax(matrix, spec, x), blocks = new Map();
    function block(i, j) {
      const key = i * scaleColumns + j;
      if (blocks.size > 1 << 16) blocks.clear();
      if (!blocks.has(key)) blocks.set(key, quantizeBlock(matrix, spec, i, j, amaxOf(i), dtype, byte));
      return blocks.get(key);
    }
    const around = (r, c) => block(Math.floor(r / high), Math.floor(c / wide));
    const code = (r, c) => around(r, c).kept.codes[(r % high) * wide + (c % wide)];
    return {
      matrix, scaleColumns, amaxOf, block, code,
      scale: (r, j) => block(Math.floor(r / high), j).kept.byte,
      value: (r, c) => dequantize(code(r, c), around(r, c), spec),
    };
  }

  // A tensor of given bits.
  function given(list) {
    const numbers = Uint32Array.from(list);
    return { length: numbers.length, at: (i) => fromBits(numbers[i]), minus: (i) => numbers[i] >>> 31 === 1 };
  }

  // All of one direction: codes, linear scales, amax, and the values that they mean.
  function quantize(x, rows, columns, spec, direction, dtype, byte) {
    const made = lazy(x, rows, columns, spec, direction, dtype, byte), [down, across] = made.matrix.shape;
    const filled = (Type, size, of) => Type.from({ length: size }, (_, i) => of(i));
    const each = (of, width) => (i) => of(Math.floor(i / width), i % width);
    return {
      codes: filled(Uint8Array, down * across, each(made.code, across)),
      scales: filled(Uint8Array, down * made.scaleColumns, each(made.scale, made.scaleColumns)),
      values: filled(Float32Array, down * across, each(made.value, across)),
      amax: spec.global_scale === "none" ? null
        : filled(Float32Array, spec.global_scale === "row" ? down : 1, made.amaxOf),
    };
  }

  return { f, bits, fromBits, bfloat16, float16, minus, encode, decode, lazy, given, quantize };
};
