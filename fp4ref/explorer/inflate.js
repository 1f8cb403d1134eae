// The inverse of zlib's `deflate` on base64 text, because a page without a network has no other way to unpack a table.
"use strict";

globalThis.inflate = function (text) {
  const LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  const value = new Map([...LETTERS].map((letter, i) => [letter, i]));
  const input = new Uint8Array((text.length * 3) / 4);
  for (let i = 0, o = 0; i < text.length; i += 4) {
    const four = [0, 1, 2, 3].reduce((all, n) => (all << 6) | (value.get(text[i + n]) ?? 0), 0);
    input[o++] = four >>> 16;
    input[o++] = four >>> 8;
    input[o++] = four;
  }
  const LENGTHS = [3, 4, 5, 6, 7, 8, 9, 10, 11, 13, 15, 17, 19, 23, 27, 31, 35, 43, 51, 59, 67, 83, 99, 115, 131, 163, 195, 227, 258];
  const DISTANCES = [1, 2, 3, 4, 5, 7, 9, 13, 17, 25, 33, 49, 65, 97, 129, 193, 257, 385, 513, 769, 1025, 1537, 2049, 3073,
    4097, 6145, 8193, 12289, 16385, 24577];
  const ORDER = [16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15];
  let at = 16, size = 0, output = new Uint8Array(1 << 16); // bits; the two bytes of zlib's header are skipped

  function read(count) {
    let found = 0;
    for (let i = 0; i < count; i++, at++) found |= ((input[at >>> 3] >>> (at & 7)) & 1) << i;
    return found;
  }

  // Codes of a canonical Huffman tree: how many of each length, and their symbols in order.
  function tree(lengths) {
    const counts = new Array(16).fill(0), symbols = [];
    for (const length of lengths) counts[length]++;
    counts[0] = 0;
    for (let length = 1; length < 16; length++) {
      lengths.forEach((own, symbol) => own === length && symbols.push(symbol));
    }
    return { counts, symbols };
  }

  function symbol({ counts, symbols }) {
    let code = 0, first = 0, index = 0;
    for (let length = 1; length < 16; length++) {
      code |= (input[at >>> 3] >>> (at & 7)) & 1;
      at++;
      if (code - counts[length] < first) return symbols[index + code - first];
      index += counts[length];
      first = (first + counts[length]) << 1;
      code <<= 1;
    }
    throw new Error("inflate: a code that no tree has");
  }

  function put(byte) {
    if (size === output.length) {
      const larger = new Uint8Array(2 * size);
      larger.set(output);
      output = larger;
    }
    output[size++] = byte;
  }

  function block(literals, distances) {
    for (;;) {
      const found = symbol(literals);
      if (found === 256) return;
      if (found < 256) {
        put(found);
        continue;
      }
      const number = found - 257;
      const length = LENGTHS[number] + read(number < 8 || number === 28 ? 0 : (number - 4) >> 2);
      const far = symbol(distances), distance = DISTANCES[far] + read(far < 4 ? 0 : (far - 2) >> 1);
      for (let i = 0; i < length; i++) put(output[size - distance]);
    }
  }

  function trees() {
    const count = read(5) + 257, far = read(5) + 1, own = new Array(19).fill(0), lengths = [];
    for (let i = 0, last = read(4) + 4; i < last; i++) own[ORDER[i]] = read(3);
    const lengthTree = tree(own);
    while (lengths.length < count + far) {
      const found = symbol(lengthTree);
      if (found < 16) lengths.push(found);
      else {
        const repeated = found === 16 ? lengths.at(-1) : 0;
        const times = found === 16 ? 3 + read(2) : found === 17 ? 3 + read(3) : 11 + read(7);
        for (let i = 0; i < times; i++) lengths.push(repeated);
      }
    }
    return [tree(lengths.slice(0, count)), tree(lengths.slice(count))];
  }

  const FIXED = [tree(Array.from({ length: 288 }, (_, i) => (i < 144 ? 8 : i < 256 ? 9 : i < 280 ? 7 : 8))), tree(new Array(30).fill(5))];
  for (let last = 0; !last; ) {
    last = read(1);
    const kind = read(2);
    if (kind === 0) {
      at = ((at + 7) >>> 3) << 3;
      const count = read(16);
      at += 16;
      for (let i = 0; i < count; i++) put(read(8));
    } else block(...(kind === 1 ? FIXED : trees()));
  }
  return output.subarray(0, size);
};
