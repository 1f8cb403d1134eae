"""Mistakes of cuts, places, orders and draws, each of which the certificates about them refute."""

from __future__ import annotations

import dataclasses
import importlib
from types import SimpleNamespace

import numpy as np
import pytest

from covering import heavy_or_release
from fp4ref import multiply, random_source, repeats
from fp4ref.conformance.judge import binomial, compare
from fp4ref.conformance.judge import products as judged
from fp4ref.conformance.oracle import hadamard as bounds
from fp4ref.layout import strides
from fp4ref.layout import value as layouts
from fp4ref.operands import Counters
from refuting import decided, other_member, planted, replaced

__all__ = ["planted"]  # a fixture
CUTS = ("nvfp4", "nvfp4-2d", "nvfp4-rht", "mxfp4", "mxfp8-2d")
PARTS = ("nvfp4", "nvfp4-2d", "nvfp4-4over6", "nvfp4-sr", "mxfp8-e4m3", "mxfp8-2d")
LAYOUTS = ("linear", "linear_padded", "tiled_128x4", "tiled_8x4")
SUBJECTS = ("golden", "cpu", "torch")
OF_ROWS = ("row-scaled", "amax-kept")


# C++: claim: file of the cpu backend or of the shared header, text, its replacement

LOOP = "for (int stride = 8; stride; stride /= 2)"
PADDED = ("csrc/walk.h", "i < width ? x[r][i]", "i < width - 1 ? x[r][i]")
NATIVE_PLACES = {
    **{f"cut-{spec}/cpu": PADDED for spec in CUTS},
    "theorem-transposed/cpu": PADDED,
    **{
        f"offset-{name}/cpu": ("csrc/relayout.h", "Row::of(job.to, job.to_map, top + l)", "from[l]") for name in LAYOUTS
    },
    **dict.fromkeys(
        ("row-scaled/cpu", "amax-kept/cpu"), ("csrc/walk.h", "job.amax[numerics.by_row ? row : 0]", "job.amax[0]")
    ),
    **dict.fromkeys(
        ("hadamard-columns/cpu", "hadamard-column-amax/cpu"),
        ("hadamard.h", "Signs >> i & 1u ? -0.25f", "Signs >> i & 2u ? -0.25f"),
    ),
    "pieces-of-squares/cpu": ("csrc/walk.h", "job.amax[numerics.by_row ? row : 0]", "2 * job.amax[0]"),
    "rows-decoded-by-amax/cpu": ("csrc/dequantize.h", "numerics.by_row ? row : 0", "0 * row"),
    "columns-inverted/cpu": (
        "csrc/dequantize.h",
        "inverse_hadamard<S::signs>(group)",
        "inverse_hadamard<S::signs ^ 1u>(group)",
    ),
    "random-counters/cpu": ("csrc/random.h", "c[i][1] = indices >> 32", "c[i][1] = indices >> 33"),
    "random-parts/cpu": ("csrc/random.h", "job.first_block + column / BLOCK", "column / BLOCK"),
    "product-amaxes/cpu": (
        "csrc/gemm.h",
        "(y * job.a.amax[m]) * job.b.amax[i]",
        "y * (job.a.amax[m] * job.b.amax[i])",
    ),
    "product-additions/cpu": ("csrc/gemm.h", "if (!by_row && added) y = y", "if (!by_row && added && !job.bias) y = y"),
    "hadamard-order/header": ("hadamard.h", "for (int stride = 1; stride < 16; stride *= 2)", LOOP),
    "hadamard-inverse/header": ("hadamard.h", "for (int stride = 1; stride < 16; stride *= 2)", LOOP),
}


COMPILED_QUICKLY = ("hadamard-order/header",)


@heavy_or_release(NATIVE_PLACES, COMPILED_QUICKLY)
def test_a_mistake_of_places_in_native_code_is_refuted(name, planted):
    planted(*NATIVE_PLACES[name])
    assert decided(name).witness


# Python: each plants its mistake by a function of pytest's monkeypatch


def instead(owner, name, wrong):
    """Return a planter of a function that takes the right one first, then its arguments."""

    def plant(patch):
        where = importlib.import_module(owner) if isinstance(owner, str) else owner
        right = getattr(where, name)
        patch.setattr(where, name, lambda *given, **named: wrong(right, *given, **named))

    return plant


