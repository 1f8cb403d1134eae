"""The specifications that compiled products read, and those that they serve."""

from __future__ import annotations

from functools import lru_cache

from fp4ref.formats import E8M0, Codec, Rounding
from fp4ref.registry import Call
from fp4ref.spec import Block, Granularity, Spec

LONGEST_SUM = 126  # bits of the sum of a block's products


@lru_cache(maxsize=4096)
def of_operand(spec: Spec, global_scale: Granularity) -> Spec:
    """Return the specification with the fields that a product reads, so that many share one compiled text."""
    rounding = Rounding.UP if spec.scale.format is E8M0 else Rounding.EVEN
    return Spec(
        name="operand",
        element=Codec(format=spec.element.format, nan=(0, 0)),
        scale=Codec(format=spec.scale.format, rounding=rounding, nan=(0, 0)),
        block=Block(1, spec.block.columns),
        global_scale=global_scale,
    )


def too_wide(call: Call) -> list[str]:
    """Return the formats for which the sum of a block's products, in smallest steps, leaves 128 bits."""
    bits = span_of_sums(call.specs)
    if bits <= LONGEST_SUM:
        return []
    names = " and ".join(spec.element.format.name for spec in call.specs)
    return [f"formats {names}: the sums of their products span {bits} bits"]


def span_of_sums(specs: tuple[Spec, ...]) -> int:
    """Return the bits of the sum of a block's products, counted in the smallest steps of elements and scales."""
    elements, scales = zip(*((spec.element.format, spec.scale.format) for spec in specs), strict=True)
    bits = sum(form.span for form in (*elements, *(form for form in scales if not form.powers_of_two)))
    return int(bits + max(spec.block.columns for spec in specs).bit_length())
