"""Chapter 08 and the sections of offsets: formulas, tiles, groups and pieces of the named layouts, all computed."""

from __future__ import annotations

import re
from functools import partial

import numpy as np
import pytest

import fp4ref
from covering import few
from fp4ref import packings
from fp4ref.errors import Fp4Error
from fp4ref.layout.field_data import CODES, OTHER_DATA
from fp4ref.layout.field_scales import SCALES
from fp4ref.layout.registry import STANDARD_LAYOUTS
from fp4ref.spec_root import spec_root
from fp4ref.standard import made, offsets
from fp4ref.standard.tables import tables
from standard_rules import RULES, integers, text_of

LAYOUTS = {form.name: form for form in (*STANDARD_LAYOUTS, *(entry.layout for entry in (*SCALES, *OTHER_DATA)))}
PACKINGS = {form.name: form for form in (*packings.STANDARD_PACKINGS, *(entry.layout for entry in CODES))}


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


@pytest.mark.rule("LAY-8", "LAY-9", "LAY-11", "LAY-12")
@pytest.mark.example("LAY-8", "LAY-9", "LAY-11", "LAY-12")
def test_groups_and_pieces_in_the_prose():
    tiled, linear = (
        re.search(r"(?s)members of (.*?) scales start at (.*?); the whole takes(.*?)bytes\. (.*)", text_of("LAY-8")),
        None,
    )
    members = [tuple(map(int, pair)) for pair in re.findall(r"(\d+) × (\d+)", tiled[1])]
    assert LAYOUTS["tiled_128x4"].group_offsets(members) == [*integers(tiled[2]), *integers(tiled[3])]
    linear = integers(tiled[4].split("start at")[1])
    assert LAYOUTS["linear"].group_offsets(members) == linear
    form, columns = LAYOUTS["tiled_128x4"], (8, 3)
    wide = text_of("LAY-9").split("For 300")[1:]
    found = 0
    for part, kb in zip(wide, columns, strict=True):
        assert part.startswith(f" × {kb} scales")
        for start, stop, first, end in re.findall(r"rows? (\d+):(\d+)\s+(?:is|are)\s+bytes\s+(\d+):(\d+)", part):
            assert form.row_range(int(start), int(stop), 300, kb) == slice(int(first), int(end))
            found += 1
    assert found == 4
    for layouts, result in tables(text_of("LAY-11"))[0][1:]:
        names = re.findall("`(.*?)`", layouts)
        call = partial(fp4ref.quantize_grouped, np.ones((6, 16), np.float32), [2, 2, 2], "nvfp4")
        if result == "taken":
            assert len(call(scale_layout=names)) == 3
        else:
            wrong = int(re.fullmatch(r"refused for member (\d)", result)[1])
            with pytest.raises(Fp4Error, match=rf"{names[wrong]} of member {wrong}.*LAY-11"):
                call(scale_layout=names)
    example = text_of("LAY-12").split("With the float32 flag")[1].split(">")[0]
    kept, *rest = re.findall(r"-?\d+(?:\.\d)?", example)
    for word, stays in [(kept, False), *((word, True) for word in rest if word != "8")]:
        flag = np.float32([word]) if "." in word else np.uint8([word])
        out = fp4ref.quantize(np.zeros((1, 16), np.float32), "nvfp4")
        fp4ref.quantize(np.ones((1, 16), np.float32), "nvfp4", out=out, noop=flag)
        assert (out.row.data == 0).all() == stays, word


@pytest.mark.rule("LAY-53")
@pytest.mark.example("LAY-53")
@pytest.mark.parametrize("rows", few([1, 3, 31, 33, 127, 128, 130, 257], 5))
def test_the_ranges_that_the_list_of_pieces_names(rows):
    multiple = int(re.search(r"at most one away from a multiple of (\d+)", " ".join(text_of("LAY-53").split()))[1])
    columns = int(re.search(r"One tile column \(Kb ≤ (\d)\)", text_of("LAY-53"))[1])

    def good(end):
        return end == rows or min(end % multiple, -end % multiple) <= 1

    form = LAYOUTS["tiled_128x4"]
    for kb in (1, columns, columns + 1):
        for start in {*range(0, rows + 1, 1 if rows < 2 * multiple else 7), *filter(good, range(rows + 1))}:
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


def layout_of(shown):
    name = shown.strip("`")
    return LAYOUTS[name] if name in LAYOUTS else fp4ref.Layout("it", name)


@pytest.mark.rule("LAY-51", "LAY-52", "LAY-53")
@pytest.mark.example("LAY-51", "LAY-52", "LAY-53")
def test_ranges_in_the_tables():
    count = 0
    for _, example in tables(text_of("LAY-51"))[0][1:]:
        form = layout_of(re.findall("`(.*?)`", example)[-1])
        for found in re.findall(r"rows (\d+):(\d+) of (\d+) × (\d+)", example):
            with pytest.raises(Fp4Error, match=r"\[LAY-51\]$"):
                form.row_range(*map(int, found))
            count += 1
    assert count == 5
    (name,) = re.findall("`(.*?)`", text_of("LAY-52"))
    start, stop, rows, columns, first, end, *other = integers(re.sub(r"`.*?`", "", text_of("LAY-52").split("\n\n")[1]))
    assert LAYOUTS[name].row_range(start, stop, rows, columns) == slice(first, end) == slice(0, 0)
    assert LAYOUTS[name].row_range(*other) == slice(0, 0)
    head, *cases = tables(text_of("LAY-53"))[0]
    for array, rows, one in cases:
        sizes, ends = integers(array.replace("×", " ")), integers(rows.replace(":", " "))
        if one.startswith("yes"):
            assert layout_of(head[0]).row_range(*ends, *sizes).stop
        else:
            with pytest.raises(Fp4Error, match=r"\[LAY-51\]$"):
                layout_of(head[0]).row_range(*ends, *sizes)