def method(owner, name, wrong):
    """Return a planter of a method that takes the object, then the right one, then its arguments."""

    def plant(patch):
        right = getattr(owner, name)
        patch.setattr(owner, name, lambda self, *given, **named: wrong(self, right, *given, **named))

    return plant


def turned(right, tile, block):
    """Cut blocks one column further on."""
    return right(np.roll(tile, 1, axis=1), block)


def turned_in_torch(right, matrix, spec):
    return right(matrix.roll(1, 1), spec)


def first_amax(right, amax, rows, spec):
    """Give all rows the amax of the first."""
    return right(amax, slice(0, 1), spec)


def first_amax_in_torch(right, values, rows):
    return right(values, slice(0, 1))


def by_one_product(right, y, a, b):
    return y * (np.asarray(a.data.amax)[:, None] * np.asarray(b.data.amax)[None, :])


def twice_rounded(right, y, epilogue):
    return right(right(y, epilogue._replace(dtype=np.dtype(np.float16))).astype(np.float32), epilogue)


def cast_twice_in_torch(right, y, epilogue):
    import torch

    return right(y.to(torch.float16).to(torch.float32), epilogue)


def other_order(right, sums, a, b, epilogue):
    """Multiply by the amaxes of rows before the factor."""
    import torch

    y = sums * torch.from_numpy(np.asarray(b.data.amax)) if b.row_scaled else sums
    return right(y, a, b._replace(data=b.data._replace(amax=b.data.amax * 0 + 1)) if b.row_scaled else b, epilogue)


def any_amax(right, value, spec, shape):
    return right(abs(value) if isinstance(value, float) else value, spec, shape)


def other_signs(right, x, mask):
    """Give the first element of each group the other sign."""
    return right(x, mask ^ 1)


def from_the_last(right, direction, rows, spec):
    """Take the amaxes of rows from the last one on."""
    return right(direction, rows, spec)[::-1]


def filled_with_zeros(right, values, axes, part):
    return right(values, [axis._replace(fill=0) for axis in axes], part)


def padded_with_zeros(right, x, widths, value=0):
    return right(x, widths)


