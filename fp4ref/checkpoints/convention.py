"""Conventions: in which form a producer stores a quantized tensor in a file, as values."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from fp4ref.catalogue import add_kind
from fp4ref.errors import DomainError
from fp4ref.formats import FORMATS
from fp4ref.layout import LINEAR, Layout
from fp4ref.names import Names
from fp4ref.packings import LOW_FIRST

FLOATS = ("F32", "BF16", "F16", "F64")


class ScaleWay(StrEnum):
    """The relation of a stored scale to the amax that it was made from."""

    NONE = "none"  # nothing is stored
    MULTIPLIER = "multiplier"  # amax / constant; decoded values are multiplied by it
    DIVISOR = "divisor"  # constant / amax; decoded values are divided by it
    AMAX = "amax"  # the amax itself


class Direction(NamedTuple):
    """The direction of a stored scale, with its constant."""

    way: ScaleWay = ScaleWay.NONE
    constant: float = 1.0

    def amax(self, stored: float) -> float:
        """Return the amax that a stored number implies. Rules: CKP-20."""
        if self.way is ScaleWay.MULTIPLIER:
            return stored * self.constant
        if self.way is ScaleWay.DIVISOR:
            return self.constant / stored if stored else float("inf")
        return stored

    def stored(self, amax: float) -> float:
        """Return the number that is stored for an amax. Rules: CKP-20."""
        if self.way is ScaleWay.MULTIPLIER:
            return amax / self.constant
        if self.way is ScaleWay.DIVISOR:
            return self.constant / amax if amax else float("inf")
        return amax

    def multiplier(self, stored: float) -> float:
        """Return the factor of decoded values. Rules: CKP-20."""
        if self.way is ScaleWay.NONE:
            return 1.0
        if self.way is ScaleWay.DIVISOR:
            return 1 / stored if stored else float("inf")
        return stored if self.way is ScaleWay.MULTIPLIER else stored / self.constant


NO_SCALE = Direction()
ELEMENTS, SCALES = ("e2m1", "e4m3"), ("", "e4m3", "e8m0")  # formats that the checks of bytes have bounds for


class StoredRole(NamedTuple):
    """A tensor of a group: what follows the module's name, and the element types that it may have.

    needed: false if the convention allows that it is absent.
    """

    suffix: str
    dtypes: tuple[str, ...]
    needed: bool = True


@dataclass(frozen=True, kw_only=True)
class Convention:
    """The form in which a producer stores one kind of quantized tensor.

    name: FAMILY.FORMAT; a checkpoint belongs to one family. element, scale: formats; scale is "" for float numbers.
    block: rows and columns that share a scale, (0, 0) for the whole tensor or a row. codes: the role of the elements;
    codes_per_item: elements in one item of its last axis; split: the last two axes are blocks and bytes of a block.
    struct: codes and scales are stored in one tensor. others: suffixes of legal companions that are not judged.
    multiples: rows and columns are padded to these before packing. zero_block: scale byte and code of a block of zeros.
    declared: the algorithms, in lower case, by which configurations name it. fused: consumers need the members of these
    sets to have equal scales. specs: profiles that reproduce the producer's bytes, best first. static_input: the
    input scale is required.

    Rules: CKP-28.
    """

    name: str
    element: str
    scale: str
    block: tuple[int, int]
    codes: StoredRole
    scales: StoredRole | None = None
    global_scale: StoredRole | None = None
    input_scale: StoredRole | None = None
    others: tuple[str, ...] = ()
    codes_per_item: int = 2
    split: bool = False
    struct: bool = False
    packing: Layout = LOW_FIRST
    layout: Layout = LINEAR
    multiples: tuple[int, int] = (1, 1)
    global_direction: Direction = NO_SCALE
    input_direction: Direction = NO_SCALE
    zero_block: tuple[int, int] | None = None
    no_negative_zero: bool = False
    declared: tuple[str, ...] = ()
    fused: tuple[tuple[str, ...], ...] = ()
    specs: tuple[str, ...] = ()
    static_input: bool = False
    per_tensor_layout: bool = False
    date: str = "2026-11"

    @property
    def family(self) -> str:
        """The producer's name, before the first dot."""
        return self.name.partition(".")[0]

    @property
    def roles(self) -> dict[str, StoredRole]:
        """The roles of a group's tensors by their names."""
        named = {
            "codes": self.codes,
            "scales": self.scales,
            "global_scale": self.global_scale,
            "input_scale": self.input_scale,
        }
        return {name: role for name, role in named.items() if role is not None}

    def __post_init__(self) -> None:
        for what, name, read in (("elements", self.element, ELEMENTS), ("scales", self.scale, SCALES)):
            if name not in read:
                got = f"convention {self.name} with {what} {name!r}"
                raise DomainError("lint", got, f"of {', '.join(filter(None, read))}, whose bytes are judged", "CKP-28")

    @property
    def bits(self) -> int:
        """Bits of an element."""
        return FORMATS[self.element].bits

    @property
    def signed_scales(self) -> bool:
        """True if scale bytes have a sign bit, as those of E4M3; False where there are none."""
        return bool(self.scale) and FORMATS[self.scale].signed


CONVENTIONS: Names[Convention] = Names("convention")
add_kind(Convention, CONVENTIONS)


def families() -> dict[str, list[Convention]]:
    """Return the conventions by family."""
    found: dict[str, list[Convention]] = {}
    for each in CONVENTIONS.values():
        found.setdefault(each.family, []).append(each)
    return found
