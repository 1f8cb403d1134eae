"""Aimed tensors for NVFP4 in all its standard forms."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fp4ref.conformance.vectors.sources.parts import Json, bits, block, floats, neighbours
from fp4ref.conformance.vectors.sources.tensors import BINARY, aimed, both, spread, two_blocks
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
    ties = floats("0.25 0.75 1.25 1.75 2.5 3.5 5 -0.25 -0.75 -1.25 -1.75 -2.5 -3.5 -5 6 -6")
    near = neighbours([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5])
    near = np.concatenate([block(np.append(floats([6]), part)) for part in (near[0::3], -near[2::3])])
    elements = [
        ("TieToEven", "S_enc 448, scale 448: elements as they are, on ties", ties[None], {"amax": [6.0]}),
        ("NearTie", "one ulp below and above each tie", near, {"amax": [6.0]}),
        ("MinusZero", "-0, and negative values that round to zero", block(floats("-0 -1e-30 -0.2 0.2 0 6"))),
    ]
    scales = [
        (
            "OrderOfOperations ScaleTie",
            f"amax {top}, block {own}",
            block(floats(own, "bfloat16")),
            {"amax": top.split()},
        )
        for top, own in ORDER_WITNESSES
    ]
    encodes = [
        ("EncodeScale", f"{float(bits(x)[0]):.9g} lies at a threshold", block(bits(f"{own} {x}")), {"amax": bits(top)})
        for top, own, x in ENCODE_WITNESSES
    ]
    maxima = [
        *(("NaN", "NaN of both signs among numbers", block(floats("1 nan -3 -nan 0.5", dtype))) for dtype in BINARY),
        ("NaN", "only NaN: amax 0", floats(["nan", "-nan"] * 8, "bfloat16")[None]),
        ("Infinity", "Inf in one block, numbers in the other", two_blocks("inf -2 1", "3 -1 0.5")),
        ("Infinity NaN", "-Inf and NaN", block(floats("-inf nan 1 0"))),
        ("WideRange", "the largest magnitude last", floats([0.1] * 15 + [-8.0])[None]),
    ]
    tie = 2.0**-10 * 6
    underflow = [
        *(
            ("ScaleUnderflow", f"a block of {v} under amax {top}", block(floats(f"{v} -{v} 0 -0")), {"amax": [top]})
            for v, top in (("1e-3", "30000"), ("1e-40", "1"), ("1e-38", "1"), ("2e-38", "1"))
        ),
        ("ScaleTie ScaleUnderflow", "scale at 2^-10, a tie that goes to 0", block(floats([tie])), {"amax": [2688.0]}),
        ("ScaleTie ScaleUnderflow", "and one ulp above", block(neighbours([tie])[2:]), {"amax": [2688.0]}),
        ("Saturation", "scale past 448: elements past 6", block(floats("8 5 -7")), {"amax": [1.0]}),
    ]
    return [
        aimed("BLK-5 E2M1-1 E2M1-2 E2M1-3", NVFP4, elements),
        aimed("BLK-3 E4M3-2", NVFP4, scales),
        aimed("BLK-4 BLK-5", NVFP4, encodes),
        aimed("BLK-2 E2M1-5 E2M1-4", NVFP4, maxima),
        aimed("BLK-6 E4M3-2 E4M3-3 NUM-5", NVFP4, underflow),
    ]


def _global_groups() -> list[Json]:
    largest = float(np.finfo(F).max)
    computed = [
        ("GlobalScale", "the largest magnitude in another row and block", spread((3, 32), "float32", 1)),
        ("GlobalScale", "all zeros: S_enc 1", np.zeros((2, 16), F)),
        ("GlobalScale MinusZero", "all -0", np.full((1, 16), -0.0, F)),
        ("GlobalScale Infinity", "amax Inf: S_enc 1", block(floats("1 -inf 300 0.1"))),
        ("GlobalScale FlushToZero", "amax 2^-149: S_enc FLT_MAX", block(floats([2.0**-149, 0, -(2.0**-149)]))),
        ("GlobalScale FlushToZero", "amax 2^-127, subnormal", block(floats([2.0**-127, 2.0**-129, -(2.0**-128)]))),
        ("GlobalScale", "amax 8e-36: just not clamped", block(floats([8e-36, 2e-36, -5e-36]))),
        ("GlobalScale", "amax 7.8e-36: clamped to FLT_MAX", block(floats([7.8e-36, 2e-36, -5e-36]))),
        ("GlobalScale WideRange", "amax FLT_MAX", block(floats([largest, -1e38, 1e37, 1.0]))),
        ("GlobalScale", "amax below 2688 / FLT_MAX by one ulp", block(neighbours([2688 / largest])[:1])),
    ]
    values = block(floats("1 -2 0.7 3 -0.4 0 6 -5"))
    given = [
        ("CallerAmax", f"amax {text}", values, {"amax": [text]})
        for text in ("6", "0.5", "100", "1e30", "0", "inf", "1e-45")
    ]
    rows = spread((4, 32), "bfloat16", 2, 6)
    rows[2] = 0
    row_scaled = [
        *both("RowScale", "rows of different magnitude, one zero", rows),
        ("RowScale CallerAmax", "amax of each row given", rows, {"amax": [1, 8, 0, 64]}),
        ("RowScale NaN", "NaN and Inf stay in their rows", _special_rows()),
    ]
    return [
        aimed("GLB-1 GLB-2 GLB-3 NUM-1 NUM-5", NVFP4, computed),
        aimed("GLB-4 GLB-3", NVFP4, given),
        aimed("GLB-5", NVFP4_ROW_SCALED, row_scaled),
    ]


def _special_rows() -> NDArray[Any]:
    x = spread((3, 16), "float32", 3)
    x[0, 3], x[1, 5] = math.nan, -math.inf
    return x


def _shape_groups() -> list[Json]:
    ragged = [
        ("RaggedTail SpareNibble", f"{rows} x {columns}", spread((rows, columns), dtype, columns))
        for rows, columns, dtype in ((1, 1, "float32"), (3, 15, "bfloat16"), (2, 17, "float16"), (1, 33, "float32"))
    ]
    leading = spread((2, 3, 16), "bfloat16", 4)
    flattened = [
        ("LeadingDimensions", "2 x 3 x 16 is 6 x 16", leading),
        ("LeadingDimensions", "one axis is one row", leading[0, 0]),
        ("LeadingDimensions ColumnDirection", "columns of 2 x 3 x 16", leading, {"direction": "column"}),
    ]
    decimals = "0.1 -0.7 1.3 5.9 -3.3 0.02"
    types = [("DoubleRounding", f"the same decimals as {dtype}", block(floats(decimals, dtype))) for dtype in BINARY]
    columns = [
        *both("ColumnDirection", "a matrix without symmetry", spread((5, 3), "float32", 5)),
        *both("ColumnDirection RaggedTail", "18 x 20", spread((18, 20), "bfloat16", 6)),
    ]
    empty = [
        ("EmptyTensor", f"shape {list(shape)}, {direction}", np.zeros(shape, F), {"direction": direction})
        for shape in ((0, 16), (3, 0), (0, 0), (0,))
        for direction in ("row", "column")
    ]
    layouts = [
        ("LayoutOrder Padding", f"scales in {name}", spread((rows, columns), "bfloat16", 7), {"scale_layout": name})
        for name, rows, columns in (
            ("tiled_8x4", 9, 40),
            ("tiled_8x4", 3, 130),
            ("tiled_128x4", 5, 50),
            ("linear_padded", 3, 40),
        )
    ]
    return [
        aimed("BLK-1 PACK-1 PACK-2 LAY-1", NVFP4, ragged),
        aimed("NUM-4", NVFP4, flattened),
        aimed("NUM-3 NUM-1", NVFP4, types),
        aimed("BLK-8", NVFP4, columns),
        aimed("BLK-9", NVFP4, empty),
        aimed("LAY-2 LAY-3 LAY-4 LAY-5", NVFP4, layouts),
    ]


def _variant_groups() -> list[Json]:
    tiled = {"scale_layout": "tiled_8x4"}
    square = [
        *both("SharedTile", "16 x 16, one tile", spread((16, 16), "bfloat16", 8)),
        *both("SharedTile RaggedTail", "17 x 18, four tiles", spread((17, 18), "float32", 9)),
        ("SharedTile LayoutOrder", "scales of 17 x 18 in tiles", spread((17, 18), "bfloat16", 9), tiled),
    ]
    given = {"direction": "column", "amax": [3.0]}
    rotated = [
        *both("HadamardSigns", "16 x 3", spread((16, 3), "bfloat16", 10)),
        *both("HadamardSigns", "32 x 2", spread((32, 2), "bfloat16", 11, 8)),
        ("HadamardSigns CallerAmax", "amax given", spread((16, 2), "bfloat16", 12), given),
        ("HadamardSigns RaggedTail", "rows of a tensor that has no column direction", spread((3, 5), "float32", 13)),
    ]
    plain = NVFP4_RHT.replace(name="nvfp4-rht signs 0", hadamard=Hadamard(0))
    unsigned = ("HadamardSigns", "no signs", spread((16, 2), "bfloat16", 15), {"direction": "column"})
    zero, small = floats("-0 0 -1e-30 6 -0.2", "bfloat16"), floats("1e-3 -1e-3 0", "bfloat16")
    fast = [
        ("MinusZero", "a -0 becomes +0, a small negative does not", block(zero)),
        ("EncodeScale", "the coefficient is rounded to bfloat16", spread((2, 32), "bfloat16", 14)),
        ("ScaleUnderflow", "scale 0: the coefficient is the largest bfloat16", block(small), {"amax": [3e4]}),
    ]
    return [
        aimed("BLK-7 LAY-10", NVFP4_2D, square),
        aimed("HAD-1 HAD-2 HAD-4", NVFP4_RHT, rotated),
        aimed("HAD-1", plain, [unsigned]),
        aimed("BLK-11", NVFP4_FAST, fast),
    ]
