"""The torch backend against the golden model, byte for byte, in eager mode and compiled."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import warnings
from functools import cache, partial

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fp4ref
from covering import by_parts, few
from fp4ref import BackendError, DomainError, ShapeError, registry
from fp4ref.arithmetic import ARITHMETIC
from fp4ref.conformance.families.strategies import DTYPES, matrices, shapes
from fp4ref.formats import E2M1, E4M3, E5M2, STOCHASTIC_E2M1, Codec, Rounding, Sign
from fp4ref.layout import STANDARD_LAYOUTS
from fp4ref.operands import Counters
from fp4ref.quantized import DirectionData, Directions, Quantized
from fp4ref.registry import Call
from fp4ref.spec import Hadamard
from fp4ref.specs import STANDARD
from same_bytes import same_by, whole

torch = pytest.importorskip("torch", reason="needs pip install fp4ref[torch]")

import fp4ref_torch  # noqa: E402
from fp4ref_torch import arithmetic, codecs, exact, operations  # noqa: E402
from fp4ref_torch import quantize as quantizer  # noqa: E402
from fp4ref_torch.dequantize import dequantize_tensor  # noqa: E402
from fp4ref_torch.quantize import quantize_tensor  # noqa: E402

BOTH = ("row", "column")
LAYOUTS = tuple(form.name for form in STANDARD_LAYOUTS)
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
STOCHASTIC = fp4ref.NVFP4.replace(name="nvfp4-sr", element=STOCHASTIC_E2M1)
OURS = (
    STOCHASTIC,
    fp4ref.NVFP4_4OVER6.replace(name="nvfp4-4over6-2d", block=(16, 16)),
    fp4ref.NVFP4_4OVER6.replace(name="nvfp4-4over6-row", global_scale="row"),
    fp4ref.NVFP4.replace(name="odd", block=(3, 5)),
    fp4ref.MXFP8_E4M3.replace(name="wide", block=(2, 200), subnormals="flush"),
    fp4ref.NVFP4_RHT.replace(name="other-signs", hadamard=Hadamard(0x1234)),
)
NATIVE = [
    spec
    for spec in fp4ref.profiles.values()
    if not (registry.backends()["torch"].unserved(Call("quantize", spec)) or spec.stochastic)
]
GPU = "" if torch.cuda.is_available() else "torch sees no CUDA device"
on_gpu = [pytest.mark.gpu, pytest.mark.skipif(bool(GPU), reason=GPU or "runs")]


same = partial(same_by, "torch")


@pytest.fixture
def two_threads():
    """Threads for one test; all others have one (conftest)."""
    count = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(count)


def host(value):
    """A tensor or an array as NumPy."""
    if not isinstance(value, torch.Tensor):
        return value
    value = value.cpu()
    return value.view(torch.int16).numpy().view(BFLOAT16) if value.dtype is torch.bfloat16 else value.numpy()


def tensor(array, device="cpu"):
    """A NumPy array as a tensor with memory of its own."""
    array = np.ascontiguousarray(array)
    found = torch.from_numpy(array.view(np.int16).copy()).view(torch.bfloat16) if array.dtype == BFLOAT16 else None
    return (torch.from_numpy(array.copy()) if found is None else found).to(device)


def same_bytes(got, expected, what=""):
    """Equal shapes, types and bytes; a NaN in an amax is only a NaN."""
    assert (got.shape, got.dtype) == (expected.shape, expected.dtype), what
    if what.endswith("amax"):
        np.testing.assert_array_equal(got, expected, what)
        return
    unsigned = f"u{expected.itemsize}"
    where = np.argwhere(np.ascontiguousarray(got).view(unsigned) != np.ascontiguousarray(expected).view(unsigned))
    assert not where.size, f"{what}: {len(where)} differ, first at {where[0]}"


def same_values(q, dtype="float32", direction="row", *, inverse_hadamard=False):
    with np.errstate(over="ignore"):
        expected = fp4ref.dequantize(q, dtype, direction, inverse_hadamard, backend="numpy")
    got = fp4ref.dequantize(q, dtype, direction, inverse_hadamard, backend="torch")
    if inverse_hadamard:  # the sign of a NaN that is a sum of several is nobody's promise
        nan = np.isnan(expected.astype(np.float32))
        assert (np.isnan(got.astype(np.float32)) == nan).all()
        got, expected = np.where(nan, 0, got), np.where(nan, 0, expected)
    same_bytes(got, expected, f"{direction} {dtype}")


def random_bits(spec, shape, directions):
    if not spec.stochastic:
        return None
    draw = np.random.default_rng(len(directions)).integers(0, 256, shape, np.uint8)
    return {"row": draw, "column": draw.T, "both": Directions(draw, draw.T)}[directions]


def mixed(shape=(48, 70), dtype=BFLOAT16, seed=0):
    """Heavy tails, ties, zeros of both signs, subnormals, infinities and NaN of both signs."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(shape) * np.exp(3 * rng.standard_normal(shape))
    x[1::8] = rng.integers(-24, 25, x[1::8].shape) / 4
    x[2::16] *= 1e-38
    x[3::16] = np.copysign(0, x[3::16])
    odd = rng.choice([np.nan, -np.nan, np.inf, -np.inf], x[5::8].shape)
    x[5::8] = np.where(rng.random(odd.shape) < 0.1, odd, x[5::8])
    with np.errstate(over="ignore"):
        return x.astype(np.float32).astype(dtype)


