"""A second quantization: theorems evaluated on a tensor, each with its count of blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fp4ref import api
from fp4ref.catalogue import resolve
from fp4ref.formats import E2M1, E4M3, Codec, F, Format, grid
from fp4ref.packing import unpack
from fp4ref.quantized import DirectionData, Quantized
from fp4ref.spec import Granularity, Spec
from fp4ref.theorems import moving, to_fp8

MOST_TRIPS = 8  # until an amax stays
# Certificates: gemm-limit/formula.
LONGEST_SUM = (1 << 63) // (12 * 229376) ** 2  # products of NVFP4 values in 64 bits: 1217394
Bits = NDArray[np.uint8]


class Evaluated(NamedTuple):
    """A theorem on a tensor.

    holds: its statement is true of the tensor. applies: its condition is met. text: counts, in words.
    """

    rule: str
    title: str
    applies: bool
    holds: bool
    text: str


def evaluate(x: NDArray[Any], spec: Spec | str) -> list[Evaluated]:
    """Evaluate every theorem that concerns a specification on a tensor [M, K] of finite numbers.

    Rules: THM-1, THM-2, THM-3, THM-4, THM-5, THM-6, THM-8, THM-9, THM-10, THM-11, THM-12.
    """
    spec = resolve(spec)
    q = _quantized(x, spec)
    checks: tuple[Callable[[NDArray[Any], Spec, Quantized], Iterator[Evaluated]], ...] = (
        _returned,
        _ordered,
        _in_parts,
        _turned,
        _moved,
        _rescaled,
        _summed,
    )
    return [found for check in checks for found in check(x, spec, q)]


def tops(codes: Bits, form: Format, block: int) -> NDArray[np.float64]:
    """Return the largest magnitude of every block's codes, NaN codes as 0."""
    magnitudes = np.append(grid(form)[: form.codes], np.zeros(256))[codes & (form.sign_bit - 1)]
    more = -codes.shape[1] % block
    found: NDArray[np.float64] = np.pad(magnitudes, ((0, 0), (0, more))).reshape(len(codes), -1, block).max(2)
    return found


def _quantized(x: NDArray[Any], spec: Spec, amax: Any = None) -> Quantized:
    found: Quantized = api.quantize(x, spec, amax=amax)
    return found


def _row(q: Quantized) -> DirectionData:
    assert q.row is not None
    return q.row


def _codes(q: Quantized) -> Bits:
    return unpack(_row(q).data, q.matrix[1], q.spec.element.format)


def _returned(x: NDArray[Any], spec: Spec, q: Quantized) -> Iterator[Evaluated]:
    """Yield whether bytes return from a second quantization.

    Rules: THM-1, THM-2. Certificates: theorem-mx-returns, theorem-amax-stays.
    """
    values = api.dequantize(q)
    amax = _row(q).amax
    again = _quantized(values, spec, amax)
    same = (_row(q).scales == _row(again).scales) & _blocks_equal(_codes(q), _codes(again), spec.block.columns)
    kept = _blocks_equal(values.view(np.uint32), api.dequantize(again).view(np.uint32), spec.block.columns)
    text = f"{int(same.sum()):,} of {same.size:,} blocks return their bytes, {int(kept.sum()):,} their values"
    if amax is None and spec.block.rows == 1:
        wide = tops(_codes(q), spec.element.format, spec.block.columns)
        predicted = (_row(q).scales == 0) | (wide > float(spec.element.format.max) / 2)
        holds = bool((predicted == same).all() and kept.all())
        yield Evaluated("THM-1", "a second MX quantization", bool(predicted.all()), holds, text)
    elif amax is not None:
        trips = _trips(values, spec, amax)
        said = "the amax stays" if not trips else f"the amax moves in {trips} trips"
        yield Evaluated("THM-2", "a second NVFP4 quantization", bool(same.all()), trips <= 3, f"{text}; {said}")


def _trips(values: NDArray[Any], spec: Spec, amax: Any) -> int:
    """Return the number of quantizations by its own amax until a tensor's amax stays."""
    for trip in range(MOST_TRIPS):
        q = _quantized(values, spec)
        if np.array_equal(_row(q).amax, amax):
            return trip
        values, amax = api.dequantize(q), _row(q).amax
    return MOST_TRIPS


def _blocks_equal(one: Any, two: Any, block: int) -> NDArray[np.bool_]:
    wrong = np.pad(one != two, ((0, 0), (0, -one.shape[1] % block)))
    return np.asarray(~wrong.reshape(len(one), -1, block).any(2))


def _ordered(x: NDArray[Any], spec: Spec, q: Quantized) -> Iterator[Evaluated]:
    """Yield whether values of a block are in the order of its elements.

    Rules: THM-3. Certificates: theorem-order.
    """
    if spec.block.rows > 1 or spec.stochastic:
        return
    block = spec.block.columns
    more = ((0, 0), (0, -x.shape[1] % block))
    given = np.pad(x.astype(F), more, mode="edge").reshape(-1, block)
    values = np.pad(api.dequantize(q), more, mode="edge").reshape(-1, block)
    values = np.take_along_axis(values, np.argsort(given, axis=1, kind="stable"), 1)
    numbers = ~np.isnan(values).any(axis=1)
    right = np.asarray((values[:, 1:] >= values[:, :-1]).all(1))
    text = f"{int(right.sum()):,} of {right.size:,} blocks in order"
    yield Evaluated("THM-3", "order", bool(numbers.all()), bool(right[numbers].all()), text)


