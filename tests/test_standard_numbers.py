"""Numbers in the sentences and headings of volume 1: formulas of codes, limits, equations, special values."""

from __future__ import annotations

import dataclasses
import operator
import re
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

import fp4ref
import fp4ref.model.quantize
from fp4ref import formats, hadamard
from fp4ref.catalogue import PROFILES
from fp4ref.spec_root import spec_root
from fp4ref.specs import OWN
from fp4ref.standard import formulas, made
from fp4ref.standard.examples import VOLUME_1
from fp4ref.standard.tables import codes_of, number_of, tables
from standard_codecs import CODECS
from standard_rules import RULES, text_of

F = np.float32
WORDS = {"one": 1, "two": 2, "three": 3, "four": 4, "five": 5, "seven": 7, "eight": 8}


def chapter(number):
    """The text of a chapter of volume 1, without its generated parts."""
    return made.MADE.sub("", next(spec_root().glob(f"{number}-*.md")).read_text("utf-8"))


def heading(rule):
    """The title of a rule, as the chapter prints it."""
    return re.search(rf"(?m)^#### {rule} · (.*?) \(\w+\)$", chapter(RULES[rule].chapter[:2]))[1]


def statement(rule):
    """A rule's text without tables and reasons, in one line."""
    lines = [line for line in text_of(rule).splitlines() if not line.startswith(("|", ">", "#"))]
    return " ".join(lines)


def decoded(codec, code):
    return float(codec.decode(np.array([code], np.uint8))[0])


@pytest.mark.rule("E2M1-1", "E4M3-1", "E5M2-1", "E2M3-1", "E3M2-1", "UE5M3-1")
@pytest.mark.example("E2M1-1", "E4M3-1", "E5M2-1", "E2M3-1", "E3M2-1", "UE5M3-1")
@pytest.mark.parametrize("name", ["E2M1", "E4M3", "E5M2", "E2M3", "E3M2", "UE5M3"])
def test_the_formula_of_each_code(name):
    rule, codec = f"{name}-1", CODECS[name]
    text = statement(rule)
    low, high = re.search(r"is (man[^,]*?) if exp = 0, .*?else (2\^\(exp.*?\(1 \+ man/\d\))", text).groups()
    exponent, mantissa = (WORDS[word] for word in re.search(r"(\w+) exponent bits.*?(\w+) mantissa bit", text).groups())
    assert (exponent, mantissa) == (codec.format.exponent_bits, codec.format.mantissa_bits)
    bias = re.search(r"bias (\d+)", text)
    assert bias is None or int(bias[1]) == codec.format.bias
    special = [int(code, 16) for code in re.findall(r"0x([0-9A-F]{2})|`(FF)`", text) for code in code if code]
    for code in range(1 << (exponent + mantissa)):
        exp, man = code >> mantissa, code & (1 << mantissa) - 1
        got = decoded(codec, code)
        if code in special:
            assert np.isnan(got)
        elif name == "E5M2" and exp == int(re.search(r"infinite if exp = (\d+)", text)[1]):
            assert exp == int(re.search(r"NaN if exp = (\d+) and man > 0", text)[1])
            assert np.isnan(got) if man else np.isinf(got)
        else:
            formula = low if exp == 0 else high
            assert got == formulas.value(formula.replace("exp-", f"{exp}-").replace("man", str(man))), code


@pytest.mark.rule("E2M1-4", "E4M3-3", "E5M2-3", "E2M3-3", "E3M2-3", "INT8-3", "UE4M3-2", "UE5M3-3")
@pytest.mark.example("E2M1-4", "E4M3-3", "E5M2-3", "E2M3-3", "E3M2-3", "INT8-3", "UE4M3-2", "UE5M3-3")
@pytest.mark.parametrize("rule", ["E2M1-4", "E4M3-3", "E5M2-3", "E2M3-3", "E3M2-3", "INT8-3", "UE4M3-2", "UE5M3-3"])
def test_where_a_format_saturates(rule):
    codec = CODECS[rule.split("-")[0]]
    text = statement(rule)
    limit = re.search(r"magnitude above ([\d./]+)", text)[1]
    code = int(re.search(r"to\s+(?:0x|code |`)([0-9A-F]{1,2})", text.split("magnitude above")[1])[1], 16)
    largest = float(Fraction(limit))
    assert decoded(codec, code) == largest == codec.format.max
    assert codec.encode(F([np.nextafter(F(largest), F(np.inf)), np.inf])).tolist() == [code, code]
    titled = re.search(r"saturate to ([\d./]+)", heading(rule))
    assert titled is None or titled[1] == limit
    if rule == "INT8-3":
        minus, never = (int(word, 16) for word in re.search(r"or to 0x(..) .* encodes to 0x(..)", text).groups())
        assert codec.encode(F([-3, -np.inf])).tolist() == [minus, minus]
        assert decoded(codec, never) == -2
        assert never not in codec.encode(np.linspace(-4, 4, 4001, dtype=F)).tolist()