def even_scales(self, right, scales):
    return right(self, scales // 2 * 2)


def even_scales_in_torch(right, scales, name):
    return right(scales // 2 * 2, name)


def short_end(self, right, rows, columns):
    first, last = right(self, rows, columns)
    return first, last + 1


def late_start(right, sizes, starts):
    return [start + (place == 2) for place, start in enumerate(right(sizes, starts))]


def narrow_counters(origin, across, seed, upper):
    return Counters(origin, across & 0xFFFFFFFF, seed, upper)


def first_block(origin, across, seed, upper):
    return Counters((origin[0], 0), across, seed, upper)


def one_order(right, group, mask):
    return [(value, value) for value in bounds.transform(group, mask)]


def last_first(right, a, b, **named):
    return right(a, b, **named)[::-1]


def without_a_bit(right, codec, got, expected, spec):
    return right(codec, got & 0xFE, expected & 0xFE, spec)


def compared_otherwise(self, right, *sizes):
    return ~right(self, *sizes)


def operands_kept(right):
    """Overlook that operands are flushed."""
    return right()._replace(inputs=False)


def other_bits(right, *given):
    """Draw random bytes from the process's generator."""
    case = right(*given)
    if case.random_bits is None:
        return case
    bits = np.random.randint(0, 256, case.random_bits.shape).astype(np.uint8)  # noqa: NPY002
    return dataclasses.replace(case, random_bits=bits)


def columns_first(patch):
    """Read the columns of MXFP8 where there are rows."""
    kind = importlib.import_module("fp4ref.te.mxfp8_tensor").MXFP8TensorStorage
    method(kind, "directions", lambda self, right: right(self)[::-1])(patch)


def other_weights(right, a, *others, layout="TN", **named):
    """Multiply the rows of a group by the weights in reverse."""
    return right(a[::-1] if layout == "TN" else a, *others, layout=layout, **named)


def by_shape(right, x, name, direction, **named):
    """Quantize the lower rows of a matrix as if they were twice as large."""
    return right(x * (2 if len(x) % 5 else 1), name, direction, **named)


def within_blocks(right, spec, direction, counts):
    """Accept a cut after the first row."""
    if counts[0] != 1:
        right(spec, direction, counts)


def unmoved(right, q, direction):
    """Let the other direction have the same rows, at the same places."""
    back = q.row._replace(data=np.roll(q.row.data, -1, axis=0), scales=np.roll(q.row.scales, -1, axis=0))
    return dataclasses.replace(right(dataclasses.replace(q, row=back), direction), **{direction: q.row})


def padding_sent(patch):
    """Send the padding rows of scales."""
    kind = importlib.import_module("fp4ref.te.nvfp4_tensor").NVFP4Tensor
    method(kind, "_sent", lambda self, right: (right(self)[0], self.scales_buffer("row")))(patch)


def reduced_by(wrong):
    """Return a planter of another reduction of amaxes."""

    def plant(patch):
        kind = importlib.import_module("fp4ref.te.nvfp4_quantizer").NVFP4Quantizer
        method(kind, "_reduce_amax", wrong)(patch)

    return plant


def rows_reduced(self, right, dst):
    """Leave each member its own amax of columns."""
    return right(self, SimpleNamespace(_amax_rowwise=dst._amax_rowwise, _amax_columnwise=None))


def only_with_elements(self, right, dst):
    """Let members without elements stay away."""
    return bool(dst.numel()) and right(self, dst)


PYTHON_PLACES = {
    **{f"part-{spec}/{of}": instead("fp4ref.api", "quantize", by_shape) for spec in PARTS for of in SUBJECTS},
    **{f"cut-{spec}/golden": instead("fp4ref.model.quantize", "split", turned) for spec in CUTS},
    **{f"cut-{spec}/torch": instead("fp4ref_torch.quantize", "_split", turned_in_torch) for spec in CUTS},
    "theorem-transposed/torch": instead("fp4ref_torch.quantize", "_split", turned_in_torch),
    "part-cuts/golden": instead("fp4ref.te.sharded", "_require_whole_blocks", within_blocks),
    **{f"offset-{name}/golden": method(layouts.Layout, "from_linear", even_scales) for name in LAYOUTS},
    **{
        f"offset-{name}/torch": instead("fp4ref_torch.layouts", "from_linear", even_scales_in_torch) for name in LAYOUTS
    },
    "moved-tails/golden": method(layouts.Layout, "from_linear", even_scales),
    "moved-tails/torch": instead("fp4ref_torch.layouts", "from_linear", even_scales_in_torch),
    **{f"group-{name}/golden": instead(layouts, "group_starts", late_start) for name in LAYOUTS},
    **{f"piece-{name}/golden": method(strides.Strides, "ends", short_end) for name in LAYOUTS},
    **{f"{name}/golden": instead("fp4ref.model.quantize", "_of_rows", first_amax) for name in OF_ROWS},
    **{f"{name}/torch": instead("fp4ref_torch.quantize", "part_of", first_amax_in_torch) for name in OF_ROWS},
    "rows-decoded-by-amax/golden": instead("fp4ref.model.dequantize", "_of_rows", from_the_last),
    "rows-decoded-by-amax/torch": instead("fp4ref_torch.dequantize", "part_of", first_amax_in_torch),
    **{
        f"columns-inverted/{of}": instead(module, "inverse", other_signs)
        for of, module in (("golden", "fp4ref.hadamard"), ("torch", "fp4ref_torch.hadamard"))
    },
    "pieces-of-squares/golden": instead("fp4ref.model.quantize", "split", turned),
    "pieces-of-squares/torch": instead(
        "fp4ref_torch.quantize", "pieces", lambda right, of, columns, multiple: right(of, columns, 1)
    ),
    "padding-written/golden": instead("fp4ref.layout.conversion", "_filled", filled_with_zeros),
    "padding-written/cpu": instead("fp4ref_cpu.quantizing", "write_padding", lambda right, *given: None),
    "padding-written/torch": instead("fp4ref_torch.layouts", "pad", padded_with_zeros),
    **{
        f"{name}/{of}": instead(module, "transform", other_signs)
        for name in ("hadamard-columns", "hadamard-column-amax")
        for of, module in (("golden", "fp4ref.hadamard"), ("torch", "fp4ref_torch.hadamard"))
    },
    "group-members-nvfp4/golden": instead("fp4ref.proof.group_calls", "quantize_grouped", other_member),
    "given-amax/golden": instead("fp4ref.api", "given_amax", any_amax),
    "hadamard-order/golden": replaced("fp4ref.hadamard", "STRIDES", (2, 1, 4, 8)),
    "hadamard-inverse/golden": replaced("fp4ref.hadamard", "STRIDES", (8, 4, 2, 1)),
    **{
        f"hadamard-{name}/torch": instead("fp4ref_torch.hadamard", "_butterfly", lambda right, x: right(x * 4) * 0.25)
        for name in ("order", "inverse")
    },
    "hadamard-interval/formula": instead(bounds, "interval", one_order),
    "sum-interval/formula": replaced(judged, "UNIT", 2.0**-24),
    **{f"random-counters/{of}": replaced(random_source, "Counters", narrow_counters) for of in ("golden", "torch")},
    **{f"random-parts/{of}": replaced(random_source, "Counters", first_block) for of in ("golden", "torch")},
    "count-intervals/formula": instead(binomial, "_largest", lambda right, *given: right(*given) - 1),
    "product-amaxes/golden": instead("fp4ref.model.epilogue", "_row_scaled", by_one_product),
    "product-amaxes/torch": instead("fp4ref_torch.gemm", "finish", other_order),
    "product-additions/golden": instead("fp4ref.model.epilogue", "_cast", twice_rounded),
    "product-additions/torch": instead("fp4ref_torch.gemm", "_cast", cast_twice_in_torch),
    **{f"product-groups/{of}": instead(multiply, "gemm_grouped", last_first) for of in SUBJECTS},
    "bytes-compared/golden": instead(compare, "unequal", without_a_bit),
    **{
        f"padding-compared-{name}/golden": method(layouts.Layout, "compared", compared_otherwise)
        for name in LAYOUTS[1:]
    },
    "flushing-refused/golden": instead("fp4ref.conformance.run.machine", "flush_probe", operands_kept),
    "cases-determined/golden": instead("fp4ref.conformance.families", "case_of", other_bits),
    "quantizer-bytes/torch": instead(
        "fp4ref.te.specifications", "nvfp4", lambda right, **named: right(**named | {"tiles": False})
    ),
    "rows-decoded/torch": columns_first,
    "operand-directions/torch": instead("fp4ref.te.global_scale", "_amax", lambda right, x, direction: right(x, "row")),
    "product-scale/torch": instead("fp4ref.te.finishing", "combined", lambda right, factors: right(factors[::-1])),
    "group-weights/torch": instead("fp4ref.te.module.grouped_function", "general_grouped_gemm", other_weights),
    "directions-given/golden": instead("fp4ref.conformance.subjects.turned_products", "turned", unmoved),
    "shards-sent/torch": padding_sent,
    "group-amax/torch": reduced_by(rows_reduced),
    "master-parts/torch": instead("fp4ref.te.master_weights", "get_distributed_world_size", lambda *given: 1),
}
QUICK = ("cut-nvfp4-2d/golden", "offset-tiled_8x4/golden", "hadamard-order/golden", "row-scaled/golden")


@pytest.mark.parametrize(
    "name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.release) for n in PYTHON_PLACES]
)
def test_a_mistake_of_places_in_python_is_refuted(name, monkeypatch):
    if name.endswith("/torch") or name == "part-cuts/golden":
        pytest.importorskip("torch")
    with monkeypatch.context() as patch:
        patch.setattr(repeats, "_repeats", {})
        PYTHON_PLACES[name](patch)
        assert decided(name).witness


@pytest.mark.release
@pytest.mark.rule("TEL-10")
def test_a_member_that_stays_away_is_refuted(monkeypatch):
    pytest.importorskip("torch")
    with monkeypatch.context() as patch:
        reduced_by(only_with_elements)(patch)
        assert "calls" in decided("group-amax/torch").witness


@pytest.mark.rule("GEM-7", "GEM-8")
@pytest.mark.parametrize("name", ["product-amaxes/golden", "product-additions/golden"])
def test_values_that_tell_no_order_apart_prove_nothing(name, monkeypatch):
    from fp4ref.proof import finishing

    monkeypatch.setattr(finishing, "factors", lambda seed: np.ones(finishing.SIDE, np.float32))
    monkeypatch.setattr(finishing, "ALPHAS", (1.0,))
    assert "told apart" in decided(name).witness
