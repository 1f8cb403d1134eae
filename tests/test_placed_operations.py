"""Operations other than quantizers that are wrong in some places only are caught, and told with cause and place.

A few of them run by default, and every third in CI; `.ci/release` runs all.
"""

import re
import runpy
from pathlib import Path

import pytest

import fp4ref
from collected import collected
from covering import few
from fp4ref.conformance import families
from fp4ref.conformance.diagnosis.budget import OPERATION_SECONDS
from fp4ref.conformance.diagnosis.clock import processor_time
from fp4ref.conformance.diagnosis.products import diagnose
from fp4ref.conformance.judge.cases import judge
from fp4ref.conformance.run import runner
from fp4ref.conformance.subjects.subject import Subject
from fp4ref.conformance.verdict.kernel_report import KernelReport
from fp4ref.conformance.verdict.product_runs import check
from fp4ref.kernels import Declaration

MUTANTS = Path(__file__).parent / "mutants"
OWN = runpy.run_path(str(MUTANTS / "operations_and_products.py"))
PRODUCTS = runpy.run_path(str(MUTANTS / "products_placed.py"))["PLACED"] | OWN["PRODUCTS"]
OPERATIONS = runpy.run_path(str(MUTANTS / "operations_placed.py"))
PLACED = {name: item for name, item in OPERATIONS["PLACED"].items() if item[1] is not None} | OWN["PLACED"]
SOME = ("NibblesOfOddRows", "OnlyFirstTile")
FEW = ("columns past 64 doubled", "A swapped in odd rows", "bias of whole eights", "last column lost")


LATER = (*OWN["PRODUCTS"], *OWN["PLACED"])  # before a release only


def marked(names, default):
    """Return the names as parameters: some for every run, a sixth of the others for CI, the rest for a release."""
    seen = [name for name in names if name not in default and name not in LATER]
    heavy = [
        pytest.param(name, marks=[pytest.mark.heavy, *[pytest.mark.release] * bool(i % 6)])
        for i, name in enumerate(seen)
    ]
    later = [pytest.param(name, marks=[pytest.mark.heavy, pytest.mark.release]) for name in LATER if name in names]
    return [*default, *heavy, *[param for param in later if param.values[0] not in default]]


def spec_of(kernel):
    (name,) = (cell.cell_contents for cell in kernel.__closure__ if cell.cell_contents in tuple(fp4ref.profiles))
    return fp4ref.profiles[name]


@pytest.mark.slow  # each is called on every case
@pytest.mark.rule("CNF-2", "CNF-26", "GEM-13")
@pytest.mark.parametrize("name", few([*marked(PRODUCTS, FEW)], 2))
def test_products_are_caught_and_told_with_their_place(name):
    kernel, says = PRODUCTS[name]
    report = check(Subject.of(kernel), spec_of(kernel), seconds=4 * OPERATION_SECONDS)  # on a busy machine too
    assert not report.ok
    assert re.search(says, report.headline), report.headline


@pytest.mark.heavy
@pytest.mark.slow
@pytest.mark.rule("CNF-2", "CNF-10")
def test_the_diagnosis_of_a_product_ends_in_time():
    kernel, _ = PRODUCTS["halves of fragments"]
    report = check(Subject.of(kernel), spec_of(kernel), seconds=0)
    assert report.diagnosis is None
    evidence = [(item.case, item.got * (1 + item.got % 3)) for item in report.judgements]  # nothing explains it
    start = processor_time()
    found = diagnose(evidence, report.declaration, 0.5)
    assert processor_time() - start < 3  # one mistake more on every case
    assert not found.complete
    assert not found.explanations
    assert OPERATION_SECONDS < 10


def operation_report(kernel):
    spec, declared = fp4ref.profiles[kernel.spec], Declaration(**OPERATIONS["declared"](kernel))
    subject = Subject(kernel.__name__, declared, kernel())
    cases = families.cases(spec, directions=("row",), dtypes=("bfloat16",))
    runs = runner.run(subject, [case for case in cases if case.x.size <= 1 << 18])
    judged = (judge(run.case, run.outcome, declared, run.expected) for run in runs)
    return collected(
        KernelReport(kernel.__name__, spec, declared), judged, 4 * OPERATION_SECONDS
    )  # on a busy machine too


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.rule("CNF-2", "CNF-26")
@pytest.mark.parametrize("name", marked(PLACED, SOME))
def test_operations_are_caught_and_told_with_their_place(name):
    kernel, says = PLACED[name]
    report = operation_report(kernel)
    assert not report.ok
    assert re.search(says, report.headline), report.headline


def test_most_of_them_are_told():
    told = [says for _, says in (*PRODUCTS.values(), *PLACED.values()) if says]
    assert len(told) >= 0.8 * (len(PRODUCTS) + len(PLACED))
