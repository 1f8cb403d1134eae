"""Claims with one number in sentences, titles and reasons of the chapters: each number is read and acted upon."""

from __future__ import annotations

import re
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

import fp4ref
from fp4ref import formats, four_over_six, hadamard, packing, packings
from fp4ref.catalogue import PROFILES
from fp4ref.conformance.oracle import hadamard as exact
from fp4ref.errors import Fp4Error
from fp4ref.spec_root import spec_root
from fp4ref.standard import formulas, made
from fp4ref.standard.tables import number_of
from standard_rules import RULES

F = np.float32
EVERY_BYTE = np.arange(256, dtype=np.uint8)


def prose(rule):
    """Title and text of a rule in one line, with its reasons and without their marks."""
    return " ".join(f"{RULES[rule].title}: {RULES[rule].text}".replace("\n>", "\n").split())


def found(pattern, rule):
    """The words that a pattern has in a rule's title or text."""
    match = re.search(pattern, prose(rule))
    assert match, (rule, pattern)
    return match.groups()


def head(number):
    """The text of a chapter before its first rule, in one line."""
    text = made.MADE.sub("", next(spec_root().glob(f"{number}-*.md")).read_text("utf-8"))
    return " ".join(text.split("\n####")[0].split())


def decoded(codec, code):
    """The value of a code, given as a number or in hexadecimal."""
    return float(codec.decode(np.array([int(code, 16) if isinstance(code, str) else code], np.uint8))[0])


def bits(value):
    return int(np.asarray(value, F).view(np.uint32))


def row(values, spec="nvfp4", **kwargs):
    return fp4ref.quantize(np.atleast_2d(F(values)), spec, backend="numpy", **kwargs).row


# Chapter 02


@pytest.mark.rule("E2M1-2", "E2M1-3", "E2M1-5")
@pytest.mark.example("E2M1-2", "E2M1-3", "E2M1-5")
def test_reasons_of_e2m1():
    below, code, zero = found(r"Encoders that test `x < (\S+)` give (\d) for (-[\d.]+)\.", "E2M1-2")
    negative = formats.Codec(format=formats.E2M1, nan=(7, 7), sign="negative")
    assert negative.encode(F([zero])).tolist() == [int(code)]
    assert not F(zero) < F(below)
    assert np.nextafter(F(zero), F(-1)) < F(below)
    assert negative.encode(F([-2])) == 8 | formats.CUDA_E2M1.encode(F([2]))

    grid = formats.grid(formats.E2M1)[:8]
    ties = (grid[1:] + grid[:-1]) / 2
    (mantissa,) = found(r"The even code is the one whose mantissa bit is (\d):", "E2M1-3")
    assert {int(code) & 1 for code in formats.CUDA_E2M1.encode(ties)} == {int(mantissa)}
    down = formats.Codec(format=formats.E2M1, nan=(7, 7), rounding="down")
    differ = ties[down.encode(ties) != formats.CUDA_E2M1.encode(ties)]
    *first, last = found(r"Shipping encoders disagree on ([\d.]+), ([\d.]+) and ([\d.]+)\.", "E2M1-3")
    assert [float(word) for word in (*first, last)] == differ.tolist()
    (result,) = found(r"The result is (\+\d): a NaN", "E2M1-5")
    assert decoded(formats.CUDA_E2M1, int(formats.CUDA_E2M1.encode(F([np.nan]))[0])) == float(result)


@pytest.mark.rule("E4M3-1", "E4M3-5", "E5M2-1", "E5M2-5", "INT8-3")
@pytest.mark.example("E4M3-1", "E4M3-5", "E5M2-1", "E5M2-5", "INT8-3")
def test_special_codes_in_the_sentences():
    nans = {int(word, 16) for word in found(r"Code 0x(..), and 0x(..), is NaN", "E4M3-1")}
    assert nans == set(np.flatnonzero(np.isnan(formats.CUDA_E4M3.decode(EVERY_BYTE))))
    (top,) = found(r"The tie at 464 goes to (\d+), whose code is even", "E4M3-5")
    assert formats.CUDA_E4M3.decode(formats.CUDA_E4M3.encode(F([464]))).tolist() == [float(top)]
    exponent, mantissa = (int(word) for word in found(r"infinite if exp = (\d+) and man = (\d),", "E5M2-1"))
    infinite = np.flatnonzero(np.isinf(formats.CUDA_E5M2.decode(EVERY_BYTE)))
    assert infinite.tolist() == [exponent << 2 | mantissa, 0x80 | exponent << 2 | mantissa]
    (overflow,) = found(r"to infinity \(0x(..), with the sign or-ed\)", "E5M2-5")
    assert int(overflow, 16) == infinite[0]
    (unused,) = found(r"leaves the use of (-\d) open", "INT8-3")
    encoded = set(formats.OCP_INT8.encode(np.linspace(-4, 4, 8 * 256 + 1, dtype=F)).tolist())
    assert [decoded(formats.OCP_INT8, code) for code in {*range(256)} - encoded] == [float(unused)]


