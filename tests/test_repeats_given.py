"""Calls that repeat an earlier one with maxima, flags, random bytes and buffers of their own."""

from __future__ import annotations

import dataclasses
import os
from concurrent.futures import ThreadPoolExecutor

import ml_dtypes
import numpy as np
import pytest

import fp4ref
from fp4ref import Directions, plans, registry, repeats
from fp4ref.errors import Fp4Error
from fp4ref.registry import Call

X = np.random.default_rng(20).standard_normal((48, 80)).astype(np.float32)
SPEC, ROWS = "nvfp4", "nvfp4-row-scaled"
LARGEST = float(np.finfo(np.float32).max)


@pytest.fixture(autouse=True)
def none_remembered(monkeypatch):
    monkeypatch.setattr(repeats, "_repeats", {})


@pytest.fixture
def planned(monkeypatch):
    """Count the calls that are worked out."""
    counted = []
    for name in ("to_quantize", "to_dequantize"):
        original = getattr(plans, name)
        monkeypatch.setattr(
            plans, name, lambda *kind, name=name, original=original: counted.append(name) or original(*kind)
        )
    return counted


def both(spec, directions, **given):
    """Return what the cpu backend and the model make of the same call."""
    return [fp4ref.quantize(X, spec, directions, backend=backend, **given) for backend in ("cpu", "numpy")]


@pytest.mark.rule("GLB-4", "GLB-5", "GLB-8")
@pytest.mark.parametrize("directions", ["row", "column", "both"])
@pytest.mark.parametrize(
    "kind",
    [
        float,
        np.float32,
        lambda value: np.float32([value]),
        lambda value: np.float32(value).reshape(()),
        lambda value: np.float32([[value]]),
        lambda value: np.float16([value]),
        lambda value: np.asarray([value], ml_dtypes.bfloat16),
        lambda value: np.float32([0, value])[1:],
    ],
)
def test_given_maxima_are_those_of_the_call(kind, directions, planned):
    for value in (3.0, 0.0, -0.0, 1e-5, 2.5, float("inf")):
        got, wanted = both(SPEC, directions, amax=kind(value))
        assert got == wanted, value
    assert len(planned) == 6 + 1  # the model's are always worked out
    for bad in (float("nan"), -1.0, -float("inf")):
        with pytest.raises(Fp4Error, match="GLB-4"):
            fp4ref.quantize(X, SPEC, directions, backend="cpu", amax=kind(bad))


@pytest.mark.rule("GLB-4", "GLB-8")
def test_numbers_that_float32_does_not_hold_are_rounded_once():
    for value in (3, 2**24 + 1, 2**60 + 2**36 + 1, 2**127, 0.1, LARGEST, LARGEST * (1 + 2.0**-26), 1e-46):
        got, wanted = both(SPEC, "row", amax=value)
        assert got == wanted, value
    for bad in (1e39, 2**128, True, -1e-46, "3"):
        with pytest.raises(Fp4Error, match="GLB-4"):
            fp4ref.quantize(X, SPEC, backend="cpu", amax=bad)


@pytest.mark.rule("GLB-4", "GLB-5")
@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_maxima_of_rows_and_of_directions(library, planned):
    torch = pytest.importorskip("torch")
    for seed in range(3):
        rng = np.random.default_rng(seed)
        rows, columns = (rng.random(size, np.float32) + seed for size in X.shape)
        rows[0] = -0.0
        given = Directions(rows, columns.astype(ml_dtypes.bfloat16))
        wanted = fp4ref.quantize(X, ROWS, "both", backend="numpy", amax=given)
        x, amax = X, given
        if library == "torch":
            x = torch.from_numpy(X)
            words = torch.from_numpy(given.column.view(np.uint16))
            amax = Directions(torch.from_numpy(rows), words.view(torch.bfloat16))
        got = fp4ref.quantize(x, ROWS, "both", backend="cpu", amax=amax)
        assert got == wanted
    assert len(planned) == 3 + 1
    for part, bad in ((0, np.nan), (1, -1.0)):
        worse = [each.copy() for each in given]
        worse[part][2] = bad
        with pytest.raises(Fp4Error, match="GLB-4"):
            fp4ref.quantize(X, ROWS, "both", backend="cpu", amax=Directions(*worse))


