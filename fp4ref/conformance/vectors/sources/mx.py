"""Aimed tensors for MX blocks: every way to choose the power of two, around every edge."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fp4ref.arithmetic import OCP_CEIL, OCP_EVEN, OCP_FLOOR, OCP_RCEIL, RCEIL, RCEIL_CAST_ONLY
from fp4ref.conformance.vectors.sources.codecs import midpoints
from fp4ref.conformance.vectors.sources.parts import ORACLE, Json, block, floats, group, named, neighbours
from fp4ref.conformance.vectors.sources.tensors import both, quantized, spread
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
            groups.append(group(f"{rules} BLK-10", ORACLE, _mx_tests(spec), spec=named(spec)))
    eight = [
        quantized("TieToEven NearTie", "scale 2^0: elements on and beside ties", MXFP8_E4M3, _mx_elements(CUDA_E4M3)),
        quantized(
            "MinusZero Specials",
            "-0, NaN, subnormals of E4M3",
            MXFP8_E4M3,
            block(floats("-0 0 nan -nan 448 0.001 -0.002 0.00097"), 32),
        ),
        quantized("NaN", "only NaN", MXFP8_E4M3, floats(["nan", "-nan"] * 16, "bfloat16")[None]),
    ]
    five = [
        quantized("TieToEven NearTie", "scale 2^0: elements on and beside ties", MXFP8_E5M2, _mx_elements(CUDA_E5M2)),
        quantized("Specials", "NaN and -Inf", MXFP8_E5M2, block(floats("nan -inf 57344 1 -0"), 32)),
    ]
    ragged = [
        *both("RaggedTail", "3 x 33", MXFP8_E4M3, spread((3, 33), "bfloat16", 20)),
        quantized(
            "LayoutOrder Padding",
            "scales in tiles",
            MXFP8_E4M3,
            spread((9, 40), "bfloat16", 20),
            scale_layout="tiled_8x4",
        ),
    ]
    groups += [
        group("E4M3-1 E4M3-2 E4M3-4 BLK-10 PACK-3", ORACLE, eight, spec=named(MXFP8_E4M3)),
        group("E5M2-1 E5M2-2 E5M2-4 BLK-10 PACK-3", ORACLE, five, spec=named(MXFP8_E5M2)),
        group("BLK-1 BLK-8 PACK-3", ORACLE, ragged, spec=named(MXFP8_E4M3)),
        group(
            "BLK-1 BLK-8 PACK-2",
            ORACLE,
            both("RaggedTail SpareNibble", "5 x 35", MXFP4, spread((5, 35), "float16", 21)),
            spec=named(MXFP4),
        ),
    ]
    for spec in (MXFP4_2D, MXFP8_2D):
        tests = both("SharedTile RaggedTail", "4 x 33: two tiles", spec, spread((4, 33), "bfloat16", 22))
        groups.append(group("BLK-7 LAY-10", ORACLE, tests, spec=named(spec)))
    cast = MXFP8_E4M3.replace(name="mxfp8-e4m3 cast-only", arithmetic=RCEIL_CAST_ONLY)
    zero = quantized(
        "MinusZero", "a -0 becomes +0, a small negative does not", cast, block(floats("-0 0 -1e-30 6 -0.2"), 32)
    )
    return [*groups, group("BLK-11", ORACLE, [zero], spec=named(cast))]


def _mx_tests(spec: Spec) -> list[Json]:
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
        quantized(
            flags, comment, spec, np.concatenate([block(floats(v), 32) for v in values]), share=f"{form.name} {share}"
        )
        for flags, comment, values, share in kinds
    ]


def _mx_elements(codec: Codec) -> NDArray[Any]:
    near = neighbours([m for m in midpoints(codec) if m < codec.format.max])
    return block(np.concatenate([floats([codec.format.max]), near]), 32)