# Chapter 03


@pytest.mark.rule("E8M0-3", "E8M0-4", "E8M0-5", "UE4M3-1", "UE4M3-2")
@pytest.mark.example("E8M0-3", "E8M0-4", "E8M0-5", "UE4M3-1", "UE4M3-2")
def test_bytes_of_scales_in_the_sentences():
    code, power = found(r"subnormals included, and so give 0x(..) for (2\^-\d+) and below", "E8M0-3")
    edge = number_of(power)
    assert (bits(edge) >> 23) + (bits(edge) & 0x7FFFFF != 0) == int(code, 16)
    assert [formats.CUDA_E8M0.encode(F([v]))[0] for v in (edge, np.nextafter(edge, F(1)))] == [0, 1]
    (included,) = found(r"Decoding is exact, byte 0x(..) included", "E8M0-4")
    assert 0 < decoded(formats.CUDA_E8M0, included) < np.finfo(F).tiny
    for byte, power in re.findall(
        r"byte 0x(..) (?:shall count )?as (?:the subnormal number )?(\d\^-?\d+)", prose("E8M0-5")
    ):
        assert float(number_of(power)) * decoded(formats.CUDA_E8M0, byte) == 1

    zero, never, from_code, nan = found(
        r"compares the byte with 0x(..) before .*? writes `(..)` or a code of `(..)` or more\. .*? NaN for `(..)`",
        "UE4M3-1",
    )
    codec = formats.GGML_UE4M3
    assert zero == never == nan
    assert (decoded(codec, zero), np.isnan(decoded(formats.CUDA_E4M3, nan))) == (0, True)
    written = codec.encode(F([*np.linspace(0, 1000, 20001, dtype=F), np.inf]))
    assert (written.max(), {*range(int(from_code, 16))} - {*written.tolist()} >= {int(never, 16)}) == (0x7E, True)
    assert int(from_code, 16) == int(never, 16) + 1
    low, high, nothing = found(r"of the codes `(..)` to `(..)`, a tie .*; and NaN to `(..)`", "UE4M3-2")
    every = codec.decode(np.arange(int(low, 16), int(high, 16) + 1, dtype=np.uint8))
    assert set(codec.encode(every).tolist()) == set(range(int(low, 16), int(high, 16) + 1)) == {*range(0x7F)}
    assert codec.encode(F([np.nan])).tolist() == [int(nothing, 16)]


@pytest.mark.rule("MXS-1", "MXS-3")
@pytest.mark.example("MXS-1", "MXS-3")
def test_formulas_of_mx_scales():
    (formula,) = found(r"`E8M0\[(a \* fp32\(\d / element_max\))\]`", "MXS-1")
    none, half = found(r"If the byte is not (\d), the largest scaled magnitude is in \(element_max / (\d+),", "MXS-1")
    draw = np.exp2(np.random.default_rng(3).uniform(-149, 127, 4000)).astype(F)
    for spec in (fp4ref.MXFP4, fp4ref.MXFP8_E4M3, fp4ref.MXFP8_E5M2):
        top = F(spec.element.format.max)
        bytes_of = formats.CUDA_E8M0.encode(formulas.value(formula, {"a": draw, "element_max": top}))
        assert (
            bytes_of.tolist() == [row([a, *[0] * 31], spec).scales[0, 0] for a in draw[:200]] + bytes_of[200:].tolist()
        )
        scaled = draw.astype(float) / formats.CUDA_E8M0.decode(bytes_of).astype(float) / float(top)
        inside = (scaled > 1 / float(half)) & (scaled <= 1 + 2.0**-23)
        assert inside[bytes_of != int(none)].all()
        assert not inside[bytes_of == int(none)].all()
        assert scaled[bytes_of != int(none)].min() < 1 / float(half) * 1.1
    (formula,) = found(r"`field = (.*?)`", "MXS-3")
    for mantissa in (0, 1, 0x7FFFFE, 0x7FFFFF):
        word = 100 << 23 | mantissa
        got = eval(formula, {"__builtins__": {}}, {"bits": lambda a: a, "a": word})
        assert got == 100 + (mantissa != 0)


# Chapter 04


