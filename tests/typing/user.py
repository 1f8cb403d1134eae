"""A user's script, for type checkers in their strict modes: it uses every public name, and pins what calls return."""

# pyright: strict, reportUnnecessaryTypeIgnoreComment=true

from __future__ import annotations

from typing import TYPE_CHECKING, assert_type

import numpy as np

import fp4ref
from fp4ref import DirectionData, Directions, Group, Quantized, Spec
from fp4ref.testing import assert_conforms

x = np.ones((128, 64), np.float32)

row = fp4ref.quantize(x, fp4ref.NVFP4)
assert_type(row, Quantized[DirectionData, None])
assert_type(row.row, DirectionData)  # no check for None
print(row.row.data, row.row.scales, row.row.amax)

column = fp4ref.quantize(x, "mxfp8-e4m3", "column", scale_layout="tiled_128x4")
assert_type(column, Quantized[None, DirectionData])
assert_type(column.column, DirectionData)

both = fp4ref.quantize(x, "nvfp4", directions="both", amax=Directions(row=3.0, column=3.0))
assert_type(both, Quantized[DirectionData, DirectionData])
assert_type(fp4ref.to_layout(both, "tiled_8x4"), Quantized[DirectionData, DirectionData])
assert_type(fp4ref.quantize_grouped(x, [64, 64], "nvfp4"), Group)


def of_a_parameter(q: Quantized) -> object:
    """Take any result; either direction may be missing."""
    assert_type(q.row, DirectionData | None)
    return fp4ref.dequantize(q, "bfloat16") if q.row is not None else fp4ref.dequantize(q, direction="column")


def own_names(layout: str, spec: str) -> Spec:
    """Use names that a user registered."""
    of_a_parameter(fp4ref.quantize(x, spec, scale_layout=layout))
    return fp4ref.profiles[spec]


if TYPE_CHECKING:  # what a type checker must refuse
    fp4ref.quantize(x, "nvfp4", "rows")  # type: ignore[call-overload]
    fp4ref.gemm(row, row, mode="quick")  # type: ignore[arg-type]
    print(row.column.data)  # type: ignore[attr-defined]

for result in (row, column, both):
    of_a_parameter(result)
fp4ref.gemm(row, fp4ref.quantize(x, "nvfp4"), mode="blockwise", alpha_rule="division")
fp4ref.gemm_grouped([row], [row], mode="exact")
assert_type(
    fp4ref.quantize(x, fp4ref.NVFP4_SR, random_bits=fp4ref.random_bits(x.shape)), Quantized[DirectionData, None]
)
print(fp4ref.error_statistics(x, "nvfp4"), fp4ref.random_bits((128, 64)), fp4ref.random_maps)
print(fp4ref.LAYOUTS["linear"], fp4ref.swizzle_offset(33, 5, columns=8), fp4ref.swizzle_index(533, columns=8))


@fp4ref.kernel(nibble_order="low")
def quantize(values: np.ndarray[tuple[int, int], np.dtype[np.float32]]) -> tuple[object, object, object]:
    """Quantize as the standard does."""
    q = fp4ref.quantize(values, "nvfp4")
    return q.row.data, q.row.scales, q.row.amax


assert_conforms(quantize, "nvfp4", families=["element-ties"])
