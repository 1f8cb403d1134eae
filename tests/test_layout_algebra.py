"""Layouts of the algebra against naive maps: a loop over the text, and what the owners' own code was seen to write."""

from __future__ import annotations

import json
import math
import pickle
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fp4ref.errors import DomainError, DTypeError, LayoutError, ShapeError
from fp4ref.layout import Layout
from fp4ref.strategies import drawn_layouts

RECORDED = np.load(Path(__file__).parent / "data/layouts.npz")
OWNERS = [json.loads(line) for line in RECORDED["index"]]
GFX950 = "m(16,2,*) k(4,2,*): m1 k1 m0 k0 k2 m2"
counts = st.integers(0, 40)
QUICK = settings(max_examples=40, deadline=None)


def written(owner: dict) -> str:
    """The line of text for a recorded layout."""
    axes = " ".join(f"{name}({','.join(str(r or '*') for r in radices)})" for name, radices in owner["axes"].items())
    fill = "unspecified" if owner["fill"] is None else hex(owner["fill"])
    pads = [
        f"pad {name} {owner['pad'].get(name, math.prod(r for r in radices if r))} {fill}"
        for name, radices in owner["axes"].items()
    ]
    return "; ".join([f"{axes}: {owner['order']}", f"unit {owner['unit']}", *pads, f"base {owner['base']}"])


def naive(text: str, sizes: tuple[int, ...], padding: bool = False):
    """Every index and its offset, in Python integers, from the words of the text; then the size of the buffer."""
    head, *clauses = text.split("; ")
    declared, order = head.split(": ")
    axes = {name: parts.split(",") for name, parts in re.findall(r"(\w+)\(([^)]*)\)", declared)}
    padded = {}
    for (name, parts), given_size in zip(axes.items(), sizes, strict=True):
        size = given_size
        stated = re.search(rf"pad {name} (\d+)\b", text)
        multiple = int(stated[1]) if stated else eval("*".join(["1", *(p for p in parts if p != "*")]))
        while size % multiple:
            size += 1
        padded[name] = size
        axes[name] = [
            int(p) if p != "*" else size // eval("*".join(["1", *(p for p in parts if p != "*")])) for p in parts
        ]
    base = next((eval(clause[5:], {}, padded) for clause in clauses if clause.startswith("base")), 0)
    found = {}
    ends = [padded[name] for name in axes] if padding else sizes
    for index in np.ndindex(*ends):
        rest, values = dict(zip(axes, index, strict=True)), {}
        for name, radices in axes.items():
            for digit, radix in enumerate(radices):
                values[f"{name}{digit}"] = rest[name] % radix, radix
                rest[name] //= radix
        offset, stride = base, 1
        for word in order.split():
            if word[0] == "|":
                step = max(eval(word[1:], {}, padded), 1)
                while stride % step:
                    stride += 1
            else:
                digit, _, flip = word.partition("^")
                value, radix = values[digit]
                offset += (value ^ (values[flip][0] if flip in values else int(flip or 0))) * stride
                stride *= radix
        for clause in clauses:
            if clause.startswith("table"):
                places = eval(f"[{clause[5:]}]")
                run, unit = divmod(offset - base, len(places))
                offset = base + run * len(places) + places[unit]
        found[index] = offset
    return found, stride if found else 0


@pytest.mark.rule("LAY-13", "LAY-16", "LAY-17")
@pytest.mark.parametrize("owner", OWNERS, ids=lambda owner: owner["name"])
def test_the_recorded_maps_of_owners(owner):
    form = Layout(owner["name"], written(owner))
    keys = [key for key in RECORDED.files if key.partition("|")[0] == owner["name"]]
    assert keys
    for key in keys:
        sizes = [int(size) for size in re.findall(r"=(\d+)", key)]
        stored = np.full(math.prod(form.padded_shape(*sizes)), -1)
        stored[form.offsets(list(np.indices(sizes)), sizes).reshape(-1)] = np.arange(math.prod(sizes))
        recorded = RECORDED[key]  # memory that the owner does not allocate is missing at its end
        np.testing.assert_array_equal(stored[: recorded.size], recorded)
        assert (stored[recorded.size :] == -1).all()
        np.testing.assert_array_equal(form.valid(*sizes).reshape(-1), stored >= 0)


