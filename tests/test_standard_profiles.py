"""Examples of the chapter on profiles of other implementations, computed."""

from __future__ import annotations

import re

import numpy as np
import pytest

from fp4ref.arithmetic_xla import fused, logarithm
from fp4ref.casts import CASTS
from fp4ref.catalogue import PROMISES, resolve
from fp4ref.conformance.judge.promised import promised
from fp4ref.errors import UnknownNameError
from fp4ref.formats import grid
from fp4ref.reciprocal import reciprocal_approx
from fp4ref.standard import formulas
from standard_rules import rows_of, text_of

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


@pytest.mark.rule("PRO-1")
@pytest.mark.example("PRO-1")
def test_where_profiles_promise_bytes():
    smallest = formulas.value("2688 * 2^-126")
    for cell, *kinds in rows_of("PRO-1"):
        promise = PROMISES[words(cell)[0]]
        for said, claim in zip(kinds, (promise.finite, promise.nan, promise.infinite), strict=True):
            assert claim.holds == said.startswith("yes"), (cell, said)
            if said.startswith("no: "):
                assert said == "no: read, not executed" or claim.reason.startswith(said.removeprefix("no: ")), cell
            assert not said.startswith("no: read") or promise.checked.value == "read"
        if "if the largest" in kinds[0]:
            bound = re.search(r"at least (.*)", kinds[0])[1]
            assert formulas.value(bound) == smallest
            for largest in (smallest, np.nextafter(smallest, F(0))):
                x = np.zeros((16, 16), F)
                x[0, 0] = largest
                assert promised(promise, x) == (largest == smallest)


@pytest.mark.rule("PRO-8")
@pytest.mark.example("PRO-8")
def test_a_logarithm_of_fused_operations():
    random = np.random.default_rng(8)
    x = np.exp2(random.uniform(-120, 120, 4000)).astype(F)
    x[:400] = random.uniform(0.5, 2, 400)
    formula = dict(rows_of("PRO-8"))
    root = F(float(re.search(r"m < fp32\(([\d.]+)\)", formula["m, e"])[1]))
    assert formula["m, e"].startswith("x = m * 2^e with m in [1/2, 1); if")
    assert formula["m, e"].endswith("e is one less")
    m, e = np.frexp(x)
    small = m < root
    names = {"m": m, "e": (e - small).astype(F), "f": fused}
    smaller, larger = words(formula["t"])
    assert F(float(re.search(r"if m < fp32\(([\d.]+)\), else", formula["t"])[1])) == root
    names["t"] = np.where(small, eval(smaller, {}, names), eval(larger, {}, names))
    names["c"] = eval(words(formula["c"])[0], {}, names)
    for number, *constants in rows_of("PRO-8", 1):
        own = {f"p_i{at}": float(each) for at, each in enumerate(constants)}
        names[f"P_{number}"] = eval(words(formula["P_i"])[0], {}, names | own)
    names["y"] = eval(re.sub(r"e \* (\S+)\)", r"e * F(\1))", words(formula["y"])[0]), {"F": F}, names)
    found = eval(words(formula["ln(x)"])[0], {}, names)
    assert np.array_equal(found.view(np.uint32), logarithm(x).view(np.uint32))
    power, ln, scaled, scale = re.search(
        r"For d = (\S+), `ln\(d\)` is (\S+) and `ln\(d\) \* fp32\(1/ln 2\)` is ([-\d.]+), so that its scale is (\S+)\.",
        text_of("PRO-8"),
    ).groups()
    d = np.asarray([formulas.value(power)], F)
    assert logarithm(d)[0] == F(ln)
    assert logarithm(d)[0] * F(1 / np.log(2)) == F(scaled)
    assert 2.0 ** np.ceil(float(scaled)) == formulas.value(scale)
