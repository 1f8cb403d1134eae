"""Arrays of other libraries: into NumPy, and results back to the caller's kind and device.

Bytes cross as uint8 and uint16 views, never as the libraries' own fp4, fp8 or bfloat16 types.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from fp4ref.errors import BackendError, DTypeError

# NumPy rounds to them once, to nearest even. Certificates: round-*.
INPUT_DTYPES: dict[str, np.dtype[Any]] = {
    "float32": np.dtype(np.float32),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float16": np.dtype(np.float16),
}


def is_torch(x: Any) -> bool:
    """Return True if x is a torch tensor; torch is not imported to find out."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(x, torch.Tensor)


def device_of(x: Any) -> str:
    """Return the device of an array: "cpu", "cuda", ..."""
    if is_torch(x):
        return "cuda" if x.is_cuda else "cpu" if x.is_cpu else str(x.device.type)
    device = getattr(x, "__dlpack_device__", None)
    if isinstance(x, np.ndarray) or device is None:
        return "cpu"
    try:
        kind = int(device()[0])
    except (TypeError, ValueError, RuntimeError, BufferError):  # a CPU array of a type that DLPack cannot carry
        return "cpu"
    return {1: "cpu", 2: "cuda", 3: "cpu", 10: "rocm", 13: "cuda"}.get(kind, f"device type {kind}")


def to_numpy(operation: str, x: Any) -> NDArray[Any]:
    """Return a CPU array of any library as NumPy, without a copy where that is possible.

    Errors: BackendError for an array on another device, DTypeError for what is not an array of numbers.
    """
    if type(x) is np.ndarray:
        return x
    require_array(operation, x)
    if isinstance(x, np.ndarray):
        return x
    if device_of(x) != "cpu":
        got = f"an array on {device_of(x)}"
        raise BackendError(operation, got, "one in the CPU's memory for the numpy backend", "CNF-5")
    if is_torch(x):
        return _from_torch(x)
    if hasattr(x, "__array__"):
        return np.asarray(x)
    return np.from_dlpack(x)


def is_lazy_view(x: Any) -> bool:
    """Return True for a torch tensor whose memory holds the negated or conjugated values. Rules: NUM-7."""
    return is_torch(x) and (x.is_neg() or x.is_conj())


def resolved(x: Any) -> Any:
    """Return the array, or a copy with the values of a view that negates or conjugates when read. Rules: NUM-7."""
    return x.resolve_conj().resolve_neg() if is_lazy_view(x) else x


def imported(x: Any) -> Any:
    """Return an object that has only the methods of DLPack as an array of NumPy, or of torch; others as is.

    Errors: DTypeError for a type that DLPack carries and no library here takes.
    """
    if hasattr(x, "dtype") or not hasattr(x, "__dlpack__"):
        return x
    if device_of(x) == "cpu":
        with contextlib.suppress(BufferError, RuntimeError, TypeError):  # bfloat16, which NumPy has not
            return np.from_dlpack(x)
    try:
        import torch
    except ImportError:
        got = "an array that NumPy does not take"
        raise DTypeError("from_dlpack", got, "torch for it: pip install 'fp4ref[torch]'", "NUM-3") from None
    return torch.utils.dlpack.from_dlpack(x)


def device_restorer(x: Any) -> Callable[[Any], Any]:
    """Return the function that turns an array on a device into one of x's library, by DLPack."""
    if is_torch(x) or not hasattr(x, "__array_namespace__"):
        return lambda result: result
    from_dlpack: Callable[[Any], Any] = x.__array_namespace__().from_dlpack
    return from_dlpack


def as_matrix(x: Any, shape: tuple[int, int]) -> Any:
    """Return a contiguous array in another shape, sharing its memory; BackendError for an array with gaps."""
    contiguous = x.is_contiguous() if is_torch(x) else getattr(x, "flags", {"C_CONTIGUOUS": True})["C_CONTIGUOUS"]
    if not contiguous:
        raise BackendError("dequantize", "an out with gaps", "a contiguous one", "CNF-5")
    return x.reshape(shape)


def _from_torch(x: Any) -> NDArray[Any]:
    import torch

    x = resolved(x.detach())
    # A view by DLPack, because x.numpy() would make the caller's storage one that cannot be resized, for ever.
    if x.dtype is torch.bfloat16:
        return np.from_dlpack(x.view(torch.uint16)).view(ml_dtypes.bfloat16)
    return np.from_dlpack(x)


