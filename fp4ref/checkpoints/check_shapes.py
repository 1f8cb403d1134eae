"""Checks of element types, shapes and block sizes."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Iterator

from fp4ref.checkpoints.check_presence import has_no_matrix, numberless
from fp4ref.checkpoints.convention import CONVENTIONS, FLOATS, Convention, declared_layout, square_grid
from fp4ref.checkpoints.findings import ERROR, LintFinding, finding
from fp4ref.checkpoints.fitting import declared_format
from fp4ref.checkpoints.groups import BIASES, Recognized, TensorGroup
from fp4ref.checkpoints.shards import StoredTensor
from fp4ref.files.tensors import DTYPES
from fp4ref.layout import LINEAR, TILED_128X4

SIZES = (8, 16, 32, 64, 128, 256)  # block sizes that a declaration may mean
BY_HIDDEN = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj")  # projections that read the hidden state
Complaint = tuple[str, str, str]  # code, the stored tensor's role, and what is wrong


def check_shapes(found: Recognized) -> Iterator[LintFinding]:
    """Yield one finding for each kind of contradiction, with all the tensors that have it.

    Rules: CKP-9, CKP-10, CKP-11.
    """
    grouped: dict[tuple[str, str], list[tuple[str, str]]] = {}
    if other := _other_bits(found):
        text = f"{found.groups[0].convention.name} is declared; the shapes are those of {other.name}"
        yield finding("config", ERROR, [*found.config.files, *(group.name for group in found.groups)], text)
        return
    sizes = {_stored_size(group) for group in found.groups} - {0}
    for group in found.groups:
        for code, role, message in () if has_no_matrix(group) else _complaints(found, group):
            if (code, role) == ("shape", "scales") and any(_has_blocks(group, size) for size in sizes):
                code = "group-size"  # noqa: PLW2901  as other groups, whose shapes leave no other reading
            kind = role if code in {"shape", "group-size", "scale-layout"} else message
            grouped.setdefault((code, kind), []).append((group.parts[role].name, message))
    for (code, _), entries in grouped.items():
        yield finding(code, ERROR, [name for name, _ in entries], entries[0][1])
    named = {name for entries in grouped.values() for name, _ in entries}
    yield from _biases([group for group in found.groups if not named & {*group.names} and sound(group)], found)


def _biases(groups: Collection[TensorGroup], found: Recognized) -> Iterator[LintFinding]:
    """Yield biases that have not one number for each row of their weight. Rules: CKP-10."""
    wrong = []
    for group in groups:
        high = group.convention.multiples[0]
        for suffix in BIASES:
            tensor = found.checkpoint.tensors.get(group.name + suffix)
            if tensor is None or tensor.dtype not in FLOATS or not tensor.shape:
                continue
            rows = tensor.shape[-1]
            if -(-rows // high) * high != group.rows:  # the number of experts is judged by itself
                wrong.append((tensor.name, f"{[*tensor.shape]} for weights of shape {[*group.shape]}"))
    if wrong:
        yield finding("shape", ERROR, [name for name, _ in wrong], wrong[0][1])


def _other_bits(found: Recognized) -> Convention | None:
    """Return the convention of other elements that gives every group the declared size; None if there is none."""
    hidden = found.config.geometry.get("hidden_size")
    if not found.config.files or not found.groups or any(map(sound, found.groups)):
        return None
    for other in found.members:
        groups = [dataclasses.replace(group, convention=other) for group in found.groups]
        reading = [group for group in groups if group.name.endswith(BY_HIDDEN) and group.shape]
        if other.bits != found.groups[0].convention.bits and reading and all(map(sound, groups)):
            return other if all(group.columns == hidden for group in reading) else None
    return None


def sound(group: TensorGroup) -> bool:
    """Return True if the bytes of a group can be read block by block."""
    complaints = [*_code_shape(group)]
    complaints += _scale_shape(group) if {"codes", "scales"} <= group.parts.keys() else []
    codes = group.parts.get("codes")
    return bool(group.shape) and not complaints and codes is not None and codes.dtype in group.convention.codes.dtypes


def _complaints(found: Recognized, group: TensorGroup) -> Iterator[Complaint]:
    """Yield what contradicts the convention in one group; a wrong layout hides the types that follow from it."""
    convention = group.convention
    shape = [*_code_shape(group)] or ([*_scale_shape(group)] if {"codes", "scales"} <= group.parts.keys() else [])
    codes = group.parts.get("codes")
    if any(code == "scale-layout" for code, *_ in shape) and _lacks_rows(found, group):
        rows = group.parts["scales"].shape[-2]
        text = f"{convention.codes.suffix} has {group.rows} rows: need {rows}, as its scales and other modules have"
        shape = [("shape", "codes", text)]
    if codes is not None and _has_other_items(codes, convention.codes.dtypes):
        shape = []  # the elements' type is wrong, so that their number of columns means nothing
    yield from shape
    for name, role in convention.roles.items():
        tensor = group.parts.get(name)
        if (
            tensor is None
            or tensor.dtype in role.dtypes
            or any(name == each and code == "scale-layout" for code, each, _ in shape)
        ):
            continue
        if name == "scales" and convention.has_exponents and tensor.dtype in FLOATS:
            continue  # the values say whether bytes were converted as numbers
        yield "dtype", name, f"{role.suffix} is {tensor.dtype}: need {' or '.join(role.dtypes)}"
    for name in ("global_scale", "input_scale"):
        tensor = group.parts.get(name)
        if tensor is not None and tensor.size != 1 and (tensor.size != group.matrices if group.shape else False):
            yield "shape", name, f"{getattr(convention, name).suffix} has shape {[*tensor.shape]}: need one number"
    if not group.complete:
        return
    yield from _declared_sizes(found, group, shape)


def _declared_sizes(found: Recognized, group: TensorGroup, shape: list[Complaint]) -> Iterator[Complaint]:
    """Yield declared block sizes that are not the stored one. shape: what is wrong with the stored shapes."""
    convention, codes = group.convention, group.parts.get("codes")
    size = group.facts.get("block_size")
    if isinstance(size, int) and convention.block[1] and size != convention.block[1]:
        if _is_of_another(found, group, declared_format(group.facts), size):
            return
        yield "group-size", "codes", f"the metadata declares blocks of {size}: stored are {convention.block[1]}"
    elif not shape and _declares_blocks(group) and (codes is None or codes.dtype in convention.codes.dtypes):
        declared = found.config.group_size_of(group.module)
        other = found.config.of(group.module) or ""
        if declared and declared != convention.block[1] and not _is_of_another(found, group, other, declared):
            yield "group-size", "codes", f"blocks of {declared} are declared: stored are {convention.block[1]}"
    if found.config.block and convention.block[0] > 1 and not shape and found.config.block != convention.block:
        yield "group-size", "codes", f"blocks of {found.config.block} are declared: stored are {convention.block}"


def _is_of_another(found: Recognized, group: TensorGroup, algorithm: str, size: int) -> bool:
    """Return True if a declared block size is that of another declared format, which is the contradiction."""
    named = [each for each in found.members if each.declares(algorithm)]
    return group.convention not in named and any(each.group_size == size for each in named)


def _lacks_rows(found: Recognized, group: TensorGroup) -> bool:
    """Return True if scales have the rows that tiles would, and that the modules have that differ in numbers only."""
    scales, pattern = group.parts["scales"].shape, numberless(group.name)
    alike = [each for each in found.groups if each is not group and numberless(each.name) == pattern and each.shape]
    return len(scales) > 1 and group.rows != scales[-2] and any(each.rows == scales[-2] for each in alike)


def _has_other_items(tensor: StoredTensor, dtypes: Collection[str]) -> bool:
    """Return True if a tensor's items are floating-point numbers, or of another width than those of these types."""
    widths = {DTYPES[each].bits for each in dtypes if each in DTYPES}
    return tensor.dtype in FLOATS or (tensor.dtype in DTYPES and DTYPES[tensor.dtype].bits not in widths)


