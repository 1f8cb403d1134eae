"""Quantize other arrays of a kind as the first one, with nothing decided again: addresses into jobs that are ready."""

from __future__ import annotations

import ctypes
import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fp4ref import arrays
from fp4ref.quantized import DirectionData
from fp4ref.registry import Call
from fp4ref_cpu import jobs
from fp4ref_cpu.compiled import maximum, transformer
from fp4ref_cpu.maps import padding
from fp4ref_cpu.native import address, starts, text, without_hadamard, writes
from fp4ref_cpu.quantizing import AmaxJob, Prepared, QuantizeJob, TransformJob, has_strides, quantize, ready_for

FLOAT = 4  # bytes of a maximum
X = jobs.place(QuantizeJob, "input")
GIVEN, RANDOM, DATA, SCALES = (jobs.place(QuantizeJob, name) for name in ("amax", "random", "data", "scales"))
FOUND = jobs.place(AmaxJob, "amax")
LINED = jobs.place(TransformJob, "out")
WRITTEN = 1 << 18  # elements: a half of a second-level cache
Fill = Callable[[int, int, int, int, int], None]  # of the addresses of input, random bytes, codes, scales and maxima


def bind_quantize(
    call: Call, x: Any, amax: Any, random_bits: Any, out: DirectionData | None
) -> Callable[..., DirectionData] | None:
    """Return a function that quantizes other arrays of these ones' kinds; None if their jobs are not remembered."""
    array = arrays.to_numpy("quantize", x)
    if not has_strides(array) or call.layout.form.repeated:
        return None
    if any(step % array.itemsize for step in array.strides):  # it is copied, wherever it starts
        return None
    if not all(map(_is_dense, (random_bits, *(out or ())))):
        return None
    ready, start_of, unit = ready_for(call, array), starts(x), array.itemsize
    fill = _filling(call, ready, search=amax is None)
    random_of = _none if random_bits is None else starts(random_bits)
    if out is not None:
        return _into(call, fill, start_of, unit, random_of, out)
    data_of, scales_of = (jobs.maker(x, shape, "uint8") for shape in (ready.data, ready.scales))
    found_in = None if ready.amax is None else jobs.maker(x, (ready.amax,), "float32")
    at = starts(data_of())

    def again(x: Any, amax: Any = None, random_bits: Any = None, out: DirectionData | None = None) -> DirectionData:
        start = start_of(x)
        if start % unit:  # it is copied
            return quantize(call, x, amax, random_bits, None)
        data, scales = data_of(), scales_of()
        if found_in is None:
            fill(start, random_of(random_bits), at(data), at(scales), 0)
            return DirectionData(data, scales, None)
        found = found_in()
        place = at(found)
        if amax is not None:
            _write(amax, place)
        fill(start, random_of(random_bits), at(data), at(scales), place)
        return DirectionData(data, scales, found)

    return again


def _write(amax: NDArray[np.float32], place: int) -> None:
    """Write given maxima where those that are searched for would be."""
    if amax.size == 1:
        _one_float(place).value = amax.item()
    else:
        ctypes.memmove(place, address(amax) or 0, amax.nbytes)


_one_float = ctypes.c_float.from_address


def _into(
    call: Call, fill: Fill, start_of: Callable[[Any], int], unit: int, random_of: Callable[[Any], int], like: Any
) -> Callable[..., DirectionData]:
    """Return a function that quantizes into the caller's buffers, which are like those of the first call."""
    data_of, scales_of, place_of = (_none if part is None else writes(part) for part in like)

    def again(x: Any, amax: Any = None, random_bits: Any = None, out: DirectionData | None = None) -> DirectionData:
        start = start_of(x)
        if start % unit:
            return quantize(call, x, amax, random_bits, out)
        assert out is not None
        data, scales, found = out
        to_data, to_scales, place = data_of(data), scales_of(scales), place_of(found)
        if amax is not None:
            _write(amax, place)
        fill(start, random_of(random_bits), to_data, to_scales, place)
        return out

    return again


def _is_transformed_once(call: Call, ready: Prepared) -> bool:
    """Return True if a direction is transformed, and so small that it is better written out for maximum and codes."""
    transforms = call.required.hadamard is not None and call.direction == "column"
    return transforms and 0 < ready.rows * ready.columns <= WRITTEN


def _none(random_bits: None) -> int:
    """Return the address that stands for no random bytes."""
    return 0


def _is_dense(part: Any) -> bool:
    """Return True for no buffer, or one whose elements follow each other."""
    return part is None or bool(arrays.to_numpy("quantize", part).flags.c_contiguous)


def _filling(call: Call, ready: Prepared, *, search: bool) -> Fill:
    """Return a function that fills codes, scales and, with a search, maxima; they are there without one."""
    shape, elements, steps = (ready.rows, ready.columns), ready.rows * ready.columns, list[tuple[Any, jobs.Ready]]()
    transforms = _is_transformed_once(call, ready)
    if transforms:  # by way of memory for the transformed direction
        to_transform = TransformJob(ready.quantize_job.input, None, 0)
        steps.append((transformer(text(maximum(call.required))), jobs.ready(to_transform, ready.kept)))
        plain, spec = np.empty(shape, arrays.INPUT_DTYPES[call.source]), without_hadamard(call.required)
        ready = ready_for(dataclasses.replace(call, spec=spec, direction="row", shape=shape), plain)
    maxima = (ready.amax or 0) if search else 0
    if maxima:
        steps.append((ready.search, jobs.ready(ready.search_job, ready.kept)))
    steps.append((ready.quantize, jobs.ready(ready.quantize_job, ready.kept)))
    whole, places, run = jobs.sequence(elements, *steps)
    transform, find, encode = places[0], places[1 if transforms else 0], places[-1]
    pad = padding(call.layout, ready.rows, -(-ready.columns // call.required.block.columns))
    one = ctypes.c_uint32.from_address

    def fill(start: int, random: int, data: int, scales: int, found: int) -> None:
        if pad:
            pad(scales)
        if maxima == 1:
            one(found).value = 0
        elif maxima:
            ctypes.memset(found, 0, maxima * FLOAT)
        if not elements:
            return
        words = whole.words[:]
        if transforms:
            lined = np.empty(shape, np.uint16)
            words[transform + X] = start
            words[transform + LINED] = start = address(lined) or 0
        if maxima:
            words[find + X], words[find + FOUND] = start, found
        words[encode + X], words[encode + GIVEN], words[encode + RANDOM] = start, found, random
        words[encode + DATA], words[encode + SCALES] = data, scales
        run(words)

    return fill
