"""Programs of the CUDA backend, on a device of the test's own: what is noted, what is done again, what is refused."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import sys
import threading
import tracemalloc
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

import fp4ref
from fp4ref.catalogue import resolve
from fp4ref.errors import BackendError
from fp4ref.operands import Counters
from fp4ref.registry import Call
from tests.test_cuda import REASON

torch = pytest.importorskip("torch", exc_type=ImportError)
from torch.multiprocessing.reductions import StorageWeakRef  # noqa: E402

buffers = pytest.importorskip("fp4ref_cuda.buffers")
words_of = pytest.importorskip("fp4ref_cuda.words")
several_calls = pytest.importorskip("fp4ref_cuda.several")
programs = pytest.importorskip("fp4ref_cuda.programs")
spaces = pytest.importorskip("fp4ref_cuda.spaces")
randoms = pytest.importorskip("fp4ref_cuda.randoms")
recording = pytest.importorskip("fp4ref_cuda.recording")
graphs = pytest.importorskip("fp4ref_cuda.graphs")


@dataclasses.dataclass(frozen=True)
class Imagined:
    """A library whose device is the CPU's memory."""

    name: str = "torch"
    ordinal: int = -1  # of tensors in that memory

    def empty(self, shape, dtype):
        made = torch.empty(tuple(shape), dtype=getattr(torch, dtype))
        if (current := recording.current()) is not None:
            current.allocated(made, made.data_ptr(), shape, dtype)
        return made

    def allocator(self, shape, dtype):
        return lambda: self.empty(shape, dtype)

    def stream(self):
        return 7

    def captures(self):
        return False


@pytest.fixture
def launched(monkeypatch):
    """Note what would run on the device: name, stream and words of every launch."""
    monkeypatch.setattr(programs, "current_library", Imagined)
    monkeypatch.setattr(programs, "enter", lambda library: None)
    monkeypatch.setattr(several_calls, "current_library", Imagined)
    monkeypatch.setattr(programs, "_programs", {})
    monkeypatch.setattr(several_calls, "_several", {})
    monkeypatch.setattr(several_calls, "_met", {})
    monkeypatch.setattr(programs, "new_piece", lambda stream: None)
    spaces.free_on(-1).clear()
    NOTED.clear()
    return NOTED


NOTED = []


def note(name, stream, at):
    NOTED.append((name, stream, words_of.arguments_at(at)))


def act(inputs, *, copies=False):
    """Serve a call of two launches, the second of which reads what the first one left, 8 bytes on."""
    x, out = inputs
    library = Imagined()
    partials, made = library.empty((4,), "int32"), library.empty((2, 3), "uint8") if out is None else out
    source = x.clone() if copies else x
    start("first", buffers.pointer(source), 5, -1, buffers.pointer(partials))
    start("second", buffers.pointer(partials) + 8, 1 << 40, buffers.pointer(made), buffers.pointer(None))
    return made, None


def start(name, *arguments):
    """Start something, as `launch.run` does."""
    if (current := recording.current()) is not None:
        current.steps.append(recording.Started(partial(note, name), arguments))


CALL = Call("quantize", fp4ref.NVFP4, shape=(2, 3))


def first_call():
    """Serve a call that is recorded."""
    x = torch.zeros(6)
    programs.serve("quantize", CALL, (x, None), lambda: act((x, None)))


def test_the_second_call_of_a_kind_only_allocates_and_launches(launched):
    first = torch.arange(6.0)
    programs.serve("quantize", CALL, (first, None), lambda: act((first, None)))
    for x in (torch.arange(6.0) + 1, torch.arange(6.0) + 2):
        launched.clear()
        made, none = programs.serve("quantize", CALL, (x, None), pytest.fail)
        assert none is None
        assert tuple(made.shape) == (2, 3)
        assert made.dtype is torch.uint8
        (name, stream, words), (other, _, more) = launched
        assert (name, other, stream) == ("first", "second", 7)
        assert words[:3] == [x.data_ptr(), 5, (1 << 64) - 1]
        assert more == [words[3] + 8, 1 << 40, made.data_ptr(), 0]


