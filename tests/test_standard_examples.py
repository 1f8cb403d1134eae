"""Every example table of volume 1 is read and computed, by the golden model and where there is one by the oracle.

A mark `example("ID")` says that the test reads the tables of that rule; `fp4ref rules --check` fails for a table of
volume 1 that no test reads.
"""

from __future__ import annotations

import json
import re
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

import fp4ref
from fp4ref import formats, four_over_six, packing, packings
from fp4ref.arithmetic import ARITHMETIC
from fp4ref.catalogue import PROFILES
from fp4ref.conformance.oracle import quantizer as oracle
from fp4ref.conformance.oracle import rationals
from fp4ref.errors import Fp4Error
from fp4ref.model.quantize import constants
from fp4ref.spec_root import spec_root
from fp4ref.standard import formulas
from fp4ref.standard.tables import codes_of, number_of, tables
from standard_codecs import CODECS
from standard_rules import RULES, same_bits

F = np.float32
X = "0.1 -0.2 0.3 0.4 0.5 -0.6 0.7 0.8 0.9 1 1.1 1.2 -1.3 1.4 1.5 1.6"


def read(rule, number=0):
    """A table of a rule: its head and its rows."""
    head, *rows = tables(RULES[rule].text)[number]
    return head, rows


def across(rule, number=0):
    """A table whose first column names its rows: {name: cells}."""
    return {row[0]: row[1:] for row in tables(RULES[rule].text)[number]}


# Chapter 01


@pytest.mark.rule("NUM-1", "NUM-8", "NUM-9")
@pytest.mark.example("NUM-1", "NUM-8", "NUM-9")
@pytest.mark.parametrize("rule", ["NUM-1", "NUM-8", "NUM-9"])
def test_expressions(rule):
    head, rows = read(rule)
    for expression, right, wrong in rows:
        names = dict(re.findall(r"(\w) = `(0x[0-9A-F]{8})`", expression))
        numbers = {name: formulas.value(bits) for name, bits in names.items()}
        got = formulas.value(re.match("`(.*?)`", expression)[1], numbers)
        same_bits(got, number_of(right))
        assert number_of(right) != number_of(wrong)
    if rule == "NUM-8":
        fused = formulas.value(re.search("`(fma.*)`", head[2])[1], {name: F([x]) for name, x in numbers.items()})
        same_bits(fused, [number_of(wrong)])


@pytest.mark.rule("NUM-4")
@pytest.mark.example("NUM-4", "DEQ-4")
def test_shapes_of_matrices():
    for tensor, matrix, row, column in read("NUM-4")[1]:
        q = fp4ref.quantize(np.ones(eval_shape(tensor), F), "mxfp8-e4m3", "both")
        assert list(q.matrix) == eval_shape(matrix)
        assert [list(q.direction(name)[0].data.shape) for name in ("row", "column")] == [
            eval_shape(row),
            eval_shape(column),
        ]
    for tensor, row, column in read("DEQ-4")[1]:
        q = fp4ref.quantize(np.ones(eval_shape(tensor), F), "nvfp4", "both")
        shapes = [list(fp4ref.dequantize(q, direction=name).shape) for name in ("row", "column")]
        assert shapes == [eval_shape(row), eval_shape(column)]


def eval_shape(text):
    return [int(word) for word in re.findall(r"\d+", text)]


# Chapters 02 and 03


ENCODED = """E2M1-2 E2M1-4 E2M1-5 E4M3-2 E4M3-3 E4M3-4 E4M3-6 E5M2-2 E5M2-3 E5M2-4 E5M2-6 E2M3-2 E2M3-3 E2M3-4
E2M3-5 E3M2-2 E3M2-3 E3M2-4 E3M2-5 INT8-2 INT8-3 INT8-4 INT8-5 E8M0-2 E8M0-3
UE4M3-2 UE5M3-2 UE5M3-3""".split()