def _in_parts(x: NDArray[Any], spec: Spec, q: Quantized) -> Iterator[Evaluated]:
    """Yield whether two parts of the rows have the bytes of the whole. Rules: THM-9. Certificates: part-*."""
    rows = len(x) // 2 // spec.block.rows * spec.block.rows
    if not rows or spec.stochastic:
        return
    amax = _row(q).amax
    per_row = amax is not None and spec.global_scale is Granularity.ROW
    parts = [_quantized(x[part], spec, amax[part] if per_row else amax) for part in (slice(0, rows), slice(rows, None))]
    data = np.concatenate([_row(part).data for part in parts])
    scales = np.concatenate([_row(part).scales for part in parts])
    holds = np.array_equal(data, _row(q).data) and np.array_equal(scales, _row(q).scales)
    yield Evaluated("THM-9", "parts", True, holds, f"rows 0 to {rows - 1} and the others, by the amax of all")


def _turned(x: NDArray[Any], spec: Spec, q: Quantized) -> Iterator[Evaluated]:
    """Yield whether column codes are the transposed row codes.

    Rules: THM-8. Certificates: theorem-transposed.
    """
    if spec.block.rows != spec.block.columns or spec.stochastic or spec.hadamard:
        return
    both: Quantized = api.quantize(x, spec, "both")
    assert both.column is not None
    columns = unpack(both.column.data, len(x), spec.element.format)
    wrong = int((_codes(q) != columns.T).sum())
    text = f"{wrong:,} of {columns.size:,} codes differ"
    yield Evaluated("THM-8", "transposition", spec.four_over_six is None, not wrong, text)


def _moved(x: NDArray[Any], spec: Spec, q: Quantized) -> Iterator[Evaluated]:
    """Yield whether the bytes are those of the other FP4 format. Rules: THM-4, THM-5, THM-6."""
    if spec.element.format != E2M1 or spec.block.rows > 1:
        return
    codes, row = _codes(q), _row(q)
    if spec.block.columns == moving.MXFP4_BLOCK and spec.global_scale is Granularity.NONE:
        found: Any = moving.nvfp4_from_mxfp4(codes, row.scales)
        rule, to = ("THM-4" if isinstance(found, moving.Exact) and found.kept else "THM-5"), "NVFP4"
    elif spec.block.columns == moving.NVFP4_BLOCK and spec.scale.format == E4M3 and row.amax is not None:
        found = moving.mxfp4_from_nvfp4(codes, moving.nvfp4_factors(row.scales, row.amax))
        rule, to = "THM-6", "MXFP4"
    else:
        return
    exact = isinstance(found, moving.Exact)
    text = f"exactly {to}" if exact else f"not {to}: {found.reason}; {found.blocks:,} blocks"
    yield Evaluated(rule, f"as {to}", exact, True, text)
    if to == "NVFP4":
        yield from _as_fp8(codes, row.scales)


def _as_fp8(codes: Bits, scales: Bits) -> Iterator[Evaluated]:
    """Yield whether MXFP4 bytes are FP8 codes under one power of two. Rules: THM-12."""
    for codec in to_fp8.CODECS.values():
        found = to_fp8.fp8_from_mxfp4(codes, scales, codec)
        name = codec.format.name.upper()
        exact = isinstance(found, to_fp8.Fp8)
        text = f"exactly {name} times 2^{found.exponent}" if isinstance(found, to_fp8.Fp8) else f"not: {found.reason}"
        yield Evaluated("THM-12", f"as {name} under one power of two", exact, True, text)


def rescaled(scales: Bits, codec: Codec, before: float, after: float) -> tuple[Bits, float]:
    """Return scale bytes for another stored amax, with the same codes, and the largest relative change of a value.

    Rules: THM-10. Certificates: theorem-rescaled.
    """
    old = codec.decode(scales).astype(np.float64) * (before / after)
    new = codec.encode(old.astype(F))
    values = codec.decode(new).astype(np.float64)
    with np.errstate(all="ignore"):
        change = np.abs(values - old) / old
    return new, float(np.max(change, initial=0.0, where=old > 0))


def _rescaled(x: NDArray[Any], spec: Spec, q: Quantized) -> Iterator[Evaluated]:
    """Yield the change by another global scale: the next larger 2688 * 2^m, or the last that is a float32.

    Rules: THM-10.
    """
    row = _row(q)
    if spec.global_scale is not Granularity.TENSOR or spec.scale.format != E4M3 or not float(row.amax[0]):
        return
    before = float(row.amax[0])
    larger = np.ceil(np.log2(before / moving.TOP))
    after = moving.TOP * 2.0 ** float(np.clip(larger, moving.SMALLEST_EXPONENT, moving.LARGEST_EXPONENT))
    _, change = rescaled(row.scales, spec.scale, before, after)
    scales = spec.scale.decode(row.scales).astype(np.float64) * (before / after)
    normal = (
        float(np.min(scales, initial=np.inf, where=row.scales > 0)) >= 2.0**-6
        and float(scales.max(initial=0)) <= E4M3.max
    )
    bound = 2.0**-4 if normal else 1.0
    text = f"to the amax {F(after)!s}: values change by at most {change:.4g} of themselves, bound {bound:g}"
    yield Evaluated("THM-10", "another global scale", normal, change <= bound, text)


def _summed(x: NDArray[Any], spec: Spec, q: Quantized) -> Iterator[Evaluated]:
    """Yield whether 64-bit integers hold a product over K. Rules: THM-11."""
    if spec.element.format != E2M1 or spec.scale.format != E4M3:
        return
    depth = x.shape[1]
    text = f"K = {depth:,}, at most {LONGEST_SUM:,}"
    yield Evaluated("THM-11", "sums in 64 bits", depth <= LONGEST_SUM, True, text)