@pytest.mark.rule("PACK-1", "PACK-2", "PACK-3", "PACK-4", "PACK-5", "PACK-7", "PACK-10", "PACK-11")
@pytest.mark.example("PACK-1", "PACK-2", "PACK-3", "PACK-4", "PACK-5", "PACK-7", "PACK-10", "PACK-11")
def test_widths_and_spare_bits_of_packings():
    (four,) = found(r"^Two (\d)-bit codes share", "PACK-1")
    eight = found(r"^(\d)-bit codes take one byte each: An (\d)-bit code", "PACK-3")
    six, again = (
        *found(r"^Four (\d)-bit codes share three", "PACK-4"),
        *found(r"^The spare bits of a row of (\d)-bit", "PACK-5"),
    )
    assert six == again
    for width, codes, size in ((four, 2, 1), (eight[0], 1, 1), (eight[1], 1, 1), (six, 4, 3)):
        assert int(width) * codes == 8 * size
        assert packings.CANONICAL_OF[int(width)] is not None
    spare = [*found(r"^The spare nibble of an odd row is (\d):", "PACK-2")]
    spare += found(r"6-bit codes are (\d): .*? no code takes shall be (\d)\.", "PACK-5")
    assert {packing.pack(np.uint8([[15]]), formats.E2M1)[0, 0] >> 4} == {int(spare[0])}
    assert {packing.pack(np.uint8([[63]]), formats.E2M3)[0, 0] >> 6} == {int(word) for word in spare[1:]}
    assert {packing.pack(np.uint8([[63] * 2]), formats.E2M3)[0, 1] >> 4} == {int(word) for word in spare[1:]}
    (rest,) = found(r"that no unit takes shall be (\d)\.", "PACK-11")
    (first,) = found(r"of w bits at offset u shall take the bits from (u \* w) on", "LAY-34")
    (between,) = found(r"between the rows are spare and (\d)\.", "PACK-10")
    for width, bits_of_row in ((4, 12), (6, 18), (8, 24)):
        form = packings.CANONICAL_OF[width]
        for u in range(3):
            byte, bit = packings.bit_of(form, (2, 3), 0, u)
            assert 8 * byte + bit == eval(first, {"__builtins__": {}}, {"u": u, "w": width})
        raw = packing.pack(
            np.full((2, 3), (1 << width) - 1, np.uint8), {4: formats.E2M1, 6: formats.E2M3, 8: formats.E4M3}[width]
        )
        for line in raw:
            assert int.from_bytes(line.tobytes(), "little") >> bits_of_row == int(rest) == int(between)


@pytest.mark.rule("PACK-8", "PACK-9", "PACK-14", "PACK-15")
@pytest.mark.example("PACK-8", "PACK-9", "PACK-14", "PACK-15")
def test_codes_and_units_of_named_packings():
    shown = found(r"a row with the codes (\w \w \w \w) \.\.\. (\w \w \w \w) \.\.\.", "PACK-8")
    codes = [j % 16 for j in range(19)]
    assert [int(word, 16) for word in " ".join(shown).split()] == codes[:4] + codes[15:19]
    (wide,) = found(r"`words_big` are (\d+)-bit words", "PACK-8")
    assert {
        packings.bit_of(packings.PACKINGS["words_big"], (1, 64), 0, j)[0] // (int(wide) // 8) for j in range(8)
    } == {0}
    assert int(wide) == 8 * 4
    assert packings.bit_of(packings.PACKINGS["words_big"], (1, 64), 0, 8)[0] // (int(wide) // 8) == 1

    unit, pair, spare = found(
        r"with units of (\d) bits, .*? the pairs of (\d)-bit codes .*? has the spare nibble (\d)\.", "PACK-14"
    )
    again, padding, width, refused = found(
        r"units of (\d) bits whose text has a fill other than 0x(..) .*? for (\d)-bit codes, .*? For (\d)-bit codes",
        "PACK-15",
    )
    assert (again, width) == (unit, pair)
    moving = packings.PACKINGS["aiter.shuffle_weight_f4"]
    assert moving.unit == int(unit)
    widths = {4: formats.E2M1, 6: formats.E2M3, 8: formats.E4M3}
    odd = packing.pack(np.full((16, 31), 15, np.uint8), widths[int(pair)])
    assert {int(byte) >> 4 for byte in odd[:, -1]} == {int(spare)}
    for pad, accepted in ((int(padding, 16), True), (int(padding, 16) ^ 1, False)):
        form = fp4ref.Layout("it", f"n(16,*) k(16,*): k0 n0 k1 n1; pad k 0x{pad:02x}")
        if accepted:
            assert packings.packing(form, int(pair)).unit == int(pair)
        else:
            with pytest.raises(Fp4Error, match="PACK-15"):
                packings.packing(form, int(pair))
    assert int(refused) in packings.CANONICAL_OF
    with pytest.raises(Fp4Error, match="PACK-7"):
        packings.packing(moving, int(refused))


# Chapter 05


def shown_block():
    """The block X of chapter 05."""
    text = head("05").split("sixteen bfloat16 values, X: ")[1].split(" (")[0]
    return F([float(word) for word in text.split(", ")])


