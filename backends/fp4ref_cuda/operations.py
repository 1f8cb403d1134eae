"""The backend's operations: arrays in, kernels launched on the caller's stream, arrays out.

Nothing waits for the device. With `out` nothing is allocated but workspaces: partial maxima, and a copy of an input
whose rows do not lie one after the other. Every call may be captured into a CUDA graph once its kernels are loaded,
that is after one call of the same kind; a given amax must then be on the device.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import fp4ref_numerics
from fp4ref import arrays
from fp4ref.errors import BackendError
from fp4ref.quantized import Direction, DirectionData, Directions, matrix_shape
from fp4ref.registry import Call
from fp4ref.spec import Granularity, Spec
from fp4ref_cuda import across, bound, buffers, checks, host_numbers, maxima, paths, programs, shared_places
from fp4ref_cuda.block_codes import block_codes, block_values
from fp4ref_cuda.bound import of_one
from fp4ref_cuda.buffers import Operands, pointer
from fp4ref_cuda.columns import bind_column_values, column_values
from fp4ref_cuda.gemm import bind_gemm_blockwise, bind_gemm_exact, bind_gemm_fast, gemm_blockwise, gemm_exact, gemm_fast
from fp4ref_cuda.grouped import bind_quantize_grouped, quantize_grouped
from fp4ref_cuda.histories import next_scales
from fp4ref_cuda.launch import rehearse, require_reciprocal
from fp4ref_cuda.moving import bind_turned, is_one, turned, written
from fp4ref_cuda.multiply import multiply
from fp4ref_cuda.paths import hadamard
from fp4ref_cuda.per_tensor import (
    bind_tensor_decode,
    bind_tensor_given,
    bind_tensor_quantize,
    tensor_codes,
    tensor_decode,
    tensor_given,
    tensor_quantize,
    tensor_scale,
    tensor_values,
)
from fp4ref_cuda.plan import (
    BYTES,
    DRAWN,
    FUSED,
    FUSED_HADAMARD,
    MOVABLE,
    MOVED,
    ROW_BLOCKS,
    ROWS,
    SEPARATE,
    SQUARES,
    TILES,
    Plan,
    choose,
    last_plan,
    remember,
)
from fp4ref_cuda.products import finish_product
from fp4ref_cuda.randoms import bind_random_bits, random_bits
from fp4ref_cuda.reading import bind_dequantize, convert_layout, dequantize
from fp4ref_cuda.several import bind_steps, steps, together

__all__ = [
    "amax",
    "bind_column_values",
    "bind_dequantize",
    "bind_gemm_blockwise",
    "bind_gemm_exact",
    "bind_gemm_fast",
    "bind_quantize",
    "bind_quantize_both",
    "bind_quantize_grouped",
    "bind_random_bits",
    "bind_steps",
    "bind_tensor_decode",
    "bind_tensor_given",
    "bind_tensor_quantize",
    "bind_to_layout",
    "bind_turned",
    "block_codes",
    "block_values",
    "column_values",
    "convert_layout",
    "dequantize",
    "finish_product",
    "gemm_blockwise",
    "gemm_exact",
    "gemm_fast",
    "hadamard",
    "is_one",
    "last_plan",
    "multiply",
    "next_scales",
    "quantize",
    "quantize_both",
    "quantize_grouped",
    "random_bits",
    "rehearse",
    "steps",
    "tensor_codes",
    "tensor_decode",
    "tensor_given",
    "tensor_quantize",
    "tensor_scale",
    "tensor_values",
    "together",
    "turned",
    "written",
]


def quantize(
    call: Call, x: Any, amax: Any, random_bits: Any, out: DirectionData | None, noop: Any = None
) -> DirectionData:
    """Quantize one direction. noop: a number on the device; unless all its bits are zero, no buffer is written.

    Rules: BLK-1, BLK-7, BLK-8, LAY-5, LAY-12.
    """
    (name,) = call.directions
    each = quantize_directions(call, x, {name: amax}, {name: random_bits}, {name: out}, noop)
    return each[name]


def quantize_both(
    call: Call,
    x: Any,
    amax: Directions = Directions(),  # noqa: B008
    random_bits: Directions = Directions(),  # noqa: B008
    out: Directions = Directions(),  # noqa: B008
    noop: Any = None,
    path: str | None = None,
) -> Directions:
    """Quantize both directions in one pass over x, after one pass for the maxima that are not given.

    path: one of `PATHS` that can serve the call, such as "tiles" for the general kernel.

    Rules: BLK-1, BLK-7, BLK-8, LAY-5, LAY-12.
    """
    each = quantize_directions(call, x, amax._asdict(), random_bits._asdict(), out._asdict(), noop, path)
    return Directions(each["row"], each["column"])


def bind_quantize(
    call: Call, x: Any, amax: Any, random_bits: Any, out: DirectionData | None, noop: Any = None
) -> Callable[..., DirectionData] | None:
    """Return a function that quantizes other tensors of these ones' kinds in one direction, as the first call did."""
    return bound.one_direction(call, x, amax, random_bits, out, noop, quantize)


def bind_quantize_both(
    call: Call, x: Any, amax: Directions, random_bits: Directions, out: Directions, noop: Any = None
) -> Callable[..., tuple[DirectionData, DirectionData]] | None:
    """Return a function that quantizes other tensors of these ones' kinds in both directions, as the first call did."""
    return bound.both_directions(call, x, amax, random_bits, out, noop, quantize_both)


