"""Calls that repeat an earlier one: they give the bytes of the model, and nothing stale is remembered."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import ml_dtypes
import numpy as np
import pytest

import fp4ref
from fp4ref import api, plans, registry, repeats
from fp4ref.errors import Fp4Error
from fp4ref.layout import LAYOUTS, Layout

RNG = np.random.default_rng(18)
X = RNG.standard_normal((48, 80)).astype(np.float32)
SPEC = "nvfp4"
FILLED, PADDED = "test.filled", "linear_padded"


@pytest.fixture(autouse=True)
def none_remembered(monkeypatch):
    monkeypatch.setattr(repeats, "_repeats", {})


@pytest.fixture(autouse=True, scope="module")
def filled():
    """Register a layout whose padding is no zero."""
    fp4ref.register(Layout(FILLED, "m(32,*) k(4,*): m0 k0 m1 k1; pad m 0x7f; pad k 0x05"), source="a test")
    yield
    LAYOUTS.forget(FILLED)


@pytest.fixture
def checks(monkeypatch):
    """Count the calls that are worked out."""
    counted = []
    for name in ("to_quantize", "to_dequantize", "to_move"):
        original = getattr(plans, name)

        def count(*arguments, name=name, original=original):
            counted.append(name)
            return original(*arguments)

        monkeypatch.setattr(plans, name, count)
    return counted


def arrays():
    """Arrays of many kinds, each with the values that the call shall see."""
    wide, odd = RNG.standard_normal((96, 160)).astype(np.float32), np.frombuffer(b"\0" + X.tobytes(), np.uint8)
    frozen = X.copy()
    frozen.flags.writeable = False
    records = np.zeros(X.shape, [("value", np.float32), ("beside", np.uint8)])
    records["value"] = X
    cube = RNG.standard_normal((6, 8, 32)).astype(np.float16)
    return {
        "plain": X.copy(),
        "bfloat16": X.astype(ml_dtypes.bfloat16),
        "every other": wide[::2, ::2],
        "backwards": X[::-1, ::-1],
        "turned": np.ascontiguousarray(X.T).T,
        "not aligned": odd[1:].view(np.float32).reshape(X.shape),
        "five bytes apart": records["value"],
        "read-only": frozen,
        "cube": cube,
        "cube with gaps": cube[:, ::2],
        "no row": X[:0],
        "no column": X[:, :0],
        "one element": X[:1, :1],
    }.items()


@pytest.mark.rule("BLK-8", "NUM-4")
@pytest.mark.parametrize(("name", "x"), [*arrays()])
@pytest.mark.parametrize("directions", ["row", "column", "both"])
def test_repeated_calls_of_numpy_arrays_give_the_models_bytes(name, x, directions, checks):
    for _ in range(3):
        got = fp4ref.quantize(x, SPEC, directions, "tiled_128x4", backend="cpu")
        assert got == fp4ref.quantize(x, SPEC, directions, "tiled_128x4", backend="numpy")
    served = checks.count("to_quantize") - 3  # without those of the model, which binds nothing
    assert served == (3 if name in {"cube with gaps", "five bytes apart"} else 1)


@pytest.mark.rule("NUM-7")
def test_torch_tensors_of_every_kind():
    torch = pytest.importorskip("torch")
    x = torch.from_numpy(X)
    kinds = [x, x.bfloat16(), x.half()[::2], x.T, x[:, 3:], torch._neg_view(x), torch.complex(x, -x).conj().imag]
    kinds += [x.clone().requires_grad_(), torch.nn.Parameter(x.clone())]
    for each in kinds:
        for shift in range(3):  # other bytes at another address
            with torch.no_grad():
                moved = (each + shift) if shift else each
            got = fp4ref.quantize(moved, SPEC, "both", backend="cpu")
            values = moved.detach().resolve_conj().resolve_neg()
            expected = fp4ref.quantize(values, SPEC, "both", backend="numpy")
            assert got == expected
            back = fp4ref.dequantize(got, "bfloat16", "column", backend="cpu")
            assert torch.equal(back, fp4ref.dequantize(expected, "bfloat16", "column", backend="numpy"))
            assert fp4ref.to_layout(got, "tiled_8x4", backend="cpu") == fp4ref.to_layout(
                expected, "tiled_8x4", backend="numpy"
            )


@pytest.mark.sampled(5)
@pytest.mark.rule("HAD-1", "HAD-2", "HAD-3", "HAD-4", "GLB-1")
@pytest.mark.parametrize("signs", [0, 0xA5C3, 0xFFFF])
@pytest.mark.parametrize("shape", [(16, 16), (48, 37), (128, 130), (32, 1), (528, 512)])
def test_transformed_columns_are_repeated(signs, shape, checks):
    """Small ones are transformed once, and then are rows; the last shape is too large for that."""
    spec = fp4ref.profiles["nvfp4-rht"].replace(hadamard=fp4ref.Hadamard(signs))
    for turn in range(4):
        x = (np.random.default_rng(turn).standard_normal(shape) * 2.0 ** (40 * turn)).astype(ml_dtypes.bfloat16)
        if turn == 3:  # of every payload and sign
            at = np.random.default_rng(9).random(shape) < 0.01
            x[at] = np.resize(np.uint16([0x7F81, 0xFFFF, 0x7F80, 0xFF80, 0x7FC0, 0xFF85, 0x7F7F]), at.sum()).view(
                x.dtype
            )
        for each in (x, np.asfortranarray(x)):
            got = fp4ref.quantize(each, spec, "both", "tiled_128x4", backend="cpu")
            assert got == fp4ref.quantize(x, spec, "both", "tiled_128x4", backend="numpy"), turn
    assert checks.count("to_quantize") == 8 + (2 if min(shape) > 1 else 1)  # the model's are always worked out


@pytest.mark.rule("LAY-5", "LAY-15", "LAY-42", "GLB-5")
@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("spec", ["nvfp4", "nvfp4-row-scaled", "mxfp6-e2m3", "mxfp8-e4m3"])
def test_padding_and_maxima_of_new_results_are_written(library, spec, checks):
    form = "tiled_128x4"
    for layout in (form, FILLED, PADDED):
        for turn in range(3):
            x = np.random.default_rng(turn).standard_normal((37, 112)).astype(np.float32) * (turn + 1)
            given = pytest.importorskip("torch").from_numpy(x) if library == "torch" else x
            got = fp4ref.quantize(given, spec, "both", layout, backend="cpu")
            want = fp4ref.quantize(x, spec, "both", layout, backend="numpy")
            assert got == want, (layout, turn)
            moved = fp4ref.to_layout(fp4ref.quantize(given, spec, "both", backend="cpu"), layout, backend="cpu")
            assert moved == want, (layout, turn)
    assert checks.count("to_quantize") == 3 * 3 + 3 + 1


def test_large_results_are_in_large_pages_in_every_call():
    """NumPy asks the system for them; filling small pages of a new 128 MB takes four times as long."""
    torch = pytest.importorskip("torch")
    for rows, owned in ((64, True), (4096, False)):
        x = torch.ones(rows, 1024, dtype=torch.bfloat16)
        q = fp4ref.quantize(x, SPEC, backend="cpu")
        for _ in range(2):
            values = fp4ref.dequantize(q, "bfloat16", backend="cpu")
        assert values.untyped_storage().resizable() == owned  # memory of NumPy's is not
        assert torch.equal(values, fp4ref.dequantize(q, "bfloat16", backend="numpy"))


@pytest.mark.rule("DEQ-1", "LAY-6")
@pytest.mark.parametrize("spec", ["nvfp4", "mxfp8-e4m3", "nvfp4-rht", "nvfp4-row-scaled"])
def test_reading_is_repeated(spec, checks):
    for seed in range(3):
        x = np.random.default_rng(seed).standard_normal((64, 96)).astype(ml_dtypes.bfloat16)
        q = fp4ref.quantize(x, spec, "both", backend="numpy")
        moved = fp4ref.to_layout(q, "tiled_128x4", backend="cpu")
        assert moved == fp4ref.to_layout(q, "tiled_128x4", backend="numpy")
        for direction in ("row", "column"):
            values = fp4ref.dequantize(moved, "float32", direction, backend="cpu")
            model = fp4ref.dequantize(q, "float32", direction, backend="numpy")
            np.testing.assert_array_equal(values.view(np.uint32), model.view(np.uint32))
    assert checks.count("to_dequantize") == 2 + 6  # the model's are always worked out
    assert checks.count("to_move") == 2 + 6


def test_other_arguments_are_another_kind(checks):
    for directions, form, spec in (
        ("row", "linear", SPEC),
        ("column", "linear", SPEC),
        ("row", "tiled_8x4", SPEC),
        ("row", "linear", "mxfp8-e4m3"),
        ("row", "linear", fp4ref.NVFP4),
    ):
        for _ in range(2):
            fp4ref.quantize(X, spec, directions, form, backend="cpu")
    assert checks == ["to_quantize"] * 5


@pytest.mark.rule("SPC-4")
def test_a_name_that_stands_for_another_value_is_looked_up_again():
    name, x = "test.tiles", np.ones((16, 64), np.float32) * np.arange(1, 17, dtype=np.float32)[:, None]
    for digits in ("m(8,*) k(4,*): m0 k0 k1 m1", "m(8,*) k(4,*): k0 m0 k1 m1"):
        fp4ref.register(Layout(name, digits), source="a test")
        try:
            for _ in range(2):
                got = fp4ref.quantize(x, SPEC, scale_layout=name, backend="cpu")
                assert got == fp4ref.quantize(x, SPEC, scale_layout=name, backend="numpy")
        finally:
            LAYOUTS.forget(name)
    with pytest.raises(fp4ref.LayoutError):
        fp4ref.quantize(x, SPEC, scale_layout=name, backend="cpu")


@pytest.mark.rule("CNF-5")
def test_other_backends_are_asked_again(monkeypatch):
    fp4ref.quantize(X, SPEC)
    only = {"numpy": registry.backends()["numpy"]}
    monkeypatch.setattr(registry, "backends", lambda: only)
    names = []
    monkeypatch.setattr(plans, "to_quantize", lambda *kind, work=plans.to_quantize: names.append(kind) or work(*kind))
    assert fp4ref.quantize(X, SPEC) == fp4ref.quantize(X, SPEC)
    assert len(names) == 2


@pytest.mark.rule("LAY-7")
def test_a_result_that_lost_bytes_is_refused_after_good_ones():
    q = fp4ref.quantize(X, SPEC, backend="cpu")
    for _ in range(2):
        fp4ref.dequantize(q, backend="cpu")
    bad = {
        "data": q.row.data[:, :-1],
        "scales": q.row.scales[:-1],
        "amax": q.row.amax.astype(np.float64),
    }
    for name, value in bad.items():
        worse = dataclasses.replace(q, row=q.row._replace(**{name: value}))
        for call in (
            lambda q=worse: fp4ref.dequantize(q, backend="cpu"),
            lambda q=worse: fp4ref.to_layout(q, "tiled_8x4"),
        ):
            with pytest.raises(Fp4Error, match=f"row.{name}"):
                call()


def test_arguments_without_a_hash_meet_the_checks():
    q = fp4ref.quantize(X, SPEC, backend="cpu")
    with pytest.raises(Fp4Error):
        fp4ref.quantize(X, SPEC, directions=["row"])
    with pytest.raises(Fp4Error):
        fp4ref.dequantize(q, direction=["row"])
    with pytest.raises(Fp4Error):
        fp4ref.to_layout(q, [1])


def test_threads_share_what_is_remembered():
    inputs = [np.random.default_rng(seed).standard_normal((64, 64)).astype(np.float32) for seed in range(40)]
    expected = [fp4ref.quantize(x, SPEC, "both", backend="numpy") for x in inputs]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda x: fp4ref.quantize(x, SPEC, "both", backend="cpu"), inputs)) == expected


def test_what_is_remembered_is_bounded(monkeypatch):
    monkeypatch.setattr(repeats, "KEPT", 3)
    for rows in range(1, 9):
        fp4ref.quantize(X[:rows], SPEC, backend="cpu")
        assert len(repeats._repeats) <= 3


@pytest.mark.rule("NUM-6", "LAY-7")
@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_buffers_of_the_caller_are_filled_again(library, checks):
    for directions in ("row", "both"):
        out = None
        for seed in range(4):
            x = np.random.default_rng(seed).standard_normal((48, 64)).astype(np.float32)
            expected = fp4ref.quantize(x, SPEC, directions, "tiled_128x4", backend="numpy")
            if library == "torch":
                x = pytest.importorskip("torch").from_numpy(x)
            got = fp4ref.quantize(x, SPEC, directions, "tiled_128x4", backend="cpu", out=out)
            assert got == expected
            assert out is None or (got.row.data is out.row.data and out == expected)
            out = got
    assert checks.count("to_quantize") == 8 + 4  # the model's; a kind without buffers and one with them, twice


@pytest.mark.rule("NUM-6")
def test_repeated_calls_refuse_buffers_that_overlap_or_cannot_be_written():
    x = X.copy()
    out = fp4ref.quantize(x, SPEC, backend="cpu")
    for _ in range(2):
        fp4ref.quantize(x, SPEC, backend="cpu", out=out)
    memory = np.zeros(out.row.data.nbytes + out.row.scales.nbytes, np.uint8)
    shared = out.row._replace(
        data=memory[: out.row.data.nbytes].reshape(out.row.data.shape),
        scales=memory[out.row.data.nbytes - 1 :][: out.row.scales.nbytes].reshape(out.row.scales.shape),
    )
    with pytest.raises(Fp4Error, match="overlaps"):
        fp4ref.quantize(x, SPEC, backend="cpu", out=dataclasses.replace(out, row=shared))
    frozen = out.row.data.copy()
    frozen.flags.writeable = False
    with pytest.raises(Fp4Error, match="read-only"):
        fp4ref.quantize(x, SPEC, backend="cpu", out=dataclasses.replace(out, row=out.row._replace(data=frozen)))
    gaps = np.zeros((out.row.data.shape[0], 2 * out.row.data.shape[1]), np.uint8)[:, ::2]
    for _ in range(2):
        wide = dataclasses.replace(out, row=out.row._replace(data=gaps))
        assert fp4ref.quantize(x, SPEC, backend="cpu", out=wide) == fp4ref.quantize(x, SPEC, backend="numpy")


@pytest.mark.rule("GLB-4")
def test_a_maximum_is_checked_every_time():
    for amax in (3.0, np.float32([3.0])):
        for _ in range(2):
            got = fp4ref.quantize(X, SPEC, backend="cpu", amax=amax)
            assert got == fp4ref.quantize(X, SPEC, backend="numpy", amax=amax)
    with pytest.raises(Fp4Error, match="GLB-4"):
        fp4ref.quantize(X, SPEC, backend="cpu", amax=np.float32([np.nan]))


@pytest.mark.rule("SR-1")
@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_random_bytes_are_those_of_the_call(library, checks):
    torch = pytest.importorskip("torch")
    spec, out = fp4ref.profiles["nvfp4-sr"], None
    for seed in range(4):
        bits = np.random.default_rng(seed).integers(0, 256, X.shape, np.uint8)
        x, given = (torch.from_numpy(each) if library == "torch" else each for each in (X * (seed + 1), bits))
        got = fp4ref.quantize(x, spec, backend="cpu", random_bits=given, out=out)
        assert got == fp4ref.quantize(X * (seed + 1), spec, backend="numpy", random_bits=bits)
        out = got if seed == 1 else None
    assert checks.count("to_quantize") == 4 + 2
    with pytest.raises(Fp4Error, match="SR-1"):
        fp4ref.quantize(X, spec, backend="cpu")
    apart = np.zeros((X.shape[0], 2 * X.shape[1]), np.uint8)[:, ::2]
    for seed in range(2):
        apart[...] = np.random.default_rng(seed).integers(0, 256, X.shape, np.uint8)
        got = fp4ref.quantize(X, spec, backend="cpu", random_bits=apart)
        assert got == fp4ref.quantize(X, spec, backend="numpy", random_bits=apart)


@pytest.mark.rule("SR-1", "HAD-1")
@pytest.mark.parametrize("spec", ["nvfp4-sr", "nvfp4-rht-sr"])
def test_random_bytes_of_both_directions_are_those_of_the_call(spec):
    x = X.astype(ml_dtypes.bfloat16)
    for seed in range(3):
        rng = np.random.default_rng(seed)
        bits = fp4ref.Directions(*(rng.integers(0, 256, shape, np.uint8) for shape in (x.shape, x.shape[::-1])))
        got = fp4ref.quantize(x, spec, "both", backend="cpu", random_bits=bits)
        assert got == fp4ref.quantize(x, spec, "both", backend="numpy", random_bits=bits)


def products():
    """Pairs of operands with the rest of a call, all of kinds of their own."""
    x, w = (RNG.standard_normal((rows, 96)).astype(np.float32) for rows in (33, 20))
    a, b = (fp4ref.quantize(part, SPEC, "both" if part is x else "row", "tiled_128x4") for part in (x, w))
    square = fp4ref.quantize(RNG.standard_normal((96, 96)).astype(np.float32), SPEC, "both")
    bias, sums = RNG.standard_normal(20).astype(np.float32), RNG.standard_normal((33, 20)).astype(ml_dtypes.bfloat16)
    yield a, b, {}
    yield a, b, {"mode": "blockwise", "alpha": -0.0}
    yield a, b, {"mode": "fast", "dtype": "float16", "alpha_rule": "division"}
    yield a, b, {"bias": bias, "accumulate": sums, "dtype": "bfloat16", "alpha": np.float32(1.5)}
    yield square, square, {"directions": ("row", "column")}
    yield square, square, {"directions": ("column", "row")}


@pytest.mark.rule("GEM-1", "GEM-5", "GEM-19")
def test_a_product_that_repeats_one_has_the_bytes_of_its_own_operands(monkeypatch):
    for a, b, rest in products():
        fp4ref.gemm(a, b, **rest)
        others = [dataclasses.replace(q, row=q.row.mapped(np.array)) for q in (a, b)]
        for q in others:
            q.row.data[:] = q.row.data[::-1].copy()
            q.row.amax[:] *= 1.5
        monkeypatch.setattr(fp4ref.multiply, "_operands", None)  # nothing is checked again
        for changed in (rest, rest | {"alpha": -rest["alpha"] if "alpha" in rest else 2.5}):
            got = fp4ref.gemm(*others, **changed)
            monkeypatch.undo()
            with monkeypatch.context() as alone:
                alone.setattr(repeats, "_repeats", {})
                want = fp4ref.gemm(*others, **changed)
            assert got.tobytes() == want.tobytes()
            assert got.dtype == want.dtype


@pytest.mark.rule("GEM-1", "GEM-19", "LAY-7")
def test_a_product_of_other_kinds_is_checked():
    (a, b, _), *_ = products()
    fp4ref.gemm(a, b)
    gap = np.zeros((33, 96), np.uint8)[:, ::2]
    for bad in (
        lambda: fp4ref.gemm(a, b, alpha=True),
        lambda: fp4ref.gemm(a, b, alpha="1"),
        lambda: fp4ref.gemm(a, b, bias=np.zeros(3, np.float32)),
        lambda: fp4ref.gemm(a, dataclasses.replace(b, row=b.row._replace(data=b.row.data[:, :8]))),
        lambda: fp4ref.gemm(dataclasses.replace(a, row=a.row._replace(amax=None)), b),
        lambda: fp4ref.gemm(a, None),
        lambda: fp4ref.gemm(a, b, directions="row"),
        lambda: fp4ref.gemm(a, b, directions=("row", "column")),
        lambda: fp4ref.gemm(a, b, mode="slow"),
    ):
        with pytest.raises(Fp4Error):
            bad()
    gap[:] = a.row.data
    strided = dataclasses.replace(a, row=a.row._replace(data=gap))
    assert fp4ref.gemm(strided, b).tobytes() == fp4ref.gemm(a, b).tobytes()


@pytest.mark.parametrize("directions", ["row", "column", "both"])
def test_the_directions_of_other_arrays_come_without_a_record_of_them(directions, checks):
    torch = pytest.importorskip("torch", exc_type=ImportError)
    x, other = (torch.from_numpy(values).bfloat16() for values in (X, 2 * X[::-1].copy()))
    asked = fp4ref.NVFP4, directions, "tiled_128x4"
    fp4ref.quantize(x, *asked)
    again = api.quantize_again(x, *asked)
    assert again is not None
    checks.clear()
    row, column = again(other)
    assert not checks
    wanted = fp4ref.quantize(other, *asked, backend="numpy")
    assert (row, column) == (wanted.row, wanted.column)
    assert api.quantize_again(torch._neg_view(x), *asked) is None


@pytest.mark.parametrize("shape", [(48,), (3, 48), (2, 3, 16), (1, 1, 16), (0, 16)])
def test_values_have_the_shape_of_the_tensor_in_each_call(shape):
    x = np.linspace(-6, 6, int(np.prod(shape)), dtype=np.float32).reshape(shape)
    q = fp4ref.quantize(x, fp4ref.NVFP4, "both")
    rows, columns = q.matrix
    wanted = [fp4ref.dequantize(q, direction=name, backend="numpy") for name in ("row", "column")]
    assert [each.shape for each in wanted] == [shape, (columns, rows)]
    for _ in range(3):
        for name, values in zip(("row", "column"), wanted, strict=True):
            got = fp4ref.dequantize(q, direction=name)
            assert got.shape == values.shape
            assert got.tobytes() == values.tobytes()


def test_a_result_that_is_moved_keeps_the_name_of_its_specification():
    mine = fp4ref.NVFP4.replace(name="vendor.mine")
    for spec in (fp4ref.NVFP4, mine, fp4ref.NVFP4):
        q = fp4ref.quantize(X, spec)
        for _ in range(3):
            assert fp4ref.to_layout(q, "tiled_128x4").spec.name == spec.name


@pytest.mark.rule("NUM-3")
def test_tensors_of_functionalization_are_refused_each_time():
    torch = pytest.importorskip("torch")
    x = torch.from_numpy(X)
    for _ in range(3):
        fp4ref.quantize(x, SPEC)
        with pytest.raises(fp4ref.DTypeError, match="functionalization, which has no memory"):
            torch.func.functionalize(lambda t: fp4ref.quantize(t, SPEC).row.data)(x)


@pytest.mark.rule("CNF-5")
def test_calls_of_numpy_load_no_torch():
    """Results without a row come first as None: what looks for tensors finds none, and needs no torch."""
    script = """
import sys
import numpy as np
import fp4ref
from fp4ref.errors import DomainError

x = np.ones((32, 32), np.float32)
for backend in ("numpy", None):
    columns = fp4ref.quantize(x, "nvfp4", "column", backend=backend)
    for _ in range(2):
        fp4ref.dequantize(columns, direction="column", backend=backend)
        fp4ref.to_layout(columns, "linear", backend=backend)
        try:
            fp4ref.gemm(columns, columns, backend=backend)
        except DomainError:
            continue
        raise SystemExit("not refused")
sys.exit("torch" in sys.modules)
"""
    run = subprocess.run([sys.executable, "-c", script], check=False, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
