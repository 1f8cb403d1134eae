"""The public source of random bytes: check the arguments once, then call a backend."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from fp4ref import arrays, registry
from fp4ref.arguments import direction_names
from fp4ref.errors import DomainError, DTypeError, ShapeError
from fp4ref.operands import Counters
from fp4ref.quantized import DIRECTIONS, Direction, DirectionChoice, Directions, matrix_shape
from fp4ref.remembered import Same

BLOCK = 16  # elements that share a counter


def random_bits(
    shape: tuple[int, ...],
    direction: Direction = "row",
    seed: int = 0,
    stream: int = 0,
    origin: tuple[int, int] = (0, 0),
    whole: tuple[int, int] | None = None,
    device: Any = None,
    backend: str | None = None,
    out: Any = None,
) -> Any:
    """Make the random bytes that stochastic rounding takes, the same for every backend and every split of a tensor.

    shape: [..., K] of the tensor, or of the part of it that is here. direction: "row" gives uint8 [M, K], "column"
    uint8 [K, M]; the two differ. seed: 64 bits. stream: 63 bits, a new one for every tensor and step under one seed.
    origin: row and column of the part's first element in the whole matrix, a multiple of 16 along the direction's
    blocks. whole: (M, K) of the whole matrix, the shape unless given.
    device: None for a NumPy array, else a torch device or its name for a tensor there. out: uint8 of the result's
    shape, contiguous, of the kind that `device` says; filled and returned.

    Errors: ShapeError, DomainError, DTypeError, BackendError.

    >>> import fp4ref
    >>> fp4ref.random_bits((1, 4)), fp4ref.random_bits((1, 20), origin=(0, 16), whole=(1, 36)).shape
    (array([[213, 232,  39, 102]], dtype=uint8), (1, 20))

    Rules: SR-7, SR-8, SR-9, SR-14, SR-15, SR-17, SR-19, SR-20.
    """
    if direction not in DIRECTIONS:
        raise DomainError("random_bits", f"direction {direction!r}", "row or column", "BLK-15")
    part = matrix_shape(_sizes("shape", shape))
    first, of = _sizes("origin", origin, 2), part if whole is None else _sizes("whole", whole, 2)
    for value, name, bits in ((seed, "seed", 64), (stream, "stream", 63)):
        if not _is_integer(value) or not 0 <= value < 1 << bits:
            raise DomainError("random_bits", f"{name} {value!r}", f"an integer of {bits} bits", "SR-14")
    if any(start + size > end for start, size, end in zip(first, part, of, strict=True)):
        got = f"a part {list(part)} at {list(first)} of {list(of)}"
        raise ShapeError("random_bits", got, "a part inside the whole", "SR-15")
    if direction == "column":
        part, first, of = part[::-1], first[::-1], of[::-1]
    if first[1] % BLOCK:
        axis = "column" if direction == "row" else "row"
        got = f"{axis} {first[1]} as the origin of the {direction} direction"
        raise ShapeError("random_bits", got, f"a multiple of {BLOCK}", "SR-15")
    across = -(-of[1] // BLOCK)
    if of[0] * across >= 1 << 64:
        raise ShapeError("random_bits", f"a whole of {of[0]} x {of[1]}", "less than 2^64 blocks", "SR-14")
    if out is not None:
        _require_out(out, part, _kind(device))
    return _made(part, (first[0], first[1] // BLOCK), across, direction, int(seed), int(stream), device, backend, out)


def bits_of_matrix(
    shape: tuple[int, int], directions: DirectionChoice, seed: Any, stream: int, device: Any
) -> Directions:
    """Make the bytes of `random_bits` for a whole matrix [M, K], from arguments that nobody has to check.

    seed: an integer, or one on the device, int64 [1], for backends that read it there.

    Rules: SR-7, SR-8, SR-9.
    """
    return bits_by_key(shape, directions, seed, 2 * stream, device)


def bits_by_key(shape: tuple[int, int], directions: DirectionChoice, seed: Any, upper: int, device: Any) -> Directions:
    """Make the same bytes. upper: the upper word of the rows' key, which the columns' is one more than."""
    return _of_matrix(shape, directions, device, registry.registered())(seed, upper)


@lru_cache(maxsize=4096)
def _of_matrix(
    shape: tuple[int, int], directions: DirectionChoice, device: Any, registered: Same
) -> Callable[[Any, int], Directions]:
    """Return a function of a seed and an upper word that makes the bytes of matrices of one shape."""
    names = direction_names(directions)
    parts = [shape if name == "row" else shape[::-1] for name in names]
    counters = [
        Counters((0, 0), -(-columns // BLOCK), 0, DIRECTIONS.index(name))
        for name, (_, columns) in zip(names, parts, strict=True)
    ]
    planned = [_planned(_kind(device), part, False, None, registered) for part in parts]
    bind = registry.binder(planned[0][0], None)
    one = all(function is planned[0][1] for _, function in planned)  # a backend may refuse a shape
    bound = bind([call for call, _ in planned], counters, device) if bind and one else None

    def each_alone(seed: Any, upper: int) -> tuple[Any, ...]:
        now = [each._replace(seed=seed, upper=upper + each.upper) for each in counters]
        return tuple(function(call, each, device, None) for (call, function), each in zip(planned, now, strict=True))

    made = bound or each_alone
    if directions == "column":
        return lambda seed, upper: Directions(None, *made(seed, upper))
    return lambda seed, upper: Directions(*made(seed, upper))


def _made(
    part: tuple[int, int],
    origin: tuple[int, int],
    across: int,
    direction: Direction,
    seed: Any,
    stream: int,
    device: Any,
    backend: str | None,
    out: Any,
) -> Any:
    """Call a backend. part: of the direction's matrix. origin: its first row, and its first block."""
    call, function = _planned(_kind(device), part, out is not None, backend, registry.registered())
    return function(call, Counters(origin, across, seed, 2 * stream + DIRECTIONS.index(direction)), device, out)


