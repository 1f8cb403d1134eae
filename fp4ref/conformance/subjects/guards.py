"""Buffers with guards: what a kernel reads and writes is fenced by bytes that are looked at afterwards.

An input stands between bytes that are NaN in every type. A result stands between bytes of a pattern and starts out
poisoned, so that a byte that was never written is seen. Both are aligned as declared, and to no more.

Rules: CNF-36, CNF-93, CNF-94, CNF-126.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fp4ref.arrays import to_numpy
from fp4ref.kernels import device_type

GUARD = 4096  # bytes before and after: eight tiles of scales
FENCE = 0xFF  # NaN in float32, bfloat16, float16 and E4M3, E5M2, E8M0
GAP = 8  # elements between the rows of a tensor whose rows are apart
UNWRITTEN = {"data": 0xA5, "scales": 0x7F, "amax": 0xFF, "values": 0xFF}
UNWRITTEN_AGAIN = {"data": 0x5A, "scales": 0x6E, "amax": 0xFE, "values": 0xFE}  # in a second call


@dataclass(frozen=True)
class Arrays:
    """The library that a kernel's arrays are of, and the device of torch tensors."""

    library: str
    device: str = "cpu"

    @property
    def on_cuda(self) -> bool:
        """True if they are on a CUDA device."""
        return device_type(self.device) == "cuda"

    def bytes(self, count: int, value: int) -> Any:
        """Return a new array of bytes, all the same."""
        if self.library == "numpy":
            return np.full(count, value, np.uint8)
        import torch

        return torch.full((count,), value, dtype=torch.uint8, device=self.device)

    def view(self, raw: Any, dtype: str, shape: tuple[int, ...]) -> Any:
        """Bytes as an array of another type and shape, sharing memory."""
        if self.library == "numpy":
            return raw.view(numpy_dtype(dtype)).reshape(shape)
        import torch

        return raw.view(getattr(torch, dtype)).reshape(shape)

    def write(self, target: Any, values: NDArray[np.uint8]) -> None:
        """Copy bytes of the host into an array of bytes."""
        if self.library == "numpy":
            target[...] = values
        else:
            import torch

            target.copy_(torch.from_numpy(values))

    @staticmethod
    def address(raw: Any) -> int:
        """Return the address at which an array of bytes starts."""
        return int(raw.ctypes.data if isinstance(raw, np.ndarray) else raw.data_ptr())

    def finish(self) -> None:
        """Wait for the device, so that an error of it belongs to this call."""
        if self.on_cuda:
            import torch

            torch.cuda.synchronize(self.device)


def numpy_dtype(name: str) -> np.dtype[Any]:
    """Return the NumPy type of a name, bfloat16 included."""
    import ml_dtypes

    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


def host_bytes(array: Any) -> NDArray[np.uint8]:
    """Return the bytes of an array of one byte per element, on the host."""
    return np.ascontiguousarray(host(array)).reshape(-1).view(np.uint8)


def host(array: Any) -> NDArray[Any]:
    """Return an array of any library and device as a NumPy array of plain numbers; 8-bit floats as uint8."""
    if hasattr(array, "detach"):
        import torch

        array = array.detach()
        if array.element_size() == 1 and array.dtype not in {torch.uint8, torch.int8, torch.bool}:
            array = array.contiguous().view(torch.uint8)
        return to_numpy("verify", array.cpu())
    if not isinstance(array, np.ndarray) and hasattr(array, "get"):  # CuPy
        array = array.get()
    return np.asarray(to_numpy("verify", array))


def counted(count: int) -> str:
    """Return a number of bytes in words."""
    return f"{count} byte{'' if count == 1 else 's'}"


def fenced(arrays: Arrays, inner: int, alignment: int) -> tuple[Any, int]:
    """Make room for bytes between guards: all of it fence, and where the bytes start, aligned to no more than asked."""
    raw = arrays.bytes(inner + 2 * GUARD + 4 * alignment, FENCE)
    return raw, GUARD + (alignment - arrays.address(raw) - GUARD) % (2 * alignment)


class Guarded:
    """An array inside a larger one.

    array: what the kernel is given. pitch: elements from one row to the next where rows are to lie apart.
    """

    def __init__(
        self, arrays: Arrays, dtype: str, shape: tuple[int, ...], alignment: int, fill: int, pitch: int = 0
    ) -> None:
        self._arrays = arrays
        size = numpy_dtype(dtype).itemsize
        alignment = max(alignment, size)
        rows = int(np.prod(shape[:-1], dtype=np.int64)) if shape else 1
        inner = (rows * pitch if pitch else int(np.prod(shape, dtype=np.int64))) * size
        self._raw, self._start = fenced(arrays, inner, alignment)
        self._stop = self._start + inner
        part = self._raw[self._start : self._stop]
        self._before = np.full(len(self._raw), FENCE, np.uint8)
        if fill != FENCE:
            arrays.write(part, np.full(inner, fill, np.uint8))
        self._inner, self._hidden = part, None  # bytes that `hide` took away
        whole = arrays.view(part, dtype, (*shape[:-1], pitch or shape[-1])) if shape else arrays.view(part, dtype, ())
        self.array = whole[..., : shape[-1]] if pitch else whole

    @classmethod
    def holding(cls, arrays: Arrays, values: NDArray[Any], alignment: int, strided: bool = False) -> Guarded:
        """Return a guarded copy of values, for a kernel to read; its rows are apart if strided."""
        shape = values.shape
        pitch = shape[-1] + GAP if strided and values.ndim > 1 else 0
        self = cls(arrays, values.dtype.name, shape, alignment, FENCE, pitch)
        image = np.full((int(np.prod(shape[:-1])), pitch or shape[-1], values.itemsize), FENCE, np.uint8)
        plain = np.frombuffer(np.ascontiguousarray(values).tobytes(), np.uint8)
        image[:, : shape[-1]] = plain.reshape(len(image), shape[-1], values.itemsize)
        arrays.write(self._raw[self._start : self._stop], image.reshape(-1))
        self._before[self._start : self._stop] = image.reshape(-1)
        return self

    def hide(self) -> None:
        """Make every byte of the array part of the fence, until `show`."""
        self._hidden = self._inner.clone() if hasattr(self._inner, "clone") else self._inner.copy()
        self._inner[...] = FENCE

    def show(self) -> None:
        """Write what was hidden back, on the current stream of a device; nothing otherwise."""
        if self._hidden is not None:
            self._inner[...] = self._hidden  # which lives on: a device copies later

    def outside(self) -> str:
        """Return the outside bytes that were written, in words; empty if none were."""
        now = host_bytes(self._raw)
        fence = np.ones(len(now), np.bool_)
        fence[self._start : self._stop] = False
        places = np.flatnonzero(fence & (now != FENCE))
        if not len(places):
            return ""
        below, above = places[places < self._start], places[places >= self._stop]
        words = [f"{counted(self._start - below[-1])} before its start"] if len(below) else []
        words += [f"{counted(above[0] - self._stop)} after its end"] if len(above) else []
        return f"{counted(len(places))} outside, {' and '.join(words)}"

    def changed(self) -> int:
        """Return the number of bytes of the array itself that have changed."""
        now = host_bytes(self._raw)[self._start : self._stop]
        return int(np.count_nonzero(now != self._before[self._start : self._stop]))
