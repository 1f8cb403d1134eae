"""The explorer's script against the golden model: in a JavaScript engine, and in a real browser."""

from __future__ import annotations

import itertools
import json
import random
import re
from functools import partial
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from click.testing import CliRunner
from py_mini_racer import MiniRacer

import forked
import fp4ref
from covering import names_by_parts
from fp4ref import rules
from fp4ref.cli import main
from fp4ref.conformance.explain.way import explain
from fp4ref.diagrams.codec_words import codec_rules
from fp4ref.diagrams.place import Geometry
from fp4ref.explorer.page import LIBRARY, html, scripts
from fp4ref.explorer.symbols import UntracedError
from fp4ref.explorer.tables import _codec, tables
from fp4ref.explorer.traced import javascript
from fp4ref.formats import FORMATS, Codec, Rounding, Sign
from fp4ref.layout import LAYOUTS, STANDARD_LAYOUTS, Layout
from fp4ref.layout.worked import worked
from fp4ref.packing import unpack
from fp4ref.packings import CANONICAL_OF, PACKINGS, codes_of, packing, repack
from fp4ref.reciprocal import reciprocal_approx
from fp4ref.specs import STANDARD

FOUND = tables()
TABLES = FOUND.data
NAMES = [spec["name"] for spec in TABLES["specs"]]
DEFINED = set(rules.defined())
OWN = [spec.name for spec in STANDARD]
TYPES = (np.dtype(np.float32), np.dtype(ml_dtypes.bfloat16), np.dtype(np.float16))
EACH = 6  # cases of each specification: both directions, all types of x
SPECIALS = np.float32(
    "0 -0 nan -nan inf -inf 1e-40 -1e-45 1.1754944e-38 5.88e-39 2.5 -5 3.5 0.25 1.75 6 448 1e30 65504 3e38".split()
)
RUN = """(name, rows, columns, direction, dtype, byte, bits) => {
  const N = M.numerics, spec = TABLES.specs.find((one) => one.name === name);
  const made = N.quantize(N.given(bits), rows, columns, spec, direction, dtype, byte);
  return JSON.stringify({ codes: [...made.codes], scales: [...made.scales],
    amax: made.amax && [...made.amax].map(N.bits), values: [...made.values].map(N.bits) });
}"""


def settings(name: str, rows: int, columns: int, **changes: Any) -> dict[str, Any]:
    """A reader's choice, with the page's defaults."""
    return {
        "spec": name,
        "direction": "row",
        "layout": "tiled_128x4",
        "packing": "canonical",
        "byte": 128,
        "rows": rows,
        "columns": columns,
        "dtype": "float32",
        **changes,
    }


def case(number: int) -> tuple[str, str, np.ndarray]:
    """A specification, a direction and a tensor: sizes over all exponents, ties, zeros, NaN, infinities, subnormals."""
    rng = np.random.default_rng(number)
    name, turn = NAMES[number % len(NAMES)], number // len(NAMES)
    direction = ("row", "column")[turn % 2]
    hadamard = fp4ref.profiles[name].hadamard and direction == "column"
    rows = 16 * int(rng.integers(1, 3)) if hadamard else int(rng.integers(1, 40))
    columns = int(rng.integers(1, 70))
    size = 2.0 ** (rng.integers(-140, 120) if turn % 3 else 0) * 2.0 ** rng.integers(-6, 6, (rows, 1))
    with np.errstate(all="ignore"):
        x = (rng.standard_normal((rows, columns)) * size).astype(np.float32)
        if number % 5 == 0:  # small multiples: every tie of every format
            x = (rng.integers(-48, 49, (rows, columns)) / 8).astype(np.float32)
        specials = rng.random((rows, columns)) < (0, 0.05, 0.5)[number % 3]
        x[specials] = rng.choice(SPECIALS, specials.sum())
        return name, direction, x.astype(TYPES[1 if hadamard else turn % 3])


def same_bytes(number: int, got: dict[str, Any]) -> None:
    name, direction, x = case(number)
    spec = fp4ref.profiles[name]
    shape = x.shape if direction == "row" else x.shape[::-1]
    bits = np.full(shape, number % 256, np.uint8) if spec.stochastic else None
    q = fp4ref.quantize(x, name, direction, random_bits=bits, backend="numpy")
    made = q.direction(direction)[0]
    values = fp4ref.dequantize(q, "float32", direction, backend="numpy").ravel()
    codes = unpack(made.data, shape[1], spec.element.format)
    assert got["codes"] == codes.ravel().tolist(), (number, name, direction, x.dtype)
    assert got["scales"] == made.scales.ravel().tolist(), (number, name, direction, x.dtype)
    if made.amax is None:
        assert got["amax"] is None
    else:
        assert np.array_equal(np.uint32(got["amax"]).view(np.float32), made.amax, equal_nan=True)
    nan = np.isnan(values)
    theirs = np.array(got["values"], np.uint32)
    assert np.array_equal(np.isnan(theirs.view(np.float32)), nan)
    assert np.array_equal(theirs[~nan], values.view(np.uint32)[~nan]), (number, name)


def arguments(number: int) -> list[Any]:
    name, direction, x = case(number)
    with np.errstate(all="ignore"):
        bits = x.astype(np.float32).view(np.uint32).ravel().tolist()
    return [name, *x.shape, direction, x.dtype.name, number % 256, bits]