@pytest.mark.rule("BLK-1", "BLK-2", "BLK-4", "BLK-13", "BLK-7", "BLK-9")
@pytest.mark.example("BLK-1", "BLK-2", "BLK-4", "BLK-13", "BLK-7", "BLK-9")
def test_blocks_and_what_is_past_them():
    (rows,) = found(r"hold rows i \* R to (i \* R \+ R - \d) and", "BLK-1")
    (columns,) = found(r"and columns j \* C to (j \* C \+ C - \d),", "BLK-1")
    for last, names in ((rows, {"i": 2, "R": 16}), (columns, {"j": 2, "C": 16})):
        assert eval(last, {"__builtins__": {}}, names) + 1 == 3 * 16
    for past in (
        *found(r"^Elements past the matrix count as (\+\d):", "BLK-13"),
        *found(r"shall count as (\+\d) wher", "BLK-13"),
    ):
        whole = F([-0.25] * 3 + [float(past)] * 13)
        ragged, padded = row(whole[:3], amax=1.0), row(whole, amax=1.0)
        assert ragged.scales.tobytes() == padded.scales.tobytes()
        search = [row(v, "nvfp4-4over6", amax=1.0).scales.tobytes() for v in (whole[:3], whole)]
        assert search[0] == search[1]
    nothing = row([np.nan] * 16).amax
    words = [*found(r"running maximum from (\+\d) that", "BLK-2"), *found(r"and (\+\d) if there is none", "BLK-2")]
    words += found(r"and (\+\d) if there is none", "GLB-1")
    assert [bits(float(word)) for word in words] == [bits(nothing[0])] * 3
    (above,) = found(r"largest scaled element may be above (\d) \(and saturate\)", "BLK-4")
    shown = [
        float(word) for word in re.search(r"`x \* enc` \| (.*?) \|$", RULES["BLK-5"].text, re.MULTILINE)[1].split(" | ")
    ]
    assert decoded(formats.CUDA_E2M1, 7) == float(above) < max(shown)

    (plane,) = found(r"^(\d)-D blocks share", "BLK-7")
    assert [spec.name for spec in fp4ref.specs.OWN if spec.name == f"nvfp4-{plane}d" and spec.block.rows > 1]
    (least,) = found(r"A block of R > (\d) rows shall", "BLK-7")
    x = F([[1] * 16, [6] * 16] * 4)
    shared = [
        fp4ref.quantize(x, fp4ref.NVFP4.replace(block=(r, 16)), backend="numpy").row.scales.ravel().tolist()
        for r in (1, 2)
    ]
    assert [len(set(part[:2])) for part in shared] == [2, 1]
    assert int(least) + 1 == 2

    rows, columns, amax = (
        int(word) for word in found(r"M = (\d) or K = (\d) shall .*? computed amax, all (\d) \|", "BLK-9")
    )
    for shape in ((rows, 40), (5, columns)):
        q = fp4ref.quantize(np.zeros(shape, F), "nvfp4", backend="numpy").row
        assert (q.data.size, q.amax.tolist()) == (0, [amax])


@pytest.mark.rule("BLK-6", "BLK-10", "BLK-11")
@pytest.mark.example("BLK-6", "BLK-10", "BLK-11")
def test_zeros_of_both_signs_in_the_reasons():
    one, none = found(r"is FLT_MAX, because (\d) / (\d) is infinite", "BLK-6")
    assert found(r"from the stored scale: .*?`min\((\d) / \(s \*", "BLK-4") == (one,)
    assert decoded(formats.CUDA_E4M3, 0) == float(none)
    zeros = found(r"Such a block dequantizes to (\d) or (-\d) whatever", "BLK-6")
    q = fp4ref.quantize(F([[0.001, -0.001, 0, -0.0] * 4]), "nvfp4", amax=30000.0, backend="numpy")
    assert q.row.scales.tolist() == [[0]]
    assert {bits(v) for v in fp4ref.dequantize(q, backend="numpy")[0]} == {bits(float(word)) for word in zeros}
    (stored,) = found(r"Other implementations store (\d) there", "BLK-6")
    others = (
        spec
        for name, spec in PROFILES.items()
        if "." in name and spec.scale.format.name == "e4m3" and spec.global_scale == "tensor"
    )
    packed = {
        spec.name: row([0.001] * 16, spec, amax=30000.0)
        for spec in others
        if spec.element.format.name == "e2m1" and not spec.stochastic
    }
    assert any(set(part.data.tobytes()) == {int(stored)} and part.scales[0, 0] == 0 for part in packed.values())
    (byte,) = found(r"its subnormal value for byte 0x(..) is not flushed", "BLK-10")
    assert 0 < 1 / decoded(formats.CUDA_E8M0, byte) < np.finfo(F).tiny

    lost, gained = found(r"^Fused variants turn (-\d) into (\+\d):", "BLK-11")
    added, product = (
        *found(r"`fma\(x, f, (\+\d)\)`", "BLK-11"),
        *found(r"exactly zero product becomes (\+\d)\.", "BLK-11"),
    )
    for x in (float(lost), -1e-3, 0.3):
        fused = formulas.value(f"fma(x, f, {added})", {"x": np.array([x], F), "f": F(3)})
        assert bits(fused[0]) == (bits(float(gained)) if x == 0 else bits(F(x) * F(3)))
    assert bits(float(product)) == bits(float(gained)) == 0
    assert bits(float(lost)) == 1 << 31
    (word,) = found(r"which is `0x(.{8})` for s = 0", "BLK-11")
    formula = found(r"takes `f = (bf16\(.*?\))`, which", "BLK-11")[0]
    assert bits(formulas.value(formula, {"S_enc": F([336]), "s": F([0])})[0]) == int(word, 16)
    (formula,) = found(r"`te.mxfp8_cast_only` takes `f = (\d / s)`", "BLK-11")
    x = F([[300, -7, 0.3, 1e-3] * 8])
    part = row(x, "te.mxfp8_cast_only")
    f = formulas.value(formula, {"s": formats.CUDA_E8M0.decode(part.scales[0])})
    assert part.data[0].tolist() == formats.CUDA_E4M3.encode(x[0] * f).tolist()


