"""The tables of the explorer's script: formats, specifications, layouts and rules, read off the code's own objects."""

from __future__ import annotations

from typing import Any

from fp4ref.arithmetic import stored
from fp4ref.conformance.explain.formulas import cited, formula
from fp4ref.diagrams.codec_words import codec_rules, codec_words
from fp4ref.diagrams.place import spoken
from fp4ref.formats import FORMATS, Codec, Format, Rounding, Sign, grid
from fp4ref.layout import Layout, Term, scale_layouts
from fp4ref.spec import Amax, Granularity, Metric, Spec, Subnormals
from fp4ref.specs import STANDARD

ARITHMETICS = ("te", "te-fast", "te-division", "rceil")  # that the script has


def tables() -> dict[str, Any]:
    """Everything, as data for JSON. Rules: E2M1-1, E4M3-1, E5M2-1, E8M0-1, LAY-1, LAY-2, LAY-3, LAY-4, SPC-1."""
    return {
        "formats": {name: _format(form) for name, form in FORMATS.items()},
        "specs": [_spec(spec) for spec in STANDARD if offered(spec)],
        "layouts": [_layout(layout) for layout in scale_layouts() if in_tiles(layout)],
    }


def offered(spec: Spec) -> bool:
    """Return True if the script computes every field of a specification."""
    return (
        spec.arithmetic.name in ARITHMETICS
        and spec.arithmetic.working_scale is stored
        and all(_plain(codec) for codec in (spec.element, spec.scale))
        and spec.amax is Amax.IGNORE_NAN
        and spec.subnormals is Subnormals.KEEP
        and (spec.four_over_six is None or spec.four_over_six.metric is Metric.ABSOLUTE)
    )


def in_tiles(layout: Layout) -> bool:
    """Return True if the script computes a layout: tiles along a row, then down, and 0x00 as their padding."""
    rests = [Term(axis, len(found.radices) - 1) for axis, found in enumerate(layout.axes) if found.radices[-1] is None]
    return (
        list(layout.form.order[-2:]) == rests[::-1]
        and not layout.has_gaps
        and not any(isinstance(item, Term) and item.flip for item in layout.form.order)
        and not any(axis.fill or axis.refused for axis in layout.axes)
    )


def _plain(codec: Codec) -> bool:
    """Return True if the script computes a codec; it cannot see the sign of a NaN."""
    nearest = codec.rounding in (Rounding.EVEN, Rounding.UP)
    saturates = codec.overflow is None and codec.infinity is None
    return nearest and codec.sign is Sign.BIT and saturates and codec.nan[0] == codec.nan[1]


def _format(form: Format) -> dict[str, Any]:
    """Return the finite values by code, and the one that would follow."""
    return {
        "bits": form.bits,
        "codes": form.codes,
        "sign_bit": form.sign_bit,
        "infinity": form.infinity,
        "values": [float(value) for value in grid(form)],
    }


def _codec(codec: Codec) -> dict[str, Any]:
    return {
        "format": codec.format.name,
        "rounding": codec.rounding.value,
        "nan": codec.nan[0],
        "words": codec_words(codec),
        "rules": list(codec_rules(codec)),
    }


def _spec(spec: Spec) -> dict[str, Any]:
    arithmetic = spec.arithmetic
    functions: dict[str, Any] = {
        "global_scale": arithmetic.global_scale,
        "block_scale": arithmetic.block_scale,
        "scaled": arithmetic.scaled,
        "dequantized": arithmetic.dequantized,
    }
    if spec.global_scale is Granularity.NONE:
        del functions["global_scale"]
    return {
        "name": spec.name,
        "label": spoken(spec),
        "element": _codec(spec.element),
        "scale": _codec(spec.scale),
        "block": list(spec.block),
        "global_scale": spec.global_scale.value,
        "arithmetic": arithmetic.name,
        "element_max": spec.element_max or spec.element.format.max,
        "scale_max": spec.scale_max,
        "hadamard": spec.hadamard.signs if spec.hadamard else None,
        "four_over_six": formula(spec.four_over_six.difference) if spec.four_over_six else None,
        "formulas": {
            name: {"words": formula(function), "rules": list(cited(function))} for name, function in functions.items()
        },
    }


def _layout(layout: Layout) -> dict[str, Any]:
    rows, columns = layout.digits(1, 1)
    return {
        "name": layout.name,
        "rule": layout.rule,
        "row_digits": [list(digit) for digit in rows[:-1]],
        "column_digits": [list(digit) for digit in columns[:-1]],
        "pad_to": list(layout.multiples),
        "pads_compared": layout.pads_compared,
    }
