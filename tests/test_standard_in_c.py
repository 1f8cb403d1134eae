"""The second implementation: volume 1 in C11, written from its text alone, against all vectors and the aimed cases."""

from __future__ import annotations

import io
import json
import math
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from ml_dtypes import bfloat16

import fp4ref
from fp4ref.catalogue import PROFILES
from fp4ref.conformance.judge.cases import judge
from fp4ref.conformance.run import stream
from fp4ref.conformance.subjects.subject import Declaration
from fp4ref.formats import CUDA_E2M1, CUDA_E2M3, CUDA_E3M2, CUDA_E4M3, CUDA_E5M2, CUDA_E8M0, OCP_INT8, STOCHASTIC_E2M1
from fp4ref.packing import unpack
from fp4ref.spec import Amax, Granularity, Metric, Spec, Subnormals, from_json
from fp4ref.spec_root import spec_root
from fp4ref.specs import OWN
from fp4ref.standard.tables import tables

SOURCE = Path(__file__).parents[1] / "docs/examples/standard_program.c"
pytestmark = pytest.mark.skipif(not SOURCE.exists(), reason="the examples are in the checkout only")
CODECS = [CUDA_E2M1, CUDA_E4M3, CUDA_E5M2, CUDA_E2M3, CUDA_E3M2, OCP_INT8, CUDA_E8M0]
FORMATS = [codec.format.name for codec in CODECS]
ARITHMETICS = ["te", "te-division", "te-fast", "rceil", "ocp-floor"]
TYPES = {"float32": 0, "bfloat16": 1, "float16": 2}
DIRECTION = {"row": 0, "column": 1}
FAMILIES = "ragged rows nan inf minus-zero subnormals scale-underflow overflow element-ties".split()


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    compiler = shutil.which("gcc") or shutil.which("cc")
    assert compiler, "the test needs a C compiler"
    binary = tmp_path_factory.mktemp("standard") / "standard"
    flags = ["-std=c11", "-O2", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-ffp-contract=off"]
    flags += ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    subprocess.run([compiler, *flags, str(SOURCE), "-o", str(binary), "-lm"], check=True)
    return str(binary)


def test_the_standard_takes_400_lines():
    assert len((SOURCE.parent / "standard.c").read_text("utf-8").splitlines()) <= 400


def vectors(name):
    content = json.loads((spec_root() / f"vectors/{name}.json").read_text("utf-8"))
    for group in content["groups"]:
        for test in group["tests"]:
            yield group, test, content.get("inputs", {})


def fields(named):
    """The fields of a specification as the program takes them; nothing if a part is not an own one."""
    spec = PROFILES[named] if isinstance(named, str) else from_json(json.dumps(named))
    search = spec.four_over_six
    element = CUDA_E2M1 if spec.element == STOCHASTIC_E2M1 else spec.element
    own = element in CODECS and spec.scale in CODECS and spec.arithmetic.name in ARITHMETICS
    own &= spec.element_max is None and (spec.amax, spec.subnormals) == (Amax.IGNORE_NAN, Subnormals.KEEP)
    if search:
        own &= (search.difference.__name__, search.total.__name__) == ("dequantized", "rows_by_tree")
        own &= search.metric is not Metric.LARGEST
    if not own:
        return ""
    granularity = [*Granularity].index(spec.global_scale)
    numbers = [CODECS.index(element), CODECS.index(spec.scale), *spec.block, granularity]
    numbers += [ARITHMETICS.index(spec.arithmetic.name), spec.hadamard.signs if spec.hadamard else -1]
    numbers += [0 if search is None else 1 + (search.metric is Metric.SQUARED), int(spec.scale_max if search else 448)]
    return f"* {' '.join(map(str, [*numbers, int(spec.stochastic)]))}"


def hexed(rows):
    """Pairs of hexadecimal digits of rows of bytes."""
    text = "".join(rows)
    return [text[i : i + 2] for i in range(0, len(text), 2)]


def quantize_command(group, test, inputs):
    spec = fields(group["spec"])
    given = inputs[test["input"]] if "input" in test else test
    direction = DIRECTION[test.get("direction", "row")]
    shape = given["shape"]
    columns, rows = shape[-1], 1
    for size in shape[:-1]:
        rows *= size
    x = " ".join(given["x"]).split()
    amax = (
        "".join(test.get("amax", [])).split()
        if isinstance(test.get("amax", ""), list)
        else test.get("amax", "").split()
    )
    bits = hexed(test.get("random_bits", []))
    head = [
        spec,
        TYPES[given["dtype"]],
        direction,
        test.get("scale_layout", "linear"),
        rows,
        columns,
        len(amax),
        len(bits),
    ]
    expected = test["expected"]
    wanted = ["".join(expected.get(part, [])) for part in ("data", "scales")]
    return " ".join(map(str, ["quantize", *head, *x, *amax, *bits])), wanted


@pytest.mark.rule(
    "BLK-3", "BLK-4", "BLK-5", "BLK-10", "GLB-2", "GLB-3", "GLB-5", "HAD-4", "FOS-1", "FOS-6", "SR-2", "LAY-5"
)
def test_every_vector_of_quantization(program):
    commands, expected, names = [], [], []
    for name in ("nvfp4", "mx", "four_over_six", "stochastic", "transformer_engine"):
        for group, test, inputs in vectors(name):
            if not fields(group["spec"]):
                continue
            command, wanted = quantize_command(group, test, inputs)
            commands.append(command)
            expected.append(wanted)
            names.append((name, test["id"]))
    lines = answers(program, commands)
    wrong = [
        name
        for name, line, wanted in zip(names, lines, expected, strict=True)
        if any(w and got != w for got, w in zip(line.split(), wanted, strict=False))
    ]
    assert wrong == []
    assert len(names) > 350


def answers(program, commands):
    done = subprocess.run([program], input="\n".join(commands), capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert len(lines) == len(commands)
    return lines


@pytest.mark.rule("DEQ-1", "DEQ-2", "DEQ-3", "HAD-6", "LAY-6")
def test_every_vector_of_dequantization(program):
    commands, expected = [], []
    for group, test, _ in vectors("dequantize"):
        if not fields(group["spec"]) or "values" not in test["expected"]:
            continue
        data, scales, amax = hexed(test["data"]), hexed(test["scales"]), str(test.get("amax", "")).split()
        rows = len(test["data"])
        shape = test["shape"][::-1] if test.get("direction") == "column" else test["shape"]
        head = [TYPES[test["to"]], int(test.get("inverse_hadamard", False)), test.get("scale_layout", "linear")]
        amax = " ".join(test["amax"]).split() if isinstance(test.get("amax"), list) else amax
        head += [rows, shape[-1], len(amax)]
        commands.append(" ".join(map(str, ["dequantize", fields(group["spec"]), *head, *amax, *data, *scales])))
        expected.append((test["to"], " ".join(test["expected"]["values"]).split()))
    for line, (to, values) in zip(answers(program, commands), expected, strict=True):
        assert [word_of(word, to) for word in line.split()] == values
    assert len(commands) > 20


def word_of(word, dtype="float32"):
    """The hexadecimal digits of a float, or nan (DEQ-6)."""
    bits = int(word, 16)
    exponent, sign = {"float32": (0x7F800000, 1 << 31), "bfloat16": (0x7F80, 1 << 15), "float16": (0x7C00, 1 << 15)}[
        dtype
    ]
    return "nan" if bits & (sign - 1) > exponent else word


@pytest.mark.rule(
    "E2M1-3", "E4M3-2", "E5M2-2", "E8M0-2", "SR-2", "PACK-1", "PACK-4", "LAY-3", "LAY-4", "SR-6", "SR-7", "HAD-2"
)
def test_every_other_vector(program):
    commands, expected = [], []
    own = {
        (codec.format.name, "stochastic" if stochastic else codec.rounding.value)
        for codec in CODECS
        for stochastic in (0, 1)
    }
    for group, test, _ in vectors("encode"):
        codec = group["codec"]
        if codec["format"] not in FORMATS:
            continue
        nan = CODECS[FORMATS.index(codec["format"])].nan
        standard = (codec["format"], codec["rounding"]) in own and codec["overflow"] is None and "infinity" not in codec
        if not standard or codec["sign"] != "bit" or [int(n, 16) for n in codec["nan"]] != [*nan]:
            continue
        stochastic = codec["rounding"] == "stochastic"
        pairs = zip(test["values"], test.get("random_bits", test["values"]), strict=True)
        values = [word for value, bits in pairs for word in ((value, bits) if stochastic else (value,))]
        commands.append(f"encode {codec['format']} {int(stochastic)} {len(test['values'])} {' '.join(values)}")
        expected.append([f"{int(code, 16):x}" for code in test["codes"]])
    for group, test, _ in vectors("decode"):
        if group["codec"]["format"] not in FORMATS:
            continue
        commands.append(f"decode {group['codec']['format']} {len(test['codes'])} {' '.join(test['codes'])}")
        expected.append(test["values"])
    for group, test, _ in vectors("pack"):
        commands.append(f"pack {group['format']} {len(test['codes'])} {' '.join(test['codes'])}")
        expected.append([test["packed"], "".join(f"{int(code, 16):x}" for code in test["codes"])])
    for group, test, _ in vectors("layout"):
        if group["layout"] in {"linear", "linear_padded", "tiled_128x4", "tiled_8x4"}:
            places = " ".join(f"{m} {k}" for m, k in test["positions"])
            commands.append(
                f"layout {group['layout']} {test['rows']} {test['columns']} {len(test['positions'])} {places}"
            )
            expected.append([*map(str, [*test["padded"], *test["offsets"]])])
    for group, test, _ in vectors("hadamard"):
        commands.append(f"hadamard {group['signs']} {test['values']}")
        expected.append(f"{test['transformed']} {test.get('restored', '')}".split())
    for group, test, _ in vectors("philox"):
        commands.append(f"philox {group['rounds']} {test['counter']} {test['key']}")
        expected.append(test["words"].split())
    for _, test, _ in vectors("random_bits"):
        if "bytes" not in test["expected"]:
            continue  # a part that is refused
        d = DIRECTION[test["direction"]]
        (rows, columns), (r, c), whole = (test[n][::-1] if d else test[n] for n in ("shape", "origin", "whole"))
        commands.append(f"random {rows} {columns} {r} {c} {whole[1]} {d} {test['seed']} {test['stream']}")
        expected.append("".join(test["expected"]["bytes"]).split())
    lines = [line.split() for line in answers(program, commands)]
    lines = [
        [word_of(w) for w in line] if c.startswith("decode") else line for c, line in zip(commands, lines, strict=True)
    ]
    wrong = [(c, got, w) for c, got, w in zip(commands, lines, expected, strict=True) if got[: len(w)] != w]
    assert wrong == []


def operand_words(spec, layout, shape, data, scales, amax):
    """An operand as the program takes it: bytes as pairs of hexadecimal digits, amaxes as words."""
    parts = (spec, layout, *shape, len(amax), *amax, *data, *scales)
    return " ".join(map(str, parts))


def product_command(mode, division, alpha, operands, bias=(), accumulate=(), to="float32"):
    head = [TYPES[to], int(mode == "blockwise"), int(division), alpha]
    return " ".join(map(str, ["gemm", *head, *operands, len(bias), len(accumulate), *bias, *accumulate]))


def widened(words, dtype):
    """The float32 bits of words of a type."""
    kind = {"float32": np.float32, "bfloat16": bfloat16, "float16": np.float16}[dtype]
    held = np.array([int(word, 16) for word in words], np.uint32 if dtype == "float32" else np.uint16)
    return [f"{bits:x}" for bits in held.view(kind).astype(np.float32).view(np.uint32)]


@pytest.mark.rule("GEM-1", "GEM-2", "GEM-3", "GEM-4", "GEM-5", "GEM-6", "GEM-7", "GEM-8")
def test_every_vector_of_products(program):
    commands, expected = [], []
    for _, test, _ in vectors("gemm"):
        if "values" not in test["expected"]:
            continue
        operands = []
        for given in (test["a"], test["b"]):
            shape = given["shape"][::-1] if given.get("direction") == "column" else given["shape"]
            amax = given.get("amax", [])
            amax = (amax if isinstance(amax, str) else " ".join(amax)).split()
            parts = hexed(given["data"]), hexed(given["scales"]), amax
            operands.append(
                operand_words(
                    fields(given["spec"]), given.get("scale_layout", "linear"), (len(given["data"]), shape[-1]), *parts
                )
            )
        to = test.get("to", "float32")
        bias = widened(test["bias"]["values"].split(), test["bias"]["dtype"]) if "bias" in test else []
        more = widened(" ".join(test.get("accumulate", [])).split(), to)
        division = test.get("alpha_rule") == "division"
        commands.append(
            product_command(test["mode"], division, test.get("alpha", "3f800000"), operands, bias, more, to)
        )
        expected.append((to, " ".join(test["expected"]["values"]).split()))
    for line, (to, values) in zip(answers(program, commands), expected, strict=True):
        words = [
            word if value != "nan" else word_of(word, to) for word, value in zip(line.split(), values, strict=True)
        ]
        assert words == values
    assert len(commands) > 50


@pytest.mark.rule("GEM-2", "GEM-4")
@pytest.mark.parametrize(
    ("blocks", "exact", "blockwise"),
    [
        ([2**24, 1, 2**-200], 2**24 + 2, 2**24),
        ([2**24, 1, -(2**-200)], 2**24, 2**24),
        ([-(2**24), -1, -(2**-200)], -(2**24) - 2, -(2**24)),
        ([2**100, 2, -(2**100)], 2, 0),
        ([2**32, 2**8, 2**-40], 2**32 + 2**9, 2**32),
        ([2**-126, 2**-150, 2**-240], 2**-126 + 2**-149, 2**-126),
        ([2**127, 2**127, 1], float("inf"), float("inf")),
    ],
)
def test_sums_of_powers_far_apart(program, blocks, exact, blockwise):
    """Each block contributes a power of two; the expected sums are worked by hand."""
    data, scales = [[], []], [[], []]
    for block in blocks:
        low, odd = divmod(math.frexp(abs(block))[1] - 1, 2)
        for side, power in enumerate((low, low + odd)):
            data[side] += ["0a" if block < 0 and side == 0 else "02", *["00"] * 15]
            scales[side].append(f"{power + 127:x}")
    operands = [operand_words("mxfp4", "linear", (1, 96), data[i], scales[i], []) for i in (0, 1)]
    lines = answers(program, [product_command(mode, 0, "3f800000", operands) for mode in ("exact", "blockwise")])
    assert [line.strip() for line in lines] == [f"{np.float32(v).view(np.uint32):08x}" for v in (exact, blockwise)]


@pytest.mark.rule("GEM-2", "GEM-3", "GEM-4", "GEM-5", "GEM-7", "GEM-8")
@pytest.mark.parametrize("mode", ["exact", "blockwise"])
@pytest.mark.parametrize(
    "pair",
    [
        ("nvfp4", "nvfp4-4over6"),
        ("nvfp4-row-scaled", "nvfp4-2d"),
        ("nvfp4-row-scaled", "nvfp4-row-scaled"),
        ("mxfp8-e5m2", "mxfp8-e4m3"),
        ("mxfp6-e3m2", "mxint8"),
        ("mxfp4", "mxfp4-2d"),
    ],
    ids="-by-".join,
)
def test_products_of_any_bytes(program, pair, mode):
    """Codes and scale bytes drawn from all of them: sums that cancel, exponents far apart, NaN, infinities."""
    rng = np.random.default_rng(len(mode))
    commands, expected = [], []
    for trial in range(12):
        rows, depth, to = (3, 2), int(rng.choice([1, 16, 40, 96])), ("float32", "bfloat16", "float16")[trial % 3]
        quantized = [
            fp4ref.quantize(rng.standard_normal((n, depth)).astype("f4"), s) for n, s in zip(rows, pair, strict=True)
        ]
        words = []
        for q, n, name in zip(quantized, rows, pair, strict=True):
            q.row.data[:] = rng.integers(0, 256, q.row.data.shape)  # spare bits too, which no reader reads
            if trial % 4:  # else the scales of the tensor
                q.row.scales[:] = rng.integers(trial, 250 - trial, q.row.scales.shape)
            amax = [] if q.row.amax is None else [f"{word:x}" for word in q.row.amax.view(np.uint32)]
            parts = ([f"{byte:x}" for byte in part.tobytes()] for part in (q.row.data, q.row.scales))
            words.append(operand_words(name, "linear", (n, depth), *parts, amax))
        alpha, bias = rng.standard_normal(1).astype("f4"), rng.standard_normal(2).astype("f4")
        more = rng.standard_normal((3, 2)).astype({"float32": "f4", "bfloat16": bfloat16, "float16": "f2"}[to])
        given = {"bias": bias, "accumulate": more} if trial % 2 else {}
        result = fp4ref.gemm(*quantized, mode, alpha=float(alpha[0]), dtype=to, backend="numpy", **given)
        extra = [[f"{w:x}" for w in np.asarray(v, np.float32).ravel().view(np.uint32)] for v in given.values()]
        commands.append(product_command(mode, 0, f"{alpha.view(np.uint32)[0]:x}", words, *extra, to=to))
        wide = 8 if to == "float32" else 4
        expected.append([f"{w:0{wide}x}" for w in result.ravel().view(f"u{wide // 2}")])
    assert [line.split() for line in answers(program, commands)] == expected


def conforms(program, plan):
    """True if the program's answers to the cases of a plan have every byte."""
    cases = io.BytesIO()
    stream.write(cases, plan)
    done = subprocess.run([program, plan.spec.name], input=cases.getvalue(), capture_output=True, check=True)
    reader = stream.Reader(io.BytesIO(done.stdout), "standard.c")
    declared = Declaration(inputs=("x", "amax"), direction=plan.direction)
    read = stream.read_plan(reader)
    found = [judge(run.case, run.outcome, declared, run.expected) for run in stream.read(reader, read, declared)]
    assert found
    return [judgement.case.id for judgement in found if not judgement.equal] == []


@pytest.mark.sampled(3)
@pytest.mark.rule("SPC-8", "CNF-6")
@pytest.mark.parametrize("spec", OWN, ids=lambda spec: spec.name)
def test_aimed_cases_of_every_own_spec(program, spec: Spec):
    direction = "column" if spec.hadamard else "row"
    assert conforms(program, stream.StreamPlan(spec, 1, direction, ("bfloat16",), tuple(FAMILIES)))


@pytest.mark.release
@pytest.mark.parametrize("direction", ["row", "column"])
@pytest.mark.parametrize("spec", OWN, ids=lambda spec: spec.name)
def test_all_cases_of_every_own_spec(program, spec: Spec, direction):
    assert conforms(program, stream.StreamPlan(spec, 1, direction))


@pytest.mark.rule("BLK-2", "GLB-1", "E2M1-5", "E4M3-4", "E5M2-4", "NUM-9")
@pytest.mark.parametrize("direction", DIRECTION)
def test_any_bits_of_an_input(program, direction):
    """Signalling NaN, subnormal numbers and infinities among all others, under every own spec without random bits."""
    words = np.random.default_rng(7).integers(0, 1 << 16, (32, 48)).astype(np.uint16)
    specs = [spec for spec in OWN if not spec.stochastic]
    head = f"1 {DIRECTION[direction]} linear 32 48 0 0 {' '.join(f'{word:x}' for word in words.ravel())}"
    lines = answers(program, [f"quantize {spec.name} {head}" for spec in specs])
    for spec, line in zip(specs, lines, strict=True):
        part = fp4ref.quantize(words.view(bfloat16), spec, direction, backend="numpy").direction(direction)[0]
        assert line.split()[:2] == [part.data.tobytes().hex(), part.scales.tobytes().hex()], spec.name


def test_the_example_of_chapter_00(program):
    from fp4ref.standard.example import elements, quantized

    words = " ".join(f"{word:04x}" for word in elements().view("uint16").ravel())
    q = quantized()
    for number, name in enumerate(("row", "column")):
        data = q.direction(name)[0]
        (line,) = answers(program, [f"quantize nvfp4 1 {number} tiled_128x4 2 18 0 0 {words}"])
        assert line.split()[:2] == [data.data.tobytes().hex(), data.scales.tobytes().hex()]
        values = fp4ref.dequantize(q, direction=name)
        parts = [" ".join(f"{byte:02x}" for byte in part.tobytes()) for part in (data.data, data.scales)]
        amax = f"{data.amax.view('uint32')[0]:08x}"
        (line,) = answers(
            program,
            [f"dequantize nvfp4 0 0 tiled_128x4 {values.shape[0]} {values.shape[1]} 1 {amax} {' '.join(parts)}"],
        )
        assert line.split() == [f"{word:08x}" for word in values.view("uint32").ravel()]


@pytest.mark.rule("BLK-2", "BLK-6", "BLK-11", "GLB-3", "GLB-7", "MXS-5", "DEQ-1", "DEQ-2")
def test_special_values_of_chapter_00_in_bytes(program):
    """Every cell of the table: the program computes scale, codes and values."""
    text = next(spec_root().glob("00-*.md")).read_text("utf-8")
    rows = tables(text.split("<!-- made: special-values -->")[1].split("<!-- end -->")[0])[0][1:]
    for name, first, beside, given, amax, *shown in rows:
        spec = PROFILES[name.strip("`")]
        width = spec.block.columns
        x = np.zeros(width * (2 if beside else 1), np.float32)
        x[:4] = [float(word) for word in first.split()]
        x[width : width + 1] = float(beside or 0)
        words = [f"{bits:08x}" for bits in x.view(np.uint32)]
        largest = np.float32(given or np.nanmax(np.abs(x))).view(np.uint32)
        assert amax == (f"`0x{largest:08X}`" if spec.global_scale is not Granularity.NONE else "")
        stated = [f"{largest:08x}"] if given else []
        command = ["quantize", spec.name, 0, 0, "linear", 1, len(x), len(stated), 0, *words, *stated]
        data, scales, *_ = answers(program, [" ".join(map(str, command))])[0].split()
        stored = [f"{largest:08x}"] if amax else []
        pairs = [*hexed([data]), *hexed([scales])]
        command = ["dequantize", spec.name, 0, 0, "linear", 1, len(x), len(stored), *stored, *pairs]
        values = [word_of(word) for word in answers(program, [" ".join(map(str, command))])[0].split()[:4]]
        codes = unpack(np.frombuffer(bytes.fromhex(data), np.uint8)[None], len(x), spec.element.format)[0, :4].tolist()
        scale, digits, decoded = ([*map(str.strip, cell.replace("`", "").split())] for cell in shown)
        assert (scale, [int(word, 16) for word in digits]) == ([scales[:2].upper()], codes), (name, first)
        assert [word.lower() for word in decoded] == values, (name, first)
    assert len(rows) > 20