def _kind(device: Any) -> str:
    return "cpu" if device is None else str(device).partition(":")[0]


@lru_cache(maxsize=4096)
def _planned(
    device: str, shape: tuple[int, int], out: bool, backend: str | None, registered: Same
) -> tuple[registry.Call, Callable[..., Any]]:
    """Return the call of a backend for a part of one shape, and the function that serves it."""
    call = registry.Call("random_bits", device=device, shape=shape, out=out)
    return call, registry.choose(call, backend)


def _is_integer(value: Any) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def _sizes(name: str, value: Any, count: int | None = None) -> Any:
    """Return sizes or positions as Python integers. Rules: SR-15."""
    needed = f"{count} integers >= 0" if count else "at least one integer >= 0"
    try:
        sizes = tuple(value)
    except TypeError:
        raise ShapeError("random_bits", f"{name} {value!r}", needed, "SR-15") from None
    if not sizes or len(sizes) != (count or len(sizes)) or not all(_is_integer(size) and size >= 0 for size in sizes):
        raise ShapeError("random_bits", f"{name} {list(sizes)}", needed, "SR-15")
    return tuple(map(int, sizes))


def _require_out(out: Any, shape: tuple[int, int], kind: str) -> None:
    """Require a buffer of the result's kind. Rules: SR-1."""
    if arrays.dtype_name(out) != "uint8":
        raise DTypeError("random_bits", f"out of dtype {arrays.dtype_name(out)}", "uint8", "SR-1")
    if tuple(out.shape) != shape:
        raise ShapeError("random_bits", f"out {list(out.shape)}", f"{list(shape)}", "SR-1")
    if arrays.device_of(out) != kind:
        raise DomainError("random_bits", f"out on {arrays.device_of(out)}", f"on {kind}", "SR-1")