@pytest.mark.rule("E2M1-5", "E4M3-4", "E5M2-4", "E2M3-4", "E3M2-4", "INT8-4")
@pytest.mark.example("E2M1-5", "E4M3-4", "E5M2-4", "E2M3-4", "E3M2-4", "INT8-4")
@pytest.mark.parametrize("rule", ["E2M1-5", "E4M3-4", "E5M2-4", "E2M3-4", "E3M2-4", "INT8-4"])
def test_the_code_of_nan_in_heading_and_sentence(rule):
    words = [re.search(r"encodes? to 0x([0-9A-F]+)", text)[1] for text in (heading(rule), statement(rule))]
    nans = np.uint32([0x7FC00000, 0xFFC00000, 0x7F800001]).view(F)
    assert CODECS[rule.split("-")[0]].encode(nans).tolist() == [int(words[0], 16)] * 3 == [int(words[1], 16)] * 3


@pytest.mark.rule("E2M1-2", "E4M3-6", "E5M2-6", "E2M3-5", "E3M2-5")
@pytest.mark.example("E2M1-2", "E4M3-6", "E5M2-6", "E2M3-5", "E3M2-5")
@pytest.mark.parametrize("rule", ["E2M1-2", "E4M3-6", "E5M2-6", "E2M3-5", "E3M2-5"])
def test_the_bit_of_the_sign(rule):
    bit = int(re.search(r"Bit (\d) of the code", statement(rule))[1])
    codes = CODECS[rule.split("-")[0]].encode(F([0, -0.0, 1, -1])).tolist()
    assert [code >> bit for code in codes] == [0, 1, 0, 1]


def test_next_values_of_chapter_02():
    text = " ".join(chapter("02").split("## E2M1")[0].split())
    groups = re.findall(r"(\d+\^?\d*) for ([A-Z]\w+(?: and \w+)?)", text.split("largest in the same grid:")[1])
    pairs = [(value, name) for value, names in groups for name in names.split(" and ")]
    assert len(pairs) == len(CODECS)
    for value, name in pairs:
        codec = CODECS[name]
        grid = np.abs(codec.decode(np.arange(1 << codec.format.bits, dtype=np.uint16).astype(np.uint8))).astype(float)
        grid = np.unique(grid[np.isfinite(grid)])
        if name in {"INT8", "UE4M3"}:
            grid = grid[:-1]  # no input encodes to the number -2, and none to code FF of UE4M3
        base, _, exponent = value.partition("^")
        step = grid[-1] if name == "E8M0" else grid[-1] - grid[-2]  # each value of E8M0 is twice the one before
        assert float(int(base) ** int(exponent or 1)) == grid[-1] + step