@pytest.mark.rule("E4M3-6", "E5M2-6", "E2M3-5", "E3M2-5", "INT8-5", "E2M3-2", "E3M2-2", "INT8-2", "E8M0-2", "E8M0-3")
@pytest.mark.example("E2M1-2", "E2M1-4", "E2M1-5")
@pytest.mark.example("E4M3-2", "E4M3-3", "E4M3-4", "E4M3-6")
@pytest.mark.example("E5M2-2", "E5M2-3", "E5M2-4", "E5M2-6")
@pytest.mark.example("E2M3-2", "E2M3-3", "E2M3-4", "E2M3-5")
@pytest.mark.example("E3M2-2", "E3M2-3", "E3M2-4", "E3M2-5")
@pytest.mark.example("INT8-2", "INT8-3", "INT8-4", "INT8-5")
@pytest.mark.example("E8M0-2", "E8M0-3")
@pytest.mark.example("UE4M3-2", "UE5M3-2", "UE5M3-3")
@pytest.mark.parametrize("rule", ENCODED)
def test_encoders(rule):
    codec = CODECS[rule.split("-")[0]]
    table = across(rule)
    inputs = [number_of(cell) for cell in next(iter(table.values()))]
    codes = [codes_of(cell)[0] for cell in table["code"]]
    assert len(inputs) == len(codes)
    assert codec.encode(np.array(inputs, F)).tolist() == codes
    if rule[:4] != "INT8":
        assert [rationals.encode(float(x), codec) for x in inputs] == codes


@pytest.mark.rule("E2M1-3")
@pytest.mark.example("E2M1-3")
def test_ties_of_e2m1():
    steps = np.arange(0, 8, 0.125).astype(F)
    magnitudes = np.unique([steps, np.nextafter(steps, F(9)), np.nextafter(steps, F(0))])
    for condition, code in read("E2M1-3")[1]:
        inside = np.array([m for m in magnitudes if holds(condition, m)], F)
        assert inside.size
        assert set(formats.CUDA_E2M1.encode(inside).tolist()) == {int(code)}


def holds(condition, m):
    """True if a magnitude meets a condition such as 0.25 < abs(y) < 0.75."""
    words = condition.split()
    values = [m if word == "abs(y)" else float(word) for word in words[::2]]
    pairs = zip(values, words[1::2], values[1:], strict=False)
    return all(a <= b if sign == "<=" else a < b for a, sign, b in pairs)


@pytest.mark.example("E2M1-1", "E4M3-1", "E5M2-1", "E2M3-1", "E3M2-1", "INT8-1", "E8M0-1", "E8M0-4")
@pytest.mark.example("UE4M3-1", "UE5M3-1")
@pytest.mark.parametrize("rule", "E2M1-1 E4M3-1 E5M2-1 E2M3-1 E3M2-1 INT8-1 E8M0-1 E8M0-4 UE4M3-1 UE5M3-1".split())
def test_decoders(rule):
    codec = CODECS[rule.split("-")[0]]
    rows = tables(RULES[rule].text)[0]
    for values in rows:
        if values[0] not in {"value", "decoded"}:
            continue
        codes = next(row for row in reversed(rows[: rows.index(values)]) if row[0].startswith(("code", "byte")))
        for cell, value in zip(codes[1:], values[1:], strict=True):
            for code in codes_of(cell.replace(",", "")):
                got, expected = codec.decode(np.array([code], np.uint8))[0], number_of(value)
                assert got.tobytes() == expected.tobytes() or (np.isnan(got) and np.isnan(expected)), (cell, value)
    if rule == "E2M1-1":
        assert [codes_of(cell)[0] for cell in rows[0][1:]] == [int(cell.strip("`"), 2) for cell in rows[1][1:]]


@pytest.mark.rule("E8M0-5")
@pytest.mark.example("E8M0-5")
def test_reciprocals_of_scales():
    table = across("E8M0-5")
    for byte, bits in zip(table["byte"], table["reciprocal"], strict=True):
        s = formats.CUDA_E8M0.decode(np.array(codes_of(byte), np.uint8))
        same_bits(F(1) / s[0], number_of(bits))
        assert PROFILES["mxfp4"].arithmetic.scaled(F(1), s[0], F(1), None) == number_of(bits)


@pytest.mark.rule("E2M1-6", "E4M3-5", "E5M2-5")
@pytest.mark.example("E2M1-6", "E4M3-5", "E5M2-5")
def test_variations_of_codecs():
    base = formats.CUDA_E2M1
    changes = {"default": {}, "overflow 8": {"overflow": 8}}
    for number, rule in enumerate(("E2M1-6", "E4M3-5", "E5M2-5")):
        head, *rows = tables(RULES[rule].text)[-1]
        inputs = np.array([number_of(cell) for cell in head[1:]], F)
        for name, *codes in rows:
            if number:
                codec = CODECS[rule[:4]]
                over = {"E4M3-5": 0x7F, "E5M2-5": 0x7C}[rule]
                codec = codec if name == "default" else replaced(codec, overflow=over)
            else:
                field, value = re.match(r"(\w+) `?([\w-]*)`?", f"{name} x").groups()
                codec = replaced(base, **changes.get(name, {field: value}))
            assert codec.encode(inputs).tolist() == [codes_of(code)[0] for code in codes], (rule, name)
    fields = {row[0] for row in tables(RULES["E2M1-6"].text)[0][1:]}
    assert fields == {"rounding", "sign", "nan", "overflow", "infinity"}


