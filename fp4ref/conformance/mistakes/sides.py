"""A kernel run on a case: its scales, then its codes, on all of a matrix or a part of it."""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fp4ref.arithmetic import Constants
from fp4ref.conformance.mistakes.exhibit import EVERY, Exhibit
from fp4ref.conformance.mistakes.kernel import BothDirections, Kernel, ScaleSide, own_byte, same
from fp4ref.errors import DomainError
from fp4ref.formats import Codes, F, Floats
from fp4ref.model.quantize import constants, made_nan
from fp4ref.model.tiles import join, split
from fp4ref.quantized import Direction
from fp4ref.spec import Granularity, Metric

ONE = np.ones((1, 1, 1, 1), F)  # the global scale, where there is none


class _BeforeBytes(NamedTuple):
    """A kernel's stages up to the scale of each block before its codec, for some rows and columns."""

    k: Constants
    values: Floats
    blocks: Floats
    maxima: tuple[Floats, Floats] | None
    used: Floats | None
    g: Floats
    block_amax: Floats
    t: Floats


def _before_bytes(kernel: Kernel, exhibit: Exhibit, rows: slice, columns: slice) -> _BeforeBytes:
    """Return the stages of a kernel without places up to the scale of each block; kernels in a row share these."""
    made, at, spec, block = exhibit.made, (rows, columns), kernel.spec, kernel.block
    k = made("constants", None, lambda: kernel.constants(constants(spec, exhibit.dtype)), kernel.constants, spec)
    changed = exhibit.changed(kernel)
    values, apart = changed[rows, columns], kernel.elements is not None
    source = exhibit.changed(kernel, scaled=True) if apart else changed
    blocks = made("blocks", at, lambda: split(source[rows, columns], block), source, block)
    maxima = exhibit.amax(kernel)
    used, g = None, ONE
    if maxima is not None:
        used, g = made("g", rows, lambda: _global(kernel, maxima[1], rows, k), kernel.global_scale, maxima[1], k)
    seen = blocks if kernel.tails is same and not apart else split(kernel.tails(values), block)
    keep_nan = kernel.keep_block_nan
    block_amax = made("maxima", None, lambda: kernel.block_amax(seen, keep_nan), kernel.block_amax, seen, keep_nan)
    scale = kernel.block_scale
    t = made("t", None, lambda: made_nan(scale(block_amax, g, k), block_amax, g), scale, block_amax, g, k)
    return _BeforeBytes(k, values, blocks, maxima, used, g, block_amax, t)


@np.errstate(all="ignore")
def scale_side(kernel: Kernel, exhibit: Exhibit, rows: slice, columns: slice = EVERY) -> ScaleSide:
    """Everything up to the scale bytes of some rows and columns, which start at a block."""
    if kernel.placed:
        return _placed_side(kernel, exhibit, rows, columns)
    if kernel.other is not None:
        return _other_side(kernel, exhibit)
    k, values, blocks, maxima, used, g, block_amax, t = _before_bytes(kernel, exhibit, rows, columns)
    drawn = exhibit.drawn(kernel)
    bits = None if drawn is None else split(drawn[rows, columns], kernel.block)
    codes = None
    if kernel.search is None:
        t = kernel.scale_value(t)
        byte = kernel.scale_byte(kernel.scale_codec.encode(t))
    else:
        codes, byte = _searched(kernel, blocks, t, block_amax, g, used, k)
    scales = kernel.scales(_by_row(kernel.stored(blocks, byte), blocks, values))
    amax = None if maxima is None else kernel.report(maxima[0])
    return ScaleSide(amax, scales, blocks, bits, k, g, t, byte, codes, values.shape, used, block_amax)


def _by_row(byte: Codes, blocks: Floats, values: Floats) -> Codes:
    """Return a byte for each block as scale bytes [rows, blocks] of the values."""
    down, across, high, _ = blocks.shape
    if byte.shape != (down, across, high, 1):
        byte = np.broadcast_to(byte, (down, across, high, 1))
    return byte.transpose(0, 2, 1, 3).reshape(down * high, across)[: values.shape[0]]


@np.errstate(all="ignore")
def scales_tried(kernel: Kernel, exhibit: Exhibit, rows: slice, columns: slice) -> list[Codes]:
    """Return the scale bytes [rows, blocks] of each candidate of 4over6, of which a kernel keeps one for each block.

    Empty for kernels that store another byte than one of them. Rules: FOS-1, FOS-6.
    """
    if kernel.search is None or kernel.placed or kernel.other is not None:
        return []
    if kernel.stored is not own_byte or kernel.scales is not same:
        return []
    made = _before_bytes(kernel, exhibit, rows, columns)
    tried = (kernel.scale_value(t) for t in kernel.candidates(made.t, made.block_amax, made.g))
    encode = kernel.scale_codec.encode
    return [_by_row(kernel.scale_byte(encode(t)), made.blocks, made.values) for t in tried]


def _global(kernel: Kernel, maxima: Floats, rows: slice, k: Constants) -> tuple[Floats, Floats]:
    """Return the maxima of some rows, and the global scale that a kernel makes of them."""
    used = (maxima if maxima.size == 1 else maxima[rows])[:, None, None, None]
    return used, made_nan(kernel.global_scale(used, k), used)