@pytest.mark.rule("E8M0-1", "E8M0-2", "E8M0-3", "E8M0-4", "E8M0-5", "MXS-5")
@pytest.mark.example("E8M0-1", "E8M0-2", "E8M0-3", "E8M0-4", "E8M0-5")
def test_powers_of_two_in_the_sentences():
    codec = formats.CUDA_E8M0
    last, bias, nan = map(
        int, re.search(r"of 0 to (\d+) .*? 2\^\(c-(\d+)\), and code (\d+)", statement("E8M0-1")).groups()
    )
    assert [decoded(codec, c) for c in range(last + 1)] == [2.0 ** (c - bias) for c in range(last + 1)]
    assert np.isnan(decoded(codec, nan))
    most = int(re.search(r"but to (\d+) at most", statement("E8M0-2"))[1])
    assert codec.encode(F([3.4e38])).tolist() == [most]
    exponent, *codes = re.search(
        r"up to 2\^(-\d+) shall encode to 0x(..), larger subnormals to 0x(..), infinity to 0x(..) and NaN to 0x(..)",
        statement("E8M0-3"),
    ).groups()
    edge = F(2.0 ** int(exponent))
    inputs = F([edge, np.nextafter(edge, F(1)), np.inf, np.nan])
    assert codec.encode(inputs).tolist() == [int(code, 16) for code in codes]
    zero, power, none = re.search(
        r"byte 0x(..) to the subnormal number 2\^(-\d+), and byte 0x(..) to NaN", statement("E8M0-4")
    ).groups()
    assert (decoded(codec, int(zero, 16)), decoded(codec, int(zero, 16))) == (2.0 ** int(power), float(edge))
    assert np.isnan(decoded(codec, int(none, 16)))
    for byte, power in re.findall(
        r"byte 0x(..) (?:shall count )?as (?:the subnormal number )?2\^(-?\d+)", statement("E8M0-5")
    ):
        assert 1 / decoded(codec, int(byte, 16)) == 2.0 ** int(power)
    assert len(re.findall(r"byte 0x..", statement("E8M0-5"))) == 2
    clamp = re.search(
        r"`field - emax`, or (\d) if that is negative, or (\d+) if that is larger", " ".join(chapter("03").split())
    )
    assert [int(word) for word in clamp.groups()] == [0, most]
    assert re.search("which E8M0 stores as 0x(..)", statement("MXS-5"))[1] == f"{nan:02X}"


@pytest.mark.rule("BLK-3", "BLK-4", "GLB-2", "DEQ-1", "GEM-5", "SR-2", "HAD-1")
@pytest.mark.example("BLK-3", "BLK-4", "HAD-1", "HAD-2", "DEQ-1", "GEM-5")
def test_headings_compute_what_their_rules_do():
    draw = np.random.default_rng(5)
    a, g, s, x, amax = (np.exp2(draw.uniform(-8, 8, 200)).astype(F) for _ in range(5))
    names = {"amax": a, "S_enc": g, "s": s, "alpha": x, "amax_A": a, "amax_B": amax, "q": x, "G": amax}
    short = re.search(r"is (.*)", heading("BLK-3"))[1]
    full = re.search(r"`(min\(a .*?\))`:", statement("BLK-3"))[1]
    assert formulas.value(short, names).tobytes() == formulas.value(full, names | {"a": a}).tobytes()
    short = re.search(r"is (min\(.*\)), from", heading("BLK-4"))[1]
    assert (
        formulas.value(short, names).tobytes()
        == formulas.value(re.search("`(.*?)`", statement("BLK-4"))[1], names).tobytes()
    )
    spec = {"scale_max": F(448), "element_max": F(6), "factor": F(7225344)}
    full = re.search("`(q .*?)`", statement("DEQ-1"))[1]
    short = re.search(r": (q .*)", heading("DEQ-1"))[1]
    assert formulas.value(full, names | spec).tobytes() == formulas.value(short.replace("amax", "G"), names).tobytes()
    short = re.search(r": (\(.*)", heading("GEM-5"))[1]
    full = re.search("number `(.*?)`", statement("GEM-5"))[1]
    assert formulas.value(full, names | spec).tobytes() == formulas.value(short, names | spec).tobytes()
    strides = re.search(r"strides (.*)", heading("HAD-2"))[1].split(", ")
    assert strides == re.search(r"strides h = (.*?) in this order", statement("HAD-2"))[1].split(", ")
    v = draw.standard_normal(16).astype(F)
    mask = int(re.search(r"default mask is (0x[0-9A-F]{4})", statement("HAD-1"))[1], 16)
    plus, minus = map(F, re.search(r"multiplied by ([\d.]+), or by (-[\d.]+)", statement("HAD-2")).groups())
    w = [v[i] * (minus if mask >> i & 1 else plus) for i in range(16)]
    for h in map(int, strides):
        for i in range(16):
            if not i & h:
                w[i], w[i + h] = w[i] + w[i + h], w[i] - w[i + h]
    wanted = np.asarray(w, F).astype(ml_dtypes.bfloat16).astype(F)
    assert hadamard.transform(v[None], fp4ref.Hadamard().signs)[0].tolist() == wanted.tolist()


