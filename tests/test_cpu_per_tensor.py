"""8-bit floats under one scale on the cpu backend: scales, codes and values by NumPy's casts and te's steps."""

from __future__ import annotations

import itertools
from functools import partial

import ml_dtypes
import numpy as np
import pytest

import fp4ref
from fp4ref import registry, repeats
from fp4ref.errors import DTypeError, ShapeError
from fp4ref.registry import Call

torch = pytest.importorskip("torch", exc_type=ImportError)
from fp4ref import te  # noqa: E402
from fp4ref.te import cast, per_tensor  # noqa: E402

operations = pytest.importorskip("fp4ref_cpu.operations")

ELEMENTS = {"mxfp8-e4m3": ml_dtypes.float8_e4m3fn, "mxfp8-e5m2": ml_dtypes.float8_e5m2}
FP8 = {"mxfp8-e4m3": te.DType.kFloat8E4M3, "mxfp8-e5m2": te.DType.kFloat8E5M2}
DTYPES = {"float32": np.float32, "bfloat16": ml_dtypes.bfloat16, "float16": np.float16}
DRAWN = np.random.default_rng(6).integers(0, 1 << 32, 60, np.uint32).view(np.float32)
SCALES = np.float32([1, 0.3, 3e5, 1e-5, 1.5e-42, 3e38, np.inf, np.nan, 0, -7, *DRAWN])


@pytest.fixture(autouse=True)
def none_remembered(monkeypatch):
    monkeypatch.setattr(repeats, "_repeats", {})


def to_torch(x):
    return torch.from_numpy(x.view(np.int16)).view(torch.bfloat16) if x.dtype == ml_dtypes.bfloat16 else torch.tensor(x)


