"""The examples of chapter 08 and of the sections of offsets: places in the prose, formulas and tiles, all computed."""

from __future__ import annotations

import re

import numpy as np
import pytest

import fp4ref
from fp4ref import packings, rules
from fp4ref.errors import Fp4Error
from fp4ref.layout.field_data import CODES, OTHER_DATA
from fp4ref.layout.field_scales import SCALES
from fp4ref.layout.registry import STANDARD_LAYOUTS
from fp4ref.spec_root import spec_root
from fp4ref.standard import made, offsets
from fp4ref.standard.tables import tables

RULES = rules.defined()
LAYOUTS = {form.name: form for form in (*STANDARD_LAYOUTS, *(entry.layout for entry in (*SCALES, *OTHER_DATA)))}
PACKINGS = {form.name: form for form in (*packings.STANDARD_PACKINGS, *(entry.layout for entry in CODES))}


def text_of(rule):
    return RULES[rule].text


def spans(rule):
    """The code spans of a rule that are texts of layouts."""
    return [span for span in re.findall("`([^`]*)`", text_of(rule)) if re.match(r"[a-z]\(", span)]


def made_rows(name):
    chapters = (path.read_text("utf-8") for path in sorted(spec_root().glob("*.md")))
    parts = {part["name"]: part["text"] for text in chapters for part in made.MADE.finditer(text)}
    return tables(parts[name])[0][1:]


