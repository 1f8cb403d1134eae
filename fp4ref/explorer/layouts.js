// Scale layouts: sums of digit * stride, from the digits in the tables.
"use strict";

globalThis.Layouts = function (tables) {
  const product = (digits) => digits.reduce((all, [radix]) => all * radix, 1);
  const tile = (layout) => [product(layout.row_digits), product(layout.column_digits)];

  function padded(layout, rows, columns) {
    const [high, wide] = layout.pad_to ?? tile(layout);
    return [Math.ceil(rows / high) * high, Math.ceil(columns / wide) * wide];
  }

  // Digits of the row and of the column, fastest first; the last of each counts tiles.
  function digits(layout, columns) {
    const [high, wide] = tile(layout);
    const across = padded(layout, 1, columns)[1] / wide;
    return [
      [...layout.row_digits, [Infinity, high * wide * across]],
      [...layout.column_digits, [across, high * wide]],
    ];
  }

  function spread(index, list) {
    let offset = 0;
    for (const [radix, stride] of list) {
      const digit = radix === Infinity ? index : index % radix;
      offset += digit * stride;
      index = radix === Infinity ? 0 : Math.floor(index / radix);
    }
    return offset;
  }

  function gather(offset, list) {
    let index = 0, place = 1;
    for (const [radix, stride] of list) {
      const digit = Math.floor(offset / stride);
      index += (radix === Infinity ? digit : digit % radix) * place;
      place *= radix;
    }
    return index;
  }

  function offset(layout, row, column, columns) {
    const [down, across] = digits(layout, columns);
    return spread(row, down) + spread(column, across);
  }

  function index(layout, byte, columns) {
    const [down, across] = digits(layout, columns);
    return [gather(byte, down), gather(byte, across)];
  }

  return { tile, padded, offset, index };
};
