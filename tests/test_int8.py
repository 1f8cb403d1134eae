"""MXINT8: every code and every 16-bit input against integers, and tensors against the oracle."""

from __future__ import annotations

from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

import fp4ref
from fp4ref import DomainError, registry
from fp4ref.conformance.oracle import quantizer
from fp4ref.formats import OCP_INT8, Format
from fp4ref.registry import Call


@pytest.mark.rule("INT8-1")
def test_every_code_is_its_number_over_64():
    codes = np.arange(256, dtype=np.uint8)
    assert OCP_INT8.decode(codes).tolist() == (codes.view(np.int8) / 64).tolist()


@pytest.mark.rule("INT8-2", "INT8-3", "INT8-4")
@pytest.mark.parametrize("kind", [ml_dtypes.bfloat16, np.float16])
def test_every_16_bit_input(kind):
    values = np.arange(1 << 16, dtype=np.uint16).view(kind).astype(np.float32)
    nan = np.isnan(values)
    got = OCP_INT8.encode(values)
    assert (got[nan] == 0x7F).all()
    counted = np.rint(np.clip(values[~nan].astype(np.float64) * 64, -127, 127))  # exact, ties to even
    assert got[~nan].view(np.int8).tolist() == counted.tolist()
    assert 0x80 not in got


@pytest.mark.rule("INT8-1", "INT8-2", "INT8-3", "INT8-4")
def test_the_examples_of_the_rules():
    inputs = np.float32([1 / 128, 3 / 128, -1 / 128, -3 / 128, 1, -1, -0.0, 255 / 128, 2, np.inf, -2, -np.inf, np.nan])
    assert OCP_INT8.encode(inputs).tobytes() == bytes.fromhex("00 02 00 fe 40 c0 00 7f 7f 7f 81 81 7f")
    assert OCP_INT8.decode(np.uint8([0x7F, 0x81, 0x80])).tolist() == [127 / 64, -127 / 64, -2]


@pytest.mark.rule("INT8-2", "INT8-3", "MXS-2", "DEQ-2")
@pytest.mark.parametrize("direction", ["row", "column"])
def test_tensors_against_rationals_and_the_oracle(direction):
    rng = np.random.default_rng(7)
    x = (rng.integers(-300, 301, (5, 70)) / 128 * np.exp2(rng.integers(-40, 40, (5, 1)))).astype(np.float32)
    x[1, 3], x[2, 5], x[3] = -0.0, np.inf, 0
    q = fp4ref.quantize(x, "mxint8", direction)
    data, _ = q.direction(direction)
    assert quantizer.differences(data, quantizer.quantize(x, fp4ref.MXINT8, direction)) == ""
    matrix = x if direction == "row" else x.T
    row = next(i for i, line in enumerate(matrix) if np.isfinite(line).all() and line.any())
    block = [Fraction(float(v)) for v in matrix[row, :32]]
    largest = max(map(abs, block))
    exponent = next(e for e in range(-149, 128) if Fraction(2) ** e <= largest < Fraction(2) ** (e + 1))
    assert data.scales[row, 0] == exponent + 127
    codes = [max(-127, min(127, round(v * 64 / Fraction(2) ** exponent))) for v in block]  # round: ties to even
    assert data.data[row, :32].view(np.int8).tolist() == codes
    values = fp4ref.dequantize(q, direction=direction)
    assert [Fraction(float(v)) for v in values[row, :32]] == [c * Fraction(2) ** exponent / 64 for c in codes]


HARD = np.float32([np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-45, 3e38, -1e-38])


@pytest.mark.rule("CNF-5", "INT8-1", "INT8-2", "INT8-3", "INT8-4", "INT8-5", "MXS-2", "DEQ-2")
@pytest.mark.parametrize("backend", ["cpu", "torch"])
def test_backends_agree_bit_for_bit(backend):
    rng = np.random.default_rng(3)
    for shape in ((5, 7), (9, 33), (64, 130), (1, 513), (3, 2048)):
        x = rng.integers(-300, 301, shape) / 128 * np.exp2(rng.integers(-130, 120, (shape[0], 1)))
        x = (x * (1 + rng.integers(-1, 2, shape) * 2.0**-23)).astype(np.float32)
        spots = rng.random(shape) < 0.02
        x[spots] = rng.choice(HARD, spots.sum())
        golden = fp4ref.quantize(x, "mxint8", "both", backend="numpy")
        got = fp4ref.quantize(x, "mxint8", "both", backend=backend)
        for direction in ("row", "column"):
            mine, theirs = got.direction(direction)[0], golden.direction(direction)[0]
            assert mine.data.tobytes() == theirs.data.tobytes()
            assert mine.scales.tobytes() == theirs.scales.tobytes()


@pytest.mark.rule("INT8-1", "E8M0-4", "DEQ-2")
@pytest.mark.parametrize("backend", ["cpu", "torch"])
def test_every_code_under_every_scale(backend):
    q = fp4ref.quantize(np.zeros((256, 256), np.float32), "mxint8", backend="numpy")
    q.row.data[:] = np.arange(256, dtype=np.uint8)
    q.row.scales[:] = np.arange(256, dtype=np.uint8)[:, None]
    expected = fp4ref.dequantize(q, backend="numpy")
    assert fp4ref.dequantize(q, backend=backend).tobytes() == expected.tobytes()


@pytest.mark.rule("CNF-5")
def test_the_cuda_backend_lowers_it():
    if "cuda" not in registry.backends():
        pytest.skip("not installed")
    for operation in ("quantize", "dequantize"):
        assert registry.backends()["cuda"].unserved(Call(operation, fp4ref.MXINT8)) == []


@pytest.mark.rule("GEM-2", "INT8-1")
@pytest.mark.parametrize("backend", ["torch", pytest.param("cpu", marks=pytest.mark.heavy)])
@pytest.mark.parametrize("mode", ["exact", "blockwise"])
def test_products_agree_bit_for_bit(backend, mode):
    rng = np.random.default_rng(4)
    a, b = (fp4ref.quantize(rng.normal(size=(7, 96)).astype(np.float32), "mxint8", backend="numpy") for _ in range(2))
    a.row.data[0, :5] = 0x80  # -2, which no encoder writes
    expected = fp4ref.gemm(a, b, mode, backend="numpy")
    assert fp4ref.gemm(a, b, mode, backend=backend).tobytes() == expected.tobytes()


@pytest.mark.rule("SPC-6")
def test_two_s_complement_needs_a_sign_and_all_codes():
    with pytest.raises(DomainError, match=r"format mine: two's complement, need a sign, no exponent, no specials"):
        Format("mine", 0, 7, bias=0, codes=127, complement=True)


def test_the_products_of_numbers():
    a = np.float32([[1, -1, 0.5, 127 / 64] * 8])
    q = fp4ref.quantize(a, "mxint8")
    assert fp4ref.gemm(q, q).item() == 8 * (1 + 1 + 0.25 + (127 / 64) ** 2)
