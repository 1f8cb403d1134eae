"""The tables of the explorer's script: formats, specifications, layouts and rules, read off the code's own objects."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np

from fp4ref.catalogue import PROFILES
from fp4ref.conformance.explain.formulas import cited, formula
from fp4ref.diagrams.codec_words import codec_rules, codec_words
from fp4ref.diagrams.place import spoken
from fp4ref.errors import LayoutError
from fp4ref.explorer.symbols import UntracedError
from fp4ref.explorer.traced import javascript, symbolic, total
from fp4ref.formats import FORMATS, Codec, F, Format, grid
from fp4ref.layout import LAYOUTS, Layout
from fp4ref.model.quantize import constants
from fp4ref.packings import CANONICAL_OF, PACKINGS, packing, rows_follow
from fp4ref.rules import defined
from fp4ref.spec import Granularity, Spec

TYPES = (F, ml_dtypes.bfloat16, np.float16)  # of inputs, in the script's order
MEMBERS = ("e", "p", "h")  # axes of experts, pages and heads, of which a page shows the first
STAGES = {
    "global_scale": ("amax",),
    "block_scale": ("amax", "g"),
    "scaled": ("x", "s", "g"),
    "dequantized": ("q", "s", "amax"),
}


@dataclass
class Tables:
    """The data of a page for JSON, and the functions that its specifications name by number."""

    data: dict[str, Any]
    functions: list[str]


def tables() -> Tables:
    """Everything that is registered. Rules: E2M1-1, E4M3-1, E5M2-1, E8M0-1, LAY-1, LAY-2, LAY-3, LAY-4, SPC-1."""
    written, specs, left_out = FunctionList(), [], []
    for spec in PROFILES.values():
        try:
            specs.append(_spec(spec, written))
        except UntracedError as error:
            left_out.append(f"{spec.name}: {error}")
    shown = [layout for layout in LAYOUTS.values() if layout.unit == 8 and _shown(layout)]
    packed = [*PACKINGS.values(), *filter(_packs, LAYOUTS.values())]
    others = [layout for layout in LAYOUTS.values() if layout not in shown and layout not in packed]
    left_out += [f"{layout.name}: {_unfit(layout)}" for layout in others]
    data = {
        "formats": {name: _format(form) for name, form in FORMATS.items()},
        "specs": specs,
        "rules": {name: rule.title for name, rule in defined().items()},
        "layouts": [_layout(layout) for layout in shown],
        "packings": [_packing(form) for form in packed],
        "canonical": {bits: _layout(form) for bits, form in CANONICAL_OF.items()},
        "left_out": left_out,
    }
    return Tables(data, written.texts)


@dataclass
class FunctionList:
    """Functions as JavaScript, each once."""

    texts: list[str] = field(default_factory=list)
    numbers: dict[str, int] = field(default_factory=dict)

    def number(self, text: str) -> int:
        """Return the place of a function in the list."""
        if text not in self.numbers:
            self.numbers[text] = len(self.texts)
            self.texts.append(text)
        return self.numbers[text]

    def each_type(
        self, function: Callable[..., Any], names: Sequence[str], spec: Spec, *, constant: bool = True
    ) -> list[int]:
        """Return the places of a function for each type of the input."""
        dtypes = [np.dtype(kind) for kind in TYPES]
        given = [(symbolic(constants(spec, dtype), dtype),) if constant else () for dtype in dtypes]
        return [self.number(javascript(function, names, *k)) for k in given]


def _shown(layout: Layout) -> list[int]:
    """Return the two axes that a page shows as rows and columns, or nothing if there are others than members."""
    axes = [number for number, axis in enumerate(layout.axes) if len(layout.axes) == 2 or axis.name not in MEMBERS]
    return axes if len(axes) == 2 else []


def _unfit(layout: Layout) -> str:
    return (
        layout.unfit_for_scales()
        if layout.unit == 8
        else f"units of {layout.unit} bit{'s' * (layout.unit > 1)}, not bytes"
    )


def _format(form: Format) -> dict[str, Any]:
    """Return the finite values by code, and the one that would follow."""
    return {
        "bits": form.bits,
        "codes": form.codes,
        "sign_bit": form.sign_bit,
        "mask": (1 << (form.exponent_bits + form.mantissa_bits)) - 1,
        "infinity": form.infinity,
        "complement": form.complement,
        "second_zero": form.second_zero,
        "values": [float(value) for value in grid(form)],
    }


def _codec(codec: Codec) -> dict[str, Any]:
    """Return the fields of a codec as `gridIndex` and `encode` of numerics.js read them. Rules: E2M1-6."""
    return {
        "format": codec.format.name,
        "rounding": codec.rounding.value,
        "sign": codec.sign.value,
        "nan": list(codec.nan),
        "overflow": codec.overflow,
        "infinity": codec.infinity,
        "words": codec_words(codec),
        "rules": list(codec_rules(codec)),
    }


def _spec(spec: Spec, written: FunctionList) -> dict[str, Any]:
    arithmetic, search = spec.arithmetic, spec.four_over_six
    formulas = {name: getattr(arithmetic, name) for name in STAGES}
    functions = {name: written.each_type(formulas[name], names, spec) for name, names in STAGES.items()}
    functions["working_scale"] = written.each_type(arithmetic.working_scale, ("t", "s"), spec, constant=False)
    if search:
        functions["difference"] = written.each_type(search.difference, ("q", "s", "g", "amax", "x"), spec)
        functions["total"] = [written.number(total(search.total, *spec.block))] * len(TYPES)
    if spec.global_scale is Granularity.NONE:
        del formulas["global_scale"]
    return {
        "name": spec.name,
        "label": spoken(spec),
        "element": _codec(spec.element),
        "scale": _codec(spec.scale),
        "block": list(spec.block),
        "global_scale": spec.global_scale.value,
        "amax": spec.amax.value,
        "subnormals": spec.subnormals.value,
        "stochastic": spec.stochastic,
        "hadamard": spec.hadamard.signs if spec.hadamard else None,
        "four_over_six": formula(search.difference) if search else None,
        "metric": search.metric.value if search else None,
        "functions": functions,
        "formulas": {
            name: {"words": formula(function), "rules": list(cited(function))} for name, function in formulas.items()
        },
    }


def _packs(layout: Layout) -> bool:
    """Return True for a layout of codes narrower than a byte that was registered as no packing of the catalogue."""
    try:
        return layout.unit < 8 and layout.name not in PACKINGS and packing(layout) is layout
    except LayoutError:
        return False


def _packing(form: Layout) -> dict[str, Any]:
    """Return a packing with its layouts by the width of a code: one of bytes holds pairs of 4-bit codes as well."""
    widths = (4, 8) if form.unit == 8 and not any(axis.fill for axis in form.axes) else (form.unit,)
    return {"name": form.name, "rule": form.rule, "of": {bits: _layout(packing(form, bits)) for bits in widths}}


def _layout(layout: Layout) -> dict[str, Any]:
    form, tiled = layout.form, layout.has_tiles and len(layout.axes) == 2
    return {
        "name": layout.name,
        "key": f"{layout.name} {layout.text}",
        "rule": layout.rule,
        "unit": layout.unit,
        "shown": _shown(layout),
        "axes": [
            {"radices": list(axis.radices), "multiple": axis.multiple, "refused": axis.refused, "fill": axis.fill}
            for axis in layout.axes
        ],
        "order": [item._asdict() for item in form.order],
        "base": form.base._asdict(),
        "repeated": [list(place) for place in form.repeated],
        "table": list(form.table),
        "tile": list(layout.tile if tiled else (1, 1)),
        "gaps": layout.has_gaps,
        "whole_rows": rows_follow(layout),
    }
