"""Formats of 6 bits, the standard's and those that users add: against rationals, ml_dtypes, and between backends."""

from __future__ import annotations

from fractions import Fraction
from functools import cache
from itertools import product

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fp4ref
from compiled import together
from fp4ref import BackendError, DomainError, packing, registry
from fp4ref.arithmetic import ARITHMETIC
from fp4ref.conformance.judge.compare import compare
from fp4ref.conformance.oracle import quantizer
from fp4ref.diagrams.place import Geometry
from fp4ref.formats import CUDA_E2M3, CUDA_E3M2, CUDA_E8M0, E2M1, E2M3, E3M2, Codec, Format
from fp4ref.registry import Call

LARGEST = {"e2m3": Fraction(15, 2), "e3m2": Fraction(28)}
EMAX = {"e2m3": 2, "e3m2": 4}


def spec_of(form: Format) -> fp4ref.Spec:
    """MXFP6 by the floor rule of OCP."""
    return fp4ref.Spec(
        name=f"vendor.mx-{form.name}",
        element=Codec(format=form, nan=(0x1F, 0x1F)),
        scale=CUDA_E8M0,
        block=(1, 32),
        global_scale="none",
        arithmetic=ARITHMETIC["ocp-floor"],
    )


SPECS = [spec_of(E2M3), spec_of(E3M2)]


@pytest.fixture(autouse=True, scope="module")
def compiled_for_this_file():
    """Compile what the tests of rationals call, several functions per library."""
    kinds = [{"operation": "quantize"}, *({"operation": "dequantize", "to": to} for to in ("float32", "bfloat16"))]
    together(Call(spec=spec, **kind) for spec in SPECS for kind in kinds)


@cache
def value(code: int, name: str) -> Fraction:
    """Read a code: sign, exponent, mantissa, subnormals below exponent 1."""
    exponent_bits, mantissa_bits, bias = int(name[1]), int(name[3]), {"e2m3": 1, "e3m2": 3}[name]
    sign, rest = divmod(code, 32)
    exponent, mantissa = divmod(rest, 2**mantissa_bits)
    assert exponent < 2**exponent_bits
    leading = Fraction(mantissa, 2**mantissa_bits) + (1 if exponent else 0)
    return (-1) ** sign * leading * Fraction(2) ** (max(exponent, 1) - bias)


def nearest(x: Fraction, negative: bool, name: str) -> int:
    """The closest code; of two equally close ones the even one; beyond the largest, the largest."""
    code = min(range(32), key=lambda c: (abs(abs(x) - value(c, name)), c % 2))
    return code + 32 * negative


def scale_byte(amax: Fraction, name: str) -> int:
    """The byte of 2^(floor(log2(amax)) - emax), the least if amax is 0."""
    if not amax:
        return 0
    exponent = -149
    while Fraction(2) ** (exponent + 1) <= amax:
        exponent += 1
    return min(max(exponent - EMAX[name] + 127, 0), 254)


