"""Conventions: in which form a producer stores a quantized tensor in a file, as values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

from fp4ref.catalogue import add_kind
from fp4ref.checkpoints.configuration import UNDECLARED, Configuration, Facts
from fp4ref.errors import DomainError
from fp4ref.files.tensors import DTYPES, is_packed
from fp4ref.formats import FORMATS
from fp4ref.layout import LINEAR, Layout
from fp4ref.names import Names, load_extensions
from fp4ref.packings import LOW_FIRST

FLOATS = ("F32", "BF16", "F16", "F64")
ELEMENT_BITS = (4, 8)  # of formats that a convention may name
FP8_TYPES = ("F8_E4M3", "F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ")
CODED = {
    "U8",
    "I8",
    "U32",
    "MXFP4",
    "NVFP4",
    *FP8_TYPES,
    *(name for name, stored in DTYPES.items() if is_packed(name) and stored.bits in ELEMENT_BITS),
}  # types in which quantized elements are stored


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


def part_of_block(block: tuple[int, int]) -> str:
    """Return the part of a weight that a float scale of a block is for: "tensor", "row" or "square".

    block: rows and columns, (0, 0) for the tensor and (1, 0) for a row.
    """
    return {(0, 0): "tensor", (1, 0): "row"}.get(block, "square")


def square_grid(block: tuple[int, int], shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the numbers of squares of each matrix, [..., down, across], or of its rows, [..., rows]."""
    *front, rows, columns = shape
    high, wide = block
    return (*front, -(-rows // high), *((-(-columns // wide),) if wide else ()))


class Misread(NamedTuple):
    """Scale bytes that a convention's readers decode otherwise than the format says, and to what."""

    bytes: frozenset[int] = frozenset()
    meaning: str = ""


AS_THE_FORMAT = Misread()


class StoredRole(NamedTuple):
    """A tensor of a group: what follows the stem of its name, and the element types that it may have.

    dtypes: a writer takes the first. needed: false if the convention allows that it is absent. own: no other family
    stores this suffix with these types. shape: that of a scale that is one number; of float scales of rows and squares,
    the sizes that follow each of their dimensions.
    """

    suffix: str
    dtypes: tuple[str, ...]
    needed: bool = True
    own: bool = False
    shape: tuple[int, ...] = ()


def declared_layout(convention: Convention, facts: Facts) -> Layout:
    """Return the layout that a convention has for all its tensors."""
    return convention.layout


@dataclass(frozen=True, kw_only=True)
class Convention:
    """The form in which a producer stores one kind of quantized tensor.

    name: FAMILY.FORMAT; a checkpoint belongs to one family. element, scale: formats; scale is "" for float numbers.
    block: rows and columns that share a scale, (0, 0) for the whole tensor, (1, 0) for a row. stem: the name that
    suffixes follow, made of the module's. codes: the role of the elements; codes_per_item: elements in one item of its
    last axis; split: the last two axes are blocks and bytes of a block. struct: codes and scales are in one tensor.
    others: suffixes of legal companions that are not judged. layout_of: the layout of a tensor's scales from its
    attributes. multiples: rows and columns are padded to these before packing. zero_block: scale byte and code of a
    block of zeros. misread: scale bytes that its readers decode otherwise than the format. declared: the algorithms
    by which configurations name it, in the writer's spelling first; compared without regard to case. static_inputs:
    those of them that require input scales. settings: of its weights, and of its inputs, in `config_groups`. fused:
    consumers need the members of these sets to have equal scales. specs: profiles that reproduce the producer's
    bytes, best first. turned: the source stores matrices of experts transposed. sized: only a declared block size
    chooses it. variant_of: the convention whose names another producer replaced by these. configuration: the files
    beside it.

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
    stem: str = "{module}"
    codes_per_item: int = 2
    split: bool = False
    struct: bool = False
    packing: Layout = LOW_FIRST
    layout: Layout = LINEAR
    layout_of: Callable[[Convention, Facts], Layout] = declared_layout
    multiples: tuple[int, int] = (1, 1)
    global_direction: Direction = NO_SCALE
    input_direction: Direction = NO_SCALE
    zero_block: tuple[int, int] | None = None
    misread: Misread = AS_THE_FORMAT
    no_negative_zero: bool = False
    declared: tuple[str, ...] = ()
    static_inputs: tuple[str, ...] = ()
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, hash=False)
    fused: tuple[tuple[str, ...], ...] = ()
    specs: tuple[str, ...] = ()
    turned: bool = False
    sized: bool = False
    variant_of: str = ""
    configuration: Configuration = UNDECLARED
    date: str = "2026-11"

    @property
    def family(self) -> str:
        """The producer's name, before the first dot."""
        return self.name.partition(".")[0]

    @property
    def has_exponents(self) -> bool:
        """True if the bytes of block scales are exponents, in whichever format of powers of two."""
        return bool(self.scale) and FORMATS[self.scale].powers_of_two

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

    def names(self, module: str) -> dict[str, str]:
        """Return the names under which a module's tensors are stored, by role. Rules: CKP-28."""
        stem = self.stem.format(module=module)
        return {name: stem + role.suffix for name, role in self.roles.items()}

    def module(self, stem: str) -> str:
        """Return the module of a stem."""
        return stem.removesuffix(self.stem.partition("{module}")[2])

    def declares(self, algorithm: str) -> bool:
        """Return True if configurations name this convention so."""
        return algorithm.lower() in {each.lower() for each in self.declared}

    def __post_init__(self) -> None:
        for what, name, fits in (("elements", self.element, _is_element), ("scales", self.scale, _is_scale)):
            if not fits(name):
                got = f"convention {self.name} with {what} {name!r}"
                known = ", ".join(filter(fits, FORMATS))
                raise DomainError("lint", got, f"a registered format of 4 or 8 bits: {known}", "CKP-28")

    @property
    def group_size(self) -> int:
        """Columns that share a scale in one row; 0 where a scale is for whole rows, squares or the tensor."""
        rows, columns = self.block
        return columns if rows == 1 else 0

    @property
    def granularity(self) -> str:
        """The part of a weight that a float scale is for: "tensor", "row" or "square"; "" for scales of a format."""
        return "" if self.scale else part_of_block(self.block)

    def float_scale_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape that float scales of rows or squares have for a weight of some shape. Rules: CKP-10."""
        front, sizes = shape[:-2], square_grid(self.block, shape)[len(shape) - 2 :]
        after = self.scales.shape if self.scales else ()
        return (*front, *(size for each in sizes for size in (each, *after)))

    @property
    def bits(self) -> int:
        """Bits of an element."""
        return FORMATS[self.element].bits

    @property
    def signed_scales(self) -> bool:
        """True if scale bytes have a sign bit, as those of E4M3; False where there are none."""
        return bool(self.scale) and FORMATS[self.scale].signed


def _is_element(name: str) -> bool:
    """Return True for a format of sign and magnitude whose codes fill a byte or half of one."""
    form = FORMATS.get(name)
    return form is not None and form.bits in ELEMENT_BITS and form.signed and not form.complement


def _is_scale(name: str) -> bool:
    """Return True for a format of bytes, and for none."""
    if not name:
        return True  # without a lookup, which would import what users add before these conventions are complete
    form = FORMATS.get(name)
    return form is not None and form.bits == 8 and not form.complement


CONVENTIONS: Names[Convention] = Names("convention")
add_kind(Convention, CONVENTIONS)


def families() -> dict[str, list[Convention]]:
    """Return the conventions by family, those of installed distributions included."""
    load_extensions()
    found: dict[str, list[Convention]] = {}
    for each in CONVENTIONS.values():
        found.setdefault(each.family, []).append(each)
    return found
