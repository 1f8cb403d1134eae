"""The record of one known mistake, and words to write them with."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from fp4ref.arithmetic import Global, narrow_bfloat16
from fp4ref.conformance.mistakes.kernel import Kernel
from fp4ref.conformance.mistakes.places import Place
from fp4ref.formats import Codes, F, Floats
from fp4ref.model.quantize import constants
from fp4ref.spec import Granularity
from fp4ref.specs import NVFP4


class Slot(StrEnum):
    """The stage that a mistake changes, in the order of computation: those of a quantizer, then those of a product."""

    DIRECTION = "direction"
    INPUT = "input"
    HADAMARD = "hadamard"
    AMAX = "amax"
    GLOBAL = "global scale"
    BLOCK = "block"
    SCALE = "scale"
    SCALE_CODEC = "scale codec"
    SEARCH = "4over6"
    ENCODE = "encode scale"
    CODE = "code"
    SIGN = "sign"
    PACKING = "packing"
    LAYOUT = "layout"
    PADDING = "padding"
    OPERANDS = "operands"
    SUM = "sum"
    ADDITIONS = "additions"
    RESULTS = "results"


Apply = Callable[[Kernel], Kernel | None]


class Cause(NamedTuple):
    """A mistake as a diagnosis names it. breaks: its rules, if those are not all rules of its stage.

    profile: the specification that the kernel was made for, where the mistake is to be another one.
    """

    name: str
    stage: str
    breaks: tuple[str, ...] = ()
    profile: str | None = None


@dataclass(frozen=True)
class Mistake:
    """A known mistake: a small change of a kernel.

    text: one sentence without a full stop. apply: the kernel that makes the mistake, None where it means nothing.
    special: it changes only what becomes of zeros, NaN, infinities, subnormals and underflow, so that it can come with
    any other mistake. symptom: it says which byte special values end up as, which follows from causes further up.
    alone: no search pairs it with a second mistake, so that a long table of such costs little.
    place: where it holds, in words that follow a comma; empty for everywhere. rounding: of maxima, if that is what it
    says; it is told only of maxima that support it. measured: it was learnt from the candidate's bytes, and two named
    mistakes may make these as well. grid: what it does to the scale bytes of a buffer with its padding, [rows, blocks],
    if that is all that it does; within: where, None for everywhere. constant: all bytes that it changes are one byte.
    breaks: the rules that it breaks, if those are not all rules of its stage. fills: it leaves codes in spare bits.
    """

    name: str
    stage: Slot
    text: str
    apply: Apply
    special: bool = False
    alone: bool = False
    symptom: bool = False
    place: str = ""
    rounding: Callable[[Floats], Floats] | None = None
    measured: bool = False
    grid: Callable[[Codes], Codes] | None = None
    within: Place | None = None
    constant: bool = False
    breaks: tuple[str, ...] = ()
    fills: bool = False

    @property
    def cause(self) -> Cause:
        """The mistake as a diagnosis names it."""
        return Cause(self.name, self.stage, self.breaks)

    def at(self, place: Place, field: str = "placed") -> Mistake:
        """Return the mistake that holds in one place only.

        field: of the kernel; with "placed_values" only values change there, and maxima are taken of all afterwards.
        """
        everything = field == "placed"

        def apply(kernel: Kernel) -> Kernel | None:
            changed = self.apply(kernel.but(placed=()) if everything else kernel)
            if changed is None:
                return None
            changes = {field: (*getattr(kernel, field), (place, self.apply))}
            return kernel.but(whole=kernel.whole or changed.whole, **changes)

        return dataclasses.replace(self, apply=apply, place=place.text, within=place if everything else None)


When = Callable[[Kernel], Any]
# Formulas of the mistakes, in the order of arguments of Arithmetic's functions
GlobalForm = Callable[[Any, Any], Any]
ScaleForm = Callable[[Any, Any, Any], Any]
ElementForm = Callable[[Any, Any, Any, Any], Any]


OPTIONS = frozenset({"special", "alone", "symptom", "rounding", "measured", "breaks", "fills"})


def known(stage: Slot, name: str, text: str, when: When | None = None, **fields: Any) -> Mistake:
    """Return a mistake that replaces fields of a kernel; a change may be a function of the kernel, marked by `of`.

    fields: OPTIONS are those of the mistake, all others of the kernel.
    """
    options = {field: fields.pop(field) for field in OPTIONS & fields.keys()}

    def apply(kernel: Kernel) -> Kernel | None:
        if when is not None and not when(kernel):
            return None
        made = {field: value.make(kernel) if isinstance(value, of) else value for field, value in fields.items()}
        return kernel.but(**made)

    return Mistake(name, stage, text, apply, **options)


@dataclass(frozen=True)
class of:  # noqa: N801 - reads as a preposition where it is used
    """A change that depends on the kernel."""

    make: Callable[[Kernel], Any]


# What a mistake needs to mean anything


@lru_cache(maxsize=256)
def _encodes(form: Global) -> bool:
    """Return True if a global scale is smaller for a larger maximum, as 2688 / amax is."""
    with np.errstate(all="ignore"):
        one, two = form(np.array([1, 2], F), constants(NVFP4, np.dtype(F)))
    return bool(two < one)


def nv(kernel: Kernel) -> bool:
    """Return a global scale that encodes: 2688 / amax."""
    return has_global(kernel) and _encodes(kernel.spec.arithmetic.global_scale)


def has_global(kernel: Kernel) -> bool:
    """Return a global scale of any convention."""
    return kernel.spec.global_scale is not Granularity.NONE


def by_tensor(kernel: Kernel) -> bool:
    """Return True if there is one global scale for the tensor."""
    return kernel.spec.global_scale is Granularity.TENSOR


def by_row(kernel: Kernel) -> bool:
    """Return True if each row has a global scale of its own."""
    return kernel.spec.global_scale is Granularity.ROW


def mx(kernel: Kernel) -> bool:
    """Scales that are powers of two."""
    return kernel.spec.scale.format.powers_of_two


def e4m3_scales(kernel: Kernel) -> bool:
    """Scales with a mantissa."""
    return not mx(kernel)


def e2m1(kernel: Kernel) -> bool:
    """Four-bit elements."""
    return kernel.codec.format.bits == 4


def eight_bit(kernel: Kernel) -> bool:
    """Eight-bit elements."""
    return kernel.codec.format.bits == 8


def one_row(kernel: Kernel) -> bool:
    """Blocks of one row."""
    return kernel.block.rows == 1


def several_rows(kernel: Kernel) -> bool:
    """Square blocks."""
    return kernel.block.rows > 1


def turns(kernel: Kernel) -> bool:
    """Return a Hadamard transform."""
    return kernel.spec.hadamard is not None


def searches(kernel: Kernel) -> bool:
    """Two candidates for each block."""
    return kernel.search is not None


def stochastic(kernel: Kernel) -> bool:
    """Random bits decide."""
    return kernel.spec.stochastic


def other_than(codec: str, field: str, value: Any) -> When:
    """Return a codec that does not do so already."""
    return lambda kernel: getattr(getattr(kernel, codec), field) is not value


def both(*tests: When) -> When:
    """All of the conditions."""
    return lambda kernel: all(test(kernel) for test in tests)


# Roundings to narrower types, held as float32


def to_float16(x: Floats) -> Floats:
    """Round to float16."""
    return x.astype(np.float16).astype(F)


to_bfloat16 = narrow_bfloat16


def cut_bfloat16(x: Floats) -> Floats:
    """Truncate to bfloat16: drop the lower half of the bits."""
    return (np.ascontiguousarray(x, F).view(np.uint32) & np.uint32(0xFFFF0000)).view(F)


def to_tf32(x: Floats) -> Floats:
    """Truncate to ten bits of mantissa."""
    return (np.ascontiguousarray(x, F).view(np.uint32) & np.uint32(0xFFFFE000)).view(F)


NARROW: tuple[tuple[str, str, Callable[[Floats], Floats]], ...] = (
    ("bf16", "rounded to bfloat16", to_bfloat16),
    ("fp16", "rounded to float16", to_float16),
    ("bf16-cut", "truncated to bfloat16", cut_bfloat16),
    ("tf32", "truncated to TF32", to_tf32),
)


def collect(*groups: Iterable[Mistake]) -> tuple[Mistake, ...]:
    """All mistakes of some groups."""
    return tuple(mistake for group in groups for mistake in group)