# Chapter 06


@pytest.mark.rule("GLB-6", "GLB-8")
@pytest.mark.example("GLB-6", "GLB-8")
def test_constants_of_global_scales():
    (zero,) = found(r"and (\+\d) for a zero of either sign", "GLB-8")
    assert [bits(row([1] * 16, amax=v).amax[0]) for v in (0.0, -0.0)] == [bits(float(zero))] * 2
    ones = {*found(r"^Without a global scale g is (\d):", "GLB-6"), *found(r"shall use (\d) wherever", "GLB-6")}
    (one,) = ones
    a = np.float32([4.5])
    names = {"a": a, "S_enc": F(one)}
    t = formulas.value(found(r"`(min\(a .*?\))`:", "BLK-3")[0], names)
    spec = fp4ref.NVFP4.replace(name="it", global_scale="none")
    part = row([4.5] * 16, spec)
    assert part.amax is None
    assert part.scales.tolist() == [formats.CUDA_E4M3.encode(t).tolist()]


# Chapter 07


@pytest.mark.rule("HAD-1", "HAD-2", "HAD-3", "HAD-5", "HAD-6")
@pytest.mark.example("HAD-1", "HAD-2", "HAD-3", "HAD-5", "HAD-6")
def test_the_formulas_of_the_transform():
    of_row, of_x = re.search(
        r"A group consists of (\d+) consecutive .*? come from (\d+) consecutive", head("07")
    ).groups()
    (rows,) = found(r"its rows are a multiple of (\d+):", "HAD-5")
    assert [int(of_row), int(of_x), int(rows)] == [hadamard.POINTS] * 3
    formula, minus, plus = found(
        r"over i of `(.*?)`\. Here `sign\[i\]` is (-\d) if bit i of the mask is set, else (\+\d)", "HAD-1"
    )
    text = formula.replace("^", "**").replace("/ 4", "/ 4")
    mask, x = 0xD7E8, [3 * i - 20 for i in range(16)]
    known = {"__builtins__": {}, "popcount": int.bit_count, "x": x}
    known["sign"] = [int(minus) if mask >> i & 1 else int(plus) for i in range(16)]
    for j, wanted in enumerate(exact.exact_sums(x, mask)):
        assert sum(eval(text, known | {"i": i, "j": j}) for i in range(16)) == wanted
    sign, both = found(r"by -0\.25 if `sign\[i\]` is (-\d); .*? with `i & h = (\d)` is replaced", "HAD-2")
    assert (sign, int(both)) == (minus, 0)
    stages = F([1, -1] + [0] * 14) * F(0.25)
    for h in hadamard.STRIDES:
        pairs = [i for i in range(16) if i & h == int(both)]
        assert sorted(pairs + [i + h for i in pairs]) == [*range(16)]
        for i in pairs:
            stages[i], stages[i + h] = stages[i] + stages[i + h], stages[i] - stages[i + h]
    assert stages.tolist() == hadamard.transform(F([[1, -1] + [0] * 14]), 0)[0].tolist()
    zero, formula = found(r"^An exact zero is (\+\d), .*?`(bf16\(v \+ [\d.]+\))`", "HAD-3")
    assert bits(formulas.value(formula, {"v": F([-0.0])})[0]) == bits(float(zero)) == 0
    assert formulas.value(formula, {"v": F([0.3])}) == F(0.3).astype(ml_dtypes.bfloat16)
    (least,) = found(r"M % 16 != 0 and K > (\d),", "HAD-5")
    fp4ref.quantize(np.ones((5, int(least)), ml_dtypes.bfloat16), "nvfp4-rht", "column", backend="numpy")
    with pytest.raises(Fp4Error, match="HAD-5"):
        fp4ref.quantize(np.ones((5, int(least) + 1), ml_dtypes.bfloat16), "nvfp4-rht", "column", backend="numpy")
    quotient = found(r"would make the factor (\d/\d) the only exact step", "HAD-5")[0]
    assert float(Fraction(quotient)) == hadamard.NORM
    (added,) = found(r"run the strides of HAD-2, add \+([\d.]+), and multiply", "HAD-6")
    values = F([[-17.5, 3] * 8])
    assert (hadamard.butterfly(values * hadamard.NORM) + F(added)).tolist() == hadamard.butterfly(
        values * hadamard.NORM
    ).tolist()


