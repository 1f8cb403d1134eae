"""Numbers that stand in sentences of chapters 00 and 08, and the defaults of the pseudo-code, computed."""

from __future__ import annotations

import inspect
import math
import re

import numpy as np
import pytest

import fp4ref
from fp4ref import SPEC_VERSION, hadamard, packings
from fp4ref.spec_root import spec_root
from standard_rules import integers, text_of

F = np.float32
NAMES = {"type": "dtype", "amaxes": "alpha_rule", "A": "a", "B": "b"}  # of the pseudo-code, and of the functions
WORDS = {"row": "row", "row and row": ("row", "row"), "none": None, "no": False, "(0, 0)": (0, 0)}
OUTSIDE = {"backend", "device", "out", "noop"}  # arguments that decide no byte


def prose(rule):
    return " ".join(text_of(rule).split())


def chapter_00():
    return (spec_root() / "00-algorithm.md").read_text("utf-8")


def arguments(text):
    """The arguments of a line of pseudo-code, each with its default in words, or with none."""
    parts = re.split(r", (?![^(]*\))", text)
    return {part.partition(" = ")[0]: part.partition(" = ")[2] for part in parts}


@pytest.mark.parametrize("name", ["quantize", "dequantize", "random_bits", "gemm"])
def test_arguments_and_defaults_of_the_pseudo_code(name):
    given = arguments(re.search(rf"(?m)^{name}\((.*)\):$", chapter_00())[1])
    parameters = inspect.signature(getattr(fp4ref, name)).parameters
    stored = {"data": "q", "scales": "q", "G": "q", "spec": "q"} if name == "dequantize" else {}
    known = {stored.get(key, NAMES.get(key, key)): words for key, words in given.items()}
    assert known.keys() <= parameters.keys()
    assert parameters.keys() - known.keys() <= OUTSIDE | ({"direction"} if name == "dequantize" else set())
    for key, words in known.items():
        default = parameters[key].default
        if not words:
            assert default is inspect.Parameter.empty or key == "q", key
        elif key == "whole":
            assert (words, default) == ("the matrix of shape", None)
        else:
            expected = WORDS[words] if words in WORDS else float(words) if words[0].isdigit() else words
            assert default == expected, key


def test_numbers_of_the_pseudo_code():
    text = chapter_00()
    (times,) = re.findall(r"with 4over6 \[t, t \* ([\d.]+)\]", text)
    assert times in prose("FOS-1")
    groups = re.findall(r"each group of (\d+) elements", text)
    assert len(groups) == 2
    assert {int(group) for group in groups} == {hadamard.POINTS}
    assert re.findall(r"padded with \+(\d):", text) == re.findall(r"shall count as \+(\d)", prose("BLK-13"))
    assert re.search(r"fp32\(1 / T\)\)", text)


@pytest.mark.rule("RES-3")
@pytest.mark.example("RES-3")
def test_a_statement_names_the_version():
    shown = re.findall(r"`fp4ref spec ([\d.]+), ", text_of("RES-3"))
    assert shown == [SPEC_VERSION] * 2


@pytest.mark.rule("LAY-2", "LAY-4", "LAY-7", "LAY-10")
@pytest.mark.example("LAY-2", "LAY-4", "LAY-7", "LAY-10")
def test_sizes_of_named_layouts_in_sentences():
    columns, wide = re.search(r"With Kb = (\d+), W is (\d+):", prose("LAY-2")).groups()
    assert fp4ref.LAYOUTS["linear_padded"].padded_shape(1, int(columns))[1] == int(wide)
    (columns,) = re.findall(r"For (\d+) scale columns:", prose("LAY-4"))
    places = re.findall(r"\((\d+), (\d+)\) → (?:([\d +]+) = )?(\d+)", prose("LAY-4"))
    assert len(places) == 6
    for m, k, parts, offset in places:
        assert fp4ref.LAYOUTS["tiled_8x4"].offset(int(m), int(k), columns=int(columns)) == int(offset)
        assert not parts or sum(map(int, parts.split(" + "))) == int(offset)
    rows, columns, *shape = integers(
        re.search(r"a scale array of (.*?), the buffers of all four layouts have the shape (\[.*?\])", prose("LAY-7"))
        .expand(r"\1 \2")
        .replace(",", " ")
    )
    assert {form.padded_shape(rows, columns) for form in map(fp4ref.LAYOUTS.get, NAMED)} == {tuple(shape)}
    side, across, *block, first, last, then, end = integers(
        re.search(
            r"A (\d+) × (\d+) matrix in (\d+) × (\d+) blocks .*? rows (\d+) to (\d+) are .*? rows (\d+) to (\d+)\.",
            prose("LAY-10"),
        ).expand(r"\1 \2 \3 \4 \5 \6 \7 \8")
    )
    assert tuple(block) == tuple(fp4ref.NVFP4_2D.block)
    x = np.random.default_rng(8).standard_normal((side, across)).astype(F)
    scales = fp4ref.quantize(x, "nvfp4-2d", backend="numpy").row.scales
    changes = np.flatnonzero((scales[1:] != scales[:-1]).any(1)) + 1
    assert [first, last, then, end] == [0, changes[0] - 1, changes[0], side - 1]
    assert len(changes) == 1


