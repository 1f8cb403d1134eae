"""Places: what separates the units of a mistake from the others, in words; and diagnoses that say where."""

import re
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from covering import few
from fp4ref import packing
from fp4ref.conformance.diagnosis.clock import OutOfTimeError
from fp4ref.conformance.diagnosis.diagnose import diagnose
from fp4ref.conformance.diagnosis.displaced import displaced
from fp4ref.conformance.diagnosis.evidence import Item
from fp4ref.conformance.diagnosis.explanations import report_lines, verdict
from fp4ref.conformance.diagnosis.likely_place import confined
from fp4ref.conformance.diagnosis.measured.near import nearness
from fp4ref.conformance.diagnosis.measured.wrong_codes import WrongCodes
from fp4ref.conformance.diagnosis.place_learning import joined, learn, likeliest, roundest
from fp4ref.conformance.diagnosis.placed import PlacedSearch
from fp4ref.conformance.diagnosis.support import supported
from fp4ref.conformance.families import cases
from fp4ref.conformance.mistakes import MISTAKES, Exhibit, kernel_of
from fp4ref.conformance.mistakes.data_readers import LOW_FIRST
from fp4ref.conformance.mistakes.exhibit import EVERY
from fp4ref.conformance.mistakes.places import BLOCK, EVERYWHERE, ROW, Place, Units
from fp4ref.conformance.mistakes.predicates import at_least, residues
from fp4ref.conformance.mistakes.readers import DECLARED
from fp4ref.conformance.mistakes.sides import before_codec, code_side, scale_side
from fp4ref.layout import layout
from fp4ref.model.quantize import quantize
from fp4ref.model.tiles import join
from fp4ref.quantized import DirectionData
from fp4ref.specs import MXINT8, NVFP4
from fp4ref.standard.tables import tables
from standard_rules import rows_of, text_of

NAMES = {mistake.name: mistake for mistake in MISTAKES}
SHAPES = ((1, 16), (16, 31), (33, 34), (130, 64), (64, 48), (5, 127), (129, 33), (257, 160))


