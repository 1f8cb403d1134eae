"""Examples of the chapter on conformance, acted out: what is compared, and the limits of a verdict and a diagnosis."""

from __future__ import annotations

import re
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

import fp4ref
from fp4ref import errors, layout, registry
from fp4ref.conformance.diagnosis import dumps, place_learning, placed, support
from fp4ref.conformance.diagnosis.likely_place import confined
from fp4ref.conformance.diagnosis.measured import near
from fp4ref.conformance.families import cases
from fp4ref.conformance.judge import result_stages
from fp4ref.conformance.judge.blame import Stage, decides
from fp4ref.conformance.judge.cases import judge
from fp4ref.conformance.judge.compare import compare
from fp4ref.conformance.mistakes import MISTAKES
from fp4ref.conformance.run import process, runner
from fp4ref.conformance.run.machine import flush_probe
from fp4ref.conformance.run.runner import run
from fp4ref.conformance.subjects import guards
from fp4ref.conformance.subjects.subject import Subject, cases_of
from fp4ref.conformance.verdict.kernel_report import KernelReport
from fp4ref.formats import Rounding
from fp4ref.specs import NVFP4
from standard_rules import RULES, integers, rows_of, text_of

NUMBERS = dict(zip("two three four eight nine".split(), (2, 3, 4, 8, 9), strict=True))
NAMED = {mistake.text: mistake for mistake in MISTAKES}


def said(rule, pattern):
    """The number, a numeral or a word, that a pattern finds in the first paragraph of a rule."""
    (found,) = re.findall(pattern, " ".join(text_of(rule).split("\n|")[0].split()))
    return NUMBERS.get(found) or int(found)


def words(cell):
    return re.findall("`(.*?)`", cell)


def one(shape):
    """A case of NVFP4 with ones of a shape."""
    case = next(iter(cases(NVFP4, families=["normal"], directions=["row"], dtypes=["float32"])))
    return replace(case, x=np.ones(shape, np.float32))


# Comparing


@pytest.mark.example("CNF-1")
def test_bytes_that_differ_by_the_least():
    amax, code = rows_of("CNF-1")
    other, maximum = (np.array([int(words(cell)[0], 0)], np.uint32).view(np.float32) for cell in amax[:2])
    x = np.zeros((1, 16), np.float32)
    x[0, 0] = maximum[0]
    right = fp4ref.quantize(x, "nvfp4", backend="numpy").row
    found = compare(x, NVFP4, "row", "linear", right._replace(amax=other), right)
    assert (found.amax, found.equal, amax[2]) == (1, False, "differs")
    (got, *_), (expected, *_) = (integers(re.sub("E2M1", "", cell)) for cell in code[:2])
    data = right.data.copy()
    assert data[0, 1] & 15 == expected
    data[0, 1] += got - expected
    found = compare(x, NVFP4, "row", "linear", right._replace(data=data), right)
    assert (found.codes, found.equal, code[2]) == (1, False, "differs")


@pytest.mark.example("CNF-83")
def test_which_nans_are_equal():
    for got, expected, result in rows_of("CNF-83"):
        byte, name = words(got)
        spec = fp4ref.profiles[name]
        x = np.full((1, 16), np.nan, np.float32)
        right = fp4ref.quantize(x, spec, backend="numpy").row
        right = right._replace(scales=np.full_like(right.scales, int(words(expected)[0], 16)))
        wrong = right._replace(scales=np.full_like(right.scales, int(byte, 16)))
        found = compare(x, spec, "row", "linear", wrong, right)
        assert found.equal == (result == "equal")
        assert found.scales == (result != "equal")


@pytest.mark.example("CNF-3")
def test_where_padding_is_compared():
    x = np.random.default_rng(1).standard_normal((3, 37)).astype(np.float32)
    expected = fp4ref.quantize(x, "nvfp4", backend="numpy").row
    for name, byte, result in rows_of("CNF-3"):
        order = words(name)[0]
        right = fp4ref.quantize(x, "nvfp4", scale_layout=order, backend="numpy").row
        padding = np.flatnonzero(~layout.layout(order).valid(*expected.scales.shape).reshape(-1))
        scales = right.scales.copy()
        scales.reshape(-1)[padding[0]] = int(words(byte)[0], 16)
        assert compare(x, NVFP4, "row", order, right, expected).equal
        found = compare(x, NVFP4, "row", order, right._replace(scales=scales), expected)
        assert found.equal == (result == "equal")