@pytest.mark.rule("GLB-4", "HAD-1")
def test_maxima_of_transformed_columns():
    x = X.astype(ml_dtypes.bfloat16)
    for value in (2.0, 7.0):
        amax = Directions(np.float32([value]), value * 2)
        got = fp4ref.quantize(x, "nvfp4-rht", "both", backend="cpu", amax=amax)
        assert got == fp4ref.quantize(x, "nvfp4-rht", "both", backend="numpy", amax=amax)


@pytest.mark.rule("NUM-7", "GLB-4")
def test_a_maximum_that_is_negated_when_it_is_read():
    torch = pytest.importorskip("torch")
    x = torch.from_numpy(X)
    for value in (3.0, 2.0):
        held = torch.tensor([value])
        assert fp4ref.quantize(x, SPEC, backend="cpu", amax=held) == both(SPEC, "row", amax=value)[1]
        lazy = torch._neg_view(torch.tensor([-value]))
        assert fp4ref.quantize(x, SPEC, backend="cpu", amax=lazy) == both(SPEC, "row", amax=value)[1]
    with pytest.raises(Fp4Error, match="GLB-4"):
        fp4ref.quantize(x, SPEC, backend="cpu", amax=torch._neg_view(held))


@pytest.mark.rule("LAY-12", "LAY-56")
@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("dtype", ["uint8", "int32", "float32"])
def test_a_flag_is_read_in_every_call(library, dtype, planned):
    torch = pytest.importorskip("torch")
    values = {"uint8": [0, 1, 255], "int32": [0, -1, 256], "float32": [0.0, 1.0, -0.0, np.nan]}[dtype]
    model = fp4ref.quantize(X, SPEC, "both", backend="numpy")
    out = fp4ref.quantize(torch.from_numpy(X) if library == "torch" else X, SPEC, "both", backend="cpu")
    planned.clear()
    for number in (values[0], *values, values[0]):
        for shape in ((), (1,)):
            for data in (out.row, out.column):
                data.data[...], data.scales[...], data.amax[...] = 1, 2, 3
            flag, x = np.full(shape, number, dtype), X
            if library == "torch":
                flag, x = torch.from_numpy(flag), torch.from_numpy(X)
            got = fp4ref.quantize(x, SPEC, "both", backend="cpu", out=out, noop=flag)
            if np.full((), number, dtype).tobytes().strip(b"\0"):
                assert got is out
                for data in (out.row, out.column):
                    assert [np.unique(np.asarray(part)).tolist() for part in data] == [[1], [2], [3]]
            else:
                assert got == out == model
    assert len(planned) == 2  # one for each shape


