"""The rules that a family's inputs test, by specification."""

from __future__ import annotations

from fp4ref.arithmetic import dequantized_te
from fp4ref.formats import E8M0, Format
from fp4ref.quantized import Direction
from fp4ref.rules import prefix_of
from fp4ref.spec import Granularity, Spec
from fp4ref.specs import OWN

# The rules of a format: on the values of its codes, on rounding, on saturation, on NaN, on the sign of a zero
OF_FORMAT: dict[str, tuple[str, ...]] = {
    "e2m1": ("E2M1-1", "E2M1-3", "E2M1-4", "E2M1-5", "E2M1-2"),
    "e4m3": ("E4M3-1", "E4M3-2", "E4M3-3", "E4M3-4", "E4M3-6"),
    "e5m2": ("E5M2-1", "E5M2-2", "E5M2-3", "E5M2-4", "E5M2-6"),
    "e2m3": ("E2M3-1", "E2M3-2", "E2M3-3", "E2M3-4", "E2M3-5"),
    "e3m2": ("E3M2-1", "E3M2-2", "E3M2-3", "E3M2-4", "E3M2-5"),
    "int8": ("INT8-1", "INT8-2", "INT8-3", "INT8-4", "INT8-5"),
    "ue4m3": ("UE4M3-1", "UE4M3-2", "UE4M3-2"),
    "ue5m3": ("UE5M3-1", "UE5M3-2", "UE5M3-3"),
    "e8m0": ("E8M0-4",),
}
VALUES, NEAREST, SATURATES, NOT_A_NUMBER, KEEPS_SIGN = (
    {form: rules[column] for form, rules in OF_FORMAT.items() if len(rules) > column} for column in range(5)
)
PACKED = {4: "PACK-1", 6: "PACK-4", 8: "PACK-3"}  # the rule of a width
SPARE = {4: "PACK-2", 6: "PACK-5"}  # the rule of bits that no code takes; codes of 8 bits leave none

OF_A_CODEC = "SPC-7"  # of a format without a chapter of its own


def element_rules(spec: Spec) -> tuple[str, ...]:
    """Return the rules on the rounding of elements."""
    return (NEAREST.get(spec.element.format.name, OF_A_CODEC),)


def scale_rules(spec: Spec) -> tuple[str, ...]:
    """Return the rules on the rounding of block scales."""
    return (
        ("E8M0-2", "MXS-1") if spec.scale.format is E8M0 else (NEAREST.get(spec.scale.format.name, OF_A_CODEC), "BLK-3")
    )


def scaling_rules(spec: Spec) -> tuple[str, ...]:
    """Return the rules on the division of elements by their scale."""
    return ("BLK-10",) if spec.scale.format is E8M0 else ("BLK-4", "BLK-5")


def overflow_rules(spec: Spec) -> tuple[str, ...]:
    """Saturation of elements and scales."""
    scale = ("E8M0-3",) if spec.scale.format is E8M0 else (SATURATES.get(spec.scale.format.name, OF_A_CODEC),)
    return SATURATES.get(spec.element.format.name, OF_A_CODEC), *scale


def nan_rules(spec: Spec) -> tuple[str, ...]:
    """NaN in, and the maxima that meet it."""
    return ("BLK-2", NOT_A_NUMBER.get(spec.element.format.name, OF_A_CODEC))


def sign_rules(spec: Spec) -> tuple[str, ...]:
    """Return the rule on the sign of a zero."""
    return (KEEPS_SIGN.get(spec.element.format.name, OF_A_CODEC),)


def special_amax_rules(spec: Spec) -> tuple[str, ...]:
    """Return the rules on maxima of which no scale can be made in the usual way."""
    return scale_rules(spec) if spec.global_scale is Granularity.NONE else ("GLB-3",)


def zero_rules(spec: Spec) -> tuple[str, ...]:
    """Return the rules on a tensor of zeros."""
    return (*special_amax_rules(spec), *sign_rules(spec))


def place_rules(spec: Spec) -> tuple[str, ...]:
    """Return the rules on where an element's code and its block are."""
    return (PACKED[spec.element.format.bits], "BLK-1")


def ragged_rules(spec: Spec) -> tuple[str, ...]:
    """Return the rules on blocks that are not full, and on bits behind the last code."""
    bits = spec.element.format.bits
    return ("BLK-1", *([SPARE[bits]] if bits in SPARE else []))


def global_rules(spec: Spec) -> tuple[str, ...]:
    """Return the rules on the global amax and its scale."""
    by = {Granularity.NONE: ("GLB-6",), Granularity.TENSOR: ("GLB-1", "GLB-2"), Granularity.ROW: ("GLB-5",)}
    return by[spec.global_scale]


def value_rule(form: Format) -> str:
    """Return the rule on the values of a format's codes."""
    return VALUES.get(form.name, OF_A_CODEC)


def format_rules(form: Format) -> str:
    """Return the prefix of the rules on a format's codec, or the one rule for a format without a chapter."""
    return prefix_of(VALUES[form.name]) if form.name in VALUES else OF_A_CODEC


def product_rule(spec: Spec) -> str:
    """Return the rule on the product that is the value of a code. Rules: DEQ-1, DEQ-2, DEQ-5."""
    if spec.global_scale is Granularity.NONE:
        return "DEQ-2"
    return "DEQ-1" if spec.arithmetic.dequantized is dequantized_te else "DEQ-5"


def dequantizing(spec: Spec, direction: Direction) -> tuple[str, ...]:
    """Return the rules on values that are computed from bytes. Rules: DEQ-1, DEQ-2, DEQ-3, DEQ-4, DEQ-5, LAY-6."""
    return (product_rule(spec), "DEQ-3", *(("DEQ-4",) if direction == "column" else ()), "LAY-6")


def dequantized(spec: Spec) -> tuple[str, ...]:
    """Return the rules on the values of bytes, in either direction. Rules: DEQ-1, DEQ-2, DEQ-3, DEQ-5, DEQ-6."""
    return (product_rule(spec), "DEQ-3", "DEQ-6", value_rule(spec.element.format), value_rule(spec.scale.format))


def spec_rules(spec: Spec, direction: Direction) -> tuple[str, ...]:
    """Return the rules that a specification and a direction add to those of any input."""
    return (
        *(() if spec in OWN or spec.stochastic else ("PRO-1", "PRO-3")),
        *(("BLK-10",) if spec.scale.format is E8M0 else ("BLK-3", "BLK-4")),
        *global_rules(spec),
        *(("BLK-7",) if spec.block.rows > 1 else ()),
        *(("BLK-8",) if direction == "column" else ()),
        *(("HAD-2", "HAD-4") if spec.hadamard and direction == "column" else ()),
        *(("FOS-6",) if spec.four_over_six else ()),
        *(("SR-2",) if spec.stochastic else ()),
    )


def rules(*names: str) -> RuleSet:
    """Return the same rules for every specification."""
    return RuleSet(names)


class RuleSet(tuple[str, ...]):
    """Rules that do not depend on the specification."""

    __slots__ = ()

    def __call__(self, spec: Spec) -> tuple[str, ...]:
        """Return the rules."""
        return self