def replaced(codec, **changes):
    values = {name: getattr(codec, name) for name in ("format", "rounding", "sign", "nan", "overflow", "infinity")}
    return formats.Codec(**(values | changes))


@pytest.mark.rule("MXS-1", "MXS-2", "MXS-3", "MXS-4")
@pytest.mark.example("MXS-1", "MXS-2", "MXS-3", "MXS-4")
def test_scales_of_mx():
    specs = {"E2M1": "mxfp4", "E4M3": "mxfp8-e4m3", "E5M2": "mxfp8-e5m2"}
    for element, a, product, byte in read("MXS-1")[1]:
        spec = PROFILES[specs[element]]
        same_bits(number_of(a) * (F(1) / F(spec.element.format.max)), number_of(product))
        assert scale_byte(number_of(a), spec) == codes_of(byte)[0]
    for rule, name in (("MXS-2", "ocp-floor"), ("MXS-3", "ocp-ceil"), ("MXS-4", "ocp-even")):
        head, *rows = tables(RULES[rule].text)[0]
        for row in rows:
            spec = PROFILES[specs[row[0]]].replace(arithmetic=ARITHMETIC[name])
            pairs = zip(row[1::2], row[2::2], strict=True) if rule == "MXS-4" else zip(head[2:], row[2:], strict=True)
            for a, byte in pairs:
                assert scale_byte(number_of(a), spec) == codes_of(byte)[0], (rule, a)


def scale_byte(a, spec):
    x = np.zeros((1, 32), F)
    x[0, 3] = a
    got, expected = fp4ref.quantize(x, spec).row, oracle.quantize(x, spec)
    assert not oracle.differences(got, expected)
    return int(got.scales[0, 0])


@pytest.mark.rule("MXS-1")
def test_the_product_of_mxs_1_changes_no_byte():
    """Both are monotonic, so that equal thresholds of every byte are enough."""

    def thresholds(function):
        low, high, bytes_ = np.zeros(255, np.int64), np.full(255, 0x7F800000, np.int64), np.arange(255)
        while (low < high).any():
            middle = (low + high) // 2
            with np.errstate(all="ignore"):
                encoded = formats.CUDA_E8M0.encode(function(middle.astype(np.uint32).view(F)))
            reached = encoded >= bytes_
            low, high = np.where(reached, low, middle + 1), np.where(reached, middle, high)
        return low.tolist()

    for name in ("E2M1", "E4M3", "E5M2", "E2M3", "E3M2"):
        top = F(CODECS[name].format.max)
        assert thresholds(lambda a, top=top: a * (F(1) / top)) == thresholds(lambda a, top=top: a / top)


# Chapter 04


@pytest.mark.rule("PACK-1", "PACK-2", "PACK-3", "PACK-4", "PACK-5")
@pytest.mark.example("PACK-1", "PACK-2", "PACK-3", "PACK-4", "PACK-5")
@pytest.mark.parametrize("rule", ["PACK-1", "PACK-2", "PACK-3", "PACK-4", "PACK-5"])
def test_packed_rows(rule):
    head, rows = read(rule)
    form = {"PACK-3": formats.E4M3, "PACK-4": formats.E2M3, "PACK-5": formats.E2M3}.get(rule, formats.E2M1)
    for row in rows:
        cells = dict(zip(head, row, strict=True))
        if "elements" in cells:
            values = np.array([number_of(part) for part in cells["elements"].split(",")], F)
            codes = (formats.CUDA_E4M3 if form is formats.E4M3 else formats.CUDA_E2M1).encode(values)
            if "codes" in cells:
                assert codes.tolist() == [codes_of(part)[0] for part in cells["codes"].split(",")]
        else:
            codes = np.array([codes_of(part)[0] for part in cells["codes"].split(",")], np.uint8)
        packed = packing.pack(codes[None], form).tobytes()
        assert packed == bytes.fromhex((cells.get("bytes") or cells["byte"]).strip("`"))
        assert list(packed) == oracle.pack(codes.tolist(), form.bits)


# Chapters 05 to 07


def bfloat16(text):
    return np.array([float(v) for v in text.split()], F).astype(ml_dtypes.bfloat16).astype(F)


