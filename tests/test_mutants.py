"""Kernels that are wrong on purpose, through the whole kit; none of them knows the library of mistakes.

CI runs every mutant on its own cases until one of them differs, diagnoses every sixteenth, in the order of the stages,
and judges every fourth at one more multiple of shapes, every twentieth at another. `.ci/release` does all this for all
mutants, at more multiples, and for the mutants that say `release`.
"""

import os
import re
import runpy
import subprocess
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest

import fp4ref
from collected import collected
from covering import few
from fp4ref.catalogue import PROFILES
from fp4ref.conformance import families
from fp4ref.conformance.judge.cases import judge
from fp4ref.conformance.run import runner
from fp4ref.conformance.subjects.subject import Subject
from fp4ref.conformance.verdict.kernel_report import KernelReport
from fp4ref.formats import STOCHASTIC_E2M1
from fp4ref.model.tiles import Matrix, widen
from fp4ref.specs import NVFP4

SETS = [runpy.run_path(str(path)) for path in sorted((Path(__file__).parent / "mutants").glob("*.py"))]


def left_to_release(kernel):
    return getattr(kernel, "release", False)


MUTANTS = [kernel for kernels in SETS for kernel in kernels["MUTANTS"]]
FOR_CI = [kernel for kernel in MUTANTS if not left_to_release(kernel)]
SAMPLE = FOR_CI[::16]  # those that CI diagnoses
SOME, FEWER = FOR_CI[::4], FOR_CI[::20]  # and those that it judges at one more multiple, and at another
CORRECT = [kernel for kernels in SETS for kernel in kernels["CORRECT"]]
GOLDEN, MADE = runner.golden, {}
LARGEST = 1 << 20  # elements of a case; a kernel that is slow on purpose takes long for more


def golden(case):
    """The golden model's bytes of a case, made once for all kernels."""
    key = case.spec.name, case.id, case.x.shape, hash(case.x.tobytes())
    if key not in MADE:
        MADE[key] = GOLDEN(case)
    return MADE[key]


@cache
def spec_of(name):
    return NVFP4.replace(name=name, element=STOCHASTIC_E2M1) if name == "nvfp4-stochastic" else PROFILES[name]


@cache
def inputs(name, direction, dtypes=(), multiple=(1, 1), largest=LARGEST):
    dtypes = dtypes or (("bfloat16",) if direction == "column" else ("float32",))  # what a transform takes
    made = families.cases(spec_of(name), directions=(direction,), dtypes=dtypes, multiple=multiple)
    return [case for case in made if case.x.size <= largest]


def subject_of(kernel):
    """A function that makes the kernel's bytes of a tensor, declared as the kernel is called."""
    spec, direction = spec_of(kernel.spec), kernel.direction
    amax = ("amax",) if spec.global_scale != "none" else ()
    bits = ("random_bits",) if spec.stochastic else ()
    outputs = getattr(kernel, "outputs", ("data", "scales", *amax))

    def whole(x, direction):
        matrix = Matrix(x, direction)
        return matrix[slice(0, matrix.shape[0]), slice(0, matrix.shape[1])]

    taken = getattr(kernel, "taken", whole)

    @fp4ref.kernel(
        inputs=getattr(kernel, "inputs", ("x", *bits)),
        outputs=outputs,
        scale_layout=kernel.layout,
        direction=direction,
        strided=getattr(kernel, "strided", False),
    )
    def called(x, given=None):
        run = kernel()
        run.given, run.bits, run.ndim, run.shape = given, given, x.ndim, x.shape
        with np.errstate(all="ignore"):
            return run(widen(taken(x, direction)), x.dtype)[: len(outputs)]

    return spec, Subject.of(called)


def judgements(kernel, cases, monkeypatch):
    monkeypatch.setattr(runner, "golden", golden)
    _, subject = subject_of(kernel)
    for run in runner.run(subject, cases):
        yield judge(run.case, run.outcome, subject.declaration, run.expected)


def cases_of(kernel):
    multiple = getattr(kernel, "multiple", (1, 1))
    return inputs(kernel.spec, kernel.direction, getattr(kernel, "dtypes", ()), multiple, largest_of(kernel))


def largest_of(kernel):
    """Return the size up to which a kernel's cases are run: for some, no small one shows the mistake."""
    return getattr(kernel, "largest", LARGEST)


def verified(kernel, monkeypatch):
    spec, subject = subject_of(kernel)
    report = KernelReport(kernel.__name__, spec, subject.declaration)
    return collected(report, judgements(kernel, cases_of(kernel), monkeypatch))


@pytest.mark.sampled(3)
@pytest.mark.rule("CNF-1")
@pytest.mark.parametrize("kernel", few([*CORRECT], 6), ids=lambda kernel: kernel.__name__)
def test_correct_kernels_conform(kernel, monkeypatch):
    assert verified(kernel, monkeypatch).ok


