// Operations that arithmetics use and JavaScript does not have, and the list of the functions of all arithmetics, which
// the page's maker wrote down. Each takes float32 numbers, each followed by the sign of its NaN; `scale` is the codec of
// scales, `block` the values of a block.
"use strict";

globalThis.Operations = function ({ f, bits, fromBits, minus }) {
  const LEAST = -(2 ** 63); // what a NaN or an infinity becomes as an integer
  const fmin = (a, b) => (Number.isNaN(a) ? b : Number.isNaN(b) ? a : Math.min(a, b));
  const modulo = (a, b) => ((a % b) + b) % b;
  const toInteger = (x) => (Number.isFinite(x) ? Math.trunc(x) : LEAST);
  const finiteOr = (x, nan, high, low) => (Number.isNaN(x) ? nan : x === Infinity ? high : x === -Infinity ? low : x);

  // x * 2^exponent in float64; in two steps, because 2^exponent may overflow where the product does not.
  function ldexp(x, exponent) {
    if (!Number.isFinite(x) || x === 0) return x;
    const first = Math.max(Math.min(exponent, 1000), -1000);
    return x * 2 ** first * 2 ** Math.max(Math.min(exponent - first, 1000), -1000);
  }

  const wide = new DataView(new ArrayBuffer(8));

  // Mantissa in [1/2, 1) and exponent.
  function frexp(x) {
    if (!Number.isFinite(x) || x === 0) return [x, 0];
    wide.setFloat64(0, x);
    const exponent = ((wide.getUint32(0) >>> 20) & 0x7ff) - 1022; // no float32 is a subnormal float64
    return [x / 2 ** exponent, exponent];
  }

  // log2 that is exact at powers of two.
  function log2(x) {
    if (!(x > 0) || x === Infinity) return x === 0 ? -Infinity : x > 0 ? x : NaN;
    const [mantissa, exponent] = frexp(x);
    return mantissa === 0.5 ? exponent - 1 : Math.log2(x);
  }

  // a * b + c rounded once: the product is exact in float64, and the sum is rounded to odd there.
  function fused(a, b, c) {
    const product = a * b, total = product + c, back = total - product;
    const rest = product - (total - back) + (c - back);
    if (!rest || !Number.isFinite(total)) return f(total);
    wide.setFloat64(0, total);
    const number = wide.getBigInt64(0);
    if (number % 2n === 0n) wide.setBigInt64(0, number + (rest > 0 === total > 0 ? 1n : -1n));
    return f(wide.getFloat64(0));
  }

  let distances = null; // of the approximate reciprocal from the nearest, by mantissa

  function reciprocalApprox(x) {
    distances ??= inflate(RECIPROCAL);
    const number = bits(x), mantissa = number & 0x7fffff, exponent = (number >>> 23) & 255;
    const sign = minus(x, false) ? -1 : 1;
    if (exponent === 255) return mantissa ? NaN : sign * 0;
    if (exponent === 0) return sign * Infinity;
    const nearest = f(1 / fromBits(mantissa | 0x3f800000));
    const distance = (distances[mantissa] << 24) >> 24; // a signed byte
    const result = ldexp(fromBits(bits(nearest) + distance), 127 - exponent);
    return sign * (result < 2 ** -126 ? 0 : result);
  }

  return { fmin, modulo, toInteger, finiteOr, ldexp, frexp, log2, fused, reciprocalApprox };
};

globalThis.Arithmetics = function (numerics) {
  const { f, bits, fromBits, bfloat16, float16, minus, encode, decode, negativeNan } = numerics;
  const { fmin, modulo, toInteger, finiteOr, ldexp, frexp, log2, fused, reciprocalApprox } = Operations(numerics);
  return [
/*FUNCTIONS*/
  ];
};
