"""Example tables of whole blocks, layouts, random bits and products, read and computed; see test_standard_examples."""

from __future__ import annotations

import re
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

import fp4ref
from fp4ref import formats, four_over_six, hadamard, packings, philox
from fp4ref.catalogue import PROFILES
from fp4ref.conformance.oracle import quantizer as oracle
from fp4ref.conformance.oracle import rationals
from fp4ref.errors import Fp4Error
from fp4ref.layout.field_data import CODES
from fp4ref.spec_json import differences
from fp4ref.standard import formulas
from fp4ref.standard.tables import codes_of, number_of, tables
from standard_rules import RULES, rows_of, same_bits

F = np.float32
WORDS = {"sixteen": 16, "thirty-two": 32}
NEGATIVE_NAN = np.array(0xFFC00000, np.uint32).view(F)


def block_of(words, width):
    """A row from words such as 6.5, 1, -3, zeros, or sixteen NaN; zeros after them."""
    x = np.zeros((1, width), F)
    many = re.match(r"(sixteen|thirty-two) (\S+)", words)
    values = (
        [many[2].rstrip("s,").replace("zero", "0")] * WORDS[many[1]] if many else words.replace(" then", "").split(",")
    )
    for i, word in enumerate(value.strip() for value in values):
        if word in {"zeros", ""}:
            break
        x[0, i] = NEGATIVE_NAN if word == "-NaN" else number_of(word)
    return x


def codes_in(q, spec):
    return fp4ref.packing.unpack(q.data, q.scales.shape[1] * spec.block.columns, spec.element.format)[0].tolist()


def agrees(spec, x, byte, words, amax=None):
    """Compare byte and first codes of a row with cells: `7E`, and 7 1 0 ..., or 7 sixteen times."""
    q = fp4ref.quantize(x, spec, amax=amax, backend="numpy").row
    assert q.scales[0].tolist()[0] == codes_of(byte)[0], (byte, q.scales)
    got = codes_in(q, spec)
    times = re.match(r"`?(\w+)`?(?: hex\))? (sixteen|thirty-two) times", words)
    if times:
        assert got[: WORDS[times[2]]] == codes_of(times[1]) * WORDS[times[2]]
    else:
        shown = codes_of(words.replace(",", "").replace("...", ""))
        assert got[: len(shown)] == shown, words


@pytest.mark.rule("BLK-2", "BLK-10", "NUM-5", "MXS-5")
@pytest.mark.example("BLK-2", "BLK-10", "NUM-5", "MXS-5")
def test_blocks_by_their_words():
    for words, amax, byte, codes in rows_of("BLK-2"):
        given = 1.0 if "in a tensor with amax 1" in words else None
        agrees(fp4ref.NVFP4, block_of(words, 16), byte, codes, given)
        assert oracle.largest(block_of(words, 16)[0].tolist()) == float(amax)
    for name, words, byte, shown, codes in rows_of("BLK-10"):
        spec = PROFILES[name.strip("`")]
        x = block_of(words, 32)
        agrees(spec, x, byte, codes)
        s = formats.CUDA_E8M0.decode(np.array(codes_of(byte), np.uint8))
        with np.errstate(over="ignore"):
            for value, cell in zip((x[0] / s).tolist(), shown.split(","), strict=False):
                assert F(value) == number_of(cell) or np.isnan(value)
    for name, words, byte, code in rows_of("NUM-5"):
        spec = PROFILES["mxfp8-e4m3"]
        agrees(spec.replace(subnormals="flush") if "flush" in name else spec, block_of(words, 32), byte, code)
    for name, words, byte, codes in rows_of("MXS-5"):
        agrees(PROFILES[name.strip("`")], block_of(words, 32), byte, codes)