@pytest.mark.rule("BLK-3", "BLK-4", "GLB-2", "GLB-3")
@pytest.mark.example("BLK-3", "BLK-4", "GLB-2", "GLB-3")
def test_scales_of_nvfp4():
    for amax, a, s_enc, t, byte, other in read("BLK-3")[1]:
        g = formulas.value("2688 / G", {"G": number_of(amax)})
        same_bits(g, number_of(s_enc))
        names = {"a": number_of(a), "g": g}
        value = formulas.value("min(a * (g * fp32(1/6)), FLT_MAX)", names)
        same_bits(value, number_of(t.split()[0]))
        assert formats.CUDA_E4M3.encode(value) == codes_of(byte)[0]
        assert formats.CUDA_E4M3.encode(formulas.value("(a / 6) * g", names)) == codes_of(other.split()[0])[0]
    for s, g, by_rule, other in read("BLK-4")[1]:
        names = {"s": number_of(s), "g": number_of(g)}
        same_bits(formulas.value("min(1 / (s * (1 / g)), FLT_MAX)", names), number_of(by_rule))
        same_bits(formulas.value("g / s", names), number_of(other))
    for amax, s_enc, bits in read("GLB-2")[1]:
        g = oracle.encoding_scale(float(number_of(amax)), 2688.0)
        same_bits([g, g], [number_of(s_enc), number_of(bits)])
    conditions, values = tables(RULES["GLB-3"].text)[:2]
    assert [row[1] for row in conditions[1:]] == ["1", "1", "FLT_MAX", "as by GLB-2"]
    for amaxes, s_enc, bits, reciprocal in values[1:]:
        for amax in re.sub(r"\(.*\)", "", amaxes).split(","):
            k = constants(fp4ref.NVFP4, np.dtype(F))
            with np.errstate(all="ignore"):
                g = fp4ref.NVFP4.arithmetic.global_scale(number_of(amax), k)
            same_bits([g, g, F(1) / g], [number_of(s_enc), number_of(bits), number_of(reciprocal)])


@pytest.mark.rule("BLK-5")
@pytest.mark.example("BLK-5")
def test_products_and_codes():
    rows = across("BLK-5")
    x = [number_of(cell) for cell in read("BLK-5")[0][1:]]
    enc = number_of("0x40745D16")
    for value, product, code in zip(x, rows["`x * enc`"], rows["code"], strict=True):
        same_bits(value * enc, number_of(product))
        assert formats.CUDA_E2M1.encode(value * enc) == codes_of(code)[0]


def chapter_table(name, head):
    text = (spec_root() / name).read_text("utf-8")
    return next(table for table in tables(text) if table[0][0] == head)


def test_the_worked_block_of_chapter_05():
    head, *rows = chapter_table("05-block-scaling.md", "global amax")
    x = bfloat16(X)
    for row in rows:
        cells = dict(zip(head, row, strict=True))
        names = {"G": number_of(cells["global amax"]), "a": np.abs(x).max()}
        names["S_enc"] = formulas.value("min(2688 / G, FLT_MAX)", names)
        names["sixth"] = formulas.value("S_enc * fp32(1/6)", names)
        names["t"] = formulas.value("min(a * sixth, FLT_MAX)", names)
        byte = formats.CUDA_E4M3.encode(np.asarray(names["t"]))
        names["s"] = formats.CUDA_E4M3.decode(byte)
        for name, formula in (("dec", "1 / S_enc"), ("prod", "s * dec"), ("enc", "min(1 / prod, FLT_MAX)")):
            names[name] = formulas.value(formula, names)
        for name in ("S_enc", "sixth", "t", "s", "dec", "prod", "enc"):
            same_bits(names[name], number_of(cells[name]))
        assert byte == codes_of(cells["byte"])[0]
        q = oracle.quantize(x[None], fp4ref.NVFP4, amax=[float(names["G"])])
        assert q.data.tobytes().hex() == cells["packed codes"].strip("`")


@pytest.mark.rule("BLK-13", "BLK-14", "BLK-1")
@pytest.mark.example("BLK-1", "BLK-13", "BLK-14")
def test_a_ragged_row():
    x = np.arange(1, 20, dtype=F)[None]
    for q in (fp4ref.quantize(x, "nvfp4").row, oracle.quantize(x, fp4ref.NVFP4)):
        assert q.scales[0].tolist() == [codes_of(cell)[0] for cell in across("BLK-13")["scales"]]
        assert q.data.tobytes() == bytes.fromhex("".join(cell.strip("`") for cell in across("BLK-14")["packed"]))
    for words, block, rows, columns in read("BLK-1")[1]:
        *_, height, width = eval_shape(words)
        i, j = eval_shape(block)
        for index, size, cell in ((i, height, rows), (j, width, columns)):
            numbers = eval_shape(cell)
            assert [index * size, index * size + size - 1] == [numbers[0], numbers[-1]]


