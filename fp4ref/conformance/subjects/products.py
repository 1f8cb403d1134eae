"""Calling a kernel that multiplies: what it declares, and what it is given for a case."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fp4ref.arrays import INPUT_DTYPES
from fp4ref.conformance.families.products.case import GemmCase
from fp4ref.conformance.subjects.packed import as_declared, multiples
from fp4ref.conformance.subjects.subject import Declaration, Job, Output, poisoned
from fp4ref.conformance.subjects.turned_products import adds_to_c
from fp4ref.errors import DomainError
from fp4ref.formats import F
from fp4ref.layout import LINEAR
from fp4ref.model.epilogue import total_alpha
from fp4ref.multiply import require_scales
from fp4ref.operands import AlphaRule, alpha_factor
from fp4ref.quantized import DIRECTIONS
from fp4ref.spec import Granularity, Spec

AMAXES = ("a_amax", "b_amax", "alpha")


def require(spec: Spec, declared: Declaration) -> None:
    """Refuse what a GEMM on trial cannot be. Rules: CNF-8, GEM-9."""
    require_scales("verify", f"a gemm of {spec.name}", spec)
    if declared.transposed and spec.element.format.bits != 8:
        raise DomainError("verify", f"transposed data of {spec.name}", "elements of 8 bits", "GEM-16")
    given = [name for name in declared.inputs if name in AMAXES]
    if given and spec.global_scale is Granularity.NONE:
        raise DomainError("verify", f"input {given[0]} for {spec.name}", "a spec with a global scale", "CNF-8")
    if "alpha" in given and spec.global_scale is Granularity.ROW:
        raise DomainError("verify", f"input alpha for {spec.name}", "a_amax and b_amax, one per row", "CNF-8")


def reasons(case: GemmCase, declared: Declaration) -> str:
    """Why a case does not apply to a kernel; empty if it does. Rules: CNF-102, GEM-56."""
    m, n, depth = case.shape
    rows, columns = multiples(case.a.spec, declared)
    if m % rows or n % rows or depth % columns:
        return f"takes multiples of {rows} rows and K of {columns}"
    if (case.bias is not None or "bias" in case.beside) and "bias" not in declared.inputs:
        return "takes no bias"
    if (case.accumulate is not None or "accumulate" in case.beside) and not adds_to_c(declared):
        return "takes nothing to accumulate to"
    missing = [name for name in case.specials if name not in declared.specials]
    return f"is not defined on {' and '.join(missing)}" if missing else ""


def job_of(case: GemmCase, declared: Declaration) -> Job:
    """Return the call of a kernel for a case that is fitted to it; padding of the scales is poisoned.

    Rules: CNF-8, GEM-16, LAY-6, GEM-50, GEM-51, GEM-54, GEM-55, GEM-62.
    """
    given: dict[str, NDArray[Any] | int] = dict(zip(("rows", "columns", "depth"), case.shape, strict=True))
    for name, q, used in zip("ab", (case.a, case.b), case.directions, strict=True):
        for direction in DIRECTIONS:
            part, shape = q.direction(direction)
            data = as_declared(part.data, shape, q.spec, declared)
            said = {"data": data, "scales": poisoned(part.scales, declared.scale_layout)}
            if declared.transposed and direction == "column":
                linear = declared.scale_layout == LINEAR.name
                said = {what: array.T.copy() if what == "data" or linear else array for what, array in said.items()}
            for what, array in said.items():
                given[f"{name}_{direction}_{what}"] = array
                if direction == used:
                    given[f"{name}_{what}"] = array
            if direction == used and part.amax is not None:
                given[f"{name}_amax"] = part.amax
    if alpha_factor(case.a.spec, case.b.spec) is not None:
        alpha = total_alpha(*case.operands, case.epilogue(declared.to, AlphaRule.RECIPROCAL))
        given["alpha"] = np.array([alpha], F)
    if case.bias is not None:
        given["bias"] = case.bias
    if case.accumulate is not None:
        given["accumulate"] = case.accumulate.astype(INPUT_DTYPES[declared.to])
    m, n, _ = case.shape
    start = given["accumulate"] if declared.in_place else None
    assert not isinstance(start, int)
    return Job({name: given[name] for name in declared.inputs}, {"values": Output((m, n), declared.to, start)})