NAMED = ("linear", "linear_padded", "tiled_128x4", "tiled_8x4")


@pytest.mark.rule("LAY-13", "LAY-18", "LAY-31")
@pytest.mark.example("LAY-13", "LAY-18", "LAY-31")
def test_sums_of_offsets_in_sentences():
    text, m, k, parts, total = re.search(
        r"In `(m\(.*?)` the strides are .*? Scale \((\d+), (\d+)\) is stored at (.*?) = (\d+)\.", prose("LAY-13")
    ).groups()
    layout = fp4ref.Layout("it", text)
    assert int(layout.offsets([int(m), int(k)], (32, 8))) == int(total) == sum(map(int, parts.split(" + ")))
    text, rows, columns, m, k, tiles, size, total = re.search(
        r"`(m\(\S* k\S* k0 m1 m0 m2 k1)` has the tiles of `tiled_128x4`, one below the other: for (\d+) × (\d+) scales "
        r"\((\d+), (\d+)\) is stored at (\d+) × (\d+) = ([\d,]+)\.",
        prose("LAY-13"),
    ).groups()
    sizes = int(rows), int(columns)
    at = int(fp4ref.Layout("it", text).offsets([int(m), int(k)], sizes))
    assert [at] == integers(total) == [int(tiles) * int(size)]
    assert int(tiles) == fp4ref.LAYOUTS["tiled_128x4"].padded_shape(*sizes)[0] // 128
    parts, total = re.search(r"with 8 columns at ([\d *+]+) = (\d+)\.", prose("LAY-18")).groups()
    assert eval(parts, {"__builtins__": {}}) == int(total)
    text, size, first, last = re.search(
        r"With \d+ rows, the rest of `(n\(.*?\))` takes (\d+) / \((\d+) \* (\d+)\)", prose("LAY-31")
    ).groups()
    assert text == f"n({first},*,{last})"
    assert int(size) == 96


@pytest.mark.rule("LAY-35", "LAY-53")
@pytest.mark.example("LAY-35")
def test_bytes_of_buffers_in_sentences():
    (formula,) = re.findall(r"shall have `ceil\((.*?)\)` bytes", prose("LAY-35"))
    for units, w in ((3, 6), (4, 6), (5, 6), (3, 4)):
        form = fp4ref.Layout("it", f"m(*) k(*): k0 m0; unit {w}")
        exact = eval(formula, {"__builtins__": {}, "units": units, "w": w})
        assert packings.packed_shape(form, 1, units) == (1, math.ceil(exact))
    bytes_, first, last, apart = re.search(
        r"rows of one tile column are (\d) bytes each\. .*? its first (\d) bytes and the last row its last (\d), "
        r"> ?all others lie apart by (\d+)",
        prose("LAY-53"),
    ).groups()
    form = fp4ref.LAYOUTS["tiled_128x4"]
    rows = [form.offset(m, np.arange(4), rows=128, columns=4).tolist() for m in (0, 1, 127)]
    assert rows[0] == [*range(int(first))]
    assert rows[2] == [*range(512 - int(last), 512)]
    assert (rows[1][0] - rows[0][0], rows[1][-1] + 1 - rows[1][0]) == (int(apart), int(bytes_))
