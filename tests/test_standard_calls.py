"""Example tables of calls that are refused or have several parts, acted upon; see test_standard_examples."""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
from decimal import Decimal
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

import fp4ref
from fp4ref import packings, philox
from fp4ref.catalogue import PROFILES
from fp4ref.conformance.dumps.files import read_dump
from fp4ref.errors import Fp4Error
from fp4ref.formats import CUDA_E4M3, CUDA_E5M2, CUDA_E8M0, Format, FormatWithSecondZero
from fp4ref.layout import Layout
from fp4ref.specs import OWN
from fp4ref.standard.tables import codes_of, number_of
from standard_rules import RULES, rows_of

F = np.float32


def refused(rule, call, *given, **named):
    with pytest.raises(Fp4Error, match=rule):
        call(*given, **named)


@pytest.mark.rule("RES-4", "NUM-3", "GLB-5", "SPC-11", "GLB-4", "GLB-6")
@pytest.mark.example("RES-4")
def test_a_refusal_names_a_rule(tmp_path):
    x, record = np.ones((2, 16), F), json.loads(fp4ref.NVFP4.to_json())
    q, path = fp4ref.quantize(x, "nvfp4", backend="numpy"), tmp_path / "dump.npz"
    np.savez(path, x=x, data=q.row.data, scales=q.row.scales, amax=q.row.amax)
    calls = (
        lambda: fp4ref.quantize(x.astype(float), "nvfp4"),
        lambda: fp4ref.NVFP4_2D.replace(global_scale="row"),
        lambda: fp4ref.from_json(json.dumps(record | {"colour": 1})),
        lambda: fp4ref.quantize(F(1), "nvfp4"),
        lambda: fp4ref.quantize(x, "nvfp4-sr", random_bits=[[0] * 16] * 2),
        lambda: fp4ref.quantize(x, "mxfp4", amax=-1.0),
        lambda: fp4ref.quantize(x, "nvfp4", "diagonal"),
        lambda: fp4ref.dequantize(q, direction="column"),
        lambda: fp4ref.gemm(fp4ref.quantize(x, "nvfp4"), fp4ref.quantize(x, "nvfp4"), mode="nearest"),
        lambda: fp4ref.random_bits((2, 16), seed=True),
        lambda: Layout("broken", "m(*) k(*): k0m0"),
        lambda: fp4ref.quantize(x, "nvfp4", scale_layout="flashinfer.sf_128x4"),
        lambda: fp4ref.from_json(json.dumps(record)[:-1] + ', "name": "again"}'),
        lambda: fp4ref.dequantize(dataclasses.replace(q, row=q.row._replace(scales=np.zeros((3, 1), np.uint8)))),
        lambda: packings.repack(np.zeros(5, np.uint8), 2, 4, "high_first"),
        lambda: packings.packing("aiter.shuffle_weight_16x16", 6),
        lambda: Layout("repeated", "m(2,*) k(*): k0 m1; repeat m0").row_range(0, 2, 4, 4),
        lambda: read_dump(path),
        lambda: read_dump(path, "nvfp4", dtype="float64"),
    )
    words = ("float64", "blocks of 16 rows", "the field `colour`", "a NumPy scalar", "an array with a mask")
    words += ("a negative amax for `mxfp4`", "unknown direction", "does not have")
    words += (
        "unknown mode",
        "no integer",
        "a text of a layout",
        "three axes",
        "not strict",
        "another shape",
        "another size",
        "codes of 6 bits",
        "repeated digit",
    )
    words += ("a dump without a spec", "none of the three")
    assert fp4ref.NVFP4_2D.block.rows == 16
    for (case, names), call, word in zip(rows_of("RES-4"), calls, words, strict=True):
        assert word in case
        with pytest.raises(Fp4Error) as raised:
            call()
        assert raised.value.rule in re.findall(r"[A-Z]+-\d+", names.split(", by")[0])


@pytest.mark.rule("NUM-2")
@pytest.mark.example("NUM-2")
def test_the_sign_of_an_invalid_operation():
    ((profile, _, scale, codes),) = rows_of("NUM-2")
    row = fp4ref.quantize(np.zeros((1, 16), F), profile.strip("`"), backend="numpy").row
    assert row.scales.ravel().tolist() == codes_of(scale)
    (code,) = codes_of(re.search(r"\((\w) hex\) sixteen times", codes)[1])
    assert int(codes.split()[0]) == code
    assert fp4ref.packing.unpack(row.data, 16, PROFILES[profile.strip("`")].element.format).tolist() == [[code] * 16]


