"""Arguments of a call beside its tensor, and their values, which a call that repeats an earlier one reads again."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple

import numpy as np

from fp4ref import arrays
from fp4ref.arguments import given_amax
from fp4ref.quantized import Directions
from fp4ref.registry import Call
from fp4ref.spec import Granularity, Spec

NUMBERS = (float, int, np.float32)  # types of numbers that a maximum usually has
LARGEST = float(np.finfo(np.float32).max)


class Arguments(NamedTuple):
    """Arguments of `quantize` beside its tensor, as they were given. out: with the buffers of row and column."""

    amax: Any = None
    random_bits: Any = None
    out: Any = None
    noop: Any = None

    def arrays_of(self, names: Sequence[str]) -> Callable[..., list[Any] | tuple[Any, ...]]:
        """Return a function of a tensor and what is given with it that returns every array among these.

        names: the directions whose buffers are filled. The function's arguments have the kinds of these.
        """
        takes = [attrgetter(name) for name in names]

        def every(x: Any, amax: Any, random_bits: Any, out: Any, noop: Any) -> list[Any]:
            found = [x, *[part for take in takes for part in take(out) if part is not None]] if out else [x]
            for value in (amax, random_bits, noop):
                if value is not None:
                    parts = value if isinstance(value, Directions) else (value,)
                    found += [part for part in parts if part is not None and not isinstance(part, NUMBERS)]
            return found

        if self.out is None or self.amax is not None or self.random_bits is not None or self.noop is not None:
            return every
        parts = [part for take in takes for part in take(self.out)]
        held = itemgetter(0, *[at for at, part in enumerate(parts, 1) if part is not None])
        if len(takes) == 1:
            of = takes[0]
            return lambda x, amax, bits, out, noop: held((x, *of(out)))
        return lambda x, amax, bits, out, noop: held((x, *out.row, *out.column))


NOTHING = Arguments()


def is_set(noop: Any) -> bool:
    """Return True if any bit is set of a flag of NumPy or torch in the CPU's memory. Rules: LAY-56."""
    value = noop.item()
    return bool(value != 0 or math.copysign(1.0, value) < 0)


def maxima_reader(amax: Any, call: Call) -> Callable[[Any], list[Any]]:
    """Return the function that reads and checks maxima like the first ones, for each direction of a call's matrix."""
    names, (rows, columns), spec = call.directions, call.sizes, call.required
    shapes = [(rows, columns) if name == "row" else (columns, rows) for name in names]
    if not isinstance(amax, Directions):
        read, count = amax_reader(amax, spec, shapes[0]), len(names)
        return lambda amax: [read(amax)] * count
    takes, readers = [attrgetter(name) for name in names], list[Callable[[Any], Any] | None]()
    for take, shape in zip(takes, shapes, strict=True):
        readers.append(None if take(amax) is None else amax_reader(take(amax), spec, shape))
    return lambda amax: [read and read(take(amax)) for read, take in zip(readers, takes, strict=True)]


def amax_reader(amax: Any, spec: Spec, shape: tuple[int, int]) -> Callable[[Any], Any]:
    """Return a function that does for maxima of one kind what `given_amax` does, which accepted the first of them.

    Rules: GLB-4, GLB-5, GLB-8.
    """

    def one(value: Any) -> Any:
        number = float(value.item() if is_array else value)
        if 0 <= number <= LARGEST and (is_array or number == value):
            return np.array([abs(number)], np.float32)
        return given_amax(value, spec, shape)

    def of_rows(value: Any) -> Any:
        flat = read(value).astype(np.float32, copy=False).reshape(count)
        return np.abs(flat) if not count or least(flat) >= 0 else given_amax(value, spec, shape)

    is_array, least = not isinstance(amax, NUMBERS), np.minimum.reduce  # which `min` calls, too, by way of Python
    if is_array and arrays.device_of(amax) != "cpu":
        return lambda value: value
    usual = arrays.is_torch(amax) and arrays.dtype_name(amax) == "float32"
    read = (lambda value: value.detach().numpy()) if usual else partial(arrays.to_numpy, "quantize")
    count = shape[0] if spec.global_scale is Granularity.ROW else 1
    return one if count == 1 else of_rows