@pytest.mark.rule("NUM-6")
@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_a_flag_a_maximum_and_random_bytes_inside_of_a_buffer_are_refused(library):
    torch = pytest.importorskip("torch")
    x = torch.from_numpy(X) if library == "torch" else X

    def ones(dtype, shape):
        return torch.ones(shape, dtype=getattr(torch, dtype)) if library == "torch" else np.ones(shape, dtype)

    out = fp4ref.quantize(x, "nvfp4-sr", backend="cpu", random_bits=ones("uint8", X.shape))
    given = {"amax": ones("float32", (1,)), "noop": ones("uint8", (1,)), "random_bits": ones("uint8", X.shape)}
    given["noop"][...] = 0
    memory = ones("uint8", (X.shape[0], 2 * X.shape[1]))
    places = memory[:, : X.shape[1] // 2], memory.reshape(-1)[: X.size].reshape(X.shape)
    for _ in range(2):
        fp4ref.quantize(x, "nvfp4-sr", backend="cpu", out=out, **given)
    inside = {"amax": out.row.amax, "noop": out.row.data[0, :1], "random_bits": places[1]}
    for name, value in inside.items():
        own = dataclasses.replace(out, row=out.row._replace(data=places[0])) if name == "random_bits" else out
        with pytest.raises(Fp4Error, match=f"overlaps {name}"):
            fp4ref.quantize(x, "nvfp4-sr", backend="cpu", out=own, **given | {name: value})


def read(q, out, backend="cpu", **how):
    return fp4ref.dequantize(q, str(out.dtype).rsplit(".", 1)[-1], backend=backend, out=out, **how)


@pytest.mark.rule("DEQ-1", "NUM-6")
@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("direction", ["row", "column"])
def test_values_into_an_array_of_the_caller(library, direction, planned):
    torch = pytest.importorskip("torch")
    for shape in ((48, 64), (3, 16, 64)):
        planned.clear()
        for seed in range(3):
            x = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
            q = fp4ref.quantize(x, ROWS, "both", "tiled_128x4", backend="numpy")
            wanted = fp4ref.dequantize(q, "bfloat16", direction, backend="numpy")
            out = np.zeros(wanted.shape, ml_dtypes.bfloat16)
            if library == "torch":
                out, parts = torch.zeros(wanted.shape, dtype=torch.bfloat16), lambda data: data.mapped(torch.from_numpy)
                q = dataclasses.replace(q, row=parts(q.row), column=parts(q.column))
            assert read(q, out, direction=direction) is out
            held = out.view(torch.uint16).numpy() if library == "torch" else out.view(np.uint16)
            np.testing.assert_array_equal(held, wanted.view(np.uint16))
        assert planned.count("to_dequantize") == 3 + 1


@pytest.mark.rule("NUM-6", "DEQ-3")
def test_values_are_refused_where_they_cannot_be_written_after_others_that_could():
    q, out = fp4ref.quantize(X, SPEC, backend="cpu"), np.zeros(X.shape, np.float32)
    for _ in range(2):
        read(q, out)
    frozen = out.copy()
    frozen.flags.writeable = False
    inside = dataclasses.replace(q, row=q.row._replace(amax=out[0, :1]))
    for each, where, needed in (
        (q, frozen, "read-only"),
        (inside, out, "overlaps amax"),
        (q, np.zeros((48, 160), np.float32)[:, ::2], "gaps"),
        (q, out[1:], "DEQ-3"),
    ):
        with pytest.raises(Fp4Error, match=needed):
            read(each, where)


@pytest.mark.rule("GEM-8")
def test_what_is_added_to_a_product_has_any_type_and_place():
    torch = pytest.importorskip("torch")
    a = fp4ref.quantize(X, SPEC, backend="cpu")
    for library in ("numpy", "torch"):
        for dtype in ("float32", "bfloat16", "float16"):
            for seed in range(3):
                values = np.random.default_rng(seed).standard_normal(2 * 48).astype(fp4ref.arrays.INPUT_DTYPES[dtype])
                raw = np.frombuffer(b"\0" * (seed % 2) + values.tobytes(), np.uint8)[seed % 2 :].view(values.dtype)
                bias = raw[::2] if seed == 2 else raw[:48]
                wanted = fp4ref.gemm(a, a, bias=bias, backend="numpy")
                given, held = bias, a
                if library == "torch":
                    given = torch.from_numpy(bias.astype(np.float32)).to(getattr(torch, dtype))
                    held = dataclasses.replace(a, row=a.row.mapped(torch.from_numpy))
                got = fp4ref.gemm(held, held, bias=given, backend="cpu")
                np.testing.assert_array_equal(np.asarray(got).view(np.uint32), wanted.view(np.uint32))
    for seed in range(2):
        sums = np.random.default_rng(seed).standard_normal((48, 96)).astype(np.float32)[:, ::2]
        got, wanted = (fp4ref.gemm(a, a, accumulate=sums, backend=backend) for backend in ("cpu", "numpy"))
        np.testing.assert_array_equal(got.view(np.uint32), wanted.view(np.uint32))


@pytest.mark.rule("SPC-4", "GLB-4")
def test_a_specification_by_name_is_looked_up_again(monkeypatch):
    assert both(SPEC, "row", amax=2.0)[0] == both(SPEC, "row", amax=2.0)[1]
    only = {"numpy": registry.backends()["numpy"]}
    monkeypatch.setattr(registry, "backends", lambda: only)
    assert fp4ref.quantize(X, SPEC, amax=2.0) == fp4ref.quantize(X, SPEC, amax=2.0, backend="numpy")
    with pytest.raises(Fp4Error, match="unknown name 'cpu'"):
        fp4ref.quantize(X, SPEC, amax=2.0, backend="cpu")


def test_threads_share_a_call_with_buffers():
    wanted = [fp4ref.quantize(X * (i + 1), SPEC, "both", backend="numpy", amax=9.0 + i) for i in range(40)]
    outs = [fp4ref.quantize(X, SPEC, "both", backend="cpu") for _ in wanted]

    def act(i):
        return fp4ref.quantize(X * (i + 1), SPEC, "both", backend="cpu", amax=9.0 + i, out=outs[i])

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(act, range(40))) == wanted == outs