PRODUCT = r"(?:\(*\d[\d,]*\)* [*×+/] )+\(*\d[\d,]*\)*"
EQUATION = re.compile(rf"(?<![\w.])(?:{PRODUCT} = (?:\d[\d,]*\d|\d)|\d+ = {PRODUCT})")


def evaluated(text):
    """An expression of whole numbers: + - * / and powers."""
    words = re.findall(r"\d+|\*\*|[()+*/-]", text.replace(",", "").replace("×", "*").replace("^", "**"))
    return eval(" ".join(words), {"__builtins__": {}}, {})


def test_equations_of_numbers_hold():
    found = []
    for number in VOLUME_1:
        prose = " ".join(line for line in chapter(number).splitlines() if not line.startswith(("#", "`")))
        for equation in EQUATION.finditer(re.sub(r"`[^`]*`", "", prose)):
            found.append((number, equation[0]))
            left, right = map(evaluated, equation[0].split(" = "))
            assert left == right, (number, equation[0])
    assert {number for number, *_ in found} >= {"01", "06", "08"}
    assert len(found) >= 8


def test_each_symbol_is_in_the_chapters_that_its_row_names():
    rows = tables(chapter("00").split("## Symbols")[1])[0][1:]
    for symbols, _, chapters in rows:
        for number in chapters.split(", "):
            words = set(re.findall(r"\w+", chapter(number)))
            assert words & set(symbols.split(", ")), (symbols, number)
    singles = [name for symbols, *_ in rows for name in symbols.split(", ")]
    assert len(singles) == len(set(singles)) > 30


def special_rows():
    return {row[0]: row[1:] for row in tables(chapter("00").split("## Special values")[1])[0][1:]}


@pytest.mark.rule("BLK-2", "BLK-6", "BLK-11", "GLB-3", "MXS-5", "FOS-6")
def test_special_values_of_chapter_00():
    rows = special_rows()
    nan, inf = F(np.nan), F(np.inf)
    words = dict(re.findall(r"(E2M1|E4M3 and E5M2|6 bits|INT8) `?(7F|1F|7)`?", rows["NaN"][3]))
    assert len(words) == 4
    for spec in OWN:
        if spec.stochastic:
            continue
        name = spec.element.format.name.upper()
        shown = next(
            code for key, code in words.items() if name in key or (key == "6 bits" and spec.element.format.bits == 6)
        )
        assert spec.element.encode(F([nan])).tolist() == [int(shown, 16)], spec.name
    assert f"+{decoded(formats.CUDA_E2M1, int(words['E2M1'], 16)):g} in" in rows["NaN"][4]

    infinite, zero, tiny = F([[inf, -inf, 1, 0] * 8]), np.zeros((1, 32), F), np.full((1, 32), 1e-30, F)
    large, mx, ints = re.search("`(..)` or `(..)` .*mxint8 `(..)`", rows["infinity"][2]).groups()
    every = re.search("mxint8 `(..)` for each", rows["infinity"][3])[1]
    for name, byte in (("nvfp4", large), ("mxfp8-e4m3", mx), ("mxint8", ints)):
        q = fp4ref.quantize(infinite, name, backend="numpy").row
        assert q.scales[0, 0] == int(byte, 16)
        assert name != "mxint8" or q.data.tobytes() == bytes.fromhex(every) * 32
    assert [rows["infinity"][1].split()[0], rows["finite, beside an infinity in the tensor"][1]] == ["1", "1"]
    assert fp4ref.model.quantize.constants(fp4ref.NVFP4, np.dtype(F)).scale_max == 448
    for name in ("nvfp4", "nvfp4-fast", "mxfp8-e4m3", "mxint8", "nvfp4-4over6"):
        q = fp4ref.quantize(np.where(np.arange(32) % 2, F(-0.0), zero), name, backend="numpy")
        assert q.row.scales.tolist() == [
            codes_of(re.search("`(..)`", rows["zero block"][2])[1]) * q.row.scales.shape[1]
        ]
        assert q.row.scales[0, 0] == codes_of(rows["zero tensor"][2])[0]
        signs = name not in re.findall("`(nvfp4-fast)`", rows["zero block"][3]) and name != "mxint8"
        assert (q.row.data != 0).any() == signs
        for row in ("zero block", "zero tensor"):
            shown = re.match(r"(0) or (-0)[;,]", rows[row][4]).groups()
            assert {str(value) for value in fp4ref.dequantize(q).ravel()} <= {f"{number}.0" for number in shown}
        assert (np.signbit(fp4ref.dequantize(q)).any()) == signs
    underflow = rows["scale underflow, t rounds to 0"]
    q = fp4ref.quantize(tiny, "nvfp4", amax=1.0, backend="numpy")
    assert q.row.scales[0, 0] == codes_of(underflow[2])[0]
    assert (fp4ref.dequantize(q) == 0).all()
    q = fp4ref.quantize(np.full((1, 16), 7.35e-40, F), "nvfp4-fast", amax=1.0, backend="numpy").row
    factor = number_of(re.search("which is `(0x.{8})` for s = 0", text_of("BLK-11"))[1])
    assert fp4ref.packing.unpack(q.data, 16, formats.E2M1)[0, 0] == formats.CUDA_E2M1.encode(F([7.35e-40]) * factor)[0]
    for amax in (0.0, float("inf")):
        q = fp4ref.quantize(np.ones((1, 16), F), "nvfp4-4over6", amax=amax, backend="numpy").row
        t = F(1) / F(6) * F(float(rows["4over6 with G = 0 or infinite"][1]))
        assert q.scales[0, 0] == formats.CUDA_E4M3.encode(t[None])[0]
    stated = r"the largest value of the scale format, (\d+) for E4M3 and UE4M3 \| 06"
    scale_max = re.search(stated, chapter("00"))[1]
    unsigned = dataclasses.replace(formats.CUDA_E4M3, format=formats.FORMATS["ue4m3"])
    assert fp4ref.NVFP4.replace(scale=unsigned).scale_max == float(scale_max)
    assert decoded(formats.CUDA_E4M3, formats.CUDA_E4M3.encode(F([inf]))[0]) == float(scale_max)
    wide = fp4ref.NVFP4.replace(scale=formats.CUDA_E5M2)
    assert wide.scale_max == decoded(formats.CUDA_E5M2, formats.CUDA_E5M2.encode(F([inf]))[0])


