"""The golden model's operations as a backend: any CPU array in, arrays of the same kind out."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fp4ref import arrays
from fp4ref.layout import layout
from fp4ref.model import dequantize as model_dequantize
from fp4ref.model import quantize as model_quantize
from fp4ref.quantized import Direction, DirectionData
from fp4ref.spec import Spec


def quantize(
    x: Any,
    spec: Spec,
    direction: Direction,
    scale_layout: str,
    amax: NDArray[np.float32] | None,
    random_bits: Any,
    out: DirectionData | None,
) -> DirectionData:
    """Quantize one direction; with `out`, into its buffers. Rules: BLK-8, LAY-5."""
    bits = None if random_bits is None else arrays.to_numpy("quantize", random_bits)
    result = model_quantize.quantize(arrays.to_numpy("quantize", x), spec, direction, amax, bits)
    result = result._replace(scales=layout(scale_layout).from_linear(result.scales))
    if out is not None:
        for buffer, value in zip(out, result, strict=True):
            if value is not None:
                arrays.to_numpy("quantize", buffer)[...] = value
        return out
    restore = arrays.restorer(x)
    return DirectionData(*(None if value is None else restore(value) for value in result))


def dequantize(
    data: DirectionData,
    shape: tuple[int, int],
    spec: Spec,
    scale_layout: str,
    dtype: np.dtype[Any],
    source: np.dtype[Any],
    inverse_hadamard: bool,
    out: Any = None,
) -> Any:
    """Values [rows, columns] of one direction; with `out`, into it. Rules: DEQ-1, DEQ-2, DEQ-3, LAY-6."""
    parts = DirectionData(*(None if part is None else arrays.to_numpy("dequantize", part) for part in data))
    blocks = -(-shape[1] // spec.block.columns)
    parts = parts._replace(scales=layout(scale_layout).to_linear(parts.scales, shape[0], blocks))
    values = model_dequantize.dequantize(parts, shape, spec, dtype, source, inverse_hadamard)
    if out is not None:
        arrays.to_numpy("dequantize", out)[...] = values
        return out
    return arrays.restorer(data.data)(values)


def to_layout(scales: Any, rows: int, columns: int, source: str, target: str) -> Any:
    """Scale bytes [rows, columns] moved from one layout to another, padding written as zero. Rules: LAY-5, LAY-6."""
    linear = layout(source).to_linear(arrays.to_numpy("to_layout", scales), rows, columns)
    return arrays.restorer(scales)(layout(target).from_linear(linear))