@pytest.mark.rule("BLK-6", "BLK-7", "BLK-8", "BLK-11", "BLK-12", "GLB-5")
@pytest.mark.example("BLK-6", "BLK-7", "BLK-8", "BLK-11", "BLK-12", "GLB-5")
def test_blocks_of_matrices():
    (small, t, byte, codes), (signed, _, other, signs), (*_, marks) = rows_of("BLK-6")
    x = np.full((1, 16), number_of(small.split()[0]))
    g = formulas.value("2688 / G", {"G": F(30000)})
    same_bits(formulas.value("a * (g * fp32(1/6))", {"a": x[0, 0], "g": g}), number_of(t))
    agrees(fp4ref.NVFP4, x, byte, codes, 30000.0)
    for i, word in enumerate(signed.split(", then")[0].split(",")):
        x[0, i] = number_of(word)
    agrees(fp4ref.NVFP4, x, other, signs.split(", then")[0], 30000.0)
    agrees(fp4ref.NVFP4, np.tile(F([0, -0.0]), 8)[None], "`00`", marks.removesuffix(" in turn"))

    x = np.zeros((16, 16), F)
    x[0, 0], x[3, 5] = 1.5, 6
    q = fp4ref.quantize(x, "nvfp4-2d", "both")
    (_, *scales), (_, *first), (_, row3, column5) = rows_of("BLK-7")
    for data, cell in zip((q.row, q.column), scales, strict=True):
        assert data.scales.ravel().tolist() == codes_of(cell.split()[0]) * 16
    assert [q.row.data[0].tobytes().hex(), q.column.data[0].tobytes().hex()] == [cell.strip("`") for cell in first]
    assert [q.row.data[3].tobytes().hex(), q.column.data[5].tobytes().hex()] == [row3.strip("`"), column5.strip("`")]

    q = fp4ref.quantize(F([[1, 2], [3, 6]]), "nvfp4", "both")
    for data, (_, scales, packed) in zip((q.row, q.column), rows_of("BLK-8"), strict=True):
        assert data.scales.ravel().tolist() == codes_of(scales.replace(",", ""))
        assert data.data.ravel().tolist() == codes_of(packed.replace(",", ""))

    elements = re.findall(r"\((\d+), (\d+)\) = (-?[0-9]+(?:\.[0-9]+)?)", RULES["BLK-12"].text)
    x = np.zeros((16, 16), F)
    for i, j, value in elements:
        x[int(i), int(j)] = float(value)
    searching = fp4ref.NVFP4_4OVER6.replace(block=(16, 16), four_over_six=fp4ref.FourOverSix(scale_max=256))
    for spec, (_, row, column) in zip((fp4ref.NVFP4_2D, searching), rows_of("BLK-12"), strict=True):
        q = fp4ref.quantize(x, spec, "both", amax=5.0)
        assert [q.row.scales[0, 0], q.column.scales[0, 0]] == [codes_of(row)[0], codes_of(column)[0]]

    (*_, zero), (*_, byte), (_, numbers, factor, _) = rows_of("BLK-11")
    assert codes_in(fp4ref.quantize(F([[-0.0] * 16]), "nvfp4-fast").row, fp4ref.NVFP4)[0] == codes_of(zero[0])[0]
    assert fp4ref.quantize(F([[-0.0] * 32]), "te.mxfp8_cast_only").row.data[0, 0] == codes_of(byte.split()[0])[0]
    s_enc, s = map(F, map(float, re.findall(r"\d+", numbers)))
    same_bits(
        formulas.value("bf16(g / s)", {"g": s_enc, "s": s}), number_of(re.findall("`0x.{8}`", f"{numbers} {factor}")[0])
    )

    x = np.repeat(F([[float(row[0])] for row in rows_of("GLB-5")]), 16, axis=1)
    for name, column in (("nvfp4-row-scaled", 2), ("nvfp4", 3)):
        q = fp4ref.quantize(x, name).row
        assert q.scales.ravel().tolist() == [codes_of(row[column])[0] for row in rows_of("GLB-5")]
        assert name == "nvfp4" or q.amax.tolist() == [float(row[1]) for row in rows_of("GLB-5")]