@pytest.mark.rule("RES-1")
@pytest.mark.example("RES-1")
def test_formulas_of_the_shapes_of_results():
    table = {row[0]: row[2:4] for row in tables(text_of("RES-1"))[0][1:]}
    known = {"ceil": lambda v: int(np.ceil(v)), "__builtins__": {}}
    for spec in ("nvfp4", "mxfp6-e3m2", "mxfp8-e4m3", "nvfp4-row-scaled"):
        m, k = 5, 39
        q = fp4ref.quantize(np.ones((m, k), F), spec, "both", backend="numpy")
        record = PROFILES[spec]
        names = known | {"M": m, "K": k, "bits": record.element.format.bits, "C": record.block.columns}
        for part, column in ((q.row, 0), (q.column, 1)):
            scales = table["scales"][column].split("for ")[1]
            assert list(part.data.shape) == eval(table["data"][column], names)
            assert list(part.scales.shape) == eval(scales, names)
            if part.amax is not None:
                assert list(part.amax.shape) == eval(
                    table[f"amax, global scale `{record.global_scale}`"][column], names
                )


@pytest.mark.rule("E4M3-5", "E5M2-5")
@pytest.mark.example("E4M3-5", "E5M2-5")
def test_where_an_overflow_begins():
    for rule, pattern in (
        (
            "E4M3-5",
            r"rounds to (?P<next>\d+) or beyond.*NaN \(0x(?P<code>..).*tie at (?P<tie>\d+) goes to (?P<top>\d+)",
        ),
        (
            "E5M2-5",
            r"rounds to (?P<next>\d+) or beyond.*infinity \(0x(?P<code>..).*tie at (?P<tie>\d+) is.*code 0x(?P<top>..)",
        ),
    ):
        found = re.search(pattern, statement(rule))
        codec = CODECS[rule.split("-")[0]]
        low = codec.format.max
        assert int(found["tie"]) == (low + int(found["next"])) / 2
        top = int(found["top"], 16) if rule == "E5M2-5" else int(codec.encode(F([int(found["top"])]))[0])
        assert decoded(codec, top) == low
        assert (top % 2 == 0) == (rule == "E4M3-5")
        assert operator.xor(int(found["code"], 16), top) & ~1 in {0, 6}
        assert not np.isfinite(decoded(codec, int(found["code"], 16)))


