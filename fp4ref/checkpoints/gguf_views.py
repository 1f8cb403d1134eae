"""A GGUF of llama.cpp's names, read as the model on the Hub that it was made of: views of its tensors.

Rules: CNV-42.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fp4ref.checkpoints.checkpoint import Checkpoint
from fp4ref.checkpoints.gguf_names import ARCHITECTURES, ROPE_FACTORS, GgufArchitecture, RowOrder, is_number, row_axis
from fp4ref.checkpoints.shards import StoredTensor
from fp4ref.errors import FileError
from fp4ref.files.tensors import DTYPES, quoted, shown

DTYPES_KEPT = "fp4ref.dtypes"  # the key of metadata that keeps the element types of what became float32
Bytes = NDArray[np.uint8]


@dataclass(frozen=True)
class TensorView(StoredTensor):
    """A tensor whose rows are stored in another order, or in two tensors.

    parts: the stored tensors. together: rows that are reordered among themselves. row: bytes of a row. rearranged: the
    rows of each group, [groups, rows, bytes], of those of every part.
    """

    parts: tuple[StoredTensor, ...] = ()
    together: int = 1
    row: int = 1
    rearranged: Callable[[list[Bytes]], Bytes] = lambda parts: parts[0]

    def bytes(self, begin: int = 0, count: int | None = None) -> bytes:
        """Return some of the tensor's bytes."""
        count = self.count - begin if count is None else count
        if not count:
            return b""
        size = self.together * self.row
        first, last = begin // size, -(-(begin + count) // size)
        share = size // len(self.parts)
        groups = [
            np.frombuffer(each.bytes(first * share, (last - first) * share), np.uint8).reshape(
                last - first, -1, self.row
            )
            for each in self.parts
        ]
        whole = self.rearranged(groups).reshape(-1)
        return whole[begin - first * size : begin - first * size + count].tobytes()


@dataclass(frozen=True)
class NarrowView(StoredTensor):
    """A tensor of float32 that has the values of a narrower type, read in that type."""

    part: StoredTensor | None = None

    def bytes(self, begin: int = 0, count: int | None = None) -> bytes:
        """Return some of the tensor's bytes. Errors: FileError for a value that the narrower type has not."""
        assert self.part is not None
        count = self.count - begin if count is None else count
        kind = DTYPES[self.dtype].array
        first, last = begin // kind.itemsize, -(-(begin + count) // kind.itemsize)
        wide = np.frombuffer(self.part.bytes(4 * first, 4 * (last - first)), np.float32)
        narrow = wide.astype(kind)
        if (narrow.astype(np.float32).view(np.uint32) != wide.view(np.uint32)).any():
            got = f"{quoted(self.part.name)} with values that {self.dtype}, its type in {DTYPES_KEPT}, has not"
            raise FileError(f"read {shown(self.shard.path)}", got, "the values that were written", "CNV-42")
        return narrow.tobytes()[begin - first * kind.itemsize :][:count]


class HubView(NamedTuple):
    """A checkpoint as on the Hub. stored: the names in GGUF of each tensor."""

    checkpoint: Checkpoint
    stored: dict[str, tuple[str, ...]]


def as_on_the_hub(checkpoint: Checkpoint) -> HubView | None:
    """Return a checkpoint with the Hub's names, orders and types; None if it is no GGUF of a known architecture.

    Rules: CNV-42.
    """
    kind = checkpoint.metadata.get("general.architecture")
    names = checkpoint.tensors.keys() - {ROPE_FACTORS}
    for each in ARCHITECTURES.values():
        if checkpoint.kind == ".gguf" and each.name == kind and names and all(map(each.hub_name, names)):
            return _viewed(checkpoint, each)
    return None