def _declares_blocks(group: TensorGroup) -> bool:
    return group.convention.group_size > 0


def _code_shape(group: TensorGroup) -> Iterator[Complaint]:
    codes = group.parts.get("codes")
    if codes is not None and not group.shape:
        yield "shape", "codes", f"{group.convention.codes.suffix} has {len(codes.shape)} dimensions: need at least 2"
    elif codes is not None and group.convention.split and len(codes.shape) <= len(_scales_of(group)):
        text = f"{group.convention.codes.suffix} has shape {[*codes.shape]}"
        yield "shape", "codes", f"{text}: need an axis of blocks, beside scales of shape {[*_scales_of(group)]}"
    elif codes is not None and group.convention.split and _stored_block(group, codes) != group.convention.block[1]:
        text = f"blocks of {_stored_block(group, codes)} elements are stored: need {group.convention.block[1]}"
        yield "group-size", "codes", text
    elif codes is not None and codes.dtype in group.convention.codes.dtypes:
        high, wide = group.convention.multiples
        if group.rows % high or group.columns % wide:
            text = f"{group.convention.codes.suffix} has {group.rows} rows and {group.columns} columns"
            yield "shape", "codes", f"{text}: need multiples of {high} and {wide}"


def _scales_of(group: TensorGroup) -> tuple[int, ...]:
    """Return the shape of a group's stored scales; () if there are none."""
    return group.parts["scales"].shape if "scales" in group.parts else ()


