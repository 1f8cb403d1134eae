"""Repairs: how `fp4ref convert --repair CODE` mends the tensors that a finding names, as values."""

from __future__ import annotations

import shlex
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from fp4ref.catalogue import add_kind
from fp4ref.checkpoints import bounds
from fp4ref.checkpoints.access import WeightPiece, swapped
from fp4ref.checkpoints.check_shapes import scale_shape
from fp4ref.checkpoints.convention import Convention
from fp4ref.checkpoints.findings import CODES
from fp4ref.checkpoints.groups import Recognized, TensorGroup
from fp4ref.checkpoints.stored_layout import stored_layout
from fp4ref.checkpoints.transfer.weights import Weight
from fp4ref.errors import DomainError
from fp4ref.formats import CUDA_E4M3
from fp4ref.layout import Layout
from fp4ref.names import Names

POSITIVE = 127  # E4M3 bytes below the NaN
_AGAIN = "to quantize the source once more"


def _same_group(group: TensorGroup) -> TensorGroup:
    return group


def _same_weights(found: Recognized, weights: Sequence[Weight]) -> list[Weight]:
    return [*weights]


@dataclass(frozen=True)
class Repair:
    """A way to mend what a finding names.

    name: the code of the finding, or vendor.CODE of a third party. meaning: the tensors afterwards, in one sentence.
    regroup: how a group is to be read instead. mend: the weights instead of those that are named, in the same order.
    drops: the named tensors are left out. A repair with none of these is made by writing: configuration, for example,
    is always made from the tensors.

    Rules: CNV-11.
    """

    name: str
    meaning: str
    regroup: Callable[[TensorGroup], TensorGroup] = _same_group
    mend: Callable[[Recognized, Sequence[Weight]], list[Weight]] = _same_weights
    drops: bool = False
    crops: bool = False
    refuses: bool = False

    def __post_init__(self) -> None:
        if self.code not in CODES:
            raise DomainError("repair", f"unknown code {self.code!r}", f"one of {', '.join(CODES)}", "CNV-11")

    @property
    def code(self) -> str:
        """The code of the findings whose tensors it mends."""
        return self.name.rpartition(".")[2]


REPAIRS: Names[Repair] = Names("repair")
add_kind(Repair, REPAIRS)


def repair_command(path: str, codes: Iterable[str], *, source: str = "", convention: str = "") -> str:
    """Return the command that repairs findings by their codes.

    source, convention: the options of `fp4ref lint` that the findings rest on.

    Rules: CNV-54, CNV-68.
    """
    words = ["fp4ref", "convert", path, "REPAIRED", *(word for code in codes for word in ("--repair", code))]
    words += ["--source", source] if source else []
    words += ["--convention", convention] if convention else []
    return shlex.join(words)


def _retiled(group: TensorGroup) -> TensorGroup:
    """Return a group whose scales are read in the layout that their bytes are in, whatever it declares."""
    convention, scales = group.convention, group.parts["scales"]
    found = stored_layout(group)

    def layout_of(_: Convention, __: object) -> Layout:
        return found

    role = convention.scales
    assert role is not None
    dtype = scales.dtype if scales.dtype in role.dtypes else role.dtypes[0]
    parts = {**group.parts, "scales": replace(scales, dtype=dtype, shape=scale_shape(group))}
    return replace(group, convention=replace(convention, layout_of=layout_of), parts=parts)


def _swapped(found: Recognized, weights: Sequence[Weight]) -> list[Weight]:
    """Exchange the two codes of each byte."""

    def reader(weight: Weight) -> Callable[[int], Iterator[WeightPiece]]:
        return lambda multiple: (piece._replace(packed=swapped(piece.packed)) for piece in weight.read(multiple))

    return [replace(weight, read=reader(weight)) for weight in weights]


def _without_nan(found: Recognized, weights: Sequence[Weight]) -> list[Weight]:
    """Give blocks of zeros whose scale is NaN the producer's scale for them; refuse others, whose scale is lost."""
    usual = {group.module: (group.convention.zero_block or (0,))[0] for group in found.groups}

    def mended(weight: Weight, piece: WeightPiece) -> WeightPiece:
        if piece.scales is None:
            raise DomainError("repair scale-nan", f"{weight.module}: a float scale that is NaN", _AGAIN, "CNV-74")
        wrong = np.isnan(bounds.values(weight.scale))[piece.scales]
        width = weight.block[1] * weight.bits // 8
        mask = 0x77 if weight.bits == 4 else 0x7F  # a zero of either sign
        codes = np.zeros((len(piece.packed), wrong.shape[1] * width), np.uint8)
        codes[:, : piece.packed.shape[1]] = piece.packed & mask
        full = codes.reshape(len(codes), -1, width).any(-1)
        if (lost := int((wrong & full).sum())) > 0:
            got = f"{weight.module}: {lost} blocks with elements that are not zero have a NaN scale"
            raise DomainError("repair scale-nan", got, _AGAIN, "CNV-74")
        return piece._replace(scales=np.where(wrong, np.uint8(usual.get(weight.module, 0)), piece.scales))

    def reader(weight: Weight) -> Callable[[int], Iterator[WeightPiece]]:
        return lambda multiple: (mended(weight, piece) for piece in weight.read(multiple))

    return [replace(weight, read=reader(weight)) for weight in weights]


