"""The ways to quantize on the device: maxima and kernels of each, launched for buffers that are ready."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fp4ref.quantized import Direction, DirectionData
from fp4ref.spec import Spec
from fp4ref_cuda import maxima
from fp4ref_cuda.buffers import Library, pointer
from fp4ref_cuda.launch import launch, multiprocessors, target
from fp4ref_cuda.plan import prelude
from fp4ref_cuda.plan import tiles as tile_counts

ROWS_WIDTH, ROWS_BATCH = 64, 4  # columns of a tile, rows that a thread reads ahead
FUSED_BLOCKS, FUSED_SHARED = 3, 52224  # blocks of threads on a multiprocessor, and bytes of shared memory of each


def rows_blocks(target: str) -> int:
    """Blocks of threads of the row kernel on a multiprocessor: as many as its registers allow there."""
    return 2 if target.startswith("sm_12") else 3


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
    down, across = -(-matrix[0] // 128), -(-matrix[1] // ROWS_WIDTH)
    ran: tuple[str, ...] = ()
    if not down * across:
        return maxima.fill(library, x, dtype, spec, matrix, targets, amax, flag)
    if value is None:
        partials, parts, _ = maxima.partial(library, x, dtype, spec, matrix, 0, None, 1, flag)
        ran = ("amax",)
    else:
        partials, parts = maxima.given_amax(value, out.amax, library), 1
    blocks = rows_blocks(target(library.ordinal))
    text = prelude(spec, dtype, scale_layout, WIDTH=ROWS_WIDTH, BATCH=ROWS_BATCH, BLOCKS=blocks, REVERSE=value is None)
    outs = (pointer(out.amax), pointer(out.data), pointer(out.scales))
    grid = min(down * across, multiprocessors(library.ordinal) * blocks)
    arguments = (pointer(x), *matrix, down * across, across, pointer(partials), parts, *outs, flag)
    launch(library, "rows", text, (grid,), arguments, early=value is None)
    return (*ran, "rows")


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
) -> tuple[str, ...]:
    """Both maxima in one pass, then both directions in one pass."""
    row, column = targets["row"], targets["column"]
    values = amax.get("row"), amax.get("column")
    searched = values[0] is None
    parts = multiprocessors(library.ordinal) * 4 if searched else 1
    if searched:
        partials = library.empty((2, parts), "float32")
        first = (pointer(x), *matrix, pointer(partials), flag)
        launch(library, "fused_amax", prelude(spec, dtype, scale_layout), (parts,), first)
    else:
        partials = [maxima.given_amax(v, t.amax, library) for v, t in zip(values, (row, column), strict=True)]
    boxes = -(-matrix[0] // 128) * (matrix[1] // 64)
    outs = (row.amax, column.amax, row.data, row.scales, column.data, column.scales)
    arguments = (pointer(x), *matrix, pointer(partials[0]), pointer(partials[1]), parts, *map(pointer, outs), flag)
    grid = min(boxes, multiprocessors(library.ordinal) * FUSED_BLOCKS)
    text = prelude(spec, dtype, scale_layout, BLOCKS=FUSED_BLOCKS)
    launch(library, "fused", text, (grid,), arguments, shared=FUSED_SHARED, early=searched)
    return ("fused_amax", "fused") if searched else ("fused",)


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
    text = prelude(spec, dtype, scale_layout, HAS_ROW="row" in targets, HAS_COLUMN="column" in targets)
    arguments = (pointer(x), *matrix, across, 0, 1, *directions(targets, bits), flag)
    launch(library, "quantize", text, (down * across,), arguments)
    return (*ran, "quantize")


def directions(targets: Mapping[Direction, DirectionData], bits: Mapping[str, Any]) -> tuple[int, ...]:
    """Addresses of data, scales, amax and random bits, of the row and of the column direction."""
    none = DirectionData(None, None, None)
    each = [(*targets.get(name, none), bits.get(name)) for name in ("row", "column")]
    return tuple(pointer(buffer) for group in each for buffer in group)
