"""UE4M3, UE5M3 and formats of users: codes against fractions; header, cpu and torch against the golden model."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

import fp4ref
import fp4ref_numerics
from fp4ref import DomainError, registry
from fp4ref.arithmetic import ARITHMETIC
from fp4ref.conformance.oracle import quantizer, rationals
from fp4ref.formats import (
    CUDA_UE5M3,
    E8M0,
    GGML_UE4M3,
    OCP_INT8,
    UE4M3,
    UE5M3,
    Codec,
    Format,
    FormatWithSecondZero,
    Rounding,
)
from fp4ref.formats.codec import _representatives
from fp4ref.registry import Call

CODES = np.arange(256, dtype=np.uint8)
E3M4 = Format("vendor.e3m4", 3, 4, bias=3, codes=128)
INT4 = Format("vendor.int4", 0, 3, bias=0, codes=8, complement=True)
E1M2 = Format("vendor.e1m2", 1, 2, bias=1, codes=8)
E6M1 = Format("vendor.e6m1", 6, 1, bias=31, codes=126, infinity=True)
UNUSUAL = [
    *(OCP_INT8, CUDA_UE5M3, GGML_UE4M3),
    Codec(format=E3M4, nan=(0x7F, 0xFF), sign="negative"),
    Codec(format=INT4, nan=(7, 7), sign="nonzero"),
    Codec(format=INT4, nan=(8, 8), rounding="away"),
    Codec(format=E1M2, nan=(7, 15), sign="not-positive"),
    Codec(format=E1M2, nan=(7, 15), rounding="down", overflow=5),
    Codec(format=E6M1, nan=(0x7F, 0xFF), overflow=0x7E),
    Codec(format=E6M1, nan=(0x7F, 0xFF), rounding="truncate", infinity=0x7E),
]


def read_by_ggml(byte: int) -> Fraction:
    """The value that ggml gives a scale byte: two bytes are tested, then fields are taken."""
    if byte in {0, 0x7F}:
        return Fraction(0)
    exponent, mantissa = byte >> 3 & 15, byte & 7
    return Fraction(mantissa, 512) if exponent == 0 else (1 + Fraction(mantissa, 8)) * Fraction(2) ** (exponent - 7)


@pytest.mark.rule("UE4M3-1")
def test_every_code_of_ue4m3():
    assert [Fraction(float(v)) for v in GGML_UE4M3.decode(CODES)] == [read_by_ggml(byte) for byte in range(256)]
    assert GGML_UE4M3.decode(CODES[:0x7F]).tobytes() == (
        CODES[:0x7F].view(ml_dtypes.float8_e4m3fn).astype(np.float32).tobytes()
    )


@pytest.mark.rule("UE5M3-1")
def test_every_code_of_ue5m3():
    decoded = CUDA_UE5M3.decode(CODES)
    halves = (CODES[:0xF8].astype(np.uint16) << 7).view(np.float16)  # the same fields, and more bits of mantissa
    assert decoded[:0xF8].tobytes() == halves.astype(np.float32).tobytes()
    assert decoded[0xF8:0xFF].tolist() == [65536.0 * (1 + mantissa / 8) for mantissa in range(7)]
    assert np.isnan(decoded[0xFF])


@pytest.mark.rule("UE4M3-2", "UE5M3-2", "UE5M3-3")
@pytest.mark.parametrize("codec", [GGML_UE4M3, CUDA_UE5M3], ids=lambda codec: codec.format.name)
@pytest.mark.parametrize("kind", [ml_dtypes.bfloat16, np.float16])
def test_every_16_bit_scale(codec, kind):
    with np.errstate(invalid="ignore"):  # signaling NaN
        x = np.arange(1 << 15, dtype=np.uint16).view(kind).astype(np.float32)  # a scale is not negative
        values = x.astype(np.float64)
    grid = codec.decode(CODES[: codec.format.codes]).astype(np.float64)
    nan = np.isnan(values)
    got = codec.encode(x)
    assert (got[nan] == codec.nan[0]).all()
    distance = np.abs(np.minimum(values[~nan], grid[-1])[:, None] - grid)  # exact in float64
    nearest = distance == distance.min(axis=1, keepdims=True)
    nearest[:, 1::2] &= nearest.sum(axis=1, keepdims=True) == 1  # of two, the even code
    assert got[~nan].tolist() == nearest.argmax(axis=1).tolist()
    assert [rationals.encode(float(v), codec) for v in values[~nan][::61]] == got[~nan][::61].tolist()


PROGRAM = """
#include <fp4ref/fp4ref.h>
{structs}
template <class C> void tables(const float* x, long count, unsigned char* codes, float* values)
{{
    for (long i = 0; i < count; ++i) codes[i] = (unsigned char)C::encode(x[i]);
    for (unsigned code = 0; code < 256; ++code) values[code] = C::decode(code & ((1u << C::Format::bits) - 1u));
}}
{exports}
"""


@pytest.mark.rule("SPC-6", "SPC-7", "INT8-1", "INT8-2", "INT8-3", "INT8-4", "INT8-5", "UE4M3-1", "UE5M3-1")
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_the_header_computes_every_case_of_every_codec(tmp_path):
    x = _representatives()  # every decision that an encoder can take
    structs = [fp4ref_numerics.lower(with_codec(codec), f"S{i}") for i, codec in enumerate(UNUSUAL)]
    exports = [
        f'extern "C" void t{i}(const float* x, long n, unsigned char* c, float* v) '
        f"{{ tables<S{i}::{part}>(x, n, c, v); }}"
        for i, part in enumerate("Element" if codec.format.signed else "Scale" for codec in UNUSUAL)
    ]
    source, made = tmp_path / "codecs.cpp", tmp_path / "codecs.so"
    source.write_text(PROGRAM.format(structs="\n".join(structs), exports="\n".join(exports)))
    flags = ["-std=c++17", "-O1", "-shared", "-fPIC", "-ffp-contract=off", f"-I{fp4ref_numerics.INCLUDE}"]
    subprocess.run(["g++", *flags, str(source), "-o", str(made)], check=True)
    library = ctypes.CDLL(str(made))
    for i, codec in enumerate(UNUSUAL):
        codes, values = np.empty(x.size, np.uint8), np.empty(256, np.float32)
        pointers = [ctypes.c_void_p(array.ctypes.data) for array in (x, codes, values)]
        library[f"t{i}"](pointers[0], ctypes.c_long(x.size), *pointers[1:])
        mask = (1 << codec.format.bits) - 1
        assert np.array_equal(codes & mask, codec.encode(x)), codec
        assert same_values(values, codec.decode(CODES & mask)), codec


def with_codec(codec: Codec) -> fp4ref.Spec:
    """A specification that has the codec as its element's, or as its scale's."""
    part = "element" if codec.format.signed else "scale"
    return fp4ref.MXFP4.replace(**{"name": "vendor.any", part: codec, "arithmetic": ARITHMETIC["rceil"]})


def same_values(a: np.ndarray, b: np.ndarray) -> bool:
    """True for equal bytes, any NaN for NaN."""
    return np.array_equal(np.isnan(a), np.isnan(b)) and a[~np.isnan(a)].tobytes() == b[~np.isnan(b)].tobytes()


@pytest.mark.rule("SPC-6", "SPC-7", "INT8-1", "INT8-2", "INT8-3", "INT8-4", "INT8-5", "UE4M3-1", "UE5M3-1")
@pytest.mark.parametrize("codec", UNUSUAL, ids=lambda codec: f"{codec.format.name}-{codec.rounding}")
def test_torch_computes_every_case_of_every_codec(codec):
    torch = pytest.importorskip("torch")
    from fp4ref_torch import codecs

    x = _representatives()
    assert np.array_equal(codecs.encode(torch.from_numpy(x), codec).numpy(), codec.encode(x))
    codes = CODES & ((1 << codec.format.bits) - 1)
    assert same_values(codecs.decode(torch.from_numpy(codes), codec.format).numpy(), codec.decode(codes))


UE5M3_SCALES = fp4ref.MXFP4.replace(name="vendor.nvfp4-ue5m3", scale=CUDA_UE5M3, block=(1, 16))
OF_USERS = fp4ref.MXFP4.replace(name="vendor.mx-e3m4", element=UNUSUAL[3], arithmetic=ARITHMETIC["ocp-even"])


def aimed(shape: tuple[int, int], top: int) -> np.ndarray:
    """Numbers on and beside ties of blocks of many sizes, and special ones."""
    rng = np.random.default_rng(shape)
    x = rng.integers(-300, 301, shape) / 128 * np.exp2(rng.integers(-top, top, (shape[0], 1)))
    x = (x * (1 + rng.integers(-1, 2, shape) * 2.0**-23)).astype(np.float32)
    spots = rng.random(shape) < 0.01
    x[spots] = rng.choice(np.float32([np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-45, 3e38]), spots.sum())
    return x


@pytest.mark.rule("CNF-5", "BLK-8", "UE5M3-2", "UE5M3-3", "SPC-7")
@pytest.mark.parametrize("backend", [pytest.param("cpu", marks=pytest.mark.heavy), "torch"])  # cpu compiles each
@pytest.mark.parametrize("spec", [UE5M3_SCALES, OF_USERS], ids=lambda spec: spec.name)
def test_backends_agree_with_the_golden_model(spec, backend):
    for shape, top in (((9, 70), 20), ((64, 130), 120), ((3, 1), 3)):
        x = aimed(shape, top)
        golden = fp4ref.quantize(x, spec, "both", backend="numpy")
        got = fp4ref.quantize(x, spec, "both", backend=backend)
        for direction in ("row", "column"):
            mine, theirs = got.direction(direction)[0], golden.direction(direction)[0]
            assert mine.data.tobytes() == theirs.data.tobytes()
            assert mine.scales.tobytes() == theirs.scales.tobytes()
            values = fp4ref.dequantize(golden, direction=direction, backend="numpy")
            assert fp4ref.dequantize(golden, direction=direction, backend=backend).tobytes() == values.tobytes()


@pytest.mark.rule("UE5M3-2", "BLK-3", "BLK-4")
def test_the_oracle_agrees_with_ue5m3_scales():
    x = aimed((5, 70), 20)
    golden = fp4ref.quantize(x, UE5M3_SCALES, backend="numpy").row
    assert quantizer.differences(golden, quantizer.quantize(x, UE5M3_SCALES, "row")) == ""


@pytest.mark.rule("UE4M3-1", "DEQ-2")
@pytest.mark.parametrize("backend", ["numpy", pytest.param("cpu", marks=pytest.mark.heavy)])
def test_ggml_s_scales_are_read_as_ggml_reads_them(backend):
    q = fp4ref.quantize(np.ones((256, 16), np.float32), "ggml.nvfp4", backend="numpy")
    q.row.scales[:, 0] = CODES
    values = fp4ref.dequantize(q, backend=backend)
    code = int(q.row.data[0, 0]) & 7
    element = Fraction([0, 0.5, 1, 1.5, 2, 3, 4, 6][code])
    assert [Fraction(float(v)) for v in values[:, 0]] == [element * read_by_ggml(byte) for byte in range(256)]


POWERS = Format("vendor.e8", 8, 0, bias=120, codes=240, signed=False)


@pytest.mark.rule("CNF-5")
@pytest.mark.parametrize("name", [name for name in ("cpu", "torch", "cuda") if name in registry.backends()])
@pytest.mark.parametrize(
    ("form", "said"),
    [
        (Format("vendor.e5m0", 5, 0, bias=15, codes=32), "format vendor.e5m0: "),
        (Format("vendor.far", 2, 1, bias=60, codes=8), "format vendor.far: "),
        (POWERS, "format vendor.e8: "),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_a_format_that_a_backend_cannot_compute_is_refused_by_name(name, form, said):
    codec = Codec(format=form, nan=(0, 0), rounding=Rounding.UP if form is POWERS else Rounding.EVEN)
    spec = with_codec(codec)
    (reason,) = registry.backends()[name].unserved(Call("quantize", spec))
    assert reason.startswith(said)
    assert "\n" not in reason


@pytest.mark.rule("SPC-6")
@pytest.mark.parametrize("changes", [{"signed": True}, {"codes": 126}, {"infinity": True, "codes": 127}])
def test_a_second_zero_needs_no_sign_and_the_last_code(changes):
    settings = {"bias": 7, "codes": 127, "signed": False} | changes
    with pytest.raises(DomainError, match=r"format mine: a second zero, need no sign, and the last code for it"):
        FormatWithSecondZero("mine", 4, 3, **settings)


@pytest.mark.rule("GEM-9", "GEM-2", "GEM-60")
def test_products_of_ue4m3_scales_and_refusals():
    x = np.float32([[1, -1, 0.5, 6] * 8])
    q = fp4ref.quantize(x, "ggml.nvfp4", backend="numpy")
    assert fp4ref.gemm(q, q, backend="numpy").item() == 8 * (1 + 1 + 0.25 + 36)
    other = fp4ref.quantize(x, UE5M3_SCALES, backend="numpy")
    with pytest.raises(DomainError, match=r"scales ue5m3, need e4m3 or ue4m3 or e8m0 \[GEM-9\]"):
        fp4ref.gemm(other, other)
    wide = Format("vendor.e6m1_wide", 6, 1, bias=31, codes=128)
    spec = with_codec(Codec(format=wide, nan=(0, 0)))
    wide_q = fp4ref.quantize(x, spec, backend="numpy")
    with pytest.raises(DomainError, match=r"vendor.e6m1_wide under e8m0 spans 64 bits, need at most 62"):
        fp4ref.gemm(wide_q, wide_q)


def test_the_names_are_public():
    assert (fp4ref.UE4M3, fp4ref.UE5M3, E8M0.powers_of_two) == (UE4M3, UE5M3, True)


@pytest.mark.rule("GEM-2")
def test_products_of_longer_numbers_are_refused_by_torch():
    pytest.importorskip("torch")
    import fp4ref_torch
    from fp4ref_torch import wide_sums

    assert fp4ref_torch.SIGNIFICANT == wide_sums.SIGNIFICANT
    form = Format("vendor.e2m5", 2, 5, bias=1, codes=128)
    spec = fp4ref.MXFP4.replace(name="vendor.long", element=Codec(format=form, nan=(0, 0)), scale=GGML_UE4M3)
    (reason,) = fp4ref_torch.BACKEND.unserved(Call("gemm_exact", spec, spec_b=spec))
    assert reason == "format vendor.e2m5: a code times its scale has more than 8 significant bits"
