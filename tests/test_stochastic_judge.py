from __future__ import annotations

import json
from fractions import Fraction
from math import comb

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fp4ref
from covering import few
from fp4ref import DomainError, ShapeError
from fp4ref.conformance.judge import hypergeometric
from fp4ref.conformance.judge.binomial import interval, upper_tail
from fp4ref.conformance.judge.stochastic import rounded
from fp4ref.conformance.verdict.stochastic import Level, StochasticTrial, aimed_inputs, judge_stochastic
from fp4ref.formats import CUDA_E2M1, STOCHASTIC_E2M1
from fp4ref.model.quantize import quantize

SPEC = fp4ref.NVFP4.replace(name="nvfp4-sr", element=STOCHASTIC_E2M1)
TILES = fp4ref.NVFP4_2D.replace(name="nvfp4-2d-sr", element=STOCHASTIC_E2M1)
HADAMARD = fp4ref.NVFP4_RHT.replace(name="nvfp4-rht-sr", element=STOCHASTIC_E2M1)
BOTH = ("row", "column")


def exact_tail(count, n, p):
    """P(X >= count), in rationals."""
    p = Fraction(p)
    return sum((comb(n, k) * p**k * (1 - p) ** (n - k) for k in range(max(count, 0), n + 1)), Fraction(0))


@pytest.mark.rule("SR-11")
@given(n=st.integers(0, 300), data=st.data(), p=st.integers(0, 256))
def test_a_tail_is_bounded_from_above_and_tightly(n, data, p):
    count = data.draw(st.integers(0, n + 1))
    true = exact_tail(count, n, Fraction(p, 256))
    got = upper_tail(count, n, p / 256)
    assert got >= true
    if 256 * count > n * p + 256:  # beyond the mean it is the tail itself
        assert got <= max(true, Fraction(1, 2**1000)) * (1 + Fraction(1, 10**4))


@pytest.mark.sampled(3)
@pytest.mark.rule("SR-11")
@pytest.mark.parametrize("n, p", [(1000, Fraction(1, 256)), (2000, Fraction(1, 2)), (500, Fraction(255, 256))])
def test_an_interval_leaves_out_less_than_alpha_and_no_more_than_it_must(n, p):
    alpha = Fraction(1, 10**12)
    low, high = interval(n, float(p), float(p), float(alpha))
    above = exact_tail(high + 1, n, p)
    below = exact_tail(n - low + 1, n, 1 - p)
    assert above < alpha / 2
    assert below < alpha / 2
    assert high == n or exact_tail(high, n, p) > alpha / 2 * Fraction(999, 1000)
    assert low == 0 or exact_tail(n - low, n, 1 - p) > alpha / 2 * Fraction(999, 1000)


@pytest.mark.rule("SR-11")
def test_an_interval_of_unlike_trials_holds_those_of_both_bounds():
    mixed, low, high = interval(900, 0.25, 0.75, 1e-9), interval(900, 0.25, 0.25, 1e-9), interval(900, 0.75, 0.75, 1e-9)
    assert mixed == (low[0], high[1])
    assert interval(0, 0.5, 0.5, 1e-9) == (0, 0)
    assert interval(50, 0.0, 0.0, 1e-9) == (0, 0)
    assert interval(50, 1.0, 1.0, 1e-9) == (50, 50)
    assert interval(1000, 0.5, 0.5, 1e-12) == (388, 612)
    assert interval(2000, 15 / 256, 15 / 256, 1e-12) == (50, 199)


def trials(spec, draw, directions=BOTH, dtype="bfloat16", encode=None):
    """Calls of a kernel that draws its bits by draw(call, shape, direction)."""
    for number, x in enumerate(aimed_inputs(dtype)):
        made = {}
        for direction in directions:
            shape = x.shape if direction == "row" else x.shape[::-1]
            made[direction] = quantize(x, spec, direction, random_bits=draw(number, shape, direction))
        yield StochasticTrial(x, made)


def own(number, shape, direction):
    return fp4ref.random_bits(shape if direction == "row" else shape[::-1], direction, seed=11, stream=number)