def computed(formula, layout, sizes, index):
    """The value of a formula: quotients are rounded down, and nothing but the functions of the section is known."""
    padded = dict(zip((axis.name for axis in layout.axes), layout.padded(*sizes), strict=True))
    moved = layout.form.table
    known = {
        "size": lambda axis: padded[axis],
        "pad": lambda n, step: -(-n // step) * step,
        "xor": lambda a, b: a ^ b,
        "move": lambda u: u // len(moved) * len(moved) + moved[u % len(moved)],
    }
    names = dict(zip(padded, index, strict=True))
    text = re.sub(r"size\((\w+)\)", r"size('\1')", formula).replace("/", "//")
    return eval(compile(text, formula, "eval"), {"__builtins__": {}}, known | names)


def sizes_of(layout):
    """Whole tiles of each axis, and sizes that are padded where the layout pads."""
    whole = tuple(axis.multiple * 2 for axis in layout.axes)
    ragged = tuple(
        size - (0 if axis.refused else axis.multiple // 2) for size, axis in zip(whole, layout.axes, strict=True)
    )
    return {whole, ragged, tuple(axis.multiple for axis in layout.axes)}


@pytest.mark.rule("LAY-13", "LAY-16", "LAY-17", "LAY-18", "LAY-21", "PACK-7", "PACK-8", "PACK-9")
@pytest.mark.parametrize(
    ("part", "known"),
    [
        ("standard-offsets", {form.name: form for form in STANDARD_LAYOUTS}),
        ("field-offsets", {name: form for name, form in LAYOUTS.items() if form not in STANDARD_LAYOUTS}),
        ("packing-offsets", PACKINGS),
    ],
)
def test_each_formula_of_an_offset_is_the_map(part, known):
    rows = made_rows(part)
    assert [row[0].strip("`") for row in rows] == [*known]
    draw = np.random.default_rng(len(rows))
    for name, formula in ((row[0].strip("`"), row[1].strip("`")) for row in rows):
        layout = known[name]
        for sizes in sizes_of(layout):
            for _ in range(12):
                index = [int(draw.integers(size)) for size in sizes]
                expected = int(layout.offsets(index, sizes))
                assert computed(formula, layout, sizes, index) == expected, (name, sizes, index)


@pytest.mark.rule("LAY-16", "LAY-17", "LAY-19", "LAY-20", "LAY-21")
@pytest.mark.parametrize(
    "text",
    [
        "m(8,*) k(8,*): k0^m0 m0 k1 m1",
        "m(128,*) k(*): k0 m1; repeat m0",
        "m(4,*) k(4,*): |10 k0 m0^3 |3*m k1 m1; base 7*k",
        "n(*,2) k(3,*): k0 n0 k1 n1; base 5; table 2,0,1",
    ],
)
def test_formulas_of_other_texts(text):
    layout = fp4ref.Layout("it", text)
    sizes = tuple(axis.multiple * 3 for axis in layout.axes)
    for index in np.random.default_rng(1).integers(0, sizes, (40, 2)).tolist():
        assert computed(offsets.offset(layout), layout, sizes, index) == int(layout.offsets(index, sizes)), index


@pytest.mark.rule("LAY-3", "LAY-4")
@pytest.mark.example("LAY-3", "LAY-4")
@pytest.mark.parametrize("rule", ["LAY-3", "LAY-4"])
def test_the_lines_of_a_tile_are_what_the_rule_computes(rule):
    formula = re.search(r"(?s)offset\s+`(.*?)`", text_of(rule))[1].replace("/", "//")
    head, *lines = next(table for table in tables(text_of(rule)) if table[0][0] == "line")
    for line in lines:
        for group, cell in zip(head[1:], line[1:], strict=True):
            if not cell:
                continue
            first, last = map(int, re.findall(r"\d+", group))
            row, *columns = map(int, re.findall(r"\d+", cell))
            places = [int(line[0]) * 16 + byte for byte in range(first, last + 1)]
            names = [{"m": row, "k": k, "tiles": 1} for k in range(columns[0], columns[1] + 1)]
            assert places == [eval(formula, {"__builtins__": {}}, each) for each in names]


@pytest.mark.rule("LAY-1", "LAY-2", "LAY-5", "LAY-6", "LAY-7", "LAY-10")
@pytest.mark.example("LAY-1", "LAY-2", "LAY-5", "LAY-6", "LAY-7", "LAY-10")
def test_places_and_padding_in_the_prose():
    for rule, name in (("LAY-1", "linear"), ("LAY-2", "linear_padded")):
        columns = int(re.search(r"Kb = (\d+)", text_of(rule))[1])
        for m, k, offset in re.findall(r"\((\d+), (\d+)\) → (\d+)", text_of(rule)):
            assert LAYOUTS[name].offset(int(m), int(k), columns=columns) == int(offset)
    rows, columns, high, wide, count = map(
        int,
        re.search(
            r"A (\d+) × (\d+) scale array takes (\d+) × (\d+) = (\S+) bytes", text_of("LAY-2").replace(",", "")
        ).groups(),
    )
    assert LAYOUTS["linear_padded"].padded_shape(rows, columns) == (high, wide)
    assert high * wide == count
    rows, columns, size, rest = map(
        int,
        re.search(
            r"(?s)A (\d+) × (\d+) scale array .*?takes (\d+) bytes.*?and (\d+) are 0x00", text_of("LAY-5")
        ).groups(),
    )
    buffer = LAYOUTS["tiled_128x4"].from_linear(np.full((rows, columns), 9, np.uint8)).ravel()
    assert (buffer.size, buffer[0], int((buffer == 0).sum())) == (size, 9, rest)
    poisons = [int(word, 16) for word in re.findall(r"0x(7F|FF)", text_of("LAY-6"))]
    assert len(poisons) == 2
    for poison in poisons:
        form, scales = LAYOUTS["tiled_128x4"], np.arange(30, dtype=np.uint8).reshape(5, 6)
        buffer = form.from_linear(scales)
        assert (form.to_linear(np.where(form.valid(5, 6), buffer, np.uint8(poison)), 5, 6) == scales).all()
    rows, columns = map(int, re.search(r"array of (\d+) × (\d+)", text_of("LAY-7")).groups())
    assert {form.padded_shape(rows, columns) for form in STANDARD_LAYOUTS} == {(rows, columns)}
    assert "three\ndifferent orders" in text_of("LAY-7")
    places = np.indices((rows, columns))
    assert len({form.offset(*places, columns=columns).tobytes() for form in STANDARD_LAYOUTS}) == 3
    side, _, block, _, high, wide = map(
        int, re.findall(r"\d+", text_of("LAY-10").split("A 32", 1)[1].join(["32", ""]))[:6]
    )
    scales = fp4ref.quantize(np.arange(side * side, dtype=np.float32).reshape(side, side), "nvfp4-2d").row.scales
    assert scales.shape == (high, wide)
    assert all((scales[top : top + block] == scales[top]).all() for top in range(0, side, block))


@pytest.mark.rule("LAY-1", "LAY-2", "LAY-3", "LAY-4", "LAY-5", "LAY-6")
@pytest.mark.example("LAY-1", "LAY-2", "LAY-3", "LAY-4", "LAY-5", "LAY-6")
@pytest.mark.parametrize(
    ("rule", "name"),
    [("LAY-1", "linear"), ("LAY-2", "linear_padded"), ("LAY-3", "tiled_128x4"), ("LAY-4", "tiled_8x4")],
)
def test_the_sentences_of_a_named_layout_give_its_buffer(rule, name):
    """Its offset, its shape and the number of tiles across, computed for many sizes; its fill and its title."""
    text, layout = " ".join(text_of(rule).split()), LAYOUTS[name]
    offset = re.search(r"offset `(.*?)`", text)[1].replace("/", "//")
    shape = re.search(r"buffer has the shape (\[.*\])\.(?: |$)", text.split(" For ")[0].split(" The bytes")[0])
    shape = re.match(r"\[.*?\](?=\.)", shape[1] + ".")[0]
    known = {"pad": lambda n, step: -(-n // step) * step}
    for rows, columns in ((1, 1), (5, 9), (127, 3), (128, 4), (129, 5), (300, 21)):
        names = known | {"M": rows, "Kb": columns}
        for word in ("W", "tiles"):
            if given := re.search(rf"[Ww]ith {word} = (pad\(Kb, \d+\)(?: / \d+)?)", text):
                names[word] = eval(given[1].replace("/", "//"), {"__builtins__": {}}, names)
        assert tuple(eval(shape, {"__builtins__": {}}, names)) == layout.padded_shape(rows, columns)
        for m, k in ((0, 0), (rows - 1, columns - 1), (rows // 2, columns // 2)):
            place = eval(offset, {"__builtins__": {}}, names | {"m": m, "k": k})
            assert place == layout.offset(m, k, columns=columns)
    high, wide = layout.tile if "tiled" in name else (0, 0)
    tiles = re.findall(r"(\d+) × (\d+) tiles", RULES[rule].title)
    assert tiles == ([(str(high), str(wide))] if "tiled" in name else [])
    for parts, total in re.findall(r"→ (\d+(?: \+ \d+)+) = (\d+)", text):
        assert sum(map(int, parts.split(" + "))) == int(total)
    lines = re.findall(r"(\d+)-byte lines", text)
    assert set(lines) <= {"16"}
    fills = re.findall(r"(0x\w\w)", text) if rule == "LAY-2" else []
    fills += re.findall(r"shall be (0x\w\w)", text_of("LAY-5")) + re.findall(r"0x\w\w", RULES["LAY-5"].title)
    fills += re.findall(r"if it held (0x\w\w)", " ".join(text_of("LAY-6").split()))
    written = layout.from_linear(np.full((3, 3), 9, np.uint8)).ravel()
    assert {int(fill, 16) for fill in fills} == {0}
    assert set(written) <= {9, 0}


def numbers(text):
    return [int(word.replace(",", "")) for word in re.findall(r"\d[\d,]*\d|\d", text)]


@pytest.mark.rule("LAY-8", "LAY-9", "LAY-11", "LAY-12")
@pytest.mark.example("LAY-8", "LAY-9", "LAY-11", "LAY-12")
def test_groups_and_pieces_in_the_prose():
    tiled, linear = (
        re.search(r"(?s)members of (.*?) scales start at (.*?); the whole takes(.*?)bytes\. (.*)", text_of("LAY-8")),
        None,
    )
    members = [tuple(map(int, pair)) for pair in re.findall(r"(\d+) × (\d+)", tiled[1])]
    assert LAYOUTS["tiled_128x4"].group_offsets(members) == [*numbers(tiled[2]), *numbers(tiled[3])]
    linear = numbers(tiled[4].split("start at")[1])
    assert LAYOUTS["linear"].group_offsets(members) == linear
    form, wide, columns = LAYOUTS["tiled_128x4"], text_of("LAY-9").split("For 300")[1:], (8, 3)
    found = 0
    for part, kb in zip(wide, columns, strict=True):
        assert part.startswith(f" × {kb} scales")
        for start, stop, first, end in re.findall(r"rows? (\d+):(\d+)\s+(?:is|are)\s+bytes\s+(\d+):(\d+)", part):
            assert form.row_range(int(start), int(stop), 300, kb) == slice(int(first), int(end))
            found += 1
        for start, stop in re.findall(r"[Rr]ows (\d+):(\d+) are\s+refused", part):
            with pytest.raises(Fp4Error, match="LAY-9"):
                form.row_range(int(start), int(stop), 300, kb)
            found += 1
    assert found == 6
    names = re.findall("`(.*?)`", text_of("LAY-11").split("Layouts (")[1])
    wrong = int(re.search(r"refused for member (\d)", text_of("LAY-11"))[1])
    with pytest.raises(Fp4Error, match=rf"{names[wrong]} of member {wrong}.*LAY-11"):
        fp4ref.quantize_grouped(np.ones((6, 16), np.float32), [2, 2, 2], "nvfp4", scale_layout=names)
    example = text_of("LAY-12").split("With the float32 flag")[1].split(">")[0]
    kept, *rest = re.findall(r"-?\d+(?:\.\d)?", example)
    for word, stays in [(kept, False), *((word, True) for word in rest if word != "8")]:
        flag = np.float32([word]) if "." in word else np.uint8([word])
        out = fp4ref.quantize(np.zeros((1, 16), np.float32), "nvfp4")
        fp4ref.quantize(np.ones((1, 16), np.float32), "nvfp4", out=out, noop=flag)
        assert (out.row.data == 0).all() == stays, word


def offset_of(text, index, sizes):
    return int(fp4ref.Layout("it", text).offsets(index, sizes))


@pytest.mark.rule("LAY-13", "LAY-15", "LAY-16", "LAY-17", "LAY-19", "LAY-20")
@pytest.mark.example("LAY-15", "LAY-16", "LAY-17", "LAY-19", "LAY-20")
def test_texts_of_layouts_in_the_prose():
    digits, below = (span for span in spans("LAY-13") if span not in {form.text for form in STANDARD_LAYOUTS})
    (m, k, at) = re.search(r"Scale \((\d+), (\d+)\) is stored at .*= (\d+)", text_of("LAY-13")).groups()
    assert offset_of(digits, [int(m), int(k)], (32, 8)) == int(at)
    assert offset_of(below, [0, 4], (300, 8)) == numbers(re.search(r"3 × 512 = (\S+)\.", text_of("LAY-13"))[1])[0]
    (text,) = spans("LAY-15")
    buffer = fp4ref.Layout("it", text).from_linear(np.uint8([[9]])).ravel().tolist()
    shown, count = re.search(r"stored as ((?:[0-9A-F]{2} )+)and then (\d+) bytes 7F", text_of("LAY-15")).groups()
    assert buffer == [int(word, 16) for word in shown.split()] + [0x7F] * int(count)
    (text,) = spans("LAY-16")
    size, at = re.search(r"buffer has (\d+) bytes, and scale\n\(1, 1\) is stored at (\d+)", text_of("LAY-16")).groups()
    assert fp4ref.Layout("it", text).padded_shape(3, 2) == (1, int(size))
    assert fp4ref.Layout("it", text).padded_shape(0, 2) == (1, 0)
    assert offset_of(text, [1, 1], (3, 2)) == int(at)
    (text,) = spans("LAY-17")
    assert [offset_of(text, [0, k], (1, 4)) for k in range(4)] == [1, 0, 3, 2]
    (text,) = spans("LAY-19")
    m, k, at = re.search(r"\((\d), (\d)\) is stored at .* = (\d+)", text_of("LAY-19")).groups()
    assert offset_of(text, [int(m), int(k)], (8, 8)) == int(at)
    text, padded = spans("LAY-20")
    m, k, rows, high, columns, at = numbers(
        re.search(
            r"for each (\d+) rows: \((\d+), (\d)\) of (\d+) × (\d) scales is stored at (\d)", text_of("LAY-20")
        ).expand(r"\2 \3 \1 \4 \5 \6")
    )
    form = fp4ref.Layout("it", text)
    assert offset_of(text, [m, k], (high, columns)) == at
    assert form.from_linear(np.zeros((high, columns), np.uint8)).size == high // rows * columns
    one, first, second, places = re.search(
        r"one scale (\d) is stored as (\d\d) (\d\d): the second place is that of (.*?), and", text_of("LAY-20")
    ).groups()
    form = fp4ref.Layout("it", padded)
    assert form.from_linear(np.uint8([[int(one)]])).tolist() == [[int(first, 16), int(second, 16)]]
    for i, j in re.findall(r"\((\d), (\d)\)", places):
        assert int(form.offsets([int(i), int(j)], (2, 2))) == 1


@pytest.mark.rule("LAY-21")
@pytest.mark.example("LAY-21")
def test_tables_of_runs():
    rows = tables(text_of("LAY-21"))[0][1:]
    for text, array, places, buffer, gaps in rows:
        form = fp4ref.Layout("it", text.strip("`"))
        sizes = tuple(int(word) for word in array.split(" × "))
        at = form.offsets(list(np.indices(sizes)), sizes).ravel().tolist()
        assert at == numbers(places)
        assert list(form.padded_shape(*sizes)) == numbers(buffer.replace(",", " ").strip("[]"))
        units = np.arange(1, 1 + len(at), dtype=np.uint8).reshape(sizes)
        stored = form.from_linear(units).ravel()
        assert stored[at].tolist() == units.ravel().tolist()
        assert np.flatnonzero(stored == 0).tolist() == ([] if gaps == "none" else numbers(gaps))
    words = " ".join(text_of("LAY-21").split())
    begin, place, run, left, right, moved, after, whole = numbers(
        " ".join(
            re.search(
                r"begins at unit (\d), place (\d) of run (\d), which moves to (\d) \+ (\d) = (\d); units is (\d) "
                r"after the last digit, and (\d) in whole runs",
                words,
            ).groups()
        )
    )
    moves = (2, 0, 1)
    assert f"table {','.join(map(str, moves))}`" in rows[2][0]
    assert (run * 3 + place, run * 3, moves[place], left + right) == (begin, left, right, moved)
    assert (2 * begin, -(-after // 3) * 3) == (after, whole)
    end, based = re.search(r"the last run with a padded unit ends at (\d), and at (\d) with the base", words).groups()
    assert (int(end), int(based)) == (-(-4 // 3) * 3, int(end) + 2)
    assert "every run of three units" in words


@pytest.mark.rule("LAY-16", "LAY-17", "LAY-21")
@pytest.mark.parametrize(
    ("text", "size", "places", "units"),
    [
        # k0 is stored as k0 XOR 1 before the table moves it: units 0 to 3 at places 1, 0, 3, 2 of the runs
        ("k(2,*): k0^1 k1; table 1,2,0", 4, [2, 1, 4, 0], 6),
        # the runs begin behind the base
        ("k(*): k0; base 2; table 2,0,1", 4, [4, 2, 3, 7], 8),
        ("k(*): k0; base 3; table 0,1", 15, [*range(3, 18)], 19),
        ("k(2,*): k0^1 |3 k1; base 1; table 2,1,0", 4, [2, 3, 5, 6], 7),
    ],
)
def test_a_table_moves_units_of_flipped_digits_and_behind_a_base(text, size, places, units):
    form = fp4ref.Layout("it", text)
    assert [int(form.offsets([k], (size,))) for k in range(size)] == places
    assert form.padded_shape(size) == (1, units)
    found, inside = form.strides(size).gather(np.arange(units))
    assert [int(found[0][place]) for place in places] == [*range(size)]
    assert inside[places].all()
    buffer = form.from_linear(np.arange(1, size + 1, dtype=np.uint8))
    assert buffer.ravel()[places].tolist() == [*range(1, size + 1)]


@pytest.mark.rule("LAY-20", "LAY-15")
def test_padding_does_not_take_a_place_from_a_unit():
    form = fp4ref.Layout("it", "m(4,*) k(*): k0 m1; repeat m0; pad m 0x7f")
    scales = np.repeat(np.uint8([[1, 2], [3, 4]]), [4, 2], axis=0)
    buffer = form.from_linear(scales)
    assert buffer.tolist() == [[1, 2, 3, 4]]
    assert form.to_linear(buffer, 6, 2).tolist() == scales.tolist()
    assert form.compared(6, 2).all()


@pytest.mark.rule("LAY-9")
@pytest.mark.example("LAY-9")
@pytest.mark.parametrize("rows", [1, 3, 31, 33, 127, 128, 130, 257])
def test_the_ranges_that_the_list_of_pieces_names(rows):
    multiple = int(re.search(r"at most one away from a multiple of (\d+)", text_of("LAY-9"))[1])
    columns = int(re.search(r"One tile column \(Kb ≤ (\d)\)", text_of("LAY-9"))[1])

    def good(end):
        return end == rows or min(end % multiple, -end % multiple) <= 1

    form = LAYOUTS["tiled_128x4"]
    for kb in (1, columns, columns + 1):
        for start in range(rows + 1):
            for stop in range(start, rows + 1):
                whole = start % multiple == 0 and (stop % multiple == 0 or stop == rows)
                single = stop == start + 1 and (stop < rows or rows % multiple == 0)
                listed = start == stop or whole or (kb <= columns and (single or (good(start) and good(stop))))
                try:
                    form.row_range(start, stop, rows, kb)
                    found = True
                except Fp4Error:
                    found = False
                assert found == listed, (kb, start, stop)


@pytest.mark.rule("LAY-21", "LAY-16")
@pytest.mark.parametrize("columns", range(1, 8))
def test_a_run_that_is_not_full(columns):
    """A table moved units past the end of the buffer if the last run was not full."""
    form, scales = fp4ref.Layout("it", "n(*) k(*): k0 n0; table 2,0,1"), np.arange(1, columns + 1, dtype=np.uint8)[None]
    buffer = form.from_linear(scales)
    table = (2, 0, 1)
    expected = [0] * (-(-columns // 3) * 3)
    for k in range(columns):
        expected[k // 3 * 3 + table[k % 3]] = k + 1
    assert buffer.ravel().tolist() == expected
    assert (
        form.to_linear(np.where(form.valid(1, columns), buffer, np.uint8(255)), 1, columns).tolist() == scales.tolist()
    )
    assert int(form.compared(1, columns).sum()) == columns


@pytest.mark.rule("LAY-19", "LAY-17")
@pytest.mark.parametrize("flip", range(8))
@pytest.mark.parametrize("order", ["k0^e0 k1 {} e1", "{} e1 k0^e0 k1", "k1 {} k0^e0 e1"])
def test_a_digit_is_turned_by_one_that_is_flipped(flip, order):
    """Only the lowest bits turned it if the constant leaves some bits of the other digit."""
    form = fp4ref.Layout("it", f"e(8,*) k(16,*): {order.format(f'e0^{flip}')}")
    stride, strides = 1, {}
    for word in order.format("e0").split():
        strides[word[:2]] = stride
        stride *= {"e0": 8, "k0": 16, "e1": 2, "k1": 2}[word[:2]]
    for e in range(16):
        for k in range(32):
            digits = {"e0": e % 8 ^ flip, "k0": k % 16 ^ e % 8, "e1": e // 8, "k1": k // 16}
            assert int(form.offsets([e, k], (16, 32))) == sum(digits[d] * strides[d] for d in digits)
    scales = np.arange(512, dtype=np.uint16).astype(np.uint8).reshape(16, 32)
    assert (form.to_linear(form.from_linear(scales), 16, 32) == scales).all()
