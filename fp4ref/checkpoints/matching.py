"""Tensors of a source by their values, where a file has other names: a GGUF of an architecture without a map."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

import numpy as np

from fp4ref.checkpoints.access import decoded, pieces
from fp4ref.checkpoints.check_presence import NUMBER, numberless
from fp4ref.checkpoints.checkpoint import Checkpoint
from fp4ref.checkpoints.groups import TensorGroup
from fp4ref.checkpoints.originals import Original, is_matrix
from fp4ref.checkpoints.shards import StoredTensor

ROWS = 8  # rows that are compared
ALIKE = 0.9  # cosine that a weight has with its quantized values, and two weights have not


def by_values(groups: Iterable[TensorGroup], source: Checkpoint) -> dict[str, StoredTensor]:
    """Return the tensor of a source for each group, by name, that has one with its shape and values.

    Groups whose values are no tensor's get the tensor whose name has the form that most groups of their form have.

    Rules: CKP-24.
    """
    candidates: dict[tuple[int, ...], list[StoredTensor]] = {}
    for tensor in source.tensors.values():
        if is_matrix(tensor):
            candidates.setdefault(tensor.shape, []).append(tensor)
    found, left = dict[str, StoredTensor](), list[TensorGroup]()
    forms: dict[str, Counter[str]] = {}
    for group in groups:
        best = max(((_cosine(group, each), each.name) for each in candidates.get(group.shape, ())), default=(0.0, ""))
        if best[0] > ALIKE:
            found[group.name] = source.tensors[best[1]]
            forms.setdefault(numberless(group.name), Counter())[numberless(best[1])] += 1
        else:
            left.append(group)
    for group in left:
        usual = forms.get(numberless(group.name), Counter()).most_common(1)
        likely = source.tensors.get(_numbered(usual[0][0], group.name)) if usual else None
        if likely is not None and likely.shape == group.shape and likely not in found.values():
            found[group.name] = likely
    return found


def _cosine(group: TensorGroup, tensor: StoredTensor) -> float:
    """Return the cosine of some rows of a group and of a tensor of its shape."""
    piece = next(pieces(group))
    scales = None if piece.scales is None else piece.scales[:ROWS]
    piece = piece._replace(packed=piece.packed[:ROWS], scales=scales)
    one, two = (
        np.nan_to_num(each, posinf=0, neginf=0).astype(np.float64).reshape(-1)
        for each in (decoded(group, piece), Original(tensor, group).read(piece))
    )
    size = float(np.sqrt((one**2).sum() * (two**2).sum()))
    return float((one * two).sum()) / size if size else 0.0


def _numbered(form: str, name: str) -> str:
    """Return a name of a form with the numbers of another name."""
    numbers = iter(NUMBER.findall(name))
    return re.sub("#", lambda _: next(numbers, "#"), form)
