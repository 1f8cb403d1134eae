"""The CUDA backend without a GPU: its operations on tensors of the CPU, its kernels compiled for the host."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import prod
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

import host_compiler
from fp4ref import arrays
from fp4ref_cuda import buffers, graphs, launch, programs, randoms, recording
from fp4ref_cuda.buffers import Library
from fp4ref_cuda.words import HEADER
from host_compiler import KERNELS

torch = pytest.importorskip("torch", exc_type=ImportError)
ALIGNED = ("-fsanitize=alignment",)
START = """
extern "C" const char* start(const Index* grid, unsigned threads, unsigned shared, const unsigned long long* words)
{
    return on_host(*grid, threads, shared, KERNEL, words);
}
"""
GUARD, UNSET = 4096, 0xA5  # bytes around an array, and what every byte of it and of these begins as
_ordinals = itertools.count(-1000, -1)
CPU = -1  # the ordinal of tensors in the CPU's memory


@cache
def built(kernel: str, prelude: str, kernels: Path = KERNELS) -> ctypes.CDLL:
    """A kernel as a library of the host, compiled once."""
    library = host_compiler.library(kernel, prelude, START.replace("KERNEL", kernel), kernels, ALIGNED)
    library.start.restype = ctypes.c_char_p
    library.start.argtypes = ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint, ctypes.c_void_p
    return library


@dataclass(frozen=True)
class Host(Library):
    """Memory of the CPU in place of a device's, between guards."""

    def empty(self, shape: Sequence[int], dtype: str) -> torch.Tensor:
        return self.guarded(shape, dtype)

    def guarded(self, shape: Sequence[int], dtype: str, shift: int = 0) -> torch.Tensor:
        """Return memory that begins `shift` bytes behind a multiple of 256, every byte of it and around it unset."""
        size = prod(shape) * buffers.itemsize(dtype)
        whole = torch.full((2 * GUARD + buffers.FRESH + shift + size,), UNSET, dtype=torch.uint8)
        first = GUARD + -whole.data_ptr() % buffers.FRESH + shift
        _guarded.append((whole, first, size))
        return whole[first : first + size].view(getattr(torch, dtype)).reshape(tuple(shape))

    def upload(self, values: np.ndarray[Any, Any]) -> torch.Tensor:
        made = self.guarded(values.shape, values.dtype.name)
        return made.copy_(torch.from_numpy(np.ascontiguousarray(values)))

    def stream(self) -> int:
        return 0

    def captures(self) -> bool:
        return False

    def current(self) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext()


_guarded: list[tuple[torch.Tensor, int, int]] = []


def on_host(
    patch: pytest.MonkeyPatch,
    capability: tuple[int, int] = (9, 0),
    multiprocessors: int = 2,
    changed: Mapping[str, Path] = MappingProxyType({}),
) -> Host:
    """Have the backend run on the host as on a device of this kind, until the patch is undone.

    changed: the folder of a kernel that does not come from the backend.
    """
    host = Host("torch", next(_ordinals))  # what is remembered of a device is remembered by its number
    about = SimpleNamespace(
        compute_capability=SimpleNamespace(major=capability[0], minor=capability[1]),
        properties=SimpleNamespace(multiprocessor_count=multiprocessors),
    )

    def ready(library: Library, name: str, prelude: str, shape: launch.Shape, count: int) -> launch.Start:
        grid = np.array([*shape.grid, 1, 1][:3], np.uint32)
        library = built(name, prelude, changed.get(name, KERNELS))

        def start(stream: int, at: int) -> None:
            fault = library.start(grid.ctypes.data, shape.block, shape.shared, at + 8 * HEADER)
            assert not fault, f"{name}: {fault.decode()}"

        return start

    patch.setattr(launch, "_device", lambda ordinal: about)
    patch.setattr(launch, "enter", lambda library: None)
    patch.setattr(launch, "ready", ready)
    patch.setattr(programs, "current_library", lambda: None)
    patch.setattr(buffers, "adopt", lambda operation, x: (x, host))
    return host


def guards_hold() -> bool:
    """Return True if nothing was written around an array since the last call."""
    held = all(
        bool((whole[:first] == UNSET).all() and (whole[first + size :] == UNSET).all())
        for whole, first, size in _guarded
    )
    _guarded.clear()
    return held


def to_tensor(host: Host, x: np.ndarray[Any, Any]) -> torch.Tensor:
    """Return a copy of a NumPy array between guards, of bfloat16 too."""
    made = host.guarded(x.shape, x.dtype.name)
    made.view(torch.uint8).copy_(torch.from_numpy(np.ascontiguousarray(x).view(np.uint8)))
    return made


def to_bytes(x: torch.Tensor) -> bytes:
    """Return the bytes of a tensor, of bfloat16 too."""
    return x.reshape(-1).view(torch.uint8).numpy().tobytes()


class Repeating(Host):
    """The same, of which calls of a kind are repeated as programs. recorded: how many of its calls were recorded."""

    recorded = 0

    def allocator(self, shape: tuple[int, ...], dtype: str) -> Callable[[], Any]:
        return lambda: self.empty(shape, dtype)

    def empty(self, shape: Sequence[int], dtype: str) -> torch.Tensor:
        made = super().empty(shape, dtype)
        recorder = recording.current()
        if recorder is not None:
            recorder.allocated(made, made.data_ptr(), shape, dtype)
        return made


def repeating_on_host(patch: pytest.MonkeyPatch) -> Repeating:
    """Have the backend run, and repeat, on the host."""
    on_host(patch)
    host = Repeating("torch", CPU)
    made = programs.program_of

    def counted(*given: Any) -> Any:
        Repeating.recorded += 1
        return made(*given)

    patch.setattr(Repeating, "recorded", 0)
    patch.setattr(buffers, "adopt", lambda operation, x: (x, host))
    patch.setattr(buffers, "current_device", lambda: lambda: CPU)
    patch.setattr(programs, "current_library", lambda: host)
    patch.setattr(programs, "program_of", counted)
    patch.setattr(randoms, "current_library", lambda: host)
    patch.setattr(randoms, "_library", lambda device: host)
    patch.setattr(programs, "_programs", {})
    patch.setattr(programs, "enter", lambda library: None)
    patch.setattr(programs, "new_piece", lambda stream: None)
    patch.setattr(graphs.Graphs, "new", lambda *given: None)
    patch.setattr(arrays, "device_of", lambda x: "cuda" if arrays.is_torch(x) else "cpu")
    return host