@pytest.mark.example("CNF-4")
def test_a_product_that_flushing_makes_zero():
    ((check, right, flushed),) = rows_of("CNF-4")
    factors = [2.0 ** int(power) for power in re.findall(r"2\^(-?\d+)", check)]
    product = np.multiply(*(np.float32([factor]) for factor in factors))
    assert product.view(np.uint32)[0] == int(words(right)[0], 0)
    assert Fraction(float(product[0])) == Fraction(factors[0]) * Fraction(factors[1])
    assert not any(flush_probe())
    assert int(words(flushed)[0], 0) == 0


@pytest.mark.example("CNF-5", "CNF-84")
def test_a_backend_with_and_without_a_name(monkeypatch):
    def missing():
        raise ImportError("no device")

    def no(call):
        return ["no such layout"]

    ((request, result),) = rows_of("CNF-5")
    name = re.search('backend="(.*?)"', request)[1]
    found = dict(registry.backends())
    found[name] = replace(found[name], load=missing)
    monkeypatch.setattr(registry, "backends", lambda: found)
    registry._loaded.cache_clear()
    try:
        x = np.ones((1, 16), np.float32)
        with pytest.raises(getattr(errors, result.split()[0]), match=f"backend {name}: unavailable: .*no device"):
            fp4ref.quantize(x, "nvfp4", backend=name)
        forms = {"": "linear", "a layout that only the golden model serves": "tiled_8x4"}
        for case, kind in rows_of("CNF-84"):
            _, _, form = case.partition(", ")
            call = registry.Call("quantize", NVFP4, layout=layout.layout(forms.get(form, "linear")))
            served = {each: found[each].speed for each in found if each != name and not found[each].reasons(call)}
            usable = [each for each in served if not isinstance(registry._loaded(each), str)]
            if form:
                monkeypatch.setattr(
                    registry,
                    "backends",
                    lambda: {"numpy": found["numpy"], "cpu": replace(found["cpu"], unsupported=no)},
                )
                registry._chosen.cache_clear()
            module = registry._chosen(call, None, registry.registered())
            fastest = max(usable, key=served.get)
            assert module is registry._loaded("numpy" if form else fastest), case
            assert kind == ("the golden model" if form else "a CPU backend")
    finally:
        registry._loaded.cache_clear()


# Limits


@pytest.mark.example("CNF-93")
def test_bytes_of_buffers():
    read = {}
    for parts, first, second in rows_of("CNF-93"):
        for part in parts.split(", "):
            read[part] = int(words(first)[0], 16), int(words(second)[0], 16)
    assert {part: (guards.UNWRITTEN[part], guards.UNWRITTEN_AGAIN[part]) for part in guards.UNWRITTEN} == read
    assert guards.UNWRITTEN.keys() == guards.UNWRITTEN_AGAIN.keys()
    assert all(first != second for first, second in read.values())


@pytest.mark.example("CNF-90")
def test_how_many_tensors_are_diagnosed():
    limit = said("CNF-90", "At most (.*?) differing tensors")
    assert limit == dumps.TENSORS
    assert RULES["CNF-90"].title.startswith(f"At most {next(word for word in NUMBERS if NUMBERS[word] == limit)} ")
    ((differing, verdict),) = rows_of("CNF-90")
    assert integers(differing)[0] - limit == int(re.search(r"not diagnosed: (\d+)", verdict)[1])


