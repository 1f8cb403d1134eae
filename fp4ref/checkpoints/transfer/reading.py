"""Reading a quantized weight of a checkpoint, from any convention, piece by piece."""

from __future__ import annotations

from typing import Any

import numpy as np

from fp4ref.checkpoints.access import blocks_across, pieces
from fp4ref.checkpoints.convention import Direction
from fp4ref.checkpoints.float_scales import FloatScales
from fp4ref.checkpoints.groups import TensorGroup
from fp4ref.checkpoints.origins import origin_of
from fp4ref.checkpoints.scalars import FLOATING
from fp4ref.checkpoints.transfer.scales import StoredScale, scale_of_record
from fp4ref.checkpoints.transfer.weights import Weight, cropped
from fp4ref.errors import DomainError
from fp4ref.files.tensors import DTYPES


def read_weight(group: TensorGroup, *, crop: bool = False) -> Weight:
    """Return the weight of a group, without the padding of its shape.

    crop: the padding is cut off whatever its values are.

    Errors: DomainError for a group that lacks a tensor, or whose shapes contradict each other.

    Rules: CNV-1, CNV-2, CNV-5, CNV-27.
    """
    convention = group.convention
    _require(group)
    own = origin_of(group)
    float_scales = None
    if not convention.scale:
        tensor = group.parts["scales"]
        float_scales = FloatScales(tensor.dtype, tensor.shape, tensor.bytes())
    weight = Weight(
        module=group.module,
        element=convention.element,
        scale=convention.scale,
        block=convention.block,
        shape=group.shape,
        read=lambda multiple: pieces(group, multiple),
        global_scale=_scale(group, "global_scale", convention.global_direction, own),
        input_scale=_scale(group, "input_scale", convention.input_direction, own),
        float_scales=float_scales,
        origin=own if "convention" in own else _described(group),
    )
    kept = own.get("shape")
    inner = tuple(kept) if kept and _is_inner(kept, group.shape) else group.unpadded
    return weight if inner == group.shape else cropped(weight, inner, zero=not crop)


def _is_inner(inner: Any, shape: tuple[int, ...]) -> bool:
    """Return True for a shape that only padding could have enlarged to another."""
    if not (isinstance(inner, list) and len(inner) == len(shape) and all(isinstance(size, int) for size in inner)):
        return False
    small = all(0 < one <= two for one, two in zip(inner[-2:], shape[-2:], strict=True))
    return small and tuple(inner[:-2]) == shape[:-2]


def _require(group: TensorGroup) -> None:
    """Refuse a group whose tensors do not fit each other. Rules: CKP-7, CKP-10."""
    convention = group.convention
    for name, role in convention.roles.items():
        if role.needed and name not in group.parts:
            raise DomainError("convert", f"{group.name} without {group.name}{role.suffix}", "that tensor", "CKP-7")
    if not group.shape:
        raise DomainError("convert", f"{group.names[0]} of one dimension", "a matrix", "CKP-10")
    for role_name, tensor in group.parts.items():
        if tensor.dtype not in convention.roles[role_name].dtypes:
            needed = " or ".join(convention.roles[role_name].dtypes)
            raise DomainError("convert", f"{tensor.name} of type {tensor.dtype}", needed, "CKP-9")
    if convention.struct or not convention.scale:
        return
    scales = group.parts["scales"]
    high, wide = group.layout.padded_shape(group.rows, blocks_across(group))
    if scales.count != group.matrices * high * wide:
        got = f"{scales.name} of shape {[*scales.shape]}"
        raise DomainError("convert", got, f"{group.matrices * high * wide} scales", "CKP-10")


def _described(group: TensorGroup) -> dict[str, Any]:
    """Return how a group is stored: what a reader of another convention cannot know."""
    parts = {role: {"dtype": tensor.dtype, "shape": [*tensor.shape]} for role, tensor in group.parts.items()}
    facts = {"facts": dict(group.facts)} if group.facts else {}
    return {"convention": group.convention.name, **facts, "parts": parts}


def _scale(group: TensorGroup, role: str, direction: Direction, own: dict[str, Any]) -> StoredScale | None:
    """Return a scale: the original's bits if the stored number is what they become here. Rules: CNV-3, CNV-64."""
    tensor = group.parts.get(role)
    if tensor is None or tensor.dtype not in FLOATING:
        return None
    values = np.frombuffer(tensor.bytes(), DTYPES[tensor.dtype].array).astype(np.float32)
    if values.size not in {1, group.matrices}:
        needed = f"one number, or one for each of {group.matrices} matrices"
        raise DomainError("convert", f"{tensor.name} with {values.size} numbers", needed, "CKP-10")
    stored = StoredScale(values, direction)
    kept = scale_of_record(own.get(role))
    if kept is not None and kept.values.size == values.size and kept.to(direction).values.tobytes() == values.tobytes():
        return kept
    return stored
