"""Arrays on the device: memory, pointers and streams of the library that the caller's array belongs to."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np

from fp4ref import arrays
from fp4ref.errors import BackendError, DTypeError, ShapeError
from fp4ref.quantized import DIRECTIONS, Direction, DirectionData
from fp4ref_cuda import recording

ALIGNMENT = 16  # bytes: what a path can ask of an address is a remainder by this
FRESH = 256  # bytes that new memory is aligned to


@dataclass(frozen=True)
class Library:
    """The functions that the kernels need from an array library, for one device."""

    name: str
    ordinal: int

    def empty(self, shape: Sequence[int], dtype: str) -> Any:
        """Return new memory from the library's own allocator, ordered by its current stream."""
        if self.name == "torch":
            made = torch_empty(shape, dtype, self.ordinal)
        else:
            import cupy

            made = cupy.empty(tuple(shape), _numpy_dtype(dtype))
        recorder = recording.current()
        if recorder is not None:
            recorder.allocated(made, address(made), shape, dtype)
        return made

    def allocator(self, shape: tuple[int, ...], dtype: str) -> Callable[[], Any]:
        """Return the function that returns such memory of torch, of the current device, with nothing to find out."""
        import torch

        kind, device = _torch_dtype(dtype), _torch_device(self.ordinal)
        short = _torch_short()
        if short is not None:
            return partial(short, shape, strides(shape), kind)
        return partial(torch.empty_strided, shape, strides(shape), dtype=kind, device=device)

    def upload(self, values: np.ndarray[Any, Any]) -> Any:
        """Return a copy of a host array on the device."""
        if self.name == "torch":
            import torch

            if values.size == 1:  # an argument of a kernel: nothing waits for a copy
                kind = getattr(torch, values.dtype.name)
                return torch.full(values.shape, values.item(), dtype=kind, device=f"cuda:{self.ordinal}")
            return torch.from_numpy(np.ascontiguousarray(values)).to(f"cuda:{self.ordinal}")
        import cupy

        return cupy.asarray(values)

    def stream(self) -> int:
        """Return the handle of the caller's current stream."""
        if self.name == "torch":
            return _torch_stream()(self.ordinal)
        import cupy

        return int(cupy.cuda.get_current_stream().ptr)

    def captures(self) -> bool:
        """Return True if the caller captures what its current stream is given."""
        if self.name == "torch":
            return _torch_captures()()
        import cupy

        return bool(cupy.cuda.get_current_stream().is_capturing())

    def current(self) -> contextlib.AbstractContextManager[Any]:
        """Make the array's device the current one, where it is not."""
        if self.name == "torch":
            import torch

            same = torch.cuda.current_device() == self.ordinal
            return contextlib.nullcontext() if same else torch.cuda.device(self.ordinal)
        import cupy

        device: contextlib.AbstractContextManager[Any] = cupy.cuda.Device(self.ordinal)
        return device


@dataclass(frozen=True)
class Operands:
    """The arrays of one call that quantizes, all on the device, beside the record that describes the call.

    x: contiguous. targets: buffers to fill, per direction. amax, bits: given maxima and random bytes per direction.
    flag: address of the word that keeps everything as it is, or 0. members: the table of a group of `count`, or None.
    """

    library: Library
    x: Any
    targets: Mapping[Direction, DirectionData]
    amax: Mapping[str, Any]
    bits: Mapping[str, Any]
    flag: int = 0
    members: Any = None
    count: int = 1

    @property
    def buffers(self) -> tuple[int, ...]:
        """Addresses of data, scales, amax and random bits, of the row and of the column direction."""
        none = DirectionData(None, None, None)
        each = [(*self.targets.get(name, none), self.bits.get(name)) for name in DIRECTIONS]
        return tuple(pointer(buffer) for group in each for buffer in group)


@lru_cache
def torch_on(ordinal: int) -> Library:
    """Return torch on one device."""
    return Library("torch", ordinal)


def _numpy_dtype(name: str) -> np.dtype[Any]:
    return arrays.INPUT_DTYPES[name] if name in arrays.INPUT_DTYPES else np.dtype(name)


def itemsize(dtype: str) -> int:
    """Return the bytes of an element."""
    return _numpy_dtype(dtype).itemsize