def test_numbers_of_a_call_are_words_of_its_launches(launched, monkeypatch):
    """Each call's own, as they are or added to; they are no addresses, and a graph is one of its numbers."""
    monkeypatch.setattr(buffers, "current_device", lambda: lambda: -1)
    places, acted = [], []
    monkeypatch.setattr(graphs.Graphs, "new", lambda self, at, record, library: places.append(at))

    def drawn(x, seed, upper):
        acted.append((seed, upper))
        made = Imagined().empty((2, 3), "uint8")
        start("drawn", buffers.pointer(x), seed, upper, upper + 1, buffers.pointer(made))
        return (made,)

    x = torch.zeros(6)
    run = several_calls.bind_steps(Call("steps", device="cuda"), "drawn", (x,), drawn)
    for seed, upper in ((x.data_ptr(), 0), (3, 1 << 40), ((1 << 64) - 1, (1 << 64) - 2), (0, 16)):
        launched.clear()
        (made,) = run(x, numbers=(seed, upper))
        if places:
            ((_, _, words),) = launched
            assert words == [x.data_ptr(), seed, upper, upper + 1, made.data_ptr()]
    assert len(acted) == 1, "only the first call decides"
    assert [at[-2:] for at in places] == [(3, 1 << 40), ((1 << 64) - 1, (1 << 64) - 2), (0, 16)]


def test_a_number_is_none_of_the_arrays(launched):
    """Though it is the address of one: what is launched later takes the number of its call there."""
    x, library = torch.zeros(6), Imagined()

    def act(number):
        made = library.empty((2, 3), "uint8")
        start("only", buffers.pointer(x), number, buffers.pointer(made))
        return (made,)

    for number in (x.data_ptr(), 5):
        (made,) = programs.serve("kind", CALL, (x,), act, (), (number,))
    ((_, _, words),) = launched
    assert words == [x.data_ptr(), 5, made.data_ptr()]


def test_what_is_not_returned_is_one_allocation(launched, monkeypatch):
    def temporaries(x):
        parts = [
            Imagined().empty(shape, dtype)
            for shape, dtype in (((65,), "float32"), ((2, 3), "uint8"), ((8,), "bfloat16"))
        ]
        recording.current().steps.append(
            recording.Started(
                partial(note, "only"), (*map(buffers.pointer, (x, *parts)), buffers.pointer(parts[2]) + 4)
            )
        )
        return (parts[1],)

    x = torch.zeros(6)
    programs.serve("quantize", CALL, (x,), lambda: temporaries(x))
    made = []
    monkeypatch.setattr(Imagined, "empty", lambda self, shape, dtype: made.append((shape, dtype)) or torch.zeros(1024))
    (result,) = programs.serve("quantize", CALL, (x,), pytest.fail)
    assert made == [((2, 3), "uint8"), ((512 + 256,), "uint8")]
    ((_, _, (_, first, returned, second, inside)),) = launched
    assert (returned, second, inside) == (result.data_ptr(), first + 512, first + 512 + 4)


@pytest.fixture
def pieces(monkeypatch):
    """Return the addresses of pieces of memory, as they are made."""
    made = []
    monkeypatch.setattr(programs, "new_piece", lambda stream: made.append(1024 * (len(made) + 1)) or made[-1])
    return made


def test_memory_between_launches_is_that_of_the_call_before_on_the_stream(launched, pieces, monkeypatch):
    stream, captured = [7], [False]
    monkeypatch.setattr(Imagined, "stream", lambda self: stream[0])
    monkeypatch.setattr(Imagined, "captures", lambda self: captured[0])
    first_call()

    def partials():
        launched.clear()
        programs.serve("quantize", CALL, (torch.zeros(6), None), pytest.fail)
        (_, _, first), (_, _, second) = launched
        assert second[0] == first[3] + 8
        return first[3]

    assert [partials() for _ in range(3)] == [1024] * 3
    stream[0] = 9
    assert [partials(), partials()] == [2048] * 2
    captured[0] = True
    assert partials() not in pieces
    captured[0], stream[0] = False, 7
    assert partials() == 1024
    assert pieces == [1024, 2048]