@cache
def representatives():
    """Every bfloat16, and a float32 between each and the next: all that can differ, as every tie is a bfloat16."""
    upper = np.arange(1 << 16, dtype=np.uint32) << 16
    return np.stack([upper, upper | np.where(upper & 1 << 16, np.uint32(1), np.uint32(0xFFFF))]).view(np.float32)


def all_codecs():
    peers = [codec for spec in (*NATIVE, STOCHASTIC) for codec in (spec.element, spec.scale)]
    ours = [
        Codec(format=form, rounding=rounding, sign=sign, nan=(3, 5), overflow=overflow)
        for form, over in ((E2M1, 0x8), (E4M3, 0x7F), (E5M2, 0x7C))
        for rounding in Rounding
        for sign, overflow in zip((*Sign, *Sign), (None, over, None, over, over, None, over, None), strict=True)
        if (form is E2M1 or rounding is not Rounding.STOCHASTIC) and (form is E2M1 or sign is not Sign.NONZERO)
        if rounding is Rounding.EVEN or overflow is not None
    ]
    return list(dict.fromkeys(peers + ours))


@pytest.mark.rule("E2M1-2", "E2M1-3", "E2M1-4", "E2M1-5", "E2M1-6", "E4M3-2", "E4M3-3", "E4M3-4", "E4M3-5")
@pytest.mark.rule("E5M2-2", "E5M2-3", "E5M2-4", "E5M2-5", "E8M0-2", "E8M0-3", "SR-2", "SR-3")
def test_every_codec_on_every_16_bit_input_and_its_neighbours():
    values = representatives()
    bits = np.random.default_rng(0).integers(0, 256, values.shape, np.uint8)
    for codec in all_codecs():
        random = bits if codec.rounding is Rounding.STOCHASTIC else None
        got = codecs.encode(tensor(values), codec, None if random is None else tensor(random))
        same_bytes(got.numpy(), codec.encode(values, random), f"{codec}")


@pytest.mark.rule("FOS-3")
@pytest.mark.parametrize("overflow", [None, 8])
def test_the_values_that_an_encoder_picks(overflow):
    codec = Codec(format=E2M1, nan=(7, 7), overflow=overflow)
    same_bytes(codecs.nearest(tensor(representatives()), codec).numpy(), codec.nearest(representatives()))


@pytest.mark.rule("E2M1-1", "E4M3-1", "E5M2-1", "E8M0-1", "E8M0-4")
@pytest.mark.parametrize("spec", [fp4ref.NVFP4, fp4ref.MXFP8_E4M3, fp4ref.MXFP8_E5M2], ids=lambda spec: spec.name)
def test_every_code(spec):
    for codec in (spec.element, spec.scale):
        code = np.arange(1 << codec.format.bits, dtype=np.uint8)
        same_bytes(codecs.decode(torch.from_numpy(code), codec.format).numpy(), codec.decode(code))


@pytest.mark.rule("NUM-1", "NUM-2", "NUM-3", "DEQ-3")
@pytest.mark.parametrize("dtype", [BFLOAT16, np.dtype(np.float16)], ids=str)
def test_types_to_and_from_float32(dtype):
    patterns = np.arange(1 << 16, dtype=np.uint16).view(dtype)
    wide = exact.widened(tensor(patterns)).numpy()
    nan = np.isnan(wide)
    same_bytes(wide[~nan], patterns.astype(np.float32)[~nan])
    assert (np.signbit(wide) == np.signbit(patterns)).all()
    values = representatives()[~np.isnan(representatives())]
    narrow = exact.to_float16 if dtype == np.float16 else exact.to_bfloat16
    with np.errstate(over="ignore"):
        same_bytes(host(narrow(tensor(values))), values.astype(dtype))