def adopt(operation: str, x: Any) -> tuple[Any, Library]:
    """Return an array of torch or CuPy as it is, any other one on a CUDA device through DLPack.

    Errors: BackendError for an array elsewhere.
    """
    if arrays.device_of(x) != "cuda":
        got = f"an array on {arrays.device_of(x)}"
        raise BackendError(operation, got, "one in the memory of a CUDA device", "CNF-5")
    if arrays.is_torch(x):
        return arrays.resolved(x.detach()), Library("torch", x.device.index)
    if type(x).__module__.split(".")[0] == "cupy":
        return x, Library("cupy", x.device.id)
    try:
        import torch
    except ImportError:
        import cupy

        return adopt(operation, cupy.from_dlpack(x))
    return adopt(operation, torch.utils.dlpack.from_dlpack(x))


def on_device(operation: str, value: Any, library: Library, dtype: str) -> Any:
    """Return an argument that belongs beside x: a host array is copied, one on another device is an error."""
    if arrays.device_of(value) == "cpu":
        return library.upload(np.asarray(arrays.to_numpy(operation, value), _numpy_dtype(dtype)))
    value, other = adopt(operation, value)
    if other.ordinal != library.ordinal:
        got = f"arrays on cuda:{library.ordinal} and cuda:{other.ordinal}"
        raise BackendError(operation, got, "one device", "CNF-5")
    return contiguous(value)


def require_kind(operation: str, name: str, value: Any, dtype: str, shape: tuple[int, ...], rule: str) -> None:
    """Require an array's type and shape.

    Errors: DTypeError, ShapeError.
    """
    if arrays.dtype_name(value) != dtype:
        raise DTypeError(operation, f"{name} of {arrays.dtype_name(value)}", dtype, rule)
    if tuple(value.shape) != shape:
        raise ShapeError(operation, f"{name} {list(value.shape)}", f"{list(shape)}", rule)


def contiguous(x: Any) -> Any:
    """Return the array with its rows one after the other; strides of any other kind cost a copy."""
    if arrays.is_torch(x):
        return x.contiguous()
    import cupy

    return cupy.ascontiguousarray(x)


def aligned(x: Any) -> Any:
    """Return the array, or a copy of one whose memory does not start at a multiple of 16 bytes."""
    if not pointer(x) % 16:
        return x
    return x.clone() if arrays.is_torch(x) else x.copy()


def is_contiguous(x: Any) -> bool:
    """Return True if the elements lie one after the other."""
    return bool(x.is_contiguous() if arrays.is_torch(x) else x.flags.c_contiguous)


def torch_empty(shape: Sequence[int], dtype: str, ordinal: int) -> Any:
    """Return an uninitialised tensor on a device; with its strides, which takes torch two thirds of the time."""
    import torch

    shape = tuple(shape)
    return torch.empty_strided(shape, strides(shape), dtype=_torch_dtype(dtype), device=_torch_device(ordinal))


@lru_cache(maxsize=4096)
def strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides of a contiguous array."""
    sizes = [max(size, 1) for size in shape[1:]]
    return tuple(math.prod(sizes[at:]) for at in range(len(shape)))


@lru_cache
def _torch_stream() -> Callable[[int], int]:
    """Return the function that tells a device's current stream: torch's own short way, where it has it."""
    import torch

    short: Callable[[int], int] | None = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    return short or (lambda ordinal: int(torch.cuda.current_stream(ordinal).cuda_stream))


@lru_cache
def _torch_captures() -> Callable[[], bool]:
    import torch

    short: Callable[[], bool] | None = getattr(torch._C, "_cuda_isCurrentStreamCapturing", None)
    return short or torch.cuda.is_current_stream_capturing


@lru_cache
def current_device() -> Callable[[], int]:
    """Return the function that tells torch's current device, once CUDA was used: its own short way, where it has it."""
    import torch

    torch.cuda.current_device()
    short: Callable[[], int] | None = getattr(torch._C, "_cuda_getDevice", None)
    return short or torch.cuda.current_device


@lru_cache
def _torch_short() -> Callable[..., Any] | None:
    """Return the function by which torch's compiled graphs allocate, in half the time; None without it."""
    import torch

    return getattr(getattr(torch._C._dynamo, "guards", None), "_empty_strided_cuda", None)


@lru_cache
def _torch_dtype(name: str) -> Any:
    import torch

    return getattr(torch, name)


@lru_cache
def _torch_device(ordinal: int) -> Any:
    import torch

    return torch.device("cuda", ordinal)


def address(x: Any) -> int:
    """Return the address of an array's first byte."""
    return int(x.data_ptr() if arrays.is_torch(x) else x.data.ptr)


def pointer(x: Any) -> int:
    """Return the address of an array's first byte as an argument of a kernel; 0 for None."""
    if x is None:
        return 0
    recorder = recording.current()
    return address(x) if recorder is None else recorder.address(address(x))