def grids(by_element=False, shapes=SHAPES, dtypes=("float32", "bfloat16", "float16"), ranks=(2,), width=16):
    """Every block or element of some tensors."""
    for dtype in dtypes:
        for rank in ranks:
            for rows, columns in shapes:
                steps = 1 if by_element else width
                row, column = (a.ravel() for a in np.mgrid[0:rows, 0 : -(-columns // steps)])
                yield Units(dtype, "row", rank, rows, columns, width, row, column * steps)


def labelled(inside, **settings):
    samples = [(u, np.broadcast_to(inside(u), u.row.shape)) for u in grids(**settings)]
    return joined(samples)


@pytest.mark.rule("CNF-26", "CNF-91")
@pytest.mark.parametrize(
    "inside, text",
    [
        (lambda u: u.dtype == "bfloat16", "in bfloat16 only"),
        (lambda u: u.dtype != "float32", "in bfloat16 and float16 only"),
        (lambda u: u.row % 128 == 127, "where row % 128 == 127"),
        (lambda u: u.row % 2 == 1, "where row % 2 == 1"),
        (lambda u: u.row % 32 >= 16, "where row % 32 >= 16"),
        (lambda u: u.row % 32 < 8, "where row % 32 < 8"),
        (lambda u: (u.row % 32 >= 8) & (u.row % 32 < 16), "where row % 32 is 8 to 15"),
        (lambda u: u.row % 8 != 3, "where row % 8 != 3"),
        (lambda u: (u.row + 1) % 16 < 2, "where row % 16 is 15 or 0"),
        (lambda u: u.row >= 256, "in rows from 256 on"),
        (lambda u: u.row < 64, "in rows before 64"),
        (lambda u: u.row == 0, "in row 0"),
        (lambda u: u.row == u.rows - 1, "in the last row"),
        (lambda u: u.row >= u.rows - 3, "in the last 3 rows"),
        (lambda u: u.row >= u.rows // 32 * 32, "in rows past the last multiple of 32"),
        (lambda u: u.column >= u.columns // 64 * 64, "in columns past the last multiple of 64"),
        (lambda u: (u.columns % 16 != 0) & (u.column >= u.columns // 16 * 16), "in the last, partial block"),
        (lambda u: u.column // 16 % 4 == 3, "where block % 4 == 3"),
        (lambda u: u.column // 16 >= 4, "in blocks from 4 on"),
        (
            lambda u: (u.row * -(-u.columns // 16) + u.column // 16) % 32 == 17,
            "where block number % 32 == 17",
        ),
        (lambda u: u.columns > 100, "in tensors of 127 columns and more only (not with 64)"),
        (lambda u: u.rows <= 5, "in tensors of 5 rows or fewer only (not with 16)"),
        (lambda u: u.columns % 16 != 0, "in tensors whose columns are no multiple of 16 only"),
        (lambda u: (u.dtype == "float16") & (u.row % 4 == 2), "where row % 4 == 2, in float16 only"),
    ],
)
def test_a_place_is_learnt_from_its_units(inside, text):
    place = learn(labelled(inside))
    assert place is not None
    assert place.text == text
    for units in grids():
        assert (place.holds(units) == inside(units)).all()


@pytest.mark.rule("CNF-26")
@pytest.mark.parametrize(
    "inside, text",
    [
        (lambda u: u.column % 8 == 7, "where column % 8 == 7"),
        (lambda u: u.column >= u.columns - 2, "in the last 2 columns"),
        (lambda u: u.column >= u.columns // 4 * 4, "in columns past the last multiple of 4"),
    ],
)
def test_elements_have_places_too(inside, text):
    shapes = ((3, 17), (7, 63), (16, 34), (2, 127))
    place = learn(labelled(inside, by_element=True, shapes=shapes), by_element=True)
    assert place is not None
    assert place.text == text


@pytest.mark.rule("CNF-26", "CNF-43")
@pytest.mark.parametrize(
    "families, shapes, claimed",
    [
        ("one one one one", ((32, 64), (32, 128), (16, 64), (16, 128)), True),
        ("ties ties normal normal", ((32, 64), (32, 128), (16, 64), (16, 128)), False),
        ("ties neighbours normal ragged", ((32, 64), (32, 128), (16, 64), (16, 128)), True),
        ("one one one one", ((32, 64), (32, 64), (16, 64), (16, 128)), False),
        ("one one one one", ((32, 64), (32, 128), (16, 64), (16, 64)), False),
    ],
)
def test_a_size_is_told_from_what_else_tensors_differ_in(families, shapes, claimed):
    """Families of tensors differ in more than their sizes."""
    given = labelled(lambda u: u.rows > 16, shapes=shapes)
    place = learn(given._replace(families=tuple(families.split()) * 3), about_tensor=True)
    assert (None if place is None else place.text) == (
        "in tensors of 32 rows and more only (not with 16)" if claimed else None
    )


@pytest.mark.rule("CNF-26")
def test_tensors_of_more_than_two_dimensions():
    samples = [(u, np.full(u.row.shape, u.rank > 2)) for u in grids(ranks=(2, 3))]
    assert learn(joined(samples)).text == "in tensors of more than two dimensions only"


@pytest.mark.rule("CNF-26", "CNF-42", "CNF-59")
def test_everywhere_is_a_place_and_chance_is_none():
    rng = np.random.default_rng(5)
    assert learn(labelled(lambda u: np.ones(u.row.shape, bool))) is EVERYWHERE
    assert learn(labelled(lambda u: np.zeros(u.row.shape, bool))) is None
    scattered = labelled(lambda u: rng.random(u.row.shape) < 0.05)
    assert learn(scattered) is None
    assert likeliest(scattered, about_tensor=False) is EVERYWHERE
    assert likeliest(scattered, about_tensor=True) is EVERYWHERE


@pytest.mark.rule("CNF-26", "CNF-42")
@pytest.mark.parametrize("row, claimed", [(0, True), (57, False), (101, False)])
def test_a_single_row_is_a_place_only_where_its_description_is_short(row, claimed):
    given = labelled(lambda u: (u.row == row) & (u.column == 0), shapes=((128, 16),), dtypes=("float32",))
    assert (learn(given) is not None) == claimed


@pytest.mark.rule("CNF-59")
def test_where_most_of_a_place_is_right_it_is_found_still():
    rng = np.random.default_rng(6)
    given = labelled(lambda u: (u.row % 128 == 127) & (rng.random(u.row.shape) < 0.5))
    assert likeliest(given, about_tensor=False).text == "where row % 128 == 127"


@pytest.mark.rule("CNF-60")
def test_a_right_tensor_refutes_a_place_of_what_nothing_explains():
    case = next(iter(cases(NVFP4, families=["normal"], directions=["row"], dtypes=["float32"])))
    seen = [(replace(case, x=np.ones((64, 64), np.float32)), np.indices((64, 4))[0] >= 60)]
    assert confined(seen, 16).text == "in the last group of 4 rows"
    right = replace(case, x=np.ones((32, 64), np.float32)), np.zeros((32, 4), bool)  # it has such rows as well
    assert confined([*seen, right], 16).text == "in rows from 60 on"


@pytest.mark.rule("CNF-65")
def test_two_blocks_have_no_place():
    case = next(iter(cases(NVFP4, families=["normal"], directions=["row"], dtypes=["float32"])))
    wrong = np.zeros((128, 16), bool)
    for count, place in ((2, ""), (3, "in the last row")):
        wrong[127, :count] = True
        assert confined([(replace(case, x=np.ones((128, 256), np.float32)), wrong)], 16).text == place


@pytest.mark.rule("CNF-61")
def test_all_that_differs_is_beside_a_boundary():
    x = np.zeros((4, 64), np.float32)
    x[:, 0], x[:, 1:5], x[:, 5] = 6, np.nextafter(np.float32(2.5), np.float32(3)), 4.4
    case = replace(next(iter(cases(NVFP4, families=["normal"], directions=["row"], dtypes=["float32"]))), x=x)
    made = quantize(x, NVFP4)
    codes = packing.unpack(made.data, 64, NVFP4.element.format)
    codes[:, 1:5] -= 1
    for amid, said in ((0, "codes differ only where a scaled element is within 1 steps of float32"), (1, "")):
        codes[0, 5] ^= amid
        data = packing.pack(codes, NVFP4.element.format)
        found = nearness([Item(case, made._replace(data=data), NVFP4, layout("linear"))])
        assert found.startswith(said)
        assert bool(found) == bool(said)


def test_the_roundest_number():
    assert [roundest(*ends) for ends in ((139, 256), (5, 7), (100, 130), (3, 3))] == [256, 6, 128, 3]


def inputs(dtypes, families=("normal", "ragged", "element-ties", "positions")):
    found = cases(NVFP4, dtypes=dtypes, families=families)
    return [case for case in found if case.amax is None and case.x.size]


def merged(inside, names, dtypes=("float32", "bfloat16"), then=()):
    """The bytes of the specification, with those of mistakes in some places instead."""
    evidence = []
    for case in inputs(dtypes):
        row, column = np.indices(case.matrix)
        made = quantize(case.x, NVFP4, "row")
        codes, scales = packing.unpack(made.data, case.matrix[1], NVFP4.element.format), made.scales
        for held, group in ((inside, names), *then):
            kernel = kernel_of(NVFP4)
            for name in group:
                kernel = NAMES[name].apply(kernel)
            side = scale_side(kernel, Exhibit(case), EVERY)
            mask = np.broadcast_to(held(case, row, column), codes.shape)
            codes = np.where(mask, code_side(kernel, side), codes)
            scales = np.where(mask[:, ::16], side.scales, scales)
        data = DirectionData(packing.pack(codes, NVFP4.element.format), scales, made.amax)
        evidence.append((case, data._replace(scales=layout("linear").from_linear(np.ascontiguousarray(scales)))))
    return evidence


def of_bfloat16(case, row, column):
    return case.x.dtype.name == "bfloat16"


@pytest.mark.slow  # a diagnosis each
@pytest.mark.rule("CNF-2", "CNF-26")
@pytest.mark.parametrize(
    "inside, names, text",
    few(
        [
            (of_bfloat16, ("element-away",), "ties go away from zero when elements are rounded, in bfloat16 only"),
            (
                lambda c, row, column: row % 8 == 7,
                ("scale-codec-up",),
                "the block scale is rounded up, where row % 8 == 7",
            ),
            (
                lambda c, row, column: column % 64 >= 32,
                ("sign-nonzero",),
                "the sign is dropped where the code is 0, where column % 64 >= 32",
            ),
            (
                of_bfloat16,
                ("scale-codec-up", "element-truncate"),
                "the block scale is rounded up, in bfloat16 only; elements are truncated, in bfloat16 only",
            ),
        ],
        2,
    ),
)
def test_a_mistake_is_named_with_its_place(inside, names, text):
    found = diagnose(NVFP4, "linear", merged(inside, names))
    assert verdict(found) == text, report_lines(found)
    assert found.explanations[0].place == text.rpartition(", ")[2]
    assert found.to_json()["explanations"][0]["place"] == found.explanations[0].place


@pytest.mark.slow  # a diagnosis
@pytest.mark.rule("CNF-26")
def test_a_cause_that_was_found_is_told_when_the_time_is_over(monkeypatch):
    def place_of(search, hypothesis, found=PlacedSearch.place_of):
        if "element-away" not in {mistake.name for mistake in hypothesis.mistakes}:
            raise OutOfTimeError
        return found(search, hypothesis)

    monkeypatch.setattr(PlacedSearch, "place_of", place_of)
    monkeypatch.setattr(PlacedSearch, "_possible", lambda search: [NAMES["element-away"], NAMES["element-down"]])
    found = diagnose(NVFP4, "linear", merged(of_bfloat16, ("element-away",)))
    assert verdict(found) == "ties go away from zero when elements are rounded, in bfloat16 only"
    assert not found.complete


@pytest.mark.rule("CNF-26")
@pytest.mark.parametrize(
    "place, text",
    [
        (residues(BLOCK, 8, 4, 7), "where column % 128 >= 64"),
        (residues(BLOCK, 8, 7, 7), "where block % 8 == 7"),
        (residues(BLOCK, 4, 3, 0), "where column % 64 is 48 to 63 or 0 to 15"),
        (residues(ROW, 8, 4, 7), "where row % 8 >= 4"),
        (at_least(BLOCK, 8), "in columns from 128 on"),
    ],
)
def test_places_of_elements_are_told_in_columns(place, text):
    tensor = SimpleNamespace(x=np.zeros((9, 300), np.float32), direction="row")
    told = Place((place,)).in_columns(16)
    assert told.text == text
    masks = [each.of_elements(tensor, 16, EVERY, EVERY) for each in (Place((place,)), told)]
    assert np.array_equal(*masks)
    assert masks[0].any()


@pytest.mark.rule("CNF-31")
@pytest.mark.parametrize(
    "name, maxima, told",
    [
        ("amax-down-0", [2.7], False),
        ("amax-down-0", [2.7, 2.9], False),
        ("amax-down-0", [2.7, 13.0, 100.0], True),
        ("amax-down-0", [2.0, 8.0, 64.0], False),
        ("amax-bf16", [2.7, 2.7], True),
        ("amax-bf16", [2.001], False),
        ("amax-row-used", [2.7], True),
    ],
)
def test_few_round_maxima_support_no_rounding(name, maxima, told):
    assert supported(NAMES[name], np.array(maxima, np.float32)) == told


def one_tie():
    """Evidence of a kernel for which elements at 0.75 become 0.5."""
    found = []
    for case in [
        case for case in inputs(("float32", "bfloat16"), ("normal", "element-ties")) if case.direction == "row"
    ]:
        made, side = quantize(case.x, NVFP4, "row"), scale_side(kernel_of(NVFP4), Exhibit(case), EVERY)
        y = np.abs(join(before_codec(kernel_of(NVFP4), side), side.shape))
        codes = packing.unpack(made.data, case.matrix[1], NVFP4.element.format)
        codes = np.where(y == 0.75, codes & 8 | 1, codes).astype(np.uint8)
        found.append((case, DirectionData(packing.pack(codes, NVFP4.element.format), made.scales, made.amax)))
    return found


@pytest.mark.slow
@pytest.mark.rule("CNF-26", "CNF-28")
def test_one_tie_is_named_where_two_families_were_tried():
    found = diagnose(NVFP4, "linear", one_tie())
    assert verdict(found) == "the tie 0.75 becomes 0.5 instead of 1 when elements are rounded"


@pytest.mark.example("CNF-27")
@pytest.mark.slow
@pytest.mark.rule("CNF-27")
def test_two_mistakes_have_a_place_each():
    evidence = merged(
        of_bfloat16, ("element-truncate",), then=((lambda c, row, column: row == 0, ("scale-codec-up",)),)
    )
    first = diagnose(NVFP4, "linear", evidence).explanations[0]
    assert set(first.names) == {"element-truncate", "scale-codec-up"}
    assert {"in rows from 1 on, in bfloat16 only", "in row 0"} == set(first.place.split("; "))
    (two, both), (one, alone) = rows_of("CNF-27")
    assert (both, alone) == ("both, each with its place", "that one alone")
    assert two.endswith(one)


@pytest.mark.slow
@pytest.mark.rule("CNF-92")
def test_a_mistake_everywhere_is_named_without_a_size():
    evidence = merged(lambda case, row, column: True, ("element-away",), ("bfloat16",))
    first = diagnose(NVFP4, "linear", evidence).explanations[0]
    assert (first.names, first.place) == (("element-away",), "")


@pytest.mark.heavy
@pytest.mark.rule("CNF-92")
@pytest.mark.example("CNF-92")
def test_boundaries_that_hold_everywhere_are_named_before_a_size():
    """Ties toward zero in large tensors make the bytes, too: the small ones have another tie, which is right."""
    ((cell, named),) = rows_of("CNF-92")
    height, named_is = int(re.search(r"in tensors of (\d+) rows and more", cell)[1]), named == "a"
    rng, evidence = np.random.default_rng(1), []
    item = next(case for case in inputs(("float32",), ("normal",)) if case.direction == "row")
    for rows in (16, 32, 48, height, 96, 128):
        ties = [0.25, 1.25, 2.5, 3.5, 5] if rows < height else [0.75, 1.75]
        x = rng.uniform(0, 6, (rows, 64)).astype(np.float32)
        x = np.where(rng.random(x.shape) < 0.3, rng.choice(ties, x.shape), x) * rng.choice([-1, 1], x.shape)
        x[:, ::16] = 6  # of each block: its scale is 1
        x[0, :16] = 0
        x[0, 0] = 2688
        case = replace(item, x=np.ascontiguousarray(x.astype(np.float32)))
        made = quantize(case.x, NVFP4, "row")
        codes = packing.unpack(made.data, 64, NVFP4.element.format)
        for tie, code in ((0.75, 1), (1.75, 3)):
            codes = np.where(np.abs(case.x) == tie, codes & 8 | code, codes).astype(np.uint8)
        evidence.append((case, made._replace(data=packing.pack(codes, NVFP4.element.format))))
    first = diagnose(NVFP4, "linear", evidence).explanations[0]
    assert ("the tie 0.75 becomes 0.5, the tie 1.75 becomes 1.5" in first.text) == named_is
    assert (first.place == "") == named_is


@pytest.mark.slow
@pytest.mark.rule("CNF-44")
def test_where_nothing_explains_the_place_is_said():
    rng = np.random.default_rng(9)
    evidence = []
    for case, got in merged(of_bfloat16, ()):
        noise = np.where(rng.random(got.data.shape) < 0.1, rng.integers(1, 256, got.data.shape), 0).astype(np.uint8)
        evidence.append((case, got._replace(data=got.data ^ noise) if of_bfloat16(case, 0, 0) else got))
    found = diagnose(NVFP4, "linear", evidence, budget_seconds=1)
    assert not found.explanations
    assert found.place == found.to_json()["place"] == "in bfloat16 only"
    assert verdict(found).startswith("not explained, in bfloat16 only: bytes first differ at the code")


@pytest.mark.rule("CNF-26")
def test_bytes_of_a_large_tensor_may_be_those_of_another_row():
    """A change of the whole result is compared with tensors of more than four million elements."""
    item = next(case for case in inputs(("float32",), ("normal",)))
    x = np.tile(item.x, (-(-4100 // item.x.shape[0]), 8))[:4100]
    case = replace(item, x=np.ascontiguousarray(x * (1 + np.arange(len(x))[:, None] % 7)).astype(np.float32))
    made = quantize(case.x, NVFP4, "row")
    assert case.x.size > 1 << 22
    at = np.arange(127, len(x), 128)
    data, scales = made.data.copy(), made.scales.copy()
    data[at], scales[at] = made.data[at - 1], made.scales[at - 1]
    moved = {m.name: m for m in displaced(16)}["bytes-of-row-1-before"]
    place = Place((residues(ROW, 128, 127, 127),))
    kernel = moved.at(place).apply(kernel_of(NVFP4))
    wrong = Item(case, made._replace(data=data, scales=scales), NVFP4, layout("linear"))
    assert wrong.matches(kernel, DECLARED, LOW_FIRST, tier=True)
    assert not wrong.equal


@pytest.mark.example("CNF-89")
@pytest.mark.slow
@pytest.mark.rule("CNF-89")
def test_scales_in_the_padding_are_not_called_missing():
    """The four groups of 32 rows of a tile, the last first, seen in tensors of few rows."""
    ((cell, named),) = rows_of("CNF-89")
    assert cell == "the four groups of 32 rows of a tile, the last first"
    assert named == "the order of the groups, not: padding is not 0x00"
    evidence = []
    for case in [case for case in inputs(("float32",), ("normal", "element-ties")) if case.direction == "row"]:
        made = quantize(case.x, NVFP4, "row")
        tiles = layout("tiled_128x4").from_linear(made.scales)
        quarters = np.ascontiguousarray(tiles.reshape(-1, 32, 4, 4)[:, :, ::-1].reshape(tiles.shape))
        evidence.append((case, made._replace(scales=quarters)))
    found = diagnose(NVFP4, "tiled_128x4", evidence, budget_seconds=6)
    assert not any("not written" in explanation.text for explanation in found.explanations), report_lines(found)
    assert found.explanations or found.first_stage == "layout"


def seen_of(x, change):
    """Return what is said of codes [rows, columns] that `change` makes of the right ones and the scaled elements."""
    case = replace(next(iter(cases(NVFP4, families=["normal"], directions=["row"], dtypes=["float32"]))), x=x)
    made = quantize(x, NVFP4)
    codes = packing.unpack(made.data, x.shape[1], NVFP4.element.format)
    changed = change(codes, np.repeat(NVFP4.scale.decode(made.scales), 16, axis=1))
    data = packing.pack(changed.astype(np.uint8), NVFP4.element.format)
    return nearness([Item(case, made._replace(data=data), NVFP4, layout("linear"))])


@pytest.mark.rule("CNF-132")
@pytest.mark.example("CNF-132")
def test_all_wrong_codes_are_ties():
    """Rows have blocks with two scales; 2.5 is a tie in each, and 3.5 is one under 256."""
    scales = np.float32([[448, 256], [192, 128], [64, 32]]).repeat(10, axis=1)
    x = np.zeros((3, 20, 16), np.float32)
    x[:, :, 0], x[:, :, 1:] = 6 * scales, 2.5 * scales[..., None]
    x = x.reshape(3, -1)
    assert np.float32(2688 / np.abs(x).max()) == 1

    def away_under_large_scales(codes, scale):
        return np.where((codes == 4) & (scale >= 128), 5, codes)

    assert (
        seen_of(x, away_under_large_scales)
        == dict(rows_of("CNF-132"))[
            "2.5 becomes 3 under scales of at least 128, 600 times, and stays 2 under 300 smaller ones"
        ]
    )
    assert seen_of(x, lambda codes, scale: np.where(codes == 4, 5, codes)).endswith(
        "(900 codes, and no such tie is right)"
    )
    few = seen_of(x, lambda codes, scale: np.where((codes == 4) & (np.arange(320) % 32 == 1), 5, codes))
    assert few.endswith("goes away from zero (30 codes; 870 other such ties are right)")
    towards = x.copy()
    towards[towards == 2.5 * 256] = 3.5 * 256  # a tie whose even code is the upper one
    told = seen_of(towards, lambda codes, scale: np.where((codes == 6) & (scale == 256), 5, codes))
    assert told == "every wrong code is a tie that goes towards zero (150 codes, and no such tie is right)"

    x[0, 2] = np.float32(2.4) * 448
    changed = seen_of(x, lambda codes, scale: np.where((codes == 4) & (scale >= 128), 5, codes))
    assert "tie" not in changed


@pytest.mark.example("CNF-133")
@pytest.mark.rule("CNF-133")
def test_all_wrong_codes_are_one_code():
    x = np.full((4, 64), 6, np.float32)
    x[:, 1::2] = -1
    said = "every wrong code is 0x8 instead of 0xf (6 codes, of scaled elements of magnitude 6)"
    x[0, 1:12:2] = -6

    def wraps(codes, scale):
        return np.where(codes == 15, 8, codes)

    assert seen_of(x, wraps) == said
    (cell, shown), (other, nothing) = rows_of("CNF-133")
    assert re.sub(r"\(40 codes, .*\)", "(6 codes, of scaled elements of magnitude 6)", shown) == said
    assert cell.startswith("0x8 instead of 0xf, 40 times, of elements from -6.4 to -6.26")
    assert shown.endswith("(40 codes, of scaled elements of magnitude 6.26 to 6.4)")
    assert (other, nothing) == ("one more, 0x1 instead of 0x2", "not that")
    x[0, 13] = 1
    assert seen_of(x, lambda codes, scale: np.where(codes == 2, 3, wraps(codes, scale))) == ""


@pytest.mark.rule("CNF-133")
@pytest.mark.parametrize(
    ("y", "got", "said"),
    [
        ([np.nan, -np.nan, 1], [0x01, 0x01, 0x40], "0x1 instead of 0x7f (2 codes, of numbers that are NaN)"),
        (
            [127 / 64, np.nan, 1],
            [0x01, 0x01, 0x40],
            "0x1 instead of 0x7f (2 codes, of numbers of magnitude 1.984375 or NaN)",
        ),
        (
            [40 / 64, -40 / 64],
            [0x07, -0x07 & 0xFF],
            "0x7 instead of 0x28 or 0xf9 instead of 0xd8 (2 codes, of numbers of magnitude 0.625)",
        ),
        ([40 / 64, -88 / 64], [0x07, -0x79 & 0xFF], ""),
    ],
)
def test_one_code_of_numbers_in_twos_complement_and_of_nan(y, got, said):
    """0x28 becomes 0x07, and 0xa8, which is -88, becomes 0x87: alike but for bit 7, which is no sign alone."""
    seen = WrongCodes(MXINT8.element, "code", "codes", "number")
    seen.add(np.float32(y), np.array(got, np.uint8))
    assert seen.of_pairs == (said and f"every wrong code is {said}")


@pytest.mark.rule("CNF-91")
@pytest.mark.example("CNF-91")
def test_the_shortest_of_several_places():
    (last, of_last), (odd, of_odd) = rows_of("CNF-91")
    assert last == "the last one"
    numbers = [int(word) for word in re.findall(r"\d+", odd)]
    (rows,) = (int(word) for word in re.findall(r"of (\d+)", tables(text_of("CNF-91"))[0][0][0]))
    shapes = ((rows, 64), (rows, 128))
    place = learn(labelled(lambda u: u.row == rows - 1, shapes=shapes))
    assert of_last == f"{place.text}, not: in row {rows - 1}"
    place = learn(labelled(lambda u: np.isin(u.row, range(numbers[0], rows, numbers[1] - numbers[0])), shapes=shapes))
    assert of_odd == place.text


@pytest.mark.rule("CNF-26")
@pytest.mark.example("CNF-26")
def test_the_places_of_the_rule():
    rows = rows_of("CNF-26")
    wrong = [int(row) for row in re.findall(r"in row (\d+)", rows[1][0])]
    of_row = [int(row) for row in re.findall(r"bytes of row (\d+)|, of row (\d+)", rows[1][0])[0] if row]
    place = learn(labelled(lambda u: np.isin(u.row, wrong), shapes=((wrong[-1] + 1, 64), (wrong[-1] + 1, 128))))
    assert rows[1][1] == f"bytes are those of row - {wrong[0] - of_row[0]}, {place.text}"
    first, last, width = map(int, re.search(r"blocks (\d) to (\d) of every eight blocks of (\d+)", rows[2][0]).groups())
    inside = lambda u: np.isin(u.column // width % 8, range(first, last + 1))  # noqa: E731
    place = learn(labelled(inside, shapes=((16, 256), (16, 512))))
    blocks = re.fullmatch(r"where block % 8 >= (\d)", place.text)
    columns = re.search(r"where column % (\d+) >= (\d+)", rows[2][1])
    assert place.text == columns[0] or int(blocks[1]) * width == int(columns[2]) == int(columns[1]) // 2
