"""The ways to quantize on the device: maxima and kernels of each, launched for buffers that are ready."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod
from typing import Any

from fp4ref import arrays
from fp4ref.errors import DTypeError, ShapeError
from fp4ref.layout import TILED_128X4
from fp4ref.quantized import Direction, DirectionData, matrix_shape
from fp4ref.registry import Call
from fp4ref.spec import Granularity, Spec
from fp4ref_cuda import buffers, checks, maxima
from fp4ref_cuda.buffers import Library, Operands, pointer
from fp4ref_cuda.launch import launch, multiprocessors, target
from fp4ref_cuda.plan import compiled_in, layout_number, prelude
from fp4ref_cuda.plan import tiles as tile_counts
from fp4ref_cuda.reading import convert_layout

NOTHING = DirectionData(None, None, None)
Path = Callable[[Call, Operands], tuple[str, ...]]

TEAMS, ROWS_WIDTH = 3, 512  # teams of a block of the fused kernel, columns of a unit of the row kernel
OF_STEP, OF_TEAM, OF_BYTES, OF_TABLE = 4 * ROWS_WIDTH, 48128, 48128, 2048  # bytes of shared memory
OF_MEANINGS = 128 * 32  # those of a search by estimates
OF_DRAWN = 128 * 64 + 64 * 144  # those of a box's random bytes
LARGE = {"sm_90", "sm_100a", "sm_103a"}  # targets with more than 200 KB of shared memory
SHARED_OUT = 64 << 20  # bytes of x from which blocks that start later take the last boxes of the search for both maxima
SMALL = {"sm_86", "sm_89", "sm_120a", "sm_121a"}  # with 99 KB


def row_warps(searched: bool) -> int:
    """Warps of a block of the row kernel: as measured, more where the search for the maximum runs just before it."""
    return 16 if searched else 12


def block_warps(target: str) -> int:
    """Warps of a block of the kernel for rows by the plain numerics, as shared memory allows."""
    return 24 if target in LARGE else 16


def fused_teams(target: str, grouped: bool, stochastic: bool = False) -> int:
    """Teams of threads of the fused kernel on a multiprocessor, as tables of groups and random bytes leave memory."""
    if stochastic:
        return 2 if target in LARGE else 1
    return TEAMS if target not in SMALL else 1 if grouped else 2


def fused_shared(teams: int, grouped: bool, stochastic: bool) -> int:
    """Bytes of shared memory of the fused kernel."""
    return teams * (OF_TEAM + stochastic * 2 * OF_DRAWN) + (teams if grouped else 1) * 2 * OF_TABLE


def bytes_blocks(target: str) -> int:
    """Blocks of threads of the kernel for 8-bit elements on a multiprocessor."""
    return 4 if target in LARGE else 2


def magic(divisor: int) -> tuple[int, int]:
    """Factor and shift with which a kernel divides a number below 2^31: (n * factor / 2^32 + n) >> shift."""
    shift = (divisor - 1).bit_length()
    return ((1 << 32) * ((1 << shift) - divisor)) // divisor + 1, shift


def rows(call: Call, on: Operands) -> tuple[str, ...]:
    """Find the maximum, if there is a global scale, then the codes of rows, which reduces what the first one left."""
    out, value = on.targets["row"], on.amax.get("row")
    units, strips = _strips(call)
    ran: tuple[str, ...] = ()
    if not units:
        return maxima.fill(call, on)
    partials, parts = None, 1
    searched = value is None and call.required.global_scale is Granularity.TENSOR
    if searched:
        partials, parts, _ = maxima.partial(call, on)
        ran = ("amax",)
    elif value is not None:
        partials = maxima.given_amax(value, out.amax, on.library)
    warps = row_warps(searched)
    text = _text(call, WARPS=warps, SEARCHED=searched)
    outs = (pointer(out.amax), pointer(out.data), pointer(out.scales))
    whole = (pointer(on.x), *call.sizes, units, strips, *magic(strips))
    grid = min(-(-units // warps), multiprocessors(on.library.ordinal))
    shared = OF_TABLE * 2 + warps * 2 * OF_STEP
    launch(on.library, "rows", text, (grid,), (*whole, pointer(partials), parts, *outs, on.flag), warps * 32, shared)
    return (*ran, "rows")


def row_blocks(call: Call, on: Operands) -> tuple[str, ...]:
    """Find maxima of the whole or of every row, then quantize rows by the plain numerics."""
    out, value, spec, library = on.targets["row"], on.amax.get("row"), call.required, on.library
    units, strips = _strips(call)
    if not units:
        return maxima.fill(call, on)
    ran: tuple[str, ...] = ()
    parts = 1
    if spec.global_scale is Granularity.ROW:
        ran = maxima.fill(call, on)
        partials = out.amax
    elif value is None:
        partials, parts, _ = maxima.partial(call, on)
        ran = ("amax",)
    else:
        partials = maxima.given_amax(value, out.amax, library)
    warps = block_warps(target(library.ordinal))
    text = _text(call, WARPS=warps, SEARCHED=value is None)
    outs = (pointer(on.bits.get("row")), pointer(out.data), pointer(out.scales))
    whole = (pointer(on.x), *call.sizes, units, strips, *magic(strips))
    arguments = (*whole, pointer(partials), parts, pointer(out.amax), *outs, on.flag)
    grid = min(-(-units // warps), multiprocessors(library.ordinal))
    shared = warps * OF_STEP * (3 if spec.stochastic else 2) + (OF_MEANINGS if spec.four_over_six else 0)
    launch(library, "row_blocks", text, (grid,), arguments, warps * 32, shared)
    return (*ran, "row_blocks")


def fused(call: Call, on: Operands) -> tuple[str, ...]:
    """Find both maxima in one pass, then both directions or rows in one pass, of a tensor or a group's members."""
    row, column = on.targets["row"], on.targets.get("column")
    values = [on.amax.get(name) for name in on.targets]
    spec, library, count = call.required, on.library, on.count
    ran: tuple[str, ...] = ("fused",)
    parts, first, second = 1, 0, 0
    searched = values[0] is None and spec.global_scale is not Granularity.NONE
    if values[0] is not None:
        targets = on.targets.values()
        partials = [maxima.given_amax(v, t.amax, library) for v, t in zip(values, targets, strict=True)]
        first, second = pointer(partials[0]), pointer(partials[-1])
    elif spec.hadamard:
        early = parts = max(multiprocessors(library.ordinal) * 3 // count, 1)
        if on.members is None and 2 * prod(call.sizes) >= SHARED_OUT:
            parts += multiprocessors(library.ordinal) * 11 // 4  # 768 in all, the threads of a block of the second pass
        both = library.empty((2, count, parts), "float32")
        first, second = pointer(both), pointer(both) + 4 * count * parts
        search = (pointer(on.x), *call.sizes, pointer(on.members), early, first, on.flag)
        launch(library, "fused_amax", _text(call), (parts, count), search)
        ran = ("fused_amax", "fused")
    elif searched:
        of_x, parts, _ = maxima.partial(call, on)
        first = second = pointer(of_x)
        ran = ("amax", "fused")
    else:
        parts = 0
    grouped = on.members is not None
    teams = fused_teams(target(library.ordinal), grouped, spec.stochastic)
    rows, columns = call.sizes
    boxes = -(-rows // 128) * (columns // 64)
    of_columns = column or NOTHING
    outs = (row.amax, of_columns.amax, row.data, row.scales, of_columns.data, of_columns.scales)
    group = (pointer(on.members), count)
    drawn = (pointer(on.bits.get("row")), pointer(on.bits.get("column")))
    arguments = (pointer(on.x), rows, columns, *drawn, *group, first, second, parts, *map(pointer, outs), on.flag)
    text = _text(call, TEAMS=teams, SEARCHED=searched, GROUPED=grouped, HAS_COLUMN=column is not None)
    grid = min(-(-boxes // teams), multiprocessors(library.ordinal))
    shared = fused_shared(teams, grouped, spec.stochastic)
    launch(library, "fused", text, (grid,), arguments, teams * 256, shared)
    return ran


def separate(call: Call, on: Operands) -> tuple[str, ...]:
    """Quantize rows; then the transformed columns, written out, as rows of their own."""
    spec, (down, across) = call.required, call.sizes
    plain = replace(call, spec=spec.replace(hadamard=None), direction="row")
    ran: tuple[str, ...] = rows(plain, on) if "row" in on.targets else ()
    turned = transformed(on.library, on.x, spec, (down, across), on.flag)
    columns = replace(on, x=turned, targets={"row": on.targets["column"]}, amax={"row": on.amax.get("column")})
    return (*ran, "transform", *rows(replace(plain, shape=(across, down)), columns))


def hadamard(x: Any, spec: Spec, out: Any = None) -> Any:
    """Hadamard-transformed columns as rows, bfloat16 [K, M] of a bfloat16 tensor [M, K], K a multiple of 8.

    Rules: HAD-1, HAD-2, HAD-3, HAD-5.
    """
    rows, columns = matrix_shape(tuple(int(size) for size in x.shape))
    if arrays.require_input("hadamard", x) != "bfloat16" or not spec.hadamard:
        raise DTypeError("hadamard", f"{arrays.dtype_name(x)} for {spec.name}", "bfloat16 and a transform", "HAD-5")
    if rows % 16 or columns % 8:
        raise ShapeError("hadamard", f"{rows} x {columns}", "multiples of 16 and 8", "HAD-5")
    x, library = buffers.adopt("hadamard", x)
    with library.current():
        x = buffers.aligned(buffers.contiguous(x))
        if out is not None:
            checks.require_buffer("hadamard: out", out, (columns, rows), library, x)
        if not rows * columns:
            return library.empty((columns, rows), "bfloat16") if out is None else out
        return transformed(library, x, spec, (rows, columns), 0, out)


def transformed(library: Library, x: Any, spec: Spec, matrix: tuple[int, int], flag: int = 0, out: Any = None) -> Any:
    """Hadamard-transformed columns as rows: bfloat16 [columns, rows]. Rules: HAD-1, HAD-2, HAD-3."""
    out = library.empty((matrix[1], matrix[0]), "bfloat16") if out is None else out
    grid = (-(-matrix[1] // 64), -(-matrix[0] // 128))
    launch(library, "transform", prelude(spec, "bfloat16"), grid, (pointer(x), *matrix, pointer(out), flag))
    return out


def in_bytes(call: Call, on: Operands) -> tuple[str, ...]:
    """Quantize both directions of 8-bit elements."""
    row, column, (rows, columns) = on.targets["row"], on.targets["column"], call.sizes
    pairs = -(-rows // 128) * -(-columns // 128)
    outs = (row.data, row.scales, column.data, column.scales)
    arguments = (pointer(on.x), rows, columns, *map(pointer, outs), on.flag)
    text = _text(call, RESIDENT=bytes_blocks(target(on.library.ordinal)))
    launch(on.library, "bytes", text, (pairs,), arguments, shared=OF_BYTES)
    return ("bytes",)


def then_moved(path: Path) -> Path:
    """Return a path that has scales written in tiles, then moves them to the layout of the call."""

    def run(call: Call, on: Operands) -> tuple[str, ...]:
        rows, columns = call.sizes
        block, targets = call.required.block.columns, on.targets
        grids: dict[Direction, tuple[int, int]] = {
            "row": (rows, -(-columns // block)),
            "column": (columns, -(-rows // block)),
        }
        tiled = {name: on.library.empty(TILED_128X4.padded_shape(*grids[name]), "uint8") for name in targets}
        inner = {name: data._replace(scales=tiled[name]) for name, data in targets.items()}
        ran = path(replace(call, layout=TILED_128X4), replace(on, targets=inner))
        for name, data in targets.items():
            convert_layout([tiled[name]], [grids[name]], TILED_128X4.name, call.layout.name, [data.scales])
        return (*ran, *["layout" for _ in targets])

    return run


def tiles(call: Call, on: Operands) -> tuple[str, ...]:
    """Find maxima, then run the general kernel over every tile of a matrix."""
    ran = maxima.fill(call, on)
    down, across = tile_counts(call.required, *call.sizes, call.directions, call.layout.name, call.source)
    if not down * across:
        return ran
    general(call, on, down * across, across)
    return (*ran, "quantize")


def general(call: Call, on: Operands, count: int, across: int) -> None:
    """Launch the kernel that serves every specification and layout, over tiles, `across` of them side by side."""
    form, rows, columns = compiled_in(call.layout.name), "row" in on.targets, "column" in on.targets
    text = prelude(call.required, call.source, form, HAS_ROW=rows, HAS_COLUMN=columns)
    place = (*call.sizes, layout_number(call.layout.name), across, pointer(on.members), on.count)
    launch(on.library, "quantize", text, (count,), (pointer(on.x), *place, *on.buffers, on.flag))


def _strips(call: Call) -> tuple[int, int]:
    """Return the units of work of the kernels for rows, and the strips side by side."""
    rows, columns = call.sizes
    strips = -(-columns // ROWS_WIDTH)
    return -(-rows // 128) * 32 * strips, strips


def _text(call: Call, **constants: bool | int) -> str:
    return prelude(call.required, call.source, call.layout.name, "float32", **constants)