@pytest.mark.rule("NUM-6")
@pytest.mark.example("NUM-6")
def test_memory_that_is_shared():
    x = np.ones((16, 16), F)
    both = fp4ref.quantize(x, "nvfp4", "both")
    same = dataclasses.replace(both, column=both.column._replace(data=both.row.data))
    bits = np.zeros((16, 16), np.uint8)
    random = fp4ref.quantize(x, "nvfp4-sr", random_bits=bits)
    inside = dataclasses.replace(random, row=random.row._replace(scales=bits.reshape(-1)[:16].reshape(16, 1)))
    memory = np.zeros(2 * 128, np.uint8)
    halves = [part.reshape(16, 8) for part in np.split(memory, 2)]
    apart = dataclasses.replace(
        both, row=both.row._replace(data=halves[0]), column=both.column._replace(data=halves[1])
    )
    calls = {
        "`row.data` and `column.data` are one buffer": (same, "both", {"spec": "nvfp4"}),
        "`row.scales` is a slice of `random_bits`": (inside, "row", {"spec": "nvfp4-sr", "random_bits": bits}),
        "two slices of one allocation that have no byte in common": (apart, "both", {"spec": "nvfp4"}),
    }
    assert [row[0] for row in rows_of("NUM-6")] == [*calls]
    for words, result in rows_of("NUM-6"):
        out, directions, named = calls[words]
        if result == "refused":
            refused("NUM-6", fp4ref.quantize, x, directions=directions, out=out, **named)
        else:
            assert fp4ref.quantize(x, directions=directions, out=out, **named).row.data is out.row.data


@pytest.mark.rule("NUM-7")
@pytest.mark.example("NUM-7")
def test_views_that_a_library_negates():
    torch = pytest.importorskip("torch")
    ((call, memory, values),) = rows_of("NUM-7")
    t = torch.tensor([[float(v) for v in memory.split(",")]])
    assert re.fullmatch(r"`torch._neg_view\(t\)` with t = \[1, 2\]", call)
    view = torch._neg_view(t)
    expected = fp4ref.quantize(F([[float(v) for v in values.split(",")]]), "nvfp4").row
    got = fp4ref.quantize(view, "nvfp4").row
    assert np.asarray(got.data).tobytes() == expected.data.tobytes()


@pytest.mark.rule("SR-9", "SR-7")
@pytest.mark.example("SR-9")
def test_bytes_of_the_two_directions():
    (own, row, column), (_, _, same) = rows_of("SR-9")
    assert (own, row, column) == ("SR-7", "place even", "place odd")
    seed, stream = 5, 9
    for d, u in (("row", 2 * stream), ("column", 2 * stream + 1)):
        words = philox.philox4x32(np.uint32([[0, 0, u, 0]]), np.uint32([[seed, 0]])).astype("<u4")
        assert fp4ref.random_bits((16, 16), d, seed, stream)[0].tobytes() == words.tobytes()
    assert "both directions of an element round alike" in same
    x, bits = np.random.default_rng(1).uniform(-6, 6, (16, 16)).astype(F), fp4ref.random_bits((16, 16))
    q = fp4ref.quantize(x, "nvfp4-2d-sr", "both", random_bits=fp4ref.Directions(row=bits, column=bits.T.copy()))
    codes = [fp4ref.packing.unpack(part.data, 16, q.spec.element.format) for part in (q.row, q.column)]
    assert (codes[0] == codes[1].T).all()


@pytest.mark.rule("SR-10")
@pytest.mark.example("SR-10")
def test_maps_of_random_bytes():
    assert [row[0].strip("`") for row in rows_of("SR-10")] == [name for name in fp4ref.random_maps if name[:3] == "te."]
    for name, shape, place, shown in rows_of("SR-10", 1):
        rows, columns = map(int, shape.split(" x "))
        first, last = map(int, re.search(r"row 0, columns (\d+) to (\d+)", place).groups())
        drawn = fp4ref.random_maps[name.split("`")[1]]((rows, columns)).row
        assert drawn[0, first : last + 1].tolist() == codes_of(shown)


@pytest.mark.rule("SPC-3")
@pytest.mark.example("SPC-3")
def test_the_json_of_nvfp4():
    text = re.search(r"(?s)```json\n(.*?)```", RULES["SPC-3"].text)[1]
    assert fp4ref.from_json(text) == fp4ref.NVFP4
    assert json.loads(text) == json.loads(fp4ref.NVFP4.to_json())
    assert [*json.loads(text)] == [*json.loads(fp4ref.NVFP4.to_json())]


ZERO = {"exponent_bits": 4, "mantissa_bits": 3, "bias": 7, "codes": 127, "signed": False}  # UE4M3


