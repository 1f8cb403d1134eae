"""Why a fast path cannot serve a call: what each demands of specifications, shapes and addresses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from fp4ref.arithmetic import RCEIL, TE, Arithmetic
from fp4ref.formats import CUDA_E2M1, CUDA_E4M3, CUDA_E8M0, STOCHASTIC_E2M1, Codec
from fp4ref.layout import LINEAR, TILED_128X4, layout
from fp4ref.spec import Amax, Granularity, Spec
from fp4ref_numerics.layouts import number


def is_tiled(scale_layout: str) -> bool:
    """Return True if scales are stored in the tiles of the matrix instructions, whatever the layout is called."""
    return number(layout(scale_layout)) == number(TILED_128X4)


def is_linear(scale_layout: str) -> bool:
    """Return True if scales lie row after row without padding, whatever the layout is called."""
    return number(layout(scale_layout)) == number(LINEAR)


def own_map(scale_layout: str) -> str:
    """Return why a layout takes a general kernel; empty if the header has its map."""
    return "" if number(layout(scale_layout)) >= 0 else f"scales {scale_layout}, which only the general kernels serve"


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
    if reason := own_map(scale_layout):
        return reason
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
        return f"rows of {columns}, arrays at address {address % 16} of 16, not in whole vectors of 16 bytes"
    return ""
