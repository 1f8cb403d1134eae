"""The diagnosis against kernels that are wrong on purpose, none of which knows the library of mistakes."""

import runpy
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from fp4ref.catalogue import PROFILES
from fp4ref.conformance.diagnose import diagnose, report_lines, verdict
from fp4ref.conformance.families import cases
from fp4ref.formats import STOCHASTIC_E2M1
from fp4ref.model.tiles import Matrix, widen
from fp4ref.quantized import DirectionData
from fp4ref.specs import NVFP4

MODULE = runpy.run_path(str(Path(__file__).parent / "mutants" / "quantizers.py"))
MUTANTS, CORRECT = MODULE["MUTANTS"], MODULE["CORRECT"]
LARGEST = 1 << 15  # elements
SECONDS = 30
SCORE = {}


@cache
def spec_of(name):
    return NVFP4.replace(name=name, element=STOCHASTIC_E2M1) if name == "nvfp4-stochastic" else PROFILES[name]


@cache
def inputs(name, direction):
    dtypes = ("bfloat16",) if direction == "column" else ("float32",)  # what a transform takes
    found = cases(spec_of(name), directions=(direction,), dtypes=dtypes)
    return [case for case in found if case.x.size and case.x.size <= LARGEST and case.amax is None]


def evidence(kernel):
    run, found = kernel(), []
    for case in inputs(kernel.spec, kernel.direction):
        matrix = Matrix(case.x, case.direction)
        x = widen(matrix[slice(0, matrix.shape[0]), slice(0, matrix.shape[1])])
        run.bits = case.random_bits
        with np.errstate(all="ignore"):
            found.append((case, DirectionData(*run(x, case.x.dtype))))
    return found


@pytest.mark.rule("CNF-1")
@pytest.mark.parametrize("kernel", CORRECT, ids=lambda kernel: kernel.__name__)
def test_correct_kernels_conform(kernel):
    found = diagnose(spec_of(kernel.spec), kernel.layout, evidence(kernel))
    assert found.conforms, report_lines(found)


@pytest.mark.rule("CNF-2")
@pytest.mark.parametrize("kernel", MUTANTS, ids=lambda kernel: kernel.__name__)
def test_mutants_are_caught_and_named(kernel):
    found = diagnose(spec_of(kernel.spec), kernel.layout, evidence(kernel), SECONDS)
    assert not found.conforms
    first = found.explanations[0] if found.explanations else found.partial
    named = () if first is None else first.names
    SCORE[kernel.__name__] = right = all(
        any(name.startswith(tuple(group.split("|"))) for name in named) for group in kernel.names
    )
    assert right, (verdict(found), *report_lines(found))
