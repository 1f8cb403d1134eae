"""Raw binaries beside a JSON file that says what they hold: what a program without any library can write."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from fp4ref.files.reading import array_at
from fp4ref.files.tensors import (
    TEXT_MAX,
    Entry,
    TensorFile,
    byte_count,
    misshapen,
    quoted,
    reason,
    regular_file,
)
from fp4ref.json_text import strict_json

FIELDS = ("dtype", "shape", "file", "offset")
KEY = "fp4ref"  # of the metadata


class RawFile(TensorFile):
    """A JSON file whose entries name raw binaries in the same directory, which are read when a tensor is asked for.

    Rules: FIL-5, CKP-5.
    """

    rule = "FIL-5"

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        if regular_file(path, self.rule) > TEXT_MAX:
            raise self.refused("a JSON file that is too long", f"at most {TEXT_MAX} bytes")
        try:
            value = strict_json(path.read_bytes().decode())
        except (ValueError, OSError) as error:
            raise self.refused(f"not JSON ({reason(error)})", "an object") from None
        if not isinstance(value, dict) or set(value) - {KEY, "entries"} or not isinstance(value.get("entries"), dict):
            raise self.refused("not an object of entries and fp4ref", "one")
        self.metadata = {KEY: json.dumps(value[KEY])} if KEY in value else {}
        self._places: dict[str, tuple[Path, int]] = {}
        self._tensors = {name: self._checked(name, entry) for name, entry in value["entries"].items()}

    def read(self, name: str) -> NDArray[Any]:
        """Read one array into memory; it is read-only."""
        _, dtype, shape = self._tensor(name)
        path, offset = self._places[name]
        try:
            with path.open("rb", buffering=0) as file:
                return array_at(path, file.fileno(), offset, dtype, shape, self.rule)
        except OSError as error:
            count = byte_count(dtype, shape)
            raise self.refused(f"{quoted(path.name)}: {reason(error)}", f"{count} bytes at byte {offset}") from None

    @property
    def paths(self) -> tuple[Path, ...]:
        """The JSON file, and the binaries that it names."""
        return self.path, *dict.fromkeys(path for path, _ in self._places.values())

    def close(self) -> None:
        """Nothing is held open."""

    def _checked(self, name: str, value: Any) -> Entry:
        """Return an entry whose bytes are in its file."""
        if not isinstance(value, dict) or set(value) - set(FIELDS) or not {"dtype", "shape", "file"} <= set(value):
            raise self.refused(f"entry {quoted(name)}", f"an object of {', '.join(FIELDS)}")
        dtype, shape, file, offset = (*(value[field] for field in FIELDS[:3]), value.get("offset", 0))
        if why := misshapen(str(dtype), shape):
            raise self.refused(f"entry {quoted(name)}: {why}", "a type and a shape")
        if not isinstance(file, str) or not file or Path(file).name != file or "\0" in file or "\\" in file:
            raise self.refused(f"entry {quoted(name)}: file {quoted(str(file))}", "a name in the same directory")
        if type(offset) is not int or offset < 0:
            raise self.refused(f"entry {quoted(name)}: offset {quoted(str(offset))}", "an integer >= 0")
        path = self.path.parent / file
        size, count = regular_file(path, self.rule), byte_count(dtype, tuple(shape))
        if offset + count > size or ("offset" not in value and count != size):
            raise self.refused(
                f"entry {quoted(name)}: {quoted(file)} has {size} bytes", f"{count} from byte {offset} for its shape"
            )
        self._places[name] = path, offset
        return Entry(name, dtype, tuple(shape))


def is_side_file(path: Path) -> bool:
    """Return True if a JSON file means to be one of these. Rules: FIL-5."""
    try:
        value = strict_json(path.read_text(encoding="utf-8"))
    except (ValueError, OSError):
        return False
    return isinstance(value, dict) and "entries" in value
