"""Mistakes in the exponent bias of a format that is not of the standard, which is a setting of its owner."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from fp4ref.conformance.mistakes.kernel import Kernel
from fp4ref.conformance.mistakes.record import Mistake, Slot
from fp4ref.errors import Fp4Error
from fp4ref.formats import E2M1, E2M3, E3M2, E4M3, E5M2, INT8, Format
from fp4ref.spec import Spec

STANDARD = (E2M1, E2M3, E3M2, E4M3, E5M2, INT8)
NEAR = (-1, 1, -2, 2, -3, 3)  # differences from the declared bias


def biases(spec: Spec) -> list[Mistake]:
    """Return the mistakes that a specification's elements have another bias, in the maxima's scales and in the codes.

    None for a format of the standard: its kernels have no bias to set, and a factor of two in the scales says the same.
    """
    form = spec.element.format
    return [] if form in STANDARD or not form.exponent_bits else [_other(form, by) for by in NEAR]


def _other(form: Format, by: int) -> Mistake:
    text = f"elements have the exponent bias {form.bias + by} instead of {form.bias}"
    return Mistake(
        f"element-bias-{form.bias + by}", Slot.SCALE, text, partial(_with, by), alone=True, breaks=("SPC-7",)
    )


def _with(by: int, kernel: Kernel) -> Kernel | None:
    """Return the kernel of the same specification with another bias; None where that is no format."""
    if kernel.codec is not kernel.spec.element:
        return None
    form = kernel.codec.format
    try:
        codec = replace(kernel.codec, format=replace(form, bias=form.bias + by))
        return kernel.but(codec=codec, spec=kernel.spec.replace(element=codec))
    except Fp4Error:  # its values are not of bfloat16, or a constant of the specification excludes it
        return None
