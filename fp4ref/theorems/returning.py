"""A second quantization: theorems evaluated on a tensor, each with its count of blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fp4ref import api
from fp4ref.arithmetic import TE, divided, product, stored
from fp4ref.catalogue import resolve
from fp4ref.formats import CUDA_E2M1, CUDA_E4M3, E8M0, F, grid
from fp4ref.model.quantize import constants
from fp4ref.packing import unpack
from fp4ref.quantized import Quantized
from fp4ref.spec import Granularity, Spec, Subnormals
from fp4ref.theorems import bounds, other_formats
from fp4ref.theorems.evaluated import Bits, Evaluated, codes_of, in_blocks, is_nvfp4, quantized, row_of

MOST_TRIPS = 8  # until an amax stays
KEPT_TRIPS = 3  # until it stays, by the theorem
SMALLEST_AMAX, LARGEST_AMAX = 2.0**-104, 2.0**119  # of NVFP4, without underflow and overflow
FULL_CODE, FULL_BYTE = 7, 4  # the code of 6, and the byte from which a block has it
OTHER_ARITHMETIC = "; not promised: its scales are other ones"


def evaluate(x: NDArray[Any], spec: Spec | str) -> list[Evaluated]:
    """Evaluate every theorem that concerns a specification on a tensor [M, K] of finite numbers.

    Rules: THM-1, THM-2, THM-3, THM-4, THM-5, THM-6, THM-8, THM-9, THM-10, THM-11, THM-12, THM-13.
    """
    spec = resolve(spec)
    q = quantized(x, spec)
    checks: tuple[Callable[[NDArray[Any], Spec, Quantized], Iterator[Evaluated]], ...] = (
        _returned,
        _ordered,
        _in_parts,
        _turned,
        other_formats.moved,
        bounds.rescaled_values,
        bounds.summed,
    )
    return [found for check in checks for found in check(x, spec, q)]


def tops(q: Quantized) -> NDArray[np.float64]:
    """Return the largest magnitude of the codes of every block, as the scales are stored [M, blocks]; of NaN, 0."""
    magnitudes = np.abs(q.spec.element.decode(codes_of(q)).astype(np.float64))
    found = in_blocks(np.where(np.isfinite(magnitudes), magnitudes, 0), q.spec.block).max(2)
    return np.asarray(np.repeat(found, q.spec.block.rows, axis=0)[: q.matrix[0]])


def _returned(x: NDArray[Any], spec: Spec, q: Quantized) -> Iterator[Evaluated]:
    """Yield whether bytes return from a second quantization.

    Rules: THM-1, THM-2. Certificates: theorem-mx-returns, theorem-amax-stays.
    """
    values, row = api.dequantize(q), row_of(q)
    again = quantized(values, spec, row.amax)
    same = (row.scales == row_of(again).scales) & _blocks_equal(codes_of(q), codes_of(again), spec.block.columns)
    kept = _blocks_equal(values.view(np.uint32), api.dequantize(again).view(np.uint32), spec.block.columns)
    text = f"{int(same.sum()):,} of {same.size:,} blocks return their bytes, {int(kept.sum()):,} their values"
    if row.amax is None and spec.scale.format == E8M0:
        predicted = (row.scales == 0) | (tops(q) > float(spec.element.format.max) / 2)
        holds, promised = bool((predicted == same).all() and kept.all()), _of_theorem_1(spec)
        applies = promised and bool(predicted.all() and np.isfinite(values).all())
        title = "a second MX quantization"
        yield Evaluated("THM-1", title, applies, holds, text if promised else text + OTHER_ARITHMETIC)
    elif row.amax is not None and is_nvfp4(spec):
        trips = _trips(values, spec, row.amax)
        text += "; the amax stays" if not trips else f"; the amax moves in {trips} trips"
        full, amax = in_blocks(codes_of(q) & FULL_CODE, spec.block).max(2) == FULL_CODE, row.amax[row.amax > 0]
        full = np.repeat(full, spec.block.rows, axis=0)[: len(row.scales)]
        holds = trips <= KEPT_TRIPS and bool((same | ~full | (row.scales == 0)).all())
        holds &= bool((full | (row.scales < FULL_BYTE)).all())
        applies = promised = _of_theorem_2(spec)
        applies &= bool(((amax >= SMALLEST_AMAX) & (amax <= LARGEST_AMAX)).all())
        title = "a second NVFP4 quantization"
        yield Evaluated("THM-2", title, applies, holds, text if promised else text + OTHER_ARITHMETIC)


@lru_cache
def _of_theorem_1(spec: Spec) -> bool:
    """Return True if a specification's scales are those of the theorem: for every largest code under every byte.

    Rules: THM-1.
    """
    arithmetic, element = spec.arithmetic, spec.element
    plain = (arithmetic.scaled, arithmetic.working_scale, arithmetic.dequantized) == (divided, stored, product)
    if not plain or spec.stochastic or spec.subnormals is not Subnormals.KEEP or element.overflow is not None:
        return False
    byte = np.arange(E8M0.codes, dtype=np.uint8)
    top = grid(element.format)[: element.format.codes, None].astype(F)
    with np.errstate(all="ignore"):
        amax = top * spec.scale.decode(byte)
        made = spec.scale.encode(arithmetic.block_scale(amax, np.ones_like(amax), constants(spec, np.dtype(F))))
    returns = np.where(top > element.format.max / 2, made == byte, np.where(byte == 0, made == 0, made < byte))
    return bool((returns | ~np.isfinite(amax)).all())


def _of_theorem_2(spec: Spec) -> bool:
    """Return True for NVFP4's own arithmetic and codecs, with nearest rounding. Rules: THM-2."""
    own = (spec.arithmetic, spec.element, spec.scale) == (TE, CUDA_E2M1, CUDA_E4M3)
    return own and spec.four_over_six is None and spec.element_max is None and spec.subnormals is Subnormals.KEEP