def test_decimals_beside_bits_are_the_same_float():
    found = 0
    for number in VOLUME_1:
        for bits, decimal in re.findall(r"`(0x[0-9A-F]{8})` \((-?[\d.]+)\)", chapter(number)):
            assert str(number_of(bits)) == str(number_of(decimal)), (number, bits, decimal)
            found += 1
    assert found >= 5


@pytest.mark.rule("BLK-5")
@pytest.mark.example("BLK-5")
def test_the_block_of_chapter_05():
    text = " ".join(chapter("05").split())
    exact, words = re.search(r"X: (.*?) \((0\.1, .*? rounded)\)", text).groups()
    block = [F(word) for word in exact.split(", ")]
    first, second, third, *_, last = re.findall(r"-?\d+\.\d|\d", words)
    wanted = [F(word).astype(ml_dtypes.bfloat16) for word in "0.1 -0.2 0.3 0.4 0.5 -0.6 0.7 0.8 0.9 1".split()]
    assert [str(float(v)) for v in block[:10]] == [str(float(v)) for v in wanted]
    assert [first, second, third, last] == ["0.1", "-0.2", "0.3", "1.6"]
    assert [str(float(v)) for v in block] == [
        f"{float(word):g}" if "." not in word else word for word in exact.replace(" 1,", " 1.0,").split(", ")
    ]
    assert all(float(F(v).astype(ml_dtypes.bfloat16)) == float(v) for v in block)
    for i, v in enumerate(block):
        assert abs(abs(float(v)) - (i + 1) / 10) < 0.004
    enc = number_of("0x40745D16")
    for x, y in zip(*(row[1:] for row in tables(text_of("BLK-5"))[0][:2]), strict=True):
        assert F(x) in block
        assert str(F(x) * enc) == y


@pytest.mark.rule("E2M1-6", "E4M3-5", "INT8-1", "INT8-5", "UE4M3-1", "E8M0-4", "HAD-1", "HAD-2", "GLB-2")
@pytest.mark.example("E2M1-6", "E4M3-5", "INT8-1", "INT8-5", "UE4M3-1", "E8M0-4", "HAD-1", "HAD-2", "GLB-2")
def test_codes_and_constants_in_the_sentences():
    codes = [int(code, 16) for code in re.search(r"sign of NaN \(0x(..) and 0x(..)\)", statement("E4M3-5")).groups()]
    assert all(np.isnan(decoded(formats.CUDA_E4M3, code)) for code in codes)
    assert codes[1] == codes[0] | 0x80
    ends = re.findall(r"in (\w+) `?(\w+)`?, an (\w+) (?:code|one) after `?(\w\w?)\b", statement("E2M1-6"))
    assert [name for name, *_ in ends] == ["E2M1", "E8M0"]
    for name, following, parity, after in ends:
        assert int(following, 16) == int(after, 16) + 1
        assert ("even", "odd")[int(following, 16) % 2] == parity
        assert decoded(CODECS[name], int(after, 16)) == CODECS[name].format.max
    over = int(re.search(r"stand for that number over (\d+)", statement("INT8-1"))[1])
    assert decoded(formats.OCP_INT8, 1) == 1 / over
    scale, largest = re.search(
        r"scale of 2\^(-\d+), so that its largest power of two is (\d)", text_of("INT8-1")
    ).groups()
    assert (2.0 ** int(scale), int(largest)) == (1 / over, 2**formats.OCP_INT8.format.emax)
    zero = int(re.search(r"encode to 0x(..)", statement("INT8-5"))[1], 16)
    assert formats.OCP_INT8.encode(F([0, -0.0, 1e-9, -1e-9])).tolist() == [zero] * 4
    low, high, null, first, last, top, value = re.search(
        r"code of `(..)` to `(..)` .*, `(..)` for zero, a code of `(..)` to `(..)` .* and `(..)` for (\d+)",
        statement("UE4M3-1"),
    ).groups()
    codec = formats.GGML_UE4M3
    inside = range(int(low, 16), int(high, 16) + 1)
    assert [decoded(codec, c) for c in inside] == [decoded(formats.CUDA_E4M3, c) for c in inside]
    assert (decoded(codec, int(null, 16)), decoded(codec, int(top, 16))) == (0, float(value))
    assert [int(null, 16), int(first, 16), int(last, 16), int(top, 16)] == [inside[-1] + 1, 0x80, 0xFE, 0xFF]
    assert [decoded(codec, c) for c in range(int(first, 16), int(last, 16))] == [decoded(codec, c) for c in inside[:-1]]
    for byte, bits in zip(*(row[1:] for row in tables(text_of("E8M0-4"))[0]), strict=True):
        assert formats.CUDA_E8M0.decode(np.uint8(codes_of(byte))).view(np.uint32)[0] == int(bits.strip("`"), 16)
    assert int(re.search(r"default mask is (0x[0-9A-F]{4})", statement("HAD-1"))[1], 16) == fp4ref.Hadamard().signs
    points, divisor, width = map(
        int, re.search(r"\* H(\d+) / (\d), with signs from a (\d+)-bit mask", heading("HAD-1")).groups()
    )
    assert (points, width, divisor**2) == (16, 16, 16)
    assert f"factor 1/{divisor} first" in heading("HAD-2")
    default = re.search(r"(\d+) \* (\d+) = (\d+) by default", statement("GLB-2"))
    k = fp4ref.model.quantize.constants(fp4ref.NVFP4, np.dtype(F))
    assert [int(word) for word in default.groups()[:2]] == [k.scale_max, k.element_max]