@pytest.fixture(scope="module")
def engine() -> MiniRacer:
    context = MiniRacer()
    context.eval(f"globalThis.TABLES = {json.dumps(TABLES)};")
    parts = scripts(FOUND)
    for name in LIBRARY:
        context.eval(parts[name])
    context.eval(f"globalThis.M = Model(TABLES); globalThis.run = {RUN}; 0")
    return context


@pytest.mark.rule("BLK-3", "BLK-4", "BLK-5", "BLK-10", "BLK-11", "MXS-1", "GLB-2", "HAD-2", "FOS-3", "DEQ-1", "DEQ-2")
@pytest.mark.parametrize("turn", [pytest.param(turn, marks=[pytest.mark.heavy] * (turn > 0)) for turn in range(EACH)])
def test_script_has_the_bits_of_the_model(engine: MiniRacer, turn: int) -> None:
    for number in range(turn * len(NAMES), (turn + 1) * len(NAMES)):
        same_bytes(number, json.loads(engine.call("run", *arguments(number))))


@pytest.mark.rule("E2M1-6")
def test_every_pick_of_a_codec_has_the_codes_of_the_model(engine: MiniRacer) -> None:
    """Also those that no profile picks."""
    middles = np.float32([0, 0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5, 7])
    x = np.concatenate([middles, np.nextafter(middles, np.float32(0)), np.nextafter(middles, np.float32(9))])
    x = np.concatenate([x, -x])
    for rounding, sign in itertools.product({*Rounding} - {Rounding.STOCHASTIC}, Sign):
        codec = Codec(format=FORMATS["e2m1"], rounding=rounding, sign=sign, nan=(7, 7))
        numbers = f"M.numerics.given({json.dumps(x.view(np.uint32).tolist())})"
        one = f"(n => Array.from(n, (_, i) => M.numerics.encode({json.dumps(_codec(codec))}, {numbers}.at(i), false)))"
        script = f"JSON.stringify({one}({{length: {len(x)}}}))"
        assert json.loads(engine.eval(script)) == codec.encode(x).tolist(), (rounding, sign)


def test_codecs_name_their_own_rules() -> None:
    """A title says which choice it is about; one that the standard does not have is the implementation's own."""
    names = ("nvfp4", "mxfp8-e4m3", "mxfp8-e5m2", "mxfp6-e2m3", "mxfp6-e3m2", "mxint8")
    codecs = {spec.element.format.name: spec.element for spec in map(fp4ref.profiles.__getitem__, names)}
    titles = {name: rule.title for name, rule in rules.defined().items()}
    own = {name: codec_rules(codec) for name, codec in codecs.items()}
    for name in ("e2m1", "e4m3", "e5m2", "e2m3", "e3m2", "int8"):
        words = [titles[rule] for rule in own[name]]
        assert [next(key for key in ("even code", "saturate", "NaN") if key in title) for title in words] == [
            "even code",
            "saturate",
            "NaN",
        ]
    assert codec_rules(fp4ref.profiles["ggml.nvfp4"].scale) == ("UE4M3-2",)
    assert codec_rules(fp4ref.profiles["torchao.mxfp6_e2m3_floor"].element) == ("PRO-3",)


def test_everything_registered_is_offered() -> None:
    """Only layouts of other units than bytes, or of more axes than rows and columns, are left out."""
    assert list(fp4ref.profiles) == NAMES
    assert [packing["name"] for packing in TABLES["packings"]] == list(PACKINGS)
    layouts = [layout["name"] for layout in TABLES["layouts"]]
    others = [line.partition(":")[0] for line in TABLES["left_out"]]
    assert sorted(layouts + others) == sorted(LAYOUTS)
    for name in others:  # of several experts, pages or heads, the page shows the first
        layout = LAYOUTS[name]
        assert layout.unit != 4 or len(layout.axes) != 2
        assert layout.unit != 8 or sum(axis.name not in ("e", "p", "h") for axis in layout.axes) != 2, name


@pytest.mark.rule("PRO-3")
def test_logarithms_and_powers_are_those_of_the_model(engine: MiniRacer) -> None:
    """log2 around each place where its value, rounded to a type, reaches an integer; and every power of two."""
    near = np.concatenate([np.arange(1, 1 << 22, 65521), np.arange(600), (1 << 23) - 1 - np.arange(600)])
    bits = (np.arange(255, dtype=np.uint32)[:, None] << 23 | near.astype(np.uint32)).ravel()
    bits = bits[bits > 0]
    ours = json.loads(
        engine.eval(f"""(() => {{ const N = M.numerics, o = Operations(N);
      return JSON.stringify({bits.tolist()}.map((b) => N.bits(N.f(o.log2(N.fromBits(b)))))); }})()""")
    )
    expected = np.log2(bits.view(np.float32).astype(np.float64)).astype(np.float32)
    assert ours == expected.view(np.uint32).tolist()
    powers = json.loads(engine.eval("JSON.stringify(Array.from({length: 277}, (_, i) => 2 ** (i - 149)))"))
    assert [float(power) for power in powers] == [2.0 ** (i - 149) for i in range(277)]


