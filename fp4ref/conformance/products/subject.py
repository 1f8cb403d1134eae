"""Calling a kernel that multiplies: what it declares, and what it is given for a case."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fp4ref.conformance.products.cases import GemmCase
from fp4ref.conformance.products.judge import epilogue, operand
from fp4ref.conformance.subject import Declaration, Job, Output, poisoned
from fp4ref.errors import DomainError
from fp4ref.formats import E4M3, E8M0, F
from fp4ref.model.epilogue import total_alpha
from fp4ref.operands import AlphaRule, alpha_factor
from fp4ref.quantized import Quantized
from fp4ref.spec import Granularity, Spec

AMAXES = ("a_amax", "b_amax", "alpha")


def require(spec: Spec, declared: Declaration) -> None:
    """Refuse what a GEMM on trial cannot be. Rules: CNF-8, GEM-9."""
    if spec.scale.format not in {E4M3, E8M0}:
        raise DomainError("verify", f"a gemm of {spec.name}", "scales e4m3 or e8m0", "GEM-9")
    given = [name for name in declared.inputs if name in AMAXES]
    if given and spec.global_scale is Granularity.NONE:
        raise DomainError("verify", f"input {given[0]} for {spec.name}", "a spec with a global scale", "CNF-8")
    if "alpha" in given and spec.global_scale is Granularity.ROW:
        raise DomainError("verify", f"input alpha for {spec.name}", "a_amax and b_amax, one per row", "CNF-8")


def reasons(case: GemmCase, declared: Declaration) -> str:
    """Why a case does not apply to a kernel; empty if it does. Rules: CNF-8."""
    m, n, depth = case.shape
    rows, columns = declared.multiple
    if m % rows or n % rows or depth % columns:
        return f"takes multiples of {rows} rows and K of {columns}"
    return ""


def job_of(case: GemmCase, declared: Declaration) -> Job:
    """The call of a kernel for a case; padding of the scales is poisoned. Rules: CNF-8, LAY-6."""
    given: dict[str, NDArray[Any] | int] = dict(zip(("rows", "columns", "depth"), case.shape, strict=True))
    for name, q in (("a", case.a), ("b", case.b)):
        data = q.direction("row")[0]
        given[f"{name}_data"] = _data(q, declared)
        given[f"{name}_scales"] = poisoned(data.scales, declared.scale_layout)
        if data.amax is not None:
            given[f"{name}_amax"] = data.amax
    if alpha_factor(case.a.spec, case.b.spec) is not None:
        alpha = total_alpha(operand(case.a), operand(case.b), epilogue(declared.to, AlphaRule.RECIPROCAL))
        given["alpha"] = np.array([alpha], F)
    m, n, _ = case.shape
    return Job({name: given[name] for name in declared.inputs}, {"values": Output((m, n), declared.to)})


def _data(q: Quantized, declared: Declaration) -> NDArray[np.uint8]:
    """Packed bytes with the nibbles in the declared order."""
    data: NDArray[np.uint8] = q.direction("row")[0].data
    if declared.nibble_order == "low" or q.spec.element.format.bits == 8:
        return data
    return np.asarray(data << 4 | data >> 4, np.uint8)
