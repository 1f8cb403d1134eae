"""Spec: one frozen record that fixes every output byte of a quantizer, its name and its JSON form.

Values and enums are fields; what is an order of operations is a named function or a named record of functions.
JSON holds names of functions, never code: a reader must have registered them.
"""

from __future__ import annotations

import dataclasses
import json
import typing
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, StrEnum
from functools import cache
from numbers import Integral
from typing import Any, NamedTuple

from fp4ref.arithmetic import ARITHMETIC, TE, Arithmetic, no_global_scale
from fp4ref.errors import DomainError
from fp4ref.formats import E2M1, E4M3, FORMATS, Codec, Floats, Rounding, codec
from fp4ref.four_over_six import LANES, dequantized, halves, lanes, rows_by_tree
from fp4ref.hadamard import POINTS
from fp4ref.json_text import strict_json
from fp4ref.remembered import hashed_once
from fp4ref.spec_json import decode, encode

SPEC_VERSION = "1.0"
READ_VERSIONS = ("0.1", SPEC_VERSION)  # of specs in JSON; one of 0.1 has the same fields, and they mean the same


class Granularity(StrEnum):
    """The part of a tensor that shares one global scale."""

    NONE = "none"  # the global scale is 1
    TENSOR = "tensor"
    ROW = "row"


class Amax(StrEnum):
    """The treatment of NaN by a maximum."""

    IGNORE_NAN = "ignore-nan"  # a running maximum from +0
    PROPAGATE_NAN = "propagate-nan"
    PROPAGATE_IN_BLOCK = "propagate-in-block"  # a block's maximum propagates, the global one ignores


class Subnormals(StrEnum):
    """The treatment of subnormal inputs."""

    KEEP = "keep"
    FLUSH = "flush"  # zero of the same sign


class Metric(StrEnum):
    """The metric that turns the errors of a block's elements into one number."""

    ABSOLUTE = "mae"
    SQUARED = "mse"
    LARGEST = "max"


class Block(NamedTuple):
    """Elements that share one scale."""

    rows: int
    columns: int


@dataclass(frozen=True)
class Hadamard:
    """The transform of the column direction: bit i of `signs` negates element i of a group of 16. Rules: HAD-1."""

    signs: int = 0xD7E8

    def __post_init__(self) -> None:
        if not 0 <= self.signs < 1 << POINTS:
            raise DomainError("spec", f"Hadamard signs {self.signs:#x}", f"a mask of {POINTS} bits", "HAD-1")


@dataclass(frozen=True, kw_only=True)
class FourOverSix:
    """Try each block with its scale and with 1.5 times it; keep the second if its error is strictly smaller.

    scale_max: the scale that the global maximum gets; 256 leaves room for the larger candidate, 448 does not.
    difference: (element values, s, g, global amax, x, k) -> error of each element.
    total: [..., rows, columns] -> [...], in a fixed order of additions.

    Rules: FOS-1, FOS-2, FOS-3, FOS-4, FOS-5, FOS-6, FOS-8.
    """

    metric: Metric = Metric.ABSOLUTE
    scale_max: float = E4M3.max
    difference: Callable[..., Floats] = dequantized
    total: Callable[[Floats], Floats] = rows_by_tree

    def __post_init__(self) -> None:
        _coerce(self)
        if not 0 < self.scale_max <= E4M3.max:
            raise DomainError("spec", f"4over6 scale_max {self.scale_max}", f"0 < scale_max <= {E4M3.max}", "FOS-2")


@hashed_once
@dataclass(frozen=True, kw_only=True)
class Spec:
    """The complete record that distinguishes one block-scaled quantizer from another.

    Two specs are equal when all fields but the name are equal. Plain strings stand for enums and plain tuples for
    blocks. Layout, direction, random bits and backend are arguments of a call, not of a Spec.

    element_max: the magnitude that a block's maximum is mapped to; None is the largest element value.

    Rules: SPC-1, SPC-2, SPC-3, SPC-10, SPC-16.
    """

    name: str = dataclasses.field(compare=False)
    element: Codec
    scale: Codec
    block: Block
    global_scale: Granularity
    arithmetic: Arithmetic = TE
    element_max: float | None = None
    amax: Amax = Amax.IGNORE_NAN
    subnormals: Subnormals = Subnormals.KEEP
    hadamard: Hadamard | None = None
    four_over_six: FourOverSix | None = None

    def __post_init__(self) -> None:
        _coerce(self)
        _require_legal(self)

    @property
    def scale_max(self) -> float:
        """The scale of the block that holds the global maximum. Rules: GLB-2, FOS-2."""
        return self.four_over_six.scale_max if self.four_over_six else self.scale.format.max

    @property
    def stochastic(self) -> bool:
        """True if quantizing needs random bits."""
        return self.element.rounding is Rounding.STOCHASTIC

    def replace(self, **changes: Any) -> Spec:
        """Return a changed copy; unless named, its name says what changed. Rules: SPC-1."""
        said = ",".join(
            f"{field}={json.dumps(encode(value), separators=(',', ':'))}" for field, value in sorted(changes.items())
        )
        return dataclasses.replace(self, **{"name": f"{self.name}[{said}]", **changes})

    def to_json(self) -> str:
        """Return the record as JSON: spec version, values, and the names of what is registered. Rules: SPC-3, SPC-4."""
        named = ((self.element.format, FORMATS), (self.scale.format, FORMATS), (self.arithmetic, ARITHMETIC))
        for value, names in named:
            if names.get(value.name) != value:
                kind = type(value).__name__.lower()
                raise DomainError("spec", f"{kind} {value.name}", "a registered one, to be named", "SPC-4")
        return json.dumps({"fp4ref": SPEC_VERSION, **encode(self)}, indent=1)

    def __reduce__(self) -> tuple[Callable[[str], Spec], tuple[str]]:
        return from_json, (self.to_json(),)