@pytest.mark.rule("APX-1")
def test_reciprocals_are_those_of_the_model(engine: MiniRacer) -> None:
    rng = np.random.default_rng(8)
    bits = rng.integers(0, 1 << 32, 20000, dtype=np.uint32)
    bits[:4] = np.float32([0, -0.0, np.inf, 1e-40]).view(np.uint32)
    bits = bits[~np.isnan(bits.view(np.float32))]
    ours = json.loads(
        engine.eval(f"""(() => {{ const N = M.numerics, o = Operations(N);
      return JSON.stringify({bits.tolist()}.map((b) => N.bits(o.reciprocalApprox(N.fromBits(b))))); }})()""")
    )
    assert ours == reciprocal_approx(bits.view(np.float32)).view(np.uint32).tolist()


USERS = """
import numpy as np
import fp4ref
from fp4ref.arithmetic import register_arithmetic
third = register_arithmetic("acme.third", lambda amax, g, k: amax / np.float32(3))
unknown = register_arithmetic("acme.unknown", lambda amax, g, k: np.sort(amax, axis=None))
for made in (third, unknown):
    spec = fp4ref.MXFP4.replace(name=made.name, arithmetic=made)
    fp4ref.register(spec, "ours")
fp4ref.register(fp4ref.Layout("acme.rows", "m(8,*) k(4,*): m0 k0 k1 m1"), "ours")
fp4ref.register(fp4ref.Layout("acme.pairs", "n(2,*) k(*): n0 k0 n1; unit 4"), "ours")
"""


def halved(amax: Any, g: Any) -> Any:
    """2 * amax / 6, held within the scale's values."""
    return np.clip(amax * np.float32(2) / np.float32(6), np.float32(2.0**-9), np.float32(448))


def sorted_scale(amax: Any, g: Any) -> Any:
    """An operation that the page does not have."""
    return np.sort(np.stack([amax, g]))[0]


def branching(amax: Any, g: Any) -> Any:
    """A branch on a number."""
    return amax if amax > 0 else g


def test_arithmetics_of_users_are_offered_or_named() -> None:
    assert javascript(halved, ("amax", "g")) == (
        "(amax, amaxm, g, gm, scale, block) => { const v0 = f(amax * 2); const v1 = f(v0 / 6); "
        "const v2 = f(Math.min(Math.max(v1, 0.001953125), 448)); return [v2, true]; }"
    )
    for function, why in ((sorted_scale, "numpy.stack"), (branching, "a branch on a number")):
        with pytest.raises(UntracedError, match=why):
            javascript(function, ("amax", "g"))


@pytest.mark.rule("SPC-4")
def test_values_of_users_are_offered_or_named(tmp_path: Path) -> None:
    """The page of a command with --import has the values that the module registers."""
    module = tmp_path / "acme_values.py"
    module.write_text(USERS, encoding="utf-8")
    target = tmp_path / "explorer.html"
    done = forked.run(["fp4ref", "explore", "-o", str(target), "--import", str(module)], tmp_path)
    assert done.returncode == 0, done.stderr
    text = target.read_text(encoding="utf-8")
    assert '"name":"acme.third"' in text
    assert '"name":"acme.rows"' in text
    assert '"name":"acme.pairs","rule"' in text  # a packing: layouts have their key behind the name
    assert "acme.pairs:" not in text
    assert '"acme.unknown: numpy.sort"' in text


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", names_by_parts(fp4ref.profiles[name] for name in NAMES))
def test_steps_are_those_of_explain(engine: MiniRacer, name: str) -> None:
    rng = np.random.default_rng(7)
    x = (rng.standard_normal((32, 48)) * 2.0 ** rng.integers(-4, 4, (32, 1))).astype(ml_dtypes.bfloat16)
    spec = fp4ref.profiles[name]
    values = x.astype(np.float32).view(np.uint32).ravel().tolist()
    byte = 77 if spec.stochastic else 128
    for direction in ("row", "column"):
        chosen = settings(name, 32, 48, direction=direction, dtype="bfloat16", byte=byte)
        random_bits = np.full((32, 48) if direction == "row" else (48, 32), byte, np.uint8) if spec.stochastic else None
        engine.eval(f"globalThis.model = M.build({json.dumps(chosen)}, M.numerics.given({values})); 0")
        for row, column in ((0, 0), (5, 17), (31, 47)):
            steps = json.loads(engine.eval(f"JSON.stringify(M.steps(model, {row}, {column}))"))
            bits = {step["name"].removesuffix(" 1"): step["bits"] for step in steps}
            stages = explain(x, spec, row, column, direction, random_bits=random_bits)
            first = stages.candidates[0]
            expected = {
                "block amax": stages.block_amax,
                "scale t": first.before,
                "factor": first.factor[stages.inside],
                "scaled y": first.y[stages.inside],
                "global scale g": stages.g,
                "dequantized": stages.value,
            }
            for step, value in expected.items():
                assert int(bits[step], 16) == int(np.float32(np.ravel(value)[0]).view(np.uint32)), (step, direction)
            if not spec.four_over_six:
                assert int(bits["code"], 16) == stages.code
                assert int(bits["scale byte"], 16) == stages.scale
            assert {rule for step in steps for rule in step["rules"]} <= DEFINED


def test_layouts_of_the_script(engine: MiniRacer) -> None:
    """Every layout that the page offers: padding, the map, its inverse, and the worked sum."""
    rng = np.random.default_rng(3)
    engine.eval("globalThis.L = Layouts(TABLES);")
    names = [layout["name"] for layout in TABLES["layouts"]]
    assert {form.name for form in STANDARD_LAYOUTS} | {"cutlass.sf_mn_major", "vllm.kv_page_v_scale"} <= set(names)
    for number, name in enumerate(names):
        same_map(engine, rng, f"TABLES.layouts[{number}]", LAYOUTS[name], TABLES["layouts"][number]["shown"])


