"""Example tables whose cells are words as much as numbers, read and acted upon; see test_standard_examples."""

from __future__ import annotations

import math
import re

import ml_dtypes
import numpy as np
import pytest

import fp4ref
from fp4ref import formats, hadamard
from fp4ref.arithmetic import ARITHMETIC
from fp4ref.catalogue import PROFILES
from fp4ref.conformance.judge import binomial, hypergeometric
from fp4ref.conformance.oracle import quantizer as oracle
from fp4ref.errors import Fp4Error
from fp4ref.formats import STOCHASTIC_E2M1, Format
from fp4ref.spec_json import differences
from fp4ref.spec_root import spec_root
from fp4ref.standard import formulas
from fp4ref.standard.tables import codes_of, number_of, tables
from standard_rules import RULES, rows_of, same_bits

F = np.float32


def named(cell):
    return PROFILES[re.search("`(.*?)`", cell)[1]]


@pytest.mark.rule("NUM-3", "GLB-6", "PACK-6", "SPC-6")
@pytest.mark.example("NUM-3", "GLB-6", "PACK-6")
def test_refusals_by_the_tables():
    (number, dtype, result), (rounded, _, codes) = rows_of("NUM-3")
    with pytest.raises(Fp4Error, match="NUM-3"):
        fp4ref.quantize(np.full((1, 16), float(number), dtype), "nvfp4")
    assert result == "refused"
    value = formulas.value(re.search("`(.*?)`", rounded)[1])
    same_bits(value, F(float(rounded.rsplit("= ")[1])))
    first, other = re.findall(r"E2M1 code (\d)|be (\d)", codes)
    assert formats.CUDA_E2M1.encode(F([value, np.nextafter(value, F(3))])).tolist() == [int(first[0]), int(other[1])]
    for cell, g, stored in rows_of("GLB-6"):
        for name in re.findall("`(.*?)`", cell):
            assert (g, stored) == ("1", "none")
            assert fp4ref.quantize(np.ones((1, 32), F), name).row.amax is None
            with pytest.raises(Fp4Error, match="GLB-6"):
                fp4ref.quantize(np.ones((1, 32), F), name, amax=1.0)
    for words, result in rows_of("PACK-6"):
        exponent, mantissa = map(int, re.findall(r"(\d) bits", words))
        with pytest.raises(Fp4Error, match=re.search(r"\d bits", result)[0]):
            Format("odd", exponent, mantissa, bias=1, codes=4)


@pytest.mark.rule("HAD-7")
@pytest.mark.example("HAD-7")
def test_the_interval_of_the_transform():
    text = RULES["HAD-7"].text
    group = np.array(
        [float(v) for v in re.search(r"mask `0xD7E8`: ([^>]*?)\.\n", text)[1].replace("\n", " ").split(",")]
    )
    (_, _, _, _, _), (words, total, bound, canonical, accepted) = rows_of("HAD-7")
    j = int(words.rsplit(" ", 1)[1])
    signs = [-1 if 0xD7E8 >> i & 1 else 1 for i in range(16)]
    exact = sum(v * s * (-1) ** (i & j).bit_count() for i, (v, s) in enumerate(zip(group, signs, strict=True))) / 4
    width = 15 * 2.0**-23 * np.abs(group).sum() / 4
    assert [f"{exact:.7f}", f"{width:.7f}"] == [total, bound]
    assert hadamard.transform(group.astype(F)[None], 0xD7E8)[0, j] == float(canonical)
    ends = {float(np.float64(v).astype(ml_dtypes.bfloat16)) for v in (exact - width, exact + width)}
    assert ends == {float(v) for v in accepted.split(",")}
    exponents = np.frexp(group)[1]
    assert exponents.max() - exponents.min() == int(words.split(",")[0])


