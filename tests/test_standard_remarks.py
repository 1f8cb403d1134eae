"""Numbers in sentences of volume 1, beside its tables, acted out."""

from __future__ import annotations

import json
import math
import re

import numpy as np
import pytest

import fp4ref
from fp4ref.arithmetic import ARITHMETIC
from fp4ref.arrays import INPUT_DTYPES
from fp4ref.conformance.judge.stochastic import Pairs
from fp4ref.formats import CUDA_E8M0, F, Rounding
from fp4ref.formats.codec import Codec
from fp4ref.generators import MAPS
from fp4ref.model.quantize import constants
from fp4ref.spec import READ_VERSIONS, SPEC_VERSION
from standard_rules import integers, rows_of, text_of

TINY = 2.0**-126


def line(rule):
    """The text of a rule in one line, marks of a reason apart."""
    return " ".join(text_of(rule).replace("\n>", "\n").split())


@pytest.mark.rule("NUM-9")
@pytest.mark.example("NUM-9")
def test_a_quotient_that_is_subnormal():
    tensor, numerator = map(
        float, re.search(r"amax is that of a block, (\S+), .* and (\S+) / S_enc", line("NUM-9")).groups()
    )
    element, code, flushed = re.search(
        r"An element (\S+) of that block encodes to code (\d) .* code (\d)", line("NUM-9")
    ).groups()
    te, k = ARITHMETIC["te"], constants(fp4ref.NVFP4, np.dtype(F))
    with np.errstate(over="ignore"):
        g = te.global_scale(F([tensor]), k)
    assert g == np.finfo(F).max
    assert 0 < F(numerator) / g[0] < TINY
    x = np.zeros((1, 16), F)
    x[0, :2] = tensor, float(element)
    q = fp4ref.quantize(x, "nvfp4", backend="numpy").row
    assert q.data[0, 0] >> 4 == int(code)
    assert fp4ref.NVFP4.element.encode(F([float(element)]) * np.finfo(F).max) == int(flushed)


@pytest.mark.rule("SR-4")
@pytest.mark.example("SR-4")
def test_a_small_fraction_never_moves():
    bound = 1 / int(re.search(r"frac < 1/(\d+) is never", line("SR-4"))[1])
    spec = fp4ref.profiles["nvfp4-sr"]
    below = F(bound - 2.0**-20)
    bits = np.arange(256, dtype=np.uint8)
    for frac, moves in ((below, 0), (F(bound), 1)):
        codes = spec.element.encode(np.full(256, 1 + frac / 2, F), bits)  # beside 1 the step is 1/2
        assert np.count_nonzero(codes == 3) == moves
        assert np.count_nonzero(codes == 2) == 256 - moves