@pytest.mark.rule("RES-1", "BLK-9")
@pytest.mark.example("RES-1", "BLK-9")
def test_arrays_of_results():
    for words, layout, *shapes in tables(RULES["RES-1"].text)[1][1:]:
        name, shape, direction = re.fullmatch(r"`(.*)`, (\[.*\]), (\w+)", words).groups()
        q = fp4ref.quantize(np.ones(eval_shape(shape), F), name, direction, layout.strip("`"))
        data = q.direction(direction)[0]
        assert [data.data.dtype, data.scales.dtype] == [np.uint8, np.uint8]
        assert data.amax is None or data.amax.dtype == F
        got = ["none" if part is None else str(list(part.shape)) for part in data]
        assert got == shapes
    for matrix, *shapes, amax in tables(RULES["BLK-9"].text)[0][1:]:
        q = fp4ref.quantize(np.ones(eval_shape(matrix), F), "nvfp4", "both")
        parts = [part for name in ("row", "column") for part in q.direction(name)[0][:2]]
        assert [str(list(part.shape)) for part in parts] == shapes
        assert str(q.row.amax.tolist()) == amax
    for words, computed, accepted in tables(RULES["BLK-9"].text)[2][1:]:
        shape, direction = words.rsplit(", ", 1)
        x = np.zeros(eval_shape(shape), F)
        amax = fp4ref.quantize(x, "nvfp4-row-scaled", direction).direction(direction)[0].amax
        assert (str(list(amax.shape)), amax.any()) == (computed, False)
        given = accepted.split(" or ")
        for form in {"[]", "[0]", "[1]", "[5]", "[40]"} - set(given):
            with pytest.raises(Fp4Error, match="GLB-4"):
                fp4ref.quantize(x, "nvfp4-row-scaled", direction, amax=np.ones(eval_shape(form), F))
        for form in given:
            q = fp4ref.quantize(x, "nvfp4-row-scaled", direction, amax=np.ones(eval_shape(form), F))
            assert q.direction(direction)[0].amax.tolist() == [1] * eval_shape(computed)[0]


@pytest.mark.rule("RES-2", "HAD-5", "BLK-9")
@pytest.mark.example("RES-2", "HAD-5")
def test_precedence():
    calls = tables(RULES["RES-2"].text)[1][1:]
    calls += [(call, "HAD-5", result) for call, _, result in read("HAD-5")[1]]
    calls += [(call, "HAD-5", result) for call, result in tables(RULES["BLK-9"].text)[1][1:]]
    for call, rules, result in calls:
        dtype, shape = call.split(" ", 1)
        x = np.ones(eval_shape(re.match(r"\[.*?\]", shape)[0]), F if dtype == "float32" else ml_dtypes.bfloat16)
        out = fp4ref.quantize(x, "nvfp4", "column") if "buffers" in call else None
        if result.startswith("refused"):
            with pytest.raises(Fp4Error, match=rules[:5]):
                fp4ref.quantize(x, "nvfp4-rht", "both" if "both" in call else "column", out=out)
        else:
            assert fp4ref.quantize(x, "nvfp4-rht", "column").column.data.shape[0] == x.shape[-1]


