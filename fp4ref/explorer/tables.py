"""The tables of the explorer's script: formats, specifications, layouts and rules, read off the code's own objects."""

from __future__ import annotations

from typing import Any

from fp4ref.arithmetic import stored
from fp4ref.conformance.explain.formulas import cited, formula
from fp4ref.diagrams.codec_words import codec_rules, codec_words
from fp4ref.diagrams.place import spoken
from fp4ref.formats import FORMATS, Codec, Format, Rounding, Sign, grid
from fp4ref.layout import LAYOUTS, Layout, Term
from fp4ref.rules import defined
from fp4ref.spec import Amax, Granularity, Metric, Spec, Subnormals
from fp4ref.specs import STANDARD

ARITHMETICS = ("te", "te-fast", "te-division", "rceil")  # that the script has


def tables() -> dict[str, Any]:
    """Everything, as data for JSON. Rules: E2M1-1, E4M3-1, E5M2-1, E8M0-1, LAY-1, LAY-2, LAY-3, LAY-4, SPC-1."""
    return {
        "formats": {name: _format(form) for name, form in FORMATS.items()},
        "specs": [_spec(spec) for spec in STANDARD if offered(spec)],
        "rules": {name: rule.title for name, rule in defined().items()},
        "layouts": [_layout(layout) for layout in LAYOUTS.values() if sums(layout)],
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


def sums(layout: Layout) -> bool:
    """Return True if the script computes a layout: bytes of rows and columns, each at a sum over their digits."""
    form = layout.form
    plain = not (form.base.number or form.repeated or form.table)
    digits = all(not (item.flip or item.by) if isinstance(item, Term) else not item.axes for item in form.order)
    return not layout.unfit_for_scales() and plain and digits


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
    return {
        "name": layout.name,
        "rule": layout.rule,
        "radices": [list(axis.radices) for axis in layout.axes],
        "order": [[item.axis, item.digit] if isinstance(item, Term) else item.number for item in layout.form.order],
        "multiples": list(layout.multiples),
        "refused": [axis.refused for axis in layout.axes],
        "fills": [axis.fill for axis in layout.axes],
        "tile": list(layout.tile if layout.has_tiles else (1, 1)),
        "gaps": layout.has_gaps,
    }