def differs(kernel, cases, monkeypatch):
    """Return True at the first case whose bytes are wrong."""
    return any(not judgement.equal for judgement in judgements(kernel, cases, monkeypatch))


def in_ci(values, chosen):
    """Return parameters of which those that are not chosen are left to a release. chosen: a function of a value."""
    return [value if chosen(value) else pytest.param(value, marks=pytest.mark.release) for value in values]


def of_sets(release):
    """Yield the mutants of each set that a release alone runs, or that CI runs as well."""
    for kernels in SETS:
        chosen = [kernel for kernel in kernels["MUTANTS"] if left_to_release(kernel) is release]
        name = Path(kernels["__file__"]).stem
        if chosen:
            marks = pytest.mark.release if release else ()
            yield pytest.param(chosen, marks=marks, id=f"{name}-release" if release else name)


@pytest.mark.heavy  # runs all mutants
@pytest.mark.slow
@pytest.mark.rule("CNF-1")
@pytest.mark.parametrize("kernels", [*of_sets(release=False), *of_sets(release=True)])
def test_every_mutant_is_caught(kernels, monkeypatch):
    missed = [kernel.__name__ for kernel in kernels if not differs(kernel, cases_of(kernel), monkeypatch)]
    assert not missed


@pytest.mark.heavy  # each is a diagnosis over all cases
@pytest.mark.slow
@pytest.mark.rule("CNF-2")
@pytest.mark.parametrize("kernel", in_ci(MUTANTS, SAMPLE.__contains__), ids=lambda kernel: kernel.__name__)
def test_mutants_are_caught_and_named(kernel, monkeypatch, record_property):
    report = verified(kernel, monkeypatch)
    found = report.diagnosis
    first = None if found is None else next(iter(found.explanations), found.partial)
    named = [*(() if first is None else first.names), *(kind.value for kind in report.findings)]
    right = all(any(name.startswith(tuple(group.split("|"))) for name in named) for group in kernel.names)
    if kernel.says:  # the sentence as well, and nothing beside it
        right &= first is not None and len(first.names) == len(kernel.names)
        right &= re.search(kernel.says, report.headline) is not None
    told = kernel.__name__ if right else f"{kernel.__name__}: {report.headline}"  # the summary lists those not named
    record_property("mutant", (told, len(SAMPLE), not report.ok, right and not report.ok))
    assert not report.ok  # too few that are named fail the run of all


RAGGED_COLUMNS = """AmaxInVectorsOfEight AmaxInVectorsOfFourOfTheTensor AmaxWithoutTail DirtySpare LeftInRegisters
OneStreamOfNibbles PartialBlockDropped PartialBlockTakesTheScaleBefore RaggedColumns RowsAtMultiplesOf16
SpareHoldsTheNextRow SquaresSeeTheNextRow TailCodesZero TailIsTheNextRow TailIsTheRowBefore
TailPaddedWithOnes TailReadsNextRow VectorLoads
VectorsOfEightInBlockMaxima"""
RAGGED = f"{RAGGED_COLUMNS} AmaxOfFourRowsAtOnce LastSquareMovedUp OddLastRowIsTheOneBefore"
OTHER_TYPES = """AmaxBfloat16 AmaxToBfloat16 AmaxUpToBfloat16 BlockMaximaInBfloat16 CutInFloat16 ElementsThroughHalf
HalfSubnormalsFlushed MXThroughE5M2InFloat16 NaNInMaximaOfHalves NaNIsZeroInFloat16 OneLevelInFloat16
QuotientInHalfInFloat16 ReturnedAmaxIsNarrow RowAmaxCutToBfloat16 ScaleTiesAwayInFloat16 SquareCutInFloat32
SquareElementsInHalf TensorAmaxBf16 TiesDownInFloat16"""
# Those of many blocks or rows need larger cases there
BELOW_64 = """BlockIndexIsAByte ColumnsNotPadded ColumnsPast64 LastRowsShareTheirMaximum LastTileFilledFromItsEnd
MXCodesNotWrittenInTheTail MXTailPaddedWithInfinity PaddingColumnsRepeat RowsColumnsPast32 RowsFrom65535NotWritten
RowsPastAShort RowsWrapAt65536 TilesOfAWidthRoundedDown TilesOverlap"""
BELOW_128 = "AmaxInVectorsOf128 ColumnsPast128NotWritten MXColumnsPast128"
BFLOAT16, ALL = ("bfloat16",), ("float32", "bfloat16", "float16")
# Kernels that are right wherever rows and columns are such multiples, and in these types.
CANNOT_SHOW = {
    ((1, 16), BFLOAT16): f"{RAGGED_COLUMNS} {OTHER_TYPES}",  # no partial block; maxima that bfloat16 holds exactly
    ((1, 16), ALL): RAGGED_COLUMNS,
    ((16, 16), BFLOAT16): f"{RAGGED} {OTHER_TYPES}",
    ((16, 16), ALL): RAGGED,
    ((64, 64), BFLOAT16): f"{RAGGED} {OTHER_TYPES} {BELOW_64}",
    ((64, 64), ALL): f"{RAGGED} {BELOW_64}",  # nothing past a multiple of 64
    ((128, 128), BFLOAT16): f"{RAGGED} {OTHER_TYPES} {BELOW_64} {BELOW_128}",
    ((128, 128), ALL): f"{RAGGED} {BELOW_64} {BELOW_128}",  # nothing past a multiple of 128
}
AT_MULTIPLES = [
    pytest.param(((16, 16), BFLOAT16), SOME, id="some"),
    pytest.param(((128, 128), ALL), FEWER, id="fewer"),
    *(pytest.param(setting, MUTANTS, id=str(setting), marks=pytest.mark.release) for setting in CANNOT_SHOW),
]


