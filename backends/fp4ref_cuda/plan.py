"""The choice of kernels for a call, from shapes and specifications alone: no device is needed to read or test it."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

import fp4ref_numerics
from fp4ref.arithmetic import RCEIL, TE, Arithmetic
from fp4ref.formats import CUDA_E2M1, CUDA_E4M3, CUDA_E8M0, STOCHASTIC_E2M1, Codec
from fp4ref.layout import LINEAR, TILED_128X4, Layout, layout
from fp4ref.quantized import Direction
from fp4ref.registry import Call
from fp4ref.remembered import Same
from fp4ref.spec import Amax, Granularity, Spec
from fp4ref.specs import NVFP4
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
    """Return what this thread's latest call ran."""
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
    """Return what a kernel that is compiled for all layouts is told; -1 is the one that is compiled in."""
    return number(layout(scale_layout))


def compiled_in(scale_layout: str) -> str:
    """Return the layout that a general kernel is compiled for: one that the header lacks, else any of the header's."""
    return scale_layout if layout_number(scale_layout) < 0 else LINEAR.name


def own_map(scale_layout: str) -> str:
    """Return why a layout takes a general kernel; empty if the header has its map."""
    return "" if layout_number(scale_layout) >= 0 else f"scales {scale_layout}, which only the general kernels serve"


def is_tiled(scale_layout: str) -> bool:
    """Return True if scales are stored in the tiles of the matrix instructions, whatever the layout is called."""
    return number(layout(scale_layout)) == number(TILED_128X4)


def _constant(name: str, value: bool | int) -> str:
    return f"bool {name} = {str(value).lower()}" if isinstance(value, bool) else f"int {name} = {value}"


def tile_sizes(spec: Spec, names: Sequence[Direction], dtype: str) -> tuple[int, int]:
    """Rows and columns of the tile that a block of threads quantizes; for rows of long blocks, four of these."""
    if dtype == "float32":
        return 64, 64
    return (64, 128) if "column" not in names and spec.block.rows == 1 and spec.block.columns > 16 else (128, 64)


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


class ThresholdForm(NamedTuple):
    """The parts of a specification that kernels by thresholds serve. title: what it is called. block: its sizes."""

    title: str
    arithmetic: Arithmetic
    scale: Codec
    block: tuple[int, int]
    global_scale: Granularity


SCALES = {Granularity.TENSOR: "one global scale", Granularity.NONE: "no global scale"}
NVFP4_FORM = ThresholdForm("NVFP4", TE, CUDA_E4M3, (1, 16), Granularity.TENSOR)
SQUARE_FORM = NVFP4_FORM._replace(title="NVFP4 in squares", block=(16, 16))
MXFP4_FORM = ThresholdForm("MXFP4", RCEIL, CUDA_E8M0, (1, 32), Granularity.NONE)
FUSED_FORMS = {form.block: form for form in (NVFP4_FORM, SQUARE_FORM, MXFP4_FORM)}  # of which there is a fused kernel


def thresholds_reason(
    spec: Spec, dtype: str, matrix: tuple[int, int], address: int, form: ThresholdForm = NVFP4_FORM
) -> str:
    """Why rows cannot be quantized by thresholds, as those of one form are; empty if they can."""
    if (spec.arithmetic, spec.element, spec.scale) != (form.arithmetic, CUDA_E2M1, form.scale) or spec.four_over_six:
        return f"{spec.name} is not {form.title} by the default arithmetic"
    if (*spec.block, spec.global_scale, spec.amax) != (*form.block, form.global_scale, Amax.IGNORE_NAN):
        sizes = "x".join(map(str, form.block))
        return f"{spec.name} does not have blocks of {sizes} under {SCALES[form.global_scale]}"
    if dtype != "bfloat16":
        return f"{dtype}, not bfloat16"
    return _size_reason(matrix) or _vector_reason(matrix[1], address)


def blocks_reason(spec: Spec, dtype: str, matrix: tuple[int, int], address: int) -> str:
    """Why rows cannot be quantized by the plain numerics in whole lines; empty if they can."""
    if spec.element.format.bits != 4 or spec.block != (1, 16) or spec.global_scale is Granularity.NONE:
        return f"{spec.name} does not have e2m1 in blocks of 1x16 under a global scale"
    if dtype == "float32":
        return "float32, not a 16-bit input"
    if dtype == "float16" and spec.four_over_six:
        return "float16 under a search, whose estimates are for bfloat16"
    if reason := _size_reason(matrix):
        return reason
    if spec.stochastic and matrix[1] % 16:
        return f"random bytes in rows of {matrix[1]}, not in whole vectors of 16"
    return _vector_reason(matrix[1], address)


