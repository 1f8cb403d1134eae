"""Examples of the theorems, computed: each row with its condition, and those that fail without it."""

from __future__ import annotations

import re

import numpy as np
import pytest

import fp4ref
from fp4ref.formats import CUDA_E4M3, E2M1
from fp4ref.packing import pack, unpack
from fp4ref.quantized import DirectionData, Quantized
from fp4ref.standard import formulas
from fp4ref.theorems import bounds, moving
from standard_rules import rows_of, text_of

F = np.float32
MAGNITUDES = [0, 0.5, 1, 1.5, 2, 3, 4, 6]
ALL = range(8)
TILE = (  # the other elements of the tile are 0
    *((1, 3, 3.875), (1, 14, 0.875), (5, 4, -2), (5, 10, -5), (6, 4, 2.125), (7, 6, 0.375)),
    *((10, 13, 3.375), (13, 15, -4.75), (15, 0, 4.625)),
)


def number(cell):
    return float(formulas.value(cell.strip("` ")))


def bytes_of(spec, codes, scales, amax=None):
    """A tensor of codes [rows, K] and scale bytes."""
    codes, scales = np.uint8(codes), np.uint8(scales)
    data = DirectionData(pack(codes, E2M1), scales, None if amax is None else F([amax]))
    return Quantized(fp4ref.profiles[spec], codes.shape, "float32", "linear", data)


def values_of(spec, codes, scales, amax=None):
    return fp4ref.dequantize(bytes_of(spec, codes, scales, amax), backend="numpy")


def block(*magnitudes, width=32):
    """The codes of one block that begins with these magnitudes."""
    return [[MAGNITUDES.index(value) for value in magnitudes] + [0] * (width - len(magnitudes))]


@pytest.mark.rule("THM-1")
@pytest.mark.example("THM-1")
def test_blocks_of_mxfp4_again():
    for cell, again in rows_of("THM-1"):
        top = int(re.search(r"top (\d)", cell)[1])
        byte = re.search(r"byte (\w\w)", cell)
        for given in [int(byte[1], 16)] if byte else range(0xFD):  # above, 4 times the scale is infinite
            codes = block(top, top / 2)
            values = values_of("mxfp4", codes, [[given]])
            second = fp4ref.quantize(values, "mxfp4", backend="numpy")
            found = unpack(second.row.data, 32, E2M1).tolist(), int(second.row.scales[0, 0])
            if again.startswith("the same bytes"):
                assert found == (codes, given), (cell, given)
            else:
                assert again.startswith("byte 7F, codes of twice the value")
                assert found == (block(2 * top, top), int(re.search(r"byte (\w\w)", again)[1], 16))
            assert fp4ref.dequantize(second).tobytes() == values.tobytes()


@pytest.mark.rule("THM-2")
@pytest.mark.example("THM-2")
def test_blocks_of_nvfp4_again():
    *blocks, (own, _) = rows_of("THM-2")
    for cell, again in blocks:
        amax, small = (float(word) for word in re.findall(r"amax ([\d.]+)", cell))
        x = np.zeros((1, 32), F)
        x[0, 0], x[0, 16] = amax, small
        for text in (cell, again):
            q = fp4ref.quantize(x, "nvfp4", amax=F([amax]), backend="numpy")
            x = fp4ref.dequantize(q)
            byte, code = re.search(r"byte (\w\w), (?:top )?code (\d)", text).groups()
            assert (f"{int(q.row.scales[0, 1]):02X}", int(q.row.data[0, 8])) == (byte, int(code))
            if value := re.search(r"value ([\d.]+)", text):
                assert x[0, 16] == F(value[1])
    amax = float(own.split()[1])
    x = np.random.default_rng(2).standard_normal((8, 64)).astype(F)
    x *= F(amax / 2) / np.abs(x).max()
    x[0, 0] = amax
    for _ in range(4):
        q = fp4ref.quantize(x, "nvfp4", backend="numpy")
        assert q.row.amax.tolist() == [amax]
        x = fp4ref.dequantize(q)


@pytest.mark.rule("THM-3")
@pytest.mark.example("THM-3")
def test_values_are_in_the_order_of_elements():
    for cell, expected in rows_of("THM-3"):
        spec, given = re.match(r"`(\w+)`: (.*)", cell).groups()
        x = np.zeros((1, 32), F)
        x[0, :2] = [float(word) for word in given.split(", ")]
        values = fp4ref.dequantize(fp4ref.quantize(x, spec, backend="numpy"), backend="numpy")[0, :2]
        wanted = [float(word) for word in expected.partition(":")[0].split(", ")]
        assert np.array_equal(values, F(wanted), equal_nan=True)


