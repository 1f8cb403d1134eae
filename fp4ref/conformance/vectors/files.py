"""Vectors: inputs with expected bits, in JSON files; finding, checking and running them.

A file has one operation, groups of tests that share rules, source and settings, and a glossary of flags: a flag says
which mistake a test catches. Floats are hex bit patterns, the first digit holding the sign; codes and bytes are hex.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fp4ref.catalogue import resolve
from fp4ref.conformance.vectors.text import WORDS, parse_words
from fp4ref.errors import FileError
from fp4ref.formats import FORMATS, Codec
from fp4ref.spec import Spec, from_json
from fp4ref.spec_root import spec_root

SCHEMA = "vectors.schema.json"


# What a test of each operation expects; everything else in it is input.
ANSWERS = {
    "encode": ("codes",),
    "decode": ("values",),
    "pack": ("packed",),
    "hadamard": ("transformed", "restored"),
    "quantize": ("expected",),
    "dequantize": ("expected",),
    "layout": ("padded", "offsets", "padding"),
    "group_offsets": ("starts",),
    "row_range": ("expected",),
    "gemm": ("expected",),
    "philox": ("words",),
    "random_bits": ("expected",),
    "random_map": ("bytes",),
}


FILE_KEYS = {"schema", "operation", "last_id", "notes", "inputs", "groups"}
GROUP_KEYS = {"rules", "source", "tests", "codec", "spec", "format", "signs", "layout", "rounds", "map"}
RULE = re.compile(r"[A-Z][A-Z0-9]*-[1-9][0-9]*")
LARGEST = 1 << 22  # bytes; a vector file has tens of thousands


@dataclass(frozen=True)
class VectorTest:
    """A test, with the fields of its file and of its group."""

    file: str
    operation: str
    group: Mapping[str, Any]
    fields: Mapping[str, Any]
    input: Mapping[str, Any]  # dtype, shape and x, for the operation quantize

    @property
    def id(self) -> str:
        """File and number, as `nvfp4:12`."""
        return f"{self.file}:{self.fields['id']}"

    @property
    def rules(self) -> tuple[str, ...]:
        """The rules that the test checks."""
        return tuple(self.group["rules"])

    @cached_property
    def codec(self) -> Codec:
        """The group's codec."""
        value = self.group["codec"]
        return Codec(
            **{**value, "format": FORMATS[value["format"]], "nan": tuple(int(code, 16) for code in value["nan"])}
        )

    @cached_property
    def spec(self) -> Spec:
        """The group's specification: a name, or a whole record."""
        value = self.group["spec"]
        return resolve(value) if isinstance(value, str) else _spec(json.dumps(value))


@lru_cache
def _spec(text: str) -> Spec:
    """Return the record that a group's tests share."""
    return from_json(text)


@dataclass(frozen=True)
class VectorFile:
    """A file of tests of one operation."""

    name: str
    operation: str
    notes: Mapping[str, str]
    tests: tuple[VectorTest, ...]


def vector_root() -> Path:
    """Return the folder of the vectors, in a checkout or in an installed package."""
    return spec_root() / "vectors"


def load(directory: Path | None = None) -> list[VectorFile]:
    """Read and check every vector file of a folder; FileError names the first problem."""
    directory = directory or vector_root()
    paths = sorted(path for path in directory.glob("*.json") if path.name != SCHEMA)
    if not paths:
        raise FileError("vectors", f"no *.json in {directory}", "the vector files")
    return [_parse(path) for path in paths]


def _parse(path: Path) -> VectorFile:
    content = read(path)
    wrong = next(problems(content), None)
    if wrong:
        raise FileError(f"vectors {path.name}", wrong, f"what {SCHEMA} says")
    tests = tuple(
        VectorTest(
            path.stem, content["operation"], group, test, content["inputs"][test["input"]] if "input" in test else test
        )
        for group in content["groups"]
        for test in group["tests"]
    )
    return VectorFile(path.stem, content["operation"], content["notes"], tests)


def read(path: Path) -> dict[str, Any]:
    """Return the content of one file, unchecked."""
    if path.stat().st_size > LARGEST:
        raise FileError(f"vectors {path.name}", f"{path.stat().st_size} bytes", f"at most {LARGEST}")
    try:
        content = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict):
        raise FileError(f"vectors {path.name}", "text that is not a JSON object", f"what {SCHEMA} says")
    return content


def problems(content: Mapping[str, Any]) -> Iterator[str]:
    """Yield what is wrong with a file's content: the schema in short, and what a schema cannot say."""
    if set(content) - FILE_KEYS or FILE_KEYS - {"inputs"} - set(content):
        yield f"keys {sorted(content)}"
        return
    if content["schema"] != SCHEMA or content["operation"] not in ANSWERS:
        yield f"schema {content['schema']!r}, operation {content['operation']!r}"
        return
    ids: list[int] = []
    flags: set[str] = set()
    for number, group in enumerate(content["groups"]):
        if set(group) - GROUP_KEYS or not {"rules", "source", "tests"} <= set(group):
            yield f"group {number}: keys {sorted(group)}"
            return
        if not group["rules"] or not all(RULE.fullmatch(rule) for rule in group["rules"]):
            yield f"group {number}: rules {group['rules']}"
        for test in group["tests"]:
            missing = {"id", "flags", "comment", ANSWERS[content["operation"]][0]} - set(test)
            if missing:
                yield f"group {number}: a test without {', '.join(sorted(missing))}"
                return
            ids.append(test["id"])
            flags.update(test["flags"])
            if "input" in test and test["input"] not in content.get("inputs", {}):
                yield f"test {test['id']}: unknown input {test['input']!r}"
    if len(set(ids)) != len(ids) or (ids and max(ids) > content["last_id"]):
        yield "an id twice, or one past last_id"
    if flags != set(content["notes"]):
        yield f"flags and notes differ in {', '.join(sorted(flags ^ set(content['notes'])))}"


def tensor(fields: Mapping[str, Any]) -> NDArray[Any]:
    """Return the x of a test or input; types that no quantizer takes hold zeros only."""
    shape, dtype = tuple(fields["shape"]), fields["dtype"]
    if dtype not in WORDS:
        return np.zeros(shape, dtype)
    return parse_words("".join(fields["x"]), dtype).reshape(shape)