def _trips(values: NDArray[Any], spec: Spec, amax: Any) -> int:
    """Return the number of quantizations by its own amax until a tensor's amax stays."""
    for trip in range(MOST_TRIPS):
        q = quantized(values, spec)
        if np.array_equal(row_of(q).amax, amax):
            return trip
        values, amax = api.dequantize(q), row_of(q).amax
    return MOST_TRIPS


def _blocks_equal(one: Any, two: Any, block: int) -> NDArray[np.bool_]:
    wrong = np.pad(one != two, ((0, 0), (0, -one.shape[1] % block)))
    return np.asarray(~wrong.reshape(len(one), -1, block).any(2))


def _ordered(x: NDArray[Any], spec: Spec, q: Quantized) -> Iterator[Evaluated]:
    """Yield whether values of a block are in the order of its elements.

    Rules: THM-3. Certificates: theorem-order.
    """
    if spec.stochastic:
        return
    given, values = (in_blocks(each, spec.block) for each in (x.astype(F), api.dequantize(q)))
    values = np.take_along_axis(values, np.argsort(given, axis=2, kind="stable"), 2)
    numbers = ~np.isnan(values).any(axis=2)
    right = np.asarray((values[..., 1:] >= values[..., :-1]).all(2))
    largest = spec.element.decode(spec.element.encode(np.array([np.finfo(F).max])))[0]
    saturates = bool(largest >= spec.element.format.max)
    text = f"{int(right.sum()):,} of {right.size:,} blocks in order"
    text += "" if saturates else "; not promised: a code past the largest one is another number"
    yield Evaluated("THM-3", "order", saturates and bool(numbers.all()), bool(right[numbers].all()), text)


def _in_parts(x: NDArray[Any], spec: Spec, q: Quantized) -> Iterator[Evaluated]:
    """Yield whether two parts of the rows have the bytes of the whole. Rules: THM-9. Certificates: part-*."""
    if spec.stochastic:
        return
    rows = len(x) // 2 // spec.block.rows * spec.block.rows or spec.block.rows
    if rows >= len(x):
        yield Evaluated("THM-9", "parts", False, True, "one block of rows cannot be cut")
        return
    row = row_of(q)
    per_row = row.amax is not None and spec.global_scale is Granularity.ROW
    cuts = slice(0, rows), slice(rows, None)
    parts = [row_of(quantized(x[cut], spec, row.amax[cut] if per_row else row.amax)) for cut in cuts]
    data, scales = (np.concatenate([part[field] for part in parts]) for field in (0, 1))
    holds = np.array_equal(data, row.data) and np.array_equal(scales, row.scales)
    yield Evaluated("THM-9", "parts", True, holds, f"rows 0 to {rows - 1} and the others, by the amax of all")


def _turned(x: NDArray[Any], spec: Spec, q: Quantized) -> Iterator[Evaluated]:
    """Yield whether column codes are the transposed row codes.

    Rules: THM-8. Certificates: theorem-transposed.
    """
    if spec.block.rows != spec.block.columns or spec.stochastic or spec.hadamard:
        return
    both: Quantized = api.quantize(x, spec, "both")
    assert both.column is not None
    columns: Bits = unpack(both.column.data, len(x), spec.element.format)
    wrong = int((codes_of(q) != columns.T).sum())
    text = f"{wrong:,} of {columns.size:,} codes differ"
    yield Evaluated("THM-8", "transposition", spec.four_over_six is None, not wrong, text)