@pytest.mark.rule("THM-8")
@pytest.mark.example("THM-8")
def test_square_blocks():
    holding, (failing, result) = rows_of("THM-8")
    x = np.random.default_rng(8).standard_normal((64, 96)).astype(F)
    assert holding[1] == "holds"
    for spec in re.findall("`(.*?)`", holding[0]):
        q = fp4ref.quantize(x, spec, "both", backend="numpy")
        form = q.spec.element.format
        rows, columns = unpack(q.row.data, 96, form), unpack(q.column.data, 64, form)
        assert np.array_equal(rows.T, columns)
        side = q.spec.block.rows
        assert np.array_equal(q.row.scales[::side].T, q.column.scales[::side])
    assert result.startswith("fails for some tiles")
    name, side, most = re.match(r"`(\S+)` with (\d+)x\2 blocks and (\d+) for 448", failing).groups()
    pick = fp4ref.FourOverSix(scale_max=int(most))
    spec = fp4ref.profiles[name].replace(name="squares", block=(int(side), int(side)), four_over_six=pick)
    tile = np.zeros((16, 16), F)
    for row, column, value in TILE:
        tile[row, column] = value
    q = fp4ref.quantize(tile, spec, "both", backend="numpy")
    assert not np.array_equal(unpack(q.row.data, 16, E2M1).T, unpack(q.column.data, 16, E2M1))


@pytest.mark.rule("THM-9")
@pytest.mark.example("THM-9")
def test_parts_of_a_tensor():
    head, *rows = [["cut of `nvfp4`, 64 rows", ""], *rows_of("THM-9")]
    x = np.random.default_rng(9).standard_normal((int(re.search(r"\d+ rows", head[0])[0][:2]), 64)).astype(F)
    x[0, 0] = 100
    for cell, result in rows:
        spec = (re.search("`(.*?)`", cell) or re.search("`(.*?)`", head[0]))[1]
        cut = int(re.search(r"after row (\d+)", cell)[1])
        whole = fp4ref.quantize(x, spec, backend="numpy").row
        given = {"amax": whole.amax} if "own amax" not in cell else {}
        parts = [fp4ref.quantize(part, spec, backend="numpy", **given).row for part in (x[:cut], x[cut:])]
        same = all(
            np.array_equal(np.concatenate([getattr(part, name) for part in parts]), getattr(whole, name))
            for name in ("data", "scales")
        )
        assert same == (result == "the same bytes"), cell


@pytest.mark.rule("THM-10")
@pytest.mark.example("THM-10")
def test_scales_under_another_amax():
    for cell, new, change in rows_of("THM-10"):
        scale, ratio = map(number, cell.split(", "))
        byte = CUDA_E4M3.encode(F([scale]))
        made, most = bounds.rescaled(byte, CUDA_E4M3, ratio, 1.0)
        assert float(CUDA_E4M3.decode(made)[0]) == number(new.partition(":")[0])
        wanted = {"0": 0.0, "all of the value": 1.0}.get(change)
        assert F(most) == F(number(change.partition(" of")[0]) if wanted is None else wanted)


@pytest.mark.rule("THM-11")
@pytest.mark.example("THM-11")
def test_the_longest_sum():
    (most, _), (more, _) = rows_of("THM-11")
    assert int(most) == bounds.LONGEST_SUM == int(more) - 1
    for depth, text in rows_of("THM-11"):
        count, value, sign = re.fullmatch(r"(\d+) \* (\d+)\^2 ([<>]) 2\^63", text).groups()
        assert count == depth
        assert int(value) == max(MAGNITUDES) * 448 * 2**10
        assert (int(count) * int(value) ** 2 < 2**63) == (sign == "<")
    assert str(bounds.LONGEST_SUM) in text_of("THM-11")


def moved_to_nvfp4(codes, exponents):
    return moving.nvfp4_from_mxfp4(np.uint8(codes), np.uint8([[127 + exponent] for exponent in exponents]))