def fused_reason(
    spec: Spec,
    dtype: str,
    matrix: tuple[int, int],
    scale_layout: str,
    address: int,
    splits: Sequence[int] | None = None,
) -> str:
    """Why rows and columns, transformed or not, cannot be quantized by the fused kernel; empty if they can."""
    rows, columns = matrix
    for index, split in enumerate(splits or ()):
        if split % 128:
            return f"{split} rows of member {index}, not a multiple of 128"
    if rows % 64 or columns % 64 or not rows * columns:
        return f"{rows} x {columns}, not multiples of 64"
    if columns >= 1 << 24:
        return f"{columns} columns, not fewer than 2^24"
    if not is_tiled(scale_layout):
        return f"scales {scale_layout}, not tiled_128x4"
    form = FUSED_FORMS.get((spec.block.rows, spec.block.columns), NVFP4_FORM)
    if spec.hadamard and form is not NVFP4_FORM:
        return f"{spec.name} transforms other blocks than those of 1x16"
    nearest = spec.replace(element=CUDA_E2M1) if spec.element == STOCHASTIC_E2M1 else spec
    return thresholds_reason(nearest, dtype, matrix, address, form)


def bytes_reason(spec: Spec, dtype: str, matrix: tuple[int, int], scale_layout: str, address: int) -> str:
    """Why 8-bit elements cannot be quantized by rows and columns together in whole boxes; empty if they can."""
    rows, columns = matrix
    if spec.element.format.bits != 8 or spec.block != (1, 32) or spec.global_scale is not Granularity.NONE:
        return f"{spec.name} does not have 8-bit elements in blocks of 1x32 without a global scale"
    if spec.stochastic or spec.hadamard or spec.four_over_six:
        return f"{spec.name} is stochastic, transformed or searched"
    if dtype != "bfloat16" or not is_tiled(scale_layout):
        return f"{dtype} and scales {scale_layout}, not bfloat16 and tiled_128x4"
    if rows % 16 or columns % 16 or not rows * columns or max(rows, columns) >= 1 << 31:
        return f"{rows} x {columns}, not multiples of 16 below 2^31"
    return f"address {address % 16} of 16" if address % 16 else ""


ROWS, ROW_BLOCKS, TILES = "rows by thresholds", "rows by blocks", "tiles"
FUSED, FUSED_HADAMARD = "rows and columns by thresholds", "rows and hadamard columns, fused"
DRAWN, SQUARES = "rows and columns by random bytes", "rows of squares by thresholds"
BYTES, SEPARATE = "rows and columns of bytes", "rows and hadamard columns, apart"
IN_TILES = (FUSED, FUSED_HADAMARD, DRAWN, SQUARES, BYTES)  # the paths that write scales in tiles alone
MOVED, MOVED_FROM = ", scales moved", 1 << 22  # elements from which two more launches cost less than the general kernel


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
    if label not in IN_TILES or (label != FUSED_HADAMARD and call.sizes[0] * call.sizes[1] < MOVED_FROM):
        return None
    return label + MOVED, f"scales {call.layout.name}, not tiled_128x4"


def _fastest(call: Call, address: int, one_amax: bool) -> tuple[str, str]:
    """Choose the path of a call in a layout whose map the header has."""
    spec, dtype, matrix, scale_layout = call.required, call.source, call.sizes, call.layout.name
    if call.direction == "row":
        return _fastest_row(call, address)
    reason = "the columns alone"
    if call.direction == "both":
        if not bytes_reason(spec, dtype, matrix, scale_layout, address):
            return BYTES, ""
        reason = fused_reason(spec, dtype, matrix, scale_layout, address)
        if not reason and not one_amax:
            return fused_label(spec), ""
        reason = reason or "an amax for one direction"
    if spec.hadamard and matrix[0] * matrix[1] and not thresholds_reason(spec, dtype, matrix, address):
        return SEPARATE, reason
    return TILES, reason


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


def decode_reason(spec: Spec, dtype: str, columns: int, address: int, inverse: bool) -> str:
    """Why a direction cannot be dequantized in whole lines; empty if it can."""
    form, scale, width = spec.element.format, spec.scale.format, spec.block.columns
    signed = form.signed and not form.complement
    if form.bits == 4 and signed and form.codes == 8 and width in {16, 32}:  # looked up by one permutation of bytes
        if spec.global_scale is Granularity.ROW:
            return f"{spec.name} has a row scale"
    elif not (
        form.bits == 8 and signed and form.bias >= 0 and scale.powers_of_two and scale.codes == 255 and width == 32
    ):
        looked_up = "8 finite magnitudes of 4 bits in blocks of 16 or 32 columns"
        return f"{spec.name} has neither {looked_up}, nor 8-bit floats under powers of two in blocks of 32"
    elif spec.global_scale is not Granularity.NONE:
        return f"{spec.name} has 8-bit elements and a global scale"
    if dtype == "float32" or inverse:
        return "an inverse transform" if inverse else "float32, not a 16-bit output"
    return _vector_reason(columns, address)


def _size_reason(matrix: tuple[int, int]) -> str:
    return f"{matrix[0]} x {matrix[1]}, not fewer than 2^31 each" if max(matrix) >= 1 << 31 else ""


def _vector_reason(columns: int, address: int) -> str:
    if columns % 8 or address % 16:
        return f"rows of {columns} at address {address % 16} of 16, not in whole vectors of 16 bytes"
    return ""