@pytest.mark.rule("SR-7")
@pytest.mark.example("SR-7")
def test_blocks_of_a_counter():
    width = int(re.search(r"Blocks are of (\d+) elements", line("SR-7"))[1])
    assert len(set(re.findall(r"blocks of (\d+) consecutive|block of (\d+)$", line("SR-7")))) == 1
    whole = fp4ref.random_bits((2, 3 * width))
    assert np.array_equal(
        fp4ref.random_bits((2, width), origin=(0, width), whole=(2, 3 * width)), whole[:, width : 2 * width]
    )
    for bit in (width // 2, width - 1, width + 1):
        with pytest.raises(fp4ref.ShapeError, match=f"a multiple of {width}"):
            fp4ref.random_bits((2, width), origin=(0, bit), whole=(2, 3 * width))


@pytest.mark.rule("SR-10")
@pytest.mark.example("SR-10")
def test_maps_as_the_text_writes_them():
    text = line("SR-10")
    seed_bits = int(re.search(r"offset of (\d+) bits", text)[1])
    modulus, divisor, base, power = map(
        int, re.search(r"n mod (\d) .* floor\(n / (\d)\) \+ (\d)\^(\d+)", text).groups()
    )
    chunk, wide = map(int, re.search(r"chunk of (\d+) x (\d+)", text).groups())
    across, most, step = map(
        int, re.search(r"ceil\(K / (\d+)\)`, `steps = ceil\(min\(M, (\d+)\) / (\d+)\)", text).groups()
    )
    rows_of_step, tile = map(int, re.search(r"step of (\d+) rows in a tile of (\d+)", text).groups())
    low = int(re.search(r"the low byte being byte (\d)", text)[1])
    assert (chunk, wide, across) == (across, across, across)
    assert (step, most) == (rows_of_step, tile)
    threads = {row[0].strip("`"): integers(row[1]) for row in rows_of("SR-10")}
    shape = 2304, 384
    for name in ("te.tuned_1d", "te.fallback"):
        places = MAPS[name].places(shape, "row").row
        factor, limit = threads[name]
        assert factor == limit
        chunks = -(-shape[0] // chunk) * -(-shape[1] // across)
        assert places[..., 0].max() == factor * chunks - 1
        assert (places[:chunk, : wide // 4, 0] < limit).all()  # of the first chunk
        assert (places[:chunk, wide // 4, 0] >= limit).all()
    (factor,) = threads["te.rht_fused"][:1]
    steps, tiles = -(-min(shape[0], most) // step), shape[1] // across * -(-shape[0] // tile)
    last = -(-(shape[0] % tile) // rows_of_step)  # steps of the last tile
    for name in ("te.rht_fused", "te.rht_fused_grouped"):
        places = MAPS[name].places(shape)
        more = integers(rows_of("SR-10")[-1][1])[0] * steps * tiles if "grouped" in name else 0
        assert places.row[..., 0].max() == factor * (last + steps * (tiles - 1)) + factor - 1 + more
        assert places.column[..., 0].max() // factor == last - 1 + steps * (tiles - 1)
    with pytest.raises(fp4ref.DomainError, match=f"{seed_bits} bits"):
        MAPS["te.tuned_1d"](shape, 1 << seed_bits)
    drawn, places = MAPS["te.fallback"](shape, 5, 1234).row, MAPS["te.fallback"].places(shape).row
    sequence, n = places[200, 77].tolist()
    counter = 1234 + n // divisor + base**power * sequence
    word = int(fp4ref.philox4x32([counter >> 32 * i & 0xFFFFFFFF for i in range(4)], [5, 0])[n % modulus])
    drawn = MAPS["te.fallback"](shape, 5, 1234).row
    assert drawn[200, 4 * 77 : 4 * 78].tolist() == [word >> 8 * (i + low) & 255 for i in range(4)]
    words = [integers(cell) for cell in re.findall(r"takes the words ([\d, ]+), \.\.\.", text)]
    assert words == [[0, 1, 2]]


@pytest.mark.rule("SR-11", "SR-13")
@pytest.mark.example("SR-11", "SR-13")
def test_pairs_are_of_halfway_elements():
    fractions = re.findall(r"frac = (\d)/(\d)", line("SR-11") + line("SR-13"))
    assert {int(top) / int(bottom) for top, bottom in fractions} == {0.5}
    assert set(re.findall(r"alpha / (\d)", line("SR-11"))) == {"2"}
    (level,) = re.findall(r"Alpha is 10\^-(\d+) divided", line("SR-11"))
    assert set(re.findall(r"a probability below 10\^-(\d+);", line("SR-11"))) == {level}
    (parts,) = set(re.findall(r"floor\((\d+) \* frac\)", line("SR-11")))
    assert set(re.findall(r"probability j / (\d+)", line("SR-11"))) == {parts}
    assert 1 << int(re.search(r"draws more than (\d) bits", line("SR-11"))[1]) == int(parts)
    for row in rows_of("SR-13"):  # the test of pairs that agree in all, half of them rounded away
        n = int(row[0])
        half = np.arange(n) % 2 == 0
        assert (row[2] == "passes") == Pairs().with_(half, half).test("calls", 1e-12).passed
        assert f"{math.comb(n, n // 2)}" == str(math.comb(*integers(row[1])[1:3]))


@pytest.mark.rule("SR-19", "SR-20")
@pytest.mark.example("SR-19", "SR-20")
def test_a_part_without_a_place_and_a_whole():
    first = tuple(map(int, re.search(r"shall begin at \((\d), (\d)\)", line("SR-19")).groups()))
    for part, whole, same in (*rows_of("SR-19"), *rows_of("SR-20")):
        shape, given = tuple(integers(part)), {"whole": tuple(integers(whole))} if integers(whole) else {}
        rows, columns, *place, height, width = integers(same)
        assert (rows, columns, tuple(place)) == (*shape, first)
        for direction in ("row", "column"):
            got = fp4ref.random_bits(shape, direction, 7, **given)
            stated = fp4ref.random_bits(shape, direction, 7, origin=tuple(place), whole=(height, width))
            of_whole = fp4ref.random_bits((height, width), direction, 7)
            assert np.array_equal(got, stated)
            assert np.array_equal(got, of_whole[:rows] if direction == "row" else of_whole[:, :rows])


@pytest.mark.rule("SPC-3", "SPC-14")
@pytest.mark.example("SPC-3", "SPC-14")
def test_versions_of_json():
    written = re.search(r"the text `(.*?)`", line("SPC-3"))[1]
    assert written == SPEC_VERSION == json.loads(fp4ref.NVFP4.to_json())["fp4ref"]
    old, same = re.search(r"the version `(.*?)` as if it stated `(.*?)`", line("SPC-14")).groups()
    assert (old, same) == READ_VERSIONS
    record = json.loads(fp4ref.NVFP4.to_json())
    assert fp4ref.from_json(json.dumps(record | {"fp4ref": old})) == fp4ref.from_json(
        json.dumps(record | {"fp4ref": same})
    )


@pytest.mark.rule("SPC-9")
@pytest.mark.example("SPC-9")
@pytest.mark.parametrize("amax", ["propagate-nan", "propagate-in-block"])
def test_a_block_maximum_that_is_nan(amax):
    sign, byte = re.search(r"has the sign bit (\d), .*? its scale byte `(\w\w)`", line("SPC-9")).groups()
    x = np.ones((1, 16), F)
    x[0, 1] = F(-np.nan)
    spec = fp4ref.NVFP4.replace(name="x", amax=amax)
    for name in re.search(r"with `([\w-]+)` and `([\w-]+)` its t is FLT_MAX", line("SPC-9")).groups():
        other = spec.replace(arithmetic=ARITHMETIC[name])
        dtype = x.dtype if name == "te" else INPUT_DTYPES["bfloat16"]
        q = fp4ref.quantize(x.astype(dtype), other, amax=F([6]), backend="numpy").row
        assert q.scales.tolist() == [[int(byte, 16)]]
    unbounded = re.search(r"`te-division` bounds no t, so its t is NaN and its scale byte `(\w\w)`", line("SPC-9"))[1]
    division = spec.replace(arithmetic=ARITHMETIC["te-division"])
    q = fp4ref.quantize(x, division, amax=F([6]), backend="numpy").row
    assert q.scales.tolist() == [[int(unbounded, 16)]]
    assert int(unbounded, 16) >> 7 == int(sign)
    x[0, 1], k = F(np.finfo(F).max), constants(division, np.dtype(F))
    with np.errstate(over="ignore"):
        t = division.arithmetic.block_scale(x[0, 1:2], F([1e30]), k)
    assert np.isinf(t)  # of a number: the byte is that of FLT_MAX
    assert division.scale.encode(t) == division.scale.encode(F([np.finfo(F).max])) == int(byte, 16)


@pytest.mark.rule("SPC-19")
@pytest.mark.example("SPC-19")
def test_zero_is_a_magnitude_below_the_smallest_value():
    number = float(re.search(r"below the smallest value, (\S+) too", line("SPC-19"))[1])
    for rounding in Rounding:
        if rounding is not Rounding.STOCHASTIC:
            codec = Codec(format=CUDA_E8M0.format, rounding=rounding, nan=CUDA_E8M0.nan)
            assert codec.encode(F([number, -number])).tolist() == [0, 0]