@pytest.mark.sampled(3)
@pytest.mark.rule("SR-11")
@pytest.mark.parametrize("dtype", ["bfloat16", *few(["float16", "float32"], 0)])
@pytest.mark.parametrize("spec", [SPEC, TILES, HADAMARD], ids=lambda s: s.name)
def test_a_right_kernel_passes_at_the_level_bracket(spec, dtype):
    if spec is HADAMARD and dtype != "bfloat16":
        return
    report = judge_stochastic(spec, trials(spec, own, dtype=dtype))
    assert report.ok, report.headline
    assert report.level is Level.BRACKET
    assert "level bracket" in report.headline
    assert "1e-09" in report.headline
    assert len(report.tests) > 250
    assert json.loads(json.dumps(report.to_json()))["level"] == "bracket"


@pytest.mark.rule("SR-9", "SR-11")
def test_the_standards_own_generator_has_no_pairs_alike_in_any_of_many_seeds():
    for seed in range(2):
        draw = lambda number, shape, direction, seed=seed: fp4ref.random_bits(  # noqa: E731
            shape if direction == "row" else shape[::-1], direction, seed, number
        )
        assert judge_stochastic(SPEC, trials(SPEC, draw)).ok


@pytest.mark.sampled(2)
@pytest.mark.rule("SR-10", "SR-11", "SR-16", "SR-18")
@pytest.mark.parametrize("name", few([*fp4ref.random_maps], 2))
def test_a_declared_seed_names_the_map(name):
    draw = lambda number, shape, direction: getattr(  # noqa: E731
        fp4ref.random_maps[name](shape if direction == "row" else shape[::-1], 5, 4 * number), direction
    )
    seeds = [(5, 4 * number) for number in range(len(aimed_inputs()))]
    report = judge_stochastic(SPEC, trials(SPEC, draw), seeds)
    assert (report.level, report.map, report.ok) == (Level.MAP, name, True)
    assert f"exact up to a map ({name})" in report.headline
    other = judge_stochastic(SPEC, trials(SPEC, draw), [(6, offset) for _, offset in seeds])
    assert other.level is Level.BRACKET
    assert other.ok
    assert judge_stochastic(SPEC, trials(SPEC, draw), seeds, maps=[name]).map == name


def generator(number, direction):
    return np.random.default_rng([number, direction == "column"])


def uniform(number, shape, direction):
    return generator(number, direction).integers(0, 256, shape, np.uint8)


def transposed(number, shape, direction):
    one = uniform(number, shape, "row")
    return one.T if direction == "column" else one


