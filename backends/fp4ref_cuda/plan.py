"""The choice of kernels for a call, from shapes and specifications alone: no device is needed to read or test it."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import fp4ref_numerics
from fp4ref.layout import LINEAR, TILED_128X4, Layout, layout
from fp4ref.quantized import Direction
from fp4ref.registry import Call
from fp4ref.remembered import Same
from fp4ref.spec import Granularity, Spec
from fp4ref.specs import NVFP4
from fp4ref_cuda.demands import (
    MXFP4_FORM,
    blocks_reason,
    bytes_reason,
    fused_reason,
    is_tiled,
    own_map,
    thresholds_reason,
)
from fp4ref_numerics.layouts import lower_layout, number

ANY = NVFP4  # a kernel that takes no block apart is the same for every specification


@dataclass(frozen=True)
class Plan:
    """The kernels of one call, in order, the path they make up, and why no faster path was taken."""

    path: str
    kernels: tuple[str, ...]
    reason: str = ""


_last = threading.local()


def last_plan() -> Plan | None:
    """Return the plan of this thread's latest call, None before the first."""
    return getattr(_last, "plan", None)


def remember(plan: Plan) -> None:
    """Keep the plan of a call."""
    _last.plan = plan


def prelude(
    spec: Spec, dtype: str = "float32", scale_layout: str = "linear", out: str = "float32", **constants: bool | int
) -> str:
    """Return the types and constants that a kernel is compiled for."""
    return _prelude(spec, dtype, layout(scale_layout), out, tuple(constants.items()))


@lru_cache(maxsize=4096)
def _prelude(spec: Spec, dtype: str, form: Layout, out: str, constants: tuple[tuple[str, bool | int], ...]) -> str:
    lines = [
        fp4ref_numerics.lower(spec),
        f"using S = Specification; using In = fp4ref::{dtype}; using Out = fp4ref::{out};",
        lower_layout(form),
        f"constexpr {_constant('OWN_LAYOUT', number(form) < 0)};",
    ]
    lines += [f"constexpr {_constant(name, value)};" for name, value in constants]
    return "\n".join(lines)


def layout_number(scale_layout: str) -> int:
    """Return a layout's number for a kernel that is compiled for all of the header's; -1: the layout is compiled in."""
    return number(layout(scale_layout))


def compiled_in(scale_layout: str) -> str:
    """Return the layout that a general kernel is compiled for: one that the header lacks, else any of the header's."""
    return scale_layout if layout_number(scale_layout) < 0 else LINEAR.name


def _constant(name: str, value: bool | int) -> str:
    return f"bool {name} = {str(value).lower()}" if isinstance(value, bool) else f"int {name} = {value}"


def tile_sizes(spec: Spec, names: Sequence[Direction], dtype: str) -> tuple[int, int]:
    """Rows and columns of a block of threads' tile; rows of long blocks take four or eight tiles."""
    if dtype == "float32":
        return 64, 64
    if "column" in names or spec.block.rows > 1 or spec.block.columns <= 16:
        return 128, 64
    return (64, 128) if spec.element.format.bits == 4 else (32, 256)


