"""Operations need little memory beyond inputs and results, whatever the shape."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import fp4ref

MIB = 1 << 20
LIMIT = 12 * MIB  # of intermediates; whole float32 copies of the inputs below would be 8 MiB each, and many are made
ELEMENTS = 1 << 21


def beyond(call: Callable[[], Any]) -> int:
    """Peak bytes that a call allocates beyond what it returns."""
    tracemalloc.start()
    result = call()
    held, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    del result
    return peak - held


@pytest.mark.rule("NUM-4")
@pytest.mark.parametrize(
    "name, shape",
    [
        ("mxfp8-e4m3", (1024, 2048)),
        pytest.param("nvfp4-2d", (1, ELEMENTS), marks=pytest.mark.heavy),
        pytest.param("mxfp8-e4m3", (ELEMENTS, 1), marks=pytest.mark.heavy),
        ("nvfp4-2d", (8, 64, 4096)),
    ],
)
def test_memory_is_bounded(name: str, shape: tuple[int, ...]) -> None:
    x = np.zeros(shape, ml_dtypes.bfloat16)
    x[..., ::7] = 1.5
    for direction in ("row", "column"):
        assert beyond(partial(fp4ref.quantize, x, name, direction, "tiled_8x4", backend="numpy")) < LIMIT
        q = fp4ref.quantize(x, name, direction, "tiled_8x4")
        assert beyond(partial(fp4ref.dequantize, q, "bfloat16", direction, backend="numpy")) < LIMIT
        assert beyond(partial(fp4ref.to_layout, q, "linear", backend="numpy")) < LIMIT


def test_a_strided_view_is_not_copied_whole() -> None:
    base = np.zeros((16, 512, 1024), np.float32)
    view = base.swapaxes(0, 1)
    assert beyond(lambda: fp4ref.quantize(view, "mxfp4", "both", backend="numpy")) < LIMIT
