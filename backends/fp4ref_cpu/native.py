"""C++ texts with exported functions, and arrays as the pointers that these take."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

import fp4ref_numerics
from fp4ref import arrays
from fp4ref.errors import BackendError
from fp4ref.memory import numpy_start
from fp4ref.spec import Spec


def exported(prelude: str, header: str, loops: str, *names: str, job: str = "") -> str:
    """Return a text with functions `fp4ref_NAME_@(job)` around the static functions of a type.

    job: its C++ type, if not named after the function.
    """
    wrappers = "".join(
        f'extern "C" __attribute__((visibility("default"))) '
        f"void fp4ref_{name}_@({job or name.capitalize() + 'Job'}* job)\n"
        f"{{\n    const FloatModes modes;\n    {loops}::{name}(*job);\n}}\n"
        for name in names
    )
    local = f"namespace {{\n{prelude}}}\n"  # so that a compiler keeps one of several equal functions
    return f'#include "{header}"\nnamespace text_@ {{\nusing namespace fp4ref_cpu;\n{local}{wrappers}}}\n'


@lru_cache
def text(spec: Spec) -> str:
    """Lower a specification to the C++ text of its constants."""
    return fp4ref_numerics.lower(spec)


@lru_cache
def without_hadamard(spec: Spec) -> Spec:
    """Return the specification without its transform."""
    return spec.replace(hadamard=None)


def buffer_of(part: Any, operation: str = "quantize") -> NDArray[Any]:
    """Return the caller's buffer as an array that can be written."""
    buffer = arrays.to_numpy(operation, part)
    if not buffer.flags.writeable:
        raise BackendError(operation, "an out buffer that is read-only", "a writable one", "CNF-5")
    return buffer


def result_in(buffer: NDArray[Any] | None, shape: tuple[int, int]) -> NDArray[Any]:
    """Return the caller's buffer if it is contiguous, else a new one."""
    return buffer if buffer is not None and buffer.flags.c_contiguous else np.empty(shape, np.uint8)


def starts(like: Any) -> Callable[[Any], int]:
    """Return the function that reads the address of an array of the same kind, torch or NumPy."""
    if arrays.is_torch(like):
        import torch

        return torch.Tensor.data_ptr
    return numpy_start(like)


def writes(like: Any, operation: str = "quantize") -> Callable[[Any], int]:
    """Return the function that reads the address of a buffer of a kind, and requires that it can be written."""
    start_of = starts(like)
    if arrays.is_torch(like):
        return start_of
    of_buffer, address_of = ctypes.c_char.from_buffer, ctypes.addressof

    def start(part: Any) -> int:
        try:
            return address_of(of_buffer(part))  # which refuses what is read-only
        except (TypeError, ValueError, BufferError):
            return start_of(buffer_of(part, operation))

    return start


def address(array: NDArray[Any] | None) -> int | None:
    """Return the address of the first byte; None for no array."""
    if array is None:
        return None
    if array.size and array.dtype.isbuiltin == 1 and array.flags.writeable and array.flags.c_contiguous:
        buffer: Any = array
        return ctypes.addressof(ctypes.c_char.from_buffer(buffer))  # four times as fast as array.ctypes
    start: int = array.__array_interface__["data"][0]
    return start
