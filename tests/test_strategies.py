from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import HealthCheck, find, given, settings
from hypothesis import strategies as st

import fp4ref
from fp4ref import strategies as fp4
from fp4ref.errors import DomainError
from fp4ref.layout import LAYOUTS
from fp4ref.spec import from_json

QUICK = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@pytest.mark.rule("SPC-1", "SPC-2", "SPC-3")
@QUICK
@given(spec=fp4.specs(stochastic=True))
def test_drawn_specifications_are_legal_and_survive_json(spec):
    assert from_json(spec.to_json()) == spec


@QUICK
@given(data=st.data())
def test_what_is_drawn_can_be_quantized(data):
    spec = data.draw(fp4.specs(stochastic=True))
    x = data.draw(fp4.tensors(spec, families=["ragged", "minus-zero"]))
    rows, columns = int(np.prod(x.shape[:-1])), x.shape[-1]
    bits = data.draw(fp4.random_bits((rows, columns))) if spec.stochastic else None
    layout = data.draw(fp4.layouts())
    q = fp4ref.quantize(x, spec, scale_layout=layout, random_bits=bits, backend="numpy")
    assert q.row.scales.shape == LAYOUTS[layout].padded_shape(rows, -(-columns // spec.block.columns))


@pytest.mark.parametrize(
    "wanted",
    [
        lambda spec: spec.hadamard is not None and spec.block.rows == 16,
        lambda spec: spec.four_over_six is not None and spec.global_scale == "row",
        lambda spec: spec.stochastic,
        lambda spec: spec.block.columns == 7,
    ],
)
def test_every_corner_can_be_drawn(wanted):
    spec = find(fp4.specs(stochastic=True), wanted, settings=settings(max_examples=5000, deadline=None, database=None))
    assert wanted(spec)


@pytest.mark.rule("CNF-7")
def test_cases_are_of_the_families_that_were_asked_for():
    @settings(max_examples=10, deadline=None)
    @given(case=fp4.cases("nvfp4", families=["nan"], dtypes=["bfloat16"]))
    def check(case):
        assert case.family == "nan"
        assert case.x.dtype.name == "bfloat16"

    check()
    with pytest.raises(DomainError, match="family 'unknown'"):
        find(fp4.cases("nvfp4", families=["unknown"]), lambda case: True)
    with pytest.raises(DomainError, match="some family is made for"):
        find(fp4.cases("nvfp4-rht", dtypes=["float32"], direction="column"), lambda case: True)


def test_a_wrong_kernel_is_found_by_tensors():
    def away(x):
        q = fp4ref.quantize(x, "nvfp4", backend="numpy")
        return q.row.data ^ (0x08 * (q.row.data & 0xF == 0)).astype(np.uint8)

    found = find(
        fp4.tensors("nvfp4"),
        lambda x: not np.array_equal(away(x), fp4ref.quantize(x, "nvfp4", backend="numpy").row.data),
        settings=settings(max_examples=200, deadline=None, database=None),
    )
    assert found.size


def test_without_hypothesis_the_message_names_it():
    code = "import sys; sys.modules['hypothesis'] = None; import fp4ref.strategies"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == 1
    assert "hypothesis" in run.stderr.splitlines()[-1]
