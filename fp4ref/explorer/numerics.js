// Quantization in float32, operation by operation. Every float32 operation is one operation on doubles followed by
// Math.fround, which is the correctly rounded float32 result of + - * / on float32 operands.
// `tables` is written by the code that the page explains; nothing here repeats a value of it.
"use strict";

globalThis.Numerics = function (tables) {
  const f = Math.fround;
  const FLT_MAX = 3.4028234663852886e38;
  const BF16_MAX = 3.3895313892515355e38;
  const SIXTH = f(1 / 6);
  const fmin = (a, b) => (Number.isNaN(a) ? b : Number.isNaN(b) ? a : Math.min(a, b));
  const negative = (x) => x < 0 || Object.is(x, -0);

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

  // Index into the grid; one past the last code means overflow.
  function gridIndex(codec, x) {
    const { values, midpoints, codes } = tables.formats[codec.format];
    const magnitude = Math.abs(x);
    if (codec.rounding === "up") return Math.min(count(values, magnitude, false), codes);
    const below = count(midpoints, magnitude, false);
    return Math.min(below % 2 === 0 ? below : count(midpoints, magnitude, true), codes);
  }

  function encode(codec, x) {
    if (Number.isNaN(x)) return codec.nan;
    const form = tables.formats[codec.format];
    const code = Math.min(gridIndex(codec, x), form.codes - 1);
    return form.sign_bit && negative(x) ? code | form.sign_bit : code;
  }

  // The value that encode picks, not NaN.
  function nearest(codec, x) {
    const form = tables.formats[codec.format];
    const index = Number.isNaN(x) ? form.codes - 1 : Math.min(gridIndex(codec, x), form.codes - 1);
    return negative(x) ? -form.values[index] : form.values[index];
  }

  function decode(format, code) {
    const form = tables.formats[format];
    const index = form.sign_bit ? code & (form.sign_bit - 1) : code;
    let value = index < form.codes ? form.values[index] : form.infinity && index === form.codes ? Infinity : NaN;
    return form.sign_bit & code ? -value : value;
  }

  const fusedWithZero = (x, factor) => {
    const product = f(x * factor);
    return product === 0 && (x === 0 || factor === 0) ? 0 : product;
  };

  // The arithmetics, by the names of the specification.
  const te = {
    globalScale: (amax, k) => {
      const g = fmin(f(f(k.scale_max * k.element_max) / amax), FLT_MAX);
      return amax === 0 || g === 0 ? 1 : g;
    },
    blockScale: (amax, g) => fmin(f(amax * f(g * SIXTH)), FLT_MAX),
    scaled: (x, s, g) => f(x * fmin(f(1 / f(s * f(1 / g))), FLT_MAX)),
    dequantized: (q, s, amax, k) => f(q * f(f(s * amax) * f(1 / f(k.element_max * k.scale_max)))),
  };
  const arithmetics = {
    te,
    "te-fast": { ...te, scaled: (x, s, g) => fusedWithZero(x, bfloat16(fmin(f(g / s), BF16_MAX))) },
    "te-division": { ...te, blockScale: (amax, g) => f(f(amax / 6) * g) },
    rceil: {
      globalScale: () => 1,
      blockScale: (amax, g, k) => f(amax * f(1 / k.element_max)),
      scaled: (x, s) => f(x / s),
      dequantized: (q, s) => f(q * s),
    },
  };

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

  // A running maximum from +0 that ignores NaN.
  const largest = (values) => values.reduce((most, x) => (Math.abs(x) > most ? Math.abs(x) : most), 0);

  // The matrix of a direction: read(row, column) of x or of x^T, transformed where the specification says so.
  function matrixOf(x, rows, columns, spec, direction) {
    const turned = direction === "column";
    const shape = turned ? [columns, rows] : [rows, columns];
    const raw = turned ? (r, c) => x.at(c * columns + r) : (r, c) => x.at(r * columns + c);
    if (!(turned && spec.hadamard !== null)) return { shape, raw, read: raw };
    const made = new Float32Array(shape[0] * shape[1]);
    for (let r = 0; r < shape[0]; r++) {
      for (let c = 0; c < shape[1]; c += 16) {
        made.set(hadamard(Array.from({ length: 16 }, (_, i) => raw(r, c + i)), spec.hadamard), r * shape[1] + c);
      }
    }
    return { shape, raw, read: (r, c) => made[r * shape[1] + c] };
  }

  // The global maximum of a row as a function of it: of the tensor, of the row, or null.
  function globalAmax(matrix, spec, x) {
    if (spec.global_scale === "none") return () => null;
    const [rows, columns] = matrix.shape, known = new Map();
    const transformed = matrix.raw !== matrix.read;
    const of = (first, stop) => {
      let amax = 0;
      for (let r = first; r < stop; r++) {
        for (let c = 0; c < columns; c++) {
          const magnitude = Math.abs(matrix.read(r, c));
          if (magnitude > amax) amax = magnitude;
        }
      }
      return amax;
    };
    const whole = () => (x.largest && !transformed ? x.largest() : of(0, rows));
    return (row) => {
      const key = spec.global_scale === "row" ? row : 0;
      if (!known.has(key)) known.set(key, spec.global_scale === "row" ? of(row, row + 1) : whole());
      return known.get(key);
    };
  }

  // Values of the block (i, j), row by row, +0 past the matrix.
  function blockOf(matrix, spec, i, j) {
    const [high, wide] = spec.block;
    const values = [];
    for (let r = i * high; r < (i + 1) * high; r++) {
      for (let c = j * wide; c < (j + 1) * wide; c++) {
        values.push(r < matrix.shape[0] && c < matrix.shape[1] ? matrix.read(r, c) : 0);
      }
    }
    return values;
  }

  // Rows left to right; then row r and the row half of what is left below it.
  function totalByTree(errors, wide) {
    let rows = [];
    for (let start = 0; start < errors.length; start += wide) {
      let total = errors[start];
      for (let i = 1; i < wide; i++) total = f(total + errors[start + i]);
      rows.push(total);
    }
    while (rows.length > 1) {
      const half = rows.length / 2;
      rows = rows.slice(0, half).map((value, i) => f(value + rows[i + half]));
    }
    return rows[0];
  }

  // A scale that a block tries, and what becomes of the block.
  function candidate(values, t, g, amax, spec, k) {
    const arithmetic = arithmetics[spec.arithmetic];
    const byte = encode(spec.scale, t);
    const s = decode(spec.scale.format, byte);
    const y = values.map((x) => arithmetic.scaled(x, s, g, k));
    const made = { t, byte, s, y, codes: y.map((value) => encode(spec.element, value)), error: null };
    made.factor = arithmetic.scaled(1, s, g, k);
    if (spec.four_over_six !== null) {
      const unit = f(k.element_max * k.scale_max);
      const errors = values.map((x, i) =>
        Math.abs(f(f(f(f(nearest(spec.element, y[i]) * s) * amax) / unit) - x)));
      made.error = totalByTree(errors, spec.block[1]);
    }
    return made;
  }

  // Every intermediate of the block (i, j) of a matrix; own: its global maximum, or null.
  function quantizeBlock(matrix, spec, i, j, own) {
    const k = { element_max: spec.element_max, scale_max: spec.scale_max };
    const g = own === null ? 1 : arithmetics[spec.arithmetic].globalScale(own, k);
    const values = blockOf(matrix, spec, i, j);
    const blockAmax = largest(values);
    const t = arithmetics[spec.arithmetic].blockScale(blockAmax, g, k);
    const tried = spec.four_over_six === null ? [t] : [t, f(t * 1.5)];
    const candidates = tried.map((scale) => candidate(values, scale, g, own, spec, k));
    const chosen = candidates.length > 1 && candidates[1].error < candidates[0].error ? 1 : 0;
    return { values, amax: own, g, blockAmax, candidates, chosen, kept: candidates[chosen], k };
  }

  function dequantize(code, block, spec) {
    const q = decode(spec.element.format, code);
    return arithmetics[spec.arithmetic].dequantized(q, block.kept.s, block.amax, block.k);
  }

  // One direction of a tensor, block by block as they are asked for. x: an object with at(index), and largest() if it
  // has a faster way to its maximum.
  function lazy(x, rows, columns, spec, direction) {
    const matrix = matrixOf(x, rows, columns, spec, direction);
    const [high, wide] = spec.block, [down, across] = matrix.shape;
    const width = tables.formats[spec.element.format].bits;
    const rowBytes = Math.ceil((across * width) / 8), scaleColumns = Math.ceil(across / wide);
    const amaxOf = globalAmax(matrix, spec, x), blocks = new Map();
    function block(i, j) {
      const key = i * scaleColumns + j;
      if (blocks.size > 1 << 16) blocks.clear();
      if (!blocks.has(key)) blocks.set(key, quantizeBlock(matrix, spec, i, j, amaxOf(i)));
      return blocks.get(key);
    }
    const around = (r, c) => block(Math.floor(r / high), Math.floor(c / wide));
    const code = (r, c) => around(r, c).kept.codes[(r % high) * wide + (c % wide)];
    return {
      matrix, rowBytes, scaleColumns, amaxOf, block, code,
      scale: (r, j) => block(Math.floor(r / high), j).kept.byte,
      value: (r, c) => dequantize(code(r, c), around(r, c), spec),
      dataSize: down * rowBytes,
      byte(offset) {
        const r = Math.floor(offset / rowBytes), first = Math.floor(((offset % rowBytes) * 8) / width);
        if (width === 8) return code(r, first);
        return code(r, first) | (first + 1 < across ? code(r, first + 1) << 4 : 0);
      },
    };
  }

  // All bytes of one direction: data, linear scales, amax, and the values that they mean.
  function quantize(x, rows, columns, spec, direction) {
    const made = lazy(x, rows, columns, spec, direction), [down, across] = made.matrix.shape;
    const filled = (Type, count, of) => Type.from({ length: count }, (_, i) => of(i));
    return {
      data: filled(Uint8Array, made.dataSize, made.byte),
      scales: filled(Uint8Array, down * made.scaleColumns, (i) =>
        made.scale(Math.floor(i / made.scaleColumns), i % made.scaleColumns)),
      values: filled(Float32Array, down * across, (i) => made.value(Math.floor(i / across), i % across)),
      amax: spec.global_scale === "none" ? null
        : filled(Float32Array, spec.global_scale === "row" ? down : 1, made.amaxOf),
    };
  }

  return { f, bits, fromBits, bfloat16, float16, encode, decode, lazy, quantize };
};
