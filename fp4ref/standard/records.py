"""Tables of the chapters that are generated from records: constants, own specifications, profiles."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from fp4ref import arithmetic
from fp4ref.catalogue import PROFILES, PROMISES
from fp4ref.formats import E2M1, E4M3, E8M0, Codec, F, Rounding
from fp4ref.spec import FourOverSix, Spec
from fp4ref.specs import MXFP8_E4M3, NVFP4, OWN
from fp4ref.standard.tables import hexadecimal, number, table

CODECS = [codec for spec in OWN for codec in (spec.element, spec.scale)]
BASES = {codec.format: codec for codec in CODECS if codec.rounding is not Rounding.STOCHASTIC}
CLAIMS = {"finite": "finite", "nan": "NaN", "inf": "Inf"}
KINDS = ("finite", "nan", "inf")


# The functions of the own arithmetics in the notation of chapter 01, and their rules.
FORMULAS: dict[Callable[..., Any], tuple[str, tuple[str, ...]]] = {
    arithmetic.encoding_te: ("`min(T / G, FLT_MAX)`; 1 if G or the quotient is 0", ("GLB-2", "GLB-3")),
    arithmetic.no_global_scale: ("1", ("GLB-6",)),
    arithmetic.block_scale_te: ("`min(a * (g * fp32(1/6)), FLT_MAX)`", ("BLK-3",)),
    arithmetic.block_scale_division: ("`(a / 6) * g`", ("FOS-1",)),
    arithmetic.block_scale_rceil: ("`a * fp32(1 / element_max)`", ("MXS-1",)),
    arithmetic.block_scale_floor: ("MXS-2; NaN if a is not finite", ("MXS-2", "MXS-5")),
    arithmetic.scaled_te: ("`x * min(1 / (s * (1 / g)), FLT_MAX)`", ("BLK-4", "BLK-5")),
    arithmetic.scaled_te_fast: ("`fma(x, bf16(min(g / s, largest bfloat16)), +0)`", ("BLK-11",)),
    arithmetic.divided: ("`x / s`", ("BLK-10",)),
}


def own_arithmetics() -> str:
    """Return the formulas of the own specifications' arithmetics. Rules: SPC-9."""
    own = {spec.arithmetic.name: spec.arithmetic for spec in OWN}
    rows = []
    for name, each in own.items():
        parts = [FORMULAS[function] for function in (each.global_scale, each.block_scale, each.scaled)]
        rules = ", ".join(rule for _, cited in parts for rule in cited)
        rows.append([f"`{name}`", *(formula for formula, _ in parts), rules])
    return table(("arithmetic", "g", "t", "y", "rules"), rows)


def constants() -> str:
    """Return the float32 constants of the rules. Rules: NUM-1, BLK-3, MXS-1, DEQ-1."""
    tops = {F(spec.element_max or spec.element.format.max) for spec in OWN if spec.arithmetic.name == "rceil"}
    products = {NVFP4.element.format.max * top for top in (256.0, E4M3.max)}
    largest = np.finfo(F).max
    named = [("`FLT_MAX`, the largest float32", largest), ("`1 / FLT_MAX`, a subnormal number", F(1) / largest)]
    named += [(f"`fp32(1/{number:g})`", F(1) / F(number)) for number in sorted(tops | products)]
    return table(("constant", "value", "bits"), ((name, str(value), hexadecimal(value)) for name, value in named))


def element_formats() -> str:
    """Return the numbers of element formats that MX scales are chosen by. Rules: MXS-1, MXS-2, MXS-4."""
    forms = dict.fromkeys(spec.element.format for spec in OWN)
    rows = ((form.name.upper(), number(form.max), str(form.emax), str(form.mantissa_bits)) for form in forms)
    return table(("element", "element_max", "emax", "mbits"), rows)


def codes_of_e2m1() -> str:
    """Return the values of all E2M1 codes. Rules: E2M1-1."""
    half = E2M1.codes
    magnitudes = [number(value) for value in NVFP4.element.decode(np.arange(half, dtype=np.uint8))]
    rows = [["bits", *(f"`{code:04b}`" for code in range(half))], ["value", *magnitudes]]
    rows += [
        ["code with sign", *(f"{code:X}" for code in range(half, 2 * half))],
        ["value", *(f"-{m}" for m in magnitudes)],
    ]
    return table(("code", *map(str, range(half))), rows)