def _require_legal(spec: Spec) -> None:
    """Refuse settings that have no meaning together. Rules: E2M1-6, SPC-2, FOS-7, SR-5. Certificates: settings."""
    search, element, scale = spec.four_over_six, spec.element, spec.scale
    global_scale = spec.global_scale is not Granularity.NONE
    row_scale = spec.global_scale is Granularity.ROW
    for bad, got, needed, rule in (
        *(
            (pick not in known, f"{kind} {pick}", f"one of {', '.join(known)}", "E2M1-6")
            for each in (element, scale)
            for kind, pick, known in (("rounding", each.rounding, codec.ROUNDINGS), ("sign", each.sign, codec.SIGNS))
        ),
        (min(spec.block) < 1, f"block {spec.block.rows}x{spec.block.columns}", "at least 1x1", "BLK-1"),
        (not element.format.signed, f"element {element.format.name}", "a signed element format", "SPC-2"),
        (scale.format.bits != 8, f"scale {scale.format.name}", "a format of 8 bits", "SPC-2"),
        (scale.rounding is Rounding.STOCHASTIC, "a stochastic scale", "another rounding", "SPC-2"),
        (
            spec.element_max is not None and not 0 < spec.element_max <= element.format.max,
            f"element_max {spec.element_max} with element {element.format.name}",
            f"0 < element_max <= {element.format.max:g}",
            "SPC-2",
        ),
        (
            row_scale and spec.block.rows != 1,
            f"global_scale row with block {spec.block.rows}x{spec.block.columns}",
            "blocks of one row",
            "GLB-5",
        ),
        (row_scale and spec.hadamard, "global_scale row with hadamard", "one of them", "GLB-5"),
        (row_scale and spec.stochastic, "global_scale row with stochastic rounding", "nearest rounding", "GLB-5"),
        (
            spec.stochastic and scale.format.powers_of_two,
            f"stochastic rounding with scale {scale.format.name}",
            "e4m3 scales or nearest rounding",
            "SR-5",
        ),
        (
            global_scale and scale.format.powers_of_two,
            f"global_scale {spec.global_scale} with scale {scale.format.name}",
            "global_scale none",
            "GLB-6",
        ),
        (
            global_scale and spec.arithmetic.global_scale is no_global_scale,
            f"global_scale {spec.global_scale} with arithmetic {spec.arithmetic.name}, which has none",
            "global_scale none",
            "GLB-6",
        ),
        (search and element.format != E2M1, f"four_over_six with element {element.format.name}", "e2m1", "FOS-7"),
        (search and scale.format != E4M3, f"four_over_six with scale {scale.format.name}", "e4m3", "FOS-7"),
        (search and not global_scale, "four_over_six with global_scale none", "tensor or row", "FOS-7"),
        (search and spec.stochastic, "four_over_six with stochastic rounding", "nearest rounding", "FOS-7"),
        (
            search and spec.block.rows & (spec.block.rows - 1),
            f"four_over_six with blocks of {spec.block.rows} rows",
            "a power of two",
            "FOS-7",
        ),
        (search and spec.hadamard, "four_over_six with hadamard", "one of them", "FOS-7"),
        (
            search and search.total is halves and spec.block.columns % 2,
            f"four_over_six with total halves and blocks of {spec.block.columns} columns",
            "an even number of columns",
            "FOS-7",
        ),
        (
            search and search.total is lanes and spec.block.rows * spec.block.columns % LANES,
            f"four_over_six with total lanes and block {spec.block.rows}x{spec.block.columns}",
            f"a multiple of {LANES} elements",
            "FOS-7",
        ),
        (
            spec.hadamard and spec.block.columns % POINTS,
            f"hadamard with blocks of {spec.block.columns} columns",
            f"a multiple of {POINTS}",
            "HAD-5",
        ),
    ):
        if bad:
            raise DomainError(f"spec {spec.name}", got, needed, rule)


def _coerce(record: Any) -> None:
    """Turn plain strings into enums and plain tuples into blocks."""
    for name, kind in _field_types(record.__class__).items():
        value = getattr(record, name)
        if kind is Block:
            if not isinstance(value, tuple | list) or [isinstance(size, Integral) for size in value] != [True, True]:
                raise DomainError("spec", f"{name} {value!r}", "two integers, rows and columns", "SPC-11")
            object.__setattr__(record, name, Block(*map(int, value)))
        elif isinstance(kind, type) and issubclass(kind, Enum):
            try:
                object.__setattr__(record, name, kind(value))
            except ValueError:
                needed = ", ".join(str(member.value) for member in kind)
                raise DomainError("spec", f"{name} {value!r}", f"one of {needed}", "SPC-1") from None


@cache
def _field_types(record: type) -> dict[str, Any]:
    return typing.get_type_hints(record)


def from_json(text: str) -> Spec:
    """Read a record back. Unknown versions, fields and names are errors; nothing is imported or evaluated.

    Rules: SPC-3, SPC-4, SPC-11, SPC-12, SPC-13, SPC-14.
    """
    try:
        value = strict_json(text)
    except (TypeError, ValueError) as error:
        raise DomainError("spec", f"text that is not JSON ({error})", "a JSON object", "SPC-11") from None
    if not isinstance(value, dict) or value.pop("fp4ref", None) not in READ_VERSIONS:
        needed = " or ".join(f'"fp4ref": "{version}"' for version in READ_VERSIONS)
        raise DomainError("spec", "JSON without a known spec version", needed, "SPC-11")
    return typing.cast(Spec, decode(Spec, value, "spec"))