def same_map(engine: MiniRacer, rng: np.random.Generator, found: str, layout: Layout, shown: list[int]) -> None:
    for _ in range(8):
        sizes, indices = [1] * len(layout.axes), [0] * len(layout.axes)
        for number in shown:
            axis = layout.axes[number]
            rest = 0 if axis.refused else int(rng.integers(200))
            sizes[number] = int(rng.integers(1, 40)) * (axis.multiple if axis.refused else 1) + rest
            indices[number] = int(rng.integers(sizes[number]))
        rows, columns = (sizes[number] for number in shown)
        row, column = (indices[number] for number in shown)
        offset = int(layout.offsets(indices, sizes))
        places = rng.integers(layout.strides(*sizes).size, size=6).tolist()
        at = f"{found}, {row}, {column}, {columns}, {rows}"
        said = engine.eval(
            f"""JSON.stringify([L.offset({at}), L.index({found}, {offset}, {columns}, {rows}),
            L.padded({found}, {rows}, {columns}), L.worked({at}),
            {places}.map((place) => L.unused({found}, place, {columns}, {rows}))])"""
        )
        *told, unused = json.loads(said)
        assert told == [offset, [row, column], [*layout.padded_shape(*sizes)], worked(layout, sizes, indices)]
        for place, their in zip(places, unused, strict=True):
            ours = layout.unused(place, *sizes)
            assert ours is None or their == [*ours]


@pytest.mark.sampled(2)
@pytest.mark.rule("PACK-1", "PACK-3", "PACK-4", "PACK-7", "PACK-8", "PACK-9")
@pytest.mark.parametrize("direction", ["row", "column"])
def test_packings_of_the_script(engine: MiniRacer, direction: str) -> None:
    """Every packing for every width of a code that it holds: the bytes, and the codes in each byte."""
    rng = np.random.default_rng(11)
    engine.eval("""globalThis.L = Layouts(TABLES);
      globalThis.packed = (settings, bits, some) => {
        const m = M.build(settings, M.numerics.given(bits)), refused = M.refusal(settings);
        const each = (of) => Array.from({ length: m.data.bytes }, (_, i) => of(i));
        return JSON.stringify({ refused, bytes: each(m.byteOf), codes: some.map((i) => M.ofDataByte(m, i)) }); }; 0""")
    offered = [("canonical", bits) for bits in CANONICAL_OF]
    offered += [(one["name"], bits) for one in TABLES["packings"] for bits in one["of"]]
    assert len(offered) > 40
    for number, (name, bits) in enumerate(offered):
        form = packing(name, bits)
        if name != "canonical" and direction == "row":  # the map is the same in both
            place = next(i for i, one in enumerate(TABLES["packings"]) if one["name"] == name)
            same_map(engine, rng, f"TABLES.packings[{place}].of[{bits}]", form, [0, 1])
        rows, columns = (
            int(rng.integers(1, 3)) * axis.multiple if axis.refused else int(rng.integers(1, 2 * axis.multiple + 20))
            for axis in form.axes
        )
        spec = {4: "mxfp4", 6: "mxfp6-e2m3", 8: "mxfp8-e4m3"}[bits]
        x = rng.standard_normal((rows, columns) if direction == "row" else (columns, rows)).astype(np.float32)
        made = fp4ref.quantize(x, spec, direction, backend="numpy").direction(direction)[0]
        expected = repack(made.data, rows, columns, "canonical", name, bits=bits).ravel()
        chosen = settings(spec, *x.shape, direction=direction, packing=name)
        some = rng.integers(0, expected.size, 6).tolist()
        got = json.loads(engine.call("packed", chosen, x.view(np.uint32).ravel().tolist(), some))
        assert got["refused"] == ""
        assert got["bytes"] == expected.tolist(), (name, bits)
        for byte, theirs in zip(some, got["codes"], strict=True):
            codes = codes_of(form, (rows, columns), byte)
            turned = [at if direction == "row" else at[::-1] for at in codes]
            assert theirs == [list(at) for at in turned], (name, bits, number)


@pytest.mark.rule("GLB-1", "GLB-5")
@pytest.mark.parametrize("name", ["nvfp4", "nvfp4-row-scaled", "mxfp8-e4m3"])
def test_a_large_tensor_has_the_bits_of_the_model(engine: MiniRacer, name: str) -> None:
    """The shape of a language model's weight, values of which one element was set, and the rows of four elements."""
    shape, values = (28672, 8192), np.float32([0.75, -1.75, 3.5, 448, -0.0, 2.5, 11])
    flat = np.array([5000 * 8192 + 77, 5000 * 8192 + 78])
    chosen = settings(name, *shape)
    assert engine.eval(f"M.refusal({json.dumps(chosen)})") == ""
    text = " ".join(map(str, values))
    engine.eval(f"globalThis.big = M.tensor({shape[0]}, {shape[1]}, {json.dumps(text)}, 'float32');")
    engine.eval(f"big.set({flat[0]}, 1e6); globalThis.model = M.build({json.dumps(chosen)}, big);")
    for row, column in ((0, 0), (5000, 77), (5000, 78), (28671, 8191)):
        x = values[(row * shape[1] + np.arange(shape[1])) % len(values)][None].copy()
        if row == 5000:
            x[0, 77] = 1e6
        amax = {"nvfp4": np.float32([1e6]), "nvfp4-row-scaled": np.abs(x).max(axis=1), "mxfp8-e4m3": None}[name]
        q = fp4ref.quantize(x, name, amax=amax, backend="numpy")
        place = Geometry(fp4ref.profiles[name], shape).place(row, column)
        byte = place.data_byte - row * place.geometry.row_bytes
        assert engine.eval(f"model.byteOf({place.data_byte})") == q.row.data[0, byte]
        assert engine.eval(f"model.scale({place.scale[0]}, {place.scale[1]})") == q.row.scales[0, place.scale[1]]
        assert f"tiled_128x4 byte {place.scale_byte(LAYOUTS['tiled_128x4'])} " in engine.eval(
            f"M.sentence(model, {row}, {column})"
        )


