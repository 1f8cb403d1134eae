"""Scales in tiled layouts: whole lines of memory, the threads that share the work, and what is left at the ends."""

from __future__ import annotations

import signal
import threading
import time

import ml_dtypes
import numpy as np
import pytest

import fp4ref
from fp4ref import registry
from fp4ref.registry import Call
from fp4ref_cpu import threads
from same_bytes import same_by

FINE = fp4ref.NVFP4.replace(name="fine", block=(1, 8))  # more scales than are gathered for whole lines
ODD = fp4ref.MXFP8_E4M3.replace(name="odd", block=(3, 32))
LAYOUTS = ("tiled_128x4", "tiled_8x4", "cutlass.sf_mn_major", "torchao.to_blocked", "linear_padded")
MIXED = fp4ref.Layout("lines.mixed", "m(2,4,16,*) k(4,*): k0 m1 m0 m2 k1 m3")  # lines of other rows
LARGE = 1 << 20  # elements for several threads


@pytest.mark.sampled(3)
@pytest.mark.rule("BLK-1", "LAY-1", "LAY-3", "LAY-5")
@pytest.mark.parametrize(
    "spec", [fp4ref.NVFP4, fp4ref.NVFP4_2D, fp4ref.MXFP8_E4M3, FINE, ODD], ids=lambda spec: spec.name
)
@pytest.mark.parametrize("direction", ["row", "column"])
def test_large_matrices_with_tiled_scales(spec, direction, monkeypatch):
    """Eight units of 128 rows and one that has fewer; columns of a second unit, and scales that are no whole piece."""
    shape = (8 * 128 + 70, 8192 + 100)
    x = np.random.default_rng(5).standard_normal(shape, np.float32).astype(ml_dtypes.bfloat16)
    monkeypatch.setenv("FP4REF_NUM_THREADS", "2")
    same_by("cpu", x if direction == "row" else x.T, spec, direction, "tiled_128x4")


@pytest.mark.rule("LAY-1", "LAY-3", "LAY-5", "LAY-6")
@pytest.mark.parametrize("form", [*map(fp4ref.LAYOUTS.get, LAYOUTS), MIXED], ids=lambda form: form.name)
@pytest.mark.parametrize("shape", [(128, 32), (127, 64), (300, 100), (257, 31), (1, 40), (640, 64)])
def test_whole_lines_of_scales_are_moved_both_ways(form, shape):
    scales = np.random.default_rng(sum(shape)).integers(0, 256, shape, np.uint8)
    native, linear = registry.get("cpu"), fp4ref.LAYOUTS["linear"]
    moved = native.to_layout(Call("to_layout", layout=linear, shape=shape, target=form), scales)
    assert np.array_equal(moved, form.from_linear(scales))
    moved[...] = np.where(form.from_linear(np.ones_like(scales)), moved, 0xA5)  # padding that is read would be seen
    back = native.to_layout(Call("to_layout", layout=form, shape=shape, target=linear), moved)
    assert np.array_equal(back, scales)


def working(calls, *, slowly=0.0):
    """Return a function of a job that counts its calls, as a native one that has nothing left to do."""

    def work(job):
        time.sleep(slowly)
        calls.append(threading.get_ident())

    return work


def test_a_job_runs_on_every_thread_again_and_again(monkeypatch):
    monkeypatch.setenv("FP4REF_NUM_THREADS", "3")
    for _ in range(200):
        calls = []
        threads.run_at(working(calls), None, LARGE)
        assert len(calls) == 3
        assert threading.get_ident() in calls
    assert len(set(calls)) >= 2


def test_an_error_in_another_thread_is_raised_when_all_have_ended(monkeypatch):
    monkeypatch.setenv("FP4REF_NUM_THREADS", "3")
    mine, ended = threading.get_ident(), []

    def work(job):
        if threading.get_ident() != mine:
            time.sleep(0.01)
            ended.append(0)
            raise ZeroDivisionError

    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            threads.run_at(work, None, LARGE)
    assert len(ended) == 4
    calls = []
    threads.run_at(working(calls), None, LARGE)
    assert len(calls) == 3


def test_callers_at_the_same_time_do_not_wait_for_each_other(monkeypatch):
    monkeypatch.setenv("FP4REF_NUM_THREADS", "2")
    gate = threading.Barrier(3, timeout=30)

    def work(job):
        if threading.current_thread().name != "fp4ref-cpu":
            gate.wait()

    callers = [threading.Thread(target=threads.run_at, args=(work, None, LARGE)) for _ in range(3)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(60)
    assert not gate.broken
    assert not any(caller.is_alive() for caller in callers)


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="needs signals of threads")
def test_an_interrupt_waits_for_the_other_threads(monkeypatch):
    """Their buffers belong to the caller."""
    monkeypatch.setenv("FP4REF_NUM_THREADS", "2")
    mine, ended = threading.get_ident(), []

    def work(job):
        if threading.get_ident() != mine:
            time.sleep(0.1)
            signal.pthread_kill(mine, signal.SIGINT)
            time.sleep(0.1)
            ended.append(0)

    for count in (1, 2):
        with pytest.raises(KeyboardInterrupt):
            threads.run_at(work, None, LARGE)
        assert len(ended) == count
    calls = []
    threads.run_at(working(calls), None, LARGE)
    assert len(calls) == 2
