import time
from functools import cache

import numpy as np
import pytest

from covering import few, names_by_parts
from fp4ref import packing
from fp4ref.catalogue import PROFILES
from fp4ref.conformance.diagnosis import diagnose as diagnosing
from fp4ref.conformance.diagnosis import session as sessions
from fp4ref.conformance.diagnosis.diagnose import diagnose
from fp4ref.conformance.diagnosis.evidence import Item
from fp4ref.conformance.diagnosis.explanations import ENDED, report_lines, verdict
from fp4ref.conformance.diagnosis.readings import FAILURES
from fp4ref.conformance.diagnosis.stages import by_stages
from fp4ref.conformance.families import cases
from fp4ref.conformance.families.variants import Topic
from fp4ref.conformance.mistakes import MISTAKES, Exhibit, kernel_of, scale_readers
from fp4ref.conformance.mistakes.exhibit import EVERY
from fp4ref.conformance.mistakes.sides import code_side, scale_side
from fp4ref.layout import LAYOUTS, layout
from fp4ref.model.quantize import quantize
from fp4ref.quantized import DirectionData
from fp4ref.specs import MXFP8_E4M3, NVFP4, NVFP4_4OVER6, NVFP4_RHT, STANDARD
from standard_rules import rows_of

FAMILIES = (
    "normal",
    "positions",
    "layout",
    "ragged",
    "element-ties",
    "block-scale-ties",
    "amax-places",
    "outlier",
    "scale-underflow",
    "overflow",
    "minus-zero",
    "zero-blocks",
    "nan",
    "candidates",
    "reciprocal",
    "operation-order",
    "double-rounding",
    "profiles",
)
GIVEN = tuple(name for name in FAMILIES if name not in {*Topic})  # those that no search has to find
NAMES = {mistake.name: mistake for mistake in MISTAKES}
NEAREST = [name for name, spec in PROFILES.items() if not spec.stochastic]


@cache
def inputs(spec_name, families=FAMILIES):
    spec = PROFILES[spec_name]
    direction = "column" if spec.hadamard else "row"
    found = cases(spec, directions=(direction,), dtypes=("bfloat16",), families=families)
    return [case for case in found if case.amax is None and 0 < case.x.size <= 1 << 14]


def stored(data, scale_layout):
    return data._replace(scales=layout(scale_layout).from_linear(np.ascontiguousarray(data.scales)))


def of_spec(maker, spec, scale_layout="linear"):
    """What one specification's quantizer makes of the cases of another."""
    made = ((case, quantize(case.x, maker, case.direction)) for case in inputs(spec.name))
    return [(case, stored(data, scale_layout)) for case, data in made]


def of_mistakes(spec, *names, scale_layout="linear"):
    """What a kernel with mistakes makes."""
    kernel, evidence = kernel_of(spec), []
    for name in names:
        kernel = NAMES[name].apply(kernel)
    for case in inputs(spec.name):
        side = scale_side(kernel, Exhibit(case), EVERY)
        data = DirectionData(packing.pack(code_side(kernel, side), spec.element.format), side.scales, side.amax)
        evidence.append((case, stored(data, scale_layout)))
    return evidence


def changed(evidence, **parts):
    """The evidence with parts of every result replaced by a function of them."""
    return [
        (case, got._replace(**{name: function(getattr(got, name)) for name, function in parts.items()}))
        for case, got in evidence
    ]


def test_the_library_has_unique_names_and_plain_sentences():
    readers = list(scale_readers(LAYOUTS["tiled_128x4"]))
    names = [item.name for item in (*MISTAKES, *readers)]
    assert len(set(names)) == len(names) >= 100
    assert not [item.text for item in (*MISTAKES, *readers) if item.text.endswith(".") or "\n" in item.text]


@pytest.mark.sampled(4)
@pytest.mark.rule("SPC-5")
@pytest.mark.parametrize("name", names_by_parts(PROFILES[name] for name in NEAREST))
@pytest.mark.parametrize("families, every", [(GIVEN, 10), pytest.param(FAMILIES, 1, marks=pytest.mark.release)])
def test_a_kernel_made_of_a_specification_makes_its_bytes(name, families, every):
    spec = PROFILES[name]
    for case in inputs(name, families)[::every]:
        wanted = quantize(case.x, spec, case.direction)
        side = scale_side(kernel_of(spec), Exhibit(case), EVERY)
        assert (side.scales == wanted.scales).all(), case.id
        assert (packing.pack(code_side(kernel_of(spec), side), spec.element.format) == wanted.data).all(), case.id
        assert (side.amax is None) == (wanted.amax is None)
        assert side.amax is None or side.amax.tobytes() == wanted.amax.tobytes()


