from __future__ import annotations

import numpy as np
import pytest

import fp4ref
from fp4ref.conformance import families
from fp4ref.conformance.judge.cases import Zeros, judge
from fp4ref.conformance.run.runner import run
from fp4ref.conformance.subjects.subject import Subject
from fp4ref.testing import assert_conforms

ZERO = "wrong: everything that was returned is zero; "
OPERANDS = ("a_data", "a_scales", "a_amax", "b_data", "b_scales", "b_amax")


def shapes(x):
    rows, columns = int(np.prod(x.shape[:-1])), x.shape[-1]
    return (rows, -(-columns // 2)), (rows, -(-columns // 16))


def zeros(x):
    data, scales = shapes(x)
    return np.zeros(data, np.uint8), np.zeros(scales, np.uint8), np.zeros(1, np.float32)


def zeros_without_amax(x):
    return zeros(x)[:2]


@fp4ref.kernel(out_buffers=True)
def writes_nothing(x, out): ...


@fp4ref.kernel(operation="dequantize", inputs=("data", "scales", "amax"), outputs=("values",), multiple=(1, 2))
def no_values(data, scales, amax):
    return np.zeros((len(data), 2 * data.shape[1]), np.float32)


@fp4ref.kernel(operation="gemm", inputs=OPERANDS, outputs=("values",))
def no_product(a, sa, ga, b, sb, gb):
    return np.zeros((len(a), len(b)), np.float32)


@fp4ref.kernel(operation="gemm", inputs=OPERANDS, outputs=("values",), out_buffers=True)
def no_product_written(a, sa, ga, b, sb, gb, out): ...


def zeros_if_large(x):
    q = fp4ref.quantize(x, "nvfp4", backend="numpy")
    return zeros(x) if x.shape[-1] > 64 else (q.row.data, q.row.scales, q.row.amax)


def no_codes(x):
    q = fp4ref.quantize(x, "nvfp4", backend="numpy")
    return q.row.data * 0, q.row.scales, q.row.amax


def changed(part, change):
    """Return a kernel of which one part is replaced; no declaration says whether it returns an amax."""

    def kernel(x):
        q = fp4ref.quantize(x, "nvfp4", backend="numpy").row
        q = q._replace(**{part: change(getattr(q, part))})
        return q.data, q.scales, q.amax

    return kernel


def said(kernel, names) -> str:
    with pytest.raises(AssertionError) as error:
        assert_conforms(kernel, "nvfp4", families=names)
    return str(error.value).splitlines()[0]


@pytest.mark.rule("CNF-35")
@pytest.mark.parametrize(
    ("kernel", "names", "text"),
    [
        (zeros, ["normal", "zero-blocks"], ZERO),
        (zeros_without_amax, ["normal"], ZERO),
        (no_values, ["normal"], ZERO),
        (no_product, ["powers"], ZERO),
        (
            writes_nothing,
            ["normal"],
            "in 6 of 6 cases, first normal/1/f32/row: nothing was written: ",
        ),
        (no_product_written, ["powers"], "nothing was written: every byte of values is as it was before the call"),
    ],
)
def test_nothing_is_a_diagnosis_of_its_own(kernel, names, text):
    assert text in said(kernel, names)


@pytest.mark.sampled(3)
@pytest.mark.rule("CNF-35")
@pytest.mark.parametrize(("kernel", "only"), [(zeros, True), (zeros_if_large, False), (no_codes, False)])
def test_some_zeros_are_not_everything(kernel, only):
    found, subject = Zeros(), Subject.of(kernel)
    for item in run(subject, families.cases(fp4ref.NVFP4, families=["normal", "ragged", "zero-blocks"])):
        found.add(judge(item.case, item.outcome, subject.declaration, item.expected))
    assert found.only is only


@pytest.mark.sampled(4)
@pytest.mark.rule("CNF-35", "CNF-2")
@pytest.mark.parametrize(
    ("part", "change", "text"),
    [
        ("data", np.zeros_like, "every code is 0, or not written"),
        ("scales", np.zeros_like, "every scale byte is 0, or not written"),
        ("scales", lambda s: np.full_like(s, 0x38), "scale bytes are 0x38"),
        ("amax", np.zeros_like, "0 is returned as amax"),
        ("amax", lambda a: np.full_like(a, 0.005), "the amax that is returned is always 0.005; scales and codes"),
        ("amax", lambda a: a * np.float32(0.5), "the amax that is returned is 0.5 times what it should be; scales"),
        ("amax", np.sqrt, "the amax that is returned is not the tensor's: "),
    ],
)
def test_one_part_that_is_never_right_is_the_cause(part, change, text):
    verdict = said(changed(part, change), ["normal", "ragged", "layout", "outlier"])
    assert f"wrong: {text}" in verdict
    assert verdict.count(";") == (2 if "returned is" in text else 1)  # no second cause
