"""General matrix products: layouts, global scales, bias, accumulation, and row-scaled operands."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from fp4ref.te.capability import get_device_compute_capability
from fp4ref.te.device_product import device_product
from fp4ref.te.dtypes import DType, torch_dtype
from fp4ref.te.errors import NotSupportedError, SettingError, TensorShapeError
from fp4ref.te.finishing import combined, finished
from fp4ref.te.float8_block_tensor import Float8BlockwiseQTensorStorage
from fp4ref.te.float8_tensor import Float8TensorStorage
from fp4ref.te.global_scale import global_factors, globally_scaled
from fp4ref.te.hybrid_tensor import read_in
from fp4ref.te.mxfp8_tensor import MXFP8TensorStorage
from fp4ref.te.nvfp4_storage import NVFP4TensorStorage
from fp4ref.te.processor import rounded_product
from fp4ref.te.product import block_scaled_product, multiply, operand, require_operand

LAYOUTS = ("TN", "NN", "NT")
NATIVE = {Tensor, torch.nn.Parameter, NVFP4TensorStorage, MXFP8TensorStorage, Float8TensorStorage}  # read as they are
Outcome = tuple[Any, Tensor | None, Tensor | None, Tensor | None]


def general_gemm(
    A: Any,  # noqa: N803 - public names
    B: Any,  # noqa: N803
    out_dtype: torch.dtype | None = None,
    quantization_params: Any = None,
    gelu: bool = False,
    gelu_in: Tensor | None = None,
    alpha: float = 1.0,
    beta: float | None = None,
    accumulate: bool = False,
    layout: str = "TN",
    out: Tensor | None = None,
    bias: Tensor | None = None,
    use_split_accumulator: bool = False,
    grad: bool = False,
    **unsupported: Any,
) -> Outcome:
    """Multiply op(B) @ op(A), both quantized or both in high precision.

    layout: TN is B @ A^T (fprop: A weight [N, K], B input [..., K]), NN is B @ A (dgrad), NT is B^T @ A (wgrad). A
    quantized operand is read in the direction that runs along the contraction. quantization_params: a quantizer of the
    output. gelu: apply it, and return what went in. grad: the gradient of gelu at gelu_in instead, and of the bias, the
    sum over B's rows.
    Returns (out, bias gradient, input of gelu, None).

    Errors: SettingError, TensorShapeError, NotSupportedError.

    Rules: TEL-11, TEL-12, TEL-30, TEL-32. Certificates: operand-directions, product-scale.
    """
    if unsupported:
        _refuse(unsupported)
    if layout not in LAYOUTS:
        raise SettingError("general_gemm", f"layout {layout!r}", f"one of {', '.join(LAYOUTS)}", "TEL-30")
    return _gemm(A, B, layout, out_dtype, quantization_params, gelu, gelu_in, alpha, beta, accumulate, out, bias, grad)


def _gemm(
    a: Any,
    b: Any,
    layout: str,
    out_dtype: torch.dtype | None,
    quantizer: Any,
    gelu: bool,
    gelu_in: Tensor | None,
    alpha: float,
    beta: float | None,
    accumulate: bool,
    out: Tensor | None,
    bias: Tensor | None,
    grad: bool,
) -> Outcome:
    """Compute the product of both entry points, in any layout; TT is B^T @ A^T. Rules: TEL-11, TEL-12, TEL-32."""
    _require_legal(out, alpha, beta, accumulate)
    a_direction = "row" if layout[0] == "T" else "column"
    b_direction = "row" if layout[1] == "N" else "column"
    a = a if type(a) in NATIVE else _native(a, a_direction)
    b = b if type(b) in NATIVE else _native(b, b_direction)
    dtype = out_dtype or (out.dtype if out is not None else _nominal(a, b))
    row_scaled = _is_row_scaled(a) or _is_row_scaled(b)
    if row_scaled:
        _require_row_scaled(a, b, gelu, quantizer, grad and bias is not None)
    bias_grad = _bias_grad(b, bias) if bias is not None and grad else None
    added = None if grad else bias
    narrows = dtype is torch.bfloat16 and not (gelu or accumulate or row_scaled) and quantizer is None
    to = dtype if narrows else torch.float32
    result = _product(a, a_direction, b, b_direction, alpha, added, to, out, row_scaled)
    if layout[1] == "N":
        result = _with_leading(result, b)
    pre_activation = None
    if gelu and grad:
        result = _gelu_backward(result, gelu_in)
    elif gelu:
        pre_activation = result.to(dtype)
        result = torch.nn.functional.gelu(result, approximate="tanh")
    if quantizer is not None:
        return quantizer(result.to(dtype)), bias_grad, pre_activation, None
    return _deliver(result, out, dtype, accumulate, row_scaled), bias_grad, pre_activation, None


def _native(x: Any, direction: str) -> Any:
    """Return the operand that is read in a direction, a custom one in the buffers of the usual ones. Rules: TEL-88."""
    x = read_in(x, direction)
    return require_operand(x.as_native() if getattr(x, "custom", False) else x)


def _gelu_backward(gradient: Tensor, gelu_in: Tensor | None) -> Tensor:
    """Return the gradient of what went into gelu, from the gradient of what came out."""
    if gelu_in is None:
        raise SettingError("general_gemm", "gelu and grad without gelu_in", "what went into gelu", "TEL-32")
    before = gelu_in.to(torch.float32).view(gradient.shape)
    return torch.ops.aten.gelu_backward(gradient, before, approximate="tanh")  # type: ignore[no-any-return]


def generic_gemm(
    A: Any,  # noqa: N803
    transa: bool,
    B: Any,  # noqa: N803
    transb: bool,
    D: Tensor | None,  # noqa: N803
    quantizer: Any,
    output_dtype: DType | None,
    bias: Tensor | None,
    bias_type: DType | None,
    gelu: bool,
    gelu_in: Tensor | None,
    grad: bool,
    workspace: Tensor | None,
    workspaceSize: int,  # noqa: N803
    accumulate: bool,
    use_split_accumulator: bool,
    comm_overlap: Any = None,
    comm_type: Any = None,
    extra_output: Tensor | None = None,
    bulk_overlap: bool = False,
    alpha: float = 1.0,
    beta: float | None = None,
) -> list[Any]:
    """Multiply by the arguments of the compiled library, in any of the four layouts; row-scaled operands are refused.

    transa, transb: T or N of the layout's two letters. The workspace is not read.

    Rules: TEL-9, TEL-11, TEL-30.
    """
    for name, x in (("A", A), ("B", B)):
        if isinstance(x, NVFP4TensorStorage):
            x.require_not_row_scaled(f"generic_gemm of {name}")
    _refuse({"ub": comm_overlap, "ub_type": comm_type, "extra_output": extra_output, "bulk_overlap": bulk_overlap})
    layout = ("T" if transa else "N") + ("T" if transb else "N")
    dtype = None if output_dtype is None else torch_dtype(output_dtype)
    return list(_gemm(A, B, layout, dtype, quantizer, gelu, gelu_in, alpha, beta, accumulate, D, bias, grad))


def _product(
    a: Any,
    a_direction: str,
    b: Any,
    b_direction: str,
    alpha: float,
    bias: Tensor | None,
    dtype: torch.dtype,
    out: Tensor | None,
    row_scaled: bool,
) -> Tensor:
    """Multiply op(B) @ op(A), apply every scale, add a bias, and round once; a bfloat16 result may be in `out`.

    Rules: TEL-11, TEL-12, TEL-32.
    """
    _require_operands(a, a_direction, b, b_direction)
    if row_scaled:
        sums = multiply(operand(b, b_direction), operand(a, a_direction))
        return finished(globally_scaled(sums, a, a_direction, b, b_direction, alpha), (), bias, dtype)
    if _sums_blocks(a, b):
        sums = block_scaled_product(b, b_direction, a, a_direction)
        return finished(sums, _alone(alpha), bias, dtype)
    factors, rest = _factors(a, a_direction, b, b_direction, alpha)
    if dtype is torch.bfloat16 and not rest:
        operands = a, a_direction, b, b_direction, factors, bias
        device = b.device
        result = rounded_product(*operands) if device.type == "cpu" else device_product(*operands, out, device)
        if result is not None:
            return result
    sums = multiply(operand(b, b_direction), operand(a, a_direction))
    return finished(sums.mul_(combined(factors)) if rest else sums, rest or factors, bias, dtype)


def _factors(
    a: Any, a_direction: str, b: Any, b_direction: str, alpha: float
) -> tuple[tuple[Any, ...], tuple[float, ...]]:
    """Return the factors of a product without amaxes per row; and another factor that is applied after them."""
    if isinstance(a, NVFP4TensorStorage):
        return global_factors(a, a_direction, b, b_direction, alpha), ()
    scales = tuple(x._scale_inv for x in (a, b) if isinstance(x, Float8TensorStorage))
    return (scales, _alone(alpha)) if scales else (_alone(alpha), ())


def _alone(alpha: float) -> tuple[float, ...]:
    """Return a factor that stands alone, nothing for 1."""
    return () if alpha == 1.0 else (float(alpha),)


def _require_operands(a: Any, a_direction: str, b: Any, b_direction: str) -> None:
    """Raise unless both operands are of one kind and have one contraction. Rules: TEL-97, TEL-98."""
    depth, other = _depth(a, a_direction), _depth(b, b_direction)
    if depth != other:
        got = f"contraction of {depth} and {other}"
        raise TensorShapeError("general_gemm", got, "equal lengths", "TEL-97")
    if isinstance(a, NVFP4TensorStorage) != isinstance(b, NVFP4TensorStorage):
        got = f"{type(a).__name__} times {type(b).__name__}"
        raise SettingError("general_gemm", got, "two NVFP4 tensors", "TEL-98")


def _depth(x: Any, direction: str) -> int:
    shape = x.shape
    return int(shape[-1] if direction == "row" else shape[0] if len(shape) == 2 else math.prod(shape[:-1]))


def _sums_blocks(a: Any, b: Any) -> bool:
    """Return True if the emulated device multiplies block-scaled FP8 as it is, not as MXFP8. Rules: TEL-51, TEL-75."""
    both = isinstance(a, Float8BlockwiseQTensorStorage) and isinstance(b, Float8BlockwiseQTensorStorage)
    return both and get_device_compute_capability() < (10, 0)


def _deliver(result: Tensor, out: Tensor | None, dtype: torch.dtype, accumulate: bool, row_scaled: bool) -> Tensor:
    """Round once to the output type; a row-scaled product is rounded before accumulation.

    Rules: TEL-32, TEL-33, TEL-78.
    """
    if out is None:
        return result.to(dtype)
    target = out.view(result.shape)
    if accumulate and row_scaled:
        target.add_(result.to(dtype))
    elif accumulate:
        target.copy_(result.add_(target))
    elif target.data_ptr() != result.data_ptr():
        target.copy_(result.to(dtype))
    return out


def _with_leading(result: Tensor, b: Any) -> Tensor:
    """Return a matrix with the leading dimensions of the operand whose rows are its rows."""
    leading = b.shape[:-1]
    fits = len(leading) != 1 and leading.numel() == result.shape[0]
    return result.view(*leading, result.shape[1]) if fits else result


def _bias_grad(b: Any, bias: Tensor) -> Tensor:
    if not isinstance(b, Tensor) or hasattr(b, "get_metadata"):
        raise NotSupportedError("general_gemm", "the bias gradient of a quantized tensor", "one in high precision")
    return b.reshape(-1, b.shape[-1]).sum(dim=0, dtype=torch.float32).to(bias.dtype)


def _nominal(a: Any, b: Any) -> torch.dtype:
    dtype: torch.dtype = b.dtype if isinstance(b.dtype, torch.dtype) else a.dtype
    return dtype


def _is_row_scaled(x: Any) -> bool:
    return isinstance(x, NVFP4TensorStorage) and x._row_scaled_nvfp4


def _require_row_scaled(a: Any, b: Any, gelu: bool, quantizer: Any, bias_grad: bool) -> None:
    """Refuse options that would have to run before the rows are scaled. Rules: TEL-35."""
    nvfp4 = isinstance(a, NVFP4TensorStorage) and isinstance(b, NVFP4TensorStorage)
    for bad, got in (
        (not nvfp4, "one operand that is not NVFP4"),
        (gelu, "a fused gelu"),
        (quantizer is not None, "a quantized output"),
        (bias_grad, "a fused bias gradient"),
    ):
        if bad:
            raise SettingError("row-scaled general_gemm", got, "two NVFP4 operands and a plain output", "TEL-35")


def _require_legal(out: Tensor | None, alpha: float, beta: float | None, accumulate: bool) -> None:
    if accumulate and out is None:
        raise SettingError("general_gemm", "accumulate=True without out", "a tensor to add to", "TEL-32")
    if beta not in {None, 1.0 if accumulate else 0.0}:
        raise NotSupportedError("general_gemm", f"beta {beta} with accumulate={accumulate}", "0, or 1 to accumulate")
    if isinstance(out, NVFP4TensorStorage):
        raise NotSupportedError("general_gemm", "a quantized out", "a high-precision one")


def _refuse(unsupported: dict[str, Any]) -> None:
    """Refuse arguments that need the original's communication buffers; None and False mean that they are not used."""
    for name, value in unsupported.items():
        if name not in {"ub", "ub_type", "extra_output", "bulk_overlap", "workspace"}:
            raise TypeError(f"general_gemm() got an unexpected keyword argument {name!r}")
        if value is not None and value is not False and name != "workspace":
            raise NotSupportedError("general_gemm", f"{name}={value!r}", "no overlap of communication")
