from __future__ import annotations

import dataclasses
import functools
import os
import subprocess
import sys
import warnings
from functools import partial
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import compiled
import fp4ref
from covering import by_parts, choices_of_elements, few
from fp4ref import BackendError, DomainError, Quantized, ShapeError, registry
from fp4ref.conformance.families.strategies import DTYPES, matrices, shapes
from fp4ref.formats import STOCHASTIC_E2M1
from fp4ref.layout import STANDARD_LAYOUTS
from fp4ref.quantized import DirectionData, Directions
from fp4ref.registry import Call
from fp4ref.specs import STANDARD
from same_bytes import same_by, whole

LAYOUTS = tuple(form.name for form in STANDARD_LAYOUTS)
BOTH = ("row", "column")
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
STOCHASTIC = fp4ref.NVFP4.replace(name="nvfp4-sr", element=STOCHASTIC_E2M1)
FOUR_OVER_SIX_2D = fp4ref.NVFP4_4OVER6.replace(name="nvfp4-4over6-2d", block=(16, 16))
FOUR_OVER_SIX_ROW = fp4ref.NVFP4_4OVER6.replace(name="nvfp4-4over6-row", global_scale="row")
ODD = fp4ref.NVFP4.replace(name="odd", block=(3, 5))
WIDE = fp4ref.MXFP8_E4M3.replace(name="wide", block=(2, 200))


same = partial(same_by, "cpu")


@pytest.fixture(autouse=True, scope="module")
def backend():
    assert dict(registry.available()).get("cpu", "not registered") is None


def native():
    found = registry.backends()["cpu"].unserved
    return [spec for spec in fp4ref.profiles.values() if not (found(Call("quantize", spec)) or spec.stochastic)]


NATIVE = native() if "cpu" in registry.backends() else []
OURS = (*STANDARD, STOCHASTIC, FOUR_OVER_SIX_2D, FOUR_OVER_SIX_ROW, ODD, WIDE)


def dtypes_of(spec):
    """All for ours; one for each peer, so that not every pair is compiled."""
    if spec.hadamard:
        return (BFLOAT16,)
    return DTYPES if spec in OURS or spec not in NATIVE else (DTYPES[NATIVE.index(spec) % 3],)


def parts(q: Quantized):
    return {
        f"{name}.{field}": value
        for name in BOTH
        if getattr(q, name) is not None
        for field, value in getattr(q, name)._asdict().items()
        if value is not None
    }


def same_values(q: Quantized, dtype, direction, *, inverse_hadamard=False):
    with np.errstate(over="ignore"):
        expected = fp4ref.dequantize(q, dtype, direction, inverse_hadamard, backend="numpy")
    got = fp4ref.dequantize(q, dtype, direction, inverse_hadamard, backend="cpu")
    assert got.shape == expected.shape
    assert got.dtype == expected.dtype
    nan = np.isnan(expected.astype(np.float32)) if inverse_hadamard else np.zeros(expected.shape, bool)
    bits = f"u{expected.itemsize}"
    assert np.array_equal(got.view(bits)[~nan], expected.view(bits)[~nan])
    assert np.isnan(got.astype(np.float32)[nan]).all()


def random_bits(spec, shape, directions, seed=0):
    if not spec.stochastic:
        return None
    draw = np.random.default_rng(seed).integers(0, 256, shape, np.uint8)
    return {"row": draw, "column": draw.T, "both": Directions(draw, draw.T)}[directions]


