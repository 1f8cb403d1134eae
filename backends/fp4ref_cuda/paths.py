"""The ways to quantize on the device: maxima and kernels of each, launched for buffers that are ready."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fp4ref.quantized import Direction, DirectionData
from fp4ref.spec import Granularity, Spec
from fp4ref_cuda import maxima
from fp4ref_cuda.buffers import Library, pointer
from fp4ref_cuda.launch import launch, multiprocessors, target
from fp4ref_cuda.plan import layout_number, prelude
from fp4ref_cuda.plan import tiles as tile_counts

TEAMS, ROWS_WIDTH = 3, 512  # teams of a block of the fused kernel, columns of a unit of the row kernel
OF_STEP, OF_TEAM, OF_BYTES, OF_TABLE = 4 * ROWS_WIDTH, 48128, 48128, 2048  # bytes of shared memory
OF_MEANINGS = 128 * 32  # those of a search by estimates
OF_DRAWN = 128 * 64 + 64 * 144  # those of a box's random bytes
LARGE = {"sm_90", "sm_100a", "sm_103a"}  # targets with more than 200 KB of shared memory
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


def rows(
    library: Library,
    x: Any,
    dtype: str,
    spec: Spec,
    matrix: tuple[int, int],
    scale_layout: str,
    targets: dict[Direction, DirectionData],
    amax: Mapping[str, Any],
    bits: Mapping[str, Any],
    flag: int,
) -> tuple[str, ...]:
    """Maximum and codes of rows, the second kernel reducing what the first one left."""
    out, value = targets["row"], amax.get("row")
    strips = -(-matrix[1] // ROWS_WIDTH)
    units = -(-matrix[0] // 128) * 32 * strips
    ran: tuple[str, ...] = ()
    if not units:
        return maxima.fill(library, x, dtype, spec, matrix, targets, amax, flag)
    if value is None:
        partials, parts, _ = maxima.partial(library, x, dtype, spec, matrix, 0, None, 1, flag)
        ran = ("amax",)
    else:
        partials, parts = maxima.given_amax(value, out.amax, library), 1
    warps = row_warps(value is None)
    text = prelude(spec, dtype, scale_layout, WARPS=warps, SEARCHED=value is None)
    outs = (pointer(out.amax), pointer(out.data), pointer(out.scales))
    arguments = (pointer(x), *matrix, units, strips, *magic(strips), pointer(partials), parts, *outs, flag)
    grid = min(-(-units // warps), multiprocessors(library.ordinal))
    shared = OF_TABLE + warps * 2 * OF_STEP
    launch(library, "rows", text, (grid,), arguments, warps * 32, shared)
    return (*ran, "rows")


def row_blocks(
    library: Library,
    x: Any,
    dtype: str,
    spec: Spec,
    matrix: tuple[int, int],
    scale_layout: str,
    targets: dict[Direction, DirectionData],
    amax: Mapping[str, Any],
    bits: Mapping[str, Any],
    flag: int,
) -> tuple[str, ...]:
    """Maxima of the whole or of every row, then rows by the plain numerics."""
    out, value = targets["row"], amax.get("row")
    strips = -(-matrix[1] // ROWS_WIDTH)
    units = -(-matrix[0] // 128) * 32 * strips
    if not units:
        return maxima.fill(library, x, dtype, spec, matrix, targets, amax, flag)
    ran: tuple[str, ...] = ()
    parts = 1
    if spec.global_scale is Granularity.ROW:
        ran = maxima.fill(library, x, dtype, spec, matrix, targets, amax, flag)
        partials = out.amax
    elif value is None:
        partials, parts, _ = maxima.partial(library, x, dtype, spec, matrix, 0, None, 1, flag)
        ran = ("amax",)
    else:
        partials = maxima.given_amax(value, out.amax, library)
    warps = block_warps(target(library.ordinal))
    text = prelude(spec, dtype, scale_layout, WARPS=warps, SEARCHED=value is None)
    outs = (pointer(bits.get("row")), pointer(out.data), pointer(out.scales))
    whole = (units, strips, *magic(strips))
    arguments = (pointer(x), *matrix, *whole, pointer(partials), parts, pointer(out.amax), *outs, flag)
    grid = min(-(-units // warps), multiprocessors(library.ordinal))
    shared = warps * OF_STEP * (3 if spec.stochastic else 2) + (OF_MEANINGS if spec.four_over_six else 0)
    launch(library, "row_blocks", text, (grid,), arguments, warps * 32, shared)
    return (*ran, "row_blocks")


def fused(
    library: Library,
    x: Any,
    dtype: str,
    spec: Spec,
    matrix: tuple[int, int],
    scale_layout: str,
    targets: dict[Direction, DirectionData],
    amax: Mapping[str, Any],
    bits: Mapping[str, Any],
    flag: int,
    members: Any = None,
    count: int = 1,
) -> tuple[str, ...]:
    """Both maxima in one pass, then both directions in one pass, of a tensor or of every member of a group."""
    row, column = targets["row"], targets["column"]
    values = amax.get("row"), amax.get("column")
    ran: tuple[str, ...] = ("fused",)
    parts = 1
    if values[0] is not None:
        partials = [maxima.given_amax(v, t.amax, library) for v, t in zip(values, (row, column), strict=True)]
        first, second = map(pointer, partials)
    elif spec.hadamard:
        parts = max(multiprocessors(library.ordinal) * 4 // count, 1)
        partials = library.empty((2, count, parts), "float32")
        first, second = pointer(partials), pointer(partials) + 4 * count * parts
        search = (pointer(x), *matrix, pointer(members), first, flag)
        launch(library, "fused_amax", prelude(spec, dtype, scale_layout), (parts, count), search)
        ran = ("fused_amax", "fused")
    else:
        partials, parts, _ = maxima.partial(library, x, dtype, spec, matrix, 0, members, count, flag)
        first = second = pointer(partials)
        ran = ("amax", "fused")
    grouped = members is not None
    teams = fused_teams(target(library.ordinal), grouped, spec.stochastic)
    boxes = -(-matrix[0] // 128) * (matrix[1] // 64)
    outs = (row.amax, column.amax, row.data, row.scales, column.data, column.scales)
    group = (pointer(members), count)
    drawn = (pointer(bits.get("row")), pointer(bits.get("column")))
    arguments = (pointer(x), *matrix, *drawn, *group, first, second, parts, *map(pointer, outs), flag)
    text = prelude(spec, dtype, scale_layout, TEAMS=teams, SEARCHED=values[0] is None, GROUPED=grouped)
    grid = min(-(-boxes // teams), multiprocessors(library.ordinal))
    shared = fused_shared(teams, grouped, spec.stochastic)
    launch(library, "fused", text, (grid,), arguments, teams * 256, shared)
    return ran


def separate(
    library: Library,
    x: Any,
    dtype: str,
    spec: Spec,
    matrix: tuple[int, int],
    scale_layout: str,
    targets: dict[Direction, DirectionData],
    amax: Mapping[str, Any],
    bits: Mapping[str, Any],
    flag: int,
) -> tuple[str, ...]:
    """Rows; then the transformed columns, written out, as rows of their own."""
    plain = spec.replace(hadamard=None)
    ran: tuple[str, ...] = ()
    if "row" in targets:
        ran = rows(library, x, dtype, plain, matrix, scale_layout, targets, amax, bits, flag)
    turned = transformed(library, x, spec, matrix, flag)
    column: dict[Direction, DirectionData] = {"row": targets["column"]}
    found = {"row": amax.get("column")}
    turned_matrix = (matrix[1], matrix[0])
    return (
        *ran,
        "transform",
        *rows(library, turned, dtype, plain, turned_matrix, scale_layout, column, found, bits, flag),
    )


def transformed(library: Library, x: Any, spec: Spec, matrix: tuple[int, int], flag: int = 0, out: Any = None) -> Any:
    """Hadamard-transformed columns as rows: bfloat16 [columns, rows]. Rules: HAD-1, HAD-2, HAD-3."""
    out = library.empty((matrix[1], matrix[0]), "bfloat16") if out is None else out
    grid = (-(-matrix[1] // 64), -(-matrix[0] // 128))
    launch(library, "transform", prelude(spec, "bfloat16"), grid, (pointer(x), *matrix, pointer(out), flag))
    return out


def in_bytes(
    library: Library,
    x: Any,
    dtype: str,
    spec: Spec,
    matrix: tuple[int, int],
    scale_layout: str,
    targets: dict[Direction, DirectionData],
    amax: Mapping[str, Any],
    bits: Mapping[str, Any],
    flag: int,
) -> tuple[str, ...]:
    """Both directions of 8-bit elements."""
    row, column = targets["row"], targets["column"]
    pairs = -(-matrix[0] // 128) * -(-matrix[1] // 128)
    arguments = (pointer(x), *matrix, *map(pointer, (row.data, row.scales, column.data, column.scales)), flag)
    text = prelude(spec, dtype, scale_layout, RESIDENT=bytes_blocks(target(library.ordinal)))
    launch(library, "bytes", text, (pairs,), arguments, shared=OF_BYTES)
    return ("bytes",)


def tiles(
    library: Library,
    x: Any,
    dtype: str,
    spec: Spec,
    matrix: tuple[int, int],
    scale_layout: str,
    targets: dict[Direction, DirectionData],
    amax: Mapping[str, Any],
    bits: Mapping[str, Any],
    flag: int,
) -> tuple[str, ...]:
    """Maxima, then the general kernel over every tile of a matrix."""
    ran = maxima.fill(library, x, dtype, spec, matrix, targets, amax, flag)
    down, across = tile_counts(spec, *matrix, tuple(targets), scale_layout, dtype)
    if not down * across:
        return ran
    text = prelude(spec, dtype, HAS_ROW="row" in targets, HAS_COLUMN="column" in targets)
    arguments = (pointer(x), *matrix, layout_number(scale_layout), across, 0, 1, *directions(targets, bits), flag)
    launch(library, "quantize", text, (down * across,), arguments)
    return (*ran, "quantize")


def directions(targets: Mapping[Direction, DirectionData], bits: Mapping[str, Any]) -> tuple[int, ...]:
    """Addresses of data, scales, amax and random bits, of the row and of the column direction."""
    none = DirectionData(None, None, None)
    each = [(*targets.get(name, none), bits.get(name)) for name in ("row", "column")]
    return tuple(pointer(buffer) for group in each for buffer in group)
