"""Results as values: equality, the repr, and the table of a notebook."""

from __future__ import annotations

import dataclasses
import pickle
import typing

import numpy as np
import pytest

import fp4ref
from fp4ref.quantized import LayoutName

X = np.random.default_rng(4).standard_normal((128, 64), np.float32)


def test_two_results_are_equal_if_every_byte_is():
    one, two = (fp4ref.quantize(X, "nvfp4", "both", "tiled_128x4") for _ in range(2))
    assert one == two
    assert one is not two
    for direction in ("row", "column"):
        for part in ("data", "scales", "amax"):
            changed = pickle.loads(pickle.dumps(two))
            buffer = getattr(getattr(changed, direction), part).reshape(-1)
            buffer.view(np.uint8)[-1] ^= 1
            assert one != changed, (direction, part)


def test_results_that_differ_in_their_record_are_unequal():
    one = fp4ref.quantize(X, "nvfp4")
    assert one != fp4ref.to_layout(one, "tiled_128x4")
    assert one != dataclasses.replace(one, dtype="bfloat16")
    assert one != fp4ref.quantize(X, "nvfp4", "both")
    assert one != fp4ref.quantize(X[:64], "nvfp4")
    assert one != "nvfp4"
    assert fp4ref.quantize(X, "mxfp4") == fp4ref.quantize(X, "mxfp4")  # without an amax


def test_equality_compares_the_bits_of_an_amax_that_is_not_a_number():
    one = fp4ref.quantize(X, "nvfp4")
    nan = np.float32([np.nan])
    assert dataclasses.replace(one, row=one.row._replace(amax=nan)) == dataclasses.replace(
        one, row=one.row._replace(amax=nan.copy())
    )


def test_the_names_of_layouts_that_editors_complete_are_registered():
    names = typing.get_args(typing.get_args(LayoutName)[0])
    assert names
    assert set(names) <= set(fp4ref.LAYOUTS)


def test_a_result_cannot_be_hashed():
    with pytest.raises(TypeError, match="unhashable"):
        hash(fp4ref.quantize(X, "nvfp4"))


def test_a_result_of_torch_equals_that_of_numpy_with_the_same_bytes():
    torch = pytest.importorskip("torch")
    assert fp4ref.quantize(torch.from_numpy(X), "nvfp4") == fp4ref.quantize(X, "nvfp4")


def test_the_repr_is_one_line_without_values():
    text = repr(fp4ref.quantize(X, "nvfp4", "both"))
    assert text == (
        "Quantized(nvfp4, float32 [128, 64], scales linear; "
        f"row: data uint8 [128, 32], scales uint8 [128, 4], amax {float(np.abs(X).max()):.9g}; "
        f"column: data uint8 [64, 64], scales uint8 [64, 8], amax {float(np.abs(X).max()):.9g})"
    )
    rows = fp4ref.quantize(X, "nvfp4-row-scaled")
    assert repr(rows.row) == "DirectionData(data uint8 [128, 32], scales uint8 [128, 4], amax float32 [128])"


def test_a_repeated_call_keeps_the_name_of_its_own_specification():
    names = ["nvfp4", "vendor.a", "vendor.b", "nvfp4"]
    specs = [fp4ref.NVFP4.replace(name=name) for name in names]
    assert [fp4ref.quantize(X, spec).spec.name for spec in specs] == names


def test_a_notebook_shows_a_table_whose_names_are_escaped():
    spec = fp4ref.NVFP4.replace(name="vendor.<b>")
    table = fp4ref.quantize(X, spec)._repr_html_()
    assert "vendor.&lt;b&gt;" in table
    assert "<tr><th>row scales</th><td>uint8 [128, 4]</td></tr>" in table
