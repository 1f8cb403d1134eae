"""No pair of changes that makes a candidate's bytes is left out of the search for pairs."""

import random
from functools import cache, partial
from types import SimpleNamespace

import numpy as np
import pytest

import two_causes
from covering import few
from fp4ref.conformance.diagnosis.evidence import Item
from fp4ref.conformance.diagnosis.excluded import STEPS, WITHOUT_SCALES
from fp4ref.conformance.diagnosis.hypotheses import AFTER_SCALES, together
from fp4ref.conformance.diagnosis.likely_pairs import LikelyPairs
from fp4ref.conformance.diagnosis.readings import FAILURES
from fp4ref.conformance.diagnosis.search import Search
from fp4ref.conformance.mistakes import MISTAKES
from fp4ref.conformance.mistakes.exhibit import EVERY, Exhibit
from fp4ref.conformance.mistakes.kernel import kernel_of, over_block, over_tensor
from fp4ref.conformance.mistakes.readers import DECLARED
from fp4ref.conformance.mistakes.record import Slot, known, of
from fp4ref.conformance.mistakes.sides import code_side, scale_side
from fp4ref.layout import layout
from fp4ref.packing import pack
from fp4ref.quantized import DirectionData
from fp4ref.specs import MXFP4, MXFP8_E4M3, NVFP4, NVFP4_RHT

SPECS = (NVFP4, MXFP4, MXFP8_E4M3, NVFP4_RHT)
F = np.float32
BEFORE = [one for one in MISTAKES if one.stage not in AFTER_SCALES and not one.alone]
ANY = [one for one in MISTAKES if not one.alone]  # where codes choose the scales, all move these
ORDER = list(Slot)
CASES = 20  # of each specification
LARGEST = 1 << 11  # elements of them


def by_stage(mistake):
    return ORDER.index(mistake.stage)


@cache
def exhibits(name):
    """Return small cases of many families."""
    seen = {}
    for case in two_causes.cases(name):
        if 0 < case.x.size <= LARGEST:
            seen.setdefault((case.family, len(seen) % 3), case)
    found = list(seen.values())
    return [SimpleNamespace(x=case.x, direction=case.direction, amax=None, random_bits=None) for case in found[:CASES]]


def items(spec, kernel, stored=lambda scales: scales):
    """Return the evidence that a kernel leaves. stored: of its scale bytes, those of the evidence."""
    found = []
    with np.errstate(all="ignore"):
        for case in exhibits(spec.name):
            side = scale_side(kernel, Exhibit(case), EVERY)
            data = pack(code_side(kernel, side), spec.element.format)
            amax = None if side.amax is None else np.asarray(side.amax, np.float32).reshape(-1)
            found.append(Item(case, DirectionData(data, stored(side.scales), amax), spec, layout("linear")))
    return found


def searched(spec, kernel):
    return Search(spec, items(spec, kernel), False, float("inf"), False)


def singles_of(start, mistakes):
    return [(one, made) for one in mistakes if (made := start.but(one)) is not None]


def pairs_of(search, mistakes):
    """Return what a search looks for pairs of some mistakes with."""
    start = search.starts[0]
    with np.errstate(all="ignore"):
        return LikelyPairs(start, singles_of(start, mistakes), search.parts, lambda: None)


def tried(search, mistakes):
    """Return the names of the pairs of some mistakes that a search tries."""
    return {frozenset((one.name, other.name)) for one, other in pairs_of(search, mistakes).likeliest()}


def drawn(spec, seed, count):
    """Yield searches for two mistakes, and these, from a start that they mean something for."""
    source, base = random.Random(f"{spec.name}/{seed}"), Search(spec, [], False, 0.0, False).starts[0]
    while count:
        one, other = sorted(source.sample(BEFORE, 2), key=by_stage)
        both = None if one.stage is other.stage else together(base, one, other)
        if both is not None:
            try:
                search = searched(spec, both.kernel)
            except FAILURES:
                continue
            yield search, one, other
            count -= 1


@pytest.mark.sampled(4)
@pytest.mark.rule("CNF-2", "CNF-92")
@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
@pytest.mark.parametrize("seed", few(range(40), 4))
def test_two_mistakes_are_tried_together_where_they_make_the_bytes(spec, seed):
    for search, one, other in drawn(spec, seed, 8):
        assert tried(search, [one, other]) == {frozenset((one.name, other.name))}


@pytest.mark.sampled(4)
@pytest.mark.rule("CNF-2", "CNF-92")
@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
@pytest.mark.parametrize("seed", few(range(40), 4))
def test_a_mistake_is_tried_with_a_profile_where_they_make_the_bytes(spec, seed):
    source = random.Random(f"{spec.name}/{seed}")
    profiles = [start for start in Search(spec, [], False, 0.0, False).starts if start.profile]
    for profile in source.sample(profiles, 4):
        for mistake in source.sample(ANY if profile.kernel.search else BEFORE, 4):
            made = profile.but(mistake)
            try:
                search = None if made is None else searched(spec, made.kernel)
            except FAILURES:
                continue
            if search is not None:
                with np.errstate(all="ignore"):
                    excluded = pairs_of(search, [mistake]).excluded_from(profile)
                assert not excluded(mistake, made), (profile.profile, mistake.name)