@pytest.mark.rule("HAD-7")
@pytest.mark.example("HAD-7")
def test_the_width_of_the_interval():
    spread, factor, count, divisor = found(
        r"spread over at most (\d+), only .*? `bound` is (\d+ \* \d\^-\d+) times the sum of the (\d+) numbers "
        r"`abs\(x\[i\]\) / (\d)`",
        "HAD-7",
    )
    spreads = re.findall(r"at most (\d+)[, |]", prose("HAD-7"))
    assert spreads == [spread] * 3
    text = re.search(r"mask `0xD7E8`: ([^>]*?)\.\n", RULES["HAD-7"].text)[1]
    group = [float(word) for word in text.replace("\n", " ").split(",")]
    assert len(group) == int(count)
    assert [float(np.float64(v).astype(ml_dtypes.bfloat16)) for v in group] == group, "a number that bfloat16 rounds"
    multiple, power = re.match(r"(\d+) \* 2\^-(\d+)", factor).groups()
    bound = int(multiple) * Fraction(1, 1 << int(power)) * sum(abs(Fraction(v)) for v in group) / int(divisor)
    for total, (low, high) in zip(exact.exact_sums(group, 0xD7E8), exact.interval(group, 0xD7E8), strict=True):
        ends = [float(np.float64(float(v)).astype(ml_dtypes.bfloat16)) for v in (total - bound, total + bound)]
        assert [low, high] == ends
    draw = np.random.default_rng(7)
    for apart in (int(spread), int(spread) + 1):
        groups = draw.choice([-1, 1], (40, 16)) * np.exp2(draw.integers(0, apart + 1, (40, 16)))
        groups[:, :2] = 1, 2.0**apart
        free = [low < high for group in groups.tolist() for low, high in exact.interval(group, 0xD7E8)]
        assert any(free) == (apart > int(spread))

    width, fits, additions, four = found(
        r"a sum of sixteen (\d)-bit significands fits into (\d+) bits .*? Each of the (\d+) additions .*? "
        r"sum of abs\(x\) / (\d);",
        "HAD-7",
    )
    largest = 16 * ((1 << int(width)) - 1) << int(spread)
    assert int(width) == ml_dtypes.finfo(ml_dtypes.bfloat16).nmant + 1
    assert largest.bit_length() == int(fits) == np.finfo(F).nmant + 1
    assert int(additions) == int(count) - 1 == int(multiple)
    assert (four, int(power)) == (divisor, np.finfo(F).nmant)


# Chapters 10 and 11


