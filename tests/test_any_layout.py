"""A layout that one line registers, on every backend: AMD's, DeepGEMM's, and layouts drawn from the algebra."""

from __future__ import annotations

from contextlib import contextmanager

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import fp4ref
from fp4ref.errors import LayoutError
from fp4ref.layout import LAYOUTS, Layout
from fp4ref.strategies import drawn_layouts

GFX950 = Layout("amd.gfx950_32x8", "m(16,2,*) k(4,2,*): m1 k1 m0 k0 k2 m2")
WORDS = Layout("deepgemm.words", "m(*) k(4,*): k0 m0 k1; pad m 4 unspecified")
GATED = Layout("gated", "m(16,*,2) k(4,*): k0 m2 m0 k1 m1; pad m 0x7f")
DOWN = Layout("cutlass.down", "m(32,4,*) k(4,*): k0 m1 m0 m2 k1")
RECORD = Layout("record", "m(*) k(8,*): k0^5 |34 k1 m0; base 2; pad k 16 0x7f")
SPECS = [fp4ref.NVFP4, fp4ref.MXFP8_E4M3]
OTHERS = ["cpu", "torch"]


@contextmanager
def registered(form: Layout):
    """Register a layout for as long as a test needs it."""
    LAYOUTS[form.name] = form
    try:
        yield form.name
    finally:
        del LAYOUTS[form.name]


def decided(form: Layout, buffer, rows, columns):
    """The bytes that a rule decides."""
    return np.where(form.compared(rows, columns), buffer, np.uint8(0)).tobytes()


def check(form: Layout, backend: str, rows: int, columns: int, spec, seed: int) -> None:
    """Quantize, dequantize and convert in a layout: bit for bit what the golden model does, padding included."""
    x = np.random.default_rng(seed).standard_normal((rows, columns), np.float32)
    blocks = -(-columns // spec.block.columns)
    with registered(form) as name:
        golden = fp4ref.quantize(x, spec, scale_layout=name, backend="numpy")
        linear = fp4ref.quantize(x, spec, backend="numpy")
        assert golden.row.scales.tobytes() == form.from_linear(linear.row.scales).tobytes()
        both = fp4ref.quantize(x, spec, "both", scale_layout=name, backend=backend)
        assert decided(form, both.row.scales, rows, blocks) == decided(form, golden.row.scales, rows, blocks)
        assert both.row.data.tobytes() == golden.row.data.tobytes()
        column = fp4ref.quantize(x, spec, "column", scale_layout=name, backend="numpy").column
        other = columns, -(-rows // spec.block.columns)
        assert decided(form, both.column.scales, *other) == decided(form, column.scales, *other)
        values = fp4ref.dequantize(golden, backend=backend)
        assert values.tobytes() == fp4ref.dequantize(linear, backend="numpy").tobytes()
        there = fp4ref.to_layout(linear, name, backend=backend)
        assert decided(form, there.row.scales, rows, blocks) == decided(form, golden.row.scales, rows, blocks)
        poisoned = np.where(form.valid(rows, blocks), there.row.scales, np.uint8(0x7F))
        back = fp4ref.to_layout(
            there.__class__(**{**vars(there), "row": there.row._replace(scales=poisoned)}), "linear", backend=backend
        )
        assert back.row.scales.tobytes() == linear.row.scales.tobytes()


@pytest.mark.rule("LAY-13", "LAY-15", "LAY-16", "LAY-17")
@pytest.mark.parametrize("backend", OTHERS)
@pytest.mark.parametrize("form", [GFX950, WORDS, GATED, DOWN, RECORD], ids=lambda form: form.name)
@pytest.mark.parametrize("rows, columns, spec", [(70, 300, SPECS[0]), (33, 1000, SPECS[1]), (0, 16, SPECS[0])])
def test_named_layouts(form, backend, rows, columns, spec):
    check(form, backend, rows, columns, spec, 1)


@pytest.mark.rule("LAY-13", "LAY-15", "LAY-16", "LAY-17")
@settings(max_examples=25, deadline=None)
@given(form=drawn_layouts(), rows=st.integers(0, 70), columns=st.integers(1, 200), seed=st.integers(0, 9))
@example(form=RECORD, rows=1, columns=16, seed=0)
def test_layouts_drawn_from_the_algebra(form, rows, columns, seed):
    for backend in OTHERS:
        check(form, backend, rows, columns, fp4ref.NVFP4, seed)


@pytest.mark.parametrize("backend", OTHERS)
def test_products_and_groups_in_another_layout(backend):
    x = np.random.default_rng(3).standard_normal((48, 160), np.float32)
    linear = fp4ref.quantize(x, fp4ref.NVFP4)
    expected = fp4ref.gemm(linear, linear, backend="numpy")
    with registered(GFX950) as name:
        q = fp4ref.quantize(x, fp4ref.NVFP4, scale_layout=name, backend=backend)
        assert fp4ref.gemm(q, q, backend=backend).tobytes() == expected.tobytes()


@pytest.mark.rule("LAY-13")
def test_a_packing_is_no_layout_of_scales():
    packing = Layout("nibbles", "n(*) k(2,*): k0 k1 n0; unit 4")
    with registered(packing), pytest.raises(LayoutError, match=r"'nibbles', which has units of 4 bits, not 8, need"):
        fp4ref.quantize(np.ones((2, 16), np.float32), fp4ref.NVFP4, scale_layout="nibbles")
