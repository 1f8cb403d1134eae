from __future__ import annotations

import numpy as np
import pytest

import fp4ref
from fp4ref.conformance import families
from fp4ref.conformance.calling import Caller
from fp4ref.conformance.subject import Declaration, Kind, golden, job_of

NVFP4 = fp4ref.NVFP4


def good(x):
    q = fp4ref.quantize(x, "nvfp4", backend="numpy")
    return q.row.data, q.row.scales, q.row.amax


@pytest.mark.rule("CNF-14")
def test_a_call_that_changes_what_an_earlier_one_returned():
    buffers: dict[tuple[int, ...], tuple[np.ndarray, ...]] = {}

    def static(x):
        found = good(x)
        kept = buffers.setdefault(x.shape, found)
        for buffer, part in zip(kept, found, strict=True):
            buffer[...] = part
        return kept

    cases = list(families.cases(NVFP4, families=["normal"]))
    jobs = [job_of(case, Declaration(), golden(case)) for case in (cases[0], cases[0], cases[1], cases[2])]
    caller = Caller(static, Declaration())
    found = [caller.call(job, remember=True).finding for job in jobs]
    assert found[:2] == [None, None]
    assert {each.kind for each in found if each is not None} == {Kind.OVERWRITTEN}
    assert "bytes of data that an earlier call returned" in next(each for each in found if each is not None).text
    assert [Caller(static, Declaration()).call(job).finding for job in jobs] == [None] * len(jobs)
