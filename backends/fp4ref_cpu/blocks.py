"""8-bit floats under a float32 scale of every 128 elements, or of every square of 128x128: codes, and their values."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from ctypes import c_float, c_longlong, c_void_p
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fp4ref import arrays
from fp4ref.errors import DTypeError, ShapeError
from fp4ref.quantized import DIRECTIONS
from fp4ref.registry import Call
from fp4ref_cpu import jobs
from fp4ref_cpu.build import functions
from fp4ref_cpu.native import address, exported, starts, text, writes
from fp4ref_cpu.per_tensor import LARGEST

SIDE, FOUR, FLOAT = 128, 4, 4  # of a square; scales of a line are padded to a multiple; bytes of one


class BlockValuesJob(ctypes.Structure):
    """Arguments of `block_values`."""

    _fields_ = (
        *(("codes", c_void_p), ("scales", c_void_p), ("out", c_void_p)),
        *(("rows", c_longlong), ("columns", c_longlong), ("pitch", c_longlong), ("squares", c_longlong)),
        ("next", c_longlong),
    )


class BlockCodesJob(ctypes.Structure):
    """Arguments of `block_codes`."""

    _fields_ = (
        ("x", c_void_p),
        *(("row_codes", c_void_p), ("row_scales", c_void_p), ("row_pitch", c_longlong)),
        *(("column_codes", c_void_p), ("column_scales", c_void_p), ("column_pitch", c_longlong)),
        *(("rows", c_longlong), ("columns", c_longlong), ("least", c_float), ("most", c_float)),
        *(("power_of_two", c_longlong), ("squares", c_longlong), ("next", c_longlong)),
    )


CODES, SCALES, VALUES = (jobs.place(BlockValuesJob, name) for name in ("codes", "scales", "out"))
X = jobs.place(BlockCodesJob, "x")
ROW_CODES, ROW_SCALES, COLUMN_CODES, COLUMN_SCALES = (
    jobs.place(BlockCodesJob, f"{name}_{part}") for name in DIRECTIONS for part in ("codes", "scales")
)
KINDS = ("uint8", "float32") * 2  # of codes and scales


def block_codes(call: Call, x: Any, least: float, power_of_two: bool, squares: bool) -> tuple[Any, ...]:
    """Return the codes of the rows of a matrix and 1 over their scales, then the same of its transpose.

    Where the call's direction leaves one out, both are None. call: its specification's element is that of the codes.
    least: the least amax. power_of_two: drop the scale's mantissa. squares: one scale for 128x128 elements, else for
    128 of a row. Shape: uint8 [M, K] and [K, M]; the scales as for `block_values`.

    Errors: DTypeError, ShapeError.

    Rules: TEL-49, TEL-50, TEL-73.
    """
    array = _required("x", x, call.source, call.sizes)
    shapes = _shapes(call, squares)
    made = [None if shape is None else np.empty(shape, kind) for shape, kind in zip(shapes, KINDS, strict=True)]
    _encoding(call, least, power_of_two, squares)(*(address(each) or 0 for each in (array, *made)))
    restore = arrays.restorer(x)
    return tuple(each if each is None else restore(each) for each in made)


def bind_block_codes(
    call: Call, x: Any, least: float, power_of_two: bool, squares: bool, out: Sequence[Any] | None = None
) -> Callable[..., Sequence[Any]] | None:
    """Return a function that encodes other arrays of this one's kind; None for what is copied.

    out: what `block_codes` would return, whose buffers are filled; the function takes other ones.
    """
    shapes = _shapes(call, squares)
    if not all(each is None or _is_dense(each) for each in (x, *(out or ()))):
        return None
    encode, start_of = _encoding(call, least, power_of_two, squares), starts(x)
    unit = arrays.INPUT_DTYPES[call.source].itemsize
    if out is not None:
        places = [_none if each is None else writes(each, "block_codes") for each in out]

        def into(x: Any, out: Sequence[Any]) -> Sequence[Any]:
            start, to = start_of(x), [place(each) for place, each in zip(places, out, strict=True)]
            if start % unit or (to[1] | to[3]) % FLOAT:
                for buffer, made in zip(out, block_codes(call, x, least, power_of_two, squares), strict=True):
                    if made is not None:
                        buffer[...] = made
            else:
                encode(start, *to)
            return out

        return into
    makers = [
        _nothing if shape is None else jobs.maker(x, shape, kind) for shape, kind in zip(shapes, KINDS, strict=True)
    ]
    ats = [_none if shape is None else starts(make()) for shape, make in zip(shapes, makers, strict=True)]

    def again(x: Any) -> Sequence[Any]:
        start = start_of(x)
        if start % unit:
            return block_codes(call, x, least, power_of_two, squares)
        made = [make() for make in makers]
        encode(start, *[at(each) for at, each in zip(ats, made, strict=True)])
        return tuple(made)

    return again


def block_values(call: Call, codes: Any, scales: Any, squares: bool) -> Any:
    """Return codes times their scales, computed in float32, rounded to the call's output type: [rows, columns].

    call: its specification's element is that of the codes. scales: float32 [b(columns), pad4(rows)], of squares
    [b(rows), pad4(b(columns))], with b(n) blocks.

    Errors: DTypeError, ShapeError.

    Rules: DEQ-2, DEQ-3, TEL-49.
    """
    given = (
        _required("codes", codes, "uint8", call.sizes),
        _required("scales", scales, "float32", _scales(*call.sizes, squares)),
    )
    values = np.empty(call.sizes, arrays.output_dtype("block_values", call.to))
    _decoding(call, squares)(*(address(part) or 0 for part in (*given, values)))
    return arrays.restorer(codes)(values)


def bind_block_values(call: Call, codes: Any, scales: Any, squares: bool) -> Callable[[Any, Any], Any] | None:
    """Return a function that decodes other codes of these ones' kind; None for what is copied."""
    if not all(arrays.to_numpy("block_values", each).flags.c_contiguous for each in (codes, scales)):
        return None
    decode, make = _decoding(call, squares), jobs.maker(codes, call.sizes, call.to)
    codes_of, scales_of, at = starts(codes), starts(scales), starts(make())

    def again(codes: Any, scales: Any) -> Any:
        factors = scales_of(scales)
        if factors % FLOAT:  # they are copied
            return block_values(call, codes, scales, squares)
        values = make()
        decode(codes_of(codes), factors, at(values))
        return values

    return again