@pytest.mark.heavy
@pytest.mark.slow  # every kernel on the cases of two multiples
@pytest.mark.rule("CNF-19")
@pytest.mark.parametrize(("setting", "kernels"), AT_MULTIPLES)
def test_mutants_are_caught_at_every_multiple(setting, kernels, monkeypatch):
    (multiple, dtypes), conform = setting, set()
    for kernel in sorted(kernels, key=lambda kernel: (kernel.spec, kernel.direction)):
        if getattr(kernel, "multiple", (1, 1)) == (1, 1):
            types = ("bfloat16",) if spec_of(kernel.spec).hadamard else dtypes  # those of a transform
            if not differs(
                kernel, inputs(kernel.spec, kernel.direction, types, multiple, largest_of(kernel)), monkeypatch
            ):
                conform.add(kernel.__name__)
    assert conform == set(CANNOT_SHOW[setting].split()) & {kernel.__name__ for kernel in kernels}


FEW = (
    "AmaxUpToE4M3",
    "SquaresMirrored",
    "TransformSkippedInOddGroups",
    "TransformOfEvenGroupsOnly",
    "MXColumnUsesScalesOfRows",
    "ScaleRowPairsExchanged",
    "RowBeforeAtTileEnd",
)
LONG = {
    "TransformSkippedInOddGroups",
    "TransformOfEvenGroupsOnly",
    "RowBeforeAtTileEnd",
}  # two seconds each: with the heavy ones


def of_few(kernel):
    marks = [pytest.mark.heavy] if kernel.__name__ in LONG else []
    return pytest.param(kernel, marks=marks, id=kernel.__name__)


@pytest.mark.sampled(4)
@pytest.mark.slow  # each is a diagnosis over all cases
@pytest.mark.rule("CNF-2", "CNF-26", "CNF-28")
@pytest.mark.parametrize("kernel", [of_few(kernel) for kernel in MUTANTS if kernel.__name__ in FEW])
def test_a_few_mutants_are_said(kernel, monkeypatch):
    report = verified(kernel, monkeypatch)
    assert re.search(kernel.says, report.headline), report.headline
    assert len(report.diagnosis.explanations[0].names) == len(kernel.names)


@pytest.mark.heavy
@pytest.mark.slow  # runs of pytest
@pytest.mark.parametrize(
    "right, wrong, workers, status",
    few([(8, (True, False), 2, 1), (9, (True, False), 0, 0), (9, (False, False), 0, 1)], 2),
)
def test_too_few_named_fail_the_run_of_all(right, wrong, workers, status, tmp_path):
    (tmp_path / "conftest.py").write_text((Path(__file__).parent / "conftest.py").read_text())
    outcomes = [(True, True)] * right + [wrong] * (10 - right)
    (tmp_path / "test_them.py").write_text(
        f"""
import pytest

@pytest.mark.parametrize("outcome", {outcomes})
def test_mutant(outcome, record_property):
    record_property("mutant", ("Mutant", 10, *outcome))
"""
    )
    shared = ["-p", "xdist", "-n", str(workers)] if workers else []
    command = [sys.executable, "-m", "pytest", "-q", *shared, "-p", "no:cacheprovider", "test_them.py"]
    shares = str(Path(__file__).parent / "common")
    alone = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": shares}
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, env=alone)
    assert run.returncode == status, run.stdout + run.stderr
    assert "mutants: " in run.stdout
    assert ("need 100 % caught" in run.stdout) == bool(status)


def test_there_are_enough_mutants():
    assert len(FOR_CI) >= 400
    assert len(SAMPLE) >= len(FOR_CI) / 16
    assert sum(len(kernel.names) > 1 for kernel in MUTANTS) >= 10
