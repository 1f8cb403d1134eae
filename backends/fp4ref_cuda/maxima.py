"""Global maxima on the device: partial ones per block of threads, then their reduction; or the caller's own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fp4ref.errors import ShapeError
from fp4ref.quantized import Direction, DirectionData
from fp4ref.spec import Granularity, Spec
from fp4ref_cuda import buffers
from fp4ref_cuda.buffers import Library, pointer
from fp4ref_cuda.launch import launch, multiprocessors
from fp4ref_cuda.plan import amax_kind, prelude


def fill(
    library: Library,
    x: Any,
    dtype: str,
    spec: Spec,
    matrix: tuple[int, int],
    targets: Mapping[Direction, DirectionData],
    given: Mapping[str, Any],
    flag: int,
    members: Any = None,
    count: int = 1,
) -> tuple[str, ...]:
    """Fill the amax buffers of all directions; a maximum that two directions share is searched once.

    members: the table of a group on the device, `count` of them. Result: names of the kernels that ran.

    Rules: GLB-1, GLB-4, GLB-5, HAD-4.
    """
    if spec.global_scale is Granularity.NONE:
        return ()
    ran: tuple[str, ...] = ()
    shared: Any = None
    for name, target in targets.items():
        value = given.get(name)
        if value is not None:
            value = given_amax(value, target.amax, library)
            count_given = int(value.shape[0])
            arguments = (pointer(value), 1, count_given, pointer(target.amax), flag)
            launch(library, "amax_finish", "", (max(-(-count_given // 256), 1), 1), arguments)
        elif (kind := amax_kind(spec, name)) == 1:
            _by_row(library, x, dtype, spec, matrix, target.amax, flag)
            ran += ("amax",)
        else:
            if kind == 2 or shared is None:
                partials, parts, width = partial(library, x, dtype, spec, matrix, kind, members, count, flag)
                ran += ("amax",)
                shared = partials if kind == 0 else shared
            grid = (-(-max(width, 1) // 256), count)
            launch(library, "amax_finish", "", grid, (pointer(partials), parts, width, pointer(target.amax), flag))
            ran += ("amax_finish",)
    return ran


def given_amax(value: Any, like: Any, library: Library) -> Any:
    """The caller's maxima beside x. Rules: GLB-4."""
    value = buffers.on_device("quantize", value, library, "float32").reshape(-1)
    if value.shape != like.shape:
        raise ShapeError("quantize", f"amax {list(value.shape)}", f"{list(like.shape)}", "GLB-4")
    return value


def _text(spec: Spec, dtype: str, kind: int) -> str:
    return prelude(spec, dtype, KIND=kind)


def _by_row(library: Library, x: Any, dtype: str, spec: Spec, matrix: tuple[int, int], out: Any, flag: int) -> None:
    if matrix[0]:
        launch(
            library, "amax", _text(spec, dtype, 1), (-(-matrix[0] // 8),), (pointer(x), *matrix, 0, pointer(out), flag)
        )


def partial(
    library: Library,
    x: Any,
    dtype: str,
    spec: Spec,
    matrix: tuple[int, int],
    kind: int,
    members: Any,
    count: int,
    flag: int,
) -> tuple[Any, int, int]:
    """Partial maxima [count, parts, width] of the whole or of every column."""
    rows, columns = matrix
    wanted = max(multiprocessors(library.ordinal) * 8 // count, 1)
    if kind == 0:
        parts = max(min(wanted, -(-rows * columns // 4096)), 1)
        width = 1
        grid: tuple[int, ...] = (parts, count)
    else:
        across = -(-max(columns, 1) // 256)
        down = max(min(-(-wanted // across), -(-rows // 16), 65535), 1)
        by_row = spec.global_scale is Granularity.ROW
        parts, width = (down, columns) if by_row else (down * across, 1)
        grid = (across, down, count)
    partials = library.empty((max(count * parts * width, 1),), "int32")
    arguments = (pointer(x), rows, columns, pointer(members), pointer(partials), flag)
    launch(library, "amax", _text(spec, dtype, kind), grid, arguments)
    return partials, parts, width