@pytest.mark.rule("GLB-4", "GLB-7", "GLB-8")
@pytest.mark.example("GLB-4", "GLB-7", "GLB-8")
def test_a_callers_amax_by_the_tables():
    x = np.array([[4] + [1] * 15], F)
    for words, result in tables(RULES["GLB-4"].text)[1][1:]:
        for amax in words.split(","):
            if result == "refused":
                with pytest.raises(Fp4Error, match="GLB-4"):
                    fp4ref.quantize(x, "nvfp4", amax=float(amax))
            else:
                fp4ref.quantize(x, "nvfp4", amax=float(amax))
    for words, s_enc, t, byte, enc, codes in read("GLB-7")[1]:
        for amax in re.findall(r"Inf|\d+", words):
            q = fp4ref.quantize(x, "nvfp4", amax=float(amax))
            expected = oracle.quantize(x, fp4ref.NVFP4, amax=[float(amax)])
            assert not oracle.differences(q.row, expected)
            names = {"S_enc": F(oracle.encoding_scale(float(amax), 2688.0)), "a": F(4)}
            names["s"] = formats.CUDA_E4M3.decode(q.row.scales)[0, 0]
            same_bits(names["S_enc"], number_of(s_enc))
            same_bits(formulas.value("a * (S_enc * fp32(1/6))", names), number_of(t))
            same_bits(formulas.value("1 / (s * (1 / S_enc))", names), number_of(enc))
            assert q.row.scales.tolist() == [codes_of(byte)]
            low, high = q.row.data[0, 0] & 15, q.row.data[0, 0] >> 4
            assert [low, high, high] == codes_of(codes.removesuffix(" ..."))
    for given, stored in read("GLB-8")[1]:
        word, *sums = given.split(", which is ")
        number = int(word) if word.isdigit() else float(word)
        parts = [[(int(base), int(power or 1)) for base, power in re.findall(r"(\d+)(?:\^(\d+))?", s)] for s in sums]
        assert [number] * len(sums) == [sum(base**power for base, power in each) for each in parts]
        q = fp4ref.quantize(x, "nvfp4", amax=number)
        once, *twice = re.findall("`(0x.{8})`", stored)
        same_bits(q.row.amax, [number_of(once)])
        for bits in twice:
            same_bits(F(float(number)), number_of(bits))
        assert bool(sums) == bool(twice)


@pytest.mark.rule("GLB-4", "GLB-8", "GEM-19")
def test_integers_and_wide_numbers_are_rounded_once():
    """By exact arithmetic: halfway between two float32, and one beside."""
    draw, x = np.random.default_rng(3), fp4ref.quantize(np.ones((1, 16), F), "mxfp4")
    for _ in range(200):
        shift, top = int(draw.integers(1, 100)), int(draw.integers(1 << 23, 1 << 24))
        for beside in (-1, 0, 1):
            number = (top << shift) + (1 << shift >> 1) + beside
            ends = [float(top << shift), float(top + 1 << shift)]
            nearest = min(ends, key=lambda end: (abs(int(end) - number), int(end) >> shift & 1))
            same_bits(fp4ref.quantize(np.ones((1, 16), F), "nvfp4", amax=number).row.amax, F([nearest]))
            same_bits(fp4ref.gemm(x, x, alpha=-number), F([[-16]]) * F(nearest))
    for given in (np.int64(3), np.uint8(3), np.longdouble(3), np.float16(3), 3):
        same_bits(fp4ref.quantize(np.ones((1, 16), F), "nvfp4", amax=given).row.amax, F([3]))
        same_bits(fp4ref.gemm(x, x, alpha=given), F([[48]]))
    for given in (True, "3", [3.0], Fraction(3), 3j):
        with pytest.raises(Fp4Error, match="GLB-4"):
            fp4ref.quantize(np.ones((1, 16), F), "nvfp4", amax=given)
        with pytest.raises(Fp4Error, match="GEM-19"):
            fp4ref.gemm(x, x, alpha=given)
    assert fp4ref.gemm(x, x, alpha=-(10**400)) == -np.inf


@pytest.mark.rule("GLB-1", "HAD-4", "HAD-8")
@pytest.mark.example("GLB-1", "HAD-4", "HAD-8")
def test_global_maxima():
    for words, amax in read("GLB-1")[1]:
        x = np.array([[number_of(v) for v in row.split(",")] for row in re.findall(r"\[([^][]+)\]", words)], F)
        assert fp4ref.quantize(x, "nvfp4").row.amax == number_of(amax)
        assert oracle.quantize(x, fp4ref.NVFP4).amax == number_of(amax)
    x = np.arange(1, 17).astype(ml_dtypes.bfloat16)[:, None]
    q = fp4ref.quantize(x, "nvfp4-rht", "both")
    ((_, amax, scales, packed),) = read("HAD-8")[1]
    assert (float(q.column.amax[0]), q.column.scales.tobytes(), q.column.data.tobytes().hex()) == (
        float(amax),
        bytes(codes_of(scales)),
        packed.strip("`"),
    )
    ((_, amax, scales, packed),) = read("HAD-4")[1]
    assert float(q.row.amax[0]) == float(amax)
    assert set(q.row.data.ravel().tolist()) == set(codes_of(packed.split()[0]))
    shown = re.findall("`(..)`", scales)
    assert [f"{q.row.scales[i, 0]:02X}" for i in (0, 1, 15)] == shown


