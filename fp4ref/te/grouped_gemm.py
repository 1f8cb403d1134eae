"""Products of the members of a group: each of the operands and results is a list, or a group in one piece."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fp4ref.te.dtypes import DType
from fp4ref.te.errors import NotSupportedError, SettingError
from fp4ref.te.gemm import general_gemm
from fp4ref.te.grouped_tensor import GroupedTensor


def general_grouped_gemm(
    A: list[Any],  # noqa: N803
    B: list[Any],  # noqa: N803
    out: list[Tensor],
    quantization_params: list[Any] | None = None,
    out_dtype: torch.dtype | None = None,
    layout: str = "TN",
    m_splits: list[int] | None = None,
    gelu: bool = False,
    grad: bool = False,
    accumulate: bool = False,
    bias: list[Tensor] | None = None,
    use_bias: bool = False,
    use_split_accumulator: bool = False,
    D_dtype: DType | None = None,  # noqa: N803
    single_output: bool = False,
) -> tuple[Any, list[Tensor | None], Any]:
    """Multiply each member into `out`: a list, or one tensor that holds their rows if `single_output`.

    A member without rows leaves its part of the output alone, or makes it zero where the contraction is empty.
    Returns (out, bias gradients, inputs of gelu).

    Errors: SettingError for lists of different lengths.

    Rules: TEL-11, TEL-12, TEL-30.
    """
    count = len(A)
    quantizers = quantization_params or [None] * count
    if len(B) != count or len(quantizers) != count:
        got = f"{count} A, {len(B)} B and {len(quantizers)} quantizers"
        raise SettingError("general_grouped_gemm", got, "as many of each", "TEL-12")
    targets = _targets(out, count, m_splits, single_output)
    biases: list[Tensor | None] = list(bias) if use_bias and bias else [None] * count
    grads: list[Tensor | None] = [None] * count
    inputs: list[Tensor | None] = [None] * count
    for i, (a, b) in enumerate(zip(A, B, strict=True)):
        _, grads[i], inputs[i], _ = general_gemm(
            a,
            b,
            out_dtype=out_dtype or targets[i].dtype,
            gelu=gelu,
            accumulate=accumulate,
            layout=layout,
            out=targets[i],
            bias=biases[i],
            use_split_accumulator=use_split_accumulator,
            grad=grad,
        )
    return (out[0] if single_output else out), grads, inputs


def _targets(out: list[Tensor], count: int, m_splits: list[int] | None, single: bool) -> list[Tensor]:
    if not single:
        return list(out)
    if m_splits is None or len(m_splits) != count:
        raise SettingError("general_grouped_gemm", f"m_splits {m_splits}", f"{count} row counts", "TEL-12")
    return list(torch.split(out[0], m_splits))


def general_grouped_gemm_for_grouped_tensor(
    A: Any,  # noqa: N803 - public names
    B: GroupedTensor,  # noqa: N803
    out: Any,
    *,
    layout: str = "TN",
    accumulate: bool = False,
    use_split_accumulator: bool = False,
    bias: GroupedTensor | None = None,
    bias_scale: Tensor | None = None,
    grad: bool = False,
    alpha: Tensor | None = None,
    beta: Tensor | None = None,
) -> Any:
    """Multiply member by member into `out`: each of A and out is a group or a list, one of them at least a group.

    bias: a group of rows [1, N], added to the rounded product in float32, and rounded again. bias_scale: float32, a
    factor of the bias for each of B's rows. alpha: a factor of each product, or one for all.

    Errors: SettingError, NotSupportedError.

    Rules: TEL-54, TEL-80.
    """
    where = "general_grouped_gemm_for_grouped_tensor"
    lists = isinstance(A, list), isinstance(out, list)
    for bad, got in (
        (all(lists), "A and out as lists"),
        (lists[1] and bias is not None, "a bias with out as a list"),
        (bias_scale is not None and bias is None, "bias_scale without bias"),
    ):
        if bad:
            raise SettingError(where, got, "a group as out, or no bias", "TEL-54")
    if grad or beta is not None:
        raise NotSupportedError(where, "grad" if grad else "beta", "accumulate, or neither", "TEL-54")
    left, right, targets, biases = (_members(group) for group in (A, B, out, bias))
    if not len(left) == len(right) == len(targets):
        got = f"{len(left)} A, {len(right)} B and {len(targets)} results"
        raise SettingError(where, got, "as many of each", "TEL-54")
    factors = [1.0] * len(left) if alpha is None else alpha.expand(len(left)).tolist()
    rows = 0
    for i, (a, b, target, factor) in enumerate(zip(left, right, targets, factors, strict=True)):
        general_gemm(a, b, out_dtype=target.dtype, alpha=factor, layout=layout, out=target, accumulate=accumulate)
        if bias is not None:
            added = biases[i].float()
            if bias_scale is not None:
                added = added * bias_scale[rows : rows + b.shape[0]].unsqueeze(-1)
            target.copy_(target.float() + added)
        rows += b.shape[0]
    return out


def _members(group: Any) -> list[Any]:
    if group is None:
        return []
    return group.split_into_quantized_tensors() if isinstance(group, GroupedTensor) else list(group)
