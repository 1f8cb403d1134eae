"""Quantized bytes that no quantizer made: all codes under all scales."""

from __future__ import annotations

import numpy as np

import fp4ref


def every_code_under_every_scale(spec: fp4ref.Spec, lines: int, scale_layout: str) -> fp4ref.Quantized:
    """Lines of all codes in another order each, under scale bytes that are all there."""
    rng = np.random.default_rng(lines)
    each, width = 256 * 8 // spec.element.format.bits, spec.block.columns
    data = np.stack([rng.permutation(256).astype(np.uint8) for _ in range(lines)])
    scales = rng.permuted(np.resize(np.arange(256, dtype=np.uint8), (lines, each // width)), axis=None)
    amax = None if spec.global_scale == "none" else np.float32([7.25])
    row = fp4ref.DirectionData(data, scales.reshape(lines, -1), amax)
    linear = fp4ref.Quantized(spec, (lines, each), "bfloat16", "linear", row)
    return fp4ref.to_layout(linear, scale_layout, backend="numpy")
