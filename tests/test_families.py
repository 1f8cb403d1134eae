from __future__ import annotations

import time

import ml_dtypes
import numpy as np
import pytest

import fp4ref
from covering import few
from fp4ref import layout, packing, rules
from fp4ref.arrays import INPUT_DTYPES
from fp4ref.conformance import families
from fp4ref.conformance.families.aiming import Steps, scale_thresholds
from fp4ref.conformance.families.case import aim
from fp4ref.conformance.families.found import found as found_before
from fp4ref.conformance.families.witnesses import searched, told_apart
from fp4ref.errors import DomainError
from fp4ref.formats import E2M1, E8M0, FORMATS, STOCHASTIC_E2M1, Codec, Format
from fp4ref.model.quantize import global_amax, quantize
from fp4ref.spec import Granularity
from fp4ref.specs import STANDARD

NVFP4 = fp4ref.NVFP4
STOCHASTIC = NVFP4.replace(name="stochastic", element=STOCHASTIC_E2M1)


def found(spec, *names, **settings):
    return list(families.cases(spec, families=names or None, **settings))


def golden(case):
    with np.errstate(all="ignore"):
        return quantize(case.x, case.spec, case.direction, case.amax, case.random_bits)


@pytest.mark.rule("CNF-7", "CNF-103")
@pytest.mark.parametrize("spec", [NVFP4, fp4ref.MXFP8_E5M2, STOCHASTIC], ids=lambda spec: spec.name)
def test_cases_have_names_and_are_the_same_every_time(spec):
    once, again = found(spec), found(spec)
    assert len({case.id for case in once}) == len(once)
    assert [case.id for case in once] == [case.id for case in again]
    for a, b in zip(once, again, strict=True):
        assert a.x.tobytes() == b.x.tobytes()
        assert (a.random_bits is None) == (not spec.stochastic)
        assert a.random_bits is None or a.random_bits.tobytes() == b.random_bits.tobytes()


@pytest.mark.rule("CNF-33")
def test_every_family_has_a_reason_and_rules_that_exist():
    known = set(rules.defined())
    for spec in (*STANDARD, STOCHASTIC):
        for family in families.FAMILIES.values():
            assert family.reason.endswith(".")
            assert family.reason.count(". ") == 0
            assert set(family.rules(spec)) <= known


OF_FORMATS = {form.name.upper() for form in FORMATS.values()}
UNNAMED = Codec(format=Format("vendor.e3m4", 3, 4, bias=3, codes=127), nan=(127, 127))
VENDORS = fp4ref.MXFP8_E4M3.replace(name="vendor.mxfp8", element=UNNAMED)


@pytest.mark.rule("CNF-24", "CNF-33")
@pytest.mark.parametrize("spec", [*STANDARD, STOCHASTIC, VENDORS], ids=lambda spec: spec.name)
def test_families_cite_rules_of_the_formats_and_scales_that_a_spec_has(spec):
    others = OF_FORMATS - {spec.element.format.name.upper(), spec.scale.format.name.upper()}
    for family in families.FAMILIES.values():
        chapters = {rule.rpartition("-")[0] for rule in family.rules(spec)}
        assert not chapters & others, family.name
        assert spec.global_scale is not Granularity.NONE or "GLB-3" not in family.rules(spec), family.name
    signs = families.FAMILIES["minus-zero"].rules(spec)
    assert (signs == ("SPC-7",)) == (spec is VENDORS)


FIRST = (STOCHASTIC, fp4ref.NVFP4, fp4ref.NVFP4_RHT, fp4ref.NVFP4_4OVER6, fp4ref.MXFP4)
OTHERS = [spec for spec in STANDARD if spec not in FIRST]


@pytest.mark.parametrize("spec", few([*FIRST, *OTHERS], 3), ids=lambda spec: spec.name)
def test_every_spec_has_cases_in_both_directions_and_all_types(spec):
    cases = found(spec, directions=("row", "column"))
    kinds = {(case.direction, case.x.dtype.name) for case in cases}
    wanted = {(direction, dtype) for direction in ("row", "column") for dtype in INPUT_DTYPES}
    if spec.hadamard:
        wanted -= {("column", "float32"), ("column", "float16")}
    assert kinds == wanted
    names = {case.family for case in cases}
    assert {"random-bits"} <= names or not spec.stochastic
    assert {"candidates"} <= names or not spec.four_over_six
    assert {"hadamard"} <= names or not spec.hadamard
    assert len(names) >= 27
    for case in cases:
        golden(case)


@pytest.mark.slow
def test_level_1_takes_seconds():
    started = time.perf_counter()
    for case in found(NVFP4):
        golden(case)
    assert time.perf_counter() - started < 10


# What a family promises