@pytest.mark.rule("GLB-1")
def test_the_maximum_counts_only_numbers_that_are_left(engine: MiniRacer) -> None:
    """A number of the list that was replaced everywhere is not the maximum any more."""
    engine.eval("globalThis.x = M.tensor(2, 2, '1 9 2', 'float32');")  # 1 9 2 1
    assert engine.eval("x.largest()") == 9
    engine.eval("x.set(1, 3);")
    assert engine.eval("x.largest()") == 3
    engine.eval("x.set(0, -0.5); x.set(1, 0); x.set(2, 0);")
    assert engine.eval("x.largest()") == 1


@pytest.mark.rule("NUM-3")
def test_float16_of_the_script(engine: MiniRacer) -> None:
    rng = np.random.default_rng(6)
    exact = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)
    exact = np.sort(exact[np.isfinite(exact)])
    between = ((exact[1:].astype(np.float64) + exact[:-1]) / 2).astype(np.float32)
    near = np.concatenate([between, np.nextafter(between, np.float32(np.inf)), np.float32([65519.99, 65520, 1e-8])])
    bits = rng.choice(near, 4000).view(np.uint32)
    bits = np.concatenate([bits, np.float32([65519.99, 65520, -65520, 2**-25, 1.5 * 2**-25, -0.0]).view(np.uint32)])
    got = json.loads(
        engine.eval(
            f"JSON.stringify({bits.tolist()}.map((b) => M.numerics.bits(M.numerics.float16(M.numerics.fromBits(b)))))"
        )
    )
    with np.errstate(over="ignore"):
        assert got == bits.view(np.float32).astype(np.float16).astype(np.float32).view(np.uint32).tolist()


def test_a_comma_inside_a_number_is_refused(engine: MiniRacer) -> None:
    """ "1,5" may be one number or two; the page does not guess."""
    with pytest.raises(Exception, match="write a space"):
        engine.eval("M.tensor(1, 2, '1,5 2', 'float32')")
    assert [engine.eval(f"M.tensor(1, 3, '1.5, 2; 3', 'float32').at({i})") for i in range(3)] == [1.5, 2, 3]


def test_places_of_the_script(engine: MiniRacer) -> None:
    rng = np.random.default_rng(4)
    for name in NAMES:
        for direction in ("row", "column"):
            shape = 16 * int(rng.integers(1, 9)), int(rng.integers(1, 130))
            chosen = settings(name, *shape, direction=direction)
            engine.eval(f"globalThis.model = M.build({json.dumps(chosen)}, M.numerics.given([])); 0")
            for _ in range(5):
                element = int(rng.integers(shape[0])), int(rng.integers(shape[1]))
                place = Geometry(fp4ref.profiles[name], shape, direction).place(*element)
                sentence = engine.eval(f"M.sentence(model, {element[0]}, {element[1]})")
                ours = place.sentence(("linear", "tiled_128x4")).replace("tiled byte", "tiled_128x4 byte")
                assert sentence.rpartition(" in tile ")[0] == ours


def test_refusals_name_the_rule(engine: MiniRacer) -> None:
    base = settings("nvfp4", 16, 16, layout="linear")
    refused = [({"rows": 0}, "NUM-4"), ({"columns": 1.5}, "NUM-4"), ({"rows": 1 << 40}, "too large")]
    refused += [({"layout": "te.swizzled_rows"}, "LAY-43"), ({"packing": "six_low_first"}, "PACK-7")]
    refused += [({"packing": "ggml.mxfp4_data"}, "LAY-43"), ({"byte": 256}, "SR-1")]
    large = {"rows": 1 << 14, "columns": 1 << 14}
    assert engine.eval(f"M.refusal({json.dumps(base | large)})") == ""
    refused += [({"spec": "nvfp4-rht", "direction": "column", "dtype": "bfloat16"} | large, "too large")]
    refused += [({"spec": "nvfp4-rht", "direction": "column"}, "HAD-5")]
    refused += [({"spec": "nvfp4-rht", "direction": "column", "rows": 20, "dtype": "bfloat16"}, "HAD-5")]
    assert engine.eval(f"M.refusal({json.dumps(base)})") == ""
    for change, said in refused:
        assert said in engine.eval(f"M.refusal({json.dumps(base | change)})")


@pytest.mark.rule("NUM-3")
def test_numbers_are_read_and_written_as_float32(engine: MiniRacer) -> None:
    rng = np.random.default_rng(5)
    values = rng.integers(0, 1 << 32, 300, dtype=np.uint32).view(np.float32)
    for value in values[np.isfinite(values)]:
        text = engine.eval(f"M.decimal(M.numerics.fromBits({int(value.view(np.uint32))}))")
        assert np.float32(text).view(np.uint32) == value.view(np.uint32)
        assert engine.eval(f"M.numerics.bits(M.parse('{value!s}'))") == int(value.view(np.uint32))
    assert engine.eval("M.parse('one')") is None
    assert engine.eval("M.parse('1e39')") is None
    assert engine.eval("M.parse('0x40490fdb')") == np.float32(np.pi)