@pytest.mark.rule("CNF-2", "CNF-92")
@pytest.mark.parametrize("spec", SPECS[:2], ids=lambda spec: spec.name)
def test_pairs_that_are_left_out_do_not_make_the_bytes(spec):
    """Scale bytes that nothing explains: most pairs are left out, and each of these is wrong in some case."""
    source = np.random.default_rng(7)
    odd = items(spec, kernel_of(spec), lambda scales: scales ^ source.integers(0, 4, scales.shape, np.uint8))
    search = Search(spec, odd, False, float("inf"), False)
    start, mistakes = search.starts[0], random.Random(3).sample(BEFORE, 60)
    left = tried(search, mistakes)
    out = [
        both
        for n, one in enumerate(mistakes)
        for other in mistakes[:n]
        if one.stage is not other.stage and frozenset((one.name, other.name)) not in left
        if (both := together(start, *sorted((one, other), key=by_stage))) is not None
    ]
    assert len(out) > len(left)
    assert not any(map(search.whole, out))


@pytest.mark.rule("CNF-2", "FOS-6")
@pytest.mark.parametrize("seed", few(range(12), 2))
def test_scale_bytes_of_neither_candidate_refute_a_search_of_4over6(seed):
    """A kernel may have chosen its own bytes, whatever its mistake; of other bytes, most are of neither candidate."""
    source, refuted = random.Random(seed), 0
    starts = [start for start in Search(NVFP4, [], False, 0.0, False).starts if start.kernel.search is not None]
    for start, mistake in zip(source.sample(starts, 8), source.sample(BEFORE, 8), strict=True):
        kernel = (start.but(mistake) or start).kernel
        try:
            search = searched(NVFP4, kernel)
        except FAILURES:
            continue
        with np.errstate(all="ignore"):
            assert all(part.may_choose(kernel) for part in search.parts)
            odd = searched(NVFP4, kernel_of(NVFP4))
            refuted += sum(not part.may_choose(kernel) for part in odd.parts)
            alike = [part.may_choose(kernel) or not matches(part, kernel) for part in odd.parts]
            assert all(alike)
    assert refuted


def matches(part, kernel):
    side = part.side(kernel)
    return side is not None and part.scales_match(kernel, side, DECLARED)


def known_pair(first, second):
    """Return whether two mistakes of NVFP4 are tried together where they make the bytes."""
    both = together(Search(NVFP4, [], False, 0.0, False).starts[0], first, second)
    return bool(tried(searched(NVFP4, both.kernel), [first, second]))


def away(t):
    return F(2) * t


@pytest.mark.rule("CNF-2", "SPC-21")
def test_a_mistake_that_looks_at_another_one_is_tried_with_it():
    """A mistake may read any field of the kernel, so also one that the other mistake changes."""
    idle = known(Slot.BLOCK, "acme.copy", "maxima are copied", block_amax=partial(over_block))
    for field in ("block_amax", "__dict__"):
        looks = known(
            Slot.SCALE,
            "acme.looks",
            "the block scale depends on the maximum",
            scale_value=of(lambda kernel, field=field: away if other(kernel, field) else np.zeros_like),
        )
        assert known_pair(idle, looks)


def other(kernel, field):
    found = kernel.block_amax if field == "block_amax" else vars(kernel)["block_amax"]
    return found is not over_block


@pytest.mark.rule("CNF-2", "SPC-21")
def test_constants_count_although_they_change_nothing_alone():
    first = known(Slot.AMAX, "acme.normal", "another constant", constants=lambda k: k._replace(smallest_normal=F(1)))
    reads = known(Slot.SCALE, "acme.reads", "the scale reads it", block_scale=lambda amax, g, k: g * k.smallest_normal)
    assert known_pair(first, reads)


@pytest.mark.rule("CNF-2", "SPC-21")
def test_maxima_of_a_mistake_may_depend_on_whether_nan_is_kept():
    """A profile that keeps NaN is tried with a mistake that takes the usual maximum where NaN is not kept."""
    mistake = known(
        Slot.AMAX,
        "acme.keeps",
        "amax doubles",
        amax=lambda values, nan, row: over_tensor(values, nan, row) * F(1 + nan),
    )
    found = Search(NVFP4, [], False, 0.0, False)
    profile = next(start for start in found.starts if start.profile == "torchao.nvfp4_2lvl")
    made = profile.but(mistake)
    assert profile.kernel.keep_nan
    with np.errstate(all="ignore"):
        assert not pairs_of(searched(NVFP4, made.kernel), [mistake]).excluded_from(profile)(mistake, made)


def test_every_field_of_a_kernel_has_a_step_or_ends_the_search_for_what_is_left_out():
    """A field without a step is never left out; those are the fields that change the order of the stages."""
    rest = vars(kernel_of(NVFP4)).keys() - STEPS.keys() - WITHOUT_SCALES
    assert rest == {"spec", "candidates", "counted", "second", "kept", "other", "placed", "placed_values"}
