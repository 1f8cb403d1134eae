"""Aimed tensors for NVFP4 in all its standard forms."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fp4ref.conformance.vectors.sources.parts import ORACLE, Json, bits, block, floats, group, named, neighbours
from fp4ref.conformance.vectors.sources.tensors import BINARY, both, quantized, spread, two_blocks
from fp4ref.formats import F
from fp4ref.spec import Hadamard
from fp4ref.specs import NVFP4, NVFP4_2D, NVFP4_FAST, NVFP4_RHT, NVFP4_ROW_SCALED

ORDER_WITNESSES = (("26", "19.5"), ("784", "0.68359375"), ("15.75", "2.953125"), ("276", "3.234375"), ("252", "94.5"))
# amax, block amax, x whose code depends on the order of operations of the encode scale; float32 bits
ENCODE_WITNESSES = (
    ("4417af89", "42eac7ea", "416e5cfa"),
    ("43ec353e", "43a83d35", "4228b851"),
    ("43cec7b3", "431417ec", "4193b336"),
    ("43e409e9", "4240aaf8", "41e409e8"),
    ("434507b1", "428d5bef", "41ea8f41"),
    ("44168c91", "42c1c126", "41e1d2da"),
    ("4232db2d", "40ebbf82", "3f65f539"),
)


def nvfp4_groups() -> list[Json]:
    """Blocks, scales and global scales of NVFP4 in all its standard forms."""
    return [*_block_groups(), *_global_groups(), *_shape_groups(), *_variant_groups()]


def _block_groups() -> list[Json]:
    nvfp4 = named(NVFP4)
    ties = floats("0.25 0.75 1.25 1.75 2.5 3.5 5 -0.25 -0.75 -1.25 -1.75 -2.5 -3.5 -5 6 -6")
    near = neighbours([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5])
    near = np.concatenate([block(np.append(floats([6]), part)) for part in (near[0::3], -near[2::3])])
    elements = [
        quantized("TieToEven", "S_enc 448, scale 448: elements as they are, on ties", NVFP4, ties[None], amax=[6.0]),
        quantized("NearTie", "one ulp below and above each tie", NVFP4, near, amax=[6.0]),
        quantized(
            "MinusZero", "-0, and negative values that round to zero", NVFP4, block(floats("-0 -1e-30 -0.2 0.2 0 6"))
        ),
    ]
    scales = [
        quantized(
            "OrderOfOperations ScaleTie",
            f"amax {top}, block {own}",
            NVFP4,
            block(floats(own, "bfloat16")),
            amax=floats(top),
        )
        for top, own in ORDER_WITNESSES
    ]
    encodes = [
        quantized(
            "EncodeScale",
            f"{float(bits(x)[0]):.9g} lies at a threshold",
            NVFP4,
            block(bits(f"{own} {x}")),
            amax=bits(top),
        )
        for top, own, x in ENCODE_WITNESSES
    ]
    maxima = [
        quantized("NaN", "NaN of both signs among numbers", NVFP4, block(floats("1 nan -3 -nan 0.5", dtype)))
        for dtype in BINARY
    ]
    maxima += [
        quantized("NaN", "only NaN: amax 0", NVFP4, floats(["nan", "-nan"] * 8, "bfloat16")[None]),
        quantized("Infinity", "Inf in one block, numbers in the other", NVFP4, two_blocks("inf -2 1", "3 -1 0.5")),
        quantized("Infinity NaN", "-Inf and NaN", NVFP4, block(floats("-inf nan 1 0"))),
        quantized("WideRange", "the largest magnitude last", NVFP4, floats([0.1] * 15 + [-8.0])[None]),
    ]
    underflow = [
        quantized(
            "ScaleUnderflow",
            f"a block of {small} under amax {top}",
            NVFP4,
            block(floats(f"{small} -{small} 0 -0")),
            amax=floats(top),
        )
        for small, top in (("1e-3", "30000"), ("1e-40", "1"), ("1e-38", "1"), ("2e-38", "1"))
    ]
    underflow += [
        quantized(
            "ScaleTie ScaleUnderflow",
            "scale at 2^-10, a tie that goes to 0",
            NVFP4,
            block(floats([2.0**-10 * 6])),
            amax=[2688.0],
        ),
        quantized(
            "ScaleTie ScaleUnderflow", "and one ulp above", NVFP4, block(neighbours([2.0**-10 * 6])[2:]), amax=[2688.0]
        ),
        quantized("Saturation", "scale past 448: elements past 6", NVFP4, block(floats("8 5 -7")), amax=[1.0]),
    ]
    return [
        group("BLK-5 E2M1-1 E2M1-2 E2M1-3", ORACLE, elements, spec=nvfp4),
        group("BLK-3 E4M3-2", ORACLE, scales, spec=nvfp4),
        group("BLK-4 BLK-5", ORACLE, encodes, spec=nvfp4),
        group("BLK-2 E2M1-5 E2M1-4", ORACLE, maxima, spec=nvfp4),
        group("BLK-6 E4M3-2 E4M3-3 NUM-5", ORACLE, underflow, spec=nvfp4),
    ]


def _global_groups() -> list[Json]:
    largest = float(np.finfo(F).max)
    values = floats("1 -2 0.7 3 -0.4 0 6 -5")
    computed = [
        quantized(
            "GlobalScale", "the largest magnitude in another row and block", NVFP4, spread((3, 32), "float32", 1)
        ),
        quantized("GlobalScale", "all zeros: S_enc 1", NVFP4, np.zeros((2, 16), F)),
        quantized("GlobalScale MinusZero", "all -0", NVFP4, np.full((1, 16), -0.0, F)),
        quantized("GlobalScale Infinity", "amax Inf: S_enc 1", NVFP4, block(floats("1 -inf 300 0.1"))),
        quantized(
            "GlobalScale FlushToZero", "amax 2^-149: S_enc FLT_MAX", NVFP4, block(floats([2.0**-149, 0, -(2.0**-149)]))
        ),
        quantized(
            "GlobalScale FlushToZero",
            "amax 2^-127, subnormal",
            NVFP4,
            block(floats([2.0**-127, 2.0**-129, -(2.0**-128)])),
        ),
        quantized("GlobalScale", "amax 8e-36: just not clamped", NVFP4, block(floats([8e-36, 2e-36, -5e-36]))),
        quantized("GlobalScale", "amax 7.8e-36: clamped to FLT_MAX", NVFP4, block(floats([7.8e-36, 2e-36, -5e-36]))),
        quantized("GlobalScale WideRange", "amax FLT_MAX", NVFP4, block(floats([largest, -1e38, 1e37, 1.0]))),
        quantized(
            "GlobalScale", "amax below 2688 / FLT_MAX by one ulp", NVFP4, block(neighbours([2688 / largest])[:1])
        ),
    ]
    given = [
        quantized("CallerAmax", f"amax {text}", NVFP4, block(values), amax=floats(text))
        for text in ("6", "0.5", "100", "1e30", "0", "inf", "1e-45")
    ]
    rows = spread((4, 32), "bfloat16", 2, 6)
    rows[2] = 0
    row_scaled = [
        *both("RowScale", "rows of different magnitude, one zero", NVFP4_ROW_SCALED, rows),
        quantized("RowScale CallerAmax", "amax of each row given", NVFP4_ROW_SCALED, rows, amax=[1, 8, 0, 64]),
        quantized("RowScale NaN", "NaN and Inf stay in their rows", NVFP4_ROW_SCALED, _special_rows()),
    ]
    return [
        group("GLB-1 GLB-2 GLB-3 NUM-1 NUM-5", ORACLE, computed, spec=named(NVFP4)),
        group("GLB-4 GLB-3", ORACLE, given, spec=named(NVFP4)),
        group("GLB-5", ORACLE, row_scaled, spec=named(NVFP4_ROW_SCALED)),
    ]


def _special_rows() -> NDArray[Any]:
    x = spread((3, 16), "float32", 3)
    x[0, 3], x[1, 5] = math.nan, -math.inf
    return x


def _shape_groups() -> list[Json]:
    ragged = [
        quantized("RaggedTail SpareNibble", f"{rows} x {columns}", NVFP4, spread((rows, columns), dtype, columns))
        for rows, columns, dtype in ((1, 1, "float32"), (3, 15, "bfloat16"), (2, 17, "float16"), (1, 33, "float32"))
    ]
    leading = spread((2, 3, 16), "bfloat16", 4)
    flattened = [
        quantized("LeadingDimensions", "2 x 3 x 16 is 6 x 16", NVFP4, leading),
        quantized("LeadingDimensions", "one axis is one row", NVFP4, leading[0, 0]),
        quantized("LeadingDimensions ColumnDirection", "columns of 2 x 3 x 16", NVFP4, leading, "column"),
    ]
    types = [
        quantized(
            "DoubleRounding", f"the same decimals as {dtype}", NVFP4, block(floats("0.1 -0.7 1.3 5.9 -3.3 0.02", dtype))
        )
        for dtype in BINARY
    ]
    columns = [
        *both("ColumnDirection", "a matrix without symmetry", NVFP4, spread((5, 3), "float32", 5)),
        *both("ColumnDirection RaggedTail", "18 x 20", NVFP4, spread((18, 20), "bfloat16", 6)),
    ]
    empty = [
        quantized("EmptyTensor", f"shape {list(shape)}, {direction}", NVFP4, np.zeros(shape, F), direction)
        for shape in ((0, 16), (3, 0), (0, 0), (0,))
        for direction in ("row", "column")
    ]
    layouts = [
        quantized(
            "LayoutOrder Padding", f"scales in {name}", NVFP4, spread((rows, columns), "bfloat16", 7), scale_layout=name
        )
        for name, rows, columns in (
            ("tiled_8x4", 9, 40),
            ("tiled_8x4", 3, 130),
            ("tiled_128x4", 5, 50),
            ("linear_padded", 3, 40),
        )
    ]
    return [
        group("BLK-1 PACK-1 PACK-2 LAY-1", ORACLE, ragged, spec=named(NVFP4)),
        group("NUM-4", ORACLE, flattened, spec=named(NVFP4)),
        group("NUM-3 NUM-1", ORACLE, types, spec=named(NVFP4)),
        group("BLK-8", ORACLE, columns, spec=named(NVFP4)),
        group("BLK-9", ORACLE, empty, spec=named(NVFP4)),
        group("LAY-2 LAY-3 LAY-4 LAY-5", ORACLE, layouts, spec=named(NVFP4)),
    ]


def _variant_groups() -> list[Json]:
    square = [
        *both("SharedTile", "16 x 16, one tile", NVFP4_2D, spread((16, 16), "bfloat16", 8)),
        *both("SharedTile RaggedTail", "17 x 18, four tiles", NVFP4_2D, spread((17, 18), "float32", 9)),
        quantized(
            "SharedTile LayoutOrder",
            "scales of 17 x 18 in tiles",
            NVFP4_2D,
            spread((17, 18), "bfloat16", 9),
            scale_layout="tiled_8x4",
        ),
    ]
    rotated = [
        *both("HadamardSigns", "16 x 3", NVFP4_RHT, spread((16, 3), "bfloat16", 10)),
        *both("HadamardSigns", "32 x 2", NVFP4_RHT, spread((32, 2), "bfloat16", 11, 8)),
        quantized(
            "HadamardSigns CallerAmax", "amax given", NVFP4_RHT, spread((16, 2), "bfloat16", 12), "column", amax=[3.0]
        ),
        quantized(
            "HadamardSigns RaggedTail",
            "rows of a tensor that has no column direction",
            NVFP4_RHT,
            spread((3, 5), "float32", 13),
        ),
    ]
    plain = NVFP4_RHT.replace(name="nvfp4-rht signs 0", hadamard=Hadamard(0))
    fast = [
        quantized(
            "MinusZero",
            "a -0 becomes +0, a small negative does not",
            NVFP4_FAST,
            block(floats("-0 0 -1e-30 6 -0.2", "bfloat16")),
        ),
        quantized("EncodeScale", "the coefficient is rounded to bfloat16", NVFP4_FAST, spread((2, 32), "bfloat16", 14)),
        quantized(
            "ScaleUnderflow",
            "scale 0: the coefficient is the largest bfloat16",
            NVFP4_FAST,
            block(floats("1e-3 -1e-3 0", "bfloat16")),
            amax=[3e4],
        ),
    ]
    return [
        group("BLK-7 LAY-10", ORACLE, square, spec=named(NVFP4_2D)),
        group("HAD-1 HAD-2 HAD-4", ORACLE, rotated, spec=named(NVFP4_RHT)),
        group(
            "HAD-1",
            ORACLE,
            [quantized("HadamardSigns", "no signs", plain, spread((16, 2), "bfloat16", 15), "column")],
            spec=named(plain),
        ),
        group("BLK-11", ORACLE, fast, spec=named(NVFP4_FAST)),
    ]