def stream(codes: list[int]) -> bytes:
    """Six bits after six bits, each code's low bit first, as text of a number read backwards."""
    text = "".join(f"{code:06b}" for code in reversed(codes))
    return int(text or "0", 2).to_bytes(-(-6 * len(codes) // 8), "little")


@pytest.mark.rule("PACK-4", "PACK-5")
def test_the_bytes_of_the_rules():
    assert packing.pack(np.uint8([[1, 2, 3, 4]]), E2M3).tobytes().hex() == "813010"
    assert packing.pack(np.uint8([[0x3F]]), E3M2).tobytes().hex() == "3f"
    assert packing.pack(np.uint8([[0x3F, 0x3F]]), E3M2).tobytes().hex() == "ff0f"
    assert packing.unpack(np.uint8([[0xFF, 0xFF]]), 2, E3M2).tolist() == [[0x3F, 0x3F]]  # spare bits are ignored


@pytest.mark.rule("PACK-4", "PACK-5")
@given(rows=st.integers(1, 3), columns=st.integers(0, 21), data=st.data())
def test_packing_is_a_stream_of_bits_and_unpacking_its_inverse(rows, columns, data):
    row = st.lists(st.integers(0, 63), min_size=columns, max_size=columns)
    drawn = data.draw(st.lists(row, min_size=rows, max_size=rows))
    codes = np.array(drawn, np.uint8).reshape(rows, columns)
    packed = packing.pack(codes, E2M3)
    assert [line.tobytes() for line in packed] == [stream(line) for line in drawn]
    assert np.array_equal(packing.unpack(packed, columns, E2M3), codes)


@pytest.mark.rule("PACK-4", "PACK-5", "BLK-8", "DEQ-2")
@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.element.format.name)
@pytest.mark.parametrize("direction", ["row", "column"])
def test_quantize_and_dequantize_against_rationals(spec, direction):
    name = spec.element.format.name
    rng = np.random.default_rng(6)
    x = (rng.integers(-64, 65, (5, 75)) / 8 * np.exp2(rng.integers(-3, 3, (5, 1)))).astype(np.float32)
    x[2, 3], x[3] = -0.0, 0
    x[4, :40] = np.float32(LARGEST[name]) * np.float32([1, -1] * 20)
    matrix = x if direction == "row" else x.T
    q = fp4ref.quantize(x, spec, direction)  # by default dispatch, which skips what does not serve the format
    data, (rows, columns) = q.direction(direction)
    values = fp4ref.dequantize(q, direction=direction)
    assert data.data.shape == (rows, -(-6 * columns // 8))
    for i in range(rows):
        codes = []
        for left in range(0, columns, 32):
            block = [Fraction(float(v)) for v in matrix[i, left : left + 32]]
            byte = scale_byte(max(map(abs, block)), name)
            scale = Fraction(2) ** (byte - 127)
            assert data.scales[i, left // 32] == byte
            signs = np.signbit(matrix[i, left : left + 32])
            own = [nearest(v / scale, bool(s), name) for v, s in zip(block, signs, strict=True)]
            assert [Fraction(float(v)) for v in values[i, left : left + 32]] == [value(c, name) * scale for c in own]
            codes += own
        assert data.data[i].tobytes() == stream(codes), i
    assert fp4ref.dequantize(q, "bfloat16", direction).dtype == ml_dtypes.bfloat16


@pytest.mark.rule("CNF-5")
@pytest.mark.parametrize("name", [name for name in ("cpu", "torch", "cuda") if name in registry.backends()])
def test_formats_that_a_backend_cannot_compute_are_refused_by_name_in_one_line(name):
    form = Format("vendor.e2m3", exponent_bits=2, mantissa_bits=3, bias=60, codes=32)
    (reason,) = registry.backends()[name].unserved(Call("quantize", spec_of(form)))
    assert reason.startswith("format vendor.e2m3: ")
    if registry.available() and dict(registry.available())[name]:
        return  # the backend cannot run here, which is then the message
    x = np.ones((2, 32), np.float32)
    q = fp4ref.quantize(x, spec_of(form), backend="numpy")
    for call in (
        lambda: fp4ref.quantize(x, spec_of(form), backend=name),
        lambda: fp4ref.dequantize(q, backend=name),
        lambda: fp4ref.gemm(q, q, backend=name),
    ):
        with pytest.raises(BackendError, match=f"on backend {name}: format vendor.e2m3: ") as failure:
            call()
        assert "\n" not in str(failure.value)


CODECS = {
    "e2m3": (CUDA_E2M3, ml_dtypes.float6_e2m3fn),
    "e3m2": (CUDA_E3M2, ml_dtypes.float6_e3m2fn),
}


@pytest.mark.rule("E2M3-1", "E3M2-1")
@pytest.mark.parametrize("name", CODECS)
def test_every_code_is_what_its_fields_and_ml_dtypes_say(name):
    codec, third = CODECS[name]
    codes = np.arange(64, dtype=np.uint8)
    decoded = codec.decode(codes)
    assert [Fraction(float(v)) for v in decoded] == [value(int(code), name) for code in codes]
    assert decoded.tobytes() == codes.view(third).astype(np.float32).tobytes()


@pytest.mark.rule("E2M3-2", "E2M3-3", "E2M3-4", "E3M2-2", "E3M2-3", "E3M2-4")
@pytest.mark.parametrize("name", CODECS)
@pytest.mark.parametrize("kind", [ml_dtypes.bfloat16, np.float16])
def test_every_16_bit_input(name, kind):
    codec, third = CODECS[name]
    values = np.arange(1 << 16, dtype=np.uint16).view(kind).astype(np.float32)
    got, nan = codec.encode(values), np.isnan(values)
    assert (got[nan] == 0x1F).all()
    inside = np.abs(values) <= float(LARGEST[name])
    assert np.array_equal(got[inside], values[inside].astype(third).view(np.uint8))
    beyond = ~inside & ~nan
    assert np.array_equal(got[beyond], np.where(values[beyond] < 0, 0x3F, 0x1F))
    some = values[~nan & np.isfinite(values)][:: 37 if kind is np.float16 else 61]
    expected = [nearest(Fraction(float(v)), bool(np.signbit(v)), name) for v in some]
    assert codec.encode(some).tolist() == expected


@pytest.mark.rule("E2M3-1", "E2M3-2", "E2M3-3", "E2M3-4", "E3M2-1", "E3M2-2", "E3M2-3", "E3M2-4")
def test_the_examples_of_the_rules():
    above = np.nextafter(np.float32(0.0625), np.float32(1))
    got = CUDA_E2M3.encode(np.float32([0.0625, above, 0.1875, 4.25, 4.75, -0.0, 7.5, 7.75, 1e9, np.inf, -np.inf]))
    assert got.tolist() == [0, 1, 2, 0x18, 0x1A, 0x20, 0x1F, 0x1F, 0x1F, 0x1F, 0x3F]
    above = np.nextafter(np.float32(0.03125), np.float32(1))
    got = CUDA_E3M2.encode(np.float32([0.03125, above, 0.09375, 18, 22, -0.0, 28, 30, 1e9, np.inf, -np.inf]))
    assert got.tolist() == [0, 1, 2, 0x1C, 0x1E, 0x20, 0x1F, 0x1F, 0x1F, 0x1F, 0x3F]
    assert CUDA_E2M3.decode(np.uint8([0, 1, 7, 8, 16, 31])).tolist() == [0, 0.125, 0.875, 1, 2, 7.5]
    assert CUDA_E3M2.decode(np.uint8([0, 1, 3, 4, 12, 31])).tolist() == [0, 0.0625, 0.1875, 0.25, 1, 28]


OWN = [fp4ref.MXFP6_E2M3, fp4ref.MXFP6_E3M2]
HARD = np.float32([np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-45, 3e38, -1e-38])


def aimed(shape, seed: int) -> np.ndarray:
    """Numbers on and beside ties of blocks of many sizes, and some special ones."""
    rng = np.random.default_rng(seed)
    x = rng.integers(-64, 65, shape) / 16 * np.exp2(rng.integers(-130, 120, (shape[0], 1)))
    x = (x * (1 + rng.integers(-1, 2, shape) * 2.0**-23)).astype(np.float32)
    spots = rng.random(shape) < 0.02
    x[spots] = rng.choice(HARD, spots.sum())
    return x


@pytest.mark.rule("PACK-4", "PACK-5", "BLK-10", "MXS-1", "DEQ-2")
@pytest.mark.parametrize("spec", OWN, ids=lambda spec: spec.name)
def test_the_oracle_agrees(spec):
    x = aimed((4, 70), 1)
    for direction in ("row", "column"):
        golden = fp4ref.quantize(x, spec, direction, backend="numpy").direction(direction)[0]
        assert quantizer.differences(golden, quantizer.quantize(x, spec, direction)) == ""


@pytest.mark.rule("CNF-5", "PACK-4", "PACK-5", "BLK-8", "DEQ-2")
@pytest.mark.parametrize("backend", ["cpu", "torch"])
@pytest.mark.parametrize("spec", OWN, ids=lambda spec: spec.name)
@pytest.mark.parametrize("shape", [(3, 1), (5, 7), (9, 33), (64, 130), (1, 513), (3, 2048), (0, 5), (4, 1029)])
def test_backends_agree_bit_for_bit(backend, spec, shape):
    x = aimed(shape, shape[1])
    for source in (x, x.astype(ml_dtypes.bfloat16)):
        golden = fp4ref.quantize(source, spec, "both", backend="numpy")
        got = fp4ref.quantize(source, spec, "both", backend=backend)
        for mine, theirs in ((got.row, golden.row), (got.column, golden.column)):
            assert mine.data.tobytes() == theirs.data.tobytes()
            assert mine.scales.tobytes() == theirs.scales.tobytes()
        for to in ("float32", "bfloat16"):
            values = fp4ref.dequantize(golden, to, backend=backend)
            assert values.tobytes() == fp4ref.dequantize(golden, to, backend="numpy").tobytes()


@pytest.mark.sampled(2)
@pytest.mark.rule("GEM-2", "GEM-4", "PACK-4")
@pytest.mark.parametrize("backend", ["cpu", "torch"])
@pytest.mark.parametrize("spec", OWN, ids=lambda spec: spec.name)
def test_products_agree(backend, spec):
    rng = np.random.default_rng(5)
    a, b = (fp4ref.quantize(rng.standard_normal((n, 77), np.float32), spec) for n in (5, 6))
    for mode in ("exact", "blockwise"):
        expected = fp4ref.gemm(a, b, mode=mode, backend="numpy")
        assert fp4ref.gemm(a, b, mode=mode, backend=backend).tobytes() == expected.tobytes()


@pytest.mark.rule("GEM-2", "PACK-4")
def test_products_of_six_bits_in_the_golden_model():
    x = np.float32([[6, 1, -0.5, 3] * 8])
    q = fp4ref.quantize(x, SPECS[0])
    assert fp4ref.gemm(q, q).item() == 8 * (36 + 1 + 0.25 + 9)


def test_a_format_of_a_known_name_with_other_settings_is_another_one():
    other = Format("e2m1", exponent_bits=2, mantissa_bits=1, bias=2, codes=8)
    assert other != E2M1
    spec = fp4ref.NVFP4.replace(element=Codec(format=other, nan=(7, 7)))
    x = np.random.default_rng(6).standard_normal((8, 64)).astype(np.float32)
    expected = fp4ref.quantize(x, spec, backend="numpy")
    assert expected != fp4ref.quantize(x, fp4ref.NVFP4, backend="numpy")
    for backend in ("cpu", "torch"):
        if dict(registry.available())[backend] is None:
            assert fp4ref.quantize(x, spec, backend=backend).row == expected.row


@pytest.mark.rule("PACK-6")
@pytest.mark.parametrize(("exponent", "mantissa"), [(2, 2), (2, 0), (3, 3), (5, 3)])
def test_codes_of_other_widths_are_refused(exponent, mantissa):
    bits = 1 + exponent + mantissa
    with pytest.raises(DomainError, match=rf"format mine: codes of {bits} bits, need 4, 6 or 8 \[PACK-6\]"):
        Format("mine", exponent, mantissa, bias=1, codes=2)


@pytest.mark.rule("SPC-6")
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"codes": 33}, "33 finite codes, need 2 to 32"),
        ({"codes": 32, "infinity": True}, "32 finite codes, need 2 to 31"),
        ({"codes": 1}, "1 finite codes"),
        ({"codes": 32, "bias": 200}, "bias 200, need values and midpoints of bfloat16"),
        ({"codes": 32, "bias": -130}, "bias -130"),
        ({"codes": 32, "complement": True}, "two's complement"),
    ],
)
def test_formats_that_no_code_expresses_are_refused(settings, message):
    given = {"exponent_bits": 2, "mantissa_bits": 3, "bias": 1} | settings
    with pytest.raises(DomainError, match=f"format mine: {message}"):
        Format("mine", **given)