@pytest.mark.rule("E2M1-3")
@pytest.mark.parametrize("dtype", INPUT_DTYPES)
def test_ties_are_ties_in_every_type(dtype):
    case = found(NVFP4, "element-ties", dtypes=[dtype])[0]
    data = golden(case)
    scales = np.repeat(NVFP4.scale.decode(data.scales), 16, axis=1)
    ratios = np.abs(case.x.astype(np.float32)) / scales
    ties = np.isin(ratios, [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5])
    assert ties.mean() > 0.8
    assert set(np.unique(ratios[ties])) == {0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5}
    codes = packing.unpack(data.data, case.x.shape[1], E2M1) & 7
    exact = ties & (np.frexp(scales)[0] == 0.5)
    assert set(codes[exact]) == {0, 2, 4, 6}
    assert exact.sum() > 100


@pytest.mark.parametrize("dtype", INPUT_DTYPES)
@pytest.mark.parametrize("name", ["nvfp4", "mxfp4", "mxfp8-e4m3", "torchao.nvfp4_2lvl"])
def test_neighbours_have_different_codes(name, dtype):
    spec = fp4ref.profiles[name]
    aimed = aim("element-neighbours", spec, dtype)
    from fp4ref.conformance.families.aiming import beside, element_thresholds
    from fp4ref.conformance.families.ties import amaxes, block_maxima

    for amax in amaxes(aimed):
        maxima = block_maxima(aimed, amax, 20)
        up = element_thresholds(aimed, maxima, amax)
        steps = Steps(spec, aimed.dtype, amax)
        reached = up.astype(np.float32) < maxima.astype(np.float32)[:, None]
        above, below = steps.magnitudes(up, maxima), steps.magnitudes(beside(aimed, up, -1), maxima)
        assert (above > below)[reached].all()
        assert reached.mean() > 0.8


@pytest.mark.parametrize("name", ["nvfp4", "mxfp4", "modelopt.nvfp4"])
def test_every_scale_byte_is_reached(name):
    spec = fp4ref.profiles[name]
    aimed = aim("scale-neighbours", spec)
    amax = 1.7734375 if aimed.unit_amax else 0.0
    edges = scale_thresholds(aimed, amax)
    codes = Steps(spec, aimed.dtype, amax).scale(edges)[1]
    assert (np.diff(codes.astype(int)) == 1).all()
    assert len(codes) >= (250 if spec.scale.format is E8M0 else 120)


@pytest.mark.rule("CNF-34")
@pytest.mark.parametrize("dtype", INPUT_DTYPES)
@pytest.mark.parametrize("spec", STANDARD, ids=lambda spec: spec.name)
def test_scale_patterns_are_injective(spec, dtype):
    scales = [golden(case).scales[:: spec.block.rows] for case in found(spec, "layout", dtypes=[dtype])]
    rows, columns = scales[0].shape
    assert rows * spec.block.rows > 128
    assert columns > 4
    spelled = {tuple(int(part[r, c]) for part in scales) for r in range(rows) for c in range(columns)}
    assert len(spelled) == rows * columns


@pytest.mark.rule("LAY-7")
def test_no_two_layouts_give_the_same_bytes():
    for case in found(NVFP4, "layout", dtypes=["bfloat16"]):
        scales = golden(case).scales
        stored = [form.from_linear(scales).reshape(-1) for form in layout.STANDARD_LAYOUTS]
        size = min(map(len, stored))
        assert len({part[:size].tobytes() for part in stored}) == len(stored)
        transposed = layout.TILED_128X4.from_linear(np.ascontiguousarray(scales.T)).reshape(-1)
        assert transposed[:size].tobytes() not in {part[:size].tobytes() for part in stored}


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("name", "dtype", "same"),
    [
        ("nvfp4", "float32", {"x * (1 / (s * (1 / g)))", "amax * (g * (1 / 6))", "2688 / amax"}),
        ("nvfp4", "bfloat16", {"x * (1 / (s * (1 / g)))", "amax * (g * (1 / 6))", "2688 / amax"}),
        ("torchao.nvfp4_2lvl", "float32", {"x * (g / s)"}),
    ],
)
def test_witnesses_tell_every_variant_apart(name, dtype, same):
    told = told_apart(fp4ref.profiles[name], dtype)
    undetected = {variant for variant, seen in told.items() if not seen and not variant.startswith("subnormal")}
    assert undetected == same  # which is the specification's own formula
    assert len(told) > 60


@pytest.mark.parametrize("dtype", INPUT_DTYPES)
@pytest.mark.parametrize(
    "spec", [*STANDARD[:1], *(pytest.param(spec, marks=pytest.mark.heavy) for spec in STANDARD[1:])]
)
def test_stored_witnesses_are_those_of_a_search(spec, dtype):
    stored, made = found_before(spec, dtype), searched(spec, dtype)
    for topic, pools in made.items():
        assert [pool.amax for pool in stored[topic]] == [pool.amax for pool in pools]
        assert [pool.blocks.tobytes() for pool in stored[topic]] == [pool.blocks.tobytes() for pool in pools]


