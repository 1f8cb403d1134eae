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


@pytest.mark.rule("CNF-35")
@pytest.mark.parametrize(("kernel", "only"), [(zeros, True), (zeros_if_large, False), (no_codes, False)])
def test_some_zeros_are_not_everything(kernel, only):
    found, subject = Zeros(), Subject.of(kernel)
    for item in run(subject, families.cases(fp4ref.NVFP4, families=["normal", "ragged", "zero-blocks"])):
        found.add(judge(item.case, item.outcome, subject.declaration, item.expected))
    assert found.only is only
