// Layouts: the place of a unit (a scale, or a code) is a sum of digit * stride, with the exceptions that a text may name:
// flipped and turned digits, repeated ones, a table. Strides follow from the stored order of the digits, as in the tables.
// rows, columns: the two axes that a page shows; every other axis has one member.
"use strict";

globalThis.Layouts = function (tables) {
  const known = new Map();
  const product = (numbers) => numbers.reduce((all, number) => all * number, 1);
  const spread = (layout, row, column, other) => layout.axes.map((_, axis) => (axis === layout.shown[0] ? row : axis === layout.shown[1] ? column : other));
  const grid = (layout, rows, columns) => spread(layout, rows, columns, 1).map((size, axis) =>
    Math.ceil(size / layout.axes[axis].multiple) * layout.axes[axis].multiple);
  const unitsOf = ({ number, axes }, sizes) => number * product(axes.map((axis) => sizes[axis]));

  // A digit as runs of bits that are all flipped (stored backwards) or all kept.
  function runs(radix, stride, flip) {
    const found = [];
    while (flip) {
      const kept = flip & -flip, ones = flip / kept, above = 1 << (31 - Math.clz32(ones ^ (ones + 1)));
      if (kept > 1) found.push({ radix: kept, stride });
      found.push({ radix: above, stride: -stride * kept });
      flip = Math.floor(ones / above);
      radix = Math.floor(Math.floor(radix / kept) / above);
      stride = stride * kept * above;
    }
    return radix !== 1 || !found.length ? [...found, { radix, stride }] : found;
  }

  // A digit in as many runs of bits as the one that turns it has; the last run takes what is left.
  function cut({ radix, stride }, other) {
    const found = [];
    for (const part of other.slice(0, -1)) {
      found.push({ radix: part.radix, stride });
      radix = Math.floor(radix / part.radix);
      stride *= part.radix;
    }
    return [...found, { radix, stride }];
  }

  // All digits of all axes with their strides and weights, the stored order, and the units of the buffer.
  function strides(layout, rows, columns) {
    const key = `${layout.key} ${rows} ${columns}`;
    if (known.size > 64) known.clear();
    if (!known.has(key)) known.set(key, derived(layout, grid(layout, rows, columns)));
    return known.get(key);
  }

  function derived(layout, sizes) {
    const made = layout.axes.map(({ radices }) => radices.map(() => []));
    const radixOf = (axis, digit) => layout.axes[axis].radices[digit]
      ?? Math.floor(sizes[axis] / product(layout.axes[axis].radices.map((radix) => radix ?? 1)));
    let running = 1;
    for (const item of layout.order) {
      if (item.number !== undefined) {
        const unit = Math.max(unitsOf(item, sizes), 1);
        running = Math.ceil(running / unit) * unit;
        continue;
      }
      const radix = radixOf(item.axis, item.digit);
      made[item.axis][item.digit] = runs(radix, running, item.flip);
      running *= radix;
    }
    for (const [axis, digit] of layout.repeated) made[axis][digit] = [{ radix: radixOf(axis, digit), stride: 0 }];
    const places = layout.order.filter((item) => item.number === undefined);
    for (const { axis, digit, by } of places) if (by) made[axis][digit] = cut(made[axis][digit][0], made[by[0]][by[1]]);
    const start = (axis, digit) => made[axis].slice(0, digit).reduce((all, parts) => all + parts.length, 0);
    const digits = made.map((axis) => axis.flat());
    for (const axis of digits) axis.forEach((digit, i) => (digit.weight = i ? axis[i - 1].weight * axis[i - 1].radix : 1));
    const parts = ({ axis, digit }) => made[axis][digit].map((_, i) => [axis, start(axis, digit) + i]);
    const base = unitsOf(layout.base, sizes), reach = (sign) => digits.flat().reduce((all, { radix, stride }) =>
      all + Math.max(sign * stride, 0) * (radix - 1), 0);
    const first = base + reach(-1), run = Math.max(layout.table.length, 1), up = (size) => Math.ceil(size / run) * run;
    const size = product(sizes) ? Math.max(up(running), base + up(first + reach(1) + 1 - base)) : 0;
    const turned = places.filter(({ by }) => by).flatMap((item) => parts(item).map((own, i) => [own, [item.by[0], start(...item.by) + i]]));
    return { sizes, digits, stored: places.flatMap(parts), base, first, size, turned, table: layout.table };
  }

  // Shape of the buffer: the padded grid, or one row of units where units and places differ.
  function padded(layout, rows, columns) {
    const { sizes, size } = strides(layout, rows, columns);
    return layout.gaps || layout.repeated.length || size !== product(sizes) ? [1, size] : sizes;
  }

  const digitOf = ({ radix, weight }, index) => Math.floor(index / weight) % radix;

  // The part of the offset that an index of one axis contributes; the slowest digit has no bound.
  const contribution = (axis, index) => axis.reduce((sum, digit, i) =>
    sum + (i < axis.length - 1 ? digitOf(digit, index) : Math.floor(index / digit.weight)) * digit.stride, 0);

  // The sum of digits, before a table moves the units of a run.
  function summed(layout, row, column, columns, rows) {
    const { digits, first, turned } = strides(layout, rows, columns);
    const indices = spread(layout, row, column, 0);
    let total = first + indices.reduce((sum, index, axis) => sum + contribution(digits[axis], index), 0);
    for (const [[a, i], [b, j]] of turned) {
      const own = digitOf(digits[a][i], indices[a]), by = digitOf(digits[b][j], indices[b]);
      total += ((own ^ by) - own) * digits[a][i].stride;
    }
    return total;
  }

  function offset(layout, row, column, columns, rows) {
    const { base, table } = strides(layout, rows, columns), total = summed(layout, row, column, columns, rows);
    if (!table.length) return total;
    const place = (total - base) % table.length;
    return total - place + table[place];
  }

  // The index of every axis at an offset, or null in a gap.
  function indices(layout, place, columns, rows) {
    const { digits, stored, base, turned, table } = strides(layout, rows, columns);
    const found = layout.axes.map(() => 0);
    let rest = place - base;
    if (rest < 0) return null;
    if (table.length) rest += table.indexOf(rest % table.length) - (rest % table.length);
    for (const [axis, number] of stored.slice().reverse()) {
      const { radix, stride, weight } = digits[axis][number], step = Math.max(Math.abs(stride), 1);
      const value = Math.floor(rest / step);
      if (value >= radix) return null;
      rest -= value * step;
      found[axis] += (stride < 0 ? radix - 1 - value : value) * weight;
    }
    for (const [[a, i], [b, j]] of turned) {
      const own = digitOf(digits[a][i], found[a]), by = digitOf(digits[b][j], found[b]);
      found[a] += ((own ^ by) - own) * digits[a][i].weight;
    }
    return rest ? null : found;
  }

  // Row and column at an offset, or null in a gap.
  function index(layout, place, columns, rows) {
    const found = indices(layout, place, columns, rows);
    return found && layout.shown.map((axis) => found[axis]);
  }

  // The words and the rule of a place that no unit of the array has. Padding of several axes belongs to the first.
  function unused(layout, place, columns, rows) {
    const found = indices(layout, place, columns, rows);
    if (!found) return ["a gap", "LAY-41"];
    const sizes = spread(layout, rows, columns, 1), axis = layout.axes.find((_, i) => found[i] >= sizes[i]);
    return ["padding", axis?.fill === null ? "LAY-37" : ["LAY-3", "LAY-4"].includes(layout.rule) ? "LAY-5" : "LAY-15"];
  }

  // The same sum in words, the slowest digit first.
  function worked(layout, row, column, columns, rows) {
    const { digits, stored, first, base, turned, table } = strides(layout, rows, columns), names = spread(layout, row, column, 0);
    const turnedBy = new Map(turned.map(([own, by]) => [String(own), by]));
    const said = ([axis, number], modulo) => {
      const { radix, weight } = digits[axis][number], text = weight > 1 ? `${names[axis]} // ${weight}` : `${names[axis]}`;
      return modulo || number < digits[axis].length - 1 ? `${text} % ${radix}` : text;
    };
    const times = (value, stride) => stride === 1 ? value
      : !value.includes(" ") || value.startsWith("((") ? `${value}*${stride}` : `(${value})*${stride}`;
    const terms = [];
    for (const place of stored.slice().reverse()) {
      const { radix, stride } = digits[place[0]][place[1]], by = turnedBy.get(String(place));
      if (radix === 1 || !stride) continue;
      const value = said(place, by !== undefined);
      terms.push(times(by ? `(${value} ^ ${said(by, true)})` : value, stride));
    }
    if (first || !terms.length) terms.push(String(first));
    const text = terms.join(" + "), found = offset(layout, row, column, columns, rows);
    if (!table.length) return `${text} = ${found}`;
    const before = summed(layout, row, column, columns, rows), run = found - ((found - base) % table.length);
    return `${text} = ${before}; place ${before - run} of the table is ${found - run}: ${run} + ${found - run} = ${found}`;
  }

  // Where the codes of a matrix are in the bytes of a packing: a layout of codes instead of scales.
  function packed(packing, rows, columns) {
    const { sizes, size } = strides(packing, rows, columns), unit = packing.unit;
    const units = padded(packing, rows, columns);
    const rowBytes = packing.whole_rows ? Math.ceil((units[1] * unit) / 8) : 0;
    const bytes = rowBytes ? units[0] * rowBytes
      : (units[1] * unit) % 8 === 0 ? (units[0] * units[1] * unit) / 8 : Math.ceil((units[0] * units[1] * unit) / 8);
    // The first bit of a code, counted from the start of the buffer.
    function bit(row, column) {
      const all = offset(packing, row, column, columns, rows);
      return rowBytes ? row * rowBytes * 8 + (all - row * units[1]) * unit : all * unit;
    }
    // Codes that have bits in a byte, in the order of the bits: [row, column, the code's first bit from the byte on].
    // Those outside of the matrix are padding.
    function inByte(byte) {
      const row = rowBytes ? Math.floor(byte / rowBytes) : 0, start = rowBytes ? byte % rowBytes : byte, found = [];
      const last = rowBytes ? units[1] : size;
      for (let number = Math.floor((start * 8) / unit); number < Math.min(Math.ceil(((start + 1) * 8) / unit), last); number++) {
        const at = index(packing, row * (rowBytes ? units[1] : 0) + number, columns, rows);
        if (at !== null) found.push([...at, number * unit - start * 8]);
      }
      return found;
    }
    const fill = (row) => packing.axes[packing.shown[row >= rows ? 0 : 1]].fill ?? 0;
    return { sizes, bytes, rowBytes, bit, inByte, fill, unit };
  }

  // The first shown axis that refuses its size instead of padding it, as [name, size, multiple], or null.
  function refused(layout, rows, columns) {
    const axis = layout.axes.findIndex(({ refused: strict, multiple }, n) => strict && spread(layout, rows, columns, 1)[n] % multiple);
    return axis < 0 ? null : [layout.shown.indexOf(axis), spread(layout, rows, columns, 1)[axis], layout.axes[axis].multiple];
  }

  return { tile: (layout) => layout.tile, padded, offset, index, unused, worked, packed, refused };
};