def _ceil(value: int, unit: int) -> int:
    return -(-value // unit) * unit


def tiles(
    spec: Spec, rows: int, columns: int, names: Sequence[Direction], scale_layout: str, dtype: str
) -> tuple[int, int]:
    """Tiles down and across that cover a matrix and the padding of its scales; none for an empty one."""
    if not rows or not columns:
        return 0, 0
    high, wide = layout(scale_layout).multiples
    width = spec.block.columns
    down, across = rows, columns
    if "row" in names:
        down, across = max(down, _ceil(rows, high)), max(across, _ceil(-(-columns // width), wide) * width)
    if "column" in names:
        down, across = max(down, _ceil(-(-rows // width), wide) * width), max(across, _ceil(columns, high))
    sizes = tile_sizes(spec, names, dtype)
    return -(-down // sizes[0]), -(-across // sizes[1])


def amax_kind(spec: Spec, direction: Direction) -> int:
    """Which pass finds a direction's global maxima: 0 over the whole, 1 by row, 2 by column."""
    if direction == "column" and (spec.hadamard or spec.global_scale is Granularity.ROW):
        return 2
    return 1 if spec.global_scale is Granularity.ROW else 0


ROWS, ROW_BLOCKS, TILES = "rows by thresholds", "rows by blocks", "tiles"
FUSED, FUSED_HADAMARD = "rows and columns by thresholds", "rows and hadamard columns, fused"
DRAWN, SQUARES = "rows and columns by random bytes", "rows of squares by thresholds"
BYTES, SEPARATE = "rows and columns of bytes", "rows and hadamard columns, apart"
MOVABLE = (FUSED, FUSED_HADAMARD, DRAWN, SQUARES, BYTES)  # the paths that cannot write scales in every layout
MOVED, MOVED_FROM = ", scales moved", 1 << 22  # elements from which two more launches cost less than the general kernel
SCATTERED = 1 << 25  # elements from which they cost less than scales that are stored a word at a time, far apart


def choose(call: Call, address: int, one_amax: bool) -> tuple[str, str]:
    """Return the path of a call, and why no faster one can serve it.

    address: all addresses, or-ed. one_amax: True if a maximum is given for one direction of two.
    """
    return _chosen(Same(call), address % 16, one_amax)


@lru_cache(maxsize=4096)
def _chosen(call: Same, address: int, one_amax: bool) -> tuple[str, str]:
    own = own_map(call.value.layout.name)
    moved = _moved(call.value, address, one_amax)
    return moved or ((TILES, own) if own else _fastest(call.value, address, one_amax))


def _moved(call: Call, address: int, one_amax: bool) -> tuple[str, str] | None:
    """Choose a path that writes scales in tiles, from where they are moved; None for calls that need or want no move.

    A flag on the device does not hold back the move, so a call with one has no such path.
    """
    if call.flag or is_tiled(call.layout.name):
        return None
    label, _ = _fastest(replace(call, layout=TILED_128X4), address, one_amax)
    least = MOVED_FROM
    if not own_map(call.layout.name) and label != BYTES and call.required.global_scale is not Granularity.NONE:
        least = SCATTERED
    elif label == FUSED_HADAMARD:
        least = 0
    if label not in MOVABLE or call.sizes[0] * call.sizes[1] < least:
        return None
    return label + MOVED, f"scales {call.layout.name}, not tiled_128x4"


def _fastest(call: Call, address: int, one_amax: bool) -> tuple[str, str]:
    """Choose the path of a call in a layout whose map the header has."""
    spec, dtype, matrix, scale_layout = call.required, call.source, call.sizes, call.layout.name
    if call.direction == "row":
        return _fastest_row(call, address)
    reason = "the columns alone"
    if call.direction == "both":
        reason = bytes_reason(spec, dtype, matrix, scale_layout, address)
        if not reason:
            return BYTES, ""
        if spec.element.format.bits == 8:
            return TILES, reason
        reason = fused_reason(spec, dtype, matrix, scale_layout, address) or _few_reason(call)
        if not reason and not one_amax:
            return fused_label(spec), ""
        reason = reason or "an amax for one direction"
    if spec.hadamard and matrix[0] * matrix[1] and not thresholds_reason(spec, dtype, matrix, address):
        return SEPARATE, reason
    return TILES, reason


def _few_reason(call: Call) -> str:
    """Why the general kernel is faster than the fused one, for few elements without maxima; empty if it isn't."""
    few = call.required.global_scale is Granularity.NONE and call.sizes[0] * call.sizes[1] < MOVED_FROM
    return f"few elements, and scales {call.layout.name}" if few and not is_tiled(call.layout.name) else ""


def _fastest_row(call: Call, address: int) -> tuple[str, str]:
    spec, dtype, matrix = call.required, call.source, call.sizes
    reason = thresholds_reason(spec, dtype, matrix, address)
    if not reason or not thresholds_reason(spec, dtype, matrix, address, MXFP4_FORM):
        return ROWS, ""
    if spec.block.rows > 1 and not spec.stochastic:
        reason = fused_reason(spec, dtype, matrix, call.layout.name, address)
        return (TILES, reason) if reason else (SQUARES, "")
    slower = blocks_reason(spec, dtype, matrix, address)
    return (TILES, slower) if slower else (ROW_BLOCKS, reason)


def fused_label(spec: Spec) -> str:
    """Return the name of the path for both directions."""
    return FUSED_HADAMARD if spec.hadamard else DRAWN if spec.stochastic else FUSED