@pytest.mark.rule("HAD-1", "HAD-2", "HAD-3", "HAD-6")
@pytest.mark.example("HAD-1", "HAD-2", "HAD-3", "HAD-6")
def test_transforms():
    for mask, signs in rows_of("HAD-1")[:1]:
        bits = int(mask.strip("`"), 16)
        assert ["-" if bits >> i & 1 else "+" for i in range(16)] == signs.split()
    four, ramp = np.zeros(16, F), np.arange(1, 17, dtype=F)
    four[3] = 4
    for x, (_, transformed) in zip((four, ramp), rows_of("HAD-1", 1), strict=True):
        assert hadamard.transform(x[None], 0xD7E8)[0].tolist() == [float(v) for v in transformed.split()]
    v = np.zeros(16, F)
    v[:2] = 0.25, -0.25
    stages = [v.copy()]
    for h in (1, 2, 4, 8):
        for i in range(16):
            if not i & h:
                v[i], v[i + h] = v[i] + v[i + h], v[i] - v[i + h]
        stages.append(v.copy())
    for stage, (_, shown) in zip(stages, rows_of("HAD-2"), strict=True):
        words = shown.replace(", eight times", "").replace("...", "").split()
        assert stage.tolist()[: len(words)] == [float(word) for word in words]
    assert not np.signbit(hadamard.transform(F([[-0.0] * 16]), 0xD7E8)).any()
    x = np.arange(1, 17, dtype=F)
    x[0] = 256
    _, (_, before, after) = rows_of("HAD-3")
    exact = [float(word) for word in before.split()]
    signs = F([-1 if 0xD7E8 >> i & 1 else 1 for i in range(16)])
    sums = [sum(x[i] * signs[i] * (-1) ** (i & j).bit_count() for i in range(16)) / 4 for j in range(4)]
    assert [float(s) for s in sums] == exact
    assert hadamard.transform(x[None], 0xD7E8)[0, :4].tolist() == [float(word) for word in after.split()]
    q = fp4ref.quantize(np.arange(1, 17).astype(ml_dtypes.bfloat16)[:, None], "nvfp4-rht", "column")
    for inverse, (_, values) in zip((False, True), rows_of("HAD-6"), strict=True):
        got = fp4ref.dequantize(q, direction="column", inverse_hadamard=inverse)[0, :4]
        same_bits(got, [number_of(word) for word in values.split()])


@pytest.mark.rule("LAY-3", "LAY-13", "LAY-18", "LAY-58", "PACK-8", "PACK-9", "LAY-22")
@pytest.mark.example("LAY-3", "LAY-4", "LAY-13", "LAY-18", "LAY-58", "PACK-8", "PACK-9", "LAY-22")
def test_layouts_by_their_text():
    tile = fp4ref.LAYOUTS["tiled_128x4"]
    head, offsets = tables(RULES["LAY-3"].text)[1]
    for place, offset in zip(head[1:], offsets[1:], strict=True):
        m, k = map(int, re.findall(r"\d+", place))
        assert tile.offset(m, k, columns=8) == int(offset)
    for name, text in rows_of("LAY-13"):
        assert fp4ref.LAYOUTS[name.strip("`")].text == fp4ref.Layout("it", text.strip("`")).text
    known = {entry.name: entry.layout for entry in CODES} | dict(packings.PACKINGS) | dict(fp4ref.LAYOUTS)
    for rule, number in (("LAY-18", 0), ("LAY-18", 1), ("PACK-9", 0)):
        for name, text in rows_of(rule, number):
            assert known[name.strip("`")].text == fp4ref.Layout("it", text.strip("`")).text, name
    letters = {letter for row in rows_of("LAY-58") for letter in row[0].split(", ")}
    named = {axis.name for form in {**known, **fp4ref.LAYOUTS}.values() for axis in form.axes}
    assert named <= letters
    for name, text, first in rows_of("PACK-8"):
        digits, *clauses = text.strip("`").split(";")
        form = fp4ref.Layout("it", ";".join([f"n(*) {digits}", " unit 4", *clauses]))
        assert packings.PACKINGS[name.strip("`")].text == form.text
        shown = bytes.fromhex(first.strip("`"))
        buffer = bytearray(512)
        for j in range(128):
            byte, bit = packings.bit_of(form, (1, 128), 0, j)
            buffer[byte] |= j % 16 << bit
        assert bytes(buffer[: len(shown)]) == shown, name
    for name, text in rows_of("PACK-8", 1):
        digits, *clauses = text.strip("`").split(";")
        form = packings.PACKINGS[name.strip("`")].text
        assert form.startswith(f"{digits}; unit 4")
        assert all(clause in form for clause in clauses)
    for rule, name in (("LAY-1", "linear"), ("LAY-2", "linear_padded"), ("LAY-4", "tiled_8x4")):
        columns = int(re.search(r"Kb = (\d+)|For (\d+) scale columns", RULES[rule].text).expand(r"\1\2"))
        places = re.findall(r"\((\d+), (\d+)\) → (?:[0-9 +]+= )?(\d+)", RULES[rule].text)
        assert len(places) > 2
        for m, k, offset in places:
            assert fp4ref.LAYOUTS[name].offset(int(m), int(k), columns=columns) == int(offset)