@pytest.mark.rule("LAY-13", "LAY-14", "LAY-15", "LAY-16", "LAY-17", "LAY-19", "LAY-21")
@QUICK
@given(form=drawn_layouts(), rows=counts, columns=st.integers(0, 20))
def test_offsets_follow_the_words_and_index_undoes_them(form, rows, columns):
    expected, _ = naive(form.text, (rows, columns))
    row, column = (
        (np.array(part, np.int64) for part in zip(*expected, strict=True)) if expected else np.zeros((2, 0), int)
    )
    offsets = form.offset(row, column, columns, rows)
    assert offsets.tolist() == list(expected.values())
    assert len(set(offsets.tolist())) == offsets.size
    assert [part.tolist() for part in form.index(offsets, columns, rows)] == [row.tolist(), column.tolist()]
    if not form.takes_rows:
        assert form.offset(row, column, columns).tolist() == offsets.tolist()
    assert Layout(form.name, form.text) == form == pickle.loads(pickle.dumps(form))


@pytest.mark.rule("LAY-5", "LAY-6", "LAY-15", "LAY-16", "LAY-19", "LAY-21", "LAY-37", "LAY-38", "LAY-42", "LAY-45")
@QUICK
@given(form=drawn_layouts(), rows=counts, columns=st.integers(0, 20), seed=st.integers(0, 99))
def test_conversions_store_every_byte_and_the_padding(form, rows, columns, seed):
    scales = np.random.default_rng(seed).integers(1, 256, (rows, columns), np.uint8)
    fills = [re.search(rf"pad {axis} (?:\d+ )?(0x..|unspecified)", form.text) for axis in "mk"]
    fills = ["0x00" if fill is None else fill[1] for fill in fills]
    grid, _ = naive(form.text, (rows, columns), padding=True)
    got = form.from_linear(scales)
    expected, decided = np.zeros(got.size, np.uint8), np.zeros(got.size, bool)
    scale_at = np.zeros(got.size, bool)
    for (row, column), offset in grid.items():
        inside = row < rows and column < columns
        fill = None if inside else fills[0] if row >= rows else fills[1]
        expected[offset] = scales[row, column] if inside else 0 if fill == "unspecified" else int(fill, 16)
        decided[offset], scale_at[offset] = fill != "unspecified", inside
    if not rows * columns:
        expected, decided = expected[:0], decided[:0]
    assert got.shape == form.padded_shape(rows, columns)
    assert got.tobytes() == expected.tobytes()
    np.testing.assert_array_equal(form.valid(rows, columns).reshape(-1), scale_at[: got.size])
    np.testing.assert_array_equal(form.compared(rows, columns).reshape(-1), decided)
    poisoned = np.where(form.valid(rows, columns), got, np.uint8(0x7F))
    assert form.to_linear(poisoned, rows, columns).tobytes() == scales.tobytes()


@pytest.mark.rule("LAY-9", "LAY-51", "LAY-52")
@QUICK
@given(form=drawn_layouts(), rows=st.integers(1, 40), columns=st.integers(1, 9), data=st.data())
def test_row_ranges_of_any_layout(form, rows, columns, data):
    start, stop = sorted([data.draw(st.integers(0, rows)), data.draw(st.integers(0, rows))])
    grid, _ = naive(form.text, (rows, columns), padding=True)
    own = sorted(o for (m, _), o in grid.items() if start <= m and (m < stop or start < stop == rows))
    if own and own != list(range(own[0], own[-1] + 1)):
        with pytest.raises(LayoutError, match=r"lie apart"):
            form.row_range(start, stop, rows, columns)
    else:
        found = form.row_range(start, stop, rows, columns)
        assert list(range(found.start, found.stop)) == own


@pytest.mark.rule("LAY-16", "LAY-40", "LAY-41")
def test_a_buffer_with_gaps_is_flat_and_a_gap_has_no_index():
    form = Layout("struct", "n(*) b(*): |17 b0 n0")
    assert form.padded_shape(3, 2) == (1, 102)
    assert form.offset(1, 1, columns=2) == 51
    assert form.index(51, columns=2) == (1, 1)
    assert not form.pads_compared
    with pytest.raises(DomainError, match=r"struct.index: offset 52, which is in a gap, need .* \[LAY-41\]"):
        form.index(52, columns=2)