def per_block(number, shape, direction):
    one = generator(number, direction).integers(0, 256, (shape[0], shape[1] // 16), np.uint8)
    return np.repeat(one, 16, axis=1)


def per_word(number, shape, direction):
    one = generator(number, direction).integers(0, 256, (shape[0], shape[1] // 4), np.uint8)
    return np.repeat(one, 4, axis=1)


def same_block(number, shape, direction):
    return np.tile(generator(number, direction).integers(0, 256, (shape[0], 16), np.uint8), shape[1] // 16)


def same_rows(number, shape, direction):
    return np.tile(generator(number, direction).integers(0, 256, (1, shape[1]), np.uint8), (shape[0], 1))


MISTAKES = {
    "both directions use the same bits": lambda n, s, d: uniform(n, s, "row"),
    "both directions use the same bits (transposed)": transposed,
    "the elements of a block share their bits": per_block,
    "elements 2i and 2i + 1 share their bits, and perhaps all four of a word": per_word,
    "every block uses the same bits": same_block,
    "every row uses the same bits": same_rows,
    "always rounds down, as with random bits that are all zero": lambda n, s, d: np.zeros(s, np.uint8),
    "only four random bits are used": lambda n, s, d: uniform(n, s, d) & 0xF0,
}


@pytest.mark.sampled(4)
@pytest.mark.rule("SR-9", "SR-11")
@pytest.mark.parametrize("name", few([*MISTAKES], 5))
def test_known_mistakes_are_named(name):
    report = judge_stochastic(SPEC, trials(SPEC, MISTAKES[name]))
    assert not report.ok
    assert report.mistakes == (name.partition(" (")[0],)
    assert name.partition(" (")[0] in report.headline
    assert "SR-11" in report.headline
    assert not report.wrong


def changed(change):
    """Calls of a kernel whose codes are made from those of truncation by a function of frac and of uniform numbers."""
    for number, x in enumerate(aimed_inputs()):
        made = {}
        for direction in BOTH:
            shape = x.shape if direction == "row" else x.shape[::-1]
            down = quantize(x, SPEC, direction, random_bits=np.zeros(shape, np.uint8))
            part, wrong = rounded(SPEC, x, direction, down)
            assert not wrong
            away = part.open & change(part.frac, generator(number, direction).random(shape))
            codes = fp4ref.packing.unpack(down.data, shape[1], fp4ref.E2M1) + away
            made[direction] = down._replace(data=fp4ref.packing.pack(codes.astype(np.uint8), fp4ref.E2M1))
        yield StochasticTrial(x, made)


def biased(number, shape, direction):
    """Independent bytes, of which three in four are in the upper half."""
    high = generator(number, direction).random(shape) < 0.75
    return (uniform(number + 100, shape, direction) >> 1) | (high * np.uint8(128))


@pytest.mark.rule("SR-11")
def test_a_biased_generator_is_not_said_to_share_its_bits():
    report = judge_stochastic(SPEC, trials(SPEC, biased))
    assert not report.ok
    assert all(test.passed for test in report.tests if "alike" in test.name)
    assert len(report.mistakes) == 1
    assert report.mistakes[0].startswith("the random bits are independent, but biased: ")
    always = judge_stochastic(SPEC, trials(SPEC, lambda n, s, d: uniform(n, s, d) | 128))
    assert not always.ok
    assert "use the same bits" not in always.headline
    assert "share their bits" not in always.headline


@pytest.mark.rule("SR-11")
@pytest.mark.parametrize(
    ("bits", "said"),
    [(0, "always rounds down, as with random bits that are all zero"), (255, "always rounds away from zero")],
)
def test_bits_that_are_constant_in_one_call_are_no_bias(bits, said):
    def draw(number, shape, direction):
        return np.full(shape, bits, np.uint8) if number == 2 else uniform(number, shape, direction)

    report = judge_stochastic(SPEC, trials(SPEC, draw, directions=("row",)))
    assert report.mistakes == (f"{said}, in 1 of 6 calls, first in call 3",)


@pytest.mark.rule("SR-13")
def test_the_same_bits_in_every_call_are_named():
    calls = list(trials(SPEC, uniform))
    assert judge_stochastic(SPEC, calls).ok
    report = judge_stochastic(SPEC, calls, again=[BOTH] * len(calls))
    assert not report.ok
    assert report.mistakes == ("the random bits are the same in every call",)
    assert "the same in every call" in report.headline
    x = np.full((2, 34), 6, np.float32)
    x[:, 1:17] = 0.25  # 32 halves, too few to tell
    made = {"row": quantize(x, SPEC, random_bits=uniform(0, x.shape, "row"))}
    assert not [
        test
        for test in judge_stochastic(SPEC, [StochasticTrial(x, made)], again=[["row"]]).tests
        if "calls" in test.name
    ]


def exact_both(n, first, second):
    """P(X = x) of the pairs with two successes, in rationals."""
    total = comb(n, second)
    return {
        x: Fraction(comb(first, x) * comb(n - first, second - x), total)
        for x in range(max(0, first + second - n), min(first, second) + 1)
    }


@pytest.mark.rule("SR-11")
@given(n=st.integers(1, 200), data=st.data(), digits=st.integers(1, 15))
def test_a_hypergeometric_interval_is_exact(n, data, digits):
    first, second = data.draw(st.integers(0, n)), data.draw(st.integers(0, n))
    half = Fraction(1, 10**digits) / 2
    low, high = hypergeometric.interval(n, first, second, float(2 * half))
    chances = exact_both(n, first, second)
    slack = Fraction(1, 1000)
    assert sum((p for x, p in chances.items() if x > high), Fraction(0)) < half
    assert sum((p for x, p in chances.items() if x < low), Fraction(0)) < half
    mode = max(chances, key=lambda x: (chances[x], x))
    if high > mode:
        assert sum((p for x, p in chances.items() if x >= high), Fraction(0)) > half * (1 - slack)
    if low < mode - 1:
        assert sum((p for x, p in chances.items() if x <= low), Fraction(0)) > half * (1 - slack)


@pytest.mark.rule("SR-11")
def test_hypergeometric_intervals_of_the_rule():
    assert hypergeometric.interval(1000, 500, 500, 1e-12) == (194, 306)
    assert hypergeometric.interval(1000, 1000, 1000, 1e-12) == (1000, 1000)
    assert hypergeometric.interval(1000, 0, 700, 1e-12) == (0, 0)
    low, high = hypergeometric.interval(1 << 20, 1 << 19, 1 << 19, 1e-12)
    assert low + high == 1 << 19


@pytest.mark.sampled(3)
@pytest.mark.rule("SR-11")
@pytest.mark.parametrize(
    "name, change",
    [
        ("the probability of rounding away is reversed", lambda frac, u: u >= np.floor(frac * 256) / 256),
        ("rounds away with probability 1/2, whatever the value", lambda frac, u: u < 0.5),
        ("always rounds away from zero", lambda frac, u: frac > 0),
    ],
)
def test_wrong_probabilities_are_named(name, change):
    report = judge_stochastic(SPEC, changed(change))
    assert not report.ok
    assert report.mistakes == (name,)


@pytest.mark.rule("SR-11")
def test_a_kernel_with_more_random_bits_passes():
    report = judge_stochastic(SPEC, changed(lambda frac, u: u < frac))
    assert report.ok, report.headline


@pytest.mark.rule("SR-11")
def test_nearest_rounding_is_named():
    nearest = SPEC.replace(name="n", element=CUDA_E2M1)
    calls = [StochasticTrial(x, {"row": quantize(x, nearest)}) for x in aimed_inputs()]
    report = judge_stochastic(SPEC, calls)
    assert report.mistakes == ("always rounds to nearest",)


@pytest.mark.rule("SR-2", "SR-3", "SR-11")
def test_codes_that_no_bits_explain_are_wrong():
    calls = list(trials(SPEC, own))
    x = calls[1].x
    good = calls[1].made["row"]
    codes = fp4ref.packing.unpack(good.data, x.shape[1], fp4ref.E2M1)
    six = np.argwhere(codes == 7)[0]
    for index, code in (((0, 1), 5), (tuple(six), 6), ((0, 2), int(codes[0, 2]) ^ 8)):
        bad = codes.copy()
        bad[index] = code
        made = {"row": good._replace(data=fp4ref.packing.pack(bad, fp4ref.E2M1))}
        report = judge_stochastic(SPEC, [calls[0], StochasticTrial(x, made)])
        assert not report.ok
        assert "1 codes are no neighbour" in report.headline
        assert f"[{index[0]}, {index[1]}]" in report.headline


@pytest.mark.rule("SR-11")
def test_wrong_scales_are_wrong_whatever_the_bits():
    call = next(iter(trials(SPEC, own)))
    made = {"row": call.made["row"]._replace(scales=call.made["row"].scales ^ 1)}
    report = judge_stochastic(SPEC, [StochasticTrial(call.x, made)])
    assert not report.ok
    assert "row.scales differs" in report.wrong[0]


@pytest.mark.rule("SR-3", "SR-11")
def test_special_values_are_judged_as_the_rules_say():
    x = np.full((32, 32), 0.25, np.float32)
    x[:, ::16] = 6
    x[0, 1], x[1, 1], x[2, 1] = np.nan, -0.0, np.inf
    bits = fp4ref.random_bits(x.shape)
    report = judge_stochastic(SPEC, [StochasticTrial(x, {"row": quantize(x, SPEC, random_bits=bits)})])
    assert not report.wrong


@pytest.mark.rule("SR-11")
def test_what_cannot_be_judged():
    with pytest.raises(DomainError, match="SR-11"):
        judge_stochastic(fp4ref.NVFP4, [])
    with pytest.raises(ShapeError, match="SR-10"):
        judge_stochastic(SPEC, [], [(1, 2)])
    x = aimed_inputs()[0]
    good = quantize(x, SPEC, random_bits=own(0, x.shape, "row"))
    with pytest.raises(ShapeError, match="SR-11"):
        judge_stochastic(SPEC, [StochasticTrial(x, {"row": good._replace(data=good.data[:, 1:])})])
    sixes = np.full((16, 16), 6, np.float32)
    report = judge_stochastic(
        SPEC, [StochasticTrial(sixes, {"row": quantize(sixes, SPEC, random_bits=own(0, (16, 16), "row"))})]
    )
    assert not report.ok
    assert "no count can be judged" in report.headline
