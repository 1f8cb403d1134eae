"""The rules that a wrong kernel is said to break."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import fp4ref
from fp4ref.conformance.families.rules import KEEPS_SIGN
from fp4ref.conformance.judge.blame import DECIDES, Stage, decides
from fp4ref.conformance.judge.cases import judge
from fp4ref.conformance.run.runner import run
from fp4ref.conformance.subjects.subject import Subject, cases_of
from fp4ref.conformance.verdict.kernel_report import KernelReport
from fp4ref.formats import Rounding
from fp4ref.rules import defined

SCALES = {"linear_padded": "LAY-2", "tiled_128x4": "LAY-3", "tiled_8x4": "LAY-4"}


def good(x, spec="nvfp4", **given):
    q = fp4ref.quantize(x, spec, backend="numpy", **given)
    return q.row.data, q.row.scales, q.row.amax


def rules_of(kernel, spec="nvfp4", families=("normal", "layout", "element-ties"), **changes):
    """Rules that fail, and all that were counted."""
    subject = Subject.of(kernel, **{"dtypes": ("float32",), **changes})
    report = KernelReport("kernel", fp4ref.profiles[spec], subject.declaration)
    chosen = cases_of(subject.declaration, report.spec, families=families)
    for item in run(subject, (case for case in chosen if case.x.size < 1 << 17)):
        report.add(judge(item.case, item.outcome, subject.declaration, item.expected))
    assert not report.ok
    assert sum(cell.total - cell.passed for cell in report.families.values())
    return {name for name, cell in report.rules.items() if cell.passed < cell.total}, set(report.rules)


@pytest.mark.rule("CNF-76")
@pytest.mark.parametrize("declared, stored", [("tiled_128x4", "tiled_8x4"), ("tiled_128x4", "linear_padded")])
def test_a_wrong_layout_breaks_rules_on_layouts_only(declared, stored):
    def kernel(x):
        data, scales, amax = good(x, scale_layout=declared)
        other = np.zeros(scales.size, np.uint8)
        bytes_ = good(x, scale_layout=stored)[1].reshape(-1)
        linear = good(x)[1]
        if stored == "linear_padded":  # its padding may hold anything
            bytes_ = np.pad(linear, [(0, -n % m) for n, m in zip(linear.shape, (128, 4), strict=True)]).reshape(-1)
        other[: min(len(other), bytes_.size)] = bytes_[: len(other)]
        return data, other.reshape(scales.shape), amax

    failed, counted = rules_of(kernel, scale_layout=declared, multiple=(128, 64), families=("normal", "layout"))
    assert SCALES[declared] in failed
    assert all(name.startswith("LAY-") for name in failed), failed
    assert {"PACK-1", "GLB-1", "BLK-3", "BLK-4"} <= counted


@pytest.mark.rule("CNF-76")
def test_swapped_nibbles_break_the_rule_on_packing_only():
    def kernel(x):
        data, scales, amax = good(x)
        return data << 4 | data >> 4, scales, amax

    failed, counted = rules_of(kernel, families=("normal", "element-ties"), multiple=(1, 2))
    assert failed == {"PACK-1"}
    assert {"E2M1-3", "BLK-5", "BLK-3", "LAY-1"} <= counted


@pytest.mark.rule("CNF-24")
def test_a_wrong_amax_breaks_the_rule_on_the_amax_only():
    def kernel(x):
        amax = np.abs(np.asarray(x, np.float32)).max(initial=0)
        other = np.nextafter(amax, np.float32(np.inf)).reshape(1).astype(np.float32)
        return good(x, amax=other)

    failed, counted = rules_of(kernel)
    assert failed == {"GLB-1"}
    assert {"BLK-3", "BLK-4", "BLK-5", "E2M1-3"} <= counted


@pytest.mark.rule("CNF-24")
def test_wrong_scales_do_not_break_rules_on_codes():
    """The scale of a block in which it has codes for that scale: those of another specification with this byte."""
    spec = fp4ref.NVFP4.replace(name="truncated", scale=replace(fp4ref.NVFP4.scale, rounding=Rounding.TRUNCATE))

    failed, counted = rules_of(lambda x: good(x, spec))
    assert "BLK-3" in failed
    assert failed <= {"BLK-1", "BLK-2", "BLK-3", "E4M3-2", "GLB-2", "GLB-3"}, failed
    assert {"BLK-4", "BLK-5", "E2M1-3", "PACK-1", "LAY-1", "GLB-1"} <= counted


@pytest.mark.rule("CNF-24")
def test_wrong_codes_do_not_break_rules_on_scales():
    spec = fp4ref.NVFP4.replace(name="away", element=replace(fp4ref.NVFP4.element, rounding=Rounding.AWAY))
    failed, counted = rules_of(lambda x: good(x, spec), families=("element-ties",))
    assert failed == {"E2M1-3", "BLK-4"}
    assert {"BLK-3", "GLB-1"} <= counted


@pytest.mark.rule("CNF-24")
def test_a_scale_that_is_stored_wrongly_and_used_rightly_leaves_codes_right():
    def kernel(x):
        data, scales, amax = good(x)
        return data, np.where(scales > 1, scales - 1, scales).astype(np.uint8), amax

    failed, _ = rules_of(kernel)
    assert not failed & {"BLK-4", "BLK-5", "E2M1-3", "PACK-1"}
    assert "BLK-3" in failed


@pytest.mark.rule("CNF-77")
def test_where_nothing_was_compared_no_rule_is_counted():
    def kernel(x):
        raise ValueError("no")

    assert rules_of(kernel) == (set(), set())


@pytest.mark.rule("CNF-24")
def test_codec_rules_belong_to_the_stage_that_has_the_codec():
    nvfp4, mxfp8 = fp4ref.NVFP4, fp4ref.profiles["mxfp8-e4m3"]
    assert decides("E4M3-2", nvfp4) == {"scale"}
    assert decides("E4M3-2", mxfp8) == {Stage.NEAREST}
    assert decides("E2M1-3", nvfp4) == {Stage.NEAREST}
    assert decides("E4M3-6", mxfp8) == {Stage.SIGN}
    assert decides("E8M0-2", mxfp8) == {"scale"}
    known = {*defined(), *(name.rpartition("-")[0] for name in defined())}
    assert {*DECIDES, *KEEPS_SIGN.values()} <= known


def changed(kernel_of_codes, spec="nvfp4"):
    """A kernel whose codes, one a byte, are changed by a function of x, codes and scale bytes of every element."""
    form = fp4ref.profiles[spec]

    def kernel(x):
        data, scales, *amax = good(x, spec)
        wide = np.asarray(x, np.float32)
        codes = data if form.element.format.bits == 8 else np.stack([data & 15, data >> 4], -1).reshape(len(x), -1)
        per = np.repeat(scales, form.block.columns, 1)[:, : x.shape[1]]
        codes = kernel_of_codes(wide, codes[:, : x.shape[1]], per).astype(np.uint8)
        stored = codes if form.element.format.bits == 8 else codes[:, ::2] | codes[:, 1::2] << 4
        return (stored, scales, *amax)

    return kernel


@pytest.mark.rule("CNF-24")
@pytest.mark.parametrize(
    "change, broken",
    [
        (lambda x, codes, s: np.where(np.isnan(x), 2, codes), {"E2M1-5"}),
        (lambda x, codes, s: np.where((x < 0) & (codes & 7 > 0), codes ^ 8, codes), {"E2M1-2"}),
        (lambda x, codes, s: np.where((codes & 7) == 5, codes - 1, codes), {"E2M1-3", "BLK-4", "BLK-5"}),
        (lambda x, codes, s: np.where((s == 0) & (x > 0), 1, codes), {"BLK-4", "BLK-6"}),
    ],
    ids=["NaN", "sign", "magnitude", "scale 0"],
)
def test_a_rule_on_some_codes_does_not_fail_for_others(change, broken):
    families = ("normal", "nan", "minus-zero", "scale-underflow", "element-ties")
    failed, counted = rules_of(changed(change), families=families, multiple=(1, 16), leading=False, empty=False)
    assert {"E2M1-2", "E2M1-3", "E2M1-5", "BLK-4", "BLK-5", "BLK-6"} <= counted
    assert failed == broken


@pytest.mark.rule("CNF-77")
@pytest.mark.parametrize("declared, rule", SCALES.items())
def test_rules_on_other_layouts_are_not_counted(declared, rule):
    def kernel(x):
        return good(x, scale_layout=declared)

    subject = Subject.of(kernel, scale_layout=declared, dtypes=("float32",))
    for item in run(subject, cases_of(subject.declaration, fp4ref.NVFP4, families=["layout"])):
        judged = judge(item.case, item.outcome, subject.declaration, item.expected)
        assert {name for name in judged.rules if name in {"LAY-1", "LAY-2", "LAY-3", "LAY-4"}} == {rule}
        assert "LAY-7" in judged.rules
