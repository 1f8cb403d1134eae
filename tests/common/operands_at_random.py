"""Operands of products from bytes, and pairs of specifications that use every part of what multiplies them."""

from __future__ import annotations

from typing import Any

import numpy as np

import fp4ref
from fp4ref import packing
from fp4ref.layout import LAYOUTS
from fp4ref.quantized import DirectionData, Quantized

PRODUCTS = [  # specifications, type of the result, type of the bias
    ("nvfp4", "nvfp4-4over6", "float32", "float32"),
    ("nvfp4-row-scaled", "nvfp4", "bfloat16", "float16"),
    ("nvfp4-row-scaled", "nvfp4-row-scaled", "float16", "float32"),
    ("mxfp4", "mxfp4-2d", "float32", "bfloat16"),
    ("mxfp6-e2m3", "mxint8", "bfloat16", "float32"),
    ("mxfp6-e3m2", "mxfp4", "float32", "float32"),
    ("mxfp8-e4m3", "mxfp8-e5m2", "float16", "float32"),
    ("mxfp8-e5m2", "mxfp8-e5m2", "float32", "float32"),
]


def operand(
    rng: np.random.Generator, name: str, rows: int, depth: int, scale_layout: str, *, hard: bool = False
) -> Quantized:
    """Random codes under scales near to one; under all scales, with special values, if it is to be hard."""
    spec = fp4ref.profiles[name]
    codes = rng.integers(0, 1 << spec.element.format.bits, (rows, depth)).astype(np.uint8)
    powers, blocks = spec.scale.format.powers_of_two, (rows, -(-depth // spec.block.columns))
    low, high = (0, 256 if powers else 128) if hard else (122, 133) if powers else (0x20, 0x58)
    scales = rng.integers(low, high, blocks).astype(np.uint8)
    if hard:  # the first rows without special values
        codes[:3], scales[:3] = codes[:3] & 0x3B, scales[:3] & 0x77
    else:
        codes[~np.isfinite(spec.element.decode(codes))] = 0x3B
    amax = None
    if spec.global_scale != "none":
        amax = np.exp2(rng.uniform(-3, 3, rows if spec.global_scale == "row" else 1)).astype(np.float32)
    packed = packing.pack(codes, spec.element.format)
    laid = LAYOUTS[scale_layout].from_linear(scales)
    return Quantized(spec, (rows, depth), "float32", scale_layout, DirectionData(packed, laid, amax))


def sides_of(spec: fp4ref.Spec, given: dict[str, Any], layout: str = "linear") -> list[Quantized]:
    """Return both operands of a product from the inputs that a kernel was given, by name."""
    return [
        Quantized(
            spec,
            (given[count], given["depth"]),
            "float32",
            layout,
            DirectionData(given[f"{name}_data"], given[f"{name}_scales"], given.get(f"{name}_amax")),
        )
        for name, count in (("a", "rows"), ("b", "columns"))
    ]