@pytest.mark.rule("BLK-3", "BLK-4", "BLK-5", "BLK-6", "DEQ-1", "HAD-6", "HAD-5")
@pytest.mark.example("BLK-3", "BLK-6", "DEQ-1", "HAD-6", "HAD-5")
def test_steps_and_constants_of_sentences():
    steps = tables(chapter("05"))[0][1:]
    assert [row[0] for row in steps] == [str(i) for i in range(1, len(steps) + 1)]
    table = next(found for found in tables(chapter("05")) if found[0][0] == "global amax")
    for amax, s_enc, *_, enc, _ in table[1:]:
        names = {"S_enc": number_of(s_enc.split(" (")[0]), "a": F(1.6015625)}
        for _, cell, _ in steps[1:7]:
            for name, formula in re.findall(r"`(\w+) = (.*?)`", cell):
                names[name] = formulas.value(formula, names)
            if "scale byte" in cell:
                names["s"] = formats.CUDA_E4M3.decode(formats.CUDA_E4M3.encode(np.atleast_1d(names["t"])))[0]
        assert float(names["enc"]) == float(number_of(enc)), amax
    sixth = re.search(r"The sixth is (1/6) for every element_max", statement("BLK-3"))[1]
    assert str(formulas.value(f"fp32({sixth})")) == str(formulas.value("fp32(1/6)"))
    assert decoded(formats.CUDA_E4M3, int(re.search(r"E4M3 scale is 0x(..),", statement("BLK-6"))[1], 16)) == 0
    constants = re.findall(r"`(0x.{8})`\s+for\s+(\d+)", text_of("DEQ-1").replace("\n> ", " "))
    assert [number_of(bits) for bits, _ in constants] == [F(1) / F(int(number)) for _, number in constants]
    assert [int(number) for _, number in constants] == [448 * 6, 256 * 6]
    quarter = F(re.search(r"float32 values by ([\d.]+), run", statement("HAD-6"))[1])
    assert quarter * quarter * 16 == 1
    rows = int(re.search(r"M % (\d+) != 0", statement("HAD-5"))[1])
    for count in (rows - 1, rows, rows + 1):
        x = np.ones((count, 1), ml_dtypes.bfloat16)
        if count == rows:
            fp4ref.quantize(x, "nvfp4-rht", "column", backend="numpy")
        else:
            with pytest.raises(fp4ref.Fp4Error, match="HAD-5"):
                fp4ref.quantize(x, "nvfp4-rht", "column", backend="numpy")
