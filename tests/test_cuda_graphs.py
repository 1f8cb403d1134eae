"""Graphs of launches: made of addresses that come again, started instead of them, never where they would differ."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from array import array
from types import SimpleNamespace
from typing import Any

import pytest

import fp4ref
from fp4ref.errors import BackendError
from tests.test_cuda import REASON

torch = pytest.importorskip("torch", exc_type=ImportError)
graphs = pytest.importorskip("fp4ref_cuda.graphs")
programs = pytest.importorskip("fp4ref_cuda.programs")

gpu = pytest.mark.gpu
on_device = pytest.mark.skipif(bool(REASON), reason=REASON or "runs")


class Told:
    """A graph that runs what it was told at once, on stream 0, and notes its starts."""

    made = alive = 0

    def __init__(self, record: Any, ordinal: int) -> None:
        type(self).made += 1
        self.idle, self.starts = False, 0
        record(0)

    def start(self, stream: int) -> None:
        self.idle = False
        self.starts += 1


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> type[Told]:
    monkeypatch.setattr(graphs, "Graph", Told)
    monkeypatch.setattr(Told, "made", 0)
    return Told


def meet(kept: Any, places: tuple[int, ...], times: int = 1, *, captures: bool = False) -> Any:
    library: Any = SimpleNamespace(ordinal=0, captures=lambda: captures)
    found = None
    for _ in range(times):
        found = None if captures else kept.made.get(places)
        found = found or kept.new(places, lambda stream: None, library)
    return found


def test_a_graph_is_made_of_addresses_that_come_again(told):
    kept = graphs.Graphs()
    assert meet(kept, (1, 2), graphs.MET) is None
    graph = meet(kept, (1, 2))
    assert graph is not None
    assert meet(kept, (1, 2)) is graph
    assert meet(kept, (1, 3), graphs.MET) is None
    assert told.made == 1


def test_addresses_that_never_come_again_take_bounded_memory(told):
    kept = graphs.Graphs()
    for at in range(3 * graphs.SEEN):
        assert meet(kept, (at,)) is None
    assert len(kept._met) <= graphs.SEEN
    assert told.made == 0


def test_graphs_in_use_stay_and_others_make_room(told):
    kept = graphs.Graphs()
    made = [meet(kept, (at,), graphs.MET + 1) for at in range(graphs.KEPT)]
    used, late = made[::2], graphs.KEPT
    assert meet(kept, (late,), (graphs.MET + 1) * graphs.REFUSED) is None  # all were new: there is no room yet
    for graph in used:
        graph.start(0)
    assert meet(kept, (late,), (graphs.MET + 1) * graphs.REFUSED) is not None
    assert len(kept.made) == len(used) + 1
    assert all(meet(kept, (at,)) is made[at] for at in range(0, graphs.KEPT, 2))


def test_a_loop_over_more_addresses_than_there_is_room_for_makes_no_graph_twice(told):
    kept = graphs.Graphs()
    for _ in range(20):
        for at in range(2 * graphs.KEPT):
            graph = meet(kept, (at,))
            if graph is not None:
                graph.start(0)
    assert told.made == graphs.KEPT


def test_what_the_caller_captures_is_started_one_by_one(told):
    kept = graphs.Graphs()
    assert meet(kept, (1,), 3 * graphs.MET, captures=True) is None
    assert meet(kept, (1,)) is not None
    assert meet(kept, (1,), captures=True) is None


def test_a_device_that_makes_no_graph_is_not_asked_again(told, monkeypatch):
    asked = []

    class Failing(Told):
        def __init__(self, record: Any, ordinal: int) -> None:
            asked.append(ordinal)
            raise BackendError("cuda: driver", "CUDA_ERROR_OUT_OF_MEMORY")

    monkeypatch.setattr(graphs, "Graph", Failing)
    kept = graphs.Graphs()
    assert meet(kept, (1,), graphs.MET + 5) is None
    assert meet(kept, (2,), graphs.MET + 5) is None
    assert asked == [0]


def test_a_process_has_so_many_graphs_at_most(told, monkeypatch):
    monkeypatch.setattr(told, "alive", graphs.MOST)
    assert meet(graphs.Graphs(), (1,), graphs.MET + 1) is None
    monkeypatch.setattr(told, "alive", graphs.MOST - 1)
    assert meet(graphs.Graphs(), (1,), graphs.MET + 1) is not None


def started_by(begin: Any) -> Any:
    """Return a graph whose start by the driver is a function of the test."""
    graph = object.__new__(graphs.Graph)
    graph._executable, graph._address, graph._begin, graph._lock = None, 5, begin, threading.Lock()
    return graph


def test_a_graph_starts_on_the_stream_that_it_is_given():
    noted: list[tuple[int, int]] = []
    graph = started_by(lambda address, stream: noted.append((address, stream)) or 0)
    graph.idle = True
    graph.start(9)
    assert noted == [(5, 9)]
    assert not graph.idle


def test_a_graph_that_does_not_start_is_an_error():
    pytest.importorskip("cuda.bindings")
    with pytest.raises(BackendError, match="a graph of launches: CUDA_ERROR_OUT_OF_MEMORY"):
        started_by(lambda address, stream: 2).start(9)


def test_two_threads_do_not_start_one_graph_at_once():
    inside, most = [0], [0]

    def begin(address: int, stream: int) -> int:
        inside[0] += 1
        most[0] = max(most[0], inside[0])
        time.sleep(0.01)
        inside[0] -= 1
        return 0

    graph = started_by(begin)
    threads = [threading.Thread(target=graph.start, args=(0,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1]


def test_a_program_starts_its_graph_instead_of_its_launches(told, monkeypatch):
    launched, starts = [], []
    monkeypatch.setattr(told, "start", lambda graph, stream: starts.append(stream))
    monkeypatch.setattr(programs, "enter", lambda library: None)
    captures = [False]
    steps = ((lambda stream, at: launched.append(stream), 0),)
    program = programs.Program(
        SimpleNamespace(ordinal=0, captures=lambda: captures[0], stream=lambda: 7),
        (),
        array("Q", [0] * 6),
        (),
        steps,
        lambda arrays: arrays,
        None,
        (),
        graphs.Graphs(),
        None,
        {},
    )
    for _ in range(graphs.MET + 3):
        assert program.again(("x", "out"), (1, 2)) == ("x", "out", None)
    assert launched == [7] * graphs.MET + [0]  # the last one while the graph is made
    assert starts == [7] * 3
    captures[0] = True
    program.again(("x", "out"), (1, 2))
    assert launched[-1] == 7
    assert len(starts) == 3


def forget() -> None:
    """Drop all programs, and the functions that keep some."""
    programs._programs.clear()
    fp4ref.repeats._repeats.clear()


def graph_count() -> int:
    return sum(len(each.graphs.made) for each in programs._programs.values())


SHAPE, LAYOUT = (256, 512), "tiled_128x4"


def golden(x: Any, directions: str) -> Any:
    return fp4ref.quantize(x.cpu(), fp4ref.NVFP4, directions, LAYOUT, backend="numpy")


@gpu
@on_device
@pytest.mark.rule("BLK-8")
@pytest.mark.parametrize("directions", ["row", "column", "both"])
def test_a_loop_over_the_same_memory_is_equal_to_the_golden_model(directions):
    forget()
    x = torch.empty(SHAPE, dtype=torch.bfloat16, device="cuda")
    first = fp4ref.quantize(x.normal_(), fp4ref.NVFP4, directions, LAYOUT)
    for at in range(4 * graphs.MET):
        x.normal_().mul_(2.0**at)
        new = fp4ref.quantize(x, fp4ref.NVFP4, directions, LAYOUT)
        into = fp4ref.quantize(x, fp4ref.NVFP4, directions, LAYOUT, out=first)
        assert new == into == golden(x, directions)
        del new, into
    assert graph_count() >= 2


@gpu
@on_device
@pytest.mark.rule("BLK-8")
def test_a_callers_graph_holds_the_launches_themselves(monkeypatch):
    forget()
    x = torch.randn(SHAPE, device="cuda").bfloat16()
    out = fp4ref.quantize(x, fp4ref.NVFP4, "both", LAYOUT)
    act = lambda: fp4ref.quantize(x, fp4ref.NVFP4, "both", LAYOUT, out=out)  # noqa: E731
    for _ in range(3 * graphs.MET):
        act()
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured), monkeypatch.context() as patched:
        patched.setattr(graphs.Graph, "start", lambda *_: pytest.fail("a graph inside of a graph"))
        act()
    forget()
    gc.collect()
    for _ in range(3):
        x.normal_()
        captured.replay()
        assert out == golden(x, "both")


@gpu
@on_device
@pytest.mark.rule("BLK-8")
def test_streams_and_threads_share_the_graphs_of_a_kind():
    forget()
    xs = [torch.randn(SHAPE, device="cuda").bfloat16() * 2.0**at for at in range(4)]
    expected = [golden(x, "both") for x in xs]
    torch.cuda.synchronize()
    wrong: list[int] = []

    def work(at: int) -> None:
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            out = fp4ref.quantize(xs[at], fp4ref.NVFP4, "both", LAYOUT)
            for turn in range(60):
                new = fp4ref.quantize(xs[at], fp4ref.NVFP4, "both", LAYOUT)
                fp4ref.quantize(xs[at], fp4ref.NVFP4, "both", LAYOUT, out=out)
                if turn % 20 == 0:
                    stream.synchronize()
                    wrong.extend([at] * (new != expected[at] or out != expected[at]))

    threads = [threading.Thread(target=work, args=(at,)) for at in range(len(xs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert graph_count()


@gpu
@on_device
@pytest.mark.rule("BLK-8")
def test_a_graph_that_runs_may_be_dropped():
    forget()
    x = torch.randn((4096, 4096), device="cuda").bfloat16()
    out = fp4ref.quantize(x, fp4ref.NVFP4, "both", LAYOUT)
    for _ in range(graphs.MET + 2):
        fp4ref.quantize(x, fp4ref.NVFP4, "both", LAYOUT, out=out)
    found = [weakref.ref(graph) for each in programs._programs.values() for graph in each.graphs.made.values()]
    assert found
    for _ in range(20):
        fp4ref.quantize(x, fp4ref.NVFP4, "both", LAYOUT, out=out)
    forget()
    gc.collect()
    assert not any(each() for each in found)
    assert out == golden(x, "both")


@gpu
@on_device
@pytest.mark.rule("BLK-8")
def test_graphs_made_or_dropped_during_a_capture_leave_it_whole():
    forget()
    x, y = (torch.randn(SHAPE, device="cuda").bfloat16() for _ in range(2))
    out = fp4ref.quantize(x, fp4ref.NVFP4, "row", LAYOUT)
    y.add(1)
    stream, failed = torch.cuda.Stream(), []
    torch.cuda.synchronize()

    def work() -> None:
        try:
            for _ in range(graphs.MET + 2):
                fp4ref.quantize(x, fp4ref.NVFP4, "row", LAYOUT, out=out)
        except (RuntimeError, fp4ref.Fp4Error) as error:
            failed.append(error)

    for drops in (False, True):
        found = [weakref.ref(graph) for each in programs._programs.values() for graph in each.graphs.made.values()]
        captured = torch.cuda.CUDAGraph()
        with torch.cuda.graph(captured, stream=stream):
            z = y.add(1)
            if drops:  # graphs, by this thread
                forget()
                gc.collect()
            else:
                thread = threading.Thread(target=work)
                thread.start()
                thread.join()
            z.add_(1)
        assert not failed
        assert graph_count() or drops
        assert not any(each() for each in found)
    assert found
    captured.replay()
    torch.cuda.synchronize()
    assert torch.equal(z, y + 1 + 1)
    assert out == golden(x, "row")
