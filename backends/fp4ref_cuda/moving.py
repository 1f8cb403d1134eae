"""Bytes that are turned or copied, and flags that keep what is there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fp4ref import arrays
from fp4ref.arguments import FLAGS
from fp4ref.errors import DTypeError, ShapeError
from fp4ref.registry import Call
from fp4ref_cuda import buffers, programs
from fp4ref_cuda.buffers import Library, pointer
from fp4ref_cuda.checks import require_buffer
from fp4ref_cuda.launch import launch
from fp4ref_cuda.plan import Plan, remember

SIDE, PIECE = 128, 256 * 4 * 16  # of a tile that is turned; bytes that a block of threads copies


def turned(call: Call, codes: Any) -> Any:
    """Return the transpose [columns, rows] of a matrix of bytes, of the call's shape.

    Errors: DTypeError, ShapeError.
    """
    return programs.serve("turned", call, (codes,), lambda: (_turned(call, codes),))[0]


def bind_turned(call: Call, codes: Any) -> Callable[[Any], Any] | None:
    """Return a function that turns other matrices of this one's kind, as the first call did."""
    bound = programs.bind("turned", call, (codes,))
    if bound is None:
        return None

    def again(codes: Any) -> Any:
        made = bound(codes)
        return made[0] if made else turned(call, codes)

    return again


def _turned(call: Call, codes: Any) -> Any:
    buffers.require_kind("turned", "bytes", codes, "uint8", call.sizes, "LAY-1")
    restore = arrays.device_restorer(codes)
    codes, library = buffers.adopt("turned", codes)
    with library.current():
        out = library.empty(call.sizes[::-1], "uint8")
        _turn(library, buffers.contiguous(codes), out, call.sizes, None, turns=True)
    remember(Plan("turned", ("turn",)))
    return restore(out)


def written(call: Call, made: Any, buffer: Any, word: Any = None, *, turns: bool = False) -> None:
    """Copy an array's bytes into a buffer of its type and shape, or with `turns` the transpose of bytes.

    word: int32 [1]; unless it is 0, nothing is written.

    Errors: DTypeError, ShapeError, BackendError.

    Rules: LAY-12.
    """
    inputs = made, buffer, word
    programs.serve(("written", turns), call, inputs, lambda: _written(made, buffer, word, turns=turns))


def _written(made: Any, buffer: Any, word: Any, *, turns: bool) -> tuple[()]:
    shape = tuple(made.shape)
    if turns:
        buffers.require_kind("written", "bytes that are turned", made, "uint8", (shape[0], shape[-1]), "LAY-12")
    wanted = shape[::-1] if turns else shape
    buffers.require_kind("written", "a buffer", buffer, arrays.dtype_name(made), wanted, "LAY-12")
    made, library = buffers.adopt("written", made)
    require_buffer("written", buffer, wanted, library, made)
    if word is not None:
        buffers.require_kind("written", "a flag's word", word, "int32", (1,), "LAY-12")
    with library.current():
        sizes = (shape[0], shape[-1]) if turns else (1, made.nbytes)
        _turn(library, buffers.contiguous(made), buffer, sizes, word, turns=turns)
    remember(Plan("written", ("turn",)))
    return ()


def _turn(library: Library, source: Any, to: Any, sizes: tuple[int, int], word: Any, *, turns: bool) -> None:
    rows, columns = sizes
    count = blocks(rows, columns, turns=turns)
    if count:
        given = pointer(source), pointer(to), rows, columns, pointer(word)
        launch(library, "turn", f"constexpr bool TURNED = {str(turns).lower()};\n", (count,), given)


def blocks(rows: int, columns: int, *, turns: bool) -> int:
    """Return the blocks of threads that turn a matrix of bytes, or copy it."""
    return -(-rows // SIDE) * -(-columns // SIDE) if turns else -(-rows * columns // PIECE)


def is_one(call: Call, flag: Any) -> Any:
    """Return a word of the device, int32 [1], that is not 0 where a flag is 1: uint8, int32 or float32, [] or [1].

    Errors: DTypeError.

    Rules: TEL-24.
    """
    return programs.serve("is_one", call, (flag,), lambda: (_is_one(flag),))[0]


def _is_one(flag: Any) -> Any:
    name = arrays.dtype_name(flag)
    if name not in FLAGS:
        raise DTypeError("is_one", f"a flag of {name}", " or ".join(FLAGS), "TEL-24")
    if tuple(flag.shape) not in {(), (1,)}:
        raise ShapeError("is_one", f"a flag {list(flag.shape)}", "one element", "TEL-24")
    restore = arrays.device_restorer(flag)
    flag, library = buffers.adopt("is_one", flag)
    with library.current():
        word = library.empty((1,), "int32")
        launch(library, "flag", "", (1,), (pointer(flag), buffers.itemsize(name), FLAGS[name], pointer(word)), block=32)
    remember(Plan("is_one", ("flag",)))
    return restore(word)