@pytest.mark.sampled(4)
@pytest.mark.rule("CNF-2")
@pytest.mark.parametrize("name", ["nvfp4", "nvfp4-2d", "nvfp4-rht", "nvfp4-4over6", "mxfp4", "torchao.nvfp4_2lvl"])
@pytest.mark.parametrize("scale_layout", ["linear_padded", "tiled_8x4"])
def test_a_correct_kernel_has_nothing_to_explain(name, scale_layout):
    found = diagnose(PROFILES[name], scale_layout, of_spec(PROFILES[name], PROFILES[name], scale_layout))
    assert found.conforms
    assert not found.explanations
    assert report_lines(found) == []


@pytest.mark.sampled(3)
@pytest.mark.rule("CNF-2", "PRO-1")
@pytest.mark.parametrize(
    "name, declared",
    few(
        [
            ("torchao.nvfp4_2lvl", "nvfp4"),
            ("modelopt.nvfp4", "nvfp4"),
            ("fouroversix.nvfp4_mse", "nvfp4-4over6"),
            ("nvfp4", "torchao.nvfp4_2lvl"),
            ("nvfp4-4over6", "nvfp4"),
            ("nvfp4-row-scaled", "nvfp4-row-scaled"),
            ("torchao.mxfp4_floor", "mxfp4"),
            ("qwix.mxfp8", "mxfp8-e4m3"),
        ],
        3,
    ),
)
def test_profiles_are_reported_as_themselves(name, declared):
    found = diagnose(PROFILES[declared], "linear", of_spec(PROFILES[name], PROFILES[declared]))
    if name == declared:
        assert found.conforms
        return
    same = {other for other, spec in PROFILES.items() if spec == PROFILES[name]}
    assert same & set(found.profiles), report_lines(found)
    assert name in verdict(found) or found.explanations[0].profile is None


def declared_as(spec):
    """The standard's specification with buffers of the same shapes, that an author would declare."""

    def form(other):
        hadamard = other.hadamard is None
        return other.element.format, other.scale.format, other.block, other.global_scale, hadamard, other.stochastic

    return next((other for other in STANDARD if form(other) == form(spec)), None)


@pytest.mark.heavy  # a diagnosis for each profile
@pytest.mark.slow
@pytest.mark.rule("CNF-2", "PRO-1")
@pytest.mark.parametrize(  # CI tries every sixth profile
    "name", [pytest.param(name, marks=[pytest.mark.release] * bool(i % 6)) for i, name in enumerate(NEAREST)]
)
def test_every_profile_is_reported_as_itself(name):
    spec = PROFILES[name]
    assert diagnose(spec, "linear", of_spec(spec, spec)[::4]).conforms
    base = declared_as(spec)
    if base is None or base == spec:
        return
    found = diagnose(base, "linear", of_spec(spec, base))
    equal = {other for other, known in PROFILES.items() if known == spec}
    assert found.conforms or equal & set(found.profiles), report_lines(found)


def test_the_maxima_of_rows_are_not_those_of_the_tensor():
    """Hypotheses of both granularities share a case, whichever asks first."""
    case = next(case for case in inputs("nvfp4-row-scaled") if case.x.shape[0] > 1)
    exhibit = Exhibit(case)
    whole, rows = (exhibit.amax(kernel_of(PROFILES[name]))[0] for name in ("nvfp4", "nvfp4-row-scaled"))
    assert (whole.size, rows.size) == (1, len(case.x))


def test_a_profile_registered_later_is_recognised(monkeypatch):
    wanted = NVFP4.replace(name="vendor.four", element_max=4.0, arithmetic=PROFILES["fouroversix.nvfp4_mse"].arithmetic)
    monkeypatch.setitem(PROFILES._values, wanted.name, wanted)
    found = diagnose(NVFP4, "linear", of_spec(wanted, NVFP4))
    assert "vendor.four" in found.profiles