def test_a_call_between_the_launches_of_another_has_other_memory(launched, pieces, monkeypatch):
    """As a finalizer makes one, or another thread on the same stream."""
    serve = lambda: programs.serve("quantize", CALL, (torch.zeros(6), None), pytest.fail)  # noqa: E731
    first_call()
    inner = iter([serve])
    (program,) = programs._programs.values()
    first, *rest = program.steps

    def interrupted(stream, at):
        first[0](stream, at)
        for call in inner:
            call()

    kind = next(iter(programs._programs))
    programs._programs[kind] = program._replace(steps=((interrupted, first[1]), *rest))
    serve()
    (_, _, outer), (_, _, between), (_, _, after), (_, _, last) = launched
    assert (outer[3], between[3]) == (1024, 2048)
    assert (after[0], last[0]) == (2048 + 8, 1024 + 8)
    assert sorted(spaces.free_on(-1)[7]) == [1024, 2048]


def test_a_launch_that_fails_gives_its_memory_back(launched, pieces):
    first_call()
    (kind,), (program,) = programs._programs, programs._programs.values()

    def failing(stream, at):
        raise BackendError("cuda: kernel first", "CUDA_ERROR_LAUNCH_FAILED")

    programs._programs[kind] = program._replace(steps=((failing, 0),))
    with pytest.raises(BackendError):
        programs.serve("quantize", CALL, (torch.zeros(6), None), pytest.fail)
    assert spaces.free_on(-1)[7] == [1024]


def test_much_memory_is_not_remembered(launched, pieces):
    def large(x):
        part, made = Imagined().empty((spaces.SIZE + 1,), "uint8"), Imagined().empty((2, 3), "uint8")
        recording.current().steps.append(
            recording.Started(partial(note, "only"), tuple(map(buffers.pointer, (x, part, made))))
        )
        return (made,)

    x = torch.zeros(6)
    programs.serve("quantize", CALL, (x,), lambda: large(x))
    programs.serve("quantize", CALL, (x,), pytest.fail)
    assert len(launched) == 1
    assert not pieces


def test_pieces_of_memory_are_few_and_never_those_of_a_handle_with_many_streams(monkeypatch):
    driver = SimpleNamespace(cuMemAlloc=lambda size: (0, 4096))
    monkeypatch.setattr(spaces, "relaxed_capture", contextlib.nullcontext)
    monkeypatch.setitem(sys.modules, "cuda.bindings", SimpleNamespace(driver=driver))
    monkeypatch.setattr(spaces, "_made", [])
    assert spaces.new_piece(spaces.OF_THREADS) is None
    assert [spaces.new_piece(1000) for _ in range(spaces.MOST + 2)] == [4096] * spaces.MOST + [None] * 2
    monkeypatch.setattr(spaces, "_made", [])
    asked = []
    driver.cuMemAlloc = lambda size: asked.append(size) or (SimpleNamespace(name="CUDA_ERROR_OUT_OF_MEMORY"), 0)
    assert [spaces.new_piece(1000) for _ in range(3)] == [None] * 3
    assert asked == [spaces.SIZE]