@pytest.mark.sampled(3)
@pytest.mark.rule("TEL-21", "E4M3-2", "E4M3-3", "E4M3-5", "E5M2-2", "E5M2-3", "E5M2-5")
@pytest.mark.parametrize("name", ELEMENTS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_codes_of_every_number_of_16_bits(name, dtype):
    element, patterns = ELEMENTS[name], np.arange(1 << 16, dtype=np.uint16)
    largest = float(ml_dtypes.finfo(element).max)
    x = patterns.view(ml_dtypes.bfloat16 if dtype == "float32" else DTYPES[dtype]).astype(DTYPES[dtype])
    for scale in SCALES:
        with np.errstate(all="ignore"):
            y = x.astype(np.float32) * scale
            expected = np.clip(y, -largest, largest).astype(element).view(np.uint8)
        expected[np.isnan(y)] = 0x7F
        call = Call("tensor_codes", fp4ref.profiles[name], dtype, shape=(1, x.size))
        got = operations.tensor_codes(call, x[None], np.float32([scale]))
        assert got.tobytes() == expected.tobytes(), scale


@pytest.mark.rule("TEL-8", "DEQ-2", "DEQ-3")
@pytest.mark.parametrize("name", ELEMENTS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_values_of_every_code(name, dtype):
    codes = np.resize(np.arange(256, dtype=np.uint8), (3, 511))
    call = Call("tensor_decode", fp4ref.profiles[name], to=dtype, shape=codes.shape)
    again = operations.bind_tensor_decode(call, codes, np.float32([1]))
    word = np.uint32 if dtype == "float32" else np.uint16
    for scale in SCALES:
        with np.errstate(all="ignore"):
            meant = (codes.view(ELEMENTS[name]).astype(np.float32) * scale).astype(DTYPES[dtype])
        nan = np.isnan(meant)
        for got in (operations.tensor_decode(call, codes, np.float32([scale])), again(codes, np.float32([scale]))):
            assert got.dtype == meant.dtype
            assert np.array_equal(np.isnan(got), nan)
            assert np.array_equal(got.view(word)[~nan], meant.view(word)[~nan]), scale


def tensors(dtype):
    """Tensors of many sizes and magnitudes, with few infinities and NaN, and of those alone."""
    rng = np.random.default_rng(21)
    for shape, power in itertools.product([(1, 1), (3, 5), (7, 73), (16, 32), (41, 100), (400, 512)], (0, -20, 12)):
        yield to_torch((rng.standard_normal(shape) * 2.0**power).astype(DTYPES[dtype]))
    for special in ((0.0,), (-0.0,), (np.inf,), (np.nan,), (np.nan, 0.0), (np.nan, -2.5), (-np.inf, np.nan, 1.0)):
        yield to_torch(np.resize(np.array(special, np.float32), (5, 16)).astype(DTYPES[dtype]))
    for bits in (1, 5, 0x3F, 0x7F):  # subnormal numbers
        yield (
            torch.full((4, 24), bits, dtype=torch.int16)
            .view(getattr(torch, "float16" if dtype == "float16" else "bfloat16"))
            .to(getattr(torch, dtype))
        )


@pytest.mark.rule("TEL-21", "TEL-61", "TEL-62", "TEL-63", "TEL-64")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ELEMENTS)
def test_current_scaling_by_one_call_is_that_of_the_steps(name, dtype, monkeypatch):
    for x, least, power in itertools.product(tensors(dtype), (0.0, 0.01, 1e-42), (False, True)):
        quantizer = te.Float8CurrentScalingQuantizer(FP8[name], force_pow_2_scales=power, amax_epsilon=least)
        with monkeypatch.context() as steps:
            steps.setattr(cast, "codes_in_one_pass", lambda *_: None)
            steps.setattr(per_tensor, "server", lambda *_, **__: None)
            codes, inverse = quantizer._by_steps(x)
        for _ in range(2):  # the second one repeats the first
            made = quantizer(x.clone())
            assert torch.equal(made._data, codes)
            assert torch.equal(made._scale_inv.view(torch.int32), inverse.view(torch.int32))


@pytest.mark.rule("TEL-8")
def test_one_call_quantizes_and_another_decodes(monkeypatch):
    served = []

    def counted(bind, call, *given):
        served.append(call.operation)
        return bind(call, *given)

    for name in ("bind_tensor_quantize", "bind_tensor_decode"):
        monkeypatch.setattr(operations, name, partial(counted, getattr(operations, name)))
    quantizer = te.Float8CurrentScalingQuantizer()
    for shape in ((32, 48), (2, 16, 48), (48,), (32, 48)):
        x = torch.randn(shape).bfloat16()
        made = quantizer(x)
        want = (made._data.view(torch.float8_e4m3fn).float() * made._scale_inv).bfloat16()
        assert torch.equal(made.dequantize(), want)
        assert torch.equal(quantizer(x).dequantize(), want)
    assert served == ["tensor_quantize", "tensor_decode"] * 3
    assert torch.equal(quantizer(x.t()).dequantize(), made.dequantize().t())


def test_a_tensor_at_an_odd_address_is_copied():
    bytes_ = np.frombuffer(b"\0" + np.arange(64, dtype=np.float32).tobytes(), np.uint8)
    odd = bytes_[1:].view(np.float32).reshape(4, 16)
    call = Call("tensor_quantize", fp4ref.MXFP8_E4M3, "float32", shape=odd.shape)
    again = operations.bind_tensor_quantize(call, odd.copy(), 0.0, False)
    want = operations.tensor_quantize(call, odd.copy(), 0.0, False)
    for got in (operations.tensor_quantize(call, odd, 0.0, False), again(odd)):
        assert [part.tobytes() for part in got] == [part.tobytes() for part in want]


def test_other_types_and_shapes_are_refused():
    spec, x = fp4ref.MXFP8_E4M3, np.zeros((4, 16), np.float32)
    quantizes = Call("tensor_quantize", spec, "float32", shape=x.shape)
    decodes = Call("tensor_decode", spec, to="bfloat16", shape=x.shape)
    codes, one = x.astype(np.uint8), np.ones(1, np.float32)
    for error, bad in (
        (DTypeError, lambda: operations.tensor_quantize(quantizes, codes, 0.0, False)),
        (ShapeError, lambda: operations.tensor_quantize(quantizes, x[:2], 0.0, False)),
        (DTypeError, lambda: operations.tensor_codes(quantizes, x, one.astype(np.float64))),
        (ShapeError, lambda: operations.tensor_codes(quantizes, x, np.ones(2, np.float32))),
        (DTypeError, lambda: operations.tensor_decode(decodes, x, one)),
        (ShapeError, lambda: operations.tensor_decode(decodes, codes, one[:0])),
    ):
        with pytest.raises(error, match=r"\[TEL-(8|21)\]"):
            bad()
    assert registry.offers(quantizes, "cpu")


def test_threads_share_a_large_tensor():
    x = np.random.default_rng(3).standard_normal((700, 1030)).astype(np.float32)
    call = Call("tensor_quantize", fp4ref.MXFP8_E5M2, "float32", shape=x.shape)
    codes, inverse = operations.tensor_quantize(call, x, 0.0, False)
    scale = np.float32(57344) / np.abs(x).max()
    assert inverse[0] == 1 / scale
    assert codes.tobytes() == np.clip(x * scale, -57344, 57344).astype(ml_dtypes.float8_e5m2).tobytes()
