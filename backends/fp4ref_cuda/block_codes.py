"""8-bit floats under a float32 scale of every 128 elements, or of every square of 128x128: codes, and their values."""

from __future__ import annotations

from typing import Any

from fp4ref import arrays
from fp4ref.quantized import DIRECTIONS
from fp4ref.registry import Call
from fp4ref_cuda import buffers, programs
from fp4ref_cuda.buffers import itemsize, pointer
from fp4ref_cuda.launch import launch
from fp4ref_cuda.plan import Plan, prelude, remember
from fp4ref_cuda.words import LARGEST, float_bits

SIDE, FOUR = 128, 4  # of a square; scales behind each other are padded to a multiple of it
OF_BLOCK, EACH = 256, 8  # threads, and elements of one


def block_codes(call: Call, x: Any, least: float, power_of_two: bool, squares: bool) -> tuple[Any, ...]:
    """Return the codes of the rows of a matrix and 1 over their scales, then the same of its transpose.

    Where the call's direction leaves one out, both are None. call: its specification's element is that of the codes. x:
    contiguous, with elements. least, power_of_two: as for `tensor_scale`. squares: one scale for 128x128 elements, else
    for 128 of a row.

    Shape: uint8 [M, K] and [K, M]; float32 [b(K), pad4(M)] and [b(M), pad4(K)], of squares [b(M), pad4(b(K))] and
    [b(K), pad4(b(M))], with b(n) blocks.

    Errors: DTypeError, ShapeError.

    Rules: TEL-49, TEL-50, TEL-73.
    """
    kind = "block_codes", least, power_of_two, squares
    return programs.serve(kind, call, (x,), lambda: _made(call, x, least, power_of_two, squares))


def _made(call: Call, x: Any, least: float, power_of_two: bool, squares: bool) -> tuple[Any, ...]:
    buffers.require_kind("block_codes", "x", x, call.source, call.sizes, "TEL-50")
    rows, columns = call.sizes
    used = {name: name in call.directions for name in DIRECTIONS}
    restore = arrays.device_restorer(x)
    x, library = buffers.adopt("block_codes", x)
    with library.current():
        x = buffers.contiguous(x)
        made: list[Any] = []
        outs: list[int] = []
        for name, (high, wide) in zip(DIRECTIONS, (call.sizes, call.sizes[::-1]), strict=True):
            of_scales = scale_shape(high, wide, squares)
            shapes = ((high, wide), "uint8"), (of_scales, "float32")
            made += [library.empty(*each) if used[name] else None for each in shapes]
            outs += [*map(pointer, made[-2:]), of_scales[1]]
        aligned = not (pointer(x) | outs[0] | outs[3]) % 16 and not (rows | columns) % 16
        shared = SIDE * (SIDE * itemsize(call.source) + 16) + used["column"] * SIDE * (SIDE + 4)
        numbers = float_bits(least), LARGEST[call.source]
        grid = (-(-rows // SIDE) * -(-columns // SIDE),)
        text = prelude(
            call.required,
            call.source,
            SQUARES=squares,
            POWER_OF_TWO=power_of_two,
            VECTORS=aligned,
            HAS_ROW=used["row"],
            HAS_COLUMN=used["column"],
        )
        launch(library, "block_codes", text, grid, (pointer(x), rows, columns, *numbers, *outs), shared=shared)
    remember(Plan("block_codes", ("block_codes",)))
    return tuple(None if each is None else restore(each) for each in made)


def block_values(call: Call, codes: Any, scales: Any, squares: bool) -> Any:
    """Return codes times their scales, computed in float32 and rounded to the call's output type: [rows, columns].

    codes, scales: as `block_codes` returns them for one direction, contiguous. squares: as there.

    Errors: DTypeError, ShapeError.

    Rules: TEL-8, TEL-49, DEQ-2, DEQ-3.
    """
    kind = "block_values", squares
    return programs.serve(kind, call, (codes, scales), lambda: (_values(call, codes, scales, squares),))[0]


def _values(call: Call, codes: Any, scales: Any, squares: bool) -> Any:
    rows, columns = call.sizes
    shape = scale_shape(rows, columns, squares)
    buffers.require_kind("block_values", "codes", codes, "uint8", call.sizes, "TEL-49")
    buffers.require_kind("block_values", "scales", scales, "float32", shape, "TEL-49")
    restore = arrays.device_restorer(codes)
    codes, library = buffers.adopt("block_values", codes)
    with library.current():
        codes, scales = buffers.contiguous(codes), buffers.on_device("block_values", scales, library, "float32")
        out = library.empty(call.sizes, call.to)
        aligned = not (pointer(codes) | pointer(out)) % 16 and not columns % EACH
        text = prelude(call.required, out=call.to, SQUARES=squares, SCALED=True, VECTORS=aligned)
        units = rows * -(-columns // EACH)
        if units:
            arguments = (pointer(codes), pointer(scales), rows, columns, shape[1], pointer(out))
            launch(library, "block_values", text, (-(-units // OF_BLOCK),), arguments)
    remember(Plan("block_values", ("block_values",)))
    return restore(out)


def scale_shape(high: int, wide: int, squares: bool) -> tuple[int, int]:
    """Return the shape of the scales of a matrix. Rules: TEL-49."""
    down, across = -(-high // SIDE), -(-wide // SIDE)
    lines, behind = (down, across) if squares else (across, high)
    return lines, -(-behind // FOUR) * FOUR
