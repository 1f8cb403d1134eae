"""The golden model's scale arithmetic, compared with the same operations in double precision, each rounded once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fp4ref.arithmetic import Constants, block_scale_te, dequantized_te, encoding_te, scaled_te
from fp4ref.formats import CUDA_E2M1, CUDA_E4M3, E2M1, F, Floats
from fp4ref.proof.claims import Replayed, Tell
from fp4ref.proof.header_scales import BFLOAT16, BYTES, ONE_MAXIMUM, SIGNIFICANDS, told
from fp4ref.proof.steps import INFINITY, shown, steps


def _constants(top: int) -> Constants:
    return Constants(E2M1, CUDA_E4M3, F(6), F(top), lambda values: values)


def _float32(pattern: Any) -> Floats:
    return np.asarray(pattern, np.uint32).view(F)


def _bytes() -> Floats:
    return CUDA_E4M3.decode(np.arange(BYTES, dtype=np.uint8))


@np.errstate(all="ignore")
def _once(values: Any) -> Floats:
    return np.asarray(values).astype(F)


@np.errstate(all="ignore")
def _encoding(maxima: Floats, top: int) -> Floats:
    g = np.minimum(_once(top * 6.0 / maxima.astype(np.float64)), np.finfo(F).max)
    return np.where((maxima == 0) | (g == 0), F(1), g).astype(F)


@np.errstate(all="ignore")
def _factor(s: Floats, g: Floats) -> Floats:
    product = _once(s.astype(np.float64) * _once(1.0 / g.astype(np.float64)))
    return np.minimum(_once(1.0 / product.astype(np.float64)), np.finfo(F).max)


def _first(got: Any, want: Floats) -> int | None:
    """Return the flat index of the first difference in bits."""
    (wrong,) = np.nonzero(np.ascontiguousarray(got, F).view(np.uint32).ravel() != want.view(np.uint32).ravel())
    return int(wrong[0]) if len(wrong) else None


@np.errstate(all="ignore")
def encoding(top: int, every: bool, tell: Tell) -> Replayed:
    """Compare S_enc of the golden model with the quotient in double precision, for all or the deciding maxima."""
    k, count = _constants(top), 0
    for patterns in _maxima(every):
        maxima = _float32(patterns)
        at = _first(encoding_te(maxima, k), _encoding(maxima, top))
        count += len(patterns)
        if at is not None:
            return Replayed(count, f"the maximum {shown(int(patterns[at]))}")
        tell(count / (INFINITY + 1))
    return Replayed(count)


def _maxima(every: bool) -> Iterator[NDArray[np.int64]]:
    """Yield all patterns from 0 to infinity; or all bfloat16 ones, the subnormal ends, and a binade's significands."""
    if not every:
        yield np.arange(BFLOAT16) << 16
        yield np.arange(1 << 16)
        yield 0x00800000 + np.arange(-(1 << 16), 1 << 16)
        yield INFINITY - np.arange(1 << 16)
        yield 0x3F800000 + np.arange(1 << 23)
        return
    for start in range(0, INFINITY + 1, 1 << 20):
        yield np.arange(start, min(start + (1 << 20), INFINITY + 1))


@np.errstate(all="ignore")
def block_scale(tell: Tell) -> Replayed:
    """Compare the golden model's block scale with two products in double precision, for all pairs of bfloat16."""
    a, sixth, k = _float32(np.arange(BFLOAT16) << 16), _once(1.0 / 6.0), _constants(448)
    for place in range(BFLOAT16):
        g = _encoding(a[place : place + 1], 448)
        product = _once(g.astype(np.float64) * np.float64(sixth))
        want = np.minimum(_once(a.astype(np.float64) * product.astype(np.float64)), np.finfo(F).max)
        at = _first(block_scale_te(a, g, k), want)
        if at is not None:
            return Replayed(place * BFLOAT16 + at, told("block_scale", place * BFLOAT16 + at))
        tell(place / BFLOAT16)
    return Replayed(BFLOAT16**2)


def _by_scales(name: str, compare: Callable[[Floats, Floats], int | None], tell: Tell) -> Replayed:
    """Compare under all scale bytes and bfloat16 maxima, then all significands of scales and maxima."""
    at = compare(_bytes(), _float32(np.arange(BFLOAT16) << 16)[:, None])
    if at is not None:
        return Replayed(at, told(name, at))
    for m in range(8, 16):
        for start in range(0, 1 << 23, 1 << 20):
            at = compare(np.full(1 << 20, m, F), _float32(0x3F800000 + start + np.arange(1 << 20)))
            if at is not None:
                return Replayed(at, told(f"{name}_significands", (m - 8 << 23) + start + at))
        tell((m - 7) / 8)
    return Replayed(BYTES * BFLOAT16 + SIGNIFICANDS)


@np.errstate(all="ignore")
def factor(tell: Tell) -> Replayed:
    """Compare the golden model's scaled 1 with the encode scale in double precision, by bytes and by significands."""
    k, one = _constants(448), np.ones(1, F)

    def compare(s: Floats, maxima: Floats) -> int | None:
        g = _encoding(maxima, 448)
        return _first(scaled_te(one, s, g, k), _factor(s, g))

    return _by_scales("factor", compare, tell)


@np.errstate(all="ignore")
def decode(tell: Tell) -> Replayed:
    """Compare the golden model's value of code 1.0 with products in double precision, by bytes and by significands."""
    k, one, over = _constants(448), np.ones(1, F), np.float64(_once(1.0 / 2688.0))

    def compare(s: Floats, maxima: Floats) -> int | None:
        product = _once(s.astype(np.float64) * maxima.astype(np.float64))
        return _first(dequantized_te(one, s, maxima, k), _once(product.astype(np.float64) * over))

    return _by_scales("decode", compare, tell)


@np.errstate(all="ignore")
def block(tell: Tell) -> Replayed:
    """Compare codes of the golden model with the steps of the rounded product, for one maximum, all bytes, bfloat16."""
    x, k = _float32(np.arange(BFLOAT16) << 16), _constants(448)
    g, want = _encoding(_float32(np.array([ONE_MAXIMUM])), 448), steps(CUDA_E2M1)
    for byte, s in enumerate(_bytes()):
        y = _once(x.astype(np.float64) * _factor(np.array([s]), g).astype(np.float64))
        got = CUDA_E2M1.encode(scaled_te(x, s, g, k))
        (wrong,) = np.nonzero(got != want.of(y.view(np.uint32)))
        if len(wrong):
            at = int(wrong[0])
            return Replayed(byte * BFLOAT16 + at, told("block", byte * BFLOAT16 + at + 0x4D * BFLOAT16 * BYTES))
        tell((byte + 1) / BYTES)
    return Replayed(BYTES * BFLOAT16)