@pytest.mark.sampled(2)
@pytest.mark.rule("CNF-2")
@pytest.mark.parametrize(
    "names",
    [
        ("amax-signed", "encode-g-over-s"),
        ("global-1536", "scale-codec-truncate"),
        pytest.param(("block-2-across", "sign-negative"), marks=pytest.mark.heavy),
        pytest.param(("scale-division", "element-down"), marks=pytest.mark.heavy),
        pytest.param(("amax-last-row", "scale-product-first", "element-truncate"), marks=pytest.mark.heavy),
        pytest.param(("scale-double-fp16", "nan-0"), marks=pytest.mark.heavy),
    ],
)
def test_mistakes_in_several_stages_are_all_named(names):
    found = diagnose(NVFP4, "linear", of_mistakes(NVFP4, *names))
    assert any(set(names) <= set(item.names) for item in found.explanations), report_lines(found)
    assert all(NAMES[name].text.partition(" = ")[0] in verdict(found) for name in names)  # a constant may be measured


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "spec, names",
    few(
        [
            (NVFP4_4OVER6, ("search-tie",)),
            (NVFP4_4OVER6, ("search-mse",)),
            (NVFP4_RHT, ("hadamard-signs-after",)),
            (NVFP4_RHT, ("amax-raw",)),
            (MXFP8_E4M3, ("mx-floor", "element-overflow-nan")),
            (PROFILES["torchao.nvfp4_2lvl"], ("element-away",)),
        ],
        3,
    ),
)
def test_other_specifications_are_diagnosed_too(spec, names):
    found = diagnose(spec, "linear", of_mistakes(spec, *names))
    assert set(names) <= set(found.explanations[0].names), report_lines(found)


@pytest.mark.rule("PACK-1", "PACK-2", "LAY-5", "CNF-3")
@pytest.mark.parametrize(
    "change, names, stage",
    [
        ({"data": lambda data: data << 4 | data >> 4}, {"nibbles"}, "packing"),
        ({"scales": lambda scales: np.where(scales == 0, 0x7F, scales)}, {"padding"}, "padding"),
    ],
)
def test_bytes_in_other_places(change, names, stage):
    kept = [
        (case, got)
        for case, got in of_spec(NVFP4, NVFP4, "tiled_128x4")
        if (layout_input(case) or "scales" not in change)
    ]
    found = diagnose(NVFP4, "tiled_128x4", changed(kept, **change))
    assert names <= set(found.explanations[0].names), report_lines(found)
    assert found.first_stage == stage


def layout_input(case):
    """Whether every block's scale is nonzero, so that zero bytes are padding."""
    return bool((quantize(case.x, NVFP4, "row").scales != 0).all())


def test_linear_padding_may_hold_anything():
    kept = [(case, got) for case, got in of_spec(NVFP4, NVFP4, "linear_padded") if layout_input(case)]
    assert diagnose(NVFP4, "linear_padded", changed(kept, scales=lambda s: np.where(s == 0, 0x7F, s))).conforms


@pytest.mark.rule("CNF-2", "GLB-4")
def test_an_amax_from_elsewhere_is_named_if_scales_and_codes_follow_from_it():
    """Each tensor with an amax that has nothing to do with it, as after a reduction over other ranks."""
    rng = np.random.default_rng(3)
    tensors = [case for case in inputs("nvfp4") if case.amax is None and case.x.size]
    strange = rng.uniform(1, 9, (len(tensors), 1)).astype(np.float32)
    made = [(c, quantize(c.x, NVFP4, c.direction, amax=a)) for c, a in zip(tensors, strange, strict=True)]
    found = diagnose(NVFP4, "linear", made)
    assert found.explanations[0].names[0] == "amax-other", report_lines(found)
    assert verdict(found).startswith("amax is not the tensor's: ")
    right = [(c, quantize(c.x, NVFP4, c.direction)._replace(amax=a)) for c, a in zip(tensors, strange, strict=True)]
    found = diagnose(NVFP4, "linear", right)
    assert verdict(found).startswith("the amax that is returned is not the tensor's: ")


@pytest.mark.rule("CNF-2", "CNF-30")
@pytest.mark.parametrize("part, stage", [("data", "code"), ("scales", "scale")])
@pytest.mark.parametrize("seconds", [0.5, pytest.param(4, marks=pytest.mark.heavy)])
def test_random_corruption_is_not_explained(part, stage, seconds):
    rng = np.random.default_rng(7)

    def corrupted(values):
        return np.where(rng.random(values.shape) < 0.05, values ^ rng.integers(1, 256, values.shape, np.uint8), values)

    found = diagnose(NVFP4, "linear", changed(of_spec(NVFP4, NVFP4), **{part: corrupted}), budget_seconds=seconds)
    assert not found.conforms
    assert not found.explanations, report_lines(found)
    assert found.first_stage == stage
    assert verdict(found).startswith(f"not explained: bytes first differ at the {stage}, in ")
    assert not found.explained


