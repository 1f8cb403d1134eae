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

# Values that a user makes of the standard's own, and the values themselves

specs: tuple[Spec, ...] = (
    *(fp4ref.NVFP4_2D, fp4ref.NVFP4_2D_SR, fp4ref.NVFP4_4OVER6, fp4ref.NVFP4_FAST, fp4ref.NVFP4_FAST_SR),
    *(fp4ref.NVFP4_RHT, fp4ref.NVFP4_RHT_SR, fp4ref.NVFP4_ROW_SCALED, fp4ref.MXFP4, fp4ref.MXFP4_2D, fp4ref.MXINT8),
    *(fp4ref.MXFP6_E2M3, fp4ref.MXFP6_E3M2, fp4ref.MXFP8_2D, fp4ref.MXFP8_E4M3, fp4ref.MXFP8_E5M2),
)
formats: tuple[fp4ref.Format, ...] = (
    *(fp4ref.E2M1, fp4ref.E2M3, fp4ref.E3M2, fp4ref.E4M3, fp4ref.E5M2, fp4ref.E8M0, fp4ref.INT8),
    *(fp4ref.UE4M3, fp4ref.UE5M3),
)
assert_type(fp4ref.from_json(fp4ref.MXFP4.to_json()), Spec)
codec: fp4ref.Codec = fp4ref.NVFP4.element
print(codec.rounding is fp4ref.Rounding.EVEN, codec.sign is fp4ref.Sign.BIT, fp4ref.SPEC_VERSION, formats)
changed = fp4ref.NVFP4.replace(
    name="vendor.changed",
    block=fp4ref.Block(1, 16),
    hadamard=fp4ref.Hadamard(signs=0),
    four_over_six=None,
    global_scale=fp4ref.Granularity.TENSOR,
    amax=fp4ref.Amax.IGNORE_NAN,
    subnormals=fp4ref.Subnormals.KEEP,
)
search = fp4ref.FourOverSix(metric=fp4ref.Metric.SQUARED)
print(fp4ref.gemm(row, row, alpha_rule=fp4ref.AlphaRule.DIVISION), search.metric)


def register_own() -> None:
    """Register values; it is not called, since names of one process would stay for all that it runs."""
    own: fp4ref.Arithmetic = fp4ref.register_arithmetic("vendor.own", fp4ref.MXFP4.arithmetic.block_scale)
    rows: fp4ref.Layout = fp4ref.register(fp4ref.Layout("vendor.rows", "m(8,*) k(4,*): m0 k0 k1 m1"), source="ours")
    fp4ref.register_rule(search.total, "vendor.total")
    print(own.name, rows.name)


print(changed, fp4ref.philox4x32([0, 0, 0, 0], [0, 0]))
print(fp4ref.repack(row.row.data, 128, 64, fp4ref.PACKINGS["low_first"], "low_first", bits=4))
maps: dict[str, fp4ref.RandomMap] = dict(fp4ref.random_maps)
statistics: fp4ref.ErrorStatistics = fp4ref.error_statistics(x, "nvfp4")
declared = fp4ref.Declaration(operation="quantize", nibble_order="low")
print(len(maps), statistics.elements, declared.inputs)


def error_of(name: str) -> str:
    """Return the kind of error that a name leads to."""
    try:
        fp4ref.quantize(x, name)
    except fp4ref.UnknownNameError:
        return "name"
    except (fp4ref.ShapeError, fp4ref.DTypeError, fp4ref.DomainError, fp4ref.LayoutError):
        return "argument"
    except (fp4ref.BackendError, fp4ref.FileError):
        return "surroundings"
    except fp4ref.Fp4Error:
        return "other"
    return ""


assert error_of("no such name") == "name"
