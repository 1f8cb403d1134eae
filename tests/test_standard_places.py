"""Examples of the rules on evidence for a place, computed with predicates of given lengths."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest

from fp4ref.conformance.diagnosis import place_learning
from fp4ref.conformance.diagnosis.place_learning import joined, likeliest, supported
from fp4ref.conformance.mistakes.places import EVERYWHERE, ROW, Place, Predicate, Units
from fp4ref.standard import formulas
from standard_rules import integers, rows_of

JUST = 1e-6  # of a bit, less or more than suffices


def rows(count, inside):
    """The rows of one tensor, one block wide; the first of them are inside."""
    row = np.arange(count)
    return joined([(Units("float32", "row", 2, count, 16, 16, row, np.zeros(count, np.int64)), row < inside)])


def first(count, bits):
    """A predicate that keeps the first rows, with a description of some bits."""
    return Predicate(f"the first {count} rows", bits, lambda units: units.row < count, ROW)


def most_bits(cell):
    return float(re.match(r"(\d+) bits", cell)[1])


@pytest.mark.rule("CNF-42")
@pytest.mark.example("CNF-42")
def test_evidence_of_a_predicate():
    for cell, ways, bits in rows_of("CNF-42"):
        total, kept = integers(cell)
        number = math.comb(total, kept)
        word = formulas.value(ways) if "^" in ways else int(ways)
        assert math.floor(math.log2(number)) == int(np.log2(np.float64(word)))
        most = math.floor(math.log2(number)) - 3
        assert most == most_bits(bits)
        given = rows(total, kept)
        enough = math.log2(number) - 3
        for described, named in ((most - JUST, True), (enough - JUST, True), (enough + JUST, False)):
            assert supported(Place((first(kept, described),)), given) is named


@pytest.mark.rule("CNF-59")
@pytest.mark.example("CNF-59")
def test_evidence_of_a_place_of_unexplained_differences(monkeypatch):
    def place(keeps, total, differ, bits):
        monkeypatch.setattr(place_learning, "predicates", lambda *_, **__: iter([first(keeps, bits)]))
        return likeliest(rows(total, differ), about_tensor=False)

    for cell, differ, product, bits in rows_of("CNF-59"):
        keeps, total = integers(cell)
        enough = int(differ) * math.log2(total / keeps)
        assert enough == float(product)
        assert most_bits(bits) == enough - 3
        for described, named in ((enough - 3, True), (enough - 3 + JUST, False)):
            assert (place(keeps, total, int(differ), described) is not EVERYWHERE) == named
    assert place(32, 64, 32, 0) is not EVERYWHERE  # half of the units
    assert place(33, 64, 33, 0) is EVERYWHERE  # more than half
