"""Calls that several benchmarks measure or compare with, and the time of one."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

import fp4ref
from fp4ref import registry
from fp4ref.registry import Call

TYPES: dict[str, Any] = {"bfloat16": ml_dtypes.bfloat16, "float32": np.float32}


def seconds(function: Callable[[], Any]) -> float:
    """Wall-clock time of one call."""
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def copier(x: NDArray[Any], pool: ThreadPoolExecutor, threads: int) -> Callable[[], Any]:
    """Return a copy of x by several threads, a part each; np.copyto releases the interpreter lock."""
    source, target = x.view(np.uint8).reshape(-1), np.ones(x.nbytes, np.uint8)
    ends = [x.nbytes * i // threads for i in range(threads + 1)]
    slices = [slice(*pair) for pair in pairwise(ends)]
    return lambda: deque(pool.map(lambda part: np.copyto(target[part], source[part]), slices), maxlen=0)


def dequantizer(q: fp4ref.Quantized, dtype: str) -> Callable[[], Any]:
    """Return the cpu backend's call that dequantizes into a buffer, which is there already."""
    out, native = np.zeros(q.matrix, TYPES[dtype]), registry.get("cpu")
    call = Call("dequantize", q.spec, to=dtype, layout=fp4ref.LAYOUTS[q.scale_layout], shape=q.matrix)
    return lambda: native.dequantize(call, q.row, out)