def _scales(rows: int, columns: int, squares: bool) -> tuple[int, int]:
    """Return the shape of the scales of a matrix. Rules: TEL-49."""
    first, last = (-(-rows // SIDE), -(-columns // SIDE)) if squares else (-(-columns // SIDE), rows)
    return first, -(-last // FOUR) * FOUR


def _shapes(call: Call, squares: bool) -> list[tuple[int, int] | None]:
    """Return the shapes of codes and scales of both directions; None for one that is not computed."""
    each = (call.sizes, _scales(*call.sizes, squares)), (call.sizes[::-1], _scales(*call.sizes[::-1], squares))
    used = [name in call.directions for name in DIRECTIONS]
    return [shape if use else None for shapes, use in zip(each, used, strict=True) for shape in shapes]


def _encoding(call: Call, least: float, power_of_two: bool, squares: bool) -> Callable[[int, int, int, int, int], None]:
    """Return a function of the addresses of a matrix, and of codes and scales of both directions."""
    rows, columns = call.sizes
    run = jobs.runner(_encoder(text(call.required), call.source), rows * columns)
    pitches = [_scales(*sizes, squares)[1] for sizes in (call.sizes, call.sizes[::-1])]
    sides = None, None, pitches[0], None, None, pitches[1]
    how = rows, columns, least, LARGEST[call.source], power_of_two, squares, 0
    ready = jobs.ready(BlockCodesJob(None, *sides, *how), None)

    def encode(x: int, *made: int) -> None:
        if rows and columns:
            words = ready.words[:]
            words[X] = x
            words[ROW_CODES], words[ROW_SCALES], words[COLUMN_CODES], words[COLUMN_SCALES] = made
            run(words)

    return encode


def _none(part: None) -> int:
    """Return the address that stands for no buffer."""
    return 0


def _nothing() -> None:
    """Return no buffer."""


def _is_dense(part: Any) -> bool:
    return bool(arrays.to_numpy("block_codes", part).flags.c_contiguous)


def _decoding(call: Call, squares: bool) -> Callable[[int, int, int], None]:
    """Return a function of the addresses of codes, scales and values."""
    rows, columns = call.sizes
    run = jobs.runner(_function(text(call.required), call.to), rows * columns)
    pitch = _scales(*call.sizes, squares)[1]
    ready = jobs.ready(BlockValuesJob(None, None, None, rows, columns, pitch, squares, 0), None)
    return jobs.at_three(run, ready, (CODES, SCALES, VALUES), rows * columns)


def _required(name: str, value: Any, dtype: str, shape: tuple[int, ...]) -> NDArray[Any]:
    """Return an array of a type and shape, whose elements follow each other."""
    array = arrays.to_numpy("block_values", value)
    if arrays.dtype_name(value) != dtype:
        raise DTypeError("block_values", f"{name} of {arrays.dtype_name(value)}", dtype, "TEL-49")
    if array.shape != shape:
        raise ShapeError("block_values", f"{name} {list(array.shape)}", f"{list(shape)}", "TEL-49")
    array = np.ascontiguousarray(array)
    return array if array.flags.aligned else array.copy()


@lru_cache
def _function(prelude: str, kind: str) -> Any:
    return functions(block_text(prelude, kind), "block_values")[0]


def block_text(prelude: str, kind: str) -> str:
    """Return the text that exports `block_values`; kind: the type of the values."""
    return exported(prelude, "blocks.h", f"Blocks<Specification, fp4ref::{kind}>", "block_values", job="BlockValuesJob")


@lru_cache
def _encoder(prelude: str, kind: str) -> Any:
    return functions(encoding_text(prelude, kind), "block_codes")[0]


def encoding_text(prelude: str, kind: str) -> str:
    """Return the text that exports `block_codes`; kind: the type of what is encoded."""
    return exported(prelude, "blocks.h", f"Blocks<Specification, fp4ref::{kind}>", "block_codes", job="BlockCodesJob")
