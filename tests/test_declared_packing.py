"""Data that are packed in another way than declared are told so, in terms of both packings."""

import numpy as np
import pytest

import fp4ref
from collected import collected
from fp4ref.conformance import families
from fp4ref.conformance.judge.cases import judge
from fp4ref.conformance.run import runner
from fp4ref.conformance.subjects.subject import Subject
from fp4ref.conformance.verdict.kernel_report import KernelReport
from fp4ref.packings import repack


def headline(declared, stored, scales=lambda scales: scales):
    @fp4ref.kernel(outputs=("data", "scales"), packing=declared, multiple=(1, 64))
    def kernel(x):
        row = fp4ref.quantize(x, "mxfp4", backend="numpy").row
        return repack(row.data, x.size // x.shape[-1], x.shape[-1], "canonical", stored, bits=4), scales(row.scales)

    subject = Subject.of(kernel)
    chosen = families.cases(
        fp4ref.MXFP4, directions=("row",), dtypes=("float32",), multiple=(1, 64), families=("normal", "layout", "wide")
    )
    report = KernelReport("kernel", fp4ref.MXFP4, subject.declaration)
    runs = runner.run(subject, [case for case in chosen if case.x.ndim == 2])
    return collected(report, (judge(r.case, r.outcome, subject.declaration, r.expected) for r in runs)).headline


@pytest.mark.rule("CNF-26", "PACK-7")
@pytest.mark.parametrize(
    ("declared", "stored"), [("high_first", "low_first"), ("pairs_16", "high_first"), ("words_big", "pairs_8")]
)
def test_the_packing_that_is_stored_is_named(declared, stored):
    assert headline(declared, stored).startswith(f"wrong: data are packed as {stored} where {declared} is declared; ")


@pytest.mark.rule("CNF-26")
def test_a_second_mistake_is_told_after_it():
    found = headline("high_first", "low_first", lambda scales: np.ascontiguousarray(scales[:, ::-1]))
    assert found.startswith("wrong: data are packed as low_first where high_first is declared; scales are in reverse ")


def test_a_right_kernel_conforms():
    assert headline("high_first", "high_first").startswith("conforms to mxfp4: ")


@pytest.mark.rule("CNF-26", "PACK-6")
@pytest.mark.parametrize("second", ["", "the scales of the next row"])
def test_six_bit_codes_from_the_highest_bit_down_are_named(second):
    def high_first(x):
        q = fp4ref.quantize(x, "mxfp6-e2m3", backend="numpy").row
        codes = np.unpackbits(q.data, axis=1, bitorder="little")[:, : x.shape[-1] * 6].reshape(len(q.data), -1, 6)
        data = np.packbits(codes[:, :, ::-1].reshape(len(codes), -1), axis=1)
        return data, np.concatenate([q.scales[1:], q.scales[-1:]]) if second else q.scales

    subject = Subject.of(high_first, outputs=("data", "scales"))
    cases = [case for case in families.cases(fp4ref.catalogue.resolve("mxfp6-e2m3")) if case.family == "ragged"]
    found = (judge(r.case, r.outcome, subject.declaration, r.expected) for r in runner.run(subject, cases))
    report = collected(KernelReport("kernel", cases[0].spec, subject.declaration), found)
    assert "6-bit codes are stored from the highest bit of each byte down" in report.headline
    assert ("next row" in report.headline) == bool(second)
