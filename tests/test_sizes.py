"""Kernels that are wrong only somewhere: in some rows, columns, tiles or types, or past some size."""

from __future__ import annotations

import numpy as np
import pytest

import fp4ref
from fp4ref.conformance import families
from fp4ref.conformance.judge.cases import judge
from fp4ref.conformance.run import runner
from fp4ref.conformance.subjects.subject import Subject, cases_of
from fp4ref.specs import STANDARD

NVFP4, MXFP4 = fp4ref.NVFP4, fp4ref.MXFP4


def model(x, spec=NVFP4, direction="row"):
    q = fp4ref.quantize(x, spec, direction, backend="numpy").direction(direction)[0]
    return q.data.copy(), q.scales, q.amax


def first_failure(function, spec=NVFP4, level=1, names=None, **declared):
    subject = Subject.of(function, **declared)
    for run in runner.run(subject, cases_of(subject.declaration, spec, level=level, families=names)):
        if not judge(run.case, run.outcome, subject.declaration, run.expected).equal:
            return run.case.id
    return ""


def where(rows=slice(None), columns=slice(None)):
    """A kernel whose codes lose their lowest bit in some rows and some bytes of them."""

    def kernel(x):
        data, scales, amax = model(x)
        data[rows, columns] &= 0xEE
        return data, scales, amax

    return kernel


PLACES = {
    "row 127 of a tile": where(slice(127, None, 128)),
    "rows from 256 on": where(slice(256, None)),
    "rows of the last tile": where(slice(288, None)),
    "columns past the last multiple of 64": where(columns=slice(1088 // 2, None)),
    "columns past 1024": where(columns=slice(1024 // 2, None)),
    "a lane of a warp": where(columns=slice(31, None, 32)),
    "the first block of a tile": where(slice(128, None, 128), slice(0, 8)),
}


@pytest.mark.rule("CNF-20")
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("name", PLACES)
def test_a_mistake_in_some_places_is_seen_in_every_type(name, dtype):
    assert first_failure(PLACES[name], names=["everywhere"], dtypes=(dtype,))


@pytest.mark.rule("CNF-20")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("spec", STANDARD, ids=lambda spec: spec.name)
def test_aimed_blocks_are_everywhere(spec, dtype):
    made = list(families.cases(spec, dtypes=[dtype], families=["everywhere"]))
    assert {case.x.ndim for case in made} == {2, 3}
    assert any(case.matrix[1] % spec.block.columns % 2 for case in made)
    for case in made:
        x = case.x.astype(np.float32)
        assert case.matrix[0] > 256
        assert np.isfinite(x).all()
        rows = x.reshape(case.matrix)
        distinct = [len(np.unique(rows[start : start + spec.block.rows])) for start in range(0, 256, spec.block.rows)]
        assert min(distinct) > 20
        if spec.global_scale == "tensor":
            assert np.flatnonzero(np.abs(x) == np.abs(x).max()).tolist() == [x.size - 1]


@pytest.mark.rule("CNF-20")
def test_ties_are_in_every_part_of_a_tensor():
    for case in families.cases(NVFP4, dtypes=["bfloat16"], families=["everywhere"]):
        away = case.x.astype(np.float32)
        away = np.copysign(np.nextafter(np.abs(away), np.float32(np.inf)), away)
        amax = np.float32([np.abs(case.x.astype(np.float32)).max()])
        up, even = (
            fp4ref.quantize(x, NVFP4, amax=amax, backend="numpy").row.data for x in (away, case.x.astype(np.float32))
        )
        moved = (up != even).reshape(-1, up.shape[-1])
        assert moved.any(axis=1).all()
        assert moved.any(axis=0).mean() > 0.99


def lost(limit):
    """Kernels that lose what a counter does not hold."""

    def rows(x):
        data, scales, amax = model(x)
        data[limit:] = 0
        return data, scales, amax

    def columns(x):
        data, scales, amax = model(x)
        data[:, limit // 2 :] = 0
        return data, scales, amax

    def elements(x):
        data, scales, amax = model(x)
        data.reshape(-1)[limit // 2 :] = 0
        return data, scales, amax

    def maximum(x):
        data, scales, amax = model(x)
        return data, scales, amax if amax is None else np.abs(x.astype(np.float32))[:limit].max(keepdims=True)[0]

    return {"rows": rows, "columns": columns, "elements": elements, "maximum": maximum}


@pytest.mark.slow
@pytest.mark.rule("CNF-20")
@pytest.mark.parametrize(
    "kernel, limit", [("rows", 65535), ("maximum", 65535), ("columns", 4096), ("columns", 16384), ("columns", 65535)]
)
def test_level_1_has_more_rows_and_columns_than_16_bits_count(kernel, limit):
    found = first_failure(lost(limit)[kernel], names=["sizes"], dtypes=("float32", "bfloat16"))
    assert found.startswith("sizes/")
    assert "/bf16/" in found


@pytest.mark.heavy
@pytest.mark.slow
@pytest.mark.rule("CNF-20")
def test_level_2_has_more_elements_than_float32_counts():
    assert first_failure(lost(1 << 24)["elements"], level=2, names=["sizes"], dtypes=("bfloat16",))
    named = [case.id for case in families.cases(MXFP4, 2, families=["sizes"])]
    assert len(named) == len(set(named)) == 7


@pytest.mark.rule("CNF-20", "CNF-104")
def test_sizes_are_multiples_and_have_a_bound():
    def shapes(multiple):
        return {case.x.shape for case in families.cases(NVFP4, families=["sizes"], multiple=multiple)}

    assert shapes((1, 64)) == {(65552, 64), (16, 65600)}
    assert shapes((1, 1024)) == {(16, 66560)}  # the other one would have 2^26 elements


@pytest.mark.rule("CNF-105")
def test_commands_use_level_2_by_default(tmp_path, monkeypatch):
    from click.testing import CliRunner

    from fp4ref.cli import main
    from fp4ref.testing import assert_conforms

    report = assert_conforms(model, "nvfp4", families=["every-pattern"], dtypes=("bfloat16",))
    assert report.cases == 16
    monkeypatch.chdir(tmp_path)
    command = ["gen", "nvfp4", "--family", "every-pattern", "--dtype", "bfloat16", "-o", "cases.bin"]
    assert CliRunner().invoke(main, command).exit_code == 0
    assert (tmp_path / "cases.bin").stat().st_size > 2 * 65280
