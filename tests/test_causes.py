"""Causes hold in the cases that pass as well, are told once, and blame no rule that they leave alone."""

import numpy as np
import pytest

from fp4ref.arithmetic import FLT_MAX
from fp4ref.conformance import families
from fp4ref.conformance.diagnosis.displaced import constant_scales
from fp4ref.conformance.diagnosis.evidence import Item
from fp4ref.conformance.diagnosis.explanations import Diagnosis, Explanation
from fp4ref.conformance.diagnosis.hypotheses import Hypothesis
from fp4ref.conformance.diagnosis.same_statement import distinct
from fp4ref.conformance.diagnosis.special_input import LEAST
from fp4ref.conformance.judge.blame import Stage, decides
from fp4ref.conformance.mistakes import MISTAKES, Slot, kernel_of
from fp4ref.conformance.mistakes.record import Cause
from fp4ref.conformance.verdict.violated import blame
from fp4ref.formats import Codec, F, Format
from fp4ref.layout import layout
from fp4ref.model.quantize import constants, quantize
from fp4ref.specs import MXFP4, NVFP4

NAMES = {mistake.name: mistake for mistake in MISTAKES}
BASE = Hypothesis(kernel_of(NVFP4))
AMAXES = np.array([0, 1e-45, 1e-38, 1e-30, 1, 2688, 1e30, FLT_MAX, np.inf], F)
MEANT = {" for a zero tensor": AMAXES == 0, " for an infinite amax": np.isinf(AMAXES)}


@pytest.mark.rule("CNF-2", "CNF-28")
@pytest.mark.parametrize(
    "mistake", [m for m in MISTAKES if m.special and m.text.endswith(tuple(MEANT))], ids=lambda m: m.name
)
def test_a_cause_about_one_amax_leaves_all_others_alone(mistake):
    k = constants(NVFP4, np.dtype("float32"))
    changed = BASE.but(mistake)
    with np.errstate(all="ignore"):
        own, other = (np.asarray(one.kernel.global_scale(AMAXES, k), F) for one in (BASE, changed))
    meant = next(where for text, where in MEANT.items() if mistake.text.endswith(text))
    assert (own == other)[~meant].all()
    assert (own != other)[meant].all()


def test_there_are_causes_about_zero_and_about_infinity():
    for text in MEANT:
        assert sum(mistake.text.endswith(text) for mistake in MISTAKES) > 1


@pytest.fixture(scope="module")
def wrong():
    case = next(iter(families.cases(NVFP4, directions=("row",), dtypes=("float16",), families=("normal",))))
    made = quantize(case.x, NVFP4, case.direction)
    made = made._replace(data=made.data ^ np.uint8(1))
    return [Item(case, made, NVFP4, layout("linear"), LEAST)]


def but(*names):
    return [BASE.but(NAMES[name]) for name in names]


@pytest.mark.rule("CNF-28")
def test_two_ways_of_saying_the_same_are_told_as_one(wrong):
    same = but("encode-result-narrow", "element-fp16")  # x is float16
    assert len(distinct(NVFP4, wrong, same)) == 1
    assert len(distinct(NVFP4, wrong, but("amax-vectors-4", "amax-tail-flat-4"))) == 1
    apart = but("encode-result-narrow", "element-away")
    assert distinct(NVFP4, wrong, apart) == apart


@pytest.mark.rule("CNF-28")
def test_nothing_is_told_beside_one_byte_for_all(wrong):
    constant = BASE.but(constant_scales(0))
    assert distinct(NVFP4, wrong, [*but("element-away"), constant]) == [constant]


@pytest.mark.rule("CNF-24")
@pytest.mark.parametrize(
    "name, stage, innocent, guilty",
    [
        ("hadamard-missing", "hadamard", {"HAD-2", "HAD-3", "HAD-4"}, {"HAD-1"}),
        ("hadamard-row", "hadamard", {"HAD-1", "HAD-2", "HAD-3"}, {"HAD-4"}),
        ("amax-other", "amax", {"BLK-2"}, {"GLB-1"}),
        ("layout-unpadded", "layout", {"LAY-5"}, {"LAY-7"}),
    ],
)
def test_rules_that_a_cause_leaves_alone_are_not_broken(name, stage, innocent, guilty):
    causes = (NAMES[name].cause,) if name in NAMES else ()
    found = Diagnosis(conforms=False, explanations=(Explanation((name,), stage, "so", causes=causes),))
    assert {*blame(found, NVFP4, sorted(innocent | guilty)).broken} == guilty


@pytest.mark.rule("CNF-24", "SPC-7")
def test_a_format_that_a_user_registered_has_its_codec_s_rule():
    """Codes of a format without a chapter break SPC-7, as those of E2M1 break its rules; scales do not."""
    form = Format("acme.e2m1", 2, 1, bias=1, codes=8)
    spec = MXFP4.replace(name="acme.mxfp4", element=Codec(format=form, nan=(7, 7)))
    assert decides("SPC-7", spec) == {Stage.CODE}
    assert decides("SPC-7", spec.replace(element=MXFP4.element)) > {Stage.CODE, Stage.SCALE}  # of no part of it
    cause = Explanation(("element-away",), Slot.CODE, "so", causes=(Cause("element-away", Slot.CODE),))
    found = Diagnosis(conforms=False, explanations=(cause,))
    assert blame(found, spec, ["BLK-10", "SPC-7"], ["BLK-10", "SPC-7"]).broken == ("SPC-7",)