@pytest.mark.rule("SPC-6")
def test_every_signed_format_of_six_bits_decodes_and_encodes_its_own_values():
    for exponent, infinity in product(range(1, 5), (False, True)):
        form = Format("mine", exponent, 5 - exponent, bias=1, codes=32 - infinity, infinity=infinity)
        codec = Codec(format=form, nan=(0x1F, 0x3F))
        codes = np.arange(64, dtype=np.uint8)
        finite = np.isfinite(codec.decode(codes))
        assert np.array_equal(codec.encode(codec.decode(codes))[finite], codes[finite])


@pytest.mark.rule("SPC-7")
def test_the_codes_of_the_rule():
    codec = SPECS[0].element
    assert codec.encode(np.float32([7.5, 100, 0.0625, -0.1875])).tolist() == [0x1F, 0x1F, 0x00, 0x22]


@pytest.mark.rule("PACK-4")
def test_where_speaks_of_six_bits():
    geometry = Geometry(SPECS[0], (2, 64))
    assert "data byte 50 bits 2 to 7, scale" in geometry.place(1, 3).sentence()
    assert "data byte 0 bits 6 to 7 and, in the next byte, 0 to 3, scale" in geometry.place(0, 1).sentence()
    parts = [[at.element[1] for at in geometry.of_data_byte(byte)] for byte in range(4)]
    assert parts == [[0, 1], [1, 2], [2, 3], [4, 5]]


@pytest.mark.rule("PACK-5", "CNF-1")
def test_bytes_are_compared_with_their_spare_bits():
    x = np.ones((3, 33), np.float32)
    expected = fp4ref.quantize(x, SPECS[0]).row
    assert compare(x, SPECS[0], "row", "linear", expected, expected).equal
    dirty = expected.data.copy()
    dirty[1, -1] |= 0x40  # 33 codes take 198 bits, so bits 6 and 7 of the last byte are spare
    found = compare(x, SPECS[0], "row", "linear", expected._replace(data=dirty), expected)
    assert (found.equal, found.codes, found.spare) == (False, 0, 1)
