"""The backend's operations: arrays of any library in, tensors in between, arrays of the caller's kind out.

torch is imported by the first call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from fp4ref import arrays
from fp4ref.errors import BackendError
from fp4ref.operands import Counters, Epilogue, Operand
from fp4ref.quantized import DirectionData
from fp4ref.registry import Call

if TYPE_CHECKING:
    from torch import Tensor

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute on one thread meanwhile: threads that share small tensors mostly wait, which takes processor time."""
    import torch

    count = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(count)


def quantize(call: Call, x: Any, amax: Any, random_bits: Any, out: DirectionData | None) -> DirectionData:
    """Quantize one direction; with `out`, into its buffers.

    Rules: BLK-8, LAY-5. Certificates: quantize-*, cut-*, part-*, row-scaled, pieces, search-kept,
    stochastic-rows, special-blocks-*, pieces-*, amax-kept, hadamard-column*, padding-written, theorem-*,
    past-largest-*, nan-signs, amax-places, search-far, spare-nibbles.
    """
    from fp4ref_torch.quantize import quantize_tensor

    tensor = _tensor("quantize", x)
    _require_no_flush("quantize", tensor)
    given = [None if value is None else _tensor("quantize", value).to(tensor.device) for value in (amax, random_bits)]
    result = DirectionData(*quantize_tensor(tensor, call.required, call.direction, call.layout.name, *given))
    if out is None:
        return result.mapped(_restorer(x))
    for buffer, part in zip(out, result, strict=True):
        if part is not None:
            _fill(buffer, part)
    return out


def dequantize(call: Call, data: DirectionData, out: Any) -> Any:
    """Values [rows, columns] of one direction; with `out`, into it.

    Rules: DEQ-1, DEQ-2, DEQ-3, LAY-6. Certificates: dequantize-*, rows-decoded-by-amax, columns-inverted.
    """
    import torch

    from fp4ref_torch.dequantize import dequantize_tensor

    codes = _tensor("dequantize", data.data)
    _require_no_flush("dequantize", codes)
    scales = _tensor("dequantize", data.scales).to(codes.device)
    amax = None if data.amax is None else _tensor("dequantize", data.amax).to(codes.device)
    to, of = (getattr(torch, name) for name in (call.to, call.source))
    values = dequantize_tensor(
        codes, scales, amax, call.encoded, call.required, call.layout.name, to, of, call.inverse_hadamard
    )
    if out is not None:
        _fill(out, values)
        return out
    return _restorer(data.data)(values)


def to_layout(call: Call, scales: Any) -> Any:
    """Move scale bytes from one layout to another, padding written as zero.

    Rules: LAY-5, LAY-6. Certificates: offset-*, moved-tails.
    """
    from fp4ref_torch import layouts

    assert call.target is not None
    linear = layouts.to_linear(_tensor("to_layout", scales), *call.encoded, call.layout.name)
    return _restorer(scales)(layouts.from_linear(linear, call.target.name).contiguous())


def random_bits(call: Call, counters: Counters, device: Any, out: Any) -> Any:
    """Make random bytes uint8 of a part of a direction's matrix; with `out`, into it.

    Rules: SR-7, SR-8. Certificates: random-counters, random-parts.
    """
    import torch

    from fp4ref_torch.random_bytes import random_bytes

    result = random_bytes(call.encoded, *counters, torch.device("cpu" if device is None else device))
    if out is not None:
        _fill(out, result)
        return out
    return _numpy(result) if device is None else result


def _tensor(operation: str, x: Any) -> Tensor:
    """Return an array as a tensor on its device, without a copy where its strides and its memory allow that."""
    import torch

    if isinstance(x, torch.Tensor):
        resolved: Tensor = arrays.resolved(x)
        return resolved
    if arrays.device_of(x) != "cpu":
        return torch.utils.dlpack.from_dlpack(x)
    array = arrays.to_numpy(operation, x)
    usable = array.flags.writeable and array.flags.aligned and array.dtype.isnative
    if not usable or any(stride < 0 or stride % array.itemsize for stride in array.strides):
        array = array.astype(array.dtype.newbyteorder("="), order="C", copy=True)
    if array.dtype == BFLOAT16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def _numpy(result: Tensor) -> NDArray[Any]:
    import torch

    if result.dtype is torch.bfloat16:
        return np.asarray(result.view(torch.int16).numpy().view(BFLOAT16))
    return np.asarray(result.numpy())


def _restorer(x: Any) -> Callable[[Tensor], Any]:
    """Return the function that turns a tensor into the kind of array that x is."""
    if arrays.is_torch(x):
        return lambda result: result
    if arrays.device_of(x) == "cpu":
        restore = arrays.restorer(x)
        return lambda result: restore(_numpy(result))
    return arrays.device_restorer(x)


def _fill(buffer: Any, part: Tensor) -> None:
    if arrays.is_torch(buffer):
        buffer.copy_(part)
    elif arrays.device_of(buffer) == "cpu":
        view = arrays.to_numpy("quantize", buffer)
        if not view.flags.writeable:
            raise BackendError("quantize", "an out buffer that is read-only", "a writable one", "CNF-5")
        view[...] = arrays.to_numpy("quantize", part.cpu())
    else:
        _tensor("quantize", buffer).copy_(part)


def _require_no_flush(operation: str, tensor: Tensor) -> None:
    """Refuse a CPU that flushes subnormals, as torch.set_flush_denormal makes it do. Rules: CNF-4, NUM-1."""
    import torch

    if tensor.device.type == "cpu" and not (torch.full((1,), 2.0**-126) * torch.full((1,), 0.5)).view(torch.int32):
        got = "a CPU that flushes subnormals to zero"
        raise BackendError(operation, got, "torch.set_flush_denormal(False)", "CNF-4")


def gemm_exact(call: Call, a: Operand, b: Operand, epilogue: Epilogue) -> Any:
    """Return the true sums, rounded once. Rules: GEM-2."""
    return _gemm("exact_sums", a, b, epilogue)


def gemm_blockwise(call: Call, a: Operand, b: Operand, epilogue: Epilogue) -> Any:
    """Add one block after the other, in float32. Rules: GEM-4."""
    return _gemm("blockwise", a, b, epilogue)


def gemm_fast(call: Call, a: Operand, b: Operand, epilogue: Epilogue) -> Any:
    """Exact operands through torch's matrix product. Rules: GEM-11."""
    return _gemm("fast", a, b, epilogue)


def _gemm(sums: str, a: Operand, b: Operand, epilogue: Epilogue) -> Any:
    from fp4ref_torch import gemm

    left, right = _on_device(a), _on_device(b)
    _require_no_flush("gemm", left.data.data)
    bias, accumulate = (None if x is None else _tensor("gemm", x) for x in (epilogue.bias, epilogue.accumulate))
    rest = epilogue._replace(bias=bias, accumulate=accumulate)
    return _restorer(a.data.data)(gemm.finish(getattr(gemm, sums)(left, right), left, right, rest))


def _on_device(operand: Operand) -> Operand:
    codes = _tensor("gemm", operand.data.data)
    others = (None if part is None else _tensor("gemm", part).to(codes.device) for part in operand.data[1:])
    return operand._replace(data=DirectionData(codes, *others))