@pytest.mark.rule("SPC-6")
@pytest.mark.example("SPC-6")
def test_formats_that_are_refused():
    settings = {
        "fewer than 2 finite codes, or more than its bits express besides an infinity": [
            {"codes": 1},
            {"codes": 33},
            {"codes": 32, "infinity": True},
        ],
        "a second zero (UE4M3-1) with a sign, an infinity, or other than one code left for it": [
            {"kind": FormatWithSecondZero, **ZERO, "signed": True},
            {"kind": FormatWithSecondZero, **ZERO, "infinity": True},
            {"kind": FormatWithSecondZero, **ZERO, "codes": 126},
        ],
        "a value, or the midpoint of two neighbours, that is not a bfloat16": [{"bias": 140}],
    }
    assert [row[0] for row in rows_of("SPC-6")] == [*settings]
    right = {"exponent_bits": 3, "mantissa_bits": 2, "bias": 3, "codes": 32}
    assert Format("it", **right).max == 28
    assert FormatWithSecondZero("it", **ZERO).max == 448
    for changes in settings.values():
        for change in changes:
            settings = right | change
            refused("SPC-6", settings.pop("kind", Format), "it", **settings)


def operand(spec, codes, scale=None):
    """An operand of one row: values that are quantized, or codes under one scale."""
    q = fp4ref.quantize(np.zeros((1, 32), F), spec, backend="numpy")
    row = np.zeros((1, 32), np.uint8)
    row[0, : len(codes)] = codes
    q.row.data[:] = fp4ref.packing.pack(row, q.spec.element.format)
    q.row.scales[:] = 0x7F if scale is None else scale
    return q


@pytest.mark.rule("GEM-3")
@pytest.mark.example("GEM-3")
def test_products_that_are_not_finite():
    kind, codec = "", CUDA_E5M2
    for a, b, total in rows_of("GEM-3"):
        if a.startswith("`nvfp4`"):
            rng = np.random.default_rng(2)
            zeros = set()
            for _ in range(16):
                pair = [operand("nvfp4", rng.integers(0, 16, 32), 0x38) for _ in range(2)]
                pair[0].row.amax[:] = 0
                zeros |= set(fp4ref.gemm(*pair, backend="numpy").view(np.uint32).ravel().tolist())
            assert "amax 0" in a
            assert total.endswith(" after alpha")
            shown = total.removesuffix(" after alpha").split(" or ")
            assert zeros == {int(F(float(word)).view(np.uint32)) for word in shown}
            continue
        kind = a if a != "the same" else kind
        spec, words = re.match(r"`(.*?)`: ([^`]*)", kind).groups()
        codec = {"mxfp8-e5m2": CUDA_E5M2, "mxfp8-e4m3": CUDA_E4M3}[spec]
        infinite = {np.inf: 0x7C, -np.inf: 0xFC}
        values = [number_of(word) for word in words.replace(", scale", "").strip().split(", ")]
        codes = [infinite.get(float(v), int(codec.encode(F([v]))[0])) for v in values]
        scale = codes_of(re.search(r"scale `(..)`", kind)[1])[0] if "scale" in kind else None
        other = [int(codec.encode(F([number_of(word)]))[0]) for word in b.split(", ")]
        for mode in ("exact", "blockwise"):
            got = fp4ref.gemm(operand(spec, codes, scale), operand(spec, other), mode, backend="numpy")
            assert got.view(np.uint32)[0, 0] == number_of(total).view(np.uint32), (a, b)


@pytest.mark.rule("GEM-11")
@pytest.mark.example("GEM-11")
def test_operands_that_are_exact_in_bfloat16():
    codecs = {spec.element.format.name.upper(): spec.element for spec in OWN if not spec.stochastic}
    assert {row[0].split()[0] for row in rows_of("GEM-11")} == codecs.keys()
    for pair, words in rows_of("GEM-11"):
        name, scales = re.match(r"(\w+) with (\w+)", pair).groups()
        element, scale = codecs[name], {"E4M3": CUDA_E4M3, "E8M0": CUDA_E8M0}[scales]
        values = element.decode(np.arange(1 << element.format.bits, dtype=np.uint16).astype(np.uint8)).astype(float)
        values = values[np.isfinite(values)]
        steps = scale.decode(np.arange(256, dtype=np.uint8)).astype(float)
        exact = [byte for byte, step in enumerate(steps) if np.isfinite(step) and held(values * step)]
        if words.startswith("all"):
            assert exact == [byte for byte, step in enumerate(steps) if np.isfinite(step)]
            sizes = np.abs(np.outer(values, steps[exact]))
            low, high = re.search(r"2\^(-\d+) to (\d+)", words).groups()
            assert (sizes[sizes > 0].min(), sizes.max()) == (2.0 ** int(low), float(high))
        else:
            first, last = (codes_of(code)[0] for code in re.findall("`(..)`", words))
            assert exact == [*range(first, last + 1)], pair


def held(products):
    """True if bfloat16 has all of these numbers."""
    with np.errstate(over="ignore"):
        narrow = products.astype(F)
        return (narrow == products).all() and (narrow.astype(ml_dtypes.bfloat16).astype(float) == products).all()