@pytest.mark.rule("E2M1-3", "E4M3-2", "E5M2-2", "NUM-3", "BLK-5", "BLK-10")
@pytest.mark.parametrize("dtype", [BFLOAT16, np.dtype(np.float16)], ids=str)
@pytest.mark.parametrize(
    "spec", [fp4ref.NVFP4, fp4ref.MXFP4, fp4ref.MXFP8_E4M3, fp4ref.MXFP8_E5M2], ids=lambda s: s.name
)
def test_every_16_bit_input_through_the_api(spec, dtype):
    patterns = np.arange(1 << 16, dtype=np.uint16).view(dtype).reshape(-1, spec.block.columns)
    for amax in (None,) if spec.global_scale == "none" else (None, 3.0):
        same_values(same(patterns, spec, "both", amax=amax), str(dtype))


@pytest.mark.sampled(3)
@pytest.mark.rule("DEQ-1", "DEQ-2", "DEQ-3", "DEQ-5", "E8M0-4", "NUM-2")
@pytest.mark.parametrize(
    "spec", {spec.arithmetic.name: spec for spec in reversed(NATIVE)}.values(), ids=lambda s: s.name
)
def test_every_code_under_every_scale(spec):
    bits, columns = spec.element.format.bits, spec.block.columns
    row = np.resize(np.arange(1 << bits, dtype=np.uint8), 256)
    data = np.tile(row[0::2] | row[1::2] << 4 if bits == 4 else row, (256, 1))
    scales = np.repeat(np.arange(256, dtype=np.uint8)[:, None], 256 // columns, axis=1)
    amaxes = 1.0, 3.3, 0.0, np.inf, np.nan, -np.nan, 1e-44, 3e38, 70.0
    for i, amax in enumerate(amaxes if spec.global_scale != "none" else (None,) * 3):
        given_amax = None if amax is None else np.full(256 if spec.global_scale == "row" else 1, amax, np.float32)
        source, dtype = (("bfloat16", "float16"), ("float16", "bfloat16"), ("float32", "float32"))[i % 3]
        same_values(Quantized(spec, (256, 256), source, "linear", DirectionData(data, scales, given_amax)), dtype)


@pytest.mark.rule("PRO-1", "PRO-3", "BLK-1", "BLK-2", "BLK-3", "BLK-4", "BLK-5", "BLK-6", "BLK-7", "BLK-8", "BLK-10")
@pytest.mark.rule("BLK-11", "GLB-1", "GLB-2", "GLB-3", "GLB-5", "GLB-6", "MXS-1", "MXS-2", "MXS-3", "MXS-4", "MXS-5")
@pytest.mark.rule("FOS-1", "FOS-2", "FOS-3", "FOS-4", "FOS-5", "FOS-6", "SR-2", "LAY-5", "LAY-10", "HAD-4", "PACK-2")
@pytest.mark.parametrize(
    "spec", few(by_parts((*STANDARD, *OURS), NATIVE), len(STANDARD) + len(OURS)), ids=lambda spec: spec.name
)
def test_every_native_spec_is_the_models(spec):
    """A peer has fewer examples: others have all of its parts but one or two."""

    @settings(max_examples=8 if spec in (*STANDARD, *OURS) else 4)
    @given(data=st.data())
    def any_tensor(data):
        as_the_model(spec, data)

    any_tensor()


def as_the_model(spec, data):
    dtypes = (BFLOAT16,) if spec.hadamard else DTYPES
    small = shapes(33, 33) | st.sampled_from([(17, 130), (130, 17), (5, 440)])
    x = data.draw(
        matrices(spec.block, spec.element.format, dtype=data.draw(st.sampled_from(dtypes)), shape=small, finite=False)
    )
    if spec.hadamard:
        x = x[: len(x) // 16 * 16]
    directions = data.draw(st.sampled_from((*BOTH, "both")))
    q = same(
        x, spec, directions, data.draw(st.sampled_from(LAYOUTS)), random_bits=random_bits(spec, x.shape, directions)
    )
    for direction in BOTH:
        if getattr(q, direction) is not None:
            same_values(q, data.draw(st.sampled_from(dtypes)), direction)


@pytest.mark.sampled(3)
@pytest.mark.rule("NUM-2", "BLK-2", "GLB-3")
@pytest.mark.parametrize("spec", by_parts((*STANDARD, *OURS), NATIVE), ids=lambda spec: spec.name)
def test_special_values(spec):
    """In all types, those of a peer in one of them; peers take turns."""
    ours = spec in (*STANDARD, *OURS)
    for dtype in (BFLOAT16,) if spec.hadamard else DTYPES if ours else DTYPES[NATIVE.index(spec) % 3 :][:1]:
        x = mixed(dtype=dtype)
        for rows in (slice(None), slice(0, 4), slice(6, 8), slice(3, 4)):  # all; without NaN and Inf; zeros alone
            part = np.tile(x[rows], (16, 1)) if spec.hadamard else x[rows]
            same(part, spec, "both", random_bits=random_bits(spec, part.shape, "both"))


@pytest.mark.rule("HAD-1", "HAD-2", "HAD-3", "HAD-4", "HAD-6")
@settings(max_examples=15)
@given(x=matrices(shape=st.sampled_from([(16, 1), (48, 33), (64, 130)]), dtype=BFLOAT16, finite=False))
def test_hadamard_and_back(x):
    q = same(x, fp4ref.NVFP4_RHT, "both", "tiled_128x4")
    for dtype in ("float32", "bfloat16", "float16"):
        same_values(q, dtype, "column", inverse_hadamard=True)


@pytest.mark.rule("HAD-5")
def test_inverse_hadamard_of_a_ragged_direction():
    q = fp4ref.quantize(np.ones((16, 4), BFLOAT16), fp4ref.NVFP4_RHT, "column", backend="numpy")
    column = q.column._replace(data=q.column.data[:, :6])
    ragged = dataclasses.replace(q, shape=(12, 4), column=column)
    with pytest.raises(ShapeError, match="hadamard of 12 rows"):
        fp4ref.dequantize(ragged, direction="column", inverse_hadamard=True, backend="torch")


@pytest.mark.rule("GLB-4", "GLB-5", "BLK-6")
@pytest.mark.parametrize("amax", [0.0, 1e-40, 2.0**-120, 0.5, 300.0, 3e38, np.inf])
def test_a_callers_amax(amax):
    x = mixed((20, 100), np.float32)
    for spec in (fp4ref.NVFP4, fp4ref.NVFP4_4OVER6, fp4ref.NVFP4_2D):
        same_values(same(x, spec, "both", amax=amax), "bfloat16", "row")
    rows = Directions(np.full(20, amax, np.float32), np.geomspace(1e-30, 1e30, 100).astype(np.float32))
    same_values(same(x, fp4ref.NVFP4_ROW_SCALED, "both", amax=rows), "float32", "column")


@pytest.mark.rule("SR-1", "SR-2", "SR-3")
def test_random_bits_of_any_strides_and_kinds():
    x, bits = mixed((48, 70), np.float32), np.random.default_rng(9).integers(0, 256, (48, 70), np.uint8)
    same(x, STOCHASTIC, "both", "tiled_8x4", random_bits=Directions(np.asfortranarray(bits)[::-1], bits.T))
    expected = fp4ref.quantize(x, STOCHASTIC, random_bits=bits, backend="numpy")
    whole(fp4ref.quantize(x, STOCHASTIC, random_bits=torch.from_numpy(bits), backend="torch"), expected)


@pytest.mark.rule("BLK-9")
@pytest.mark.parametrize("shape", [(0,), (0, 16), (16, 0), (0, 0), (2, 0, 32), (3, 32, 0)])
@pytest.mark.parametrize("spec", [fp4ref.NVFP4, fp4ref.NVFP4_ROW_SCALED, fp4ref.MXFP8_2D, fp4ref.NVFP4_RHT])
def test_zero_sizes(shape, spec):
    for scale_layout in LAYOUTS:
        q = same(np.zeros(shape, BFLOAT16), spec, "both", scale_layout)
        for direction in BOTH:
            same_values(q, "bfloat16", direction)


def views(x, cube):
    """One matrix and one cube seen in many ways, as tensors."""
    return {
        "transposed": x.T,
        "every second": x[::2, 1:69:2],
        "columns of a wider one": x[:, 3:37],
        "broadcast": x[:1].expand(48, 70),
        "vector": x[0],
        "strided vector": x[:, 0],
        "axes swapped": cube.transpose(0, 1),
        "last axis moved": cube.transpose(1, 2),
        "part": cube[1:, ::3, 2:],
        "requires grad": x.clone().requires_grad_(),
    }


@pytest.mark.rule("NUM-4", "BLK-8")
@pytest.mark.parametrize("name", views(torch.zeros(48, 70), torch.zeros(2, 2, 2)))
def test_tensors_of_any_strides_keep_their_kind(name):
    x = tensor(mixed((48, 70), np.float32))
    view = views(x, x.reshape(4, 12, 70))[name]
    before = view.detach().clone()
    for spec in (fp4ref.NVFP4, fp4ref.NVFP4_2D, fp4ref.NVFP4_ROW_SCALED):
        q = fp4ref.quantize(view, spec, "both", "tiled_8x4", backend="torch")
        assert isinstance(q.row.data, torch.Tensor)
        whole(q, fp4ref.quantize(view.detach().numpy(), spec, "both", "tiled_8x4", backend="numpy"))
        y = fp4ref.dequantize(q, torch.bfloat16, backend="torch")
        assert (y.dtype, y.shape) == (torch.bfloat16, view.shape)
    assert torch.equal(view.detach().view(torch.int32), before.view(torch.int32))


@pytest.mark.rule("NUM-4")
def test_numpy_arrays_that_torch_cannot_hold():
    x = mixed((48, 70), np.float32)
    frozen = x.copy()
    frozen.flags.writeable = False
    raw = np.zeros(x.nbytes + 1, np.uint8)[1:]
    raw[:] = x.view(np.uint8).ravel()
    for array in (x[::-1, ::-1], frozen, raw.view(np.float32).reshape(x.shape), x.astype(BFLOAT16)[::-2]):
        expected = fp4ref.quantize(array, fp4ref.NVFP4, "both", backend="numpy")
        got = fp4ref.quantize(array, fp4ref.NVFP4, "both", backend="torch")
        assert isinstance(got.row.data, np.ndarray)
        whole(got, expected)


@pytest.mark.parametrize("spec", [fp4ref.NVFP4, fp4ref.NVFP4_2D, fp4ref.NVFP4_ROW_SCALED, fp4ref.NVFP4_RHT, STOCHASTIC])
def test_pieces_make_the_whole(spec, monkeypatch):
    monkeypatch.setattr(quantizer, "ELEMENTS_ON_CPU", 700)
    x = mixed((48, 70))
    q = same(x, spec, "both", "tiled_128x4", random_bits=random_bits(spec, x.shape, "both"))
    same_values(q, "bfloat16", "row")
    same_values(q, "float32", "column", inverse_hadamard=spec.hadamard is not None)


@pytest.mark.parametrize("spec", [fp4ref.NVFP4, fp4ref.MXFP8_E4M3, fp4ref.NVFP4_ROW_SCALED, fp4ref.NVFP4_RHT])
def test_threads_do_not_change_a_bit(spec, two_threads):
    x = mixed((144, 500))  # torch divides what has more than 32768 elements
    same_values(same(x, spec, "both"), "bfloat16", "column")


@pytest.mark.rule("LAY-5")
@pytest.mark.parametrize("scale_layout", LAYOUTS)
def test_out_is_filled_and_returned(scale_layout):
    x = mixed((17, 33), np.float32)
    expected = fp4ref.quantize(x, fp4ref.NVFP4, "both", scale_layout, backend="numpy")
    for make in (np.copy, tensor):
        parts = {d: DirectionData(*(make(np.full_like(v, 0x55)) for v in getattr(expected, d))) for d in BOTH}
        out = dataclasses.replace(expected, **parts)
        got = fp4ref.quantize(make(x), fp4ref.NVFP4, "both", scale_layout, out=out, backend="torch")
        assert got.row is out.row
        whole(out, expected)
    out.row.data.zero_()
    frozen = dataclasses.replace(expected, row=expected.row._replace(data=expected.row.data[:]))
    frozen.row.data.flags.writeable = False
    with pytest.raises(BackendError, match="read-only"):
        fp4ref.quantize(x, fp4ref.NVFP4, "row", scale_layout, out=frozen, backend="torch")


@pytest.mark.rule("LAY-1", "LAY-2", "LAY-3", "LAY-4", "LAY-5", "LAY-6")
@settings(max_examples=30)
@given(shape=st.tuples(st.integers(0, 300), st.integers(0, 20)), names=st.tuples(*[st.sampled_from(LAYOUTS)] * 2))
def test_moving_scales_between_layouts(shape, names):
    scales = np.random.default_rng(7).integers(0, 256, shape, np.uint8)
    source, target = (fp4ref.LAYOUTS[name] for name in names)
    buffer = source.from_linear(scales).copy()
    buffer[~source.valid(*shape)] = 0x7F
    call = Call("to_layout", layout=source, shape=shape, target=target)
    same_bytes(operations.to_layout(call, buffer), target.from_linear(scales))


@pytest.mark.rule("CNF-4")
def test_a_cpu_that_flushes_is_refused():
    assert torch.set_flush_denormal(True)
    try:
        with pytest.raises(BackendError, match=r"flushes subnormals to zero, need torch.set_flush_denormal\(False\)"):
            fp4ref.quantize(torch.ones(2, 32), fp4ref.NVFP4, backend="torch")
    finally:
        torch.set_flush_denormal(False)
    fp4ref.quantize(torch.ones(2, 32), fp4ref.NVFP4, backend="torch")


@pytest.mark.rule("CNF-5")
def test_what_is_not_served_is_said():
    x = torch.ones(2, 32)
    for spec, why in (
        ("modelopt.mxfp4", "arithmetic modelopt-mx is not written in torch: it rounds a logarithm"),
        (fp4ref.MXFP4.replace(scale=Codec(format=fp4ref.MXFP4.scale.format, nan=(0, 0))), "an e8m0 scale rounded even"),
        (fp4ref.NVFP4_RHT.replace(element=Codec(format=E2M1, nan=(7, 15))), "codes that show the sign of a NaN"),
    ):
        with pytest.raises(BackendError, match=why):
            fp4ref.quantize(x, spec, backend="torch")
    assert set(arithmetic.ORDERS) == fp4ref_torch.ARITHMETICS
    ours = {name for name in ARITHMETIC if "." not in name}  # those of others have a vendor
    assert fp4ref_torch.ARITHMETICS | set(fp4ref_torch.NOT_WRITTEN) == ours
    assert {spec.name for spec in STANDARD} <= {spec.name for spec in NATIVE}
    with pytest.raises(DomainError, match="random_bits"):
        fp4ref.quantize(x, STOCHASTIC, backend="torch")


def test_without_torch(monkeypatch):
    monkeypatch.setattr(fp4ref_torch, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match="torch is not installed"):
        fp4ref_torch.BACKEND.load()


def test_loading_the_backend_does_not_import_torch():
    code = "import sys, fp4ref_torch; fp4ref_torch.BACKEND.load(); print('torch' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "False\n"


def compiled(spec, direction, compiler, device="cpu", seed=0):
    """Quantize and dequantize in one graph without a break, against eager mode and the golden model."""
    x = mixed((48, 70), BFLOAT16 if spec.hadamard else np.float32, seed)
    rows, columns = x.shape if direction == "row" else x.shape[::-1]
    bits = random_bits(spec, x.shape, direction)

    def both(x, random):
        parts = quantize_tensor(x, spec, direction, "tiled_128x4", None, random)
        values = dequantize_tensor(*parts, (rows, columns), spec, "tiled_128x4", torch.bfloat16, x.dtype)
        return parts, values.to(torch.float32)  # a pair of conversions that a compiler likes to drop

    arguments = tensor(x, device), None if bits is None else tensor(bits, device)
    torch.compiler.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, about itself
        parts, values = torch.compile(both, fullgraph=True, backend=compiler)(*arguments)
    q = fp4ref.quantize(x, spec, direction, "tiled_128x4", random_bits=bits, backend="numpy")
    found = {"row": None, "column": None, direction: DirectionData(*parts)}
    whole(dataclasses.replace(q, **found), q)
    expected = fp4ref.dequantize(q, "bfloat16", direction, backend="numpy").reshape(rows, columns).astype(np.float32)
    same_bytes(host(values), expected)


TRACED = ("nvfp4", "nvfp4-4over6", "mxfp4-2d", "torchao.nvfp4_2lvl", "jax.mxfp8")


def _heavy(name):
    return pytest.param(name, marks=pytest.mark.heavy)


@pytest.mark.heavy
@pytest.mark.rule("NUM-1", "CNF-5")
@pytest.mark.parametrize("name", ["nvfp4-rht", *map(_heavy, TRACED)])
def test_a_graph_without_a_break(name):
    compiled(fp4ref.profiles[name], "column", "eager")


@pytest.mark.heavy  # a compiler is started for every operation
@pytest.mark.slow
@pytest.mark.rule("NUM-1", "HAD-3", "DEQ-3")
@pytest.mark.parametrize(
    "name, direction", [pytest.param("nvfp4-rht", "column", marks=pytest.mark.release), ("te.fast_math_1d", "row")]
)
def test_generated_code_has_equal_bits(name, direction):
    compiled(fp4ref.profiles[name], direction, "inductor")


def _gpu(test):
    for mark in on_gpu:
        test = mark(test)
    return test


@_gpu
@pytest.mark.rule("PRO-3", "NUM-2")
@pytest.mark.parametrize("spec", [*NATIVE, *OURS], ids=lambda spec: spec.name)
def test_cuda_is_the_model(spec):
    for dtype in (BFLOAT16,) if spec.hadamard else DTYPES:
        x = mixed((144, 200), dtype)
        bits = random_bits(spec, x.shape, "both")
        on_device = None if bits is None else Directions(*(tensor(part, "cuda") for part in bits))
        expected = fp4ref.quantize(x, spec, "both", "tiled_128x4", random_bits=bits, backend="numpy")
        got = fp4ref.quantize(tensor(x, "cuda"), spec, "both", "tiled_128x4", random_bits=on_device, backend="torch")
        assert got.row.data.device.type == "cuda"
        whole(got, expected)
        for direction in BOTH:
            for kind in ("float32", "bfloat16", "float16"):
                values = fp4ref.dequantize(got, kind, direction, backend="torch")
                with np.errstate(over="ignore"):
                    same_bytes(host(values), fp4ref.dequantize(expected, kind, direction, backend="numpy"), kind)


@_gpu
@pytest.mark.rule("E2M1-3", "E4M3-2", "E5M2-2", "E8M0-2")
def test_cuda_codecs():
    values = representatives()
    bits = np.random.default_rng(0).integers(0, 256, values.shape, np.uint8)
    for codec in all_codecs():
        random = bits if codec.rounding is Rounding.STOCHASTIC else None
        on_device = None if random is None else tensor(random, "cuda")
        got = codecs.encode(tensor(values, "cuda"), codec, on_device)
        same_bytes(host(got), codec.encode(values, random), f"{codec}")


@_gpu
@pytest.mark.rule("NUM-1", "HAD-3", "DEQ-3")
@pytest.mark.parametrize("spec", [*STANDARD, *OURS[:3]], ids=lambda spec: spec.name)
def test_cuda_generated_code_has_equal_bits(spec):
    for direction in BOTH if spec.global_scale != "row" else ("row",):
        compiled(spec, direction, "inductor", "cuda")


@pytest.mark.rule("APX-1")
def test_the_reciprocal_is_the_measured_one():
    """A part of the mantissas at every exponent; the whole table is read by the same line."""
    from fp4ref.reciprocal import reciprocal_approx
    from fp4ref_torch.reciprocal import reciprocal

    mantissas = np.append(np.arange(0, 1 << 23, 30011, dtype=np.uint32), np.uint32([1, 0x7FFFFF]))
    words = mantissas | np.arange(512, dtype=np.uint32)[:, None] << 23
    with np.errstate(invalid="ignore"):
        expected = reciprocal_approx(words.view(np.float32))
    got = reciprocal(torch.from_numpy(words.view(np.float32))).numpy()
    number = ~np.isnan(expected)
    assert np.array_equal(got.view(np.uint32)[number], expected.view(np.uint32)[number])
    assert np.isnan(got[~number]).all()


@pytest.mark.rule("SR-7", "TEL-6")
@pytest.mark.parametrize("seed", [0, 1, -1, 2**63 - 1, -(2**63), 12345678901234567])
def test_a_seed_in_memory_is_the_number(seed):
    def drawn(key):
        counters = Counters((3, 1), 5, key, 7)
        return operations.random_bits(
            Call("random_bits", device="cpu", shape=(5, 40)), counters, torch.device("cpu"), None
        )

    assert torch.equal(drawn(torch.tensor([seed])), drawn(seed % 2**64))
