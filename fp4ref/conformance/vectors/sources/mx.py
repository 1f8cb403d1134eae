"""Aimed tensors for MX blocks: every way to choose the power of two, around every edge."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fp4ref.arithmetic import OCP_CEIL, OCP_EVEN, OCP_FLOOR, OCP_RCEIL, RCEIL, RCEIL_CAST_ONLY
from fp4ref.conformance.vectors.sources.codecs import midpoints
from fp4ref.conformance.vectors.sources.parts import Json, block, floats, neighbours
from fp4ref.conformance.vectors.sources.tensors import Row, aimed, both, spread
from fp4ref.formats import CUDA_E4M3, CUDA_E5M2, Codec, F
from fp4ref.spec import Spec
from fp4ref.specs import MXFP4, MXFP4_2D, MXFP8_2D, MXFP8_E4M3, MXFP8_E5M2


def mx_groups() -> list[Json]:
    """MX blocks: every way to choose the power of two, around every edge."""
    groups = []
    modes = (
        ("MXS-1 E8M0-2", "", RCEIL),
        ("MXS-1 MXS-5", " ocp-rceil", OCP_RCEIL),
        ("MXS-2 MXS-5", " ocp-floor", OCP_FLOOR),
        ("MXS-3 MXS-5", " ocp-ceil", OCP_CEIL),
        ("MXS-4 MXS-5", " ocp-even", OCP_EVEN),
    )
    for base in (MXFP4, MXFP8_E4M3, MXFP8_E5M2):
        for rules, suffix, arithmetic in modes:
            spec = base.replace(name=base.name + suffix, arithmetic=arithmetic)
            groups.append(aimed(f"{rules} BLK-10", spec, _mx_rows(spec)))
    eight = [
        ("TieToEven NearTie", "scale 2^0: elements on and beside ties", _mx_elements(CUDA_E4M3)),
        (
            "MinusZero Specials",
            "-0, NaN, subnormals of E4M3",
            block(floats("-0 0 nan -nan 448 0.001 -0.002 0.00097"), 32),
        ),
        ("NaN", "only NaN", floats(["nan", "-nan"] * 16, "bfloat16")[None]),
    ]
    five = [
        ("TieToEven NearTie", "scale 2^0: elements on and beside ties", _mx_elements(CUDA_E5M2)),
        ("Specials", "NaN and -Inf", block(floats("nan -inf 57344 1 -0"), 32)),
    ]
    ragged = [
        *both("RaggedTail", "3 x 33", spread((3, 33), "bfloat16", 20)),
        ("LayoutOrder Padding", "scales in tiles", spread((9, 40), "bfloat16", 20), {"scale_layout": "tiled_8x4"}),
    ]
    groups += [
        aimed("E4M3-1 E4M3-2 E4M3-4 BLK-10 PACK-3", MXFP8_E4M3, eight),
        aimed("E5M2-1 E5M2-2 E5M2-4 BLK-10 PACK-3", MXFP8_E5M2, five),
        aimed("BLK-1 BLK-8 PACK-3", MXFP8_E4M3, ragged),
        aimed("BLK-1 BLK-8 PACK-2", MXFP4, both("RaggedTail SpareNibble", "5 x 35", spread((5, 35), "float16", 21))),
    ]
    for spec in (MXFP4_2D, MXFP8_2D):
        rows = both("SharedTile RaggedTail", "4 x 33: two tiles", spread((4, 33), "bfloat16", 22))
        groups.append(aimed("BLK-7 LAY-10", spec, rows))
    cast = MXFP8_E4M3.replace(name="mxfp8-e4m3 cast-only", arithmetic=RCEIL_CAST_ONLY)
    zero = ("MinusZero", "a -0 becomes +0, a small negative does not", block(floats("-0 0 -1e-30 6 -0.2"), 32))
    return [*groups, aimed("BLK-11", cast, [zero])]


def _mx_rows(spec: Spec) -> list[Row]:
    """Return block maxima at and beside powers of two, the element's largest, and numbers that EVEN rounds up."""
    form = spec.element.format
    carry = 4 * (2 - 2.0 ** -(form.mantissa_bits + 1))
    edges = (form.max, 2.0, carry, 2.0**-127, 1.5 * 2.0**-128, 2.0**100)
    beside: list[list[Any]] = [[v, -v / 2, v / 3] for edge in edges for v in neighbours([edge])]
    extremes: list[list[Any]] = [[0.0, -0.0], [2.0**-149], [np.finfo(F).max, 1.0], [2.0**-126, 2.0**-127]]
    specials: list[list[Any]] = [[1.0, -math.inf, 2.0], [math.nan, 1.0]]
    named_edges = ", ".join(f"{edge:.9g}" for edge in edges)
    kinds: tuple[tuple[str, str, list[list[Any]], str], ...] = (
        ("ScaleRounding", f"largest magnitude at and beside {named_edges}", beside, "edges"),
        ("ScaleRounding FlushToZero", "zeros, 2^-149, FLT_MAX, 2^-126", extremes, "extremes"),
        ("Infinity NaN", "Inf, and NaN beside a number", specials, "specials"),
    )
    return [
        (flags, comment, np.concatenate([block(floats(v), 32) for v in values]), {"share": f"{form.name} {share}"})
        for flags, comment, values, share in kinds
    ]


def _mx_elements(codec: Codec) -> NDArray[Any]:
    near = neighbours([m for m in midpoints(codec) if m < codec.format.max])
    return block(np.concatenate([floats([codec.format.max]), near]), 32)