def test_page_asks_nothing_of_the_network(tmp_path: Path) -> None:
    text = html()
    assert html() == text
    assert "default-src 'none'" in text
    assert not re.search(r"(src|href)\s*=|@import|url\(|fetch\(|XMLHttpRequest|https?://", text)
    result = CliRunner().invoke(main, ["explore", "-o", str(tmp_path / "where.html")])
    assert result.exit_code == 0
    assert (tmp_path / "where.html").read_text(encoding="utf-8") == text


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("explorer") / "explorer.html"
    path.write_text(html(), encoding="utf-8")
    return path


@pytest.fixture
def browser(chromium: Any, page: Path) -> Any:
    """The explorer, just opened."""
    chromium.get("about:blank")
    chromium.get(page.as_uri())
    yield chromium
    assert not [entry for entry in chromium.get_log("browser") if entry["level"] == "SEVERE"]


def test_browser_has_the_bits_of_the_model(browser: Any) -> None:
    for start in range(EACH * len(NAMES), (EACH + 2) * len(NAMES), 91):
        batch = [arguments(number) for number in range(start, start + 91)]
        found = browser.execute_script(f"const run = {RUN}; return arguments[0].map((one) => run(...one));", batch)
        for number, text in zip(range(start, start + 91), found, strict=True):
            same_bytes(number, json.loads(text))


def found(browser: Any, selector: str) -> Any:
    from selenium.webdriver.common.by import By

    return browser.find_element(By.CSS_SELECTOR, selector)


def entered(browser: Any, selector: str, text: str) -> None:
    from selenium.webdriver.common.keys import Keys

    browser.execute_script("arguments[0].value = ''", found(browser, selector))
    found(browser, selector).send_keys(text, Keys.TAB)


def test_browser_follows_pointer_and_keys(browser: Any) -> None:
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys

    find = partial(found, browser)
    assert find("#where").text.startswith("element (37, 130) of a K = 256 NVFP4 tensor: data byte 4801 low nibble")
    assert "linear byte 600, tiled_128x4 byte 1108 in tile 2" in find("#where").text
    find('#matrix [data-key="37,130"]').click()
    ActionChains(browser).send_keys(Keys.ARROW_RIGHT, Keys.ARROW_DOWN).perform()
    assert find("#where").text.startswith("element (38, 131)")
    assert browser.switch_to.active_element.get_attribute("data-key") == "38,131"
    assert "high nibble" in find("#where").text
    byte = find("#data .chosen")
    assert byte.find_element(By.TAG_NAME, "u").text == byte.text[0]
    find('#tiled [data-key="1028"]').click()
    assert "scale (32, 8)" in find("#where").text
    ActionChains(browser).send_keys(Keys.ARROW_RIGHT).perform()
    assert "scale (32, 9)" in find("#where").text
    find('#data [data-key="4169"]').click()
    assert "data byte 4169" in find("#where").text
    ActionChains(browser).move_to_element(find('#linear [data-key="520"]')).perform()
    assert "scale (32, 8)" in find("#hover").text
    assert find('#tiled [data-key="1028"]').get_attribute("class").endswith("hovered")


def test_browser_shows_padding_refusals_and_own_values(browser: Any) -> None:
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys

    find, enter = partial(found, browser), partial(entered, browser)
    enter("#rows", "20")
    enter("#columns", "40")
    find('#tiled [data-key="3"]').click()
    assert "padding, no scale is stored here [LAY-5]" in find("#where").text
    phone = {"width": 390, "height": 800, "deviceScaleFactor": 1, "mobile": True}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", phone)
    table = find(".wide-table")
    assert table.get_property("scrollWidth") == table.get_property("clientWidth") <= 390
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    assert "Hatched: padding." in find("#tiled-note").text
    browser.execute_script("location.hash = 'spec=mxfp4&layout=ggml.mxfp4_scale&shape=4x64&element=0,0'")
    gap = find('#tiled [data-key="1"]')
    assert gap.get_attribute("aria-label") == "ggml.mxfp4_scale byte 1: a gap"
    gap.click()
    assert "a gap, no scale is stored here [LAY-41]" in find("#where").text
    browser.execute_script("location.hash = 'shape=20x40&element=0,0'")
    enter("#values", "0.75 1.75 3.5 -0 6 nan")
    find('#matrix [tabindex="0"]').send_keys(Keys.HOME)
    browser.switch_to.active_element.send_keys(Keys.ARROW_RIGHT)
    row, column = map(int, re.match(r"element \((\d+), (\d+)\)", find("#where").text).groups())
    assert column == 1
    x = np.resize(np.float32([0.75, 1.75, 3.5, -0.0, 6.0, np.nan]), (20, 40))
    code = unpack(fp4ref.quantize(x, "nvfp4").row.data, 40, fp4ref.E2M1)[row, column]
    shown = [
        [cell.text for cell in line.find_elements(By.TAG_NAME, "td")]
        for line in browser.find_elements(By.CSS_SELECTOR, "#steps tbody tr")
    ]
    assert {line[0]: line[2] for line in shown}["code"] == f"0x{code:x}"
    enter("#value", "-2.5")
    assert "-2.5" in find("#steps tbody tr").text
    enter("#values", "1 two")
    assert "NUM-3" in find("#problem").text
    enter("#values", "1 2")
    assert not find("#problem").text
    enter("#rows", "99999999999999")
    assert "too large" in find("#problem").text
    for stale in ("#where", "#worked", "#steps tbody", "#matrix", "#tiled"):
        assert not find(stale).text
    assert find("#value").get_attribute("value") == ""
    enter("#rows", "20")
    for name in OWN:
        browser.execute_script(
            "const s = document.getElementById('spec'); s.value = arguments[0]; s.dispatchEvent(new Event('change'))",
            name,
        )
        assert find("#matrix-title").text.startswith("x [20, 40]")