@pytest.mark.rule("SR-1", "SR-2", "SR-3", "SR-4", "SR-5", "SR-6", "SR-7", "SR-12")
@pytest.mark.example("SR-1", "SR-2", "SR-3", "SR-4", "SR-5", "SR-6", "SR-7", "SR-12")
def test_random_bits_and_rounding():
    every = np.arange(256, dtype=np.uint8)
    for y, lower, upper in rows_of("SR-2"):
        codes = formats.STOCHASTIC_E2M1.encode(np.full(256, number_of(y)), every)
        assert [rationals.encode(float(number_of(y)), formats.STOCHASTIC_E2M1, int(b)) for b in every] == codes.tolist()
        low = int(lower.split(":")[1], 16)
        bound = 256 if upper == "never" else int(re.search(r">= (\d+)", upper)[1])
        high = low if upper == "never" else int(upper.split(":")[1], 16)
        assert codes.tolist() == [low] * bound + [high] * (256 - bound)
    head, codes = tables(RULES["SR-3"].text)[0]
    for y, code in zip(head[1:], codes[1:], strict=True):
        assert set(formats.STOCHASTIC_E2M1.encode(np.full(256, number_of(y)), every).tolist()) == set(codes_of(code))
    for y, frac, count, mean in rows_of("SR-4"):
        value = number_of(y.split("(just")[0] if "just" in y else y)
        got = formats.STOCHASTIC_E2M1.encode(np.full(256, value), every)
        low = formats.STOCHASTIC_E2M1.encode(F([value]), every[:1])[0]
        assert np.count_nonzero(got != low) == int(count)
        assert formats.STOCHASTIC_E2M1.expectation(F([value]))[0] == float(mean)
        grid = formats.grid(formats.E2M1)
        step = grid[low + 1] - grid[low]
        assert f"{(float(value) - grid[low]) / step:.8f}" == f"{float(frac):.8f}"
    for rounds, counter, key, output in rows_of("SR-6"):
        words = philox.philox4x32(
            np.array(list(map(int, counter.split(","))), np.uint64)[None],
            np.array(list(map(int, key.split(","))), np.uint64),
            int(rounds),
        )
        assert [f"{int(w):08X}" for w in words[0]] == output.strip("`").split()
    for shape, direction, seed, stream, where, shown in rows_of("SR-7"):
        bits = fp4ref.random_bits(
            [int(n) for n in re.findall(r"\d+", shape)], seed=int(seed), stream=int(stream), direction=direction
        )
        (r, c), *_ = [tuple(map(int, place)) for place in re.findall(r"\((\d+), (\d+)\)", where)]
        assert bits[r, c : c + 4].tolist() == codes_of(shown)
    for matrix, direction, bits in rows_of("SR-1", 1):
        shape = [int(n) for n in re.findall(r"\d+", matrix)]
        needed = [int(n) for n in re.findall(r"\d+", bits.removeprefix("uint8"))]
        fp4ref.quantize(np.ones(shape, F), "nvfp4-sr", direction, random_bits=np.zeros(needed, np.uint8))
    for names, result in rows_of("SR-5"):
        for name in re.findall("`(.*?)`", names):
            if result == "accepted":
                PROFILES[name].replace(element=formats.STOCHASTIC_E2M1)
            else:
                with pytest.raises(Fp4Error, match=re.search(r"(GLB-5|FOS-7|$)", result)[1] or "SR-5"):
                    PROFILES[name].replace(element=formats.STOCHASTIC_E2M1)
    for twin, base, _ in rows_of("SR-12"):
        a, b = (PROFILES[name.strip("`")] for name in (twin, base))
        assert differences(a, b).keys() == {"element.rounding"}


