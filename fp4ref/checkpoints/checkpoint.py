"""A checkpoint: the shards of a directory or a single file, their index, and the files of configuration."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fp4ref.checkpoints.configuration import CONFIG, HF_QUANT
from fp4ref.checkpoints.findings import ERROR, WARNING, LintFinding, finding, listed
from fp4ref.checkpoints.gguf_header import read_gguf
from fp4ref.checkpoints.safetensors_header import read_safetensors
from fp4ref.checkpoints.shards import Shard, StoredTensor, leaves, opened
from fp4ref.errors import FileError
from fp4ref.files.tensors import quoted, reason, shown

INDEX = ".safetensors.index.json"
WHOLE = "model.safetensors"
JSON_MAX = 64 << 20  # bytes of an index or a configuration
NUMBERED = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.safetensors")
READERS = {".safetensors": read_safetensors, ".gguf": read_gguf}


@dataclass
class Checkpoint:
    """Tensors by name, over all shards, with the directory's declarations about them.

    lost: names that are promised somewhere, but cannot be read. complete: false if tensors may be stored in files that
    were not read, so that an absence means nothing.
    """

    path: Path
    shards: list[Shard] = field(default_factory=list)
    tensors: dict[str, StoredTensor] = field(default_factory=dict)
    metadata: dict[str, str] = field(default_factory=dict)
    config: dict[str, Any] | None = None
    hf_quant: dict[str, Any] | None = None
    problems: list[LintFinding] = field(default_factory=list)
    lost: set[str] = field(default_factory=set)
    complete: bool = True

    @property
    def kind(self) -> str:
        """The container of the shards: ".safetensors" or ".gguf"."""
        return self.shards[0].path.suffix.lower() if self.shards else ""

    @property
    def read_bytes(self) -> int:
        """The number of bytes of shards that were read so far."""
        return sum(shard.read_bytes for shard in self.shards)

    def require_unchanged(self) -> None:
        """Refuse a checkpoint of which a file changed since it was opened. Rules: CKP-34."""
        for shard in self.shards:
            shard.require_unchanged()

    def require_readable(self) -> None:
        """Refuse a checkpoint with any defect of its files, in one line. Rules: CKP-1, CKP-2, CKP-3, CKP-4."""
        if self.problems:
            first = self.problems[0]
            raise FileError(f"read {shown(self.path)}", f"{first.code}: {first.message}", "", "CKP-1")


def open_checkpoint(path: str | os.PathLike[str], *, head_only: bool = False) -> Checkpoint:
    """Open a directory, a `.safetensors` or a `.gguf` file, and read every header.

    head_only: files may end anywhere after their headers.

    Errors: FileError if nothing there can be read at all.

    Rules: CKP-1, CKP-2, CKP-3, CKP-4, CKP-5, CKP-35, CKP-51.
    """
    path = Path(path)
    operation = f"read {shown(path)}"
    if not path.exists():
        raise FileError(operation, "no such file or directory", "a directory or file", "CKP-1")
    found = Checkpoint(path)
    if path.is_dir():
        _open_directory(found, head_only=head_only)
    elif path.suffix.lower() in READERS:
        _open_file(found, head_only=head_only)
    else:
        raise FileError(operation, "a file of another kind", "a directory, .safetensors or .gguf", "CKP-51")
    for shard in found.shards:
        found.problems += shard.problems
        found.lost |= shard.hidden
        found.complete &= shard.whole
        found.metadata = {**shard.metadata, **found.metadata}
    return found


def _open_file(found: Checkpoint, *, head_only: bool) -> None:
    folder = found.path.parent
    shard = _read(found, found.path, found.path.name, head_only=head_only)
    found.tensors = dict(shard.tensors) if shard else {}
    match = NUMBERED.fullmatch(found.path.name)
    found.complete = match is None or int(match[3]) == 1
    if found.path.suffix.lower() == ".safetensors" and len([*folder.glob("*.safetensors")]) == 1:
        _read_configuration(found, folder)


def _open_directory(found: Checkpoint, *, head_only: bool) -> None:
    folder = found.path
    names = sorted(each.name for each in folder.iterdir() if each.suffix.lower() in READERS)
    indexes = sorted(folder.glob(f"*{INDEX}"))
    _read_configuration(found, folder)
    index = _weight_map(found, indexes[0]) if indexes else None
    if index is not None:
        _left_over(found, index, names)
        names = _indexed(found, index, names)
    elif names:
        names = _unindexed(found, names)
    if not names and not found.problems:
        raise FileError(f"read {shown(folder)}", "no .safetensors or .gguf file", "a checkpoint", "CKP-51")
    homes: dict[str, list[str]] = {}
    for name in names:
        if leaves(folder, name):
            text = f"{quoted(name)} leaves the directory; it was not read"
            found.problems.append(LintFinding("index", ERROR, (name,), text))
            found.complete = False
            continue
        shard = _read(found, folder / name, name, head_only=head_only)
        for tensor in shard.tensors if shard else ():
            homes.setdefault(tensor, []).append(name)
            found.tensors.setdefault(tensor, shard.tensors[tensor])  # type: ignore[union-attr]
    twice = [tensor for tensor, places in homes.items() if len(places) > 1]
    if twice:
        places = sorted({place for tensor in twice for place in homes[tensor]})
        text = f"stored in more than one shard: {', '.join(places)}"
        found.problems.append(finding("duplicate-tensor", ERROR, twice, text))
    if index is not None:
        _compare(found, index, homes, set(twice))


def _read(found: Checkpoint, path: Path, name: str, *, head_only: bool) -> Shard | None:
    try:
        shard = opened(path, name)
    except FileError as error:
        if found.path == path:
            raise
        found.problems.append(LintFinding("index", ERROR, (name,), str(error)))
        found.complete = False
        return None
    READERS[path.suffix.lower()](shard, head_only=head_only)
    found.shards.append(shard)
    return shard


def _weight_map(found: Checkpoint, path: Path) -> dict[str, str] | None:
    """Return the shard of each tensor according to the index; None if it cannot be read."""
    value = _json(found, path, "index")
    entries = value.get("weight_map") if value is not None else None
    if isinstance(entries, dict) and all(isinstance(name, str) for name in entries.values()):
        return entries
    if value is not None:
        text = f"{path.name}: weight_map is not an object of names"
        found.problems.append(LintFinding("index", ERROR, (path.name,), text))
    return None


def _indexed(found: Checkpoint, index: dict[str, str], names: list[str]) -> list[str]:
    """Return the shards that the index names; note those that are missing, or stored and not named."""
    named = sorted(set(index.values()))
    outside = [name for name in named if leaves(found.path, name)]
    missing = [name for name in named if name not in outside and not (found.path / name).exists()]
    for name in outside + missing:
        tensors = [tensor for tensor, shard in index.items() if shard == name]
        what = "leaves the directory" if name in outside else "is not there"
        text = f"the index names {quoted(name)}, which {what}: it has {len(tensors)} tensors ({listed(tensors)})"
        others = [other for other in names if other not in named]
        if others and name in missing:
            text += f"; it does not name {listed(others)}"
        found.problems.append(LintFinding("index", ERROR, (name, *tensors), text))
        found.lost.update(tensors)
    present = [name for name in named if name not in outside and name not in missing]
    series = {(match[1], match[3]) for match in map(NUMBERED.fullmatch, named) if match}
    extra = [
        name
        for name in names
        if name not in named and (match := NUMBERED.fullmatch(name)) and (match[1], match[3]) in series
    ]
    if extra and missing:
        found.complete = False
    elif extra := [name for name in extra if not _is_copy(found, name, index)]:
        text = f"{listed(extra)}: of the same series as the indexed shards, not named by the index"
        found.problems.append(LintFinding("index", ERROR, tuple(extra), text))
        found.complete = False
    return present


def _beside(found: Checkpoint, name: str) -> Shard | None:
    """Return a file of the directory by its header; None if that cannot be read, or leaves the directory."""
    if leaves(found.path, name):
        return None
    try:
        shard = opened(found.path / name, name)
        READERS[Path(name).suffix.lower()](shard, head_only=True)
    except FileError:
        return None
    return shard


def _is_copy(found: Checkpoint, name: str, index: dict[str, str]) -> bool:
    """Return True if the index names another home of every tensor of a file, or if the file has none."""
    shard = _beside(found, name)
    return shard is not None and shard.whole and not shard.hidden and all(name in index for name in shard.tensors)


def _unindexed(found: Checkpoint, names: list[str]) -> list[str]:
    """Return the shards of a directory without index; note those that a numbered series lacks."""
    series: dict[tuple[str, str], set[int]] = {}
    for match in filter(None, map(NUMBERED.fullmatch, names)):
        series.setdefault((match[1], match[3]), set()).add(int(match[2]))
    for (stem, total), numbers in series.items():
        lacking = (
            [
                f"{stem}-{number:05}-of-{total}.safetensors"
                for number in range(1, int(total) + 1)
                if number not in numbers
            ]
            if int(total) < 100_000
            else []
        )
        if lacking:
            text = f"shards are not there, and no index names their tensors: {listed(lacking)}"
            found.problems.append(LintFinding("index", ERROR, tuple(lacking), text))
            found.complete = False
    return [name for name in names if NUMBERED.fullmatch(name)] if series else names


def _left_over(found: Checkpoint, index: dict[str, str], names: list[str]) -> None:
    """Note files that the index does not name, and that have tensors of the same names. Rules: CKP-4."""
    for name in names:
        shard = None if name in index.values() else _beside(found, name)
        if shard is None:
            continue
        twice = [tensor for tensor in shard.tensors if tensor in index and (found.path / index[tensor]).exists()]
        if twice:
            text = f"{name}, which the index does not name, has {len(twice)} of its tensors ({listed(twice)})"
            reader = "transformers" if name == WHOLE else "a loader that takes every file"
            text += f"; {reader} reads it"
            found.problems.append(LintFinding("duplicate-tensor", WARNING, (name, *twice), text))


def _compare(found: Checkpoint, index: dict[str, str], homes: dict[str, list[str]], twice: set[str]) -> None:
    """Note tensors that the index has in another shard, those that no shard has, and those it does not name."""
    read = {shard.name for shard in found.shards if shard.whole}
    known = [name for name in index if name in homes and name not in found.lost]
    moved = [name for name in known if index[name] not in homes[name]]
    absent = [
        name
        for name, shard in index.items()
        if name not in homes
        and name not in found.lost
        and shard in read
        and not any(name in each.hidden for each in found.shards)
    ]
    unnamed = [name for name in homes if name not in index and name not in twice]
    for names, what in (
        (moved, "stored in another shard than the index says"),
        (absent, "named by the index, stored in no shard"),
        (unnamed, "stored, but not named by the index"),
    ):
        if names:
            found.problems.append(finding("index", ERROR if names is not unnamed else WARNING, names, what))
    found.lost.update(absent)


def _read_configuration(found: Checkpoint, folder: Path) -> None:
    for name, attribute in ((CONFIG, "config"), (HF_QUANT, "hf_quant")):
        if (folder / name).is_file():
            setattr(found, attribute, _json(found, folder / name, "config"))


def _json(found: Checkpoint, path: Path, code: str) -> dict[str, Any] | None:
    """Read a JSON object of bounded size; if it cannot be read, note that and return None."""
    try:
        with path.open("rb") as file:
            text = file.read(JSON_MAX + 1)
        value = json.loads(text.decode())  # configurations contain Infinity, which Python's writer wrote
        why = "" if isinstance(value, dict) else "not a JSON object"
    except (OSError, ValueError, RecursionError) as error:
        value, why = None, reason(error)
        if path.stat().st_size > JSON_MAX:
            why = f"more than {JSON_MAX} bytes"
    if why:
        found.problems.append(LintFinding(code, ERROR, (path.name,), f"{path.name}: {why}"))
        return None
    return dict(value)
