"""The golden model's operations as a backend: any CPU array in, arrays of the same kind out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fp4ref import arrays
from fp4ref.formats import Floats
from fp4ref.layout import layout
from fp4ref.model import counter_map
from fp4ref.model import dequantize as model_dequantize
from fp4ref.model import gemm as model_gemm
from fp4ref.model import quantize as model_quantize
from fp4ref.model.epilogue import finish
from fp4ref.operands import Epilogue, Operand
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


def random_bits(
    shape: tuple[int, int], origin: tuple[int, int], across: int, seed: int, upper: int, device: Any, out: Any
) -> Any:
    """Random bytes uint8 of a part of a direction's matrix; with `out`, into it. Rules: SR-7, SR-8."""
    result = counter_map.random_bytes(shape, origin, across, seed, upper)
    if out is None:
        return arrays.on_device("random_bits", result, device)
    arrays.to_numpy("random_bits", out)[...] = result
    return out


def gemm_exact(a: Operand, b: Operand, epilogue: Epilogue) -> Any:
    """The true sums, rounded once. Rules: GEM-2."""
    return _gemm(model_gemm.exact, a, b, epilogue)


def gemm_blockwise(a: Operand, b: Operand, epilogue: Epilogue) -> Any:
    """One block after the other, in float32. Rules: GEM-4."""
    return _gemm(model_gemm.blockwise, a, b, epilogue)


def gemm_fast(a: Operand, b: Operand, epilogue: Epilogue) -> Any:
    """Exact operands, multiplied by NumPy's library. Rules: GEM-11."""
    return _gemm(model_gemm.fast, a, b, epilogue)


def _gemm(sums: Callable[[Operand, Operand], Floats], a: Operand, b: Operand, epilogue: Epilogue) -> Any:
    left, right = _numpy(a), _numpy(b)
    added = (None if part is None else arrays.to_numpy("gemm", part) for part in (epilogue.bias, epilogue.accumulate))
    bias, accumulate = added
    result = finish(sums(left, right), left, right, epilogue._replace(bias=bias, accumulate=accumulate))
    return arrays.restorer(a.data.data)(result)


def _numpy(operand: Operand) -> Operand:
    parts = (None if part is None else arrays.to_numpy("gemm", part) for part in operand.data)
    return operand._replace(data=DirectionData(*parts))