@pytest.mark.heavy
@pytest.mark.rule("CNF-30")
def test_a_search_that_tried_everything_says_so_and_one_that_was_cut_says_how_it_gets_more_time():
    rng = np.random.default_rng(7)
    evidence = changed(
        of_spec(MXFP8_E4M3, MXFP8_E4M3)[:6], data=lambda d: d ^ (rng.random(d.shape) < 0.3) * np.uint8(5)
    )
    start = time.thread_time()
    found = diagnose(MXFP8_E4M3, "linear", evidence, budget_seconds=100)
    assert time.thread_time() - start < 10
    assert report_lines(found)[-1] == ENDED
    assert "--diagnosis-seconds" in report_lines(diagnose(MXFP8_E4M3, "linear", evidence, budget_seconds=0.3))[-1]


def test_one_flipped_code_is_not_explained():
    evidence = of_spec(NVFP4, NVFP4)
    case, got = evidence[0]
    data = got.data.copy()
    data[0, 1] ^= 0x30
    start = time.thread_time()
    found = diagnose(NVFP4, "linear", [(case, got._replace(data=data)), *evidence[1:]])
    assert time.thread_time() - start < 8
    assert f"in 1 of {sum(-(-c.matrix[1] // 16) * c.matrix[0] for c, _ in evidence):,} blocks" in verdict(found)
    assert f"{case.id} at row 0, block 0, element 3: code" in verdict(found)
    assert not found.explanations
    assert found.first_stage == "code"
    assert [finding.right for finding in found.findings] == [True, True, False]


@pytest.mark.example("CNF-86", "CNF-30")
@pytest.mark.rule("CNF-86")
def test_what_special_values_leave_open_is_said():
    evidence = of_mistakes(NVFP4, "scale-division")
    spoiled = []
    for case, got in evidence:
        data = got.data.copy()
        if np.isnan(case.x.astype(np.float32)).any():
            data[np.isnan(case.x.astype(np.float32)).any(axis=1).nonzero()[0], 0] ^= 0x55
        spoiled.append((case, got._replace(data=data)))
    found = diagnose(NVFP4, "linear", spoiled, budget_seconds=5)
    assert not found.explanations
    assert found.partial.names == ("scale-division",)
    assert "NaN" in found.partial.except_on
    ((made, named),) = rows_of("CNF-86")
    assert (made, named) == ("every byte but those of blocks with NaN", "wrong, with that cause, and the class NaN")
    (every, cause), (half, unless) = rows_of("CNF-30")
    assert (every, cause, half) == ("every byte", "wrong, with that cause", "half of the bytes")
    assert unless.startswith("wrong: not explained, ")
    assert verdict(found).endswith("not explained: the differences on NaN")


@pytest.mark.heavy
@pytest.mark.rule("CNF-2")
def test_what_was_measured_in_a_few_cases_is_measured_anew_in_all(monkeypatch):
    def rounded(y, bits, codec):
        code = codec.encode(y, bits)
        return np.where((np.abs(y) >= 0.75) & (np.abs(y) <= 0.7937), code - 1, code).astype(np.uint8)

    kernel, evidence = kernel_of(NVFP4).but(round=rounded), []
    for case in inputs("nvfp4"):
        side = scale_side(kernel, Exhibit(case), EVERY)
        data = packing.pack(code_side(kernel, side), NVFP4.element.format)
        evidence.append((case, DirectionData(data, side.scales, side.amax)))
    monkeypatch.setattr(diagnosing, "FIRST", 1 << 13)
    judged = []
    monkeypatch.setattr(sessions, "by_stages", lambda *args, **how: judged.append(args[1]) or by_stages(*args, **how))
    found = diagnose(NVFP4, "linear", evidence)
    assert "0.5 reaches up to 0.79" in verdict(found)
    assert len(judged) == 1  # among few cases; they allow another boundary, which the others refute
    assert len(judged[0]) < len(evidence)


def test_the_time_is_kept():
    rng = np.random.default_rng(3)
    evidence = changed(
        of_spec(NVFP4, NVFP4),
        scales=lambda s: rng.permutation(s.ravel()).reshape(s.shape),
        data=lambda d: rng.integers(0, 256, d.shape, np.uint8),
        amax=lambda a: a * np.float32(1.1),
    )
    start = time.thread_time()
    found = diagnose(NVFP4, "linear", evidence, budget_seconds=0.5)
    assert time.thread_time() - start < 6
    assert not found.explanations
    assert found.first_stage == "amax"


def test_buffers_of_another_size_and_no_evidence_at_all():
    assert diagnose(NVFP4, "linear", []).conforms
    case, got = of_spec(NVFP4, NVFP4)[0]
    found = diagnose(NVFP4, "linear", [(case, got._replace(scales=got.scales[:, :-1]))], budget_seconds=0.5)
    assert not found.conforms
    assert not found.explained


