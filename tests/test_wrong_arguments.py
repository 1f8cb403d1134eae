"""Arguments of a wrong kind end in one line that names the operation, what it got and what it needs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fp4ref
from fp4ref.errors import FileError

X = np.ones((4, 32), np.float32)
MASKED = np.ma.masked_array(X, mask=X > 0)
Q = fp4ref.quantize(X, "nvfp4")


def quantized(**arguments: Any) -> Any:
    return fp4ref.quantize(**{"x": X, "spec": "nvfp4"} | arguments)


def grouped(**arguments: Any) -> Any:
    return fp4ref.quantize_grouped(**{"x": X, "splits": [2, 2], "spec": "nvfp4"} | arguments)


@pytest.mark.rule("NUM-3", "GLB-4", "SR-1", "LAY-7", "LAY-8", "BLK-8", "SPC-3", "SPC-4", "GEM-12")
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: fp4ref.dequantize(X), "dequantize: q of type ndarray, need a result of quantize"),
        (lambda: fp4ref.dequantize(None), "dequantize: q of type NoneType, need a result of quantize"),
        (lambda: fp4ref.to_layout(X, "linear"), "to_layout: q of type ndarray"),
        (lambda: fp4ref.gemm(X, Q), "gemm: a of type ndarray"),
        (lambda: fp4ref.gemm(Q, None), "gemm: b of type NoneType"),
        (lambda: fp4ref.gemm_grouped(None, [Q]), "gemm_grouped: a of type NoneType, need a list"),
        (lambda: fp4ref.gemm_grouped([Q], Q), "gemm_grouped: b of type Quantized, need a list"),
        (lambda: quantized(x=None), "quantize: None, need a NumPy, torch or DLPack array"),
        (lambda: quantized(x=[[1.0]]), "quantize: an object of type list"),
        (lambda: quantized(x=MASKED), "quantize: a masked array"),
        (lambda: quantized(x=X.astype(object)), "quantize: dtype object"),
        (lambda: quantized(out=X), "quantize: out of type ndarray"),
        (lambda: quantized(out=Q, noop="a"), "quantize: noop: an object of type str"),
        (lambda: quantized(amax=1e300), "quantize: amax 1e[+]300, need a number that float32 holds"),
        (lambda: quantized(amax=10**5000), "quantize: amax of 16610 bits"),
        (lambda: quantized(amax=-1e-50), "quantize: amax -1e-50, need >= 0"),
        (lambda: quantized(amax=float("nan")), "quantize: amax nan"),
        (lambda: quantized(amax=[3.0]), "quantize: amax of type list, need a number or an array"),
        (lambda: quantized(amax=MASKED[0, :1]), "quantize: amax: a masked array"),
        (lambda: quantized(spec="nvfp4-2d", random_bits=3), "quantize: random_bits for nvfp4-2d"),
        (lambda: quantized(spec=None), "profile: unknown name None"),
        (lambda: quantized(directions=None), "quantize: direction None"),
        (lambda: quantized(scale_layout=["linear"]), r"scale_layout: \['linear'\], need one of"),
        (lambda: fp4ref.dequantize(Q, out=3), "dequantize: out: an object of type int"),
        (lambda: grouped(x=None), "quantize_grouped: None"),
        (lambda: grouped(splits=None), "quantize_grouped: splits None, need a sequence of integers"),
        (lambda: grouped(splits=[2.0, 2.0]), r"quantize_grouped: splits \[2.0, 2.0\]"),
        (lambda: grouped(amax=[1, 2]), "quantize_grouped: amax: an object of type list"),
        (lambda: fp4ref.from_json(3), "spec: text that is not JSON"),
    ],
)
def test_a_wrong_kind_of_argument_is_told_in_one_line(call, message):
    with pytest.raises(fp4ref.Fp4Error, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)


@pytest.mark.rule("GLB-4")
def test_an_infinite_amax_is_a_number_that_float32_holds():
    assert np.isinf(quantized(amax=float("inf")).row.amax[0])


@pytest.mark.rule("NUM-3")
def test_torch_tensors_without_dense_values_are_refused():
    torch = pytest.importorskip("torch")
    with pytest.raises(fp4ref.DTypeError, match="quantize: a sparse_coo tensor, need a dense one"):
        fp4ref.quantize(torch.ones(4, 32).to_sparse(), "nvfp4")
    with pytest.raises(fp4ref.DTypeError, match="on the device meta"):
        fp4ref.quantize(torch.ones(4, 32, device="meta"), "nvfp4")


def test_an_error_that_tells_another_one_names_their_rule_once():
    inner = FileError("header", "2^40 bytes", "what the file has", "CKP-1")
    assert str(FileError("lint", str(inner), rule="CKP-1")) == f"lint: {inner}"
    assert str(FileError("lint", str(inner), rule="CKP-2")) == f"lint: {inner} [CKP-2]"
    assert str(FileError("lint", str(inner))) == f"lint: {inner}"
