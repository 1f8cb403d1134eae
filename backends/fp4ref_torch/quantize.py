"""Quantizing: matrices to codes and scale bytes, in plain torch; compiles with `torch.compile(fullgraph=True)`."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fp4ref.spec import Amax, Granularity, Spec, Subnormals
from fp4ref_torch import arithmetic, codecs, exact, four_over_six, hadamard, layouts
from fp4ref_torch.known import Known

# Elements of a piece of whole rows of blocks: bounds the memory of the intermediates, which fit a cache on a CPU.
ELEMENTS_ON_CPU, ELEMENTS = 1 << 18, 1 << 24


def quantize_tensor(
    x: Tensor,
    spec: Spec,
    direction: str = "row",
    scale_layout: str = "linear",
    amax: Tensor | None = None,
    random_bits: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Quantize one direction of a tensor: its bytes, its scale bytes in a layout, and its global amax.

    x: [..., K], float32, bfloat16 or float16, any strides. amax: float32 [1], or [rows] for a row scale, on the device
    of x. random_bits: uint8 [rows, columns] of the direction. Arguments are not checked; `fp4ref.quantize` does that.

    Rules: NUM-4, BLK-8, BLK-9, GLB-1, GLB-4, GLB-5, LAY-5.
    """
    matrix = x.detach().reshape(-1 if x.numel() else x.shape[:-1].numel(), x.shape[-1])
    matrix = matrix.T if direction == "column" else matrix
    rows, columns = matrix.shape
    across = -(-columns // spec.block.columns)
    if amax is None and spec.global_scale is not Granularity.NONE:
        amax = global_amax(matrix, spec, direction)
    if not matrix.numel():
        width = -(-columns * spec.element.format.bits // 8)
        data, scales = _bytes(matrix, rows, width), _bytes(matrix, rows, across)
        return data, layouts.from_linear(scales, scale_layout), amax
    parts = [
        _piece(matrix[rows_of], spec, direction, part_of(amax, rows_of), part_of(random_bits, rows_of))
        for rows_of in pieces(matrix, columns, spec.block.rows)
    ]
    data, scales = (joined(part) for part in zip(*parts, strict=True))
    return data, layouts.from_linear(scales, scale_layout), amax


def global_amax(matrix: Tensor, spec: Spec, direction: str) -> Tensor:
    """Return the maximum magnitude of a direction's matrix, float32 [1], or of its rows; 0 where empty.

    Rules: GLB-1, GLB-5, BLK-2, HAD-4.
    """
    rows, columns = matrix.shape
    by_row = spec.global_scale is Granularity.ROW
    if not matrix.numel():
        return torch.zeros(rows if by_row else 1, dtype=torch.float32, device=matrix.device)
    keep_nan = spec.amax is Amax.PROPAGATE_NAN
    parts = [
        largest(_inputs(matrix[rows_of], spec, direction), (1,), keep_nan)[:, 0]
        for rows_of in pieces(matrix, columns, 1)
    ]
    word = exact.bits(joined(parts))
    return exact.floats(word if by_row else word.amax(0, keepdim=True))


def largest(values: Tensor, axes: tuple[int, ...], keep_nan: bool) -> Tensor:
    """Return the maximum magnitude over axes, kept with length 1: a running maximum from +0. Rules: BLK-2."""
    word = exact.magnitude(values)
    if keep_nan:
        return exact.floats(word.clamp(max=exact.NAN).amax(axes, keepdim=True))
    return exact.floats(torch.where(word > exact.INFINITY, 0, word).amax(axes, keepdim=True))


def _piece(
    matrix: Tensor, spec: Spec, direction: str, amax: Tensor | None, random_bits: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Packed codes [rows, width] and linear scales [rows, across]. Rules: BLK-1, BLK-7, LAY-10."""
    rows, columns = matrix.shape
    blocks = _split(_inputs(matrix, spec, direction), spec)
    k = Known(spec, matrix.dtype, blocks)
    given = None if amax is None else amax.view(-1, 1, 1, 1)
    g = arithmetic.global_scale(given, k)
    t = arithmetic.block_scale(largest(blocks, (1, 3), spec.amax is not Amax.IGNORE_NAN), g, k)
    if spec.four_over_six:
        assert given is not None
        codes, scale = four_over_six.search(blocks, t, g, given, k)
    else:
        scale = codecs.encode(t, spec.scale)
        random = None if random_bits is None else _split(random_bits, spec)
        codes = codecs.encode(arithmetic.scaled(blocks, t, scale, g, k), spec.element, random)
    down, _, across, _ = scale.shape
    joined = codes.reshape(down * spec.block.rows, across * spec.block.columns)[:rows, :columns]
    repeated = scale.expand(down, spec.block.rows, across, 1).reshape(down * spec.block.rows, across)[:rows]
    return codecs.pack(joined, spec.element.format), repeated


def _inputs(matrix: Tensor, spec: Spec, direction: str) -> Tensor:
    """Return the input as float32, transformed, with subnormals flushed if asked.

    Rules: HAD-4, NUM-3, NUM-5. Certificates: small-inputs.
    """
    values = exact.widened(matrix)
    if spec.hadamard and direction == "column":
        values = hadamard.transform(values, spec.hadamard.signs)
    if spec.subnormals is Subnormals.FLUSH:
        word = exact.bits(values)
        subnormal = exact.magnitude(values) < exact.SMALLEST_NORMAL
        values = exact.floats(torch.where(subnormal, word & exact.SIGN, word))
    return values


def _split(matrix: Tensor, spec: Spec) -> Tensor:
    """[rows, columns] as blocks [down, R, across, C], padded with zeros. Rules: BLK-1."""
    high, wide = spec.block
    below, right = -matrix.shape[0] % high, -matrix.shape[1] % wide
    padded = torch.nn.functional.pad(matrix, (0, right, 0, below)) if below or right else matrix
    return padded.reshape(padded.shape[0] // high, high, padded.shape[1] // wide, wide)


def pieces(of: Tensor, columns: int, multiple: int) -> list[slice]:
    """Ranges of rows of a tensor to compute at a time; all at once where a compiler decides about memory."""
    if torch.compiler.is_compiling():
        return [slice(None)]
    elements = ELEMENTS_ON_CPU if of.device.type == "cpu" else ELEMENTS
    step = max(elements // columns // multiple, 1) * multiple
    return [slice(start, start + step) for start in range(0, of.shape[0], step)]


def part_of(values: Tensor | None, rows: slice) -> Tensor | None:
    """Return the values of a range of rows; a single value belongs to all rows."""
    return values if values is None or values.shape == (1,) else values[rows]


def joined(parts: Sequence[Tensor]) -> Tensor:
    """Return the results of the pieces, one after the other."""
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))


def _bytes(like: Tensor, rows: int, columns: int) -> Tensor:
    return torch.zeros((rows, columns), dtype=torch.uint8, device=like.device)