@pytest.mark.skipif(not hasattr(os, "fork"), reason="a system without fork")
def test_a_child_process_repeats_calls_of_its_parent():
    wanted = both(SPEC, "both", amax=2.0)[0]
    child = os.fork()
    if not child:
        os._exit(0 if fp4ref.quantize(X, SPEC, "both", backend="cpu", amax=2.0) == wanted else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.rule("TEL-8")
def test_a_scale_that_is_not_aligned_is_copied():
    cpu, values = registry.get("cpu"), np.arange(64, dtype=np.uint8).reshape(4, 16)
    call = Call("tensor_decode", fp4ref.MXFP8_E4M3, to="float32", shape=(4, 16))
    odd = np.frombuffer(b"\0" + np.float32([0.75]).tobytes(), np.uint8)[1:].view(np.float32)
    assert not odd.flags.aligned
    again = cpu.bind_tensor_decode(call, values, np.float32([1]))
    np.testing.assert_array_equal(again(values, odd), cpu.tensor_decode(call, values, np.float32([0.75])))


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("shape", [(128, 128), (16, 16), (37, 53), (1, 7), (0, 5), (300, 1030), (17, 512)])
def test_bytes_are_turned(library, shape):
    torch, cpu = pytest.importorskip("torch"), registry.get("cpu")
    call = Call("turned", shape=shape)
    first = np.random.default_rng(1).integers(0, 256, shape, np.uint8)
    given = torch.from_numpy(first) if library == "torch" else first
    again = cpu.bind_turned(call, given)
    for codes in (first, first[::-1].copy()):
        x = torch.from_numpy(codes) if library == "torch" else codes
        for got in (cpu.turned(call, x), again(x)):
            np.testing.assert_array_equal(np.asarray(got), codes.T)
            assert np.asarray(got).flags.c_contiguous
    np.testing.assert_array_equal(cpu.turned(call, first.T.copy().T), first.T)
    assert cpu.bind_turned(call, first.T.copy().T) is None or 1 in shape or 0 in shape
    for bad in (first.astype(np.int16), np.zeros((3, 3), np.uint8)):
        with pytest.raises(Fp4Error):
            cpu.turned(call, bad)


@pytest.mark.rule("DEQ-1")
def test_a_maximum_that_is_not_aligned_is_copied():
    q = fp4ref.quantize(X, SPEC, backend="cpu")
    for value in (1.0, 3.0):
        odd = np.frombuffer(b"\0" + np.float32([value]).tobytes(), np.uint8)[1:].view(np.float32)
        own, out = dataclasses.replace(q, row=q.row._replace(amax=odd)), np.zeros(X.shape, np.float32)
        wanted = fp4ref.dequantize(own, backend="numpy")
        for got in (fp4ref.dequantize(own, backend="cpu"), read(own, out)):
            np.testing.assert_array_equal(got.view(np.uint32), wanted.view(np.uint32))


@pytest.mark.rule("GLB-5", "BLK-8")
@pytest.mark.parametrize("spec", [ROWS, "te.fp8_block_2d", "mxfp8-2d"])
def test_matrices_that_fill_a_part_of_a_strip(spec):
    for rows, columns in ((3, 255), (130, 256), (2, 257), (128, 513), (129, 16), (16, 1100)):
        x = np.random.default_rng(rows).standard_normal((rows, columns)).astype(ml_dtypes.bfloat16)
        got, wanted = (fp4ref.quantize(x, spec, "both", backend=backend) for backend in ("cpu", "numpy"))
        assert got == wanted, (rows, columns)