@pytest.mark.parametrize("spec", STANDARD, ids=lambda spec: spec.name)
def test_the_standards_witnesses_are_stored_for_the_profiles_of_today(spec):
    """If this fails, every command searches again: `python -m fp4ref.conformance.families.write_found`."""
    for dtype in INPUT_DTYPES:
        assert found_before(spec, dtype) is not None


@pytest.mark.rule("CNF-3", "SPC-4")
def test_a_name_that_gets_another_value_is_compared_anew():
    """A user's profile of NVFP4's form is one that the stored witnesses do not tell apart."""
    name = "acme.anew"
    for base, stored in ((fp4ref.MXFP4, True), (fp4ref.NVFP4_FAST, False)):
        fp4ref.register(base.replace(name=name), source="none")
        try:
            assert (found_before(NVFP4, "float32") is not None) == stored
        finally:
            fp4ref.profiles.forget(name)
    assert found_before(NVFP4, "float32") is not None


def test_every_profile_of_the_form_is_told_apart():
    told = told_apart(NVFP4, "float32")
    peers = [name for name, spec in fp4ref.profiles.items() if name in told and spec != NVFP4]
    assert len(peers) > 15
    assert all(told[name] for name in peers)


def test_profiles_registered_later_are_told_apart():
    spec = NVFP4.replace(name="example.down", element=fp4ref.profiles["flashinfer.trace_nvfp4"].element)
    before = told_apart(NVFP4)
    fp4ref.profiles.register(spec, "a test")
    try:
        assert told_apart(NVFP4)["example.down"]
        assert "example.down" not in before
    finally:
        fp4ref.profiles.forget("example.down")


@pytest.mark.rule("GLB-4")
def test_a_callers_amax_makes_scales_and_elements_saturate():
    half = next(case for case in found(NVFP4, "overflow") if case.id.startswith("overflow/thousandth"))
    data = golden(half)
    assert (data.scales == 0x7E).mean() > 0.9
    assert (packing.unpack(data.data, half.x.shape[1], E2M1) & 7 == 7).mean() > 0.9
    assert half.amax < global_amax(half.x, NVFP4)


def test_families_hold_what_their_names_say():
    def one(name):
        return [case.x.astype(np.float32) for case in found(NVFP4, name, dtypes=["float32"])]

    assert all(np.isnan(x).any() for x in one("nan"))
    assert all(np.isinf(x).any() for x in one("inf"))
    assert not any(x.any() for x in one("zero-tensor"))
    assert all(((x == 0) & np.signbit(x)).any() for x in one("minus-zero"))
    assert all((np.abs(x[x != 0]) < 2.0**-118).all() for x in one("subnormals"))
    assert any((golden(case).scales == 0).any() for case in found(NVFP4, "scale-underflow"))
    assert {x.shape for x in one("empty")} == {(0, 16), (16, 0)}
    assert {x.ndim for x in one("axes")} == {1, 3, 4}
    assert {(1, 1), (129, 33), (127, 20)} <= {x.shape for x in one("ragged")}
    for x in one("amax-places"):
        assert np.count_nonzero(np.abs(x) == np.abs(x).max()) == 1


def test_rht_cases_fit_the_transform():
    for case in found(fp4ref.NVFP4_RHT, directions=("column",)):
        assert case.x.dtype == ml_dtypes.bfloat16
        assert case.matrix[1] % 16 == 0


@pytest.mark.rule("SR-2")
def test_random_bits_reach_every_byte():
    cases = [case for case in found(STOCHASTIC, "random-bits") if "ramp" in case.id]
    assert all(set(case.random_bits.ravel()) == set(range(256)) for case in cases)


@pytest.mark.slow
def test_level_2_holds_every_finite_bfloat16():
    cases = found(NVFP4, "every-pattern", level=2, dtypes=["bfloat16"])
    seen = np.unique(np.concatenate([case.x.view(np.uint16).ravel() for case in cases]))
    finite = np.arange(1 << 16, dtype=np.uint16)
    finite = finite[np.isfinite(finite.view(ml_dtypes.bfloat16).astype(np.float32))]
    assert np.array_equal(seen, finite)
    assert not found(NVFP4, "every-pattern", "every-ratio", level=1)


def test_size_makes_more_blocks():
    small, large = (found(NVFP4, "element-ties", size=size)[0].x.size for size in (1, 2))
    assert large > small


def test_weights_come_from_a_file(tmp_path):
    x = np.random.default_rng(0).standard_normal((300, 48)).astype(np.float32)
    fp4ref.files.write_tensors(tmp_path / "m.safetensors", [("a.b", "F32", x.shape)], {}, [x])
    (case,) = found(NVFP4, "weights", dtypes=["float32"], weights=tmp_path / "m.safetensors")
    assert case.x.tobytes() == x[:256].tobytes()
    assert case.id == "weights/a.b/f32/row"
    assert not found(NVFP4, "weights")


def test_unknown_family():
    with pytest.raises(DomainError, match="family 'tie'"):
        found(NVFP4, "tie")