@pytest.mark.rule("SPC-2", "SPC-4", "SPC-5", "SPC-6", "FOS-6")
@pytest.mark.example("SPC-2", "SPC-4", "SPC-5", "FOS-6")
def test_settings_that_are_refused():
    unsigned, wide = Format("unsigned", 4, 0, 7, 16, signed=False), Format("narrow", 2, 1, bias=1, codes=8)
    codec = formats.Codec
    settings = [
        ("nvfp4", {"block": (0, 16)}),
        ("nvfp4", {"element": codec(format=unsigned, nan=(0, 0))}),
        ("nvfp4", {"scale": codec(format=wide, nan=(0, 0))}),
        ("nvfp4", {"scale": STOCHASTIC_E2M1}),
        ("nvfp4", {"element_max": 7.0}),
        ("nvfp4-2d", {"global_scale": "row"}),
        ("nvfp4-rht", {"global_scale": "row"}),
        ("mxfp4", {"global_scale": "tensor"}),
        ("nvfp4", {"arithmetic": ARITHMETIC["rceil"]}),
        ("nvfp4-4over6", {"hadamard": fp4ref.Hadamard()}),
        ("nvfp4-4over6", {"scale_max": 449.0}),
        ("nvfp4", {"hadamard": fp4ref.Hadamard(), "block": (1, 8)}),
    ]
    table = rows_of("SPC-2")
    assert len(table) == len(settings) + 1
    for (name, change), row in zip(settings, table, strict=False):
        make = fp4ref.FourOverSix if "scale_max" in change else PROFILES[name].replace
        with pytest.raises(Fp4Error, match=row[2] if row[0] != "a scale with stochastic rounding" else "SPC-2"):
            make(**change)
    with pytest.raises(Fp4Error, match=table[-1][2]):
        codec(format=formats.E4M3, nan=(0, 0), rounding="stochastic")
    for words, result in rows_of("SPC-4"):
        name = re.search('"arithmetic": "(.*?)"', words)[1]
        assert (name in ARITHMETIC) == (result == "found")
    for profile, fields, arithmetic in rows_of("SPC-5"):
        found = {field.split(".")[0] for field in differences(fp4ref.NVFP4, named(profile))}
        assert found - {"arithmetic"} == set(re.findall("element|scale|amax", fields))
        assert named(profile).arithmetic.name == arithmetic.strip("`")
    text = (spec_root() / "10-four-over-six.md").read_text("utf-8")
    _, _, block, rest = re.search(
        r"(?s)(X of chapter 05)(.*?)block Y, rounded to bfloat16: (.*?)\.\n\n(.*)", text
    ).groups()
    y = np.array([[float(v) for v in block.split(",")]], F).astype(ml_dtypes.bfloat16)
    candidates = {(row[0], row[1]): (row[3], row[5]) for row in tables(rest)[0][1:]}
    for words, kept in rows_of("FOS-6"):
        if top := re.match(r"Y, scale_max (\d+)", words):
            search = fp4ref.FourOverSix(scale_max=float(top[1]))
            q = fp4ref.quantize(y, fp4ref.NVFP4_4OVER6.replace(four_over_six=search), amax=4.0, backend="numpy")
            assert f"`{q.row.scales[0, 0]:02X}`" == candidates[top[1], "Y"][int(kept) - 1]


@pytest.mark.rule("FOS-1", "FOS-3", "FOS-5")
def test_the_blocks_of_chapter_10():
    text = (spec_root() / "10-four-over-six.md").read_text("utf-8")
    block = re.search(r"(?s)block Y, rounded to bfloat16: (.*?)\.\n", text)[1]
    x = "0.1 -0.2 0.3 0.4 0.5 -0.6 0.7 0.8 0.9 1 1.1 1.2 -1.3 1.4 1.5 1.6".split()
    blocks = {"X": x, "Y": block.replace("\n", " ").split(",")}
    values = {n: np.array([float(v) for v in b], F).astype(ml_dtypes.bfloat16).astype(F) for n, b in blocks.items()}
    first, second = tables(text)[:2]
    for scale_max, name, t1, byte1, t2, byte2, *sums in first[1:]:
        g, x = F(6) * F(float(scale_max)) / F(4), values[name]
        for factor, t, byte, mae, mse in ((F(1), t1, byte1, sums[0], sums[2]), (F(1.5), t2, byte2, sums[1], sums[3])):
            got = formulas.value("(a / 6) * g", {"a": np.abs(x).max(), "g": g}) * factor
            same_bits(got, number_of(t))
            assert formats.CUDA_E4M3.encode(got) == codes_of(byte)[0]
            s = formats.CUDA_E4M3.decode(np.array(codes_of(byte), np.uint8))[0]
            y = formulas.value("x * min(1 / (s * (1 / g)), FLT_MAX)", {"x": x, "s": s, "g": g})
            q = formats.CUDA_E2M1.decode(formats.CUDA_E2M1.encode(y))
            err = formulas.value(
                "(((q * s) * G) / T) - x", {"q": q, "s": s, "G": F(4), "T": F(6) * F(float(scale_max)), "x": x}
            )
            for counts, total in ((np.abs(err), mae), (err * err, mse)):
                same_bits(oracle.TOTALS["sequential"]([counts.tolist()]), number_of(total))
    for words, *cells in second[1:]:
        scale_max, metric = re.match(r"(\d+), `(\w+)`", words).groups()
        spec = fp4ref.NVFP4_4OVER6.replace(four_over_six=fp4ref.FourOverSix(metric=metric, scale_max=float(scale_max)))
        for cell, x in zip(cells, values.values(), strict=True):
            q = oracle.quantize(x[None], spec, amax=[4.0])
            assert cell == f"`{q.scales[0, 0]:02X}` `{q.data.tobytes().hex()}`"