@pytest.mark.rule("THM-4")
@pytest.mark.example("THM-4")
def test_mxfp4_with_its_codes_in_nvfp4():
    every = np.tile(np.arange(16), (2, 2))
    for cell, result in rows_of("THM-4"):
        exponents = [int(np.log2(number(word))) for word in cell.split(", ")]
        moved = moved_to_nvfp4(every[: len(exponents)], exponents)
        if not result.startswith("m = "):
            assert isinstance(moved, moving.Inexact)
            product = re.search("`(.*?)`", result)
            assert product is None or np.isinf(number(product[1]))
            continue
        m, *scales = re.findall(r"m = (-?\d+)|(\w\w) \((.*?)\)", result)
        assert moved.exponent == int(m[0])
        assert np.array_equal(moved.codes, every)
        for row, (_, byte, scale) in enumerate(scales):
            assert (f"{int(moved.scales[row, 0]):02X}", float(CUDA_E4M3.decode(moved.scales[row, :1])[0])) == (
                byte,
                number(scale),
            )
        values = values_of("nvfp4", moved.codes, moved.scales, moved.amax.item())
        assert values.tobytes() == values_of("mxfp4", every, [[127 + e] for e in exponents]).tobytes()


def widest(codes):
    """The widest span of two blocks with these codes, and the move over it."""
    codes = np.resize(np.uint8([codes]), (2, 32))
    span, found = 0, None
    while isinstance(moved := moved_to_nvfp4(codes, (0, -span)), moving.Exact):
        span, found = span + 1, moved
    return span - 1, found


@pytest.mark.rule("THM-5")
@pytest.mark.example("THM-5")
def test_widest_spans():
    counts, sets = (rows_of("THM-5", number) for number in (0, 1))
    (_, *many), head = counts[0], re.search(r"\| widest span \|(.*)\|", text_of("THM-5"))[1]
    every = {mask: widest([code for code in range(1, 8) if mask >> code & 1])[0] for mask in range(2, 256, 2)}
    assert len(every) == 127
    wanted = dict(zip(map(int, head.split("|")), map(int, many), strict=True))
    assert {span: list(every.values()).count(span) for span in wanted} == wanted
    for cell, result in sets:
        span = int(result.partition(",")[0])
        given = [MAGNITUDES.index(float(word)) for word in re.findall(r"\d[\d.]*", cell)]
        chosen = [list(range(1, 8))] if cell == "all seven" else [given]
        for codes in [[code] for code in given] if cell.startswith("one of") else chosen:
            found, moved = widest(codes)
            assert found == span, cell
            if "amax" in result:
                times = int(re.search(r"(\d+) \* 2\^m", result)[1])
                assert np.frexp(moved.amax.item() / times)[0] == 0.5


@pytest.mark.rule("THM-6")
@pytest.mark.example("THM-6")
def test_factors_of_nvfp4():
    for cell, result in rows_of("THM-6"):
        factors, _, rest = cell.replace(" (9/8)", "").partition(", ")
        factors = [float(word) for word in re.findall(r"[\d.]+", factors)]
        words = rest.replace("in the halves of one block, ", "").removeprefix("magnitudes ").partition(" and only ")
        halves = [ALL if part in {"any", "all codes"} else part for part in (words[0], words[2]) if part]
        codes = [
            np.resize([*part] if part is ALL else [MAGNITUDES.index(float(v)) for v in part.split(", ")], 16)
            for part in halves
        ]
        codes = np.uint8([np.concatenate(codes if len(factors) == len(codes) else codes * len(factors))])
        moved = moving.mxfp4_from_nvfp4(codes, F([factors]))
        assert isinstance(moved, moving.Exact) == (result != "none"), cell
        if result == "none":
            continue
        values = np.array(MAGNITUDES)[codes] * np.repeat([factors], 16, axis=1)
        assert np.array_equal(values_of("mxfp4", np.resize(moved.codes, (1, codes.shape[1])), moved.scales), F(values))
        if "the same codes" in result:
            assert np.array_equal(moved.codes, codes)
        if scale := re.match(r"scale (\d)", result):
            assert moved.scales.tolist() == [[127 + int(np.log2(int(scale[1])))]]
        if magnitudes := re.search(r"magnitudes (.*)", result):
            wanted = [MAGNITUDES.index(float(word)) for word in magnitudes[1].split(", ")]
            assert moved.codes[0, : len(wanted)].tolist() == wanted
        if becomes := re.search(r"the (\d) becomes (\d)", result):
            one, two = (MAGNITUDES.index(int(word)) for word in becomes.groups())
            assert (codes[0, 16:] == one).all()
            assert (moved.codes[0, 16:] == two).all()
