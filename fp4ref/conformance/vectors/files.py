"""Vectors: inputs with expected bits, in JSON files; finding, checking and running them.

A file has one operation, groups of tests that share rules, source and settings, and a glossary of flags: a flag says
which mistake a test catches. Floats are hex bit patterns, the first digit holding the sign; codes and bytes are hex.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fp4ref.catalogue import resolve
from fp4ref.conformance.vectors import products as vector_products
from fp4ref.conformance.vectors.text import WORDS, Mismatch, mismatched, mismatched_words, parse_rows, parse_words
from fp4ref.errors import FileError, Fp4Error
from fp4ref.formats import FORMATS, Codec
from fp4ref.layout import layout
from fp4ref.quantized import DirectionData, Quantized, matrix_shape
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


# Running


def run(test: VectorTest, subject: Any) -> list[Mismatch]:
    """Run one test on a subject; empty if every bit is as expected.

    A test that expects an error passes if the subject raises one of that type that cites that rule.

    Rules: CNF-1, CNF-3.
    """
    error = test.fields.get("expected", {}).get("error")
    try:
        return list(_RUNNERS[test.operation](test, subject))
    except Fp4Error as raised:
        expected = f"{error} [{test.fields['expected']['rule']}]" if error else "a result"
        if expected in (f"{kind.__name__} [{raised.rule}]" for kind in type(raised).__mro__):
            return []
        return [Mismatch("error", (), "", expected, f"{type(raised).__name__} [{raised.rule}] {raised}")]


def _encode(test: VectorTest, subject: Any) -> Iterator[Mismatch]:
    values = parse_words("".join(test.fields["values"]))
    bits = test.fields.get("random_bits")
    codes = subject.encode(test.codec, values, None if bits is None else parse_rows(["".join(bits)])[0])
    yield from mismatched("codes", codes, _codes(test.fields["codes"]), values)


def _decode(test: VectorTest, subject: Any) -> Iterator[Mismatch]:
    values = subject.decode(test.codec, _codes(test.fields["codes"]))
    yield from mismatched_words("values", values, " ".join(test.fields["values"]))


def _codes(digits: list[str]) -> NDArray[np.uint8]:
    return np.array([int(code, 16) for code in digits], np.uint8)


def _pack(test: VectorTest, subject: Any) -> Iterator[Mismatch]:
    codes, form = _codes(test.fields["codes"])[None], FORMATS[test.group["format"]]
    packed = np.frombuffer(bytes.fromhex(test.fields["packed"]), np.uint8)[None]
    yield from mismatched("packed", subject.pack(codes, form), packed)
    yield from mismatched("codes", subject.unpack(packed, codes.shape[1], form), codes)


def _hadamard(test: VectorTest, subject: Any) -> Iterator[Mismatch]:
    mask = int(test.group["signs"], 16)
    values, transformed = parse_words(test.fields["values"], "bfloat16"), test.fields["transformed"]
    yield from subject.check_transform(values, mask, transformed)
    if "restored" in test.fields:
        yield from subject.check_inverse(parse_words(transformed, "bfloat16"), mask, test.fields["restored"])


def _quantize(test: VectorTest, subject: Any) -> Iterator[Mismatch]:
    fields, expected = test.fields, test.fields["expected"]
    direction, name = fields.get("direction", "row"), fields.get("scale_layout", "linear")
    amax = parse_words(fields["amax"]) if "amax" in fields else None
    bits = parse_rows(fields["random_bits"]) if "random_bits" in fields else None
    data, scales, maxima = subject.quantize(tensor(test.input), test.spec, direction, name, amax, bits)
    if "error" in expected:
        yield Mismatch("error", (), "", f"{expected['error']} [{expected['rule']}]", "a result")
        return
    if "data" in expected:
        yield from mismatched("data", data, parse_rows(expected["data"], data.shape[1]))
    if "scales" in expected:
        wanted = parse_rows(expected["scales"], scales.shape[1])
        order = layout(name)
        if scales.shape == wanted.shape and not order.pads_compared:
            rows, columns = matrix_shape(test.input["shape"])[:: 1 if direction == "row" else -1]
            known = order.valid(rows, -(-columns // test.spec.block.columns))
            scales, wanted = np.where(known, scales, 0), np.where(known, wanted, 0)
        yield from mismatched("scales", scales, wanted)
    if "amax" in expected:
        yield from mismatched_words("amax", maxima, expected["amax"])


def _dequantize(test: VectorTest, subject: Any) -> Iterator[Mismatch]:
    fields, expected = test.fields, test.fields["expected"]
    data, scales = parse_rows(fields["data"]), parse_rows(fields["scales"])
    parts = DirectionData(data, scales, parse_words(fields["amax"]) if "amax" in fields else None)
    direction = fields.get("direction", "row")
    pair = (parts, None) if direction == "row" else (None, parts)
    order = fields.get("scale_layout", "linear")
    q = Quantized(test.spec, tuple(fields["shape"]), fields["dtype"], order, *pair)
    values = subject.dequantize(q, fields["to"], direction, fields.get("inverse_hadamard", False))
    if "error" in expected:
        yield Mismatch("error", (), "", f"{expected['error']} [{expected['rule']}]", "a result")
    else:
        yield from mismatched_words("values", values, " ".join(expected["values"]))


def _layout(test: VectorTest, subject: Any) -> Iterator[Mismatch]:
    fields = test.fields
    rows, columns = fields["rows"], fields["columns"]
    padded, offsets, padding = subject.lay_out(test.group["layout"], rows, columns, fields["positions"])
    yield from _mismatched_lists("padded", padded, fields["padded"])
    yield from _mismatched_lists("offsets", offsets, fields["offsets"])
    yield from _mismatched_lists(
        "padding", [int(offset in padding) for offset in fields["padding"]], [1] * len(fields["padding"])
    )


def _group_offsets(test: VectorTest, subject: Any) -> Iterator[Mismatch]:
    members = [(rows, columns) for rows, columns in test.fields["members"]]
    yield from _mismatched_lists("starts", layout(test.group["layout"]).group_offsets(members), test.fields["starts"])


def _row_range(test: VectorTest, subject: Any) -> Iterator[Mismatch]:
    fields, expected = test.fields, test.fields["expected"]
    found = layout(test.group["layout"]).row_range(*(fields[name] for name in ("start", "stop", "rows", "columns")))
    if "error" in expected:
        yield Mismatch(
            "error", (), "", f"{expected['error']} [{expected['rule']}]", f"bytes {found.start}:{found.stop}"
        )
    else:
        yield from _mismatched_lists("bytes", [found.start, found.stop], expected["bytes"])


def _mismatched_lists(field: str, got: Sequence[int], expected: Sequence[int]) -> Iterator[Mismatch]:
    if list(got) != list(expected):
        yield Mismatch(field, (), "", str(list(expected)), str(list(got)))


_RUNNERS = {
    "encode": _encode,
    "decode": _decode,
    "pack": _pack,
    "hadamard": _hadamard,
    "quantize": _quantize,
    "dequantize": _dequantize,
    "layout": _layout,
    "group_offsets": _group_offsets,
    "row_range": _row_range,
    "gemm": vector_products.gemm,
    "philox": vector_products.philox,
    "random_bits": vector_products.random_bits,
    "random_map": vector_products.random_map,
}