@pytest.mark.rule("GEM-19", "GEM-8")
@pytest.mark.example("GEM-19")
def test_arguments_of_a_product():
    q, x = fp4ref.quantize(np.ones((2, 16), F), "nvfp4"), F([[1, 2], [3, 4]])
    parameters = inspect.signature(fp4ref.gemm).parameters
    names = {"type of the result": "dtype", "amaxes": "alpha_rule"}
    for argument, _, default in rows_of("GEM-19"):
        found = parameters[names.get(argument, argument)].default
        shown = {None: "none", ("row", "row"): "row and row", 1.0: "1"}.get(found, str(found))
        assert default.strip("`") == shown, argument
    (_, rounded), *rest = rows_of("GEM-19", 1)
    bias = np.float16([1, 2])
    more = x.astype(ml_dtypes.bfloat16)
    got = fp4ref.gemm(q, q, alpha=0.1, dtype="bfloat16", bias=bias, accumulate=more)
    word = number_of(re.search("`(0x.{8})`", rounded)[0])
    again = fp4ref.gemm(q, q, alpha=float(word), dtype="bfloat16", bias=bias.astype(F), accumulate=more)
    assert (got.dtype, got.shape, got.tobytes()) == (more.dtype, (2, 2), again.tobytes())
    calls = {"accumulate of float32": {"accumulate": x}, "bias of [N, 1]": {"bias": bias[:, None]}}
    assert rest == [[words, "refused"] for words in calls]
    for call in calls.values():
        refused("GEM-19", fp4ref.gemm, q, q, dtype="bfloat16", **call)
    for wrong in ({"mode": "quick"}, {"alpha": "1"}, {"dtype": "float64"}, {"alpha_rule": "none"}):
        refused(r"GEM-|DEQ-", fp4ref.gemm, q, q, **wrong)


@pytest.mark.rule("RES-7", "RES-4")
def test_a_missing_direction_and_another_type_are_refused():
    x = np.ones((2, 16), F)
    for name, other in (("row", "column"), ("column", "row")):
        q = fp4ref.quantize(x, "nvfp4", name)
        with pytest.raises(Fp4Error) as raised:
            fp4ref.dequantize(q, direction=other)
        needed = f"need a result quantized with directions={other!r} [RES-7]"
        assert str(raised.value) == f"dequantize: no {other} direction, {needed}"
        data = getattr(q, name)
        changed = (("data", np.int8), ("scales", np.int8), ("amax", np.float64))
        for part, dtype in changed:
            broken = data._replace(**{part: getattr(data, part).astype(dtype)})
            refused("RES-7", fp4ref.dequantize, dataclasses.replace(q, **{name: broken}), direction=name)


@pytest.mark.rule("GLB-4", "NUM-3", "SR-1", "RES-4")
def test_types_of_an_amax_and_of_random_bits():
    x, bits = np.ones((2, 16), F), np.zeros((2, 16), np.uint8)
    masked, none = np.ma.masked_array, fp4ref.Directions(row=None, column=None)
    for amax in (np.array(6, F), np.int8(6), ml_dtypes.bfloat16(6), 6, 6.0):
        assert fp4ref.quantize(x, "nvfp4", amax=amax).row.amax == 6
    small = (ml_dtypes.float8_e4m3fn(6), ml_dtypes.float4_e2m1fn(6), ml_dtypes.int4(6))
    numbers = (np.bool_(True), np.complex64(6), Decimal(6), Fraction(6), np.array(6), np.array([6.0]))
    for amax in (*small, *numbers, np.array([6], ">f4"), np.array(6, ">f4")):
        refused("GLB-4", fp4ref.quantize, x, "nvfp4", amax=amax)
    refused("NUM-3|GLB-4", fp4ref.quantize, x, "nvfp4", amax=masked([6], dtype=F))
    refused("NUM-3|GLB-4", fp4ref.quantize, x, "nvfp4", amax=[6.0])
    refused("NUM-3|SR-1", fp4ref.quantize, x, "nvfp4-sr", random_bits=masked(bits))
    refused("NUM-3|SR-1", fp4ref.quantize, x, "nvfp4-sr", random_bits=bits.tolist())
    for directions in ("row", "column", "both"):
        refused("SR-1", fp4ref.quantize, x, "nvfp4-sr", directions, random_bits=none)
        given = fp4ref.quantize(x, "nvfp4", directions, random_bits=none)
        assert given == fp4ref.quantize(x, "nvfp4", directions)


@pytest.mark.rule("BLK-15", "RES-2")
def test_directions_are_one_or_both_once():
    for x in (np.ones((2, 16), F), np.ones((0, 16), F)):
        for directions in ((), [], ("row", "row"), "", "diagonal"):
            refused("BLK-15", fp4ref.quantize, x, "nvfp4", directions)
