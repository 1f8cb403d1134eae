"""The CUDA backend's programs on the CPU, their kernels compiled for it: repeated calls are the golden model's."""

from __future__ import annotations

import itertools

import ml_dtypes
import numpy as np
import pytest

import fp4ref
from cuda_on_host import Repeating, guards_hold, repeating_on_host, to_bytes, to_tensor
from fp4ref.layout import LAYOUTS
from fp4ref.model import counter_map
from fp4ref.operands import Counters
from fp4ref.quantized import DirectionData, Directions
from fp4ref.registry import Call
from fp4ref_cuda import operations
from host_compiler import needs_compiler

pytestmark = [pytest.mark.heavy, needs_compiler]
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
TILED = "tiled_128x4"


@pytest.fixture
def host(monkeypatch) -> Repeating:
    return repeating_on_host(monkeypatch)


def numbers(shape: tuple[int, int], turn: int) -> np.ndarray:
    rng = np.random.default_rng([*shape, turn])
    return (rng.integers(-64, 65, shape) / 16 * np.exp2(rng.integers(-20, 9, (shape[0], 1)))).astype(BFLOAT16)


def same(got: DirectionData, expected: DirectionData, case: object) -> None:
    for mine, theirs in zip(got, expected, strict=True):
        assert (mine is None) == (theirs is None), case
        assert mine is None or to_bytes(mine) == theirs.tobytes(), case


def of(name: str, direction: str, shape: tuple[int, int], **how) -> Call:
    spec = fp4ref.profiles[name]
    return Call("quantize", spec, "bfloat16", direction, layout=LAYOUTS[TILED], device="cuda", shape=shape, **how)


@pytest.mark.rule("GLB-4")
@pytest.mark.parametrize("across", [False, True])
@pytest.mark.parametrize(("direction", "given"), [("row", (4.0,)), ("column", (4.0,)), ("both", (4.0, 9.0))])
def test_maxima_that_are_numbers_of_the_host_are_those_of_each_call(host, direction, given, across):
    shape = (128, 64)
    call = of("nvfp4", direction, shape)
    quantize = operations.quantize if direction != "both" else operations.quantize_both
    bind = operations.bind_quantize if direction != "both" else operations.bind_quantize_both
    nothing = Directions() if direction == "both" else None
    again = None
    for turn in range(4):
        x = numbers(shape, turn)
        maxima = [np.float32([each * (turn + 1)]) for each in given]
        amax = Directions(*maxima) if direction == "both" else maxima[0]
        expected = fp4ref.quantize(x, "nvfp4", direction, TILED, amax=amax, backend="numpy")
        there = to_tensor(host, np.ascontiguousarray(x.T)).t() if across else to_tensor(host, x)
        if again is None:
            made = quantize(call, there, amax, nothing, nothing)
            again = bind(call, there, amax, nothing, nothing)
        else:
            made = again(there, amax)
        for name, part in zip(call.directions, made if direction == "both" else [made], strict=True):
            same(part, getattr(expected, name), turn)
        assert guards_hold()
    assert host.recorded == 1, "the first call alone decides"


@pytest.mark.rule("GLB-4")
def test_a_number_of_the_host_among_several_steps_is_no_part_of_their_program(host):
    """Another call has another number, which the program of the first one would not know."""
    shape, maxima = (64, 64), iter((4.0, 9.0, 25.0))
    call, steps, again = of("nvfp4", "row", shape), Call("steps", device="cuda"), None

    def act(x):
        return tuple(operations.quantize(call, x, np.float32([largest]), None, None))

    for turn, largest in enumerate(maxima):
        x = numbers(shape, turn)
        there = to_tensor(host, x)
        made = again(there) if again else operations.steps(steps, "of a number", (there,), act)
        again = again or operations.bind_steps(steps, "of a number", (there,), act)
        expected = fp4ref.quantize(x, "nvfp4", "row", TILED, amax=largest, backend="numpy")
        same(DirectionData(*made), expected.row, turn)
    assert host.recorded == 0


@pytest.mark.rule("BLK-1", "RES-1")
@pytest.mark.parametrize("name", ["nvfp4", "nvfp4-2d", "nvfp4-row-scaled", "mxfp8-e4m3", "mxfp6-e2m3", "nvfp4-sr"])
@pytest.mark.parametrize("direction", ["row", "column", "both"])
def test_a_matrix_whose_columns_follow_each_other_is_read_as_its_transpose(host, name, direction):
    shape, spec = (96, 128), fp4ref.profiles[name]
    call, again = of(name, direction, shape), None
    for turn in range(3):
        x = numbers(shape, turn)
        sizes = {"row": shape, "column": shape[::-1]}
        drawn = [np.random.default_rng(turn).integers(0, 256, sizes[each], np.uint8) for each in call.directions]
        bits = there = None
        if spec.stochastic:
            bits, there = drawn[0], to_tensor(host, drawn[0])
            if direction == "both":
                bits, there = Directions(*drawn), Directions(*(to_tensor(host, each) for each in drawn))
        expected = fp4ref.quantize(x, spec, direction, TILED, random_bits=bits, backend="numpy")
        across = to_tensor(host, np.ascontiguousarray(x.T)).t()
        assert not across.is_contiguous()
        if direction == "both":
            given = Directions(), there or Directions(), Directions()
            made = again(across, *given) if again else operations.quantize_both(call, across, *given)
            again = again or operations.bind_quantize_both(call, across, *given)
        else:
            given = None, there, None
            made = again(across, *given) if again else operations.quantize(call, across, *given)
            again = again or operations.bind_quantize(call, across, *given)
        for each, part in zip(call.directions, made if direction == "both" else [made], strict=True):
            same(part, getattr(expected, each), (turn, each))
        assert guards_hold()
    assert host.recorded == 1