def test_browser_goes_to_rows_follows_links_and_compares(browser: Any) -> None:
    from selenium.webdriver.common.by import By

    find, enter = partial(found, browser), partial(entered, browser)
    enter("#rows", "28672")
    enter("#columns", "8192")
    enter("#row", "20000")
    enter("#column", "8000")
    place = Geometry(fp4ref.NVFP4, (28672, 8192)).place(20000, 8000)
    assert f"data byte {place.data_byte} low nibble" in find("#where").text
    assert find("#worked").text == place.sums(("tiled_128x4",))[0].replace("tiled byte", "tiled_128x4 byte")
    for refused in ("28672", "", "1.5"):
        enter("#row", refused)
        assert "NUM-4" in find("#problem").text
        assert not any(find(stale).text for stale in ("#where", "#worked", "#steps tbody"))
        assert find("#value").get_attribute("value") == ""
    find('#matrix [tabindex="0"]').click()
    assert not find("#problem").text
    enter("#row", "28672")
    enter("#row", "3")
    assert not find("#problem").text
    enter("#values", "1 2.5 3")
    enter("#value", "0,75")
    link = browser.execute_script("return location.hash")
    browser.execute_script(
        "const c = document.getElementById('compare'); c.value = 'mxfp4'; c.dispatchEvent(new Event('change'));"
        "c.value = ''; c.dispatchEvent(new Event('change'))"
    )
    assert browser.execute_script("return location.hash") == link  # the element that was set stays
    browser.execute_script("location.hash = '#spec=mxfp4&shape=32x64&element=1,2&dtype=float16&compare=nvfp4'")
    assert find("#where").text.startswith("element (1, 2) of a K = 64 MXFP4 tensor")
    assert not find("#random").is_displayed()
    assert find("#dtype").get_attribute("value") == "float16"
    assert find("#difference").text.startswith("First step that differs between MXFP4 and NVFP4")
    assert len(find("#steps tr.first").find_elements(By.TAG_NAME, "td")) == 7
    browser.execute_script("location.hash = arguments[0]", link)
    assert find("#where").text.startswith("element (3, 8000) of a K = 8192 NVFP4 tensor")
    assert find("#values").get_attribute("value") == "1 2.5 3"
    assert find("#value").get_attribute("value") == "0.75"
    assert find("#dtype").get_attribute("value") == "float32"
    assert find("#compare").get_attribute("value") == ""


def test_browser_takes_what_a_link_does_not_name_from_the_page_without_a_link(browser: Any) -> None:
    """A link that was opened before leaves nothing behind; a link without room for its values says so."""
    from selenium.webdriver.common.by import By

    def shown(name: str) -> str:
        return str(browser.find_element(By.ID, name).get_property("value"))

    names = ("spec", "direction", "layout", "packing", "rows", "columns", "row", "column", "dtype", "show", "compare")
    first = [shown(name) for name in (*names, "values")]
    browser.execute_script(
        "location.hash = '#spec=ggml.mxfp4&direction=column&layout=linear&packing=ggml.mxfp4_data&shape=64x64"
        "&element=5,7&dtype=float16&show=values&compare=mxfp4&values=1 2'"
    )
    assert all(old != shown(name) for old, name in zip(first, (*names, "values"), strict=True))
    kept = browser.execute_script("return location.hash")
    assert "show=values" in kept
    browser.execute_script("location.hash = '#'")
    assert [shown(name) for name in (*names, "values")] == first
    note = browser.find_element(By.ID, "link-note")
    assert not note.text
    browser.execute_script(
        "const v = document.getElementById('values'); v.value = '0.5 '.repeat(5000);"
        "v.dispatchEvent(new Event('change'))"
    )
    assert "does not contain the values" in note.text
    assert "values=" not in browser.execute_script("return location.hash")


def test_browser_has_no_answer_to_a_link_that_it_does_not_understand(browser: Any) -> None:
    from selenium.webdriver.common.by import By

    def text(name: str) -> str:
        return str(browser.find_element(By.ID, name).text)

    def follow(link: str) -> None:
        browser.execute_script("location.hash = arguments[0]", link)

    unknown = "spec=acme.none spec=__proto__ layout= shape=4x element=1 compare=x byte=-1 elment=9,9 set=3"
    for wrong in unknown.split():
        follow(f"#{wrong}&show=values")
        assert text("problem") == f"link: {wrong}, need what this page offers"
        assert not any(text(stale) for stale in ("where", "worked", "matrix", "data"))
    follow("#shape=64x64&element=1,1&element=2,2")
    assert text("problem") == "link: element=1,1 and element=2,2, need what this page offers"
    assert not any(text(stale) for stale in ("where", "worked", "matrix", "data"))
    follow("#shape=64x64&element=9,70")
    assert text("problem").startswith("element (9, 70) of a 64 x 64 tensor")
    assert not text("where")
    follow("#shape=64x64&element=9,7")
    assert text("where").startswith("element (9, 7) of a K = 64 NVFP4 tensor")
    assert not text("problem")
    follow(f"#{wrong}&show=values")  # once more, from a page with an answer
    assert not any(text(stale) for stale in ("where", "worked", "matrix", "data"))


