"""Relations between layouts: where two of them differ, and which ones turn one buffer into another.

A packing is a layout as well; `named` finds both.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fp4ref.errors import DomainError, DTypeError, Fp4Error, LayoutError, ShapeError
from fp4ref.formats import WIDTHS
from fp4ref.layout import LAYOUTS, ORIGINS, Layout
from fp4ref.packings import CANONICAL_OF, PACKINGS, repack

UNITS_MOST = 1 << 24  # of an array that is compared index by index
MATRICES = ((1, 1), (8, 4), (5, 3), (16, 4), (32, 8), (64, 8), (128, 4), (130, 5), (128, 8), (256, 16), (300, 9))


class Divergence(NamedTuple):
    """The first index, in row-major order, whose units two layouts store apart; or None, and what else differs."""

    place: tuple[int, ...] | None
    offsets: tuple[int, int]
    text: str


class Match(NamedTuple):
    """A layout that turns the first buffer into the second. note: what does not fit besides, in words."""

    name: str
    note: str


def every() -> dict[str, Layout]:
    """Return all registered layouts and packings by name."""
    return {**PACKINGS, **LAYOUTS}


def named(name: str) -> Layout:
    """Return a layout or a packing by its name."""
    return PACKINGS[name] if name in PACKINGS and name not in LAYOUTS else LAYOUTS[name]


def source(name: str) -> str:
    """Return where a layout or packing comes from."""
    return (PACKINGS if name in PACKINGS and name not in LAYOUTS else LAYOUTS).source(name)


def consumer(name: str) -> str:
    """Return who reads buffers of a layout; empty if nobody said so."""
    return ORIGINS[name].consumer if name in ORIGINS else ""


def differ(a: Layout, b: Layout, sizes: Sequence[int]) -> Divergence | None:
    """Compare two layouts on an array of these sizes; None if every unit, the size and the padding agree.

    Errors: ShapeError for sizes that one of them refuses; LayoutError for other axes or units.

    Rules: LAY-7, LAY-13, LAY-37.
    """
    if len(a.axes) != len(b.axes) or a.unit != b.unit:
        got = f"{a.name} with {len(a.axes)} axes of {a.unit} bits, {b.name} with {len(b.axes)} of {b.unit}"
        raise LayoutError("layouts compare", got, "as many axes and the same unit", "LAY-13")
    if math.prod(sizes) > UNITS_MOST:
        raise ShapeError("layouts compare", f"{math.prod(sizes)} units", f"at most {UNITS_MOST}", "LAY-13")
    shapes = [math.prod(form.padded_shape(*sizes)) for form in (a, b)]
    grid = np.ogrid[tuple(slice(0, size) for size in sizes)]
    first, second = (np.broadcast_to(form.offsets(grid, sizes), tuple(sizes)) for form in (a, b))
    if (first != second).any():
        index = tuple(int(part) for part in np.argwhere(first != second)[0])
        apart = int(first[index]), int(second[index])
        return Divergence(index, apart, f"{_spoken(index)} is stored at {apart[0]} and {apart[1]}")
    if shapes[0] != shapes[1]:
        return Divergence(None, (0, 0), f"the same offsets, but {shapes[0]} and {shapes[1]} units with padding")
    if (a.compared(*sizes) != b.compared(*sizes)).any():
        return Divergence(None, (0, 0), "the same offsets; one specifies padding that the other leaves open")
    if a.unit <= 8 and _padding(a, sizes) != _padding(b, sizes):
        return Divergence(None, (0, 0), "the same offsets; their padding has different values")
    return None


def sample_sizes(a: Layout, b: Layout) -> list[tuple[int, ...]]:
    """Return sizes on which a comparison shows much: small ones, whole tiles of both, and odd ones."""
    tiles = [math.lcm(x.multiple, y.multiple) for x, y in zip(a.axes, b.axes, strict=True)]
    whole = [tuple(tiles), tuple(2 * size for size in tiles), tuple(3 * size for size in tiles)]
    if len(tiles) == 2:
        return list(dict.fromkeys((*MATRICES, *whole)))
    return list(dict.fromkeys((tuple(1 for _ in tiles), tuple(size + 1 for size in tiles), *whole)))


def find(first: NDArray[Any], second: NDArray[Any], bits: int | None = None) -> Iterator[Match]:
    """Yield every registered layout that turns an array in row-major order into a buffer.

    first: the array, one axis for each axis of the layouts; if bits is 4 or 6, the bytes of the canonical packing of
    codes of that width. second: the buffer, of any shape. Memory that is missing at its end may be padding only.

    Rules: LAY-7, LAY-13, LAY-37, PACK-7.
    """
    if first.dtype != second.dtype or first.dtype.kind not in "uif" or first.dtype.itemsize not in {1, 4}:
        got = f"{first.dtype} and {second.dtype}"
        raise DTypeError("layouts find", got, "two buffers of bytes, or two of units of 32 bits", "LAY-13")
    unit = bits or 8 * first.dtype.itemsize
    if unit not in {*WIDTHS, 32} or (unit != 32) != (first.dtype.itemsize == 1):
        raise DomainError("layouts find", f"{unit} bits of {first.dtype}", "4, 6 or 8 of bytes", "PACK-7")
    array = first.view("u4" if unit == 32 else "u1")
    flat = np.ascontiguousarray(second).reshape(-1).view(array.dtype)
    for name, form in every().items():
        if name in PACKINGS or (form.unit == unit and unit in {4, 6}):
            found = _packed(form, array, flat, unit) if array.ndim == 2 else None
        else:
            found = _laid(form, array, flat) if form.unit == unit and len(form.axes) == array.ndim else None
        if found is not None:
            yield Match(name, found)


def _laid(form: Layout, array: NDArray[Any], flat: NDArray[Any]) -> str | None:
    """Return where gaps and padding differ if a layout turns an array into a buffer, else None."""
    try:
        buffer = form.from_linear(array).reshape(-1)
    except Fp4Error:  # a size that it refuses, or units that differ where it has one place
        return None
    return _fits(flat, buffer, form.valid(*array.shape).reshape(-1), form.compared(*array.shape).reshape(-1))


def _packed(form: Layout, data: NDArray[Any], flat: NDArray[Any], bits: int) -> str | None:
    """Return the same for the bytes of packed codes."""
    if len(form.axes) != 2 or (form.unit != bits and (bits, form.unit) != (4, 8)):
        return None
    rows, columns = data.shape[0], data.shape[1] * 8 // bits
    if -(-columns * bits // 8) != data.shape[1]:
        return None
    try:
        move = [repack(values, rows, columns, CANONICAL_OF[bits], form, bits=bits) for values in (data, _ones(data))]
    except Fp4Error:
        return None
    if form == CANONICAL_OF[bits]:
        return None if flat.size != data.size or (flat != data.reshape(-1)).any() else ""
    buffer, used = (moved.reshape(-1) for moved in move)
    return _fits(flat & used[: flat.size], buffer & used, used != 0, used != 0) if flat.size <= used.size else None


def _ones(data: NDArray[Any]) -> NDArray[Any]:
    return np.full_like(data, 255)


def _fits(flat: NDArray[Any], buffer: NDArray[Any], used: NDArray[Any], compared: NDArray[Any]) -> str | None:
    if flat.size > buffer.size or used[flat.size :].any():
        return None
    if (flat != buffer[: flat.size])[used[: flat.size]].any():
        return None
    notes = []
    if flat.size < buffer.size:
        notes.append(f"{buffer.size - flat.size} units of padding are missing at the end")
    if (flat != buffer[: flat.size])[compared[: flat.size]].any():
        notes.append("the padding has other values")
    return "; ".join(notes)


def _padding(form: Layout, sizes: Sequence[int]) -> bytes:
    return form.from_linear(np.zeros(tuple(sizes), np.uint8)).tobytes()


def _spoken(index: tuple[int, ...]) -> str:
    return f"({', '.join(map(str, index))})"
