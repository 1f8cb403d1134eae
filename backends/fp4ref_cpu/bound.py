"""Quantize other arrays of a kind as the first one, with nothing decided again: addresses into jobs that are ready."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from fp4ref import arrays
from fp4ref.quantized import DirectionData
from fp4ref.registry import Call
from fp4ref_cpu import jobs
from fp4ref_cpu.maps import padding
from fp4ref_cpu.native import buffer_of, starts
from fp4ref_cpu.quantizing import AmaxJob, Prepared, QuantizeJob, has_strides, quantize, ready_for

FLOAT = 4  # bytes of a maximum
X = jobs.place(QuantizeJob, "input")
GIVEN, DATA, SCALES = (jobs.place(QuantizeJob, name) for name in ("amax", "data", "scales"))
FOUND = jobs.place(AmaxJob, "amax")


def bind_quantize(
    call: Call, x: Any, amax: Any, random_bits: Any, out: DirectionData | None
) -> Callable[..., DirectionData] | None:
    """Return a function that quantizes other arrays of these ones' kinds; None if their jobs are not remembered."""
    array = arrays.to_numpy("quantize", x)
    if not has_strides(array) or amax is not None or random_bits is not None or call.layout.form.repeated:
        return None
    if out is not None and not all(map(_is_dense, out)):
        return None
    ready = ready_for(call, array)
    fill, start_of, unit = _filling(call, ready), starts(x), array.itemsize
    if out is not None:
        return _into(call, fill, start_of, unit, out)
    data_of, scales_of = (jobs.maker(x, shape, "uint8") for shape in (ready.data, ready.scales))
    found_in = None if ready.amax is None else jobs.maker(x, (ready.amax,), "float32")
    at = starts(data_of())

    def again(x: Any, amax: Any = None, random_bits: Any = None, out: DirectionData | None = None) -> DirectionData:
        start = start_of(x)
        if start % unit:  # it is copied
            return quantize(call, x, None, None, None)
        data, scales = data_of(), scales_of()
        if found_in is None:
            fill(start, at(data), at(scales), 0)
            return DirectionData(data, scales, None)
        found = found_in()
        fill(start, at(data), at(scales), at(found))
        return DirectionData(data, scales, found)

    return again


def _into(
    call: Call, fill: Callable[[int, int, int, int], None], start_of: Callable[[Any], int], unit: int, like: Any
) -> Callable[..., DirectionData]:
    """Return a function that quantizes into the caller's buffers, which are like those of the first call."""
    ats = [None if part is None else _writing(part) for part in like]

    def again(x: Any, amax: Any = None, random_bits: Any = None, out: DirectionData | None = None) -> DirectionData:
        start = start_of(x)
        if start % unit:
            return quantize(call, x, None, None, out)
        assert out is not None
        fill(start, *[0 if at is None else at(part) for at, part in zip(ats, out, strict=True)])
        return out

    return again


def _is_dense(part: Any) -> bool:
    """Return True for no buffer, or one whose elements follow each other."""
    return part is None or bool(arrays.to_numpy("quantize", part).flags.c_contiguous)


def _writing(like: Any) -> Callable[[Any], int]:
    """Return the function that reads the address of a buffer of a kind, and requires that it can be written."""
    start_of = starts(like)
    return start_of if arrays.is_torch(like) else lambda part: start_of(buffer_of(part))


def _filling(call: Call, ready: Prepared) -> Callable[[int, int, int, int], None]:
    """Return a function of the addresses of the input, of codes, scales and maxima, that fills the last three."""
    elements, maxima = ready.rows * ready.columns, ready.amax or 0
    encode = jobs.runner(ready.quantize, elements)
    search = jobs.runner(ready.search, elements) if maxima else None
    to_encode, to_search = (jobs.ready(job, ready.kept) for job in (ready.quantize_job, ready.search_job))
    pad = padding(call.layout, ready.rows, -(-ready.columns // call.required.block.columns))
    one = ctypes.c_uint32.from_address

    def fill(start: int, data: int, scales: int, found: int) -> None:
        if pad:
            pad(scales)
        if maxima == 1:
            one(found).value = 0
        elif maxima:
            ctypes.memset(found, 0, maxima * FLOAT)
        if not elements:
            return
        if search:
            words = to_search.words[:]
            words[X], words[FOUND] = start, found
            search(words)
        words = to_encode.words[:]
        words[X], words[GIVEN], words[DATA], words[SCALES] = start, found, data, scales
        encode(words)

    return fill