def own_specs() -> str:
    """Return the standard's own specifications with all their fields. Rules: SPC-1, SPC-8."""
    head = ("spec", "element", "scale", "block", "global scale", "arithmetic", "element_max", "amax", "subnormals")
    return table((*head, "Hadamard signs", "4over6"), map(_own, OWN))


def _own(spec: Spec) -> list[str]:
    fields = [f"`{spec.name}`", _named(spec.element), _named(spec.scale), f"{spec.block.rows} x {spec.block.columns}"]
    fields += [f"`{spec.global_scale}`", f"`{spec.arithmetic.name}`"]
    fields += [number(spec.element_max or spec.element.format.max), f"`{spec.amax}`", f"`{spec.subnormals}`"]
    fields.append("none" if spec.hadamard is None else f"`0x{spec.hadamard.signs:04X}`")
    return [*fields, "none" if spec.four_over_six is None else _search(spec.four_over_six)]


def _search(search: FourOverSix) -> str:
    names = search.metric.value, f"{search.scale_max:g}", search.difference.__name__, search.total.__name__
    return f"`{names[0]}`, scale_max {names[1]}, `{names[2]}`, `{names[3]}`"


def _named(codec: Codec) -> str:
    name = codec.format.name.upper()
    return f"{name}, stochastic" if codec.rounding is Rounding.STOCHASTIC else name


def own_codecs() -> str:
    """Return the codecs of the standard's own specifications. Rules: E2M1-6, SPC-8."""
    codecs = {_named(codec): codec for codec in CODECS}
    head = ("codec", "rounding", "sign", "nan", "overflow", "infinity")
    return table(head, ([name, *_codec(codec)] for name, codec in codecs.items()))


def _codec(codec: Codec) -> list[str]:
    nan = " and ".join(f"`{code:0{codec.format.digits}X}`" for code in codec.nan)
    rest = ("none" if code is None else f"`{code:X}`" for code in (codec.overflow, codec.infinity))
    return [f"`{codec.rounding}`", f"`{codec.sign}`" if codec.format.signed else "-", nan, *rest]


def profiles() -> str:
    """Return the profiles of other implementations, by what differs from NVFP4 or MX. Rules: PRO-2, PRO-3, PRO-12."""
    own = {spec.name for spec in OWN}
    names = [name for name in PROFILES if name not in own and "." in name and PROMISES.get(name) is not None]
    head = ("profile", "arithmetic", "element", "scale", "other", "source", "holds for")
    return table(head, ([f"`{name}`", *_profile(name)] for name in names))


def _profile(name: str) -> list[str]:
    spec, promise = PROFILES[name], PROMISES[name]
    codecs = [_difference(spec.element), _difference(spec.scale)]
    held = ", ".join(CLAIMS[kind] for kind in KINDS if promise.claims[kind].holds) or "-"
    source = f"{promise.checked}: {', '.join(promise.versions)}"
    return [f"`{spec.arithmetic.name}`", *codecs, _others(spec), source, held]


def _difference(codec: Codec) -> str:
    """Return a codec by what differs from the standard's of the same format."""
    base = BASES.get(codec.format, codec)
    parts = [codec.format.name.upper()]
    parts += [f"rounding {codec.rounding}"] * (codec.rounding != base.rounding)
    parts += [f"sign {codec.sign}"] * (codec.sign != base.sign)
    parts += ["nan {:X} {:X}".format(*codec.nan)] * (codec.nan != base.nan)
    parts += [] if codec.overflow is None else [f"overflow {codec.overflow:X}"]
    return ", ".join(parts + ([] if codec.infinity is None else [f"infinity {codec.infinity:X}"]))


def _others(spec: Spec) -> str:
    """Return the other fields that differ from those of NVFP4, or of MX for a scale of E8M0."""
    base, search = MXFP8_E4M3 if spec.scale.format is E8M0 else NVFP4, spec.four_over_six
    parts = [f"block {spec.block.rows}x{spec.block.columns}"] * (spec.block != base.block)
    parts += [f"global scale {spec.global_scale}"] * (spec.global_scale != base.global_scale)
    parts += [] if spec.element_max is None else [f"element_max {spec.element_max:g}"]
    parts += [str(spec.amax)] * (spec.amax != base.amax)
    parts += [str(spec.subnormals)] * (spec.subnormals != base.subnormals)
    parts += [f"hadamard {spec.hadamard.signs:X}"] if spec.hadamard else []
    if search:
        names = search.difference.__name__, search.total.__name__
        parts.append(f"4over6 {search.metric} {search.scale_max:g} {' '.join(names)}")
    return ", ".join(parts) or "-"