def test_browser_shows_a_peer_its_packing_and_its_random_byte(browser: Any) -> None:
    """A link chooses a profile, its packing and a random byte; a packing of another width is not offered."""
    from selenium.webdriver.common.by import By

    find = partial(found, browser)

    def follow(link: str) -> None:
        browser.execute_script("location.hash = arguments[0]", link)

    follow("#spec=ggml.mxfp4&packing=ggml.mxfp4_data&layout=linear&shape=64x256&element=3,40")
    assert find("#where").text.startswith(
        "element (3, 40) of a K = 256 ggml.mxfp4 tensor: data byte 434 low nibble in ggml.mxfp4_data"
    )
    assert find("#data-title").text == "Data: 8704 bytes, packed as ggml.mxfp4_data"
    find('#data [data-key="425"]').click()
    assert find("#where").text == "data byte 425: no element is stored here [PACK-7]"
    follow("#spec=mxfp8-e4m3&packing=ggml.mxfp4_data&shape=64x256")
    assert find("#packing").get_attribute("value") == "canonical"
    assert not find('#packing option[value="pairs_16"]').is_enabled()
    follow("#spec=nvfp4-sr&shape=1x16&element=0,1&values=6 0.3&byte=255")
    assert find("#random").is_displayed()
    x = np.resize(np.float32([6, 0.3]), (1, 16))
    q = fp4ref.quantize(x, "nvfp4-sr", random_bits=np.full((1, 16), 255, np.uint8), backend="numpy")
    code = unpack(q.row.data, 16, fp4ref.E2M1)[0, 1]
    steps = [line.text for line in browser.find_elements(By.CSS_SELECTOR, "#steps tbody tr")]
    assert any(line.startswith("code ") and f"0x{code:x}" in line for line in steps)
    assert "byte=255" in browser.execute_script("return location.hash")


CHOSEN = """
history.replaceState(null, "", arguments[0]);
dispatchEvent(new HashChangeEvent("hashchange"));
const shown = (id) => document.querySelector(`#${id} .chosen`)?.title ?? "not shown";
return ["matrix", "data", "linear", "tiled"].map(shown);
"""


@pytest.mark.slow
@pytest.mark.heavy  # every layout that there is
def test_browser_shows_the_chosen_element_in_every_grid_of_every_layout(browser: Any) -> None:
    """The last element too, in tiles that are larger than what is drawn."""
    offered = browser.execute_script("return [...document.getElementById('layout').options].map((one) => one.value)")
    assert "triton.blackwell_scale" in offered
    hidden, rng = [], random.Random(19)
    for number, layout in enumerate(offered):  # one element of each: browsers take 200 changes of the address at once
        row, column = (255, 1023) if number % 2 else (rng.randrange(256), rng.randrange(1024))
        found = browser.execute_script(CHOSEN, f"#layout={layout}&shape=256x1024&element={row},{column}")
        wanted = [f"({row}, {column})"] * 2 + [f"scale ({row}, {column // 16})"] * 2
        hidden += [(layout, text, title) for title, text in zip(found, wanted, strict=True) if text not in title]
    assert not hidden, hidden[:6]


def test_rules_and_the_way_back_are_links_where_there_is_a_site(chromium: Any, tmp_path: Path) -> None:
    """A page that stands alone has no link: its rules have their headings under the pointer."""
    (tmp_path / "explorer.html").write_text(html("./"), encoding="utf-8")
    chromium.get((tmp_path / "explorer.html").as_uri())
    links = chromium.execute_script("return [...document.links].map((link) => link.getAttribute('href'))")
    assert links[0] == "./index.html"
    assert {f"./rule/{rule}.html" for rule in ("blk-3", "pack-1")} <= set(links)
    assert "href" not in html().split("</header>")[0]
    assert set(TABLES["rules"]) == DEFINED


def test_browser_labels_and_screenshots(browser: Any, tmp_path: Path) -> None:
    unnamed = browser.execute_script(
        "return [...document.querySelectorAll('input, select, [role=grid], [role=gridcell]')].filter((one) =>"
        " !(one.labels?.length || one.getAttribute('aria-label') || one.getAttribute('aria-labelledby'))).length"
    )
    assert unnamed == 0
    reachable = browser.execute_script(
        "return [...document.querySelectorAll('[role=grid]')].map((g) => g.querySelectorAll('[tabindex=\"0\"]').length)"
    )
    assert reachable == [1, 1, 1, 1]
    light = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert browser.save_screenshot(str(tmp_path / "light.png"))
    dark = {"features": [{"name": "prefers-color-scheme", "value": "dark"}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", dark)
    assert browser.execute_script("return getComputedStyle(document.body).backgroundColor") != light
    assert browser.save_screenshot(str(tmp_path / "dark.png"))
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    assert (tmp_path / "light.png").read_bytes() != (tmp_path / "dark.png").read_bytes()
