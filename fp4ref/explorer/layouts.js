// Scale layouts: sums of digit * stride. Strides follow from the stored order of the digits, as in the tables.
"use strict";

globalThis.Layouts = function (tables) {
  const tile = (layout) => layout.tile;
  const grid = (layout, sizes) => sizes.map((size, axis) => Math.ceil(size / layout.multiples[axis]) * layout.multiples[axis]);

  // The digits of rows and of columns, fastest first, with radix and stride; the stored order; units of the buffer.
  function strides(layout, rows, columns) {
    const sizes = grid(layout, [rows, columns]);
    const digits = layout.radices.map((radices) => radices.map(() => null)), stored = [];
    let running = 1;
    for (const item of layout.order) {
      if (typeof item === "number") {
        running = Math.ceil(running / item) * item; // an alignment
        continue;
      }
      const [axis, number] = item;
      const whole = layout.radices[axis].reduce((all, radix) => all * (radix ?? 1), 1);
      const radix = layout.radices[axis][number] ?? sizes[axis] / whole;
      digits[axis][number] = { radix, stride: running, weight: 1 };
      stored.push(item);
      running *= radix;
    }
    for (const axis of digits) axis.forEach((digit, i) => (digit.weight = i ? axis[i - 1].weight * axis[i - 1].radix : 1));
    return { sizes, digits, stored, size: running };
  }

  // Shape of the buffer: the padded grid, or one row of units where some belong to no scale.
  function padded(layout, rows, columns) {
    const found = strides(layout, rows, columns);
    return layout.gaps ? [1, found.size] : found.sizes;
  }

  const value = (digits, number, index) => {
    const over = Math.floor(index / digits[number].weight);
    return number < digits.length - 1 ? over % digits[number].radix : over;
  };

  function offset(layout, row, column, columns, rows) {
    const { digits } = strides(layout, rows, columns);
    return [row, column].reduce((all, index, axis) =>
      digits[axis].reduce((sum, digit, number) => sum + value(digits[axis], number, index) * digit.stride, all), 0);
  }

  // Row and column at an offset, or null in a gap.
  function index(layout, byte, columns, rows) {
    const { digits, stored } = strides(layout, rows, columns);
    const found = [0, 0];
    let rest = byte;
    for (const [axis, number] of stored.slice().reverse()) {
      const { radix, stride, weight } = digits[axis][number];
      const digit = Math.floor(rest / stride);
      if (digit >= radix) return null;
      rest -= digit * stride;
      found[axis] += digit * weight;
    }
    return rest ? null : found;
  }

  // The same sum in words, the slowest digit first.
  function worked(layout, row, column, columns, rows) {
    const { digits, stored } = strides(layout, rows, columns), names = [row, column];
    const terms = stored.slice().reverse().filter(([axis, number]) => digits[axis][number].radix > 1).map(([axis, number]) => {
      const { radix, stride, weight } = digits[axis][number];
      const over = weight > 1 ? `${names[axis]} // ${weight}` : `${names[axis]}`;
      const text = number < digits[axis].length - 1 ? `${over} % ${radix}` : over;
      return stride === 1 ? text : text.includes(" ") ? `(${text})*${stride}` : `${text}*${stride}`;
    });
    return `${terms.join(" + ") || "0"} = ${offset(layout, row, column, columns, rows)}`;
  }

  return { tile, padded, offset, index, worked };
};
