"""A specification as a row of a table: what it is, and what sets it apart from the standard's."""

from __future__ import annotations

from fp4ref.conformance.explain.codec_notes import STANDARD
from fp4ref.formats import Codec
from fp4ref.spec import Amax, Spec, Subnormals
from fp4ref.spec_json import encode

HEADINGS = ("name", "formats", "block", "global", "arithmetic", "other settings")


def row(spec: Spec) -> tuple[str, ...]:
    """Return the cells of a specification under HEADINGS."""
    return (
        spec.name,
        f"{spec.element.format.name}/{spec.scale.format.name}",
        f"{spec.block.rows}x{spec.block.columns}",
        str(spec.global_scale),
        spec.arithmetic.name,
        ", ".join(others(spec)),
    )


def others(spec: Spec) -> list[str]:
    """Every other setting that differs from its default or, in a codec, from the standard's."""
    found = []
    if spec.element_max is not None:
        found.append(f"element max {spec.element_max:g}")
    if spec.amax is not Amax.IGNORE_NAN:
        found.append(f"amax {spec.amax}")
    if spec.subnormals is not Subnormals.KEEP:
        found.append(f"subnormals {spec.subnormals}")
    if spec.hadamard:
        found.append(f"hadamard {spec.hadamard.signs:#06x}")
    if spec.four_over_six:
        parts = encode(spec.four_over_six)
        found.append(f"4over6 {parts['metric']} {parts['scale_max']:g} {parts['difference']} {parts['total']}")
    return found + _codec("element", spec.element) + _codec("scale", spec.scale)


def _codec(role: str, codec: Codec) -> list[str]:
    usual, digits = STANDARD.get(codec.format, codec), codec.format.digits
    found = []
    if codec.rounding != usual.rounding:
        found.append(f"{role} rounding {codec.rounding}")
    if codec.sign != usual.sign:
        found.append(f"{role} sign {codec.sign}")
    if codec.nan != usual.nan:
        found.append(f"{role} nan " + "/".join(f"{code:0{digits}x}" for code in codec.nan))
    if codec.overflow is not None:
        found.append(f"{role} overflow {codec.overflow:0{digits}x}")
    if codec.infinity is not None:
        found.append(f"{role} infinity {codec.infinity:0{digits}x}")
    return found