@pytest.mark.rule("LAY-13")
def test_worked_offsets():
    assert Layout("a", GFX950).offset(17, 5, columns=16) == 1 + 2 + 4 + 64
    down = Layout("b", "m(32,4,*) k(4,*): k0 m1 m0 m2 k1")
    assert down.offset(0, 4, columns=8, rows=300) == 3 * 512
    with pytest.raises(ShapeError, match=r"b.offset: no number of rows, need rows="):
        down.offset(0, 4, columns=8)


@pytest.mark.rule("LAY-15", "LAY-43")
def test_refused_sizes_and_fills():
    form = Layout("fixed", "m(32,*) k(4,*): k0 m0 k1 m1; pad m 0x7f; pad k refused")
    with pytest.raises(ShapeError, match=r"fixed.padded_shape: 5 x 3 scales, need a multiple of 4 along k \[LAY-43\]"):
        form.padded_shape(5, 3)
    buffer = form.from_linear(np.full((1, 4), 9, np.uint8))
    assert buffer.tobytes() == bytes([9] * 4 + [0x7F] * 124)


@pytest.mark.rule("LAY-17")
def test_the_high_nibble_first():
    form = Layout("high", "n(*) k(2,*): k0^1 k1 n0; unit 4")
    assert [form.offset(0, k, columns=4) for k in range(4)] == [1, 0, 3, 2]
    assert form.unit == 4
    assert form.unfit_for_scales() == "units of 4 bits, not 8"


def test_units_of_32_bits_and_three_axes():
    form = Layout("fp32", "e(*) m(*) b(*): m0 b0 e0; unit 32; pad m 4 unspecified")
    array = np.arange(2 * 7 * 5, dtype=np.uint32).reshape(2, 7, 5)
    buffer = form.from_linear(array)
    assert buffer.shape == (2, 8, 5)
    assert buffer.reshape(2, 5, 8)[1, 4, 6] == array[1, 6, 4]
    assert form.to_linear(buffer, 2, 7, 5).tobytes() == array.tobytes()
    assert form.unfit_for_scales() == "3 axes, not rows and columns"
    with pytest.raises(DTypeError, match="need uint32"):
        form.from_linear(array.astype(np.uint8))


@pytest.mark.rule("LAY-14", "LAY-16", "LAY-25", "LAY-26", "LAY-28", "LAY-44", "LAY-61")
@pytest.mark.parametrize(
    "text, message",
    [
        ("m(*) k(*)", "need axes, a colon"),
        ("m k(*): k0 m0", "need axes such as"),
        ("m(4,4) k(*): k0 m0 m1", r"need one axis of that name, with radices and one \*"),
        ("m(0,*) k(*): k0 m0 m1", "with radices and one"),
        ("m(*) m(*): m0", "need one axis of that name"),
        ("m(*) k(4,*): k0 m0", r"order 'k0 m0', need every digit of every axis once \[LAY-26\]"),
        ("m(*) k(*): k0 m0 m0", "every digit of every axis once"),
        ("m(*) k(*): k0 j0", "axis 'j', need one of m, k"),
        ("m(*) k(*): k0^1 m0", r"'k0\^1', need a digit of 2\^n values and a constant below that \[LAY-61\]"),
        ("m(*) k(4,*): k0^4 m0 k1", r"constant below that"),
        ("m(*) k(*): k0 |0 m0", "need an alignment above 0"),
        ("m(*) k(8,*): k0 m0 k1; pad k 12", r"'pad k 12', need a multiple of 8 \[LAY-44\]"),
        ("m(*) k(*): k0 m0; pad k 0x1ff", r"padding 0x1ff, need a value of 8 bits"),
        ("m(*) k(*): k0 m0; unit 7", "'unit 7', need pad AXIS, unit BITS, base UNITS, repeat DIGITS or table PLACES"),
        ("m(*) k(*): k0 m0; gap 3", "'gap 3', need"),
    ],
)
def test_texts_that_are_no_layout(text, message):
    with pytest.raises(LayoutError, match=message) as caught:
        Layout("bad", text)
    assert str(caught.value).startswith("layout bad: ")
