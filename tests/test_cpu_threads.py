"""Threads of the CPU backend when an interrupt comes while a job is being started."""

from __future__ import annotations

import threading
import time

import pytest

from fp4ref_cpu import threads

LARGE = 1 << 20  # elements for several threads


@pytest.mark.parametrize("place", [0, 1])
def test_an_interrupt_between_two_starts_waits_and_gives_the_workers_back(monkeypatch, place):
    """The workers that began write into memory of the caller; the others are there for the next job."""
    monkeypatch.setenv("FP4REF_NUM_THREADS", "3")
    monkeypatch.setattr(threads, "_workers", [])
    monkeypatch.setattr(threads, "_idle", [])
    begin, begun, ended = threads._Worker.begin, [], []

    def work(job):
        time.sleep(0.05)
        ended.append(threading.get_ident())

    def interrupted(self, function, job):
        if len(begun) == place:
            raise KeyboardInterrupt
        begun.append(self)
        begin(self, function, job)

    for _ in range(3):
        monkeypatch.setattr(threads._Worker, "begin", interrupted)
        with pytest.raises(KeyboardInterrupt):
            threads.run_at(work, None, LARGE)
        assert len(ended) == place
        monkeypatch.setattr(threads._Worker, "begin", begin)
        ended.clear()
        threads.run_at(work, None, LARGE)
        assert len(set(ended)) == 3
        assert len(threads._idle) == len(threads._workers) == 2
        begun.clear()
        ended.clear()


def test_an_interrupt_while_workers_are_awaited_waits_for_each_of_them(monkeypatch):
    monkeypatch.setenv("FP4REF_NUM_THREADS", "3")
    monkeypatch.setattr(threads, "_workers", [])
    monkeypatch.setattr(threads, "_idle", [])
    end, mine, ended, left = threads._Worker.end, threading.get_ident(), [], [2, 1]

    def work(job):
        if threading.get_ident() != mine:
            time.sleep(0.05)
            ended.append(0)

    def interrupted(self):
        if left and left.pop():
            raise KeyboardInterrupt
        return end(self)

    monkeypatch.setattr(threads._Worker, "end", interrupted)
    with pytest.raises(KeyboardInterrupt):
        threads.run_at(work, None, LARGE)
    assert len(ended) == 2
    assert len(threads._idle) == 2
