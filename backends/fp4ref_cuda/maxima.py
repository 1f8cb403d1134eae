"""Global maxima on the device: partial ones per block of threads, then their reduction; or the caller's own."""

from __future__ import annotations

from typing import Any

from fp4ref.arguments import buffer_shapes
from fp4ref.errors import ShapeError
from fp4ref.quantized import Direction, DirectionData
from fp4ref.registry import Call
from fp4ref.spec import Granularity
from fp4ref_cuda import buffers, checks
from fp4ref_cuda.buffers import Library, Operands, pointer
from fp4ref_cuda.launch import launch, multiprocessors
from fp4ref_cuda.plan import Plan, amax_kind, prelude, remember


def fill(call: Call, on: Operands) -> tuple[str, ...]:
    """Fill the amax buffers of all directions; a maximum that two directions share is searched once.

    Result: names of the kernels that ran.

    Rules: GLB-1, GLB-4, GLB-5, HAD-4.
    """
    spec, library = call.required, on.library
    if spec.global_scale is Granularity.NONE:
        return ()
    ran: tuple[str, ...] = ()
    shared: Any = None
    for name, target in on.targets.items():
        value = on.amax.get(name)
        if value is not None:
            value = given_amax(value, target.amax, library)
            count_given = int(value.shape[0])
            arguments = (pointer(value), 1, count_given, pointer(target.amax), on.flag)
            launch(library, "amax_finish", "", (max(-(-count_given // 256), 1), 1), arguments)
        elif (kind := amax_kind(spec, name)) == 1:
            _by_row(call, on, target.amax)
            ran += ("amax",)
        else:
            if kind == 2 or shared is None:
                partials, parts, width = partial(call, on, kind, early=False)
                ran += ("amax",)
                shared = partials if kind == 0 else shared
            grid = (-(-max(width, 1) // 256), on.count)
            launch(library, "amax_finish", "", grid, (pointer(partials), parts, width, pointer(target.amax), on.flag))
            ran += ("amax_finish",)
    return ran


def searched(call: Call, x: Any, out: Any, noop: Any) -> Any:
    """Return the maxima of an array of the call's shape, in `out` or new, without the program of an earlier call."""
    spec, (direction,) = call.required, call.directions
    x, library = buffers.adopt("amax", x)
    with library.current():
        x = buffers.contiguous(x)
        size = buffer_shapes(spec, call.sizes, direction, "linear").amax
        if out is None:
            assert size is not None
            out = library.empty(size, "float32")
        else:
            checks.require_buffer("amax: out", out, size, library, x)
        target: dict[Direction, DirectionData] = {direction: DirectionData(None, None, out)}
        flag_word = checks.noop_flag(noop, library)
        on = Operands(library, x, target, {}, {}, pointer(flag_word))
        remember(Plan("amax", fill(call, on)))
    return out


def given_amax(value: Any, like: Any, library: Library) -> Any:
    """Return the caller's maxima beside x. Rules: GLB-4."""
    value = buffers.on_device("quantize", value, library, "float32").reshape(-1)
    if value.shape != like.shape:
        raise ShapeError("quantize", f"amax {list(value.shape)}", f"{list(like.shape)}", "GLB-4")
    return value


def _text(call: Call, kind: int, *, early: bool) -> str:
    return prelude(call.required, call.source, KIND=kind, EARLY=early)


def _by_row(call: Call, on: Operands, out: Any) -> None:
    rows, columns = call.sizes
    if rows:
        arguments = (pointer(on.x), rows, columns, 0, pointer(out), on.flag)
        launch(on.library, "amax", _text(call, 1, early=False), (-(-rows // 8),), arguments)


def partial(call: Call, on: Operands, kind: int = 0, *, early: bool = True) -> tuple[Any, int, int]:
    """Find partial maxima [count, parts, width] of the whole or of every column.

    early: ask for the first lines of x while the kernel before ends: faster with one that quantizes behind it, slower
    without.
    """
    (rows, columns), library, count = call.sizes, on.library, on.count
    wanted = max(multiprocessors(library.ordinal) * 8 // count, 1)
    if kind == 0:
        parts = max(min(wanted, -(-rows * columns // 4096)), 1)
        width = 1
        grid: tuple[int, ...] = (parts, count)
    else:
        across = -(-max(columns, 1) // 256)
        down = max(min(-(-wanted // across), -(-rows // 16), 65535), 1)
        by_row = call.required.global_scale is Granularity.ROW
        parts, width = (down, columns) if by_row else (down * across, 1)
        grid = (across, down, count)
    partials = library.empty((max(count * parts * width, 1),), "int32")
    arguments = (pointer(on.x), rows, columns, pointer(on.members), pointer(partials), on.flag)
    launch(library, "amax", _text(call, kind, early=early), grid, arguments)
    return partials, parts, width
