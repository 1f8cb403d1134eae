"""Bounds of what another global scale and sums of products change: theorems evaluated on the bytes of a tensor."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fp4ref.formats import E2M1, E4M3, Codec, F
from fp4ref.layout import LINEAR
from fp4ref.model import gemm
from fp4ref.operands import Operand
from fp4ref.quantized import DirectionData, Quantized
from fp4ref.spec import Spec
from fp4ref.theorems import moving
from fp4ref.theorems.evaluated import Bits, Evaluated, is_nvfp4, row_of

# Certificates: gemm-limit/formula.
LONGEST_SUM = (1 << 63) // (12 * 229376) ** 2  # products of NVFP4 values in 64 bits: 1217394
NORMAL_CHANGE, ANY_CHANGE = 2.0**-4, 1.0  # of a scale that becomes a normal E4M3 number, and of another one
ROWS = 8  # whose products with each other are computed
STEPS, UNIT = 1 << 20, 1 << 24  # of a sum, in one; and the inverse of the error of one rounding


def rescaled(scales: Bits, codec: Codec, before: Any, after: Any) -> tuple[Bits, float]:
    """Return scale bytes for another stored amax, with the same codes, and the largest relative change of a value.

    before, after: a number, or [M, 1] of a row scale.

    Rules: THM-10. Certificates: theorem-rescaled.
    """
    old = codec.decode(scales).astype(np.float64) * (before / after)
    new = codec.encode(old.astype(F))
    values = codec.decode(new).astype(np.float64)
    with np.errstate(all="ignore"):
        change = np.abs(values - old) / old
    return new, float(np.max(change, initial=0.0, where=old > 0))


def rescaled_values(x: NDArray[Any], spec: Spec, q: Quantized) -> Iterator[Evaluated]:
    """Yield the change by another global scale: the next larger 2688 * 2^m, or the last that is a float32.

    Rules: THM-10.
    """
    row = row_of(q)
    if not is_nvfp4(spec) or not row.amax.any():
        return
    used = row.amax > 0
    before = row.amax[used].astype(np.float64)[:, None]
    bytes_ = row.scales if len(used) == 1 else row.scales[used]
    larger = np.clip(np.ceil(np.log2(before / moving.TOP)), moving.SMALLEST_EXPONENT, moving.LARGEST_EXPONENT)
    after = moving.TOP * np.exp2(larger)
    _, change = rescaled(bytes_, spec.scale, before, after)
    scales = (spec.scale.decode(bytes_).astype(np.float64) * (before / after))[bytes_ > 0]
    normal = scales.min(initial=np.inf) >= 2.0**-6 and scales.max(initial=0) <= E4M3.max
    bound = NORMAL_CHANGE if normal else ANY_CHANGE
    to = f"the amax {F(after[0, 0])!s}" if len(used) == 1 else f"an amax for each of {len(before):,} rows"
    text = f"to {to}: values change by at most {change:.4g} of themselves, bound {bound:g}"
    yield Evaluated("THM-10", "another global scale", bool(normal), change <= bound, text)


def summed(x: NDArray[Any], spec: Spec, q: Quantized) -> Iterator[Evaluated]:
    """Yield whether 64-bit integers hold a product over K, and how far sums by blocks are off.

    Rules: THM-11. Certificates: gemm-limit, gemm-contributions.
    """
    if spec.element.format != E2M1 or spec.scale.format != E4M3:
        return
    depth = x.shape[1]
    text = f"K = {depth:,}, at most {LONGEST_SUM:,}"
    yield Evaluated("THM-11", "sums in 64 bits", depth <= LONGEST_SUM, True, text)
    data, scales, _ = row_of(q)
    bytes_ = DirectionData(data[:ROWS], scales[:ROWS], None)
    operand = Operand(bytes_, (len(bytes_.data), depth), spec, LINEAR)
    values = gemm.values(operand)
    if depth > LONGEST_SUM or not np.isfinite(values).all():
        return
    wide = spec.block.columns
    whole = np.pad((values * 2.0**10).astype(np.int64), ((0, 0), (0, -depth % wide))).reshape(len(values), -1, wide)
    parts = np.einsum("mbk,nbk->mnb", whole, whole)
    blocks, exact, magnitudes = parts.shape[2], parts.sum(2), np.abs(parts).sum(2)
    made = (gemm.blockwise(operand, operand).astype(np.float64) * STEPS).astype(np.int64)
    pairs = zip(np.abs(made - exact).ravel().tolist(), magnitudes.ravel().tolist(), strict=True)
    right = [error * (UNIT - (blocks - 1)) <= (blocks - 1) * size for error, size in pairs]
    text = f"{sum(right)} of {len(right)} products of {len(values)} rows are within the bound of {blocks:,} blocks"
    yield Evaluated("THM-11", "sums of blocks in float32", True, all(right), text)