@pytest.mark.gpu
@pytest.mark.skipif(bool(REASON), reason=REASON or "runs")
def test_threads_and_streams_that_call_at_once_do_not_share_memory():
    x = [(torch.randn(256, 256, device="cuda") * 2.0**at).bfloat16() for at in range(4)]
    torch.cuda.synchronize()
    expected = [fp4ref.quantize(each.cpu(), "nvfp4-rht", "both", "tiled_128x4", backend="numpy") for each in x]
    streams = [torch.cuda.current_stream(), torch.cuda.current_stream(), torch.cuda.Stream(), torch.cuda.Stream()]
    wrong = []

    def work(at):
        with torch.cuda.stream(streams[at]):
            made = [fp4ref.quantize(x[at], "nvfp4-rht", "both", "tiled_128x4") for _ in range(200)]
            torch.cuda.current_stream().synchronize()
        wrong.extend(at for q in made if host(q) != expected[at])

    threads = [threading.Thread(target=work, args=(at,)) for at in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert spaces._made


def test_buffers_of_the_caller_are_filled_and_returned(launched):
    pairs = [(torch.zeros(6), torch.zeros((2, 3), dtype=torch.uint8)) for _ in range(2)]
    for pair, serve in zip(pairs, (act, pytest.fail), strict=True):
        made, _ = programs.serve("quantize", CALL, pair, lambda pair=pair, serve=serve: serve(pair))
        assert made is pair[1]
    assert launched[1][2][2] == pairs[1][1].data_ptr()


@pytest.mark.parametrize("others", [(), (None,)], ids=["alone", "with the others"])
def test_a_bound_call_is_served_by_programs_alone(launched, monkeypatch, others):
    current = [-1]
    monkeypatch.setattr(buffers, "current_device", lambda: lambda: current[0])
    store = torch.arange(32.0)
    x = store[:6]
    bound = programs.bind("quantize", CALL, (x, None))
    assert bound(x, *others) is None  # nothing is recorded yet
    programs.serve("quantize", CALL, (x, None), lambda: act((x, None)))
    for other in (store[8:14], store[4:10]):  # at multiples of 16 bytes
        launched.clear()
        made, none = bound(other, *others)
        assert none is None
        assert [name for name, _, _ in launched] == ["first", "second"]
        assert launched[0][2][0] == other.data_ptr()
        assert launched[1][2][2] == made.data_ptr()
    launched.clear()
    assert bound(store[1:7], *others) is None  # another alignment, so perhaps other kernels
    current[0] = 1
    assert bound(x, *others) is None
    assert not launched


def test_other_kinds_have_programs_of_their_own(launched):
    kinds = [torch.zeros(6), torch.zeros(12)[:7], torch.zeros(6, dtype=torch.bfloat16), torch.zeros(8)[1:7]]
    for x in kinds:
        programs.serve("quantize", CALL, (x, None), lambda x=x: act((x, None)))
    for operation, call in (("amax", CALL), ("quantize", Call("quantize", fp4ref.NVFP4, shape=(2, 3)))):
        programs.serve(operation, call, (kinds[0], None), lambda: act((kinds[0], None)))
    assert not launched
    assert len(programs._programs) == 6


def test_inputs_that_start_at_one_byte_are_a_kind_of_their_own(launched):
    def serve(inputs):
        launched.clear()
        programs.serve("quantize", CALL, inputs, lambda: act((inputs[0], inputs[2])))
        return [words for _, _, words in launched]

    new = lambda: torch.zeros((2, 3), dtype=torch.uint8)  # noqa: E731
    x, y = torch.zeros(8), torch.zeros(8)
    assert not serve((x, x, new()))  # recorded
    assert not serve((x, y, new()))  # another kind
    out = new()
    first, second = serve((y, y, out))
    assert first[0] == y.data_ptr()
    assert second[2] == out.data_ptr()
    assert len(programs._programs) == 2


def test_the_same_arrays_in_other_places_are_a_kind_of_their_own(launched):
    """Only those that are given have numbers and addresses, so that nothing else tells the two calls apart."""
    x, y = torch.zeros((2, 3), dtype=torch.uint8), torch.zeros((2, 3), dtype=torch.uint8)
    for inputs in ((x, y, None), (x, None, y)):
        served = []
        programs.serve("quantize", CALL, inputs, lambda served=served: served.append(1) or act((x, y)))
        assert served
    assert len(programs._programs) == 2


@pytest.mark.parametrize("case", ["a copy", "a result of unknown origin"])
def test_what_another_call_could_not_repeat_is_not_remembered(launched, case):
    x = torch.zeros(6)
    inputs = (x, None)
    for _ in range(2):  # the second one is served by `act` again
        made, _ = programs.serve(
            "quantize",
            CALL,
            inputs,
            lambda: (act(inputs, copies=case == "a copy")[0], torch.zeros(1) if "unknown" in case else None),
        )
        assert made is not None
    assert not launched
    assert not programs._programs


def test_an_empty_array_has_no_address():
    noted = recording.Recording((torch.zeros(0),), (0,))
    assert noted.address(0) == 0
    assert noted.complete


@pytest.mark.gpu
@pytest.mark.skipif(bool(REASON), reason=REASON or "runs")
@pytest.mark.parametrize(
    "spec", ["nvfp4", "nvfp4-rht", "nvfp4-2d", "nvfp4-4over6", "mxfp8-e4m3", "mxfp4", "mxfp6-e3m2"]
)
@pytest.mark.parametrize("directions", ["row", "column", "both"])
def test_calls_of_one_kind_are_equal_to_the_golden_model(spec, directions):
    rng = np.random.default_rng(20)
    layouts, shapes, shifts = ("linear", "tiled_128x4"), ((128, 256), (48, 80), (3, 5)), (0, 1)
    for scale_layout, shape, shift in itertools.product(layouts, shapes, shifts):
        if resolve(spec).hadamard and shape[0] % 16:
            continue
        expected_of = golden_of(spec, directions, scale_layout)
        out = None
        for turn in range(4):
            x = torch.from_numpy(rng.standard_normal((*shape[:-1], shape[-1] + shift)).astype(np.float32))
            x = x.to(torch.bfloat16).cuda().flatten()[shift : shift + shape[0] * shape[1]].reshape(shape) * 2.0**turn
            expected = expected_of(x.cpu())
            q = fp4ref.quantize(x, spec, directions, scale_layout, out=out)
            assert host(q) == expected, (scale_layout, shape, shift, turn)
            for name in ("row",) if expected.row else ():
                values = fp4ref.dequantize(q, "bfloat16", name)
                assert torch.equal(values.cpu().view(torch.uint16), dequantized(expected, name))
            moved = fp4ref.to_layout(q, "linear_padded")
            assert host(moved) == fp4ref.to_layout(expected, "linear_padded", backend="numpy")
            out = q if turn == 1 else None


def golden_of(spec, directions, scale_layout):
    return lambda x: fp4ref.quantize(x, spec, directions, scale_layout, backend="numpy")


def dequantized(q, name):
    return fp4ref.dequantize(q, "bfloat16", name, backend="numpy").view(torch.uint16)


def host(q):
    """Copy a result to the host, where results compare by every byte."""
    import dataclasses

    parts = {
        name: part and part.mapped(lambda array: array.cpu()) for name, part in (("row", q.row), ("column", q.column))
    }
    return dataclasses.replace(q, **parts)


@pytest.mark.gpu
@pytest.mark.skipif(bool(REASON), reason=REASON or "runs")
@pytest.mark.parametrize(("name", "directions"), [("nvfp4-sr", "row"), ("nvfp4-sr", "both"), ("nvfp4-rht-sr", "both")])
def test_given_maxima_random_bytes_and_buffers_are_those_of_the_call(name, directions):
    rng, spec, (rows, columns) = np.random.default_rng(18), resolve(name), (128, 192)
    out = None
    for turn in range(4):
        x = torch.from_numpy(rng.standard_normal((rows, columns)).astype(np.float32)).bfloat16()
        shapes = {"row": (rows, columns), "column": (columns, rows)}
        wanted = [shape for part, shape in shapes.items() if directions in {part, "both"}]
        drawn = [torch.from_numpy(rng.integers(0, 256, shape, np.uint8)) for shape in wanted]
        amaxes = [torch.tensor([5.0 + turn + index]) for index in range(len(wanted))]
        given, there = (
            [fp4ref.Directions(*parts) if len(parts) > 1 else parts[0] for parts in each]
            for each in ((amaxes, drawn), ([a.cuda() for a in amaxes], [b.cuda() for b in drawn]))
        )
        if spec.hadamard is None:  # one maximum serves both directions
            given, there = ([each[0].row if directions == "both" else each[0], each[1]] for each in (given, there))
        expected = fp4ref.quantize(x, spec, directions, "tiled_128x4", *given, backend="numpy")
        got = fp4ref.quantize(x.cuda(), spec, directions, "tiled_128x4", *there, out=out if turn % 2 else None)
        assert host(got) == expected, turn
        out = got


def several(inputs, *, before=lambda x: x):
    """Serve two calls, the second of which reads a part of what the first one left; return views, and a note."""
    x, other = inputs
    library = Imagined()
    made, _ = act((before(x), None))
    scratch, out = library.empty((300,), "uint8"), torch.empty((3, 4), dtype=torch.bfloat16)
    start("third", *map(buffers.pointer, (x[2:], out[1], made[1:], scratch, other)), 9)
    return (out.t(), x, None, made), "note"


TOGETHER = Call("together", device="cuda")


def test_calls_of_a_kind_become_one_program_at_the_second_of_them(launched):
    for count in range(4):
        x, other = torch.arange(6.0) + count, torch.zeros(3, dtype=torch.uint8)
        launched.clear()
        do = partial(several, (x, other)) if count < 2 else pytest.fail
        results, noted = several_calls.together(TOGETHER, "kind", (x, other), do)
        assert noted == "note"
        turned, same, none, made = results
        assert same is x
        assert none is None
        assert (turned.shape, turned.stride(), turned.dtype) == ((4, 3), (1, 4), torch.bfloat16)
        assert tuple(made.shape) == (2, 3)
        if count >= 2:
            (_, _, first), (_, _, second), (name, stream, third) = launched
            assert (name, stream) == ("third", 7)
            assert first[0] == x.data_ptr()
            assert second[2] == made.data_ptr()
            assert third[:3] == [x.data_ptr() + 8, turned.data_ptr() + 8, made.data_ptr() + 3]
            assert third[4:] == [other.data_ptr(), 9]
            assert third[3] == first[3], "the partial results of the second launch are not read by the third"


def test_arrays_share_bytes_only_where_no_step_uses_both():
    def step(*slots):
        return recording.Started(note, tuple(recording.Address.of(1, slot) for slot in slots))

    steps = [step(0, 1), step(1, 2), step(2, 3), step(3, 0), step(4)]
    sizes = {0: 512, 1: 256, 2: 1024, 3: 256, 4: 768, 5: 4096}
    offsets, size = programs._arranged(steps, sizes)
    assert size == 512 + 256 + 1024
    for at in range(len(steps)):
        alive = [
            (offsets[slot], offsets[slot] + sizes[slot])
            for slot in range(5)
            if (uses := [n for n, each in enumerate(steps) if any(a.slot == slot for a in each.arguments)])
            and uses[0] <= at <= uses[-1]
        ]
        assert all(a[1] <= b[0] for a, b in itertools.pairwise(sorted(alive)))


@pytest.mark.parametrize(
    "computed",
    [
        lambda x: x + 0,
        lambda x: x.clone(),
        lambda x: x.add_(0),
        lambda x: torch.zeros(6),
        lambda x: x[int(x[0].item()) * 0 :],
        lambda x: x.to(torch.float64).float(),
    ],
    ids=range(6),
)
def test_what_torch_computes_itself_is_never_left_out(launched, computed):
    calls = []

    def do(x):
        calls.append(x)
        return several((x, None), before=computed)

    for _ in range(4):
        x = torch.arange(6.0)
        several_calls.together(TOGETHER, "kind", (x, None), partial(do, x))
    assert len(calls) == 4


def test_a_random_draw_belongs_to_one_call(launched):
    def do(x):
        recording.forbid()
        return several((x, None))

    seen = [several_calls.together(TOGETHER, "kind", (x, None), partial(do, x)) for x in (torch.zeros(6),) * 4]
    assert not several_calls._several
    assert len(seen) == 4


@pytest.mark.parametrize(("seed", "last"), [(5, [5, 0]), (2**64 - 1, [2**64 - 1, 0]), (torch.tensor([3]), None)])
def test_bytes_of_both_directions_are_drawn_in_one_launch_by_seed_and_stream(launched, monkeypatch, seed, last):
    library = Imagined()
    for name in ("_library", "current_library"):
        monkeypatch.setattr(randoms, name, lambda *_: library)
    monkeypatch.setattr(randoms, "enter", lambda library: None)
    monkeypatch.setattr(randoms, "ready", lambda *_: partial(note, "drawn"))
    calls = [Call("random_bits", device="cuda", shape=shape) for shape in ((48, 40), (40, 48))]
    counters = [Counters((0, 0), 3, 0, 0), Counters((0, 0), 3, 0, 1)]
    draw = randoms.bind_random_bits(calls, counters, "cuda:0")
    for stream in (0, 7, 2**63 - 1, 7):
        launched.clear()
        rows, columns = draw(seed, 2 * stream)
        ((_, _, words),) = launched
        assert words[:6] == [rows.data_ptr(), 48, 40, 0, 3, 2 * stream]
        assert words[6:12] == [columns.data_ptr(), 40, 48, 0, 3, 2 * stream + 1]
        assert words[12:] == (last or [0, seed.data_ptr()])
    alone = randoms.bind_random_bits(calls[1:], counters[1:], "cuda:0")
    (columns,) = alone(seed, 14)
    assert launched[-1][2] == [columns.data_ptr(), 40, 48, 0, 3, 15, *[0] * 6, *(last or [0, seed.data_ptr()])]


def test_kinds_that_are_met_once_take_no_memory_to_speak_of(launched):
    """Groups of other sizes in each step are kinds of their own, as long as the groups are many."""
    x = torch.zeros(6)
    serve = lambda kind: several_calls.together(TOGETHER, kind, (x,) * 500, lambda: ((x,), None))  # noqa: E731
    serve(("first",))
    tracemalloc.start()
    for number in range(100):
        serve(("kind", number, *range(10**6, 10**6 + 500)))
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept < 100 * 1000
    assert len(several_calls._met) == 101


def test_what_was_kept_makes_room(launched, monkeypatch):
    monkeypatch.setattr(several_calls, "KEPT", 3)
    for number, _ in itertools.product(range(5), range(3)):
        x = torch.zeros(6)
        results, _ = several_calls.together(TOGETHER, number, (x,), lambda x=x: ((x,), None))
        assert results[0] is x
    assert len(several_calls._several) == 2
    assert len(several_calls._met) == 2


def test_kinds_strides_and_calls_have_programs_of_their_own(launched):
    x = torch.zeros(6, 8)
    asked = [
        ("kind", TOGETHER, x),
        ("other", TOGETHER, x),
        ("kind", Call("together", device="cuda"), x),
        ("kind", TOGETHER, x.t()),
        ("kind", TOGETHER, torch.zeros(8, 6)),
        ("kind", TOGETHER, x.int()),
    ]
    for _, (kind, call, each) in itertools.product(range(3), asked):
        several_calls.together(call, kind, (each, None), lambda each=each: ((each,), None))
    assert len(several_calls._several) == 6


def test_an_address_inside_two_arrays_ends_the_recording():
    whole = torch.zeros(16)
    inside = whole[4:]
    noted = recording.Recording((whole, inside), (whole.data_ptr(), inside.data_ptr()))
    assert noted.address(whole.data_ptr() + 4).offset == 4
    assert noted.complete
    noted.address(inside.data_ptr() + 4)
    assert not noted.complete


def test_a_recording_keeps_no_memory_that_its_call_is_done_with(launched):
    """Else the one call that is recorded would need the memory of all of its steps at once."""

    def do(x):
        for number in range(3):
            made = Imagined().empty((5 + number,), "uint8")
            start("step", buffers.pointer(x), buffers.pointer(made))
            freed, made = StorageWeakRef(made.untyped_storage()), None
            assert freed.expired()
        return (x,), None

    for count in range(4):
        x = torch.zeros(6)
        launched.clear()
        several_calls.together(TOGETHER, "kind", (x,), partial(do, x) if count < 2 else pytest.fail)
    assert [words[0] for _, _, words in launched] == [x.data_ptr()] * 3
    assert len({words[1] for _, _, words in launched}) == 1


def test_memory_that_is_used_again_is_that_of_the_later_array():
    memory = bytearray(64)
    new = lambda size: torch.frombuffer(memory, dtype=torch.uint8, count=size)  # noqa: E731
    noted, slots = recording.Recording((torch.zeros(1),), (1,)), []
    for size in (64, 16, 32):
        made = new(size)
        noted.allocated(made, made.data_ptr(), (size,), "uint8")
        noted.allocated(made, made.data_ptr(), (size,), "uint8")
        inside = noted.address(made.data_ptr() + 8)
        assert inside.offset == 8
        slots.append(inside.slot)
        view = made[8:]
        del made
        assert noted.address(view.data_ptr()).slot == inside.slot, "a view keeps the memory"
        del view
    assert slots == [1, 2, 3]
    assert noted.complete
    unknown = new(32)
    noted.address(unknown.data_ptr())
    assert not noted.complete


def test_calls_inside_of_others_are_recorded_with_them(launched, monkeypatch):
    monkeypatch.setattr(buffers, "current_device", lambda: lambda: -1)

    def do(x):
        (made, _) = programs.serve("quantize", CALL, (x, None), lambda: act((x, None)))
        bound = programs.bind("quantize", CALL, (x, None))
        assert recording.current() is None or bound(x) is None
        return (made,), None

    for count in range(4):
        x = torch.arange(6.0) + count
        launched.clear()
        ((made,), _) = several_calls.together(TOGETHER, "kind", (x,), partial(do, x) if count < 2 else pytest.fail)
    assert [name for name, *_ in launched] == ["first", "second"]
    assert launched[1][2][2] == made.data_ptr()


def test_steps_are_repeated_as_one_program_with_the_buffers_that_they_fill(launched, monkeypatch):
    monkeypatch.setattr(buffers, "current_device", lambda: lambda: -1)
    acted = []

    def do(x, buffer):
        acted.append(x)
        made, _ = programs.serve("quantize", CALL, (x, None), lambda: act((x, None)))
        if buffer is None:
            return (made, None)
        start("written", *map(buffers.pointer, (made, buffer)))
        return ()

    buffer = torch.zeros(6)
    for given in (None, buffer):
        acted.clear()
        run = several_calls.bind_steps(Call("steps", device="cuda"), "kind", (torch.arange(6.0), given), do)
        for count in range(3):
            x = torch.arange(6.0) + count
            launched.clear()
            results = run(x, given)
            assert len(acted) == 1, "only the first call decides"
            assert results == () if given is not None else results[1] is None
            if count:
                assert [name for name, *_ in launched] == ["first", "second", "written"][: 2 + (given is not None)]
                assert launched[0][2][0] == x.data_ptr()
                assert given is None or launched[2][2][1] == buffer.data_ptr()
                assert given is not None or launched[1][2][2] == results[0].data_ptr()
    strided = torch.arange(12.0)[::2]
    assert several_calls.bind_steps(Call("steps", device="cuda"), "kind", (strided, None), do) is None
