"""Rules that were parts or reasons of others: no tensor, no buffer, no type; NaN in maxima and values in errors."""

from __future__ import annotations

import re

import numpy as np
import pytest

import fp4ref
from fp4ref import formats
from fp4ref.errors import Fp4Error
from fp4ref.standard.tables import codes_of, number_of
from standard_rules import rows_of

F = np.float32


@pytest.mark.rule("NUM-12")
@pytest.mark.example("NUM-12")
def test_a_tensor_without_dimensions():
    for shape, result in rows_of("NUM-12"):
        x = np.ones([int(size) for size in re.findall(r"\d+", shape)], F)
        if result == "refused":
            with pytest.raises(Fp4Error, match=r"\[NUM-12\]$"):
                fp4ref.quantize(x, "mxfp4")
        else:
            assert fp4ref.quantize(x, "mxfp4").row.data.shape == (1, 1)


@pytest.mark.rule("NUM-13", "NUM-7")
@pytest.mark.example("NUM-13")
def test_a_view_as_a_buffer():
    torch = pytest.importorskip("torch")
    (plain, filled), (view, refused) = rows_of("NUM-13")
    t = torch.zeros([int(size) for size in re.search(r"\[(.*)\]", plain)[1].split(", ")])
    q = fp4ref.quantize(torch.ones_like(t), "mxfp4")
    assert (filled, fp4ref.dequantize(q, out=t).tolist()) == ("filled", [[1.0] * t.shape[1]])
    assert (view, refused) == ("`torch._neg_view(t)`", "refused")
    with pytest.raises(Fp4Error, match=r"\[NUM-13\]$"):
        fp4ref.dequantize(q, out=torch._neg_view(t))


@pytest.mark.rule("DEQ-7", "GEM-19")
@pytest.mark.example("DEQ-7")
def test_types_of_outputs():
    q = fp4ref.quantize(np.ones((1, 16), F), "nvfp4")
    for cell, result in rows_of("DEQ-7"):
        for name in re.findall("`(.*?)`", cell):
            if result == "refused":
                with pytest.raises(Fp4Error, match=r"\[DEQ-7\]$"):
                    fp4ref.dequantize(q, name)
                with pytest.raises(Fp4Error, match=r"\[GEM-19\]$"):
                    fp4ref.gemm(q, q, dtype=name)
            else:
                assert fp4ref.dequantize(q, name).dtype == name
    assert fp4ref.dequantize(q).dtype == F


@pytest.mark.rule("BLK-16")
@pytest.mark.example("BLK-16")
def test_maxima_beside_a_nan():
    x = np.zeros((1, 32), F)
    x[0, 0], x[0, 16] = np.nan, 3
    ways = {name: cells for name, *cells in rows_of("BLK-16")}
    for name, amax, scales in rows_of("BLK-16", 1):
        of_block, of_tensor = (cell.startswith("NaN") for cell in ways[name])
        q = fp4ref.quantize(x, fp4ref.NVFP4.replace(amax=name.strip("`")), backend="numpy").row
        assert np.isnan(q.amax[0]) == (amax == "NaN") == of_tensor
        assert of_tensor or q.amax[0] == number_of(amax)
        assert q.scales.ravel().tolist() == codes_of(scales)
        assert (q.scales[0, 0] != 0) == of_block
    assert {fp4ref.profiles[name.strip("`")].amax.value for name, *_ in rows_of("SPC-8")} == {"ignore-nan"}


@pytest.mark.rule("FOS-9", "FOS-3")
@pytest.mark.example("FOS-9")
def test_values_of_codes_in_errors():
    own = fp4ref.NVFP4_4OVER6.element
    for words, y, q in rows_of("FOS-9"):
        picked = re.search("the (overflow|infinity) code (.)", words)
        changed = {picked[1]: int(picked[2], 16)} if picked else {}
        if "sign" in words:
            changed = {"sign": re.search("sign `(.*?)`", words)[1]}
        codec = formats.Codec(**{"format": own.format, "nan": own.nan} | changed)
        got = codec.nearest(F([float(y)]))
        assert np.isnan(got[0]) if q == "NaN" else got.tobytes() == F([float(q)]).tobytes(), words