@np.errstate(all="ignore")
def code_side(kernel: Kernel, side: ScaleSide, exhibit: Exhibit | None = None) -> Codes:
    """Return the codes [rows, columns] that follow the scale bytes.

    exhibit: the case, for kernels in a row that share what they encode.
    """
    if kernel.placed:
        assert side.codes is not None
        return side.codes
    if side.codes is not None:
        return kernel.codes(side.codes if side.codes.ndim == 2 else join(side.codes, side.shape))
    if exhibit is None:
        y = before_codec(kernel, side)
    else:
        stages = kernel.used_scale, kernel.working, kernel.scale_codec, kernel.element_global, kernel.scaled
        arrays = side.t, side.byte, side.g, side.used, side.k, side.blocks
        y = exhibit.made("y", None, lambda: before_codec(kernel, side), *stages, kernel.value, *arrays)
    return kernel.codes(join(kernel.code(kernel.round(y, side.bits, kernel.codec)), side.shape))


@np.errstate(all="ignore")
def before_codec(kernel: Kernel, side: ScaleSide) -> Floats:
    """Return the elements in units of their scale, whole blocks."""
    s = kernel.used_scale(kernel.working(side.t, kernel.scale_codec.decode(side.byte)))
    g = side.g if side.used is None else kernel.element_global(side.g, side.used, side.k)
    return kernel.value(made_nan(kernel.scaled(side.blocks, s, g, side.k), side.blocks, s, g))


def _searched(
    kernel: Kernel, blocks: Floats, t: Floats, block_amax: Floats, g: Floats, amax: Floats | None, k: Constants
) -> tuple[Codes, Codes]:
    """Return the candidate that 4over6 keeps: its codes and scale bytes. Rules: FOS-1, FOS-6."""
    search = kernel.search
    assert search is not None
    errors, tried = [], []
    for candidate in kernel.candidates(t, block_amax, g):
        before = kernel.scale_value(candidate)
        byte = kernel.scale_byte(kernel.scale_codec.encode(before))
        s = kernel.scale_codec.decode(byte)
        working = kernel.used_scale(kernel.working(before, s))
        y = kernel.value(made_nan(kernel.scaled(blocks, working, g, k), blocks, working, g))
        error = search.difference(kernel.codec.nearest(y), s, g, amax, blocks, k)
        if kernel.counted is not None:
            error = kernel.counted(error)
        else:
            error = error * error if search.metric is Metric.SQUARED else np.abs(error)
        errors.append(error.max(axis=(2, 3)) if search.metric is Metric.LARGEST else search.total(error))
        tried.append((kernel.code(kernel.round(y, None, kernel.codec)), byte))
    of_codes, of_scales = (part[:, :, None, None] for part in kernel.kept(kernel.second(errors[1], errors[0])))
    (codes, byte), (other_codes, other_byte) = tried
    return np.where(of_codes, other_codes, codes), np.where(of_scales, other_byte, byte)


def _placed_side(kernel: Kernel, exhibit: Exhibit, rows: slice, columns: slice) -> ScaleSide:
    """Everything that a kernel with changes in some places makes; its codes are made at once."""
    base = kernel.but(placed=())
    side = scale_side(base, exhibit, rows, columns)
    made, scales, amax = code_side(base, side), side.scales, side.amax
    width = kernel.spec.block.columns
    masks = [place.of_elements(exhibit.case, width, rows, columns) for place, _ in kernel.placed]
    for chosen in itertools.product((False, True), repeat=len(masks)):
        inside = np.logical_and.reduce([m if c else ~m for m, c in zip(masks, chosen, strict=True)])
        if not any(chosen) or not inside.any():
            continue
        changed: Kernel | None = base
        for (_, apply), holds in zip(kernel.placed, chosen, strict=True):
            changed = apply(changed) if holds and changed is not None else changed
        if changed is None:
            raise DomainError("diagnosis", "two changes in one place", "changes that can be made together", "CNF-26")
        other = scale_side(changed, exhibit, rows, columns)
        made = np.where(inside, code_side(changed, other), made)
        scales = np.where(inside[:, ::width], other.scales, scales)
        if all(place.about_tensor for (place, _), holds in zip(kernel.placed, chosen, strict=True) if holds):
            amax = other.amax
        elif kernel.spec.global_scale is Granularity.ROW and amax is not None and other.amax is not None:
            pairs = zip(kernel.placed, chosen, strict=True)
            whole = [place.of_elements(exhibit.case, width, EVERY, EVERY) == held for (place, _), held in pairs]
            amax = np.where(np.logical_and.reduce(whole).all(axis=1), other.amax, amax)
    return side._replace(amax=amax, scales=scales, codes=made)


class _Other(NamedTuple):
    """A case in the other direction."""

    x: NDArray[Any]
    direction: Direction
    amax: Any
    random_bits: Any


def _other_side(kernel: Kernel, exhibit: Exhibit) -> ScaleSide:
    """Quantize both directions' matrices, and make the codes and scale bytes of them."""
    assert kernel.other is not None
    case = exhibit.case
    bits = None if case.random_bits is None else np.ascontiguousarray(np.asarray(case.random_bits).T)
    direction: Direction = "column" if case.direction == "row" else "row"
    turned: tuple[Direction, ...] = tuple("column" if name == "row" else "row" for name in kernel.turned)
    straight = kernel.but(other=None, turned=turned)
    swapped = Exhibit(_Other(case.x, direction, case.amax, bits))
    side = scale_side(straight, swapped, slice(0, swapped.shape[0]))
    plain = kernel.but(other=None)
    own = scale_side(plain, exhibit, slice(0, exhibit.shape[0]))
    codes, scales = kernel.other(BothDirections(plain, own, code_side(straight, side), side.scales))
    return side._replace(scales=scales, codes=codes, shape=exhibit.shape)