@pytest.mark.rule("FOS-1", "FOS-2", "FOS-5", "FOS-6", "FOS-8", "DEQ-1")
@pytest.mark.example("FOS-1", "FOS-2", "FOS-5", "FOS-6", "FOS-8", "DEQ-1")
def test_claims_about_4over6():
    text = head("10")
    high, low = re.search(r"mapped to (\d), the largest element value, or to (\d), below", text).groups()
    (times,) = found(r"^The second candidate has ([\d.]+) times", "FOS-1")
    assert float(high) == decoded(formats.CUDA_E2M1, 7) == float(low) * float(times)
    amax, of_x = re.search(r"global amax of (\d), X of chapter 05 \(amax ([\d.]+)\)", text).groups()
    assert float(of_x) == np.abs(shown_block()).max()
    (head_row, *_) = re.findall(r"S_enc for amax (\d) \|", RULES["FOS-2"].text)
    assert head_row == amax
    first, second = found(r"Candidate (\d) has the t of .*? the t of candidate (\d) shall", "FOS-1")
    kept, than, other = found(
        r"Candidate (\d) shall be kept .*? that of candidate (\d): .*? NaN, candidate (\d) is kept", "FOS-6"
    )
    assert [first, second] == [than, kept] == [other, kept] == ["1", "2"]
    replaced, again, alone, room = found(
        r"^scale_max replaces (\d+) in S_enc: .*? shall replace (\d+) in S_enc .*? "
        r"With (\d+) the second .*? with (\d+) it has",
        "FOS-2",
    )
    assert replaced == again == alone == f"{fp4ref.FourOverSix().scale_max:g}"
    block = re.search(r"block Y, rounded to bfloat16: (.*?)\. \|", text)[1]
    a = np.abs(F([float(word) for word in block.split(", ")])).max()
    for word, same in ((alone, True), (room, False)):
        s_enc = formulas.value("(scale_max * 6) / amax", {"scale_max": F(word), "amax": F(amax)})
        t = formulas.value("(a / 6) * g", {"a": a, "g": s_enc})
        one, two = formats.CUDA_E4M3.encode(F([t, t * F(times)])).tolist()
        assert (one == two) == same
    assert f"| {room} | Y |" in text
    (past,) = found(r"have the error of x = (\+\d) \(BLK-13\)", "FOS-5")
    blocks = np.random.default_rng(10).standard_normal((40, 3)).astype(F)
    whole = np.hstack([blocks, np.full((40, 13), float(past), F)])
    chosen = [fp4ref.quantize(x, "nvfp4-4over6", amax=6.0, backend="numpy").row.scales for x in (blocks, whole)]
    assert chosen[0].tolist() == chosen[1].tolist()

    head_words = found(r"One row of the counts (\d), (\d\^-\d+) twelve times, (\d) three times:", "FOS-8")
    one, small, none = (number_of(word) for word in head_words)
    counts = F([[one] + [small] * 12 + [none] * 3])
    for names, shown in re.findall(r"\| (`.*?`) \| `0x(.{8})` \|", RULES["FOS-8"].text):
        for name in re.findall(r"`(\w+)`", names):
            assert bits(four_over_six.RULES[name](counts)) == int(shown, 16)
    assert (one, small, none) == (1, F(2.0**-24), 0)
    (zero,) = found(r"An amax of (\d) gives zeros", "DEQ-1")
    q = fp4ref.quantize(F([[1] * 16]), "nvfp4", amax=float(zero), backend="numpy")
    assert not fp4ref.dequantize(q, backend="numpy").any()


# Chapters 00, 01, 13 and 15


@pytest.mark.rule("NUM-2", "NUM-9")
@pytest.mark.example("NUM-2", "NUM-9")
def test_reasons_of_the_float_model():
    amax, one, element, code, flushed = found(
        r"that of a block, (1e-\d+), has S_enc = FLT_MAX, and (\d) / S_enc is subnormal\. An element (1e-\d+) of "
        r"that block encodes to code (\d) .*? and the code (\d)\.",
        "NUM-9",
    )
    part = row([float(amax), float(element)] + [0] * 14)
    assert packing.unpack(part.data, 16, formats.E2M1)[0, 1] == int(code)
    top = np.finfo(F).max
    assert 0 < F(one) / top < np.finfo(F).tiny
    assert formats.CUDA_E2M1.encode(F(element) * top[None]) == int(flushed)
    *pairs, made, other = found(
        r"NaN \((\d)/(\d), (\d) \* Inf, .*?\) makes a NaN with the sign bit (\d)\. .*? makes a NaN with the "
        r"sign bit (\d)\.",
        "NUM-2",
    )
    assert [float(word) for word in pairs] == [0, 0, 0]
    with np.errstate(invalid="ignore"):
        results = F([0]) / F([0]), F([0]) * F([np.inf])
    assert all(np.isnan(result) for result in results)
    assert {int(made), int(other)} == {0, 1}
    part = row([0] * 16, "torchao.nvfp4_2lvl")
    assert packing.unpack(part.data, 16, formats.E2M1)[0, 0] == 4 | int(made) << 3