PATHS: dict[str, paths.Path] = {
    ROWS: paths.rows,
    ROW_BLOCKS: paths.row_blocks,
    FUSED: paths.fused,
    FUSED_HADAMARD: paths.fused,
    DRAWN: paths.fused,
    SQUARES: paths.fused,
    BYTES: paths.in_bytes,
    SEPARATE: paths.separate,
    TILES: paths.tiles,
}
PATHS |= {label + MOVED: paths.then_moved(PATHS[label]) for label in MOVABLE}


def quantize_directions(
    call: Call,
    x: Any,
    amax: Mapping[str, Any],
    random_bits: Mapping[str, Any],
    out: Mapping[str, DirectionData | None],
    noop: Any,
    path: str | None = None,
) -> dict[Direction, DirectionData]:
    """Find maxima, then run one kernel: the body of both.

    Certificates: cut-*, part-*, row-scaled, amax-kept, pieces, stochastic-rows, special-blocks-*, hadamard-column*,
    padding-written, theorem-transposed, flags, transformed-shapes, no-global-scale.
    """

    def act(*words: int) -> tuple[Any, ...]:
        given = host_numbers.placed(x, {name: amax.get(name) for name in names}, words) if words else amax
        made = _by_path(call, x, given, random_bits, out, noop, path)
        return tuple(part for name in names for part in made[name])

    names = call.directions
    other = across.turned(call, x) if path is None else None
    if other is not None:
        largest, drawn, filled = map(across.exchanged, (amax, random_bits, out))
        return across.exchanged(quantize_directions(other, x.t(), largest, drawn, filled, noop))
    if call.layout.form.repeated:
        linear: Any = shared_places.in_linear(call), x, amax, random_bits, {}, None, path
        return shared_places.stored(call, x, out, noop, lambda: quantize_directions(*linear))
    maxima = [amax.get(name) for name in names]
    numbers, found = host_numbers.bits_of(maxima), dict(zip(names, host_numbers.others(maxima), strict=True))
    given = (of_one(found[name], random_bits.get(name), out.get(name)) for name in names)
    inputs = [x, noop, *(part for each in given for part in each)]
    parts = programs.serve(bound.operation(maxima), call, inputs, act, (), numbers) if path is None else act(*numbers)
    return {name: DirectionData(*parts[3 * i : 3 * i + 3]) for i, name in enumerate(names)}


def _by_path(
    call: Call,
    x: Any,
    amax: Mapping[str, Any],
    random_bits: Mapping[str, Any],
    out: Mapping[str, DirectionData | None],
    noop: Any,
    path: str | None,
) -> dict[Direction, DirectionData]:
    spec, restore = call.required, arrays.device_restorer(x)
    x, library = buffers.adopt("quantize", x)
    with library.current():
        if fp4ref_numerics.takes_reciprocal(spec):
            require_reciprocal(library)
        x = buffers.contiguous(x)
        flag_word = checks.noop_flag(noop, library)
        bits = {
            n: None if b is None else buffers.on_device("quantize", b, library, "uint8") for n, b in random_bits.items()
        }
        targets = {name: checks.target(call, library, name, out.get(name), x) for name in call.directions}
        on = Operands(library, x, targets, amax, bits, pointer(flag_word))
        addresses = pointer(x) | checks.pointer_bits(targets, call.layout)
        if spec.stochastic:
            addresses |= pointer(bits.get("row")) | pointer(bits.get("column"))
        one_amax = (amax.get("row") is None) != (amax.get("column") is None)
        label, reason = choose(call, addresses, one_amax) if path is None else (path, "as asked")
        ran = PATHS[label](call, on)
    remember(Plan(label, ran, reason))
    given = any(each is not None for each in out.values())
    return targets if given else {name: each.mapped(restore) for name, each in targets.items()}


def amax(x: Any, spec: Spec, direction: Direction = "row", out: Any = None, noop: Any = None) -> Any:
    """Return the global maxima that `quantize` would find: float32 [1], or one per row for a row scale.

    Rules: GLB-1, GLB-5, BLK-2, HAD-4.
    """
    dtype = arrays.require_input("amax", x)
    shape = tuple(int(size) for size in x.shape)
    call = _to_search(spec, dtype, direction, matrix_shape(shape), out is not None)
    return programs.serve("amax", call, (x, out, noop), lambda: (maxima.searched(call, x, out, noop),))[0]


@lru_cache(maxsize=4096)
def _to_search(spec: Spec, dtype: str, direction: Direction, matrix: tuple[int, int], out: bool) -> Call:
    """Return the record of a search for maxima, one for all of a kind."""
    if spec.global_scale is Granularity.NONE:
        raise BackendError("amax", f"{spec.name} without a global scale", "a tensor or row scale", "GLB-6")
    return Call("amax", spec, dtype, direction, device="cuda", shape=matrix, out=out)


def to_layout(call: Call, scales: Any) -> Any:
    """Move scale bytes from one layout to another, padding written as zero. Rules: LAY-5, LAY-6."""
    new = call.target
    assert new is not None
    if new.form.repeated:
        return shared_places.placed("to_layout", to_layout(shared_places.in_linear(call), scales), new)

    def act() -> tuple[Any, ...]:
        moved = convert_layout([scales], [call.encoded], call.layout.name, new.name)
        return (arrays.device_restorer(scales)(moved[0]),)

    return programs.serve("to_layout", call, (scales,), act)[0]


def bind_to_layout(call: Call, scales: Any) -> Callable[[Any], Any] | None:
    """Return a function that moves other scale bytes of these ones' kind."""
    bound = programs.bind("to_layout", call, (scales,))
    if bound is None:
        return None

    def again(scales: Any) -> Any:
        moved = bound(scales)
        return moved[0] if moved else to_layout(call, scales)

    return again
