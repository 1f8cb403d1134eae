"""Mistakes in what the quantizer reads: the tensor's strides and axes, and its values."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fp4ref.arrays import INPUT_DTYPES
from fp4ref.conformance.mistakes.elsewhere import EVERY, LAST, blank, cleared
from fp4ref.conformance.mistakes.kernel import flushed
from fp4ref.conformance.mistakes.record import NARROW, Mistake, Slot, has_global, known
from fp4ref.conformance.subjects.guards import GAP
from fp4ref.formats import F, Floats
from fp4ref.quantized import matrix_shape

SIZES = (2, 4, 8, 16, 32, 64, 128)
TINY = np.finfo(F).tiny
Tensor = NDArray[Any]


# How the tensor is read


def without_gaps(x: Tensor) -> Tensor:
    """Read a tensor with gaps of NaN between its rows as if its rows followed each other."""
    if x.ndim < 2 or not x.size:
        return x
    apart = np.full((*x.shape[:-1], x.shape[-1] + GAP), np.nan, x.dtype)
    apart[..., : x.shape[-1]] = x
    return apart.reshape(-1)[: x.size].reshape(x.shape)


def exchanged(x: Tensor) -> Tensor:
    """Return x with its elements taken as those of the matrix [K, M]."""
    return x.reshape(matrix_shape(x.shape)[::-1]).T.reshape(x.shape)


def of_leading(order: Any, x: Tensor) -> Tensor:
    """Return x [..., K] with its leading axes in another order, its rows counted through in that order."""
    if x.ndim < 3:
        return x
    return x.transpose(*order(x.ndim - 1), x.ndim - 1).reshape(x.shape)


def first_of_leading(x: Tensor) -> Tensor:
    """Return x with its first matrix in the place of each."""
    return np.broadcast_to(x[:1], x.shape) if x.ndim > 2 else x


def at_pitch(rounded: Any, size: int, x: Tensor) -> Tensor:
    """Read rows at a pitch that is rounded to a multiple of a size; zeros follow the tensor."""
    if x.ndim < 2 or not x.size:
        return x
    columns = x.shape[-1]
    index = np.arange(x.size // columns)[:, None] * (rounded(columns / size) * size) + np.arange(columns)
    flat = x.reshape(-1)
    found: Tensor = np.where(index < x.size, flat[np.minimum(index, x.size - 1)], np.zeros(1, x.dtype))
    return found.reshape(x.shape)


def aligned_down(size: int, x: Tensor) -> Tensor:
    """Read every row from the vector of `size` bytes in which it begins."""
    if x.ndim < 2 or not x.size:
        return x
    columns, wide = x.shape[-1], max(size // x.itemsize, 1)
    start = np.arange(x.size // columns) * columns // wide * wide
    found: Tensor = x.reshape(-1)[start[:, None] + np.arange(columns)]
    return found.reshape(x.shape)


def as_other_type(own: str, other: str, x: Tensor) -> Tensor:
    """Return the bits of a type, taken as those of another one of the same width."""
    return x.view(INPUT_DTYPES[other]) if x.dtype.name == own else x


READ = (
    (
        "strides",
        "the strides of x are ignored: rows are read as if nothing were between them",
        without_gaps,
    ),
    (
        "exchanged",
        "x [M, K] is read as a matrix [K, M]: its transpose is read as it is stored",
        exchanged,
    ),
    (
        "leading-reversed",
        "the leading dimensions of x are flattened in reverse order, the first one fastest",
        partial(of_leading, lambda count: range(count - 1, -1, -1)),
    ),
    (
        "leading-rotated",
        "the leading dimensions of x are flattened in another order, the last one slowest",
        partial(of_leading, lambda count: (count - 1, *range(count - 1))),
    ),
    (
        "leading-exchanged",
        "the first two dimensions of x are exchanged before it is flattened",
        partial(of_leading, lambda count: (1, 0, *range(2, count))),
    ),
    *(
        (
            f"pitch-{way}-{size}",
            f"rows of x are read as if their length were rounded {way} to a multiple of {size}",
            partial(at_pitch, rounded, size),
        )
        for size in SIZES
        for way, rounded in (("up", math.ceil), ("down", math.floor))
    ),
    *(
        (
            f"aligned-{size}",
            f"each row of x is read from the last address that is a multiple of {size} bytes",
            partial(aligned_down, size),
        )
        for size in (4, 8, 16, 32)
    ),
    ("leading-first", "only the first index of the leading dimension of x is read", first_of_leading),
)


# The values


QUIET = 1 << 22  # the highest bit of the mantissa, which is set in a quiet NaN


def _signalling(values: Floats) -> NDArray[np.bool_]:
    return np.asarray(np.isnan(values) & (_mantissa(values) < QUIET))


def _with_payload(values: Floats) -> NDArray[np.bool_]:
    return np.asarray(np.isnan(values) & (_mantissa(values) != QUIET))


def _mantissa(values: Floats) -> NDArray[np.uint32]:
    return np.ascontiguousarray(values, F).view(np.uint32) & np.uint32(2 * QUIET - 1)


SPECIAL = (
    ("nan-zero", "NaN is taken as 0", np.isnan, 0.0),
    ("nan-inf", "NaN is taken as an infinity", np.isnan, np.inf),
    (
        "nan-signalling",
        "a NaN whose highest bit of the mantissa is not set is taken as an infinity",
        _signalling,
        np.inf,
    ),
    (
        "nan-payload",
        "a NaN of whose mantissa another bit than the highest is set is taken as an infinity",
        _with_payload,
        np.inf,
    ),
    ("inf-max", "infinities are taken as the largest finite value", np.isinf, float(np.finfo(F).max)),
    ("inf-65504", "infinities are taken as the largest value of float16, 65504", np.isinf, 65504.0),
    ("inf-zero", "infinities are taken as 0", np.isinf, 0.0),
    ("inf-nan", "infinities are taken as NaN", np.isinf, np.nan),
    ("special-zero", "NaN and infinities are taken as 0", lambda v: ~np.isfinite(v), 0.0),
)


of_shape = partial(known, Slot.INPUT, breaks=("NUM-4",))
of_type = partial(known, Slot.INPUT, breaks=("NUM-1", "NUM-3"))
of_subnormals = partial(known, Slot.INPUT, breaks=("NUM-5",))
widened = partial(known, Slot.INPUT, breaks=("NUM-10",))


def inputs() -> Iterator[Mistake]:
    """Mistakes that change the values before anything is computed."""
    for name, text, read in READ:
        yield of_shape(f"input-{name}", text, alone=True, read=read)
    for own, other in (("float16", "bfloat16"), ("bfloat16", "float16")):
        text = f"the bits of {own} are read as {other}"
        yield of_type(f"input-{own}-as-{other}", text, alone=True, read=partial(as_other_type, own, other))
    for name, text, narrow in NARROW:
        yield of_type(f"input-{name}", f"inputs are {text} first", values=narrow)
    for most in (65504, 57344, 448):
        for way, words, change in (
            ("all", "", partial(_limited, most, np.inf)),
            ("finite", "; infinities are kept", partial(_limited, most, float(np.finfo(F).max))),
        ):
            text = f"inputs are limited to -{most:,} to {most:,}{words}"
            yield of_type(f"input-limited-{most}-{way}", text, alone=True, values=change)
    yield of_shape("input-zeros", "elements are taken as zeros", alone=True, values=np.zeros_like)
    for size in SIZES[1:]:
        for way, words, change in (
            ("columns", "columns", partial(cleared, 1, size)),
            ("rows", "rows", partial(cleared, size, 1)),
        ):
            yield known(
                Slot.BLOCK,
                f"dropped-{way}-{size}",
                f"{words} past the last multiple of {size} are quantized as zeros, and count in the amax only",
                has_global,
                quantized=change,
            )
            yield known(
                Slot.BLOCK,
                f"block-without-{way}-{size}",
                f"block maxima miss the {words} past the last multiple of {size}",
                tails=change,
            )
        yield of_shape(
            f"input-columns-{size}",
            f"columns past the last multiple of {size} are taken as zeros",
            values=partial(cleared, 1, size),
        )
        yield of_shape(
            f"input-clamped-{size}",
            f"columns past the last multiple of {size} are read from a vector of {size} that ends with the row",
            alone=True,
            values=partial(_clamped, size),
        )
        yield of_shape(
            f"input-rows-{size}",
            f"rows past the last multiple of {size} are taken as zeros",
            values=partial(cleared, size, 1),
        )
    yield of_shape("input-last-row", "the last row is taken as zeros", values=lambda v: blank(v, LAST))
    yield of_shape("input-last-column", "the last column is taken as zeros", values=lambda v: blank(v, EVERY, LAST))
    yield of_shape("input-rows-reversed", "rows of x are read in reverse order", values=lambda v: v[::-1], whole=True)
    yield of_subnormals(
        "input-flush-half",
        "inputs below 2^-14, the subnormals of float16, are flushed to zero",
        alone=True,
        values=lambda v: np.where(np.abs(v) < F(2.0**-14), np.copysign(F(0), v), v),
    )
    yield of_subnormals("input-flush", "subnormal inputs are flushed to zero", special=True, values=flushed)
    yield of_subnormals(
        "input-flush-unsigned",
        "subnormal inputs are flushed to +0",
        special=True,
        values=lambda v: np.where(np.abs(v) < TINY, F(0), v),
    )
    for name, text, chosen, value in SPECIAL:
        yield widened(f"input-{name}", text, special=True, values=partial(_replaced, chosen, value))


def _replaced(chosen: Any, value: float, values: Floats) -> Floats:
    """Return values of which some are replaced by one number, with their signs unless it is 0."""
    return np.where(chosen(values), np.copysign(F(value), values) if value else F(0), values)


def _clamped(size: int, values: Floats) -> Floats:
    """Return values of which a last vector that is not full begins too early, so that it ends with the row."""
    columns = values.shape[1]
    tail = columns % size
    if not tail or columns < size:
        return values
    return np.concatenate([values[:, : columns - tail], values[:, columns - size :][:, :tail]], axis=1)


def _limited(most: float, largest: float, values: Floats) -> Floats:
    """Return values of which those up to a largest magnitude are at most `most`."""
    return np.where(np.abs(values) <= largest, np.clip(values, F(-most), F(most)), values)
