"""Causes in words: what moved, and the order in which causes are told."""

import re

import pytest

from fp4ref.catalogue import PROFILES
from fp4ref.conformance.diagnosis.hypotheses import Hypothesis
from fp4ref.conformance.diagnosis.profile_words import differences
from fp4ref.conformance.diagnosis.ranking import ranked
from fp4ref.conformance.mistakes import MISTAKES
from fp4ref.conformance.mistakes.kernel import kernel_of
from fp4ref.conformance.mistakes.said import moved, of_every, runs
from fp4ref.specs import MXFP4, NVFP4
from standard_rules import rows_of

LATE = "10 12 8 13 9 15 11 14 16 17 18 19 20 21 22 23"


@pytest.mark.example("CNF-88")
@pytest.mark.rule("CNF-88")
@pytest.mark.parametrize(
    ("order", "said"),
    [
        ([1, 0], "rows 2i and 2i + 1 are exchanged"),
        ([1, 0, 3, 2], "rows 2i and 2i + 1 are exchanged"),
        ([2, 3, 0, 1], "rows 2 to 3 of each 4 are stored before 0 to 1"),
        ([3, 2, 1, 0], "rows of each 4 are in reverse order"),
        ([1, 2, 3, 0], "rows of each 4 are stored 1 place further on, around the end"),
        ([3, 0, 1, 2], "rows of each 4 are stored 1 place further back, around the end"),
        ([0, 3, 1, 4, 2, 5], "rows of each 6 are stored as the transpose of a matrix [3, 2]"),
        ([0, 4, 2, 6, 1, 5, 3, 7], "rows of each 8 are stored in bit-reversed order"),
        ([0, 3, 2, 1, 4], "rows 1 and 3 of each 5 are exchanged"),
        ([0, 3, 4, 1, 2, 5], "rows of each 6 stand at other places: 1 to 2 at 3 to 4, 3 to 4 at 1 to 2"),
        ([*range(16), *(i ^ 1 for i in range(16, 32))], "rows 2i and 2i + 1 are exchanged among 16 to 31 of each 32"),
        (
            [*range(8), 10, 12, 8, 14, 9, 11, 15, 13, *range(16, 24), *range(31, 23, -1)],
            f"rows of each 32 are stored in the order {LATE} ..., from place 8 on",
        ),
        ([0, 2, 4, 6, 1, 7, 5, 3], "rows of each 8 are stored in the order 0 4 1 7 2 6 3 5"),
    ],
)
def test_orders_are_told_by_what_moved(order, said):
    assert moved(order, "rows") == said
    (named, instead), _ = rows_of("CNF-88")
    places = [int(place) for place in re.findall(r"order ([\d ]+)", instead)[0].split()]
    assert moved(places, "rows of elements") == named


def test_sets_are_told_as_runs():
    assert runs([3, 1, 2, 7]) == "1 to 3 and 7"
    assert runs([4]) == "4"
    assert of_every([5], 8, "column", "columns") == "misses column 5 of every 8"
    assert of_every(list(range(2, 16)), 16, "column", "columns") == "sees columns 0 to 1 of every 16 only"


def hypotheses(spec, *names):
    base = Hypothesis(kernel_of(spec))
    return [base.but(mistake) for mistake in MISTAKES if mistake.name in names]


@pytest.mark.example("CNF-87")
@pytest.mark.rule("CNF-87")
def test_a_rule_for_special_values_stands_before_a_change_and_a_change_before_a_symptom():
    (cell, order), _ = rows_of("CNF-87")
    assert cell == "a clamp of the global amax; another order of operations"
    assert order.startswith("as written: ")
    found = hypotheses(NVFP4, "scale-zero-1", "amax-floor-1e-12", "encode-fma")
    names = [hypothesis.mistakes[0].name for hypothesis in ranked(found)]
    assert names == ["amax-floor-1e-12", "encode-fma", "scale-zero-1"]
    names = [hypothesis.mistakes[0].name for hypothesis in ranked(found, only_special=True)]
    assert names == ["amax-floor-1e-12", "scale-zero-1"]


@pytest.mark.example("CNF-87")
@pytest.mark.rule("CNF-87")
def test_a_sentence_stands_before_the_name_of_a_profile():
    _, (cell, order) = rows_of("CNF-87")
    name, sentence = cell.replace("`", "").split("; ")
    assert order == "the sentence, then the name of the profile"
    profile = Hypothesis(kernel_of(PROFILES[name]), profile=name)
    found = [profile, *hypotheses(MXFP4, "mx-floor")]
    assert sentence in found[1].mistakes[0].text
    assert [hypothesis.profile for hypothesis in ranked(found)] == [None, name]


@pytest.mark.rule("CNF-28")
@pytest.mark.example("CNF-28")
def test_fewer_mistakes_come_first():
    ((cell, named),) = rows_of("CNF-28")
    names = {"ties away": "element-away", "block scales rounded up": "scale-codec-up"}
    (both,) = (each.split(" and ") for each in cell.split("; ") if " and " in each)
    away, up = (mistake for name in both for mistake in MISTAKES if mistake.name == names[name])
    one = Hypothesis(kernel_of(NVFP4)).but(away)
    assert ranked([one.but(up), one])[0] == one
    assert [mistake.name for mistake in one.mistakes] == [names[named]]


@pytest.mark.rule("CNF-28")
def test_every_profile_is_told_in_words():
    for spec in (NVFP4, MXFP4):
        for profile in PROFILES.values():
            assert (differences(spec, profile) != "") == (profile != spec), profile.name
    said = differences(MXFP4, PROFILES["torchao.mxfp4_floor"])
    assert said.startswith(
        "the block scale: 2^(floor(log2 amax) - emax), from the exponent bits; NaN elements become 0x03"
    )
