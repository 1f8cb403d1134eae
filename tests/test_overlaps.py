"""Buffers of a call: apart from each other and from everything that is read, and never a view that negates."""

from __future__ import annotations

import dataclasses
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fp4ref
from fp4ref.memory import memory_of, overlap

BACKENDS = [name for name, reason in fp4ref.registry.available() if reason is None and name != "cuda"]
NAMES = ("x", "directions", "parts", "amax", "noop", "bits")
X = np.random.default_rng(1).standard_normal((32, 32)).astype(np.float32)


def sharing(part: np.ndarray, memory: np.ndarray) -> np.ndarray:
    """Return a buffer of a part's shape that begins with the memory of another array."""
    return memory.reshape(-1).view(np.uint8)[: part.nbytes].view(part.dtype).reshape(part.shape)


def out_in(q: Any, direction: str, field: str, memory: np.ndarray) -> Any:
    parts = getattr(q, direction)
    changed = parts._replace(**{field: sharing(getattr(parts, field), memory)})
    return dataclasses.replace(q, **{direction: changed})


def overlaps() -> dict[str, Callable[[], tuple[dict[str, Any], str]]]:
    """Calls of quantize, each with the names that its refusal gives."""
    amax = np.float32([4])
    drawn = fp4ref.random_bits(X.shape)
    flag = np.zeros(1, np.float32)
    both = lambda **more: fp4ref.quantize(X, "nvfp4", "both", **more)  # noqa: E731
    q = both()
    random = fp4ref.quantize(X, "nvfp4-sr", random_bits=drawn)
    return {
        "x": lambda: ({"out": out_in(q, "row", "data", X)}, r"out\.row\.data that overlaps x"),
        "directions": lambda: (
            {"out": out_in(q, "column", "data", q.row.data)},
            r"out\.(row|column)\.data that overlaps out\.(row|column)\.data",
        ),
        "parts": lambda: ({"out": out_in(q, "row", "scales", q.row.data)}, r"scales|data"),
        "amax": lambda: ({"amax": amax, "out": out_in(q, "row", "amax", amax)}, r"out\.row\.amax that overlaps amax"),
        "noop": lambda: ({"noop": flag, "out": out_in(q, "row", "amax", flag)}, r"out\.row\.amax that overlaps noop"),
        "bits": lambda: (
            {"spec": "nvfp4-sr", "random_bits": drawn, "out": out_in(random, "row", "scales", drawn)},
            r"out\.row\.scales that overlaps random_bits",
        ),
    }


@pytest.mark.rule("NUM-6")
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", NAMES)
def test_overlapping_buffers_are_refused_before_anything_is_written(name: str, backend: str) -> None:
    found = overlaps()
    assert (*found,) == NAMES
    arguments, match = found[name]()
    out = arguments["out"]
    directions = "both" if out.column is not None else "row"
    before = [bytes(part) for parts in (out.row, out.column) if parts is not None for part in parts]
    with pytest.raises(fp4ref.BackendError, match=match) as caught:
        fp4ref.quantize(X, **{"spec": "nvfp4", "directions": directions, "backend": backend, **arguments})
    assert "NUM-6" in str(caught.value)
    assert before == [bytes(part) for parts in (out.row, out.column) if parts is not None for part in parts]


@pytest.mark.rule("NUM-6")
def test_overlaps_of_groups_and_of_values() -> None:
    group = fp4ref.quantize_grouped(X, [16, 16], "nvfp4")
    members = [group[0], out_in(group[1], "row", "data", group[0].row.data)]
    with pytest.raises(fp4ref.BackendError, match=r"out\[.\]\.row\.data that overlaps out\[.\]\.row\.data"):
        fp4ref.quantize_grouped(X, [16, 16], "nvfp4", out=fp4ref.Group(members))
    q = fp4ref.quantize(X, "nvfp4")
    values = np.zeros(X.shape, np.float32)
    values.view(np.uint8).reshape(-1)[: q.row.data.size] = q.row.data.reshape(-1)
    shared = out_in(q, "row", "data", values)
    with pytest.raises(fp4ref.BackendError, match="out that overlaps data"):
        fp4ref.dequantize(shared, out=values)


@pytest.mark.rule("NUM-6")
def test_neighbours_in_one_allocation_are_accepted() -> None:
    memory = np.zeros((32, 18), np.uint8)  # 16 bytes of codes and 2 of scales in every row
    q = fp4ref.quantize(X, "nvfp4", backend="numpy")
    row = q.row._replace(data=memory[:, :16], scales=memory[:, 16:])
    got = fp4ref.quantize(X, "nvfp4", out=dataclasses.replace(q, row=row), backend="numpy")
    assert got == q


@settings(max_examples=200)
@given(st.data())
def test_overlap_is_what_the_sets_of_bytes_say(data: st.DataObject) -> None:
    base = np.zeros(64, np.uint8)
    views = []
    for _ in range(2):
        start, rows, columns = (
            data.draw(st.integers(0, 20)),
            data.draw(st.integers(1, 4)),
            data.draw(st.integers(1, 4)),
        )
        strides = [data.draw(st.integers(-5, 9)) for _ in range(2)]
        lowest = start + sum(min(0, (n - 1) * step) for n, step in zip((rows, columns), strides, strict=True))
        start += max(0, -lowest)
        highest = start + sum(max(0, (n - 1) * step) for n, step in zip((rows, columns), strides, strict=True))
        if highest >= base.size:
            return
        views.append(np.lib.stride_tricks.as_strided(base[start:], (rows, columns), strides))
    touched = [
        {
            view.ctypes.data + i * view.strides[0] + j * view.strides[1]
            for i in range(view.shape[0])
            for j in range(view.shape[1])
        }
        for view in views
    ]
    one, other = (memory_of(view) for view in views)
    assert one is not None
    assert other is not None
    assert overlap(one, other) == bool(touched[0] & touched[1])


def test_an_empty_array_overlaps_nothing() -> None:
    q = fp4ref.quantize(np.zeros((0, 32), np.float32), "mxfp4")
    assert fp4ref.quantize(np.zeros((0, 32), np.float32), "mxfp4", out=q) == q


def test_deciding_about_large_arrays_allocates_nothing() -> None:
    large = np.zeros((1 << 12, 1 << 12), np.uint8)
    one, other = memory_of(large[:, :2048]), memory_of(large[:, 2048:])
    assert one is not None
    assert other is not None
    tracemalloc.start()
    assert not overlap(one, other)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 16


@pytest.mark.rule("NUM-7")
@pytest.mark.parametrize("backend", BACKENDS)
def test_views_that_negate_count_by_their_values(backend: str) -> None:
    torch = pytest.importorskip("torch", reason="needs the extra [torch]")
    t = torch.from_numpy(X.copy())
    expected = fp4ref.quantize(-X, "nvfp4", backend="numpy")
    for view in (torch._neg_view(t), torch.complex(torch.zeros_like(t), t).conj().imag):
        assert view.is_neg()
        got = fp4ref.quantize(view, "nvfp4", backend=backend)
        for mine, its in zip(got.row, expected.row, strict=True):
            assert mine.numpy().tobytes() == its.tobytes()
    q = fp4ref.quantize(t, "nvfp4", backend=backend)
    with pytest.raises(fp4ref.BackendError, match="NUM-13"):
        fp4ref.dequantize(q, out=torch._neg_view(torch.zeros(32, 32)), backend=backend)