@pytest.mark.rule("LAY-50", "LAY-54", "LAY-55")
@pytest.mark.example("LAY-50", "LAY-54", "LAY-55")
def test_members_of_groups_in_the_tables():
    name, *found = re.search(
        r"In `(.*?)`, members of (\d) × (\d) and (\d) × (\d) scales start at (\d) and (\d+), and scale "
        r"\((\d), (\d)\) of member 1 is stored at (\d+) \+ (\d+) = (\d+)",
        text_of("LAY-50"),
    ).groups()
    rows, columns, other_rows, other_columns, first, second, m, k, start, inside, at = map(int, found)
    starts = LAYOUTS[name].group_offsets([(rows, columns), (other_rows, other_columns)])
    assert starts[:2] == [first, second] == [first, start]
    assert (LAYOUTS[name].offset(m, k, columns=other_columns), start + inside) == (inside, at)
    head, *cases = tables(text_of("LAY-54"))[0]
    form = LAYOUTS[re.search("`(.*?)`", head[0])[1]]
    members = [tuple(map(int, pair)) for pair in re.findall(r"(\d) × (\d)", head[1])]
    for starts, shown, size in cases:
        assert form.group_offsets(members, starts.strip("`")) == [*integers(shown.replace(",", " ")), int(size)]
        assert form.group_offsets([], starts.strip("`")) == [0]
    served = []
    for shown, group, result in tables(text_of("LAY-55"))[0][1:]:
        members = [tuple(map(int, pair)) for pair in re.findall(r"(\d) × (\d)", group)]
        assert bool(members) == (group != "none")
        served.append(result)
        if result == "served":
            assert layout_of(shown).group_offsets(members, "bound")
        else:
            with pytest.raises(Fp4Error, match=r"\[LAY-55\]$"):
                layout_of(shown).group_offsets(members, "bound")
    assert set(served) == {"served", "refused"}


@pytest.mark.rule("LAY-12", "LAY-56", "LAY-57")
@pytest.mark.example("LAY-56", "LAY-57")
def test_flags_in_the_tables():
    def filled(flag):
        out = fp4ref.quantize(np.zeros((1, 16), np.float32), "nvfp4")
        fp4ref.quantize(np.ones((1, 16), np.float32), "nvfp4", out=out, noop=flag)
        return bool((out.row.data != 0).any())

    for shown, result in tables(text_of("LAY-56"))[0][1:]:
        for each in shown.split(", "):
            kind, _, form = each.partition(" ")
            flag = np.zeros((int(form.strip("[]")),) if form.startswith("[") else (), kind)
            if result == "taken":
                assert filled(flag)
            else:
                with pytest.raises(Fp4Error, match=r"\[LAY-56\]$"):
                    filled(flag)
    with pytest.raises(Fp4Error, match=r"\[LAY-56\]$"):
        fp4ref.quantize(np.ones((1, 16), np.float32), "nvfp4", noop=np.zeros(1, np.int32))
    for shown, bits, result in tables(text_of("LAY-57"))[0][1:]:
        kind, value = shown.split()
        flag = np.array([float(value)], kind)
        assert int.from_bytes(flag.astype(flag.dtype.newbyteorder("<")).tobytes(), "little") == int(bits, 16)
        assert filled(flag) == (result == "no")


@pytest.mark.rule("LAY-58")
@pytest.mark.example("LAY-58")
def test_the_axes_of_a_column_direction():
    rows, columns, block, name, high, wide, blocks = re.search(
        r"For an x of (\d+) × (\d+) in blocks of (\d+), `(.*?)` stores (\d+) × (\d) scales: .* one of the (\d) blocks",
        text_of("LAY-58"),
    ).groups()
    q = fp4ref.quantize(np.ones((int(rows), int(columns)), np.float32), "nvfp4", "column", scale_layout=name)
    assert q.spec.block.columns == int(block)
    assert q.column.scales.shape == LAYOUTS[name].padded_shape(int(high), int(wide))
    assert (int(high), int(wide)) == (int(columns), int(rows) // int(block)) == (int(columns), int(blocks))
    assert [axis.name for axis in LAYOUTS[name].axes] == ["k", "b"]


@pytest.mark.rule("LAY-59", "LAY-60")
@pytest.mark.example("LAY-59", "LAY-60")
def test_names_and_shapes_in_the_tables():
    for shown, result in tables(text_of("LAY-59"))[0][1:]:
        name, x = shown.strip("`"), np.ones((1, 16), np.float32)
        if result == "refused":
            with pytest.raises(Fp4Error, match=r"\[LAY-59\]$"):
                fp4ref.quantize(x, "nvfp4", scale_layout=name)
        else:
            assert fp4ref.quantize(x, "nvfp4", scale_layout=name).scale_layout == name
    read = []
    for shown, array, buffer, result in tables(text_of("LAY-60"))[0][1:]:
        sizes, shape = integers(array.replace("×", " ")), integers(buffer.replace(",", " "))
        read.append(result)
        if result == "read":
            assert layout_of(shown).to_linear(np.zeros(shape, np.uint8), *sizes).shape == tuple(sizes)
        else:
            with pytest.raises(Fp4Error, match=r"\[LAY-60\]$"):
                layout_of(shown).to_linear(np.zeros(shape, np.uint8), *sizes)
    assert read == ["read", "refused", "refused"]