def _viewed(checkpoint: Checkpoint, architecture: GgufArchitecture) -> HubView | None:
    """Return the view; None if the numbers of heads do not fit the tensors."""
    kept = _kept(checkpoint)
    found: list[tuple[StoredTensor, tuple[str, ...]]] = []
    halves: dict[str, dict[RowOrder, StoredTensor]] = {}
    for name, tensor in checkpoint.tensors.items():
        hub, order = architecture.hub_name(name) or ("", RowOrder.SAME)
        if not hub:
            continue
        plain = _narrowed(tensor, kept.get(name, ""))
        if "{e}" in hub:
            found += [(each, (name,)) for each in _experts(tensor, hub)]
        elif order in {RowOrder.EVEN, RowOrder.ODD}:
            halves.setdefault(hub, {})[order] = plain
        elif order is RowOrder.SAME or is_number(name):
            found.append((replace(plain, name=hub), (name,)))
        else:
            together = _head(checkpoint, architecture, tensor, order)
            if not together:
                return None
            found.append((_view([plain], hub, plain.shape, together, _halved), (name,)))
    for hub, both in halves.items():
        parts = [both[order] for order in (RowOrder.EVEN, RowOrder.ODD) if order in both]
        if len({(each.dtype, each.shape) for each in parts}) != 1 or len(parts) != 2:
            return None
        stored = tuple(each.name for each in parts)
        if is_number(stored[0]):
            if parts[0].bytes() != parts[1].bytes():  # one tensor of the Hub has one global scale
                return None
            found.append((replace(parts[0], name=hub), stored))
            continue
        shape, axis = [*parts[0].shape], row_axis(stored[0])
        if len(shape) < -axis:
            return None
        shape[axis] *= 2
        found.append((_view(parts, hub, tuple(shape), 2, _joined), stored))
    tensors = {tensor.name: tensor for tensor, _ in found}
    names = {tensor.name: stored for tensor, stored in found}
    return HubView(replace(checkpoint, tensors=tensors), names)


def _kept(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return the element types that the metadata keeps, which are claims."""
    try:
        value = json.loads(checkpoint.metadata.get(DTYPES_KEPT, "{}"))
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _narrowed(tensor: StoredTensor, dtype: Any) -> StoredTensor:
    """Return a tensor in the type that it had before it was widened."""
    if tensor.dtype != "F32" or dtype not in {"BF16", "F16"}:
        return tensor
    return NarrowView(tensor.name, dtype, tensor.shape, tensor.shard, tensor.start, tensor.count // 2, part=tensor)


def _experts(tensor: StoredTensor, hub: str) -> Iterator[StoredTensor]:
    """Yield the tensors of a stack."""
    if not tensor.shape or not tensor.shape[0]:
        return
    count, size = tensor.shape[0], tensor.count // tensor.shape[0]
    for number in range(count):
        name, start = hub.replace("{e}", str(number)), tensor.start + number * size
        yield StoredTensor(name, tensor.dtype, tensor.shape[1:] or (1,), tensor.shard, start, size)


def _head(checkpoint: Checkpoint, architecture: GgufArchitecture, tensor: StoredTensor, order: RowOrder) -> int:
    """Return the rows of a head; 0 if the metadata does not tell, or does not fit."""
    key = "attention.head_count" if order is RowOrder.QUERY else "attention.head_count_kv"
    text = checkpoint.metadata.get(f"{architecture.name}.{key}", "")
    axis = row_axis(tensor.name)
    if not text.isdecimal() or len(text) > 9 or int(text) == 0 or len(tensor.shape) < -axis:
        return 0
    rows, heads = tensor.shape[axis], int(text)
    return rows // heads if rows % (2 * heads) == 0 else 0


def _view(
    parts: list[StoredTensor],
    name: str,
    shape: tuple[int, ...],
    together: int,
    rearranged: Callable[[list[Bytes]], Bytes],
) -> StoredTensor:
    first, count = parts[0], sum(each.count for each in parts)
    row = count // max(math.prod(shape if row_axis(first.name) == -1 else shape[:-1]), 1)
    return TensorView(
        name, first.dtype, shape, first.shard, first.start, count, tuple(parts), together, row, rearranged
    )


def _halved(groups: list[Bytes]) -> Bytes:
    """Return rows that alternate as those of two halves."""
    count, rows, width = groups[0].shape
    return np.ascontiguousarray(groups[0].reshape(count, rows // 2, 2, width).swapaxes(1, 2))


def _joined(groups: list[Bytes]) -> Bytes:
    """Return the rows of two tensors in turn."""
    return np.stack([each[:, 0] for each in groups], 1)
