"""Examples of the chapter on profiles of other implementations, computed."""

from __future__ import annotations

import re

import numpy as np
import pytest

from fp4ref.casts import CASTS
from fp4ref.catalogue import PROMISES, resolve
from fp4ref.errors import UnknownNameError
from fp4ref.formats import grid
from fp4ref.reciprocal import reciprocal_approx
from fp4ref.standard import formulas
from standard_rules import rows_of

F = np.float32
FLT_MAX = np.finfo(F).max


def words(cell):
    return re.findall("`(.*?)`", cell)


@pytest.mark.rule("PRO-4")
@pytest.mark.example("PRO-4")
def test_versions_in_a_name():
    assert [words(cell) for cell, _ in rows_of("PRO-4")] == [["NAME@VERSION"], ["NAME"], ["NAME@BEGINNING"], []]
    for names, said in rows_of("PRO-4", 1):
        for name in words(names):
            if "an error" in said:
                with pytest.raises(UnknownNameError) as error:
                    resolve(name)
                assert all(version in str(error.value) for version in re.findall(r"[\da-f][\da-f.]{4,}", said))
                continue
            version = re.search(r"that of ([\d.]+\d)", said)[1]
            assert version in PROMISES[resolve(name).name].versions


@pytest.mark.rule("PRO-12")
@pytest.mark.example("PRO-12")
def test_what_a_profile_states():
    for name, versions, checked, kinds in rows_of("PRO-12"):
        promise = PROMISES[words(name)[0]]
        assert [*promise.versions] == versions.split(", ")
        assert promise.checked.value == checked
        claims = {"finite": promise.finite, "NaN": promise.nan, "Inf": promise.infinite}
        assert [kind for kind, claim in claims.items() if claim.holds] == kinds.split(", ")
        assert all(claim.reason for claim in claims.values() if not claim.holds)


@pytest.mark.rule("PRO-9")
@pytest.mark.example("PRO-9")
def test_codes_of_casts():
    rows = rows_of("PRO-9")
    assert {words(row[0])[0] for row in rows} == {name for name in CASTS if "@" not in name}
    nan = np.array([0x7FC00000, 0xFFC00000], np.uint32).view(F)
    for name, release, past, infinite, both in rows:
        cast = CASTS[words(name)[0]]
        assert release in cast.promise.versions

        def code(value, cast=cast):
            return int(np.asarray(cast.encode(F([value])))[0])

        assert [code(FLT_MAX)] == [int(word, 16) for word in words(past)]
        assert [code(np.inf)] == [int(word, 16) for word in words(infinite)]
        assert [code(each) for each in nan] == [int(word, 16) for word in words(both)]
        if cast.format.signed:
            sign = cast.format.sign_bit
            assert code(-FLT_MAX) == code(FLT_MAX) | sign
            values = grid(cast.format).astype(np.float64)
            for below in range(cast.format.codes - 1):  # a tie goes to the even code
                assert code((values[below] + values[below + 1]) / 2) == below + below % 2


@pytest.mark.rule("APX-1")
@pytest.mark.example("APX-1")
def test_approximate_reciprocals():
    for inputs, nearest, approximate in rows_of("APX-1"):
        given = F([formulas.value(cell.strip("` ")) for cell in inputs.split(", ")])
        exact = [formulas.value(cell.strip("` ")) for cell in nearest.split(", ")]
        same = exact if approximate == "the same" else None
        wanted = [formulas.value(cell.strip("` ")) for cell in approximate.split(", ")] if same is None else same
        with np.errstate(all="ignore"):
            assert np.array_equal(F(1) / given, F(exact), equal_nan=True)
        found = reciprocal_approx(given)
        assert np.array_equal(found, F(np.resize(wanted, len(given))), equal_nan=True)