def members_of(found: Recognized, weights: Sequence[Weight]) -> list[list[Weight]]:
    """Return the fused sets among some weights: those of one parent whose names one set of the convention has."""
    fused = {group.module: group.convention.fused for group in found.groups}
    homes: dict[tuple[str, tuple[str, ...]], list[Weight]] = {}
    for weight in weights:
        head, _, last = weight.module.rpartition(".")
        for members in fused.get(weight.module, ()):
            if last in members:
                homes.setdefault((head, members), []).append(weight)
    return [each for each in homes.values() if len(each) > 1]


def _rescaled(found: Recognized, weights: Sequence[Weight]) -> list[Weight]:
    """Give the members of each fused set the largest of their global scales, and the largest input scale.

    Codes stay; each block scale is multiplied by the quotient of the global scales and rounded to E4M3 once.

    Rules: CNV-12.
    """
    result = {weight.module: weight for weight in weights}
    for members in members_of(found, weights):
        for role in ("global_scale", "input_scale"):
            scales = {each.module: getattr(result[each.module], role) for each in members}
            single = [scale for scale in scales.values() if scale is not None and scale.values.size == 1]
            if len(single) < len(scales) or not all(scale.usable() for scale in single):
                continue
            largest = max(single, key=lambda scale: scale.multipliers()[0])
            for each in members:
                weight = result[each.module]
                if role == "input_scale":
                    result[each.module] = replace(weight, input_scale=largest)
                else:
                    ratio = scales[each.module].multipliers()[0] / largest.multipliers()[0]
                    result[each.module] = rescaled(replace(weight, global_scale=largest), ratio)
    return [result[weight.module] for weight in weights]


def rescaled(weight: Weight, ratio: Fraction) -> Weight:
    """Return a weight whose E4M3 block scales are multiplied by a ratio; its remarks have the exact error.

    Rules: CNV-55, CNV-62.
    """
    if ratio == 1 or weight.scale != "e4m3":
        return weight
    table, errors = scale_table(ratio)
    used = np.zeros(256, np.int64)

    def read(multiple: int) -> Iterator[WeightPiece]:
        used[:] = 0
        for piece in weight.read(multiple):
            assert piece.scales is not None
            used[:] += np.bincount(piece.scales.reshape(-1), minlength=256)
            yield piece._replace(scales=table[piece.scales])

    def remarks() -> list[str]:
        moved = [byte for byte in np.flatnonzero(used) if errors[byte]]
        worst = max((errors[byte] for byte in moved), default=Fraction(0))
        count = int(sum(used[byte] for byte in moved))
        text = (
            f"{weight.module}: {count} of {int(used.sum())} blocks rounded, relative error at most {float(worst):.6g}"
        )
        return [*weight.remarks(), text]

    return replace(weight, read=read, remarks=remarks)


def scale_table(ratio: Fraction) -> tuple[np.ndarray, list[Fraction]]:
    """Return the E4M3 byte of each byte's value times a ratio, ties to even, and the relative error of each."""
    values = [Fraction(float(value)) for value in CUDA_E4M3.decode(np.arange(POSITIVE, dtype=np.uint8))]
    table, errors = np.arange(256, dtype=np.uint8), [Fraction(0)] * 256
    for byte in range(1, POSITIVE):
        exact = values[byte] * ratio
        above = min(bisect_left(values, exact), POSITIVE - 1)
        best = min((max(above - 1, 0), above), key=lambda code: (abs(values[code] - exact), code % 2))
        table[byte], table[byte | 0x80] = best, best | 0x80
        errors[byte] = errors[byte | 0x80] = abs(values[best] / exact - 1)
    return table, errors


for _repair in (
    Repair("nibble-order", "The two elements of each byte are exchanged.", mend=_swapped),
    Repair("scale-layout", "Scales are read in the layout that their bytes are in.", regroup=_retiled),
    Repair("padding", "Elements and scales outside the logical shape are zero.", crops=True),
    Repair(
        "scale-nan",
        "Blocks of zeros whose scale was NaN have that of other blocks of zeros.",
        mend=_without_nan,
        refuses=True,
    ),
    Repair("fused-global-scale", "Each fused set has one global and one input scale, the largest.", mend=_rescaled),
    Repair("orphan-tensor", "Tensors that belong to no weight are left out.", drops=True),
    Repair("config", "The configuration is made from the tensors."),
    Repair("exclude-list", "The list of excluded modules is made from the tensors."),
    Repair("group-size", "The declared block size is that of the tensors."),
):
    REPAIRS.register(_repair, "this project")