@pytest.mark.rule("RES-6", "FOS-1", "DEQ-1", "HAD-1", "SR-7", "GEM-5")
@pytest.mark.example("RES-6", "FOS-1", "DEQ-1", "HAD-1", "SR-7", "GEM-5")
def test_numbers_of_the_ten_lines_and_the_pseudo_code():
    text = made.MADE.sub("", next(spec_root().glob("00-*.md")).read_text("utf-8"))
    lines = text.split("## In ten lines")[1].split("## Operations")[0]
    assert re.findall(r"(?m)^(\d+)\. ", lines) == [str(i) for i in range(1, 11)]
    groups = re.findall(r"each group of (\d+) elements", text)
    assert [int(word) for word in groups] == [hadamard.POINTS] * 2
    (padding,) = re.findall(r"padded with (\+\d):", text)
    assert (padding,) == found(r"shall count as (\+\d) wher", "BLK-13")
    (times,) = re.findall(r"with 4over6 \[t, t \* ([\d.]+)\]", text)
    assert (times,) == found(r"^The second candidate has ([\d.]+) times", "FOS-1")
    (formula,) = re.findall(r"value = (q \* .*?) +DEQ-1", text)
    names = {"q": F(3), "s": F(88), "G": F(1.03125)}
    short = formulas.value(formula, names | {"T": F(2688)})
    full = formulas.value(found(r"`(q \* \(\(s .*?)`:", "DEQ-1")[0], names | {"element_max": F(6), "scale_max": F(448)})
    assert bits(short) == bits(full)
    seed, stream, *origin = re.search(r"seed = (\d), stream = (\d), origin = \((\d), (\d)\)", text).groups()
    drawn = fp4ref.random_bits((3, 20), seed=int(seed), stream=int(stream), origin=tuple(map(int, origin)))
    assert drawn.tobytes() == fp4ref.random_bits((3, 20)).tobytes()
    (alpha,) = re.findall(r"gemm\(.*?alpha = (\d)", text)
    a = fp4ref.quantize(F([[1, 2] * 8]), "nvfp4", backend="numpy")
    assert fp4ref.gemm(a, a, alpha=float(alpha), backend="numpy") == fp4ref.gemm(a, a, backend="numpy")
    assert found(r"alpha is a float32, by default (\d)\.", "GEM-5") == (alpha,)
    (units,) = found(r"two axes and units of (\d) bits", "RES-6")
    assert {form.unit for form in fp4ref.LAYOUTS.values() if form.name in {"linear", "tiled_128x4"}} == {int(units)}


@pytest.mark.rule("GEM-2", "GEM-4", "GEM-7", "GEM-8", "GEM-11", "GEM-21", "GEM-23", "GEM-25", "FIL-9")
@pytest.mark.example("GEM-2", "GEM-4", "GEM-7", "GEM-8", "GEM-11", "FIL-9")
def test_zeros_and_limits_of_products():
    def product(x, y, mode="exact", spec="mxfp8-e5m2", **kwargs):
        a, b = (fp4ref.quantize(np.atleast_2d(F(v)), spec, backend="numpy") for v in (x, y))
        return fp4ref.gemm(a, b, mode, backend="numpy", **kwargs)

    depth, empty = found(r"With K = (\d) every sum shall be (\+\d)\.", "GEM-21")
    none = np.zeros((1, int(depth)), F)
    assert bits(product(none, none)[0, 0]) == bits(float(empty))
    zero, plus = found(r"a sum that is (\d) before it is rounded shall be (\+\d)\.", "GEM-25")
    (rounded,) = found(r"a magnitude that rounds to (\d) keeps its sign", "GEM-2")
    assert [float(word) for word in (zero, rounded)] == [0, 0]
    assert bits(product([1, -1], [1, 1])[0, 0]) == bits(float(plus)) == 0
    assert bits(product([-1e-38], [1e-38])[0, 0]) == 1 << 31
    (start,) = found(r"the sum shall start at (\+\d);", "GEM-4")
    assert bits(product([-1e-38], [1e-38], "blockwise")[0, 0]) == bits(F(float(start)) + F(-0.0)) == 0
    (times,) = found(r"if one is an infinity and another is (\d)\.", "GEM-23")
    q = fp4ref.quantize(F([[1, 1]]), "mxfp8-e5m2", backend="numpy")
    q.row.data[0, 0] = 0x7C
    other = fp4ref.quantize(F([[float(times), 1]]), "mxfp8-e5m2", backend="numpy")
    assert np.isnan(fp4ref.gemm(q, other, backend="numpy"))
    (numerator,) = found(r"multiplied by `alpha \* fp32\((\d) / factor\)`", "GEM-7")
    assert found(r"amax_B\) \* fp32\((\d) / factor\)`", "GEM-5") == (numerator,)
    kept = found(r"is absent, so that (-\d) stays (-\d)\.", "GEM-27")
    assert [bits(product([-1e-38], [1e-38])[0, 0])] * 2 == [bits(float(word)) for word in kept]
    total, limit, *factors, least = found(
        r"total < \d\^\d+;.*?total < (\d)\^(\d+) and gamma .*? within (\d) \+- eps; .*? "
        r"within (\d) \+- gamma .*? less than (\d\^-\d+) each",
        "GEM-11",
    )
    assert (total, limit) == found(r"K < 2\^23 and total < (\d)\^(\d+);", "GEM-11")
    assert factors == ["1", "1"]
    assert found(r"<= gamma \* total \+ K \* (\d\^-\d+)`", "GEM-11") == (least,)
    height, width = (int(word) for word in found(r"A shape such as \[(\d+), (\d)\] is that of four layouts", "FIL-9"))
    for name in ("linear", "linear_padded", "tiled_128x4", "tiled_8x4"):
        assert fp4ref.LAYOUTS[name].padded_shape(height, width) == (height, width)
