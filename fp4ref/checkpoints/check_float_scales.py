"""Checks of block scales that are stored as numbers, and of exponents for squares."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from fp4ref.checkpoints.check_scales import FAR, ONE, RARE, USUAL, WILD, Verdict
from fp4ref.checkpoints.findings import ERROR, WARNING
from fp4ref.checkpoints.float_scales import EXPONENTS
from fp4ref.checkpoints.groups import TensorGroup
from fp4ref.checkpoints.scalars import number_facts, numbers
from fp4ref.checkpoints.shards import StoredTensor
from fp4ref.formats import FORMATS


def judge_float_scales(group: TensorGroup) -> Iterator[Verdict]:
    """Check scales that are stored as numbers of floating-point type.

    Rules: CKP-9, CKP-14, CKP-16, CKP-53, CKP-54.
    """
    tensor = group.parts.get("scales")
    if tensor is None or (group.convention.scale and tensor.dtype in group.convention.scales.dtypes):  # type: ignore[union-attr]
        return
    found = number_facts(tensor)
    text = f"{found.least:g} to {found.largest:g}, whole numbers: exponent bytes converted as numbers"
    if group.convention.has_exponents and found.size:
        role = group.convention.scales
        if found.exponents and found.largest > 1:
            yield "scale-value-cast", ERROR, tensor.name, text
        else:
            yield "dtype", ERROR, tensor.name, f"{tensor.dtype}, need {' or '.join(role.dtypes if role else ())}"
    elif not group.convention.scale and group.convention.block[0] > 1 and found.usual_exponents:
        yield "scale-value-cast", ERROR, tensor.name, text
    if not group.convention.scale and found.largest * FORMATS[group.convention.element].max > WILD:
        yield from _wild(group, tensor)
    if not group.convention.scale and tensor.dtype in EXPONENTS:
        stored = np.frombuffer(tensor.bytes(), np.uint8)
        if (stored == 255).any():
            yield "scale-nan", ERROR, tensor.name, f"{int((stored == 255).sum())} exponent bytes are NaN"
        elif stored.size and stored.max() <= 3:
            yield "scale-value-cast", ERROR, tensor.name, "every exponent byte is at most 3: numbers rounded into bytes"
        elif stored.size:
            exponents = stored.astype(int)
            far = abs(exponents - int(np.median(exponents))) >= FAR if len(exponents) > RARE else exponents >= ONE + FAR
            if 0 < far.sum() <= min(RARE, len(exponents) - 1):
                text = (
                    f"{far.sum()} exponent bytes are far from the others, of median 0x{int(np.median(exponents)):02X}"
                )
                yield "bit-damage", WARNING, tensor.name, text


def _wild(group: TensorGroup, tensor: StoredTensor) -> Iterator[Verdict]:
    """Yield single float scales that no weight has, beside others that weights have."""
    top = FORMATS[group.convention.element].max
    amaxes = np.array([value * top for value in numbers(tensor) if math.isfinite(value)])
    wild = int((amaxes > WILD).sum())
    if 0 < wild <= RARE and wild < len(amaxes) and (amaxes > USUAL).sum() == wild:
        text = f"scales up to {amaxes.max() / top:.3g}, for amaxes up to {amaxes.max():.3g}; the others are at most"
        yield "bit-damage", WARNING, tensor.name, f"{wild} {text} {amaxes[amaxes <= USUAL].max() / top:.3g}"
