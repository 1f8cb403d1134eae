"""The golden model's operations as a backend: any CPU array in, arrays of the same kind out."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fp4ref import arrays
from fp4ref.formats import Floats
from fp4ref.model import counter_map
from fp4ref.model import dequantize as model_dequantize
from fp4ref.model import gemm as model_gemm
from fp4ref.model import quantize as model_quantize
from fp4ref.model.epilogue import finish
from fp4ref.operands import Counters, Epilogue, Operand
from fp4ref.quantized import DirectionData
from fp4ref.registry import Call


def quantize(
    call: Call, x: Any, amax: NDArray[np.float32] | None, random_bits: Any, out: DirectionData | None
) -> DirectionData:
    """Quantize one direction; with `out`, into its buffers.

    Rules: BLK-8, LAY-5. Certificates: quantize-*, cut-*, part-*, row-scaled, pieces, search-kept,
    stochastic-rows, special-blocks-*, pieces-*, amax-kept, hadamard-column*, padding-written, theorem-*,
    past-largest-*, nan-signs, amax-places, search-far, spare-nibbles.
    """
    bits = None if random_bits is None else arrays.to_numpy("quantize", random_bits)
    (direction,) = call.directions
    result = model_quantize.quantize(arrays.to_numpy("quantize", x), call.required, direction, amax, bits)
    result = result._replace(scales=call.layout.from_linear(result.scales))
    if out is not None:
        for buffer, value in zip(out, result, strict=True):
            if value is not None:
                arrays.to_numpy("quantize", buffer)[...] = value
        return out
    restored: DirectionData = result.mapped(arrays.restorer(x))
    return restored


def dequantize(call: Call, data: DirectionData, out: Any) -> Any:
    """Values [rows, columns] of one direction; with `out`, into it.

    Rules: DEQ-1, DEQ-2, DEQ-3, LAY-6. Certificates: dequantize-*, rows-decoded-by-amax, columns-inverted.
    """
    parts = data.mapped(partial(arrays.to_numpy, "dequantize"))
    spec, (rows, columns) = call.required, call.encoded
    parts = parts._replace(scales=call.layout.to_linear(parts.scales, rows, -(-columns // spec.block.columns)))
    dtype, source = (arrays.output_dtype("dequantize", name) for name in (call.to, call.source))
    values = model_dequantize.dequantize(parts, call.encoded, spec, dtype, source, call.inverse_hadamard)
    if out is not None:
        arrays.to_numpy("dequantize", out)[...] = values
        return out
    return arrays.restorer(data.data)(values)


def to_layout(call: Call, scales: Any) -> Any:
    """Move scale bytes from one layout to another, padding written as zero.

    Rules: LAY-5, LAY-6. Certificates: offset-*, moved-tails.
    """
    assert call.target is not None
    linear = call.layout.to_linear(arrays.to_numpy("to_layout", scales), *call.encoded)
    return arrays.restorer(scales)(call.target.from_linear(linear))


def random_bits(call: Call, counters: Counters, device: Any, out: Any) -> Any:
    """Make random bytes uint8 of a part of a direction's matrix; with `out`, into it.

    Rules: SR-7, SR-8. Certificates: random-counters, random-parts.
    """
    result = counter_map.random_bytes(call.encoded, *counters)
    if out is None:
        return arrays.on_device("random_bits", result, device)
    arrays.to_numpy("random_bits", out)[...] = result
    return out


def gemm_exact(call: Call, a: Operand, b: Operand, epilogue: Epilogue) -> Any:
    """Return the true sums, rounded once. Rules: GEM-2."""
    return _gemm(model_gemm.exact, a, b, epilogue)


def gemm_blockwise(call: Call, a: Operand, b: Operand, epilogue: Epilogue) -> Any:
    """Add one block after the other, in float32. Rules: GEM-4."""
    return _gemm(model_gemm.blockwise, a, b, epilogue)


def gemm_fast(call: Call, a: Operand, b: Operand, epilogue: Epilogue) -> Any:
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