@pytest.mark.rule("FOS-1", "FOS-2", "FOS-5", "FOS-8")
@pytest.mark.example("FOS-1", "FOS-2", "FOS-5", "FOS-8")
def test_candidates_metrics_and_totals():
    for words, a, g, first, second in read("FOS-1")[1]:
        t = formulas.value(re.findall("`([^`]*)`", words)[-1], {"a": number_of(a), "S_enc": number_of(g)})
        same_bits([t, t * F(1.5)], [number_of(first), number_of(second)])
    for words, product, s_enc in read("FOS-2")[1]:
        scale_max = F(float(words.split()[0]))
        same_bits([scale_max * F(6), scale_max * F(6) / F(4)], [number_of(product), number_of(s_enc)])
    head, *rows = tables(RULES["FOS-5"].text)[1]
    for name, *sums in rows:
        for errors, total in zip(head[1:], sums, strict=True):
            err = np.abs([number_of(v) for v in errors.split(",")]).astype(F)
            counts = err * err if name == "`mse`" else err
            assert (counts.max() if name == "`max`" else counts.sum()) == number_of(total)
    counts = np.array([[1] + [2.0**-24] * 12 + [0] * 3], F)
    orders = {re.match("`(.*?)`", row[0])[1] for row in tables(RULES["FOS-8"].text)[0][1:]}
    assert orders == {"rows_by_tree", "sequential", "halves", "lanes"}
    for words, total in tables(RULES["FOS-8"].text)[1][1:]:
        for name in re.findall("`(.*?)`", words):
            same_bits(four_over_six.RULES[name](counts), number_of(total))
            same_bits(oracle.TOTALS[name](counts.tolist()), number_of(total))


@pytest.mark.rule("FOS-1", "FOS-3", "BLK-3", "GLB-2")
@pytest.mark.parametrize("arithmetic", ["te", "te-division"])
@pytest.mark.parametrize("element_max", [None, 4.0])
def test_one_source_of_t_and_one_meaning_of_element_max(arithmetic, element_max):
    x = np.random.default_rng(7).normal(size=(3, 20)).astype(F)
    plain = fp4ref.NVFP4.replace(arithmetic=ARITHMETIC[arithmetic], element_max=element_max)
    for spec in (plain, plain.replace(four_over_six=fp4ref.FourOverSix(scale_max=256))):
        assert not oracle.differences(fp4ref.quantize(x, spec, backend="numpy").row, oracle.quantize(x, spec))
    q = fp4ref.quantize(x, plain, backend="numpy")
    assert fp4ref.dequantize(q, backend="numpy").tolist() == oracle.dequantize(q.row, x.shape, plain)


@pytest.mark.rule("DEQ-1", "DEQ-2", "DEQ-3")
@pytest.mark.example("DEQ-1", "DEQ-2", "DEQ-3", "DEQ-6")
def test_dequantized_values():
    head, *rows = tables(RULES["DEQ-1"].text)[0]
    factor = number_of(re.search("factor (`.*`)", head[0])[1])
    s, g = (F(float(re.search(f"{name} = ([0-9.]+)", head[0])[1])) for name in "sG")
    same_bits(formulas.value("(s * G) * fp32(1/2688)", {"s": s, "G": g}), factor)
    q = formats.CUDA_E2M1.decode(np.array(codes_of(rows[0][1]), np.uint8))
    same_bits(q * factor, [number_of(v) for v in rows[1][1].split()])
    for g, s, by_rule, other in tables(RULES["DEQ-1"].text)[1][1:]:
        names = {"G": number_of(g), "s": number_of(s)}
        same_bits(formulas.value("(s * G) * fp32(1/2688)", names), number_of(by_rule))
        same_bits(formulas.value("s / (2688 / G)", names), number_of(other))
    for name, byte, code, value in read("DEQ-2")[1]:
        spec = PROFILES[name.strip("`")]
        number = 0 if code == "any" else codes_of(code.split("(")[0])[0]
        got = oracle.dequantize(
            fp4ref.DirectionData(np.array([[number]], np.uint8), np.array([codes_of(byte)], np.uint8), None),
            (1, 1),
            spec,
        )[0][0]
        assert np.isnan(got) if value == "NaN" else F(got) == number_of(value)
    for value, bf16, fp16 in read("DEQ-3")[1]:
        with np.errstate(over="ignore"):
            assert float(number_of(value).astype(ml_dtypes.bfloat16)) == float(bf16)
            assert (
                F(number_of(value).astype(np.float16))
                == F(number_of(value).astype(np.float16))
                == np.float16(float(fp16))
            )
    for code, reference, _ in read("DEQ-6")[1]:
        same_bits(formats.CUDA_E4M3.decode(np.array(codes_of(code), np.uint8)), [number_of(reference)])