@pytest.mark.rule("FOS-3", "FOS-4", "FOS-6", "FOS-7", "DEQ-5")
@pytest.mark.example("FOS-3", "FOS-4", "FOS-7", "DEQ-5")
def test_errors_of_candidates():
    for scale_max, q, s, amax, x, error in rows_of("FOS-3"):
        names = dict(zip(("q", "s", "G", "x"), map(number_of, (q, s, amax, x)), strict=True)) | {
            "T": F(6) * F(float(scale_max))
        }
        same_bits(formulas.value("(((q * s) * G) / T) - x", names), number_of(error))
    shown = {row[0].strip("`"): row[1].strip("`") for row in rows_of("FOS-4")}
    k = fp4ref.model.quantize.constants(
        fp4ref.NVFP4_4OVER6.replace(four_over_six=fp4ref.FourOverSix(scale_max=256)), np.dtype(F)
    )
    for words, *cells in rows_of("FOS-4", 1):
        q, s, amax, _, x, error = map(number_of, cells)
        g = F(1536) / amax
        for name in re.findall("`(.*?)`", words):
            same_bits(four_over_six.RULES[name](np.asarray(q), np.asarray(s), g, amax, x, k), error)
            if name != "dequantized":
                same_bits(formulas.value(shown[name], {"q": q, "s": s, "g": g, "x": x}), error)
    for words, result in rows_of("FOS-7"):
        spec = PROFILES[re.match("`(.*?)`", words)[1]]
        change = {
            "row scale": {"global_scale": "row"},
            "16x16": {"block": (16, 16)},
            "Hadamard": {"hadamard": fp4ref.Hadamard()},
        }
        if total := re.search("total `(.*?)` and (.*) blocks", words):
            search = fp4ref.FourOverSix(total=four_over_six.RULES[total[1]])
            change = {"total": {"four_over_six": search, "block": tuple(map(int, total[2].split("x")))}}
        changes = next(
            (value for word, value in change.items() if word in words), {"four_over_six": fp4ref.FourOverSix()}
        )
        if result == "accepted":
            spec.replace(**changes)
        else:
            with pytest.raises(Fp4Error, match=r"FOS-7"):
                spec.replace(**changes)
    orders = [row[0] for row in rows_of("DEQ-5")]
    head, *values = tables(RULES["DEQ-5"].text)[1]
    amax, q, s = (F(float(v)) for v in re.findall(r"= ([0-9.]+)", head[0]))
    for formula, bits in values:
        assert formula in orders
        same_bits(formulas.value(formula.strip("`"), {"q": q, "s": s, "G": amax, "T": F(2688)}), number_of(bits))


@pytest.mark.rule("GEM-5", "GEM-6", "GEM-8", "SPC-1", "SPC-7")
@pytest.mark.example("GEM-5", "GEM-6", "SPC-1", "SPC-7")
def test_factors_and_fields():
    for tops, factor, bits in rows_of("GEM-5"):
        a, b = (F(6) * F(float(top)) for top in tops.split(","))
        same_bits([a * b, F(1) / (a * b)], [number_of(factor), number_of(bits)])
    for a, b, alpha, product in rows_of("GEM-5", 1):
        names = {"a": number_of(a), "b": number_of(b), "alpha": number_of(alpha)}
        same_bits(formulas.value("((alpha * a) * b) * 0x34149B93", names), number_of(product.split(";")[0]))
        for bits in re.findall("`(0x.{8})` if", product):
            same_bits(formulas.value("(alpha * (a * b)) * 0x34149B93", names), number_of(bits))
    for a, b, reciprocal, division in rows_of("GEM-6"):
        names = {"a": number_of(a), "b": number_of(b)}
        same_bits(formulas.value("((1 * a) * b) * fp32(1/7225344)", names), number_of(reciprocal))
        same_bits(formulas.value("((1 * a) * b) / 7225344", names), number_of(division))
    fields = {row[0]: row[2] for row in rows_of("SPC-1")}
    record = fp4ref.spec_json.encode(fp4ref.NVFP4)
    assert fields.keys() == record.keys()
    for name in ("name", "global_scale", "arithmetic", "amax", "subnormals"):
        assert fields[name].strip("`") == record[name]
    assert [fields[n] for n in ("element_max", "hadamard", "four_over_six")] == ["none"] * 3
    for words, value, code in rows_of("SPC-7"):
        codec = formats.CUDA_E2M3
        assert words in {"saturating", ""}
        assert codec.encode(F([number_of(value.split(",")[0])])).tolist() == codes_of(code)


@pytest.mark.rule("GEM-2", "GEM-4")
@pytest.mark.example("GEM-2", "GEM-4")
def test_sums_of_contributions():
    for rule in ("GEM-2", "GEM-4"):
        for words, total in rows_of(rule):
            parts = [number_of(word) for word in words.split(",")]
            exact = rationals.rounded(sum(Fraction(float(part)) for part in parts))
            in_turn = F(0)
            for part in parts:
                in_turn = in_turn + part
            same_bits(exact if rule == "GEM-2" else in_turn, number_of(total.split(",")[0]))
