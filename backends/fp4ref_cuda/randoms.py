"""Random bytes, made on the device."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from typing import Any

from fp4ref.operands import Counters
from fp4ref.registry import Call
from fp4ref_cuda import buffers, recording
from fp4ref_cuda.buffers import Library, pointer, torch_on
from fp4ref_cuda.checks import require_buffer
from fp4ref_cuda.launch import launch
from fp4ref_cuda.plan import Plan, remember

THREADS, BLOCK, EACH = 256, 16, 4  # threads of a block, bytes of a random block, random blocks of a thread


def random_bits(call: Call, counters: Counters, device: Any, out: Any = None) -> Any:
    """Make random bytes uint8 of a part of a direction's matrix; with `out`, into it. Rules: SR-7, SR-8."""
    shape = rows, columns = call.encoded
    (down, right), across, seed, upper = counters
    library = buffers.adopt("random_bits", out)[1] if out is not None else _library(device)
    with library.current():
        if out is None:
            out = library.empty(shape, "uint8")
        else:
            require_buffer("random_bits: out", out, shape, library, None)
        units = rows * -(-columns // BLOCK)
        if units:
            recording.forbid()  # other calls draw other bytes
            words = down * across + right, across, seed, upper
            grid = (-(-units // (THREADS * EACH)),)
            launch(library, "random_bits", "", grid, (pointer(out), rows, columns, *words), THREADS)
    remember(Plan("random_bits", ("random_bits",) if units else ()))
    return out


def _library(device: Any) -> Library:
    """torch where it is installed, for its tensors are what the caller named the device by; else CuPy."""
    named = str(device).partition(":")[2]  # a device's own name, or one that the caller wrote
    index = int(named) if named else None
    if not _has_torch():
        return Library("cupy", index or 0)
    import torch

    return torch_on(torch.cuda.current_device() if index is None else index)


@cache
def _has_torch() -> bool:
    return find_spec("torch") is not None