@pytest.mark.rule("SPC-10", "SPC-11", "SPC-12")
@pytest.mark.example("SPC-10", "SPC-11", "SPC-12")
def test_records():

    assert fp4ref.NVFP4.replace(name="mine") == fp4ref.NVFP4 != fp4ref.NVFP4.replace(block=(1, 32))
    copy, blocks, stated, same = read("SPC-10")[1]
    assert [row[1] for row in (copy, blocks, stated, same)] == ["equal", "not equal", "not equal", "equal"]
    six = [
        json.loads(number)
        for number in (re.search(r"element_max (\d)$", stated[0])[1], re.search("[0-9.]+$", same[0])[0])
    ]
    records = [json.loads(fp4ref.NVFP4.to_json()) | {"element_max": each} for each in six]
    whole, real = (fp4ref.from_json(json.dumps(record)) for record in records)
    assert whole == real != fp4ref.NVFP4
    for words, result in read("SPC-11", 1)[1]:
        record = json.loads(fp4ref.NVFP4.to_json())
        if result == "refused: a key twice":
            del record["block"]
            twice = json.dumps(record).replace("{", "{" + re.search("`(.*)`", words)[1] + ", ", 1)
            with pytest.raises(Fp4Error, match="a repeated key.*SPC-11"):
                fp4ref.from_json(twice)
            continue
        name = re.search('`"([a-z_0-9]+)"', words)[1]
        if "removed" in words:
            del record[name]
        else:
            change = json.loads("{" + re.search("`(.*)`", words)[1] + "}")
            place = record["element"] if "in element" in words else record
            place |= change
        if result.startswith("refused"):
            bits = re.search(r"(codes of E2M1 have (\d) bits)?$", result)[2]
            rule = (re.findall(r"by ([A-Z0-9]+-\d+)", result) or ["SPC-"])[0]
            with pytest.raises(Fp4Error, match=f"codes of {bits} bits.*SPC-" if bits else rule):
                fp4ref.from_json(json.dumps(record))
            if bits:
                assert max(*change["nan"]) == 1 << int(bits)
        else:
            assert fp4ref.from_json(json.dumps(record)) == fp4ref.NVFP4
    for words, _ in read("SPC-12")[1]:
        record = json.loads(fp4ref.NVFP4.to_json()) | json.loads("{" + re.search("`(.*)`", words)[1] + "}")
        with pytest.raises(Fp4Error, match="a registered name"):
            fp4ref.from_json(json.dumps(record))


# Chapter 08


@pytest.mark.rule("PACK-10", "PACK-7", "PACK-11", "PACK-12")
@pytest.mark.example("PACK-10", "PACK-7", "PACK-11", "PACK-12")
def test_packings_as_layouts():
    for text, result in read("PACK-10")[1]:
        form = fp4ref.Layout("example", f"{text.strip('`')}; unit 4")
        assert packings.rows_follow(form) == (result == "yes"), text
        assert (packings.bit_of(form, (2, 3), 1, 0) == (2, 0)) == (result == "yes"), text
    for text, matrix, shape in read("PACK-12", 1)[1]:
        sizes, expected = (tuple(int(word) for word in re.findall(r"\d+", cell)) for cell in (matrix, shape))
        assert packings.packed_shape(fp4ref.Layout("example", text.strip("`")), *sizes) == expected
    for rule in ("PACK-7", "PACK-10", "PACK-11"):
        for name, count, codes, packed in tables(RULES[rule].text)[-1][1:]:
            rows = [[int(code, 16) for code in re.findall("[0-9A-F]+", part)] for part in codes.split(",")]
            assert len(rows) == int(count)
            text = name.strip("`")
            form = fp4ref.Layout("example", text) if " " in text else packings.packing(text)
            assert packed_by_bits(form, rows) == bytes.fromhex(packed.strip("`")), name


def packed_by_bits(form, rows):
    """The bytes of a matrix of codes, each code added at the bit that the packing gives it."""
    shape = (len(rows), len(rows[0]))
    buffer = bytearray(int(np.prod(packings.packed_shape(form, *shape))))
    for i, row in enumerate(rows):
        for j, code in enumerate(row):
            byte, bit = packings.bit_of(form, shape, i, j)
            value = code << bit
            for extra in range(1 + (value > 0xFF)):
                buffer[byte + extra] |= value >> 8 * extra & 0xFF
    return bytes(buffer)