@pytest.mark.example("CNF-31")
def test_evidence_for_a_rounding():
    least, each = said("CNF-31", r"at least (\d+) bits"), said("CNF-31", r"counts (\d+) bits")
    assert (least, each) == (support.ENOUGH, support.EXPONENT)
    assert integers(RULES["CNF-31"].title) == [least]

    def bits(number):
        return each + (len(bin(Fraction(number).limit_denominator(1 << 20).numerator).rstrip("0")) - 3)

    (named, other), (_, alone) = rows_of("CNF-31")
    rounding = NAMED[named]
    got, right = map(float, re.findall(r"[\d.]+\d", other))
    assert rounding.rounding(np.float32([right])) == got
    enough = next(count for count in range(1, 9) if count * bits(got) >= least)
    assert enough > 1  # one such maximum tells too little
    assert not support.supported(rounding, np.float32([right]))
    assert support.supported(rounding, np.float32([right, 2 * right]))  # another number, of as many bits
    assert not support.supported(rounding, np.float32([right, right]))
    single = NAMED[alone.split(",")[0]]
    power, maximum = integers(text_of("CNF-31").split("maximum of ")[1])[0], 2.7
    assert f"{power} instead of {maximum}" in text_of("CNF-31")
    assert single.rounding(np.float32([maximum])) == power
    assert not support.supported(single, np.float32([maximum]))


@pytest.mark.example("CNF-26", "CNF-43", "CNF-61", "CNF-73", "CNF-75", "CNF-78")
def test_limits_that_are_one_constant():
    """Numbers that a rule defines and code reads as one constant; what they do is tested where the rule is cited."""
    places = [line for line in text_of("CNF-26").splitlines() if line.startswith("A *place*")]
    assert NUMBERS[re.search("at most (.*?) predicates", places[0])[1]] == place_learning.MOST
    assert (
        said("CNF-43", r"at least (\w+) shapes")
        == said("CNF-43", r"at least (\w+) other shapes")
        == place_learning.SHAPES
    )
    assert said("CNF-43", r"at least (\w+) families") == place_learning.FAMILIES
    assert said("CNF-61", r"at most (\d+) steps") == near.STEPS[-1]
    assert said("CNF-73", "up to (.*?) timeouts") == process.WAITING
    last = rows_of("CNF-73")[-1]
    assert integers(last[1])[0] == 1 + process.WAITING  # of one second each
    assert (said("CNF-75", "After (.*?) hangs"), said("CNF-75", "or (.*?) breakdowns")) == (
        runner.HANGS,
        runner.BREAKDOWNS,
    )
    counts = [row[1].split()[0] for row in rows_of("CNF-75")]
    assert [NUMBERS[count] for count in counts] == [runner.HANGS, runner.BREAKDOWNS]
    sizes = re.findall(r"at most 2\^(\d+)\s+elements", " ".join(text_of("CNF-78").split()))
    assert {1 << int(size) for size in sizes} == {result_stages.LARGE}
    assert len(sizes) == 2
    assert NUMBERS[re.search("within (.*?) float32 steps", text_of("CNF-78"))[1]] == result_stages.NEAR


@pytest.mark.example("CNF-65")
def test_a_place_of_few_blocks():
    assert said("CNF-65", "from (.*?) differing blocks or fewer") == placed.FEW
    rows = integers(rows_of("CNF-65")[1][0])[1]
    for differing, named in rows_of("CNF-65"):
        wrong = np.zeros((rows, 16), bool)
        wrong[-1, : integers(differing)[0]] = True
        assert confined([(one((rows, 256)), wrong)], 16).text == ("" if named == "no place" else named)


