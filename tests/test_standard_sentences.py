"""Numbers in the sentences and reasons of chapters 04, 08 to 10, 12, 13 and 15; see test_standard_numbers."""

from __future__ import annotations

import json
import re
import struct
from fractions import Fraction

import numpy as np
import pytest

import fp4ref
from file_bytes import archive
from fp4ref import formats, four_over_six, packing, packings
from fp4ref.conformance.judge import stochastic
from fp4ref.errors import FileError, Fp4Error
from fp4ref.files import open_tensors
from fp4ref.formats import Format
from fp4ref.spec_root import spec_root
from fp4ref.specs import OWN
from fp4ref.standard import formulas
from fp4ref.standard.tables import codes_of, number_of, tables
from standard_rules import RULES, rows_of

F = np.float32


def prose(rule):
    """A rule's text in one line, with its reasons and without their marks."""
    return " ".join(RULES[rule].text.replace("\n>", "\n").split())


def found(pattern, rule, text=None):
    """The words that a pattern has in the text of a rule, or in a part of it."""
    match = re.search(pattern, text or prose(rule))
    assert match, (rule, pattern)
    return match.groups()


def integers(pattern, rule):
    return [int(word.replace(",", "")) for word in found(pattern, rule)]


# Chapter 04


@pytest.mark.rule("PACK-1", "PACK-2", "PACK-3", "PACK-4", "PACK-5", "PACK-6", "PACK-7", "PACK-10", "PACK-13")
@pytest.mark.example("PACK-1", "PACK-2", "PACK-3", "PACK-4", "PACK-5", "PACK-6", "PACK-7", "PACK-10")
def test_the_bits_and_bytes_of_a_row():
    low, high, next_low, next_high = integers(
        r"Element 2i .*? bits (\d) to (\d) of byte i of that row, element 2i \+ 1 in bits (\d) to (\d)\.", "PACK-1"
    )
    places = {4: lambda j: [8 * (j // 2) + (low, next_low)[j % 2], 8 * (j // 2) + (high, next_high)[j % 2]]}
    width, again, last = integers(r"bits (\d)j to (\d)j \+ (\d) of that row", "PACK-4")
    places[6] = lambda j: [width * j, again * j + last]
    places[8] = lambda j: [8 * j, 8 * j + 7]
    spare = integers(r"bits (\d) to (\d) of its last byte shall be 0", "PACK-2")
    assert spare == [next_low, next_high]
    sizes = {4: found(r"takes (ceil\(n / 2\)) bytes", "PACK-1")[0], 6: found(r"takes (ceil\(6n / 8\))", "PACK-4")[0]}
    sizes[8] = found(r"a row of n elements takes (n) bytes", "PACK-3")[0]
    named = {4: formats.E2M1, 6: formats.E2M3, 8: formats.E4M3}
    title = re.search(r"#### PACK-6 · Codes have (\d), (\d) or (\d) bits", chapter("04")).groups()
    assert [int(word) for word in title] == integers(r"a unit of (\d), (\d) or (\d) bits", "PACK-7") == [*named]
    first, before, size, unit = found(
        r"begin at bit `(8) \* (n) \* ceil\((size\(k\) \* w) / 8\) \+ (u \* w)`", "PACK-10"
    )
    assert (before, size, unit) == ("n", "size(k) * w", "u * w")
    for bits, form in named.items():
        for n in (1, 2, 3, 4, 5, 9):
            count = eval(sizes[bits].replace("6n", "6 * n"), {"ceil": lambda v: int(np.ceil(v)), "n": n})
            for j in range(n):
                codes = np.zeros((1, n), np.uint8)
                codes[0, j] = (1 << bits) - 1
                row = packing.pack(codes, form)
                begin, end = places[bits](j)
                assert row.shape == (1, count)
                assert int.from_bytes(row.tobytes(), "little") == (1 << end + 1) - (1 << begin)
                byte, bit = packings.bit_of(packings.CANONICAL_OF[bits], (3, n), 2, j)
                assert 8 * byte + bit == int(first) * 2 * -(-n * bits // 8) + j * bits


def chapter(number):
    return next(spec_root().glob(f"{number}-*.md")).read_text("utf-8")


def place_of(name, shape, i, j):
    byte, bit = packings.bit_of(packings.packing(name), shape, i, j)
    return 8 * byte + bit


@pytest.mark.rule("PACK-8", "PACK-9", "PACK-14", "PACK-15")
@pytest.mark.example("PACK-8", "PACK-9", "PACK-14", "PACK-15")
def test_what_the_packings_do_in_words():
    apart = integers(
        r"In `pairs_8` codes j and j \+ (\d+) share a byte, in `pairs_16` codes j and j \+ (\d+)\.", "PACK-8"
    )
    for name, step in zip(("pairs_8", "pairs_16"), apart, strict=True):
        for j in range(step):
            assert place_of(name, (1, 2 * step), 0, j) // 8 == place_of(name, (1, 2 * step), 0, j + step) // 8
    (wide,) = integers(r"`words_big` are (\d+)-bit words", "PACK-8")
    words = {"words_big": (">", 1), "words_high_first": ("<", -1), "low_first": ("<", 1), "high_first": (">", -1)}
    codes = np.random.default_rng(4).integers(0, 16, 32)
    for name, (order, step) in words.items():
        bits = sum(int(code) << place_of(name, (1, 32), 0, j) for j, code in enumerate(codes))
        numbers = np.frombuffer(bits.to_bytes(16, "little"), f"{order}u{wide // 8}")
        for word, eight in zip(numbers, codes.reshape(-1, wide // 4), strict=True):
            assert int(word) == int("".join(f"{code:x}" for code in eight[::-step]), 16), name
    (scale,) = integers(r"Byte (\d+) of `ggml.mxfp4_data` is the scale", "PACK-8")
    places = {place_of("ggml.mxfp4_data", (1, 32), 0, j) // 8 for j in range(32)}
    assert {*range(17)} - places == {scale}
    assert fp4ref.LAYOUTS["ggml.mxfp4_scale"].offset(0, 0, rows=1, columns=1) == scale

    rows, of, stored = found(r"the rows ([\d, ]+) of each (\d+) are stored as rows ([\d, ]+1)\.", "PACK-9")
    rows, stored = ([int(word) for word in text.split(", ")] for text in (rows, stored))
    starts = [place_of("trtllm.shuffle_a_32", (64, 8), 32 + row, 0) // 64 for row in rows]
    assert starts == [int(of) + row for row in stored]
    shown, packed, text, unit, odd, spare = found(
        r"The codes ([\d, ]+) of one row are `([\d ]+)` in `(.*?)`, which has units of (\d) bits; "
        r"the codes ([\d, ]+) are `([\d ]+)`\.",
        "PACK-14",
    )
    form = fp4ref.Layout("it", text)
    assert form.unit == int(unit)
    for codes, expected in ((shown, packed), (odd, spare)):
        row = np.array([[int(code) for code in codes.split(",")]], np.uint8)
        moved = form.from_linear(packing.pack(row, formats.E2M1))
        assert moved.tobytes() == bytes.fromhex(expected)
        again = packings.repack(packing.pack(row, formats.E2M1), 1, row.size, "low_first", form, bits=4)
        assert again.tobytes() == moved.tobytes()
    for text, count, result in tables(RULES["PACK-15"].text)[0][1:]:
        given = (packing.pack(np.ones((1, int(count)), np.uint8), formats.E2M1), 1, int(count), "low_first")
        form = fp4ref.Layout("it", text.strip("`"))
        if result == "packed":
            assert packings.repack(*given, form, bits=4).shape == (1, int(count) // 2)
        else:
            with pytest.raises(Fp4Error, match=(re.findall(r"by (\S+)", result) or ["PACK-15"])[0]):
                packings.repack(*given, form, bits=4)


# Chapter 08


@pytest.mark.rule("LAY-3", "LAY-5", "LAY-10", "LAY-13", "LAY-18", "LAY-16", "LAY-30")
@pytest.mark.example("LAY-3", "LAY-5", "LAY-10", "LAY-13", "LAY-18", "LAY-16", "LAY-30")
def test_places_and_shapes_in_the_reasons_of_layouts():
    known = {"pad": lambda n, step: -(-n // step) * step, "__builtins__": {}}
    for name, shape, tile, padding in tables(chapter("08"))[0][1:]:
        form = fp4ref.LAYOUTS[name.strip("`")]
        for m, kb in ((1, 1), (130, 7), (256, 8)):
            assert form.padded_shape(m, kb) == tuple(eval(shape, known | {"M": m, "Kb": kb}))
        if tile != "none":
            height, width, size = (int(word) for word in re.findall(r"\d+", tile))
            assert form.padded_shape(1, 1) == (height, width)
            assert height * width == size
            assert form.from_linear(np.full((1, 1), 9, np.uint8)).ravel()[1:].tolist() == [int(padding, 16)] * (
                size - 1
            )
    shapes, strides = found(r"In the notation of CuTe the map is `(.*?):(.*?)`", "LAY-3")
    names = {"H": 384, "tiles": 3}
    (rows, (columns, across)), (row_steps, (step, far)) = (
        eval(text.replace("/", "//"), {"__builtins__": {}}, names) for text in (shapes, strides)
    )
    for m in range(0, 384, 7):
        for k in range(12):
            (inner, outer), (near, mid) = rows[0], row_steps[0]
            total = m % inner * near + m // inner % outer * mid + m // (inner * outer) * row_steps[1]
            assert total + k % columns * step + k // columns * far == fp4ref.LAYOUTS["tiled_128x4"].offset(
                m, k, rows=384, columns=12
            )
    assert (rows[1] * inner * outer, columns * across) == (384, 12)
    high, wide = integers(r"such as \[(\d+) H / 128, (\d+) tiles\]", "LAY-3")
    assert high * names["H"] // 128 * wide * names["tiles"] == 384 * 12
    line, groups, lane = found(r"one line of (\d+) bytes serves one lane for (\w+) groups of (\d+) rows", "LAY-3")
    assert (int(line), groups, int(lane)) == (4 * outer, "four", inner)
    nans = [int(code, 16) for code in found(r"can be a NaN \(0x(..) or 0x(..)\)", "LAY-5")]
    assert np.isnan(formats.CUDA_E4M3.decode(np.uint8(nans))).all()
    text, splits = found(r"`(m\(16,2,\*\).*?)` splits m into (.*?)\. Index", "LAY-30")
    assert text == found(r"In `(m\(16.*?)` the strides", "LAY-13")[0]
    digits = re.findall(r"[mk](?: / \d+)?(?: % \d+)?", splits.replace(", and k into", " "))
    form, sizes = fp4ref.Layout("it", text), (96, 24)
    steps = {"m % 16": 4, "m / 16 % 2": 1, "m / 32": 256 * 3, "k % 4": 64, "k / 4 % 2": 2, "k / 8": 256}
    assert digits == [*steps]
    for m, k in ((0, 0), (17, 5), (95, 23), (40, 9)):
        values = [eval(digit.replace("/", "//"), {"__builtins__": {}}, {"m": m, "k": k}) for digit in digits]
        total = sum(value * step for value, step in zip(values, steps.values(), strict=True))
        assert total == int(form.offsets([m, k], sizes))
    assert integers(r"and (\d+) times the number of k2's values for m2", "LAY-13") == [256]
    m, k, name, first, other, columns, *parts = found(
        r"Scale \((\d+), (\d+)\) of `(.*?)` is stored at (\d+), that of `(.*?)` with (\d+) columns at (.*?) = (\d+)\.",
        "LAY-18",
    )
    for layout, offset in ((name, first), (other, parts[1])):
        got = fp4ref.LAYOUTS[layout].offset(int(m), int(k), rows=32, columns=int(columns))
        assert got == int(offset)
    (record,) = integers(r"one scale per record of (\d+) bytes", "LAY-16")
    form = fp4ref.Layout("it", found(r"`(n\(\*\) b\(\*\): .*?)`", "LAY-16")[0])
    assert int(form.offsets([0, 1], (1, 2))) == record
    (width,) = integers(r"one scale per row and block of (\d+) columns", "LAY-10")
    assert width == fp4ref.NVFP4_2D.block.columns


# Chapter 09


@pytest.mark.rule("SR-2", "SR-3", "SR-4", "SR-11", "SR-14")
@pytest.mark.example("SR-2", "SR-3", "SR-4", "SR-11", "SR-14")
def test_steps_bounds_and_seeds_of_random_bits():
    every = np.arange(256, dtype=np.uint8)
    over, words = found(r"not above `fma\(byte / (\d+), step, abs\(y\)\)`.*?next value: (.*? below)\.", "SR-2")
    wide, four, one, two, upper, half = (float(word) for word in re.findall(r"[\d.]+", words))
    assert upper == four
    grid = formats.grid(formats.E2M1)[:8]
    draw = np.random.default_rng(9).uniform(0, 6, 40).astype(F)
    for y in (*draw, *grid, *(np.nextafter(v, F(0)) for v in grid[1:])):
        step = wide if y >= four else one if y >= two else half
        sums = [F(Fraction(int(byte), int(over)) * Fraction(step) + Fraction(float(y))) for byte in every]
        codes = [int(np.searchsorted(grid, value, "right")) - 1 for value in sums]
        assert formats.STOCHASTIC_E2M1.encode(np.full(256, y), every).tolist() == codes, y
    limit, code, nan = found(
        r"a magnitude of (\d) or more, .*? code (\d) with its sign, and NaN of either sign to 0x(\d)", "SR-3"
    )
    edge = F(float(limit))
    for value, expected in ((edge, int(code)), (-edge, int(code) | 8), (F(1e30), int(code)), (F(np.nan), int(nan, 16))):
        assert set(formats.STOCHASTIC_E2M1.encode(np.full(256, value), every).tolist()) == {expected}
    below = np.nextafter(edge, F(0))
    assert set(formats.STOCHASTIC_E2M1.encode(np.full(256, below), every).tolist()) == {int(code) - 1, int(code)}

    # which magnitudes round away once more, and by how much their mean is above them
    top, reach, farther = (
        float(number_of(word))
        for word in found(
            r"magnitude is below ([\d.]+) and .*? at most (2\^-\d+), .*? farther from zero, by at most (2\^-\d+)\.",
            "SR-4",
        )
    )
    gaps, over = [], []
    for step in range(1, 129):
        edge = F(step / 512)
        values = (edge.view(np.uint32) - np.arange(1, 140, dtype=np.uint32)).view(F)  # the magnitudes just below
        scaled = 512 * values.astype(float)
        codes = formats.STOCHASTIC_E2M1.encode(np.repeat(values, 256), np.tile(every, values.size))
        more = np.count_nonzero(codes.reshape(-1, 256), axis=1) - np.floor(scaled)
        assert (more == (np.ceil(scaled) - scaled <= reach) * (scaled % 1 > 0)).all(), step
        gaps += (np.ceil(scaled) - scaled)[more == 1].tolist()
        over += (formats.STOCHASTIC_E2M1.expectation(values).astype(float) - values)[more == 1].tolist()
    assert max(gaps) == reach
    assert 0 < min(over) <= max(over) == farther
    assert {len(over)} == {int(word) for word in re.findall(r"(\d+) magnitudes", prose("SR-4"))}
    above = F([np.nextafter(F(top), F(1)), np.nextafter(F(top + 1 / 512), F(0)), np.nextafter(F(1), F(0))])
    assert (formats.STOCHASTIC_E2M1.expectation(above) <= above).all()
    never, over = found(r"a value with frac < (\d)/(\d+) is never rounded away", "SR-4")
    tiny = np.nextafter(F(2 + int(never) / int(over)), F(0))
    assert set(formats.STOCHASTIC_E2M1.encode(np.full(256, tiny), every).tolist()) == {4}

    seed, stream, blocks = integers(
        r"seed \| an integer from 0 to 2\^(\d+) -.* stream \| an integer from 0 to 2\^(\d+) -.* fewer than 2\^(\d+)",
        "SR-14",
    )
    for name, bits in (("seed", seed), ("stream", stream)):
        fp4ref.random_bits((1, 16), **{name: 2**bits - 1})
        for value in (2**bits, -1):
            with pytest.raises(Fp4Error, match="SR-14"):
                fp4ref.random_bits((1, 16), **{name: value})
    with pytest.raises(Fp4Error, match="SR-14"):
        fp4ref.random_bits((1, 16), whole=(2**33, 2 ** (blocks - 33 + 4)))
    assert integers(r"Alpha is 10\^-(\d+) divided", "SR-11") == [-np.log10(stochastic.FALSE_ALARM)]


# Chapter 10


@pytest.mark.rule("FOS-1", "FOS-2", "FOS-3", "FOS-4", "FOS-6", "FOS-7", "FOS-8")
@pytest.mark.example("FOS-1", "FOS-2", "FOS-3", "FOS-4", "FOS-6", "FOS-7", "FOS-8", "FOS-9")
def test_sentences_of_4over6():
    _, (_, a, g, *_) = tables(RULES["FOS-1"].text)[0][1:]
    names = {"a": number_of(a), "g": number_of(g)}
    times = re.search(r"#### FOS-1 · The second candidate has ([\d.]+) times", chapter("10"))[1]
    assert [times] * 2 == [times, *found(r"that of candidate 1 times ([\d.]+), one product", "FOS-1")]
    first, second = (F(word) for word in found(r"for the second row it gives (\d+) and (\d+)\.", "FOS-1"))
    assert formulas.value("(a / 6) * g", names) == first
    assert first * F(times) == second
    (largest,) = integers(r"Scales above (\d+) saturate", "FOS-1")
    assert formats.CUDA_E4M3.format.max == largest
    (bounds,) = (setting for setting, _, rule in rows_of("SPC-2") if rule == "FOS-2")
    low, high = map(float, re.search(r"\((\d), (\d+)\]", bounds).groups())
    (default,) = integers(r"4over6, by default (\d+), shall replace", "FOS-2")
    assert fp4ref.FourOverSix().scale_max == high == default
    fp4ref.NVFP4_4OVER6.replace(four_over_six=fp4ref.FourOverSix(scale_max=high))
    for wrong in (low, float(np.nextafter(F(high), F(np.inf)))):
        with pytest.raises(Fp4Error, match="FOS-2"):
            fp4ref.NVFP4_4OVER6.replace(four_over_six=fp4ref.FourOverSix(scale_max=wrong))
    assert integers(r"q is the next value of the grid, (\d) for E2M1", "FOS-9") == [8]
    for row in tables(RULES["FOS-4"].text)[1][1:]:
        assert F(float(row[4])) == F(1536) / F(float(row[3]))
    x = np.random.default_rng(6).standard_normal((1, 16)).astype(F)
    x[0, 3] = np.nan
    kept = dict(tables(RULES["FOS-6"].text)[0][1:])["a block with a NaN element"]
    spec = fp4ref.NVFP4_4OVER6.replace(four_over_six=fp4ref.FourOverSix(scale_max=256))
    a = np.nanmax(np.abs(x))
    t = a / F(6) * (F(1536) / a)
    byte = formats.CUDA_E4M3.encode(np.atleast_1d(t * (F(1) if kept == "1" else F(1.5))))
    assert fp4ref.quantize(x, spec, backend="numpy").row.scales[0].tolist() == byte.tolist()
    base = int(found(r"blocks of (\d)\^n rows", "FOS-7")[0])
    for rows in range(1, 10):
        if rows in {base**n for n in range(4)}:
            fp4ref.NVFP4_4OVER6.replace(block=(rows, 16))
        else:
            with pytest.raises(Fp4Error, match="FOS-7|SPC-2"):
                fp4ref.NVFP4_4OVER6.replace(block=(rows, 16))

    (wide,) = integers(r"as vectors of (\d+);", "FOS-8")
    apart, last, again, lanes = integers(
        r"vectors j, j \+ (\d), j \+ \d, \.\.\. added in this order for j = 0 to (\d); "
        r"then these four, from 0 to (\d); then the (\d) lanes",
        "FOS-8",
    )
    assert (again, lanes) == (last, wide)
    for rows in (1, 4, 16):
        counts = np.random.default_rng(rows).uniform(0, 1, (rows, 16)).astype(F)
        vectors = counts.reshape(-1, wide)
        parts = [in_turn(vectors[j::apart]) for j in range(min(last + 1, len(vectors)))]
        assert four_over_six.RULES["lanes"](counts) == in_turn(in_turn(parts))
        sums = [in_turn(row) for row in counts]
        while len(sums) > 1:
            half = len(sums) // 2
            sums = [sums[r] + sums[r + half] for r in range(half)]
        assert four_over_six.RULES["rows_by_tree"](counts) == sums[0]
        folded = [in_turn(row[:8] + row[8:]) for row in counts]
        assert four_over_six.RULES["halves"](counts) == in_turn(folded)


def in_turn(values):
    total = values[0]
    for value in values[1:]:
        total = total + value
    return total


# Chapter 12


@pytest.mark.rule("SPC-6", "SPC-7")
@pytest.mark.example("SPC-6", "SPC-7")
def test_midpoints_and_fewest_codes():
    codec, grid = formats.CUDA_E2M3, formats.grid(formats.E2M3)
    for _, number, code in tables(RULES["SPC-7"].text)[0][1:]:
        value, *between = [float(word) for word in re.findall(r"-?\d+(?:\.\d+)?", number)]
        if between:
            low, high = between
            assert value == (low + high) / 2
            assert {abs(low), abs(high)} <= set(grid.tolist())
            neighbours = codec.encode(F([low, high])).tolist()
            assert codes_of(code) == [c for c in neighbours if c % 2 == 0]
        assert ("the largest" in number) == (value == codec.format.max)
    (fewest,) = integers(r"fewer than (\d) finite codes", "SPC-6")
    settings = {"exponent_bits": 3, "mantissa_bits": 2, "bias": 3}
    assert Format("it", **settings, codes=fewest).codes == fewest
    with pytest.raises(Fp4Error, match="SPC-6"):
        Format("it", **settings, codes=fewest - 1)


@pytest.mark.rule("SPC-3", "SPC-11", "SPC-16")
@pytest.mark.example("SPC-3", "SPC-16")
def test_objects_and_defaults_of_json():
    search, nvfp4 = (json.loads(named(name).to_json()) for name in ("nvfp4-4over6", "nvfp4"))
    rotated = json.loads(named("nvfp4-rht").to_json())
    shown = [json.loads(text) for text in re.findall(r"`(\{.*?\})` of", prose("SPC-3"))]
    assert shown == [rotated["hadamard"], search["four_over_six"]]
    (own, _), (codec, _), (four_over_six, _), (of, signs) = tables(RULES["SPC-16"].text)[0][1:]
    fields = own.split(", ")
    codec = found(r"(.*?) and (\w+) of a codec", "SPC-16", codec)
    assert set(re.findall(r"\w+", four_over_six)) == {*search["four_over_six"], "and", "of", "four_over_six"}
    assert (rotated["hadamard"], of) == ({"signs": int(signs.strip("`"))}, "signs of hadamard")
    for name in nvfp4:
        record = {key: value for key, value in nvfp4.items() if key != name}
        if name in fields:
            assert json.loads(fp4ref.from_json(json.dumps(record)).to_json()) == nvfp4
        else:
            with pytest.raises(Fp4Error, match="SPC-"):
                fp4ref.from_json(json.dumps(record))
    for name in nvfp4["element"]:
        part = {key: value for key, value in nvfp4["element"].items() if key != name}
        if name in {*codec[0].split(", "), codec[1]}:
            assert json.loads(fp4ref.from_json(json.dumps(nvfp4 | {"element": part})).to_json()) == nvfp4
        else:
            with pytest.raises(Fp4Error, match="SPC-"):
                fp4ref.from_json(json.dumps(nvfp4 | {"element": part}))
    for record in (search | {"four_over_six": {}}, rotated | {"hadamard": {}}):
        assert fp4ref.from_json(json.dumps(record)) == named(record["name"])


def named(name):
    return next(spec for spec in OWN if spec.name == name)


# Chapter 13


def read_all(path, data):
    path.write_bytes(data)
    with open_tensors(path) as file:
        return {name: file.read(name) for name in file.names}


def safetensors(shape, count=0, length=None):
    text = json.dumps({"a": {"dtype": "U8", "shape": shape, "data_offsets": [0, count]}}).encode()
    return struct.pack("<Q", length or len(text)) + text + bytes(count)


def npy(header, version=1):
    head = struct.pack("<H" if version == 1 else "<I", len(header))
    return b"\x93NUMPY" + bytes([version, 0]) + head + header + b"ab"


@pytest.mark.rule("FIL-1", "FIL-2", "FIL-5", "FIL-11", "FIL-12")
@pytest.mark.example("FIL-1", "FIL-2", "FIL-5", "FIL-12")
def test_the_limits_of_files(tmp_path, monkeypatch):
    path = tmp_path / "a.safetensors"
    (dimensions,) = integers(r"at most (\d+) integers >= 0", "FIL-1")
    (bits,) = integers(r"those that are not 0 fits in (\d+) bits of bytes", "FIL-1")
    (length,) = integers(r"the header's length, little-endian; at most ([\d,]+) and", "FIL-1")
    assert read_all(path, safetensors([1] * dimensions, 1))["a"].shape == (1,) * dimensions
    assert read_all(path, safetensors([0, 2**bits - 1]))["a"].size == 0
    for wrong in (safetensors([1] * (dimensions + 1), 1), safetensors([0, 2**bits])):
        with pytest.raises(FileError, match="FIL-1"):
            read_all(path, wrong)
    for size, words in ((length, "not a JSON object"), (length + 1, str(length))):
        path.write_bytes(struct.pack("<Q", size))
        with path.open("r+b") as file:
            file.truncate(8 + size)  # a file with a hole: zeros are no JSON
        with pytest.raises(FileError, match=words):
            open_tensors(path)
    (multiple,) = integers(r"shall pad the header with spaces to a multiple of (\d+)", "FIL-12")
    padded = {}
    for count in range(1, 12):
        header, _ = fp4ref.files.safetensors.header(path, [fp4ref.files.Entry("n" * count, "U8", (1,))], {})
        padded[len(header[8:].rstrip(b" "))] = len(header[8:])
        assert len(header) % multiple == 0
    for text, whole in tables(RULES["FIL-12"].text)[0][1:]:
        assert padded[int(text.split()[0])] == int(whole.split()[0])

    (order,) = found(r"by their types, in this order, .*? of their names: (.*?)\. \|", "FIL-11")
    types = re.findall(r"`(\w+)`", order)
    assert {*types} == {*fp4ref.files.DTYPES}
    alphabet = ["a", "B", "\u00e9", "\ue000", "\U00010000"]
    entries = [fp4ref.files.Entry(name + kind, kind, (2,)) for name in alphabet for kind in sorted(types)]
    wanted = [name + kind for kind in types for name in sorted(alphabet, key=lambda name: [ord(c) for c in name])]
    _, starts = fp4ref.files.safetensors.header(path, entries, {})
    assert sorted(starts, key=starts.get) == wanted

    path = tmp_path / "a.npz"
    first, last, short, old, long = integers(
        r"version (\d) to (\d), the length of a header, little-endian, in (\d) bytes in version (\d), else in (\d),",
        "FIL-2",
    )
    assert (short, long, old) == (2, 4, first)
    (header_max,) = integers(r"a header of at most ([\d,]+) bytes", "FIL-2")
    text = b"{'descr': '|u1', 'fortran_order': False, 'shape': (2,), }"
    for version in range(first, last + 1):
        assert read_all(path, archive(("a.npy", npy(text, version))))["a"].tobytes() == b"ab"
    for version in (first - 1, last + 1):
        with pytest.raises(FileError, match="FIL-2"):
            read_all(path, archive(("a.npy", npy(text, version))))
    assert read_all(path, archive(("a.npy", npy(text.ljust(header_max), 2))))["a"].size == 2
    with pytest.raises(FileError, match="FIL-2"):
        read_all(path, archive(("a.npy", npy(text.ljust(header_max + 1), 2))))
    members, inflated, metadata = found(
        r"at most 2\^(\d+), no name and no metadata twice.*declares at most 2\^(\d+) bytes.*"
        r" metadata NAME, .*at most ([\d,]+) bytes",
        "FIL-2",
    )
    limits = fp4ref.files.npz
    assert [1 << int(members), 1 << int(inflated)] == [limits.MEMBERS_MAX, limits.INFLATED_MAX]
    texts = [metadata, *found(r"`fp4ref` \(FIL-8\); at most ([\d,]+) bytes", "FIL-5")]
    assert [int(word.replace(",", "")) for word in texts] == [length] * 2 == [limits.TEXT_MAX] * 2
    monkeypatch.setattr(limits, "MEMBERS_MAX", 1)
    with pytest.raises(FileError, match="FIL-2"):
        read_all(path, archive(("a.npy", npy(text)), ("b.npy", npy(text))))


# Chapter 15


@pytest.mark.rule("GEM-4", "GEM-3", "GEM-2")
def test_a_contribution_that_overflows_beside_an_infinity():
    a, b = (fp4ref.quantize(np.zeros((1, 64), F), "mxfp8-e5m2", backend="numpy") for _ in range(2))
    for q, infinity in ((a, 0x7C), (b, 0xFC)):
        q.row.scales[:] = [[0xFE, 0x7F]]
        q.row.data[0, [0, 32]] = 0x7B, infinity
    assert fp4ref.gemm(a, b, "exact", backend="numpy").tolist() == [[-np.inf]]
    assert np.isnan(fp4ref.gemm(a, b, "blockwise", backend="numpy")).all()


@pytest.mark.rule("DEQ-1", "BLK-6")
def test_a_scale_of_zero_beside_an_infinity_dequantizes_to_nan():
    q = fp4ref.quantize(F([[np.inf] + [0] * 15 + [0.001] * 16]), "nvfp4", backend="numpy")
    assert (q.row.scales[0, 1], int(q.row.data[0, 8])) == (0, 0x77)
    assert np.isnan(fp4ref.dequantize(q, backend="numpy")[0, 1:]).all()


@pytest.mark.rule("GEM-2", "GEM-4", "GEM-11", "GEM-24")
@pytest.mark.example("GEM-2", "GEM-4", "GEM-11", "GEM-24")
def test_sizes_of_sums_and_bits_of_nan():
    codes, scale, largest, step = integers(r"at most (\d+) \* (\d+) = (\d+) steps of 2\^-(\d+)\.", "GEM-2")
    values = formats.CUDA_E2M1.decode(np.arange(8, dtype=np.uint8)).astype(float)
    scales = formats.CUDA_E4M3.decode(np.arange(127, dtype=np.uint8)).astype(float)
    steps = np.outer(values, scales) * 2.0**step
    assert (steps == np.rint(steps)).all()
    assert (steps.max(), values.max() * 2, scales.max() * 2.0 ** (step - 1)) == (largest, codes, scale)
    product, most, longest = integers(
        r"A product is at most (\d+)\^2, so .* stays below 2\^(\d+) for K <= (\d+):", "GEM-2"
    )
    assert product == largest
    assert largest**2 * longest < 2**most <= largest**2 * (longest + 1)
    assert integers(r": (\d+)-bit integers suffice", "GEM-2") == [most + 1]
    low, high = integers(r"Products of MX values span 2\^-(\d+) to 2\^(\d+)", "GEM-2")
    sizes = [
        np.unique(
            np.abs(codec.decode(np.arange(1 << codec.format.bits, dtype=np.uint16).astype(np.uint8)).astype(float))
        )
        for codec in (
            formats.CUDA_E2M1,
            formats.CUDA_E4M3,
            formats.CUDA_E5M2,
            formats.CUDA_E2M3,
            formats.CUDA_E3M2,
            formats.OCP_INT8,
        )
    ]
    finite = np.concatenate([size[np.isfinite(size) & (size > 0)] for size in sizes])
    assert (2.0**-low, True) == (
        (finite.min() * 2.0**-127) ** 2,
        2.0 ** (high - 1) < (finite.max() * 2.0**127) ** 2 <= 2.0**high,
    )
    (bits,) = integers(r"an accumulator of some (\d+) bits", "GEM-2")
    assert abs(bits - (low + high)) < 40
    (significant,) = integers(r"has at most (\d+) significant bits", "GEM-4")
    # 16 products of E2M1, at most 144 quarters each, times two E4M3 scales of 4 significant bits
    assert (16 * codes**2 * 15 * 15).bit_length() == significant

    q = fp4ref.quantize(np.full((1, 16), 1, F), "nvfp4", backend="numpy")
    q.row.scales[:] = 0x7F
    words = found(r"without payload: `0x(.{8})`, `(.{4})` in bfloat16, `(.{4})` in float16", "GEM-24")
    for dtype, word in zip(("float32", "bfloat16", "float16"), words, strict=True):
        got = fp4ref.gemm(q, q, dtype=dtype, backend="numpy")
        assert int(got.view(f"u{got.dtype.itemsize}")[0, 0]) == int(word, 16)

    total, depth, magnitude = found(r"`eps = (2\^-\d+)`, and total .*? K < (2\^\d+) and total < (2\^\d+)", "GEM-11")
    bound = found(r"`abs\(sum - exact\) <= gamma \* total \+ K \* (2\^-\d+)`, with `gamma = (.*?)`", "GEM-11")
    assert float(number_of(bound[0])) == np.finfo(F).tiny
    assert float(number_of(total)) == np.finfo(F).eps
    u = Fraction(1, 1 << 23)
    assert number_of(depth) == F(1 / u)
    top = float(number_of(magnitude))
    assert top < float(np.finfo(F).max) < 2 * top
    for k in (1, 2, 1000):
        gamma = eval(bound[1], {"__builtins__": {}}, {"K": k, "eps": u})
        assert (1 + u) ** k - 1 <= gamma
        assert 1 - (1 - u) ** k <= gamma
        assert gamma < k * u * (1 + 2 * k * u)
