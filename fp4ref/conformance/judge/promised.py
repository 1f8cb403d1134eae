"""The promise of a profile, held against bytes that the implementation returned."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fp4ref.formats import Codes
from fp4ref.model.dequantize import dequantize
from fp4ref.model.quantize import quantize
from fp4ref.model.tiles import widen
from fp4ref.packing import unpack
from fp4ref.promise import Promise
from fp4ref.spec import Spec


def promised(promise: Promise, x: NDArray[Any]) -> bool:
    """Return True if a promise covers an input. Rules: PRO-1."""
    values = widen(x)
    if np.abs(values, where=np.isfinite(values), out=np.zeros_like(values)).max(initial=0) < promise.least:
        return False
    found = {"finite": True, "nan": bool(np.isnan(values).any()), "inf": bool(np.isinf(values).any())}
    return all(promise.claims[kind].holds for kind, present in found.items() if present)


def equal_bytes(spec: Spec, x: NDArray[Any], data: Codes, scales: Codes) -> bool:
    """Return True if a specification makes these bytes of x [rows, columns], up to the sign of a NaN.

    data, scales: canonical and linear. Rules: PRO-1.
    """
    form, columns = spec.element.format, x.shape[1]
    ours = quantize(x, spec)
    codes, theirs = unpack(ours.data, columns, form), unpack(data, columns, form)
    same_scales, same_codes = ours.scales == scales, codes == theirs
    if not np.isfinite(widen(x)).all() and not (same_scales.all() and same_codes.all()):
        if spec.scale.format.signed:
            same_scales |= (ours.scales ^ scales) == spec.scale.format.sign_bit
            same_scales &= (ours.scales == scales) | np.isnan(spec.scale.decode(ours.scales))
        same_codes |= _stand_for_nan(spec, x) & ((codes ^ theirs) == form.sign_bit)
    return bool(same_scales.all() and same_codes.all())


def equal_values(spec: Spec, promise: Promise, x: NDArray[Any], values: NDArray[Any]) -> bool:
    """Return True if a specification's codes and scales of x stand for these values, every NaN for any other.

    values: [rows, columns], in the type that the implementation returned. If the promise for finite inputs has a limit,
    the elements under the smallest scale are left out. -0 equals 0 if the format has one zero. Rules: PRO-1.
    """
    q = quantize(x, spec)
    ours = dequantize(q, x.shape, spec, values.dtype, x.dtype)
    same = (ours.view(np.uint8) == values.view(np.uint8)).reshape(*ours.shape, -1).all(axis=2)
    same |= np.isnan(widen(ours)) & np.isnan(widen(values))
    if spec.element.format.complement:
        same |= (widen(ours) == 0) & (widen(values) == 0)
    if promise.finite.reason:
        same |= np.repeat(q.scales == 0, spec.block.columns, axis=1)[:, : x.shape[1]]
    return bool(same.all())


def _stand_for_nan(spec: Spec, x: NDArray[Any]) -> NDArray[np.bool_]:
    """Return the elements that other NaN codes change, and those under a NaN scale."""
    made = [
        quantize(x, spec.replace(name="other", element=dataclasses.replace(spec.element, nan=(code, code))))
        for code in (0, 1)
    ]
    first, second = (unpack(q.data, x.shape[1], spec.element.format) for q in made)
    under = np.repeat(np.isnan(spec.scale.decode(made[0].scales)), spec.block.columns, axis=1)[:, : x.shape[1]]
    return np.asarray((first != second) | under)
