"""The texts of layouts in chapter 08: places in the prose, tables of runs, digits flipped, turned or repeated."""

from __future__ import annotations

import re
from functools import partial

import numpy as np
import pytest

import fp4ref
from fp4ref import packings
from fp4ref.errors import Fp4Error
from fp4ref.layout.registry import STANDARD_LAYOUTS
from fp4ref.standard.tables import tables
from standard_rules import integers, text_of


def spans(rule):
    """The code spans of a rule that are texts of layouts."""
    return [span for span in re.findall("`([^`]*)`", text_of(rule)) if re.match(r"[a-z]\(", span)]


def offset_of(text, index, sizes):
    return int(fp4ref.Layout("it", text).offsets(index, sizes))


@pytest.mark.rule("LAY-13", "LAY-15", "LAY-16", "LAY-17", "LAY-19", "LAY-20", "LAY-48")
@pytest.mark.example("LAY-15", "LAY-16", "LAY-17", "LAY-19", "LAY-20", "LAY-48")
def test_texts_of_layouts_in_the_prose():
    digits, below = (span for span in spans("LAY-13") if span not in {form.text for form in STANDARD_LAYOUTS})
    (m, k, at) = re.search(r"Scale \((\d+), (\d+)\) is stored at .*= (\d+)", text_of("LAY-13")).groups()
    assert offset_of(digits, [int(m), int(k)], (32, 8)) == int(at)
    assert offset_of(below, [0, 4], (300, 8)) == integers(re.search(r"3 × 512 = (\S+)\.", text_of("LAY-13"))[1])[0]
    (text,) = spans("LAY-15")
    buffer = fp4ref.Layout("it", text).from_linear(np.uint8([[9]])).ravel().tolist()
    shown, count = re.search(r"stored as ((?:[0-9A-F]{2} )+)and then (\d+) bytes 7F", text_of("LAY-15")).groups()
    assert buffer == [int(word, 16) for word in shown.split()] + [0x7F] * int(count)
    text = spans("LAY-16")[0]
    size, at = re.search(r"buffer has (\d+) bytes, and scale\n\(1, 1\) is stored at (\d+)", text_of("LAY-16")).groups()
    assert fp4ref.Layout("it", text).padded_shape(3, 2) == (1, int(size))
    assert fp4ref.Layout("it", text).padded_shape(0, 2) == (1, 0)
    assert offset_of(text, [1, 1], (3, 2)) == int(at)
    (text,) = spans("LAY-17")
    assert [offset_of(text, [0, k], (1, 4)) for k in range(4)] == [1, 0, 3, 2]
    m, k, *places = re.search(
        r"\((\d), (\d)\) is stored at \d \* 8 \+ .*? = (\d+)\. .* it is stored at .* = (\d+)\.", text_of("LAY-19")
    ).groups()
    for text, at in zip(spans("LAY-19"), places, strict=True):
        assert offset_of(text, [int(m), int(k)], (8, 8)) == int(at)
    for steps, turned, by, at in re.findall(r"(\d \* 8) \+ \((\d) XOR (\d)\) = (\d+)", text_of("LAY-19")):
        assert int(steps[0]) * 8 + (int(turned) ^ int(by)) == int(at)
    height, width, served = re.search(r"of a (\d+) × (\d+) block serves (\d+) rows", text_of("LAY-20")).groups()
    assert height == width == served == re.search(r"one scale for each (\d+) rows", text_of("LAY-20"))[1]
    (text,), (padded,) = spans("LAY-20"), spans("LAY-48")
    m, k, rows, high, columns, at = integers(
        re.search(
            r"for each (\d+) rows: \((\d+), (\d)\) of (\d+) × (\d) scales is stored at (\d)", text_of("LAY-20")
        ).expand(r"\2 \3 \1 \4 \5 \6")
    )
    form = fp4ref.Layout("it", text)
    assert offset_of(text, [m, k], (high, columns)) == at
    assert form.from_linear(np.zeros((high, columns), np.uint8)).size == high // rows * columns
    one, first, second, places = re.search(
        r"one scale (\d) is stored as (\d\d) (\d\d): .* the second place is that of (.*?), and",
        " ".join(text_of("LAY-48").split()),
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
        assert at == integers(places)
        assert list(form.padded_shape(*sizes)) == integers(buffer.replace(",", " ").strip("[]"))
        units = np.arange(1, 1 + len(at), dtype=np.uint8).reshape(sizes)
        stored = form.from_linear(units).ravel()
        assert stored[at].tolist() == units.ravel().tolist()
        assert np.flatnonzero(stored == 0).tolist() == ([] if gaps == "none" else integers(gaps))
    words = " ".join(text_of("LAY-21").split())
    begin, place, run, left, right, moved, after, whole = integers(
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


@pytest.mark.rule("LAY-17", "LAY-21", "LAY-39", "LAY-40")
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


@pytest.mark.rule("LAY-48", "LAY-15")
def test_padding_does_not_take_a_place_from_a_unit():
    form = fp4ref.Layout("it", "m(4,*) k(*): k0 m1; repeat m0; pad m 0x7f")
    scales = np.repeat(np.uint8([[1, 2], [3, 4]]), [4, 2], axis=0)
    buffer = form.from_linear(scales)
    assert buffer.tolist() == [[1, 2, 3, 4]]
    assert form.to_linear(buffer, 6, 2).tolist() == scales.tolist()
    assert form.compared(6, 2).all()


@pytest.mark.rule("LAY-21", "LAY-40")
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


@pytest.mark.rule("LAY-14", "LAY-20", "LAY-23", "LAY-61")
@pytest.mark.parametrize(
    "text",
    [
        "m(\u0662,*) k(*): k0 m0 m1",
        "m(*) k(*): k0 m0; unit \u00b2",
        f"m({'9' * 1001},*) k(*): k0 m0 m1",
        "m(2,*) k(4,*): m0 k1 m1; repeat k0^m0",
        "m(2,*) k(4,*): m0 k1 m1; repeat k0^1",
        "m(*) k(*): k0^1 m0",
    ],
)
def test_texts_that_the_grammar_excludes(text):
    with pytest.raises(Fp4Error, match=r"LAY-(14|61|23)\]"):
        fp4ref.Layout("it", text)


@pytest.mark.rule("LAY-14", "LAY-16", "LAY-17", "LAY-20", "LAY-23", "LAY-26", "LAY-40")
@pytest.mark.parametrize(
    ("text", "size", "places", "units"),
    [
        ("m(*): ; repeat m0", 3, [0, 0, 0], 1),
        ("m(*): |4; repeat m0", 3, [0, 0, 0], 4),
        ("m(*): m0^0", 3, [0, 1, 2], 3),
        (f"m({'0' * 999}2,*): |2 |3 m0 m1", 3, [0, 3, 6], 12),
    ],
)
def test_texts_at_the_edge_of_the_grammar(text, size, places, units):
    form = fp4ref.Layout("it", text)
    assert [int(form.offsets([m], (size,))) for m in range(size)] == places
    assert form.from_linear(np.zeros(size, np.uint8)).size == units


GRAMMAR = ("LAY-14", "LAY-16", "LAY-23", "LAY-24", "LAY-25", "LAY-26", "LAY-27", "LAY-44", "LAY-49", "LAY-61", "LAY-62")


@pytest.mark.rule(
    "LAY-14", "LAY-16", "LAY-23", "LAY-24", "LAY-25", "LAY-26", "LAY-27", "LAY-44", "LAY-49", "LAY-61", "LAY-62"
)
@pytest.mark.example(
    "LAY-14", "LAY-16", "LAY-23", "LAY-24", "LAY-25", "LAY-26", "LAY-27", "LAY-44", "LAY-49", "LAY-61", "LAY-62"
)
@pytest.mark.parametrize("rule", GRAMMAR)
def test_texts_that_the_rules_of_the_grammar_show(rule):
    """Each is a layout, the same layout as another text, or refused by its rule or by that of the whole grammar."""
    results = set()
    for shown, result in next(rows[1:] for rows in tables(text_of(rule)) if rows[0] == ["text", "result"]):
        text = shown.strip("`")
        if result.startswith("refused"):
            with pytest.raises(Fp4Error, match=rf"\[({rule}|LAY-14)\]$"):
                fp4ref.Layout("it", text)
        elif result == "a layout":
            assert fp4ref.Layout("it", text)
        else:
            same = re.fullmatch("the same as `(.*)`", result)[1]
            assert same != text
            assert fp4ref.Layout("it", text) == fp4ref.Layout("it", same)
        results.add(result.split()[0].strip(","))
    assert {"refused"} < results
    numbers_in_words = {"LAY-14": "1 to 8", "LAY-23": "1 to 1,000", "LAY-25": "at least 1"}
    assert numbers_in_words.get(rule, "") in text_of(rule)
    for digits, known in ((1000, True), (1001, False)) if rule == "LAY-23" else ():
        text = f"m({'0' * (digits - 1)}4,*): m0 m1"
        if known:
            assert fp4ref.Layout("it", text).text == "m(4,*): m0 m1"
        else:
            with pytest.raises(Fp4Error, match=rule):
                fp4ref.Layout("it", text)
    for digits, known in ((8, True), (9, False)) if rule == "LAY-14" else ():
        text = f"m(4,*): m0 m1; unit 32; pad m 0x{'1' * digits}"
        if known:
            assert fp4ref.Layout("it", text).text == text
        else:
            with pytest.raises(Fp4Error, match=rule):
                fp4ref.Layout("it", text)


@pytest.mark.rule("LAY-28", "LAY-29", "LAY-39")
@pytest.mark.example("LAY-28", "LAY-29", "LAY-39")
def test_what_clauses_say_and_what_is_printed():
    text = re.search(r"`(n\(\*\) h\(\*\).*?)`", text_of("LAY-39"))[1]
    n, h, i, j, factor, size, at = integers(
        " ".join(
            re.search(
                r"and (\d) × (\d) units, unit \((\d), (\d)\) is stored at (\d+) × (\d) = (\d+)", text_of("LAY-39")
            ).groups()
        )
    )
    assert offset_of(text, [i, j], (n, h)) == at == factor * size
    assert fp4ref.Layout("it", "m(*): m0; base 0*m").form.base.number == 0
    assert not fp4ref.Layout("it", "m(*): m0; base 0").has_gaps
    assert fp4ref.Layout("it", "n(*) h(*): h0 n0; base 2*h").padded_shape(3, 0) == (1, 0)
    clauses = {row[0].strip("`"): row[1:] for row in tables(text_of("LAY-28"))[0][1:]}
    assert fp4ref.Layout("it", "m(*): m0").unit == int(clauses["unit w"][1])
    with pytest.raises(Fp4Error, match=r"LAY-28\]$"):
        fp4ref.Layout("it", "m(*): m0; unit 3")
    assert len(next(clause for clause in clauses if clause.startswith("table")).split(",")) == 3
    given, printed = re.findall("`(.*?)`", text_of("LAY-29"))
    assert fp4ref.Layout("it", given).text == printed


def digits_of(index, radices):
    """The digits of an index, fastest first, each a quotient's remainder."""
    return [index // int(np.prod(radices[:i])) % radix for i, radix in enumerate(radices)]


@pytest.mark.rule("LAY-30", "LAY-31")
@pytest.mark.example("LAY-30", "LAY-31")
def test_digits_and_rests_in_the_prose():
    words = " ".join(text_of("LAY-30").split())
    ((m, *of_m), (k, *of_k)) = (
        integers(" ".join(found))
        for found in re.findall(r"[Ii]ndex (\d+) of [mk](?: has)? the digits (\d), (\d) and (\d)", words)
    )
    assert (digits_of(m, (16, 2, 3)), digits_of(k, (4, 2, 3))) == (of_m, of_k)
    words = " ".join(text_of("LAY-31").split())
    found = re.search(
        r"With (\d+) rows, the rest of .*? takes (\d+) / \((\d+) \* (\d+)\) = (\d) values, so that n2 is n / (\d+): "
        r"row (\d+) has the digits (\d), (\d) and (\d)",
        words,
    )
    rows, size, first, last, count, weight, row, *shown = map(int, found.groups())
    assert (rows, size // (first * last), first * count) == (size, count, weight)
    assert digits_of(row, (first, count, last)) == shown
    form = fp4ref.Layout("it", "n(16,*,2) b(*): b0 n0 n1 n2")
    assert [(digit.radix, form.strides(rows, 1).place(0, i)) for i, digit in enumerate(form.digits(rows, 1)[0])] == [
        (16, 1),
        (count, 16),
        (2, weight),
    ]


@pytest.mark.rule("LAY-32", "LAY-33", "LAY-36")
@pytest.mark.example("LAY-32", "LAY-33", "LAY-36")
def test_sizes_and_shapes_in_the_prose():
    text, wrong = re.search(
        r"`(e\(.*?)` takes three sizes, such as 1 × 8 × 4, and not (.*?)\.", text_of("LAY-32")
    ).groups()
    form = fp4ref.Layout("it", text)
    assert form.padded_shape(1, 8, 4) == (1, 8, 4)
    for sizes in wrong.split(" or "):
        with pytest.raises(Fp4Error, match=r"\[LAY-32\]$"):
            form.padded_shape(*map(int, sizes.split(" × ")))
    for name, array, shape in tables(text_of("LAY-33"))[0][1:]:
        sizes = tuple(int(word) for word in array.split(" × "))
        form = fp4ref.LAYOUTS[name.strip("`")]
        assert list(form.padded_shape(*sizes)) == integers(shape.replace(",", " "))
        assert form.from_linear(np.ones(sizes, np.uint8)).size == np.prod(form.padded_shape(*sizes))
    name, axes, start, stop = re.search(
        r"`(.*?)`, which has (\d) axes, has no range such as rows (\d):(\d)", text_of("LAY-36")
    ).groups()
    form = fp4ref.LAYOUTS[name]
    assert len(form.axes) == int(axes)
    for call in (lambda: form.row_range(int(start), int(stop), 8, 4), lambda: form.group_offsets([(8, 4)])):
        with pytest.raises(Fp4Error, match=r"\[LAY-36\]$"):
            call()


@pytest.mark.rule("LAY-34", "LAY-35")
@pytest.mark.example("LAY-34", "LAY-35")
def test_the_bits_of_units_and_the_bytes_of_a_buffer():
    rows = tables(text_of("LAY-34"))[0][1:]
    for width, shown, stored in rows:
        w, units = int(width), [int(unit) for unit in shown.split()]
        expected = bytes.fromhex(stored.strip("`"))
        bits = sum(unit << u * w for u, unit in enumerate(units))
        assert bits.to_bytes(-(-len(units) * w // 8), "little") == expected
        form = fp4ref.Layout("it", f"n(*) k(*): n0 k0; unit {w}")
        if w >= 16:
            assert form.from_linear(np.array([units], f"uint{w}")).astype(f"<u{w // 8}").tobytes() == expected
        elif w in (4, 6):
            assert packings.packed_shape(form, 1, len(units)) == (1, len(expected))
            places = [packings.bit_of(form, (1, len(units)), 0, u) for u in range(len(units))]
            assert [8 * byte + bit for byte, bit in places] == [w * u for u in range(len(units))]
    counts = re.search(
        r"Three units of (\d) bits take (\d) bytes, four take (\d), and five take (\d)", text_of("LAY-35")
    )
    w, *taken = map(int, counts.groups())
    form = fp4ref.Layout("it", f"n(*) k(*): n0 k0; unit {w}")
    for count, size in zip((3, 4, 5), taken, strict=True):
        assert packings.packed_shape(form, 1, count) == (1, size) == (1, -(-count * w // 8))


@pytest.mark.rule("LAY-42", "LAY-43", "LAY-45")
@pytest.mark.example("LAY-42", "LAY-43", "LAY-45")
def test_paddings_of_axes_in_the_prose():
    for shown, size, padded in tables(text_of("LAY-45"))[0][1:]:
        axis, *clause = re.findall("`(.*?)`", shown)
        digits = "m0" if axis == "m(*)" else "m0 m1"
        form = fp4ref.Layout("it", "; ".join([f"{axis}: {digits}", *clause]))
        assert form.padded(int(size)) == (int(padded),)
    text, one, stored = re.search(r"With `(.*?)`, one scale (\d) is stored as ([\d ]+)\.", text_of("LAY-42")).groups()
    assert fp4ref.Layout("it", text).from_linear(np.uint8([[int(one)]])).tobytes() == bytes.fromhex(stored)
    head, *cases = tables(text_of("LAY-43"))[0]
    form, results = fp4ref.LAYOUTS[head[0].strip("`")], set()
    for case, result in cases:
        sizes = [tuple(map(int, pair)) for pair in re.findall(r"(\d+) × (\d+)", case)]
        if case.startswith("a group"):
            calls = [partial(form.group_offsets, sizes, starts) for starts in re.findall("`(.*?)`", case)]
        elif case.startswith("rows"):
            start, stop = map(int, re.match(r"rows (\d+):(\d+)", case).groups())
            calls = [partial(form.row_range, start, stop, *sizes[0])]
        else:
            calls = [partial(form.from_linear, np.zeros(sizes[0], np.uint8))]
        for call in calls:
            if result == "refused":
                with pytest.raises(Fp4Error, match=r"\[LAY-43\]$"):
                    call()
            else:
                call()
        results.add((result, len(calls)))
    assert results == {("stored", 1), ("refused", 1), ("refused", 2)}


@pytest.mark.rule("LAY-37", "LAY-38", "LAY-2", "LAY-15", "LAY-16")
@pytest.mark.example("LAY-37", "LAY-38")
def test_unspecified_units_in_the_prose():
    for shown, array, units, compared in tables(text_of("LAY-37"))[0][1:]:
        name, sizes = shown.strip("`"), tuple(int(word) for word in array.split(" × "))
        form = fp4ref.LAYOUTS[name] if name in fp4ref.LAYOUTS else fp4ref.Layout("it", name)
        mask = form.compared(*sizes)
        assert (mask.size, int(mask.sum())) == (*integers(units), int(compared)) == (mask.size, np.prod(sizes))
    one, name, first, rest, fill = re.search(
        r"One scale (\d) is stored in `(.*?)` as (\d\d) and then (\d+) bytes (\d\d)", text_of("LAY-38")
    ).groups()
    buffer = fp4ref.LAYOUTS[name].from_linear(np.uint8([[int(one)]]))
    assert buffer.tobytes() == bytes([int(first, 16)]) + bytes([int(fill, 16)]) * int(rest)


@pytest.mark.rule("LAY-40", "LAY-16", "LAY-20", "LAY-21", "LAY-39")
@pytest.mark.example("LAY-40")
def test_the_units_of_a_buffer_that_is_one_row():
    """The two counts of each row of the table from digits that are written out here, and the buffer's shape."""
    table = {row[0].strip("`"): row[1:] for row in tables(text_of("LAY-40"))[0][1:] if row[2][0] != "n"}
    assert len(table) == 6
    for text, (array, counts, shape) in table.items():
        sizes = tuple(int(word) for word in array.split(" × "))
        order, *clauses = text.partition(": ")[2].split("; ")
        stride, end = 1, 1
        values = {"n0": sizes[0], "k0": sizes[1], "b0": sizes[1], "m1": sizes[0] // 128}
        for item in order.split():
            if item[0] == "|":
                stride = -(-stride // int(item[1:])) * int(item[1:])
            else:
                end += (values[item] - 1) * stride
                stride *= values[item]
        run = 3 if any(clause.startswith("table 2,0,1") for clause in clauses) else 1
        base = next((int(clause[5:]) for clause in clauses if clause.startswith("base ")), 0)
        expected = [-(-stride // run) * run, -(-end // run) * run + base]
        assert integers(counts.replace(",", " ")) == expected
        form = fp4ref.Layout("it", text)
        assert form.padded_shape(*sizes) == (1, max(expected))
        assert integers(shape.replace(",", " ")) == [1, max(expected)]
    assert "units is 0 if an axis has the size 0" in text_of("LAY-40")
    empty = [row for row in tables(text_of("LAY-40"))[0][1:] if row[2].startswith("none")]
    assert len(empty) == 2
    for text, array, _, shape in empty:
        sizes = tuple(int(word) for word in array.split(" × "))
        found = fp4ref.Layout("it", text.strip("`")).padded_shape(*sizes)
        assert list(found) == integers(shape.replace(",", " "))


@pytest.mark.rule("LAY-41", "LAY-46", "LAY-47")
@pytest.mark.example("LAY-41", "LAY-46", "LAY-47")
def test_gaps_and_shared_places_in_the_prose():
    text, *found = re.search(
        r"In `(.*?)` with (\d) × (\d) scales, offset (\d+) has the index \((\d), (\d)\), and (\d+) has none",
        text_of("LAY-41"),
    ).groups()
    rows, columns, offset, m, k, gap = map(int, found)
    form = fp4ref.Layout("it", text)
    assert form.index(offset, columns, rows) == (m, k)
    with pytest.raises(Fp4Error, match=r"\[LAY-41\]$"):
        form.index(gap, columns, rows)
    (head, _), *cases = tables(text_of("LAY-46"))[0]
    rows, columns, text = re.fullmatch(r"(\d+) × (\d+) scales in `(.*)`", head).groups()
    form, results = fp4ref.Layout("it", text), [result for _, result in cases]
    assert sorted(results) == ["refused", "written"]
    for words, result in cases:
        scales = np.zeros((int(rows), int(columns)), np.uint8)
        for part in re.findall(r"\d+ at [^a-z]+(?:to [^a-z]+)?", words):
            value, m, k, *last = integers(part.replace(",", " "))
            scales[m : (last[0] if last else m) + 1, k] = value
        if result == "written":
            assert form.to_linear(form.from_linear(scales), *scales.shape).tolist() == scales.tolist()
        else:
            with pytest.raises(Fp4Error, match=r"\[LAY-46\]$"):
                form.from_linear(scales)
    text, *found = re.search(
        r"In `(.*?)` with (\d+) × (\d) scales, the index of offset (\d) is \((\d+), (\d)\)", text_of("LAY-47")
    ).groups()
    rows, columns, offset, m, k = map(int, found)
    assert fp4ref.Layout("it", text).index(offset, columns, rows) == (m, k)