@pytest.mark.rule("CNF-10")
@pytest.mark.parametrize("part", ["data", "scales"])
def test_right_bytes_differ_at_no_stage_when_the_time_is_over(part):
    rng, evidence = np.random.default_rng(3), []
    for case in cases(NVFP4, families=["normal", "layout"], directions=["row"], dtypes=["float32"]):
        got = quantize(case.x, NVFP4)
        noise = rng.integers(1, 256, getattr(got, part).shape, np.uint8)
        evidence.append((case, got._replace(**{part: getattr(got, part) ^ noise})))
    found = diagnose(NVFP4, "linear", evidence, 0.001)
    assert not found.complete
    assert found.first_stage == {"data": "code", "scales": "scale"}[part]
    right = {finding.stage for finding in found.findings if finding.right}
    assert right == {"data": {"amax", "scale"}, "scales": {"amax", "code"}}[part]


def truncated_but(right, names=("normal", "nan", "block-scale-ties", "positions")):
    """Cases under truncated scales, but for those that `right` chooses, which are the specification's."""
    (mistake,) = (one for one in MISTAKES if one.name == "scale-codec-truncate")
    kernel, evidence = mistake.apply(kernel_of(NVFP4)), []
    for case in cases(NVFP4, families=names, directions=["row"], dtypes=["float32"]):
        got = quantize(case.x, NVFP4)
        if not right(case):
            exhibit = Exhibit(case)
            side = scale_side(kernel, exhibit, slice(None))
            data = packing.pack(code_side(kernel, side), NVFP4.element.format)
            got = got._replace(data=data, scales=side.scales)
        evidence.append((case, got))
    return evidence


@pytest.mark.example("CNF-50")
@pytest.mark.rule("CNF-50")
def test_a_class_that_is_right_is_left_out_of_a_cause():
    found = diagnose(NVFP4, "linear", truncated_but(lambda case: np.isnan(case.x).any()))
    told = found.explanations[0]
    assert told.text == "the block scale is truncated, but not on NaN, where no byte differs"
    assert told.text.endswith(rows_of("CNF-50")[1][2].partition("...")[2])
    assert told.names == ("scale-codec-truncate",)


@pytest.mark.example("CNF-50")
@pytest.mark.rule("CNF-50")
def test_one_right_result_refutes_a_cause():
    def right(case):
        return case.id == "normal/1/f32/row"

    assert rows_of("CNF-50")[0][2] == "nothing"
    assert not diagnose(NVFP4, "linear", truncated_but(right), 1).explanations


def sides(kernels, exhibit_of):
    """Scale bytes and codes of kernels, None where one means nothing."""
    for kernel in kernels:
        try:
            side = scale_side(kernel, exhibit_of(), EVERY)
            yield side.scales.tobytes(), code_side(kernel, side).tobytes()
        except FAILURES:
            yield None


@pytest.mark.sampled(3)
@pytest.mark.rule("CNF-1")
@pytest.mark.parametrize("spec", [NVFP4, MXFP8_E4M3, NVFP4_RHT], ids=lambda spec: spec.name)
def test_stages_that_mistakes_share_change_no_byte(spec):
    case = next(case for case in inputs(spec.name) if case.x.size > 256)
    kernels = [made for mistake in MISTAKES if (made := mistake.apply(kernel_of(spec))) is not None]
    shared = Exhibit(case)
    with np.errstate(all="ignore"):
        assert list(sides(kernels, lambda: shared)) == list(sides(kernels, lambda: Exhibit(case)))


def counted(function, calls):
    def called(*arguments):
        calls.append(function)
        return function(*arguments)

    return called


@pytest.mark.rule("CNF-1")
def test_what_hypotheses_share_is_made_once():
    base, calls, exhibit = kernel_of(NVFP4), [], Exhibit(inputs("nvfp4")[0])
    kernel = base.but(block_amax=counted(base.block_amax, calls), block_scale=counted(base.block_scale, calls))
    for last in (kernel, kernel.but(scale_byte=lambda byte: byte + 1), kernel.but(scale_value=np.abs)):
        scale_side(last, exhibit, EVERY)
    assert calls == [base.block_amax, base.block_scale]


@pytest.mark.rule("CNF-1")
def test_a_wrong_maximum_is_dropped_before_its_scales():
    case, base, calls = inputs("nvfp4")[0], kernel_of(NVFP4), []
    item = Item(case, quantize(case.x, NVFP4, case.direction), NVFP4, layout("linear"))
    kernel = base.but(block_scale=counted(base.block_scale, calls))
    part = item.parts(True)[0]
    assert part.side_after_amax(kernel.but(report=lambda amax: amax * 2)) is None
    assert not calls
    assert part.side_after_amax(kernel) is not None
    assert calls