def results_of(spec, dtype):
    """The types of results that are tried: of a peer one of two, in turn; `test_dequantize_every_code...` tries all."""
    both = sorted({dtype, "float32"})
    return both if spec in OURS or spec not in NATIVE else both[NATIVE.index(spec) // 3 % len(both) :][:1]


def calls_of_a_whole_spec(spec):
    names = [dtype.name for dtype in dtypes_of(spec)]
    direction = "column" if spec.hadamard else "row"
    yield from (Call("quantize", spec, name, direction) for name in names)
    yield from (Call("dequantize", spec, name, direction, to) for name in names for to in results_of(spec, name))


def calls_of_16_bits(spec, dtype):
    return Call("quantize", spec, dtype.name), Call("dequantize", spec, dtype.name, to="float32")


def calls_of_every_code(spec, amax):
    return [Call("dequantize", spec, "bfloat16", to=dtype.name) for dtype in DTYPES]


def of_width(name, block):
    found = {spec.name: spec for spec in STANDARD}.get(name) or fp4ref.profiles[name]
    return found.replace(name=f"{name}-{block}", block=(1, block))


def calls_of_a_width(name, block):
    spec, names = of_width(name, block), [dtype.name for dtype in DTYPES[:2]]
    yield from (Call("quantize", spec, dtype) for dtype in names)
    yield from (Call("dequantize", spec, dtype, to="bfloat16") for dtype in names)


CALLS = {  # of tests that need many functions
    "test_blocks_of_every_width": calls_of_a_width,
    "test_every_native_spec_is_the_models": calls_of_a_whole_spec,
    "test_every_16_bit_input": calls_of_16_bits,
    "test_dequantize_every_code_under_every_scale": calls_of_every_code,
}


@pytest.fixture(autouse=True, scope="module")
def compiled_for_this_file(request, backend):
    """Compile what the selected tests call, several functions per library: half the time."""
    mine = [item for item in request.session.items if getattr(item, "module", None) is request.module]
    of_tests = ((CALLS.get(item.originalname), item) for item in mine)
    calls = [call for calls, item in of_tests if calls for call in calls(**item.callspec.params)]
    registry.get("cpu").prefetch(calls, lambda line: None)


@functools.cache
def patterns(dtype: np.dtype) -> np.ndarray:
    return np.arange(1 << 16, dtype=np.uint16).view(dtype)


def codecs():
    return {spec.element: spec for spec in reversed(NATIVE)}.values()


def own_codecs():
    return [spec for spec in codecs() if spec in STANDARD]


def types_of_16_bits():
    """Yield codecs' specifications with both types of 16 bits; in CI, heavy ones with one of them, by turns."""
    for i, value in enumerate(by_parts(own_codecs(), codecs(), choices_of_elements)):
        heavy = hasattr(value, "marks")
        for j, dtype in enumerate((BFLOAT16, np.dtype(np.float16))):
            marks = [pytest.mark.heavy] * heavy + [pytest.mark.release] * (heavy and (i + j) % 2)
            yield pytest.param(value.values[0] if heavy else value, dtype, marks=marks)


@pytest.mark.rule("E2M1-2", "E2M1-3", "E2M1-4", "E2M1-5", "E2M1-6", "E4M3-2", "E4M3-4", "E5M2-2", "E5M2-4", "NUM-3")
@pytest.mark.parametrize(("spec", "dtype"), [*types_of_16_bits()], ids=lambda value: getattr(value, "name", str(value)))
def test_every_16_bit_input(spec, dtype):
    """Each alone under a maximum that makes the scale 1, and in blocks of 16 neighbours."""
    columns = spec.block.columns
    alone = np.zeros((1 << 16, columns), dtype)
    alone[:, 0] = spec.element_max or spec.element.format.max
    alone[:, 1] = patterns(dtype)
    amax = None if spec.global_scale == "none" else np.float32([alone[0, 0]]) * np.float32(448)
    same(alone, spec, amax=amax)
    q = same(patterns(dtype).reshape(-1, columns), spec)
    if spec.global_scale != "none":
        same(patterns(dtype).reshape(-1, columns), spec, amax=np.float32([3]))
    same_values(q, "float32", "row")


def in_three_bytes(codes):
    """Codes of 6 bits, four in three bytes, low bits first."""
    words = sum(codes[i::4].astype(np.uint32) << 6 * i for i in range(4))
    return np.stack([words >> 8 * i & 255 for i in range(3)], axis=1).astype(np.uint8).reshape(-1)


@pytest.mark.sampled(3)
@pytest.mark.rule("E4M3-1", "E4M3-3", "E5M2-1", "E8M0-1", "E8M0-4", "DEQ-1", "DEQ-2", "DEQ-3", "DEQ-5")
@pytest.mark.parametrize("amax", [1.0, 0.0, np.inf, np.nan, -np.nan, 1e-44, 3e38])
@pytest.mark.parametrize("spec", by_parts(own_codecs(), codecs(), choices_of_elements), ids=lambda spec: spec.name)
def test_dequantize_every_code_under_every_scale(spec, amax):
    bits, columns = spec.element.format.bits, spec.block.columns
    row = np.resize(np.arange(1 << bits, dtype=np.uint8), 256)
    packed = {4: row[0::2] | row[1::2] << 4, 6: in_three_bytes(row), 8: row}[bits]
    data = np.tile(packed, (256, 1))
    scales = np.repeat(np.arange(256, dtype=np.uint8)[:, None], 256 // columns, axis=1)
    given = None if spec.global_scale == "none" else np.float32([amax])
    q = Quantized(spec, (256, 256), "bfloat16", "linear", DirectionData(data, scales, given))
    for dtype in ("float32", "bfloat16", "float16"):
        same_values(q, dtype, "row")


@pytest.mark.rule("PRO-1", "PRO-3", "BLK-1", "BLK-2", "BLK-3", "BLK-4", "BLK-5", "BLK-6", "BLK-7", "BLK-8", "BLK-10")
@pytest.mark.rule("GLB-1", "GLB-2", "GLB-3", "GLB-5", "GLB-6", "MXS-1", "MXS-2", "MXS-3", "MXS-4", "MXS-5", "PACK-2")
@pytest.mark.rule("FOS-1", "FOS-2", "FOS-3", "FOS-4", "FOS-5", "FOS-6", "SR-2", "SR-3", "LAY-5", "LAY-10", "HAD-4")
@pytest.mark.parametrize("spec", few(by_parts(OURS, NATIVE), len(OURS)), ids=lambda spec: spec.name)
def test_every_native_spec_is_the_models(spec):
    """A peer has fewer examples: others have all of its parts but one or two."""

    @settings(max_examples=12 if spec in OURS else 6)
    @given(data=st.data())
    def any_tensor(data):
        as_the_model(spec, data)

    any_tensor()


def as_the_model(spec, data):
    dtype = data.draw(st.sampled_from(dtypes_of(spec)))
    small = shapes(33, 33) | st.sampled_from([(17, 530), (530, 17), (5, 1040), (130, 70)])
    x = data.draw(matrices(spec.block, spec.element.format, dtype=dtype, shape=small, finite=False))
    if spec.hadamard:
        x = x[: len(x) // 16 * 16]
    directions = data.draw(st.sampled_from((*BOTH, "both")))
    bits = random_bits(spec, x.shape, directions, data.draw(st.integers(0, 9)))
    q = same(x, spec, directions, data.draw(st.sampled_from(LAYOUTS)), random_bits=bits)
    for direction in BOTH:
        if getattr(q, direction) is not None:
            same_values(q, data.draw(st.sampled_from(results_of(spec, q.dtype))), direction)


@pytest.mark.rule("HAD-1", "HAD-2", "HAD-3", "HAD-4", "HAD-6")
@given(x=matrices(shape=st.sampled_from([(16, 1), (48, 33), (64, 130), (528, 40)]), dtype=BFLOAT16))
def test_hadamard_and_back(x):
    q = same(x, fp4ref.NVFP4_RHT, "both", "tiled_128x4")
    for dtype in ("float32", "bfloat16", "float16"):
        same_values(q, dtype, "column", inverse_hadamard=True)


@pytest.mark.rule("HAD-3")
def test_hadamard_of_every_exponent_and_of_special_values():
    rng = np.random.default_rng(5)
    x = np.ldexp(rng.standard_normal((64, 512)), rng.integers(-140, 120, (64, 512))).astype(np.float32)
    x[:, :64][rng.random((64, 64)) < 0.05] = np.inf
    x[:, 32:96][rng.random((64, 64)) < 0.05] = np.nan
    same(x.astype(BFLOAT16), fp4ref.NVFP4_RHT, "both")


@pytest.mark.rule("GLB-4", "GLB-5", "BLK-6")
@pytest.mark.parametrize("amax", [0.0, 1e-40, 2.0**-120, 0.5, 300.0, 3e38, np.inf])
def test_a_callers_amax(amax):
    x = np.random.default_rng(1).standard_normal((20, 100), np.float32)
    for spec in (fp4ref.NVFP4, fp4ref.NVFP4_4OVER6, fp4ref.NVFP4_2D):
        same_values(same(x, spec, "both", amax=amax), "bfloat16", "row")
    given_amax = Directions(np.full(20, amax, np.float32), np.geomspace(1e-30, 1e30, 100).astype(np.float32))
    q = same(x, fp4ref.NVFP4_ROW_SCALED, "both", amax=given_amax)
    same_values(q, "float32", "column")


@pytest.mark.rule("BLK-9")
@pytest.mark.parametrize("shape", [(0,), (0, 16), (16, 0), (0, 0), (2, 0, 32), (3, 32, 0)])
@pytest.mark.parametrize("spec", [fp4ref.NVFP4, fp4ref.NVFP4_ROW_SCALED, fp4ref.MXFP8_2D, fp4ref.NVFP4_RHT])
def test_zero_sizes(shape, spec):
    x = np.zeros(shape, BFLOAT16)
    q = same(x, spec, "both" if len(x.reshape(-1, shape[-1] or 1)) % 16 == 0 else "row", "tiled_128x4")
    same_values(q, "bfloat16", "row")


def views():
    """One matrix [48, 34] or tensor seen in many ways."""
    rng = np.random.default_rng(2)
    base = rng.standard_normal((48, 34), np.float32)
    wide = rng.standard_normal((96, 70), np.float32)
    cube = rng.standard_normal((4, 12, 34), np.float32)
    raw = np.zeros(base.nbytes + 1, np.uint8)[1:]
    raw[:] = base.view(np.uint8).ravel()
    return {
        "contiguous": base,
        "fortran": np.asfortranarray(base),
        "reversed rows": base[::-1],
        "reversed columns": base[:, ::-1],
        "every second": wide[::2, 1:69:2],
        "columns of a wider one": wide[:48, 3:37],
        "transposed wider one": wide.T[:48, :34],
        "broadcast": np.broadcast_to(base[:1], base.shape),
        "one value": np.broadcast_to(base[:1, :1], base.shape),
        "vector": base[0],
        "strided vector": base[:, 0],
        "cube": cube,
        "cube, axes swapped": cube.transpose(1, 0, 2),
        "cube, last axis moved": cube.transpose(0, 2, 1),
        "cube, part": cube[1:, ::3, 2:],
        "cube, reversed": cube[::-1, :, ::-1],
        "four axes": cube.reshape(2, 2, 12, 34).transpose(2, 0, 1, 3),
        "unaligned": raw.view(np.float32).reshape(48, 34),
    }


@pytest.mark.rule("NUM-4", "BLK-8")
@pytest.mark.parametrize("name", views())
@pytest.mark.parametrize("spec", [fp4ref.NVFP4, fp4ref.NVFP4_2D, fp4ref.NVFP4_ROW_SCALED], ids=lambda spec: spec.name)
def test_any_strides(name, spec):
    x = views()[name]
    before = x.copy()
    same(x, spec, "both", "tiled_8x4")
    assert np.array_equal(x, before)


@pytest.mark.sampled(4)
@pytest.mark.rule("BLK-1", "GLB-1")
@pytest.mark.parametrize("spec", [fp4ref.NVFP4, fp4ref.MXFP8_E4M3, fp4ref.NVFP4_2D, STOCHASTIC], ids=lambda s: s.name)
@pytest.mark.parametrize("shape", [(70, 8200), (8200, 70), (1, 20000), (301, 1000)])
def test_more_than_one_unit_of_work(spec, shape, monkeypatch):
    x = np.random.default_rng(3).standard_normal(shape, np.float32).astype(BFLOAT16)
    results = []
    for count in ("1", "2", "5"):
        monkeypatch.setenv("FP4REF_NUM_THREADS", count)
        results.append(same(x, spec, "both", "tiled_128x4", random_bits=random_bits(spec, shape, "both")))
        same_values(results[-1], "bfloat16", "column")
    whole(results[0], results[2])


@pytest.mark.rule("BLK-1", "GLB-1", "DEQ-1", "LAY-6")
@pytest.mark.parametrize(("rows", "columns"), [(32 * 36 + 5, 528), (64, 17 * 8192)])
def test_units_that_are_taken_from_many_places_by_turns(rows, columns):
    """No unit is left out or done twice where their number is no multiple of the places."""
    x = np.random.default_rng(rows).standard_normal((rows, columns), np.float32)
    q = same(x, fp4ref.NVFP4)
    model, native = (fp4ref.dequantize(q, "bfloat16", backend=name).tobytes() for name in ("numpy", "cpu"))
    assert native == model
    moved = [fp4ref.to_layout(q, "tiled_128x4", backend=name).row.scales.tobytes() for name in ("numpy", "cpu")]
    assert moved[0] == moved[1]


@pytest.mark.rule("DEQ-1", "E4M3-3", "E5M2-3")
@pytest.mark.parametrize("code", [0x7F, 0xFF, 0x7C, 0xFC, 0x7B, 0x80])
@pytest.mark.parametrize("spec", [fp4ref.MXFP8_E4M3, fp4ref.MXFP8_E5M2], ids=lambda spec: spec.name)
def test_one_code_of_a_strip_is_no_number(spec, code):
    """At every place of a strip of 1024, as one code decides how a strip is decoded."""
    codes = np.tile(np.uint8([[0x38, 0xB5]]), (1024, 512))
    codes[np.arange(1024), np.arange(1024)] = code
    q = Quantized(
        spec, codes.shape, "float32", "linear", DirectionData(codes, np.full((1024, 32), 127, np.uint8), None)
    )
    for dtype in ("float32", "bfloat16", "float16"):
        native, model = (fp4ref.dequantize(q, dtype, backend=name).tobytes() for name in ("cpu", "numpy"))
        assert native == model


@pytest.mark.sampled(4)
@pytest.mark.rule("BLK-1", "PACK-2")
@pytest.mark.parametrize("spec", [*OURS, fp4ref.MXFP8_E4M3], ids=lambda spec: spec.name)
@pytest.mark.parametrize("shape", [(130, 16), (67, 48), (9, 31), (40, 512), (40, 513), (131, 100), (600, 1)])
def test_short_rows_are_quantized_side_by_side(spec, shape):
    rng = np.random.default_rng(5)
    x = (rng.standard_normal(shape, np.float32) * np.exp2(rng.integers(-30, 30, (shape[0], 1)))).astype(np.float32)
    x[rng.random(shape) < 0.01] = np.nan
    x[shape[0] // 2] = 0
    if spec.hadamard:
        x = np.resize(x, (shape[0] // 16 * 16 or 16, shape[1])).astype(BFLOAT16)
    gapped = np.full((x.shape[0], x.shape[1] + 3), np.inf, x.dtype)
    gapped[:, : x.shape[1]] = x
    for values in (x, gapped[:, : x.shape[1]]):
        q = same(values, spec, "both", "tiled_8x4", random_bits=random_bits(spec, x.shape, "both"))
        for direction in BOTH:
            same_values(q, "float32", direction)


def strange(rows, columns):
    """Return ordinary numbers, with a size for each row; among them are zeros, tiny and infinite numbers, and NaN."""
    rng = np.random.default_rng(columns)
    x = rng.standard_normal((rows, columns), np.float32) * np.exp2(rng.integers(-9, 9, (rows, 1)).astype(np.float32))
    for value in (0.0, -0.0, -1e-44, 1e-44, -1e-39):
        x[rng.random(x.shape) < 0.05] = value
    for row, value in enumerate((np.nan, -np.nan, np.inf, -np.inf)):
        x[row, rng.random(columns) < 0.01] = value
    x[4], x[5] = 0.0, -0.0
    return x


@pytest.mark.rule("BLK-1", "BLK-2", "BLK-5", "E2M1-2", "DEQ-1")
@pytest.mark.parametrize("block", [8, 48, 64])
@pytest.mark.parametrize("name", ["nvfp4", "te.python_reference"])
def test_blocks_of_every_width(name, block):
    """Widths that fill vectors and those that do not, of codecs that tell signs by the bit and by the number."""
    spec = of_width(name, block)
    for dtype in DTYPES[:2]:
        same_values(same(strange(9, 2200).astype(dtype), spec), "bfloat16", "row")
        same(strange(9, 1024).astype(dtype), spec)


@pytest.mark.rule("APX-1", "GLB-5")
@pytest.mark.parametrize("name", ["vllm.nvfp4_kernel", "flashinfer.nvfp4_kernel"])
def test_factors_that_are_looked_up_are_those_of_the_row(name):
    """Rows of equal and of other maxima, one after another in one thread."""
    spec = fp4ref.profiles[name].replace(name="rows", global_scale="row")
    x = strange(40, 200)
    same(x[np.repeat(np.arange(40), 2)], spec)
    same(x, spec)


@pytest.mark.rule("FOS-3", "NUM-1")
@pytest.mark.heavy
@pytest.mark.parametrize("machine", ["x86-64", "x86-64-v3", "skylake-avx512", "native"])
def test_processors_with_less_give_the_same(machine):
    """Loops are written for several widths of vectors; those of another processor are not run here otherwise."""
    script = f"""
import sys
from fp4ref_cpu import build
build.MACHINE_FLAGS = (("-march={machine}",),)
import numpy as np, fp4ref
from fp4ref.registry import Call
sys.path.append({str(Path(compiled.__file__).parent)!r})
from compiled import TYPES, together
rng = np.random.default_rng(7)
x = rng.standard_normal((37, 2100), np.float32) * np.exp2(rng.integers(-9, 9, (37, 1)))
x = x.astype(np.float32)
x[3, 5], x[4, 1040], x[5, :40], x[6] = np.nan, -np.inf, -0.0, 0.0
specs = fp4ref.NVFP4, fp4ref.NVFP4_4OVER6, fp4ref.MXFP4, fp4ref.MXFP8_2D, fp4ref.profiles["vllm.nvfp4_kernel"]
calls = [Call("quantize", spec, name, way) for spec in specs for name in TYPES[::2] for way in ("row", "column")]
together([*calls, *(Call("dequantize", spec, "float16", to=to) for spec in specs for to in TYPES[:2])])
for spec in specs:
    for values in (x, x.astype(np.float16)):
        native, model = (fp4ref.quantize(values, spec, "both", "tiled_128x4", backend=b) for b in ("cpu", "numpy"))
        for direction in ("row", "column"):
            for a, b in zip(getattr(native, direction), getattr(model, direction)):
                assert a is b is None or np.array_equal(a, b, equal_nan=a.dtype != np.uint8), (spec.name, direction)
    for to in ("float32", "bfloat16"):
        decoded = [fp4ref.dequantize(model, to, backend=b).tobytes() for b in ("cpu", "numpy")]
        assert decoded[0] == decoded[1], spec.name
"""
    if not set(FEATURES[machine].split()) <= features():
        pytest.skip(f"a processor without one of {FEATURES[machine]}")
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr


FEATURES = {
    "x86-64": "sse2",
    "x86-64-v3": "avx2 fma bmi2",
    "skylake-avx512": "avx512f avx512bw avx512dq avx512vl avx512cd",
    "native": "",
}


def features():
    """Return what the processor has, where Linux tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        return set()
    return {word for line in lines if line.startswith("flags") for word in line.split()}


def guarded(size, fill):
    """Bytes with a guard of 64 on both sides, and a function that checks the guards."""
    memory = np.full(size + 128, fill, np.uint8)

    def check():
        assert (memory[:64] == fill).all()
        assert (memory[-64:] == fill).all()

    return memory[64 : 64 + size], check


@pytest.mark.sampled(4)
@pytest.mark.rule("LAY-5")
@pytest.mark.parametrize("fill", [0x00, 0xFF])
@pytest.mark.parametrize("shape", [(1, 1), (17, 33), (129, 70), (64, 530)])
@pytest.mark.parametrize("scale_layout", LAYOUTS)
@pytest.mark.parametrize("spec", [fp4ref.NVFP4, fp4ref.MXFP8_E5M2, fp4ref.NVFP4_ROW_SCALED, ODD], ids=lambda s: s.name)
def test_out_is_written_whole_and_nothing_beside_it(spec, scale_layout, shape, fill):
    x = np.random.default_rng(4).standard_normal(shape, np.float32)
    expected = fp4ref.quantize(x, spec, "both", scale_layout, backend="numpy")
    checks = []

    def buffer(like):
        part, check = guarded(like.nbytes, fill)
        checks.append(check)
        return part.view(like.dtype).reshape(like.shape)

    directions = {
        name: DirectionData(*(None if part is None else buffer(part) for part in getattr(expected, name)))
        for name in BOTH
    }
    out = dataclasses.replace(expected, **directions)
    got = fp4ref.quantize(x, spec, "both", scale_layout, backend="cpu", out=out)
    assert got.row is out.row
    whole(out, expected)
    for check in checks:
        check()


def test_out_that_is_not_contiguous():
    x = np.random.default_rng(4).standard_normal((40, 64), np.float32)
    expected = fp4ref.quantize(x, fp4ref.NVFP4, backend="numpy")
    data, scales = np.zeros((40, 64), np.uint8)[:, ::2], np.zeros((4, 40), np.uint8).T
    out = dataclasses.replace(expected, row=DirectionData(data, scales, np.zeros(1, np.float32)))
    whole(fp4ref.quantize(x, fp4ref.NVFP4, out=out, backend="cpu"), expected)


@pytest.mark.rule("CNF-5")
def test_out_that_overlaps_or_is_read_only():
    x = np.ones((16, 64), np.float32)
    q = fp4ref.quantize(x, fp4ref.NVFP4)
    inside = q.row._replace(data=x.view(np.uint8).ravel()[: 16 * 32].reshape(16, 32))
    memory = np.zeros((16, 36), np.uint8)
    together = q.row._replace(data=memory[:, :32], scales=memory[:, 30:34])
    frozen = q.row._replace(data=q.row.data.copy())
    frozen.data.flags.writeable = False
    for row, match in ((inside, "overlaps x"), (together, "overlaps"), (frozen, "read-only")):
        with pytest.raises(BackendError, match=match):
            fp4ref.quantize(x, fp4ref.NVFP4, out=dataclasses.replace(q, row=row), backend="cpu")
    assert (x == 1).all()


@pytest.mark.rule("LAY-6")
@pytest.mark.parametrize("scale_layout", ["linear_padded", "tiled_128x4", "tiled_8x4"])
@pytest.mark.parametrize("shape", [(1, 1), (129, 70), (5, 600)])
def test_padding_has_no_influence(scale_layout, shape):
    x = np.random.default_rng(6).standard_normal(shape, np.float32)
    q = fp4ref.quantize(x, fp4ref.NVFP4, "row", scale_layout, backend="cpu")
    expected = fp4ref.dequantize(q, backend="cpu")
    valid = fp4ref.LAYOUTS[scale_layout].valid(shape[0], -(-shape[1] // 16))
    data = q.row.data.copy()
    data[:, -1] |= 0xF0 if shape[1] % 2 else 0
    for poison in (0x7F, 0xFF, 0x01):
        scales = np.where(valid, q.row.scales, np.uint8(poison))
        poisoned = dataclasses.replace(q, row=q.row._replace(scales=scales, data=data))
        assert fp4ref.dequantize(poisoned, backend="cpu").tobytes() == expected.tobytes()
        moved = to_layout(scales, shape[0], -(-shape[1] // 16), scale_layout, "tiled_128x4")
        assert np.array_equal(moved, fp4ref.to_layout(q, "tiled_128x4").row.scales)


def to_layout(scales, rows, columns, source, target):
    call = Call("to_layout", layout=fp4ref.LAYOUTS[source], shape=(rows, columns), target=fp4ref.LAYOUTS[target])
    return registry.get("cpu").to_layout(call, scales)


@pytest.mark.rule("LAY-1", "LAY-2", "LAY-3", "LAY-4", "LAY-5")
@given(
    shape=st.tuples(st.integers(0, 300), st.integers(0, 40) | st.sampled_from([63, 64, 65, 128, 130])),
    layouts=st.tuples(st.sampled_from(LAYOUTS), st.sampled_from(LAYOUTS)),
)
def test_moving_scales_between_layouts(shape, layouts):
    scales = np.random.default_rng(7).integers(0, 256, shape, np.uint8)
    source, target = (fp4ref.LAYOUTS[name].from_linear(scales) for name in layouts)
    assert np.array_equal(to_layout(source, *shape, *layouts), target)


@pytest.mark.rule("SR-1", "SR-2", "SR-3")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_stochastic_bits_of_any_strides(dtype):
    x = np.random.default_rng(8).standard_normal((50, 1044), np.float32).astype(dtype)
    bits = np.random.default_rng(9).integers(0, 256, (50, 1044), np.uint8)
    same(x, STOCHASTIC, random_bits=bits)
    same(x, STOCHASTIC, random_bits=np.asfortranarray(bits)[::-1])
    same(x, STOCHASTIC, "both", "tiled_128x4", random_bits=Directions(bits, bits.T))


@pytest.mark.rule("CNF-5")
def test_an_arithmetic_of_the_golden_model_only():
    x = np.ones((2, 32), np.float32)
    spec = fp4ref.NVFP4.replace(arithmetic=dataclasses.replace(fp4ref.NVFP4.arithmetic, name="vendor.te"))
    with pytest.raises(BackendError, match="backend cpu: arithmetic vendor.te is in the golden model only: the header"):
        fp4ref.quantize(x, spec, backend="cpu")
    with pytest.raises(BackendError, match="blocks of 4096x64"):
        fp4ref.quantize(x, fp4ref.NVFP4.replace(block=(4096, 64)), backend="cpu")
    whole(fp4ref.quantize(x, spec), fp4ref.quantize(x, spec, backend="numpy"))


def test_an_arithmetic_that_is_spelled_like_a_native_one_is_not_it():
    te = fp4ref.NVFP4.arithmetic
    other = dataclasses.replace(te, name="te_fast")
    assert registry.backends()["cpu"].unserved(Call("quantize", fp4ref.NVFP4.replace(arithmetic=other)))


@pytest.mark.parametrize("text", ["0", "-1", "two", "1.5"])
def test_a_thread_count_that_is_none(text, monkeypatch):
    monkeypatch.setenv("FP4REF_NUM_THREADS", text)
    with pytest.raises(DomainError, match=f"FP4REF_NUM_THREADS={text}, need a positive integer"):
        fp4ref.quantize(np.ones((512, 512), np.float32), fp4ref.NVFP4, backend="cpu")


@pytest.mark.rule("HAD-5")
def test_inverse_hadamard_of_a_ragged_direction():
    q = fp4ref.quantize(np.ones((24, 4), BFLOAT16)[:16], fp4ref.NVFP4_RHT, "column")
    column = q.column._replace(data=q.column.data[:, :6], scales=q.column.scales[:, :1])
    ragged = dataclasses.replace(q, shape=(12, 4), column=column)
    with pytest.raises(ShapeError, match="hadamard of 12 rows"):
        fp4ref.dequantize(ragged, direction="column", inverse_hadamard=True, backend="cpu")


def test_torch_tensors_cross_without_a_copy():
    torch = pytest.importorskip("torch")
    x = torch.randn(33, 70, dtype=torch.bfloat16)
    array = x.view(torch.uint16).numpy().view(ml_dtypes.bfloat16)
    for value, other in ((x, array), (x.T, array.T), (x[::2, 3:], array[::2, 3:]), (x.requires_grad_(), array)):
        q = fp4ref.quantize(value, fp4ref.NVFP4, "both", backend="cpu")
        assert isinstance(q.row.data, torch.Tensor)
        expected = fp4ref.quantize(other, fp4ref.NVFP4, "both", backend="numpy")
        for name, part in parts(q).items():
            assert np.array_equal(part.numpy(), parts(expected)[name])
        y = fp4ref.dequantize(q, torch.bfloat16, backend="cpu")
        assert y.dtype is torch.bfloat16
        assert torch.equal(y, fp4ref.dequantize(q, torch.bfloat16, backend="numpy"))
    out = fp4ref.quantize(torch.zeros(33, 70, dtype=torch.bfloat16), fp4ref.NVFP4, "both")
    pointer = out.row.data.data_ptr()
    assert fp4ref.quantize(x, fp4ref.NVFP4, "both", out=out, backend="cpu").row.data.data_ptr() == pointer
    assert torch.equal(out.row.data, fp4ref.quantize(x, fp4ref.NVFP4, "both", backend="numpy").row.data)


@pytest.mark.rule("NUM-1", "CNF-4")
def test_a_thread_that_flushes_subnormals_changes_nothing():
    torch = pytest.importorskip("torch")
    x = np.ldexp(np.random.default_rng(10).standard_normal((64, 4096)), -133).astype(np.float32)
    expected = fp4ref.quantize(x, fp4ref.NVFP4, backend="cpu")
    assert torch.set_flush_denormal(True)
    try:
        whole(fp4ref.quantize(x, fp4ref.NVFP4, backend="cpu"), expected)
        assert np.float32(1e-40) * np.float32(1) == 0  # the caller's setting is as it was
    finally:
        torch.set_flush_denormal(False)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_forked_child_has_threads_of_its_own():
    x = np.ones((512, 512), np.float32)
    fp4ref.quantize(x, fp4ref.NVFP4, backend="cpu")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # a process with threads forks: that is the point
        child = os.fork()
    if not child:
        fp4ref.quantize(x, fp4ref.NVFP4, backend="cpu")
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_the_fastest_backend_serves_an_array_in_the_cpus_memory():
    assert registry.choose(Call("quantize", fp4ref.NVFP4), None).__module__ == "fp4ref_cpu.quantizing"
    code = "import sys, fp4ref.registry as r; r.backends(); print('fp4ref_cpu.operations' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "False"  # declared, not loaded


@pytest.mark.parametrize("specs", [("nvfp4", "nvfp4"), ("mxfp8-e4m3", "mxfp4")])
def test_all_that_a_fast_product_calls_is_compiled_beforehand(specs, monkeypatch):
    from fp4ref_cpu import build, gemm, operations, reading

    a, b = (fp4ref.quantize(np.ones((2, 64), np.float32), name, backend="numpy") for name in specs)
    asked = []
    for module in (gemm, reading):
        monkeypatch.setattr(
            module, "functions", lambda text, *names: asked.append(text) or build.functions(text, *names)
        )
    gemm._loops.cache_clear()
    reading._dequantizer.cache_clear()
    fp4ref.gemm(a, b, "fast", backend="cpu")
    call = Call("gemm_fast", a.spec, spec_b=b.spec)
    assert len(asked) > 1
    assert {*asked} <= {*operations._texts(call)}