@pytest.mark.example("CNF-44")
def test_the_place_of_every_difference():
    (rows, last), (blocks, column) = rows_of("CNF-44")
    count, height = integers(rows)
    wrong = np.zeros((height, 16), bool)
    wrong[-1, :count] = True
    assert f"every difference is {confined([(one((height, 256)), wrong)], 16).text}" == last
    count, width, columns = integers(blocks)
    wrong = np.zeros((count * width // columns, columns), bool)
    wrong[:, width - 1 :: width] = True
    assert f"every difference is {confined([(one(wrong.shape), wrong)], 1).text}" == column


@pytest.mark.example("CNF-60")
def test_a_right_tensor_that_has_the_place_as_well():
    ((tensors, named),) = rows_of("CNF-60")
    first, last, height, other = integers(tensors)
    assert last == height - 1
    seen = [(one((height, 64)), np.indices((height, 4))[0] >= first)]
    chosen, left = named.split(", not: ")
    assert confined(seen, 16).text == left
    assert confined([*seen, (one((other, 64)), np.zeros((other, 4), bool))], 16).text == chosen


# Blame: a kernel of NVFP4 in cases of some families


def model(x, spec="nvfp4", **given):
    q = fp4ref.quantize(x, spec, backend="numpy", **given)
    return q.row.data, q.row.scales, q.row.amax


def failing(kernel, families, **declared):
    """Rules that fail, and all that were counted."""
    subject = Subject.of(kernel, **{"dtypes": ("float32",), **declared})
    report = KernelReport("kernel", NVFP4, subject.declaration)
    chosen = cases_of(subject.declaration, NVFP4, families=families)
    for item in run(subject, (case for case in chosen if case.x.size < 1 << 17)):
        report.add(judge(item.case, item.outcome, subject.declaration, item.expected))
    return {name for name, cell in report.rules.items() if cell.passed < cell.total}, set(report.rules)


def large_amax(x):
    amax = np.abs(np.asarray(x, np.float32)).max(initial=0)
    return model(x, amax=np.nextafter(amax, np.float32(np.inf)).reshape(1))


CUT = NVFP4.replace(name="cut", scale=replace(NVFP4.scale, rounding=Rounding.TRUNCATE))
AWAY = NVFP4.replace(name="away", element=replace(NVFP4.element, rounding=Rounding.AWAY))


def other_layout(x):
    data, scales, amax = model(x, scale_layout="tiled_128x4")
    stored = model(x, scale_layout="tiled_8x4")[1].reshape(-1)
    other = np.zeros(scales.size, np.uint8)
    other[: min(scales.size, stored.size)] = stored[: scales.size]
    return data, other.reshape(scales.shape), amax


def high_first(x):
    data, scales, amax = model(x)
    return data << 4 | data >> 4, scales, amax


KERNELS = {
    "an amax one step too large": (large_amax, {}),
    "scales rounded down, codes for these scales": (lambda x: model(x, CUT), {}),
    "ties away from zero": (lambda x: model(x, AWAY), {}),
    "scales in another layout": (other_layout, {"scale_layout": "tiled_128x4", "multiple": (128, 64)}),
    "high nibble first": (high_first, {"multiple": (1, 2)}),
}


@pytest.mark.example("CNF-24", "CNF-76")
@pytest.mark.parametrize("rule, number", [("CNF-24", 1), ("CNF-76", 0)])
def test_rules_that_kernels_break(rule, number):
    for kernel, fails, passes in rows_of(rule, number):
        function, declared = KERNELS[kernel]
        failed, counted = failing(function, ("normal", "layout", "element-ties"), **declared)
        assert set(fails.split(", ")) <= failed, kernel
        assert not set(passes.split(", ")) & failed, kernel
        assert set(passes.split(", ")) <= counted, kernel


PARTS = {
    "codes of a scaled element that is NaN": {Stage.NAN},
    "codes of a number with the other sign": {Stage.SIGN},
    "other magnitudes of numbers past the largest value": {Stage.SATURATED},
    "other magnitudes of numbers up to the largest value": {Stage.NEAREST},
    "other magnitudes of numbers": {Stage.NEAREST, Stage.SATURATED},
    "the same under a scale of 0": {Stage.ZERO_SCALE},
    "the scale and codes of a block with a subnormal element, and the amax of a tensor with one": {Stage.SUBNORMAL},
    "scales and codes of a tensor whose amax has no finite quotient other than 0": {Stage.SPECIAL_AMAX},
}


@pytest.mark.example("CNF-24")
def test_parts_of_codes_that_rules_decide():
    rows = rows_of("CNF-24")
    for subject, part in rows:
        for rule in re.findall(r"[A-Z0-9]+-\d+", subject):
            assert decides(rule, NVFP4) == PARTS[part], rule
    assert len(rows) == len(PARTS)


@pytest.mark.example("CNF-77")
def test_rules_that_are_not_counted():
    def broken(x):
        raise ValueError("no")

    kernels = {
        "returns data and scales": (lambda x: model(x)[:2], {"outputs": ("data", "scales")}),
        "is given the amax": (lambda x, amax: model(x, amax=amax), {"inputs": ("x", "amax")}),
        "raises in every case": (broken, {}),
    }
    for kernel, rule in rows_of("CNF-77"):
        function, declared = kernels[kernel]
        _, counted = failing(function, ("normal", "nan"), **declared)
        assert counted == set() if rule == "any rule" else rule not in counted and "BLK-3" in counted