def _stored_block(group: TensorGroup, codes: StoredTensor) -> int:
    """Return the number of elements of a block, of codes whose last axis is a block."""
    return codes.shape[-1] * group.convention.codes_per_item


def scale_shape(group: TensorGroup) -> tuple[int, ...]:
    """Return the shape that the convention gives the block scales of a group. Rules: CKP-10."""
    rows, columns = group.convention.block
    if group.convention.granularity == "square":
        return group.convention.float_scale_shape(group.shape)
    front = group.shape[:-2]
    high, wide = -(-group.rows // rows), -(-group.columns // columns)
    return (*front, *group.layout.padded_shape(high, wide))


def _scale_shape(group: TensorGroup) -> Iterator[Complaint]:
    """Yield what is wrong with the shape of the block scales: at most one thing."""
    convention, stored = group.convention, group.parts["scales"].shape
    if not group.shape:
        return
    rows, columns = convention.block
    if not columns:
        yield from _float_scale_shape(group)
        return
    expected = scale_shape(group)
    if stored == expected or (convention.layout_of is not declared_layout and math.prod(stored) == math.prod(expected)):
        return
    high, wide = -(-group.rows // rows), -(-group.columns // columns)
    front = group.shape[:-2]
    tiled, linear = (*front, *TILED_128X4.padded_shape(high, wide)), (*front, high, wide)
    ones = convention.scales is not None and convention.scales.shape != ()  # of the convention beside these sizes
    if ones and (stored == linear or math.prod(stored) == math.prod(linear) == 1):
        return
    suffix = convention.scales.suffix if convention.scales else ""
    told = f"{suffix} has shape {[*stored]}"
    if len(stored) == 1 and stored[0] in {math.prod(tiled), math.prod(linear)} and rows == 1:
        yield "scale-layout", "scales", f"{told}: need {[*expected]}; one dimension is what a tiled buffer leaves"
    elif stored in {tiled, linear} and rows == 1:
        other = TILED_128X4 if stored == tiled else LINEAR
        yield "scale-layout", "scales", f"{told}: need {[*expected]}; this is the shape of layout {other.name}"
    elif size := _stored_size(group):
        yield "group-size", "scales", f"{told}: need {[*expected]}; these are blocks of {size}"
    elif (turned := _turned(group)) and scale_shape(turned) == stored:
        text = f"{convention.codes.suffix} has shape {[*group.parts['codes'].shape]}"
        yield "shape", "codes", f"{text}: transposed, because scales of shape {[*stored]} are those of the transpose"
    else:
        yield "shape", "scales", f"{told}: need {[*expected]} for elements of shape {[*group.shape]}"


def _turned(group: TensorGroup) -> TensorGroup | None:
    """Return a group with its stored matrix of elements transposed."""
    codes = group.parts["codes"]
    if len(codes.shape) != 2:
        return None
    return dataclasses.replace(
        group, parts={**group.parts, "codes": dataclasses.replace(codes, shape=codes.shape[::-1])}
    )


def _stored_size(group: TensorGroup) -> int:
    """Return the size of the blocks that the shape of a group's scales leaves no doubt of; 0 if there is none."""
    rows, columns = group.convention.block
    scales = group.parts.get("scales")
    if scales is None or not group.shape or not columns or len(scales.shape) != len(scale_shape(group)):
        return 0
    both = rows == 1 or all(a != b for a, b in zip(scales.shape[-2:], scale_shape(group)[-2:], strict=True))
    return next((size for size in SIZES if both and size != columns and _has_blocks(group, size)), 0)


def _has_blocks(group: TensorGroup, size: int) -> bool:
    """Return True if the scales of a group have the shape that blocks of another size give them."""
    stored, rows = group.parts["scales"].shape, group.convention.block[0]
    if stored[:-2] != group.shape[:-2] or min(stored) < 1:
        return False
    return stored[-2:] == (-(-group.rows // (size if rows > 1 else 1)), -(-group.columns // size))


def _float_scale_shape(group: TensorGroup) -> Iterator[Complaint]:
    """Check the scale of a whole tensor, of its rows, or of square blocks."""
    stored, shape = group.parts["scales"].shape, group.shape
    count = math.prod(stored)
    grids = {square_grid(each.block, shape) for each in CONVENTIONS.values() if each.granularity == "square"}
    allowed = {(), (1,), (1, 1), shape[:-2], shape[:-1], (*shape[:-1], 1), (*shape[:-2], 1, 1), *grids}
    if stored not in allowed and count != 1:
        suffix = group.convention.scales.suffix if group.convention.scales else ""
        yield "shape", "scales", f"{suffix} has shape {[*stored]}: need one number, or one for each of {shape[-2]} rows"
