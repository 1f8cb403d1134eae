"""Random bytes by the counter map."""

from __future__ import annotations

import ctypes
from ctypes import c_longlong, c_ulonglong, c_void_p
from functools import lru_cache
from typing import Any

from fp4ref import arrays
from fp4ref.operands import Counters
from fp4ref.registry import Call
from fp4ref_cpu import threads
from fp4ref_cpu.build import functions
from fp4ref_cpu.native import address, buffer_of, exported, result_in


class RandomJob(ctypes.Structure):
    """Arguments of `random`."""

    _fields_ = (
        ("out", c_void_p),
        ("rows", c_longlong),
        ("columns", c_longlong),
        ("first_row", c_ulonglong),
        ("first_block", c_ulonglong),
        ("across", c_ulonglong),
        ("seed", c_ulonglong),
        ("upper", c_ulonglong),
        ("next", c_longlong),
    )


def random_bits(call: Call, counters: Counters, device: Any, out: Any) -> Any:
    """Make random bytes uint8 of a part of a direction's matrix; with `out`, into it. Rules: SR-7, SR-8."""
    buffer = None if out is None else buffer_of(out)
    result = result_in(buffer, call.encoded)
    if result.size:
        origin, *rest = counters
        job = RandomJob(address(result), *call.encoded, *origin, *rest, 0)
        threads.run(_randoms(), job, result.size)
    if buffer is None:
        return arrays.on_device("random_bits", result, device)
    if result is not buffer:
        buffer[...] = result
    return out


@lru_cache
def _randoms() -> Any:
    return functions(random_text(), "random")[0]


def random_text() -> str:
    """Return the text that exports `random`."""
    return exported("", "random.h", "Randoms", "random")