@pytest.mark.rule("SR-8", "SR-10", "SR-11", "SR-13", "SR-15", "SR-17")
@pytest.mark.example("SR-8", "SR-11", "SR-13", "SR-15", "SR-17")
def test_parts_and_intervals_of_random_bits():
    wholes = {re.search(r"whole \[(\d+), (\d+)\]", RULES[rule].text).groups() for rule in ("SR-8", "SR-15")}
    whole = [int(n) for n in wholes.pop()]
    assert not wholes
    for part, direction, result in (*rows_of("SR-8"), *rows_of("SR-15", 1)):
        rows, columns, *origin = (int(n) for n in re.findall(r"\d+", part))
        call = {"direction": direction, "seed": 0, "stream": 0, "origin": tuple(origin), "whole": tuple(whole)}
        if result.startswith("refused"):
            with pytest.raises(Fp4Error, match="SR-15"):
                fp4ref.random_bits((rows, columns), **call)
        else:
            got = fp4ref.random_bits((rows, columns), **call)
            assert result == "accepted" or got.ravel()[:4].tolist() == codes_of(re.search("`(.*?)`", result)[1])
    for part, large, direction, small in rows_of("SR-17"):
        numbers, of, shape = (
            [int(n) for n in re.findall(r"\d+", cell.removeprefix("uint8"))] for cell in (part, large, small)
        )
        more = {"whole": tuple(of), "origin": tuple(numbers[2:])} if of else {}
        got = fp4ref.random_bits(tuple(numbers[:2]), direction, **more)
        assert list(got.shape) == shape
        if of:  # the same places of the whole
            r, c = numbers[2:]
            part_of_whole = fp4ref.random_bits(tuple(of))[r : r + numbers[0], c : c + numbers[1]]
            columns = fp4ref.random_bits(tuple(of), "column")[c : c + numbers[1], r : r + numbers[0]]
            assert got.tolist() == (part_of_whole if direction == "row" else columns).tolist()
    for test, trials, probability, level, interval in rows_of("SR-11"):
        alpha = float(number_of(level.split("^")[0])) ** int(level.split("^")[1])
        if test == "one bin":
            chance = float(number_of(probability))
            found = binomial.interval(int(trials), chance, chance, alpha)
        else:
            successes = int(re.search(r"= (\d+)$", test)[1])
            found = hypergeometric.interval(int(trials), successes, successes, alpha)
        ends = [int(word) for word in interval.split(" to ")]
        assert list(found) == [ends[0], ends[-1]]
    for n, words, result in rows_of("SR-13"):
        digits, power = re.search(r"([\d.]+) \* 10\^(-\d+)", words).groups()
        chance = 1 / math.comb(int(n), int(n) // 2)
        assert f"{chance:.1e}" == f"{float(digits):.1f}e{int(power):03d}"
        assert result == ("fails" if chance < 1e-12 else "passes")


def operand(values, spec):
    return fp4ref.quantize(F([values]), spec, backend="numpy")


@pytest.mark.rule("GEM-1", "GEM-7", "GEM-8", "GEM-9", "GEM-10", "GEM-12", "GEM-26", "GEM-59")
@pytest.mark.example("GEM-1", "GEM-7", "GEM-8", "GEM-9", "GEM-10", "GEM-12", "GEM-26", "GEM-59")
def test_products():
    x = [6, 1] * 8
    for _, w, d in rows_of("GEM-1"):
        pattern = [float(v) for v in w.replace(", ...", "").split(",")]
        assert float(
            fp4ref.gemm(operand(x, "nvfp4"), operand(np.resize(pattern, 16), "nvfp4"), backend="numpy")[0, 0]
        ) == float(d)
    total, a, b = (F(float(v)) for v in re.findall(r"(\d[\d.]*)(?=,| \|)", tables(RULES["GEM-7"].text)[0][0][0] + ","))
    y = total * (F(1) * (F(1) / F(7225344)))
    alpha = ((F(1) * a) * b) * (F(1) / F(7225344))
    expected = [y * (a * b), (y * a) * b, total * alpha]
    same_bits(expected, [number_of(row[1]) for row in rows_of("GEM-7")])
    for words, result in (*rows_of("GEM-8"), *rows_of("GEM-26")):
        if sums := re.search(r"(bf16\(.*\)(?: \+ 256)?)", words.replace(", the tie", "")):
            got = formulas.value(f"bf16({sums[1]})")
            assert float(got) == float(result)
    for rule in ("GEM-9", "GEM-10", "GEM-59"):
        for left, right, result in rows_of(rule, -1):
            directions = tuple("column" if "column" in cell else "row" for cell in (left, right))
            for name in re.findall("`([a-z_.0-9-]+)`", right):
                pair = [np.ones((32, 32), ml_dtypes.bfloat16) for _ in range(2)]
                q = [
                    fp4ref.quantize(p, n, d, backend="numpy")
                    for p, n, d in zip(pair, (named(left).name, name), directions, strict=True)
                ]
                if result.startswith("fit"):
                    assert fp4ref.gemm(*q, directions=directions, backend="numpy").shape == (32, 32)
                else:
                    with pytest.raises(Fp4Error, match=rf"\[{rule}\]"):
                        fp4ref.gemm(*q, directions=directions, backend="numpy")
    for _, m, n, k, shape in rows_of("GEM-12"):
        pair = [fp4ref.quantize(np.ones((int(rows), int(k)), F), "mxfp8-e4m3", backend="numpy") for rows in (m, n)]
        (grouped,) = fp4ref.gemm_grouped([pair[0]], [pair[1]], backend="numpy")
        alone = fp4ref.gemm(*pair, backend="numpy")
        assert str(list(grouped.shape)) == shape.split("]")[0] + "]"
        assert grouped.tobytes() == alone.tobytes()


@pytest.mark.rule("LAY-3", "LAY-4", "LAY-1", "LAY-2", "LAY-28", "LAY-29")
@pytest.mark.example("LAY-28")
def test_formulas_and_clauses_of_layouts():
    for rule, name in (
        ("LAY-1", "linear"),
        ("LAY-2", "linear_padded"),
        ("LAY-3", "tiled_128x4"),
        ("LAY-4", "tiled_8x4"),
    ):
        formula = re.search(r"(?s)offset\s+`(.*?)`", RULES[rule].text)[1]
        form = fp4ref.LAYOUTS[name]
        rows, columns = 300, 6
        for m, k in ((0, 0), (1, 0), (7, 3), (8, 4), (31, 5), (32, 1), (127, 2), (128, 0), (200, 5), (299, 5)):
            numbers = {"m": m, "k": k, "Kb": columns, "W": -(-columns // 4) * 4, "tiles": -(-columns // 4)}
            assert integer(formula, numbers) == form.offset(m, k, rows=rows, columns=columns), (rule, m, k)
    clauses = dict(row[:2] for row in rows_of("LAY-28"))
    for clause in clauses:
        text = clause.strip("`")
        if text.startswith("pad"):
            form = fp4ref.Layout("it", f"m(32,*) k(4,*): k0 m0 k1 m1; {text}")
            assert fp4ref.Layout("it", form.text) == form
            assert text in form.text or text == "pad m"  # it changes nothing, so no text is printed for it
    assert set(re.findall(r"\d+", clauses["`unit w`"])) == {"1", "2", "4", "6", "8", "16", "32"}
    for unit in (1, 2, 4, 6, 8, 16, 32):
        assert fp4ref.Layout("it", f"m(*) k(*): k0 m0; unit {unit}").unit == unit
    assert fp4ref.Layout("it", "n(*) h(*): h0 n0; base 17*h").offset(0, 0, rows=2, columns=3) == 17 * 3


def integer(formula, numbers):
    """A formula of integers, whose quotients are rounded down."""
    tree = compile(formula.replace("/", "//"), "formula", "eval")
    return eval(tree, {"__builtins__": {}}, numbers)
