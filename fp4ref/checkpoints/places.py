"""Places of findings: the file that each name of a finding is in, and its bytes there."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from fp4ref.checkpoints.checkpoint import INDEX, Checkpoint
from fp4ref.checkpoints.configuration import CONFIG, HF_QUANT
from fp4ref.checkpoints.findings import LintFinding
from fp4ref.checkpoints.groups import TensorGroup
from fp4ref.checkpoints.shards import StoredTensor

DECLARED = ("config", "exclude-list", "group-size")  # codes of findings on what files of configuration declare


class StoredPlace(NamedTuple):
    """A file, and the bytes of a tensor in it; length is 0 for the whole file."""

    path: Path
    start: int = 0
    length: int = 0


def places_of(
    checkpoint: Checkpoint, groups: Iterable[TensorGroup], findings: Iterable[LintFinding]
) -> dict[tuple[str, str], StoredPlace]:
    """Return the place of each code and name of some findings.

    A tensor has its bytes, and a module those of its elements; a file is its own place. A name that is not stored has
    the file that should say where it is: the index, a configuration, or the only shard.

    Rules: CKP-6.
    """
    modules: dict[str, StoredTensor] = {}
    for group in groups:
        for name in (group.name, group.module):
            modules.setdefault(name, group.parts.get("codes", next(iter(group.parts.values()))))
    folder = checkpoint.path if checkpoint.path.is_dir() else checkpoint.path.parent
    shards = {shard.name: shard.path for shard in checkpoint.shards}
    indexes = sorted(folder.glob(f"*{INDEX}")) if checkpoint.path.is_dir() else []
    container = next(iter([*indexes, *(shards.values() if len(shards) == 1 else ())]), checkpoint.path)
    configuration = next((folder / name for name in (HF_QUANT, CONFIG) if (folder / name).is_file()), container)
    found = {}
    for each in findings:
        usual = configuration if each.code in DECLARED else container
        for name in each.tensors or ("",):
            tensor = checkpoint.tensors.get(name, modules.get(name))
            if each.code in DECLARED and name not in checkpoint.tensors:
                tensor = None
            if tensor is not None:
                place = StoredPlace(shards.get(tensor.shard.name, container), tensor.start, tensor.count)
            elif name and (folder / name).is_file():
                place = StoredPlace(folder / name)
            else:
                place = StoredPlace(shards.get(name, usual))
            found[each.code, name] = place
    return found