@pytest.mark.rule("HAD-1")
def test_a_transform_is_one_of_columns_alone(host):
    shape = (64, 64)
    x = numbers(shape, 0)
    expected = fp4ref.quantize(x, "nvfp4-rht", "both", TILED, backend="numpy")
    across = to_tensor(host, np.ascontiguousarray(x.T)).t()
    made = operations.quantize_both(of("nvfp4-rht", "both", shape), across)
    same(made.row, expected.row, "row")
    same(made.column, expected.column, "column")


@pytest.mark.rule("LAY-8", "LAY-11")
@pytest.mark.parametrize("direction", ["row", "column", "both"])
def test_members_of_a_group_are_views_that_equal_calls_name_alike(host, direction):
    splits, columns = (64, 0, 128), 64
    for spec in (fp4ref.NVFP4, fp4ref.NVFP4.replace(name="vendor.other")):
        call = Call(
            "quantize_grouped",
            *(spec, "bfloat16", direction),
            layout=LAYOUTS[TILED],
            device="cuda",
            shape=(sum(splits), columns),
            splits=splits,
        )
        again = None
        for turn in range(4):
            x = numbers((sum(splits), columns), turn)
            there = to_tensor(host, x)
            group = again(there) if again else operations.quantize_grouped(call, there)
            again = again or operations.bind_quantize_grouped(call, there)
            start = 0
            for rows, member in zip(splits, group, strict=True):
                expected = fp4ref.quantize(x[start : start + rows], spec, direction, TILED, backend="numpy")
                assert (member.spec.name, member.shape) == (spec.name, (rows, columns))
                for name in call.directions:
                    same(getattr(member, name), getattr(expected, name), (turn, rows, name))
                start += rows
            assert (group.memory.row is None) == ("row" not in call.directions)
            assert guards_hold()
    assert host.recorded == 2, "one for each name"


@pytest.mark.rule("SR-7", "SR-8", "TEL-6")
@pytest.mark.parametrize("direction", ["row", "both"])
def test_what_is_drawn_within_a_program_is_drawn_by_the_numbers_of_each_call(host, direction):
    shape, spec = (128, 64), fp4ref.NVFP4_SR
    call, names = of("nvfp4-sr", direction, shape), ("row", "column")[: 1 + (direction == "both")]
    calls = [Call("random_bits", direction=name, device="cuda", shape=shape) for name in names]
    counters = [Counters((0, 0), -(-each.encoded[1] // 16), 0, upper) for upper, each in enumerate(calls)]
    draw = operations.bind_random_bits(calls, counters, "cuda:0")

    def act(x, seed, upper):
        bits = draw(seed, upper)
        if direction == "both":
            made = operations.quantize_both(call, x, Directions(), Directions(*bits))
            return *made.row, *made.column
        return tuple(operations.quantize(call, x, None, *bits, None))

    steps, again = Call("steps", device="cuda"), None
    for turn, (seed, stream) in enumerate(((5, 0), (2**64 - 1, 3), (0, 2**63 - 1), (5, 7))):
        x = numbers(shape, turn)
        there = to_tensor(host, x)
        again = again or operations.bind_steps(steps, ("drawn", direction), (there,), act)
        made = again(there, numbers=(seed, 2 * stream))
        sizes = {"row": shape, "column": shape[::-1]}
        bits = [
            counter_map.random_bytes(sizes[name], (0, 0), -(-sizes[name][1] // 16), seed, 2 * stream + upper)
            for upper, name in enumerate(names)
        ]
        given = Directions(*bits) if direction == "both" else bits[0]
        expected = fp4ref.quantize(x, spec, direction, TILED, random_bits=given, backend="numpy")
        for at, name in enumerate(names):
            same(DirectionData(*made[3 * at : 3 * at + 3]), getattr(expected, name), (turn, name))
        assert guards_hold()
    assert host.recorded == 1


@pytest.mark.rule("DEQ-2", "DEQ-3", "TEL-8")
@pytest.mark.parametrize("name", ["mxfp8-e4m3", "mxfp8-e5m2", "mxint8"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_columns_are_decoded_where_they_lie(host, name, dtype):
    rng = np.random.default_rng(8)
    for (rows, columns), form in itertools.product(
        ((64, 128), (96, 40), (33, 70)), ("linear_padded", TILED, "tiled_8x4")
    ):
        stored, blocks, spec = LAYOUTS[form], -(-rows // 32), fp4ref.profiles[name]
        codes = rng.integers(0, 256, (rows, columns), np.uint8)
        scales = rng.integers(90, 160, stored.padded_shape(columns, blocks), np.uint8)
        scales[0, 0] = 0xFF if name != "mxint8" else 100
        q = fp4ref.Quantized(
            spec, (rows, columns), "float32", form, None, DirectionData(np.ascontiguousarray(codes.T), scales, None)
        )
        expected = fp4ref.dequantize(q, dtype, "column", backend="numpy").T
        across = form == "linear_padded"
        call = Call("column_values", spec, to=dtype, layout=stored, device="cuda", shape=(rows, columns))
        there = np.ascontiguousarray(scales.T) if across else scales
        given = to_tensor(host, codes), to_tensor(host, there)
        values = operations.column_values(call, *given, across)
        again = operations.bind_column_values(call, *given, across)
        for made in (values, again(*(to_tensor(host, each) for each in (codes, there)))):
            assert to_bytes(made) == np.ascontiguousarray(expected).tobytes(), (rows, columns, form)
        assert guards_hold()