def restorer(x: Any) -> Callable[[NDArray[Any]], Any]:
    """Return the function that turns a NumPy result into the kind of array that x is."""
    if isinstance(x, np.ndarray) or not (is_torch(x) or hasattr(x, "__array_namespace__")):
        return lambda result: result
    if is_torch(x):
        return _to_torch
    namespace = x.__array_namespace__()
    from_numpy: Callable[[NDArray[Any]], Any] = namespace.asarray
    return from_numpy


def _to_torch(result: NDArray[Any]) -> Any:
    import torch

    if result.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(result.view(np.uint16)).view(torch.bfloat16)
    return torch.from_numpy(result)


def on_device(operation: str, result: NDArray[Any], device: Any) -> Any:
    """Return a new result as it is where no device was asked for, else as a torch tensor in the CPU's memory."""
    if device is None:
        return result
    try:
        return _to_torch(result)
    except ImportError:
        raise BackendError(operation, f"device {device} without torch", "pip install 'fp4ref[torch]'") from None


def require_array(operation: str, x: Any) -> None:
    """Raise DTypeError unless x is a dense array of NumPy, torch or DLPack whose every element counts. Rules: NUM-3."""
    if type(x) is np.ndarray:
        return
    needed = "a NumPy, torch or DLPack array"
    if is_torch(x):
        if x.layout is not sys.modules["torch"].strided or x.is_nested:
            kind = "nested" if x.is_nested else str(x.layout).removeprefix("torch.")
            raise DTypeError(operation, f"a {kind} tensor", "a dense one: x.to_dense()", "NUM-3")
        if sys.modules["torch"]._is_functional_tensor(x):
            raise DTypeError(operation, "a tensor of torch's functionalization, which has no memory", needed, "NUM-3")
        if x.is_meta:
            raise DTypeError(operation, "a tensor on the device meta, which has no values", needed, "NUM-3")
        return
    if isinstance(x, np.ma.MaskedArray):
        raise DTypeError(
            operation, "a masked array, whose mask no format stores", f"{needed}: x.filled(value)", "NUM-3"
        )
    dense = hasattr(x, "dtype") and hasattr(x, "shape") and (hasattr(x, "__array__") or hasattr(x, "__dlpack__"))
    if not dense:
        got = "None" if x is None else f"an object of type {type(x).__name__}"
        raise DTypeError(operation, got, needed, "NUM-3")


def dtype_name(x: Any) -> str:
    """Return the name of an array's element type, without its library's prefix."""
    return _last_part(getattr(x, "dtype", type(x).__name__))


@lru_cache(maxsize=256)
def _last_part(dtype: Any) -> str:
    return str(dtype).rsplit(".", 1)[-1]


def require_input(operation: str, x: Any) -> str:
    """Return the name of x's dtype, if a quantizer takes it. Rules: NUM-3."""
    require_array(operation, x)
    name = dtype_name(x)
    if name not in INPUT_DTYPES:
        because = " (float64 would round twice)" if name == "float64" else ""
        raise DTypeError(operation, f"dtype {name}", f"float32, bfloat16 or float16{because}", "NUM-3")
    return name


def output_dtype(operation: str, name: Any) -> np.dtype[Any]:
    """Return the NumPy type of an output named by string, NumPy type or torch type. Rules: DEQ-7, GEM-19."""
    text = name if isinstance(name, str) else getattr(name, "__name__", None) or str(name)
    text = text.rsplit(".", 1)[-1]
    if text not in INPUT_DTYPES:
        rule = "GEM-19" if operation == "gemm" else "DEQ-7"
        raise DTypeError(operation, f"dtype {text}", "float32, bfloat16 or float16", rule)
    return INPUT_DTYPES[text]


@lru_cache
def viewer() -> Callable[[Any, tuple[int, ...], tuple[int, ...], int], Any]:
    """Return the function of a tensor of torch, sizes, strides and elements to pass over that makes a view.

    That of torch's compiled graphs, where there is one, takes half the time of the public one.
    """
    import torch

    short: Callable[..., Any] | None = getattr(getattr(torch._C._dynamo, "guards", None), "_reinterpret_tensor", None)
    return short or (lambda x, shape, strides, start: x.as_strided(shape, strides, x.storage_offset() + start))
