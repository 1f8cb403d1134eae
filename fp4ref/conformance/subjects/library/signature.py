"""Signatures: a small file that says how a C function is called, and what its author declares of it."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from importlib.resources import files
from pathlib import Path
from typing import Any

from fp4ref.conformance.subjects.library.arguments import INTEGERS, RECORDS, RULE, SHAPE, Argument, Field, argument
from fp4ref.conformance.subjects.library.records import ORDERS, Records
from fp4ref.errors import DomainError, FileError
from fp4ref.kernels import INPUTS, OUTPUTS, SCALES_OF, Declaration
from fp4ref.spec import Granularity, Spec

BYTES_MAX = 1 << 20  # of a signature's file
DERIVED = ("inputs", "outputs", "out_buffers", "arrays", "optional_amax")  # fields that follow from the arguments
SOURCES = ("note", "source", "date")
FORMATS: dict[str, Callable[[str], Any]] = {".json": json.loads, ".toml": tomllib.loads}
SUFFIX = ".toml"  # of the signatures that are installed


@dataclass(frozen=True)
class Signature:
    """The way in which a C function is called.

    origin: its name or file. returns: "void", or the integer type of a status of which `success` is the good one.
    records: how scales and codes share a buffer. declaration: its inputs and outputs follow from the arguments.
    record: the data that it was read from.
    """

    origin: str
    arguments: tuple[Argument, ...]
    returns: str
    success: int
    records: Records | None
    declaration: Declaration
    record: Mapping[str, Any]

    def require(self, spec: Spec) -> None:
        """Refuse a specification that the function cannot be called for. Rules: CNF-16."""
        place = Field(self.origin)
        for number, each in enumerate(self.arguments):
            if each.kind == "number" and each.value in SCALES_OF and spec.global_scale is Granularity.ROW:
                got = f"{each.value} by value for {spec.name}, which has one per row"
                place.at(f"arguments[{number}].number").fail(got, "an input, which is a pointer")
        if self.records is None:
            return
        block, bits = spec.block.columns, spec.element.format.bits
        if fault := self.records.fault(block * bits // 8):
            place.at(RECORDS).fail(f"{fault} for {spec.name}", f"parts that fit into {self.records.bytes} bytes")
        whole = block * self.records.blocks
        if self.declaration.multiple[1] % whole:
            got = f"{list(self.declaration.multiple)} for records of {spec.name}"
            place.at("declaration.multiple").fail(got, f"columns in multiples of {whole}")


def facts_of(spec: Spec) -> dict[str, Any]:
    """Return the facts that sizes of buffers depend on, as JSON data: block, bits of a code, granularity of amax."""
    return {"block": spec.block.columns, "bits": spec.element.format.bits, "amax": spec.global_scale.value}


def names() -> list[str]:
    """Return the names of the signatures that are installed."""
    return sorted(path.name.removesuffix(SUFFIX) for path in _folder().iterdir() if path.name.endswith(SUFFIX))


def _folder() -> Any:
    return files("fp4ref.conformance.subjects.library") / "signatures"


def named(name: str) -> Signature:
    """Return an installed signature, or the one in a file.

    Errors: FileError for an unknown name, and for a file that cannot be read or is no signature.

    Rules: CNF-16.
    """
    if name in names():
        return parse(name, tomllib.loads((_folder() / f"{name}{SUFFIX}").read_text(encoding="utf-8")))
    return read(Path(name))


def read(path: Path) -> Signature:
    """Read a signature from a .json or .toml file. Rules: CNF-16."""
    load, place = FORMATS.get(path.suffix.lower()), Field(str(path))
    if load is None or not path.is_file():
        needed = f"a {' or '.join(FORMATS)} file, or one of {', '.join(names())}"
        place.fail("an unknown name" if load is None else "no such file", needed)
    with path.open("rb") as file:
        text = file.read(BYTES_MAX + 1)
    if len(text) > BYTES_MAX:
        place.fail(f"more than {BYTES_MAX} bytes", "a signature")
    try:
        record = load(text.decode())
    except (ValueError, RecursionError) as error:
        got, needed = " ".join(str(error).split()), f"{path.suffix[1:].upper()} text"
        raise FileError(f"signature {path}", got, needed, RULE) from None
    return parse(str(path), record)


def parse(origin: str, record: Any) -> Signature:
    """Check the data of a signature; an error names the field.

    >>> parse("mine", {"arguments": [{"input": "x"}, {"output": "data"}, {"output": "scales"}]}).declaration.inputs
    ('x', 'rows', 'columns')

    Errors: FileError.

    Rules: CNF-16.
    """
    place = Field(origin)
    place.require_table(record, ("arguments", "returns", "success", RECORDS, "declaration", *SOURCES))
    for name in SOURCES:
        if not isinstance(record.get(name, ""), str):
            place.at(name).fail(repr(record[name]), "text")
    declared = _declared(place.at("declaration"), record.get("declaration", {}))
    operation = declared.get("operation", "quantize")
    listed = record.get("arguments", [])
    if not isinstance(listed, list) or not listed:
        place.at("arguments").fail(repr(listed)[:80], "a list with one entry for every argument")
    arguments = tuple(argument(place.at(f"arguments[{i}]"), each, operation) for i, each in enumerate(listed))
    records = _records(place.at(RECORDS), record.get(RECORDS))
    if (records is None) is any(each.value == RECORDS for each in arguments):
        got = "none" if records is None else "no argument of that name"
        place.at(RECORDS).fail(got, "both a table of records and an argument for them")
    returns, success = record.get("returns", "void"), record.get("success", 0)
    if returns not in ("void", *INTEGERS):
        place.at("returns").fail(repr(returns), f"void or one of {', '.join(INTEGERS)}")
    if type(success) is not int:
        place.at("success").fail(repr(success), "the status of a good call, an integer")
    declaration = _declaration(place, declared, operation, arguments)
    return Signature(origin, arguments, returns, success, records, declaration, record)


def _declared(place: Field, record: Any) -> dict[str, Any]:
    """Return the fields of a declaration that a signature sets."""
    known = {item.name: item.default for item in fields(Declaration) if item.name not in DERIVED}
    place.require_table(record, known)
    for name, value in record.items():
        if not _alike(value, known[name]):
            place.at(name).fail(repr(value), f"a value like {json.dumps(known[name])}")
    operation = record.get("operation", "quantize")
    if operation not in INPUTS:
        place.at("operation").fail(repr(operation), f"one of {', '.join(INPUTS)}")
    return dict(record)


def _alike(value: Any, default: Any) -> bool:
    """Return True if a value is of a default's type; lists stand for tuples."""
    if isinstance(default, tuple):
        return isinstance(value, list) and all(type(each) is type(default[0]) for each in value)
    return type(value) is type(default)


def _records(place: Field, record: Any) -> Records | None:
    if record is None:
        return None
    known = [item.name for item in fields(Records)]
    place.require_table(record, known)
    if record.get("order", ORDERS[0]) not in ORDERS:
        place.at("order").fail(repr(record["order"]), " or ".join(ORDERS))
    if "bytes" not in record:
        place.at("bytes").fail("none", "the bytes of a record")
    for name, least in (("bytes", 1), ("blocks", 1), ("scales", 0), ("data", 0)):
        value = record.get(name, least)
        if type(value) is not int or not least <= value <= BYTES_MAX:
            place.at(name).fail(repr(value), f"{least} to {BYTES_MAX}")
    return Records(**record)


def _declaration(
    place: Field, declared: Mapping[str, Any], operation: str, arguments: Sequence[Argument]
) -> Declaration:
    """Return the declaration, whose inputs and outputs follow from the arguments. Rules: CNF-8, CNF-16."""
    judged = declared.get("direction", "row")

    def listed(*kinds: str) -> tuple[str, ...]:
        here = (each for each in arguments if each.kind in kinds and each.direction in {"", judged})
        parts = (("data", "scales") if each.value == RECORDS else (each.value,) for each in here)
        return tuple(dict.fromkeys(name for group in parts for name in group))

    outputs = listed("output")
    missing = [name for name in OUTPUTS[operation] if name not in {*outputs, "amax"}]
    if missing:
        place.at("arguments").fail(f"no output {missing[0]}", f"the outputs of {operation}")
    counts = tuple(name for name in SHAPE if name in INPUTS[operation])
    try:
        return Declaration(
            **declared,
            inputs=listed("input", "number") + counts,
            outputs=outputs,
            out_buffers=True,
            arrays="numpy" if declared.get("device", "cpu") == "cpu" else "torch",
        )
    except DomainError as error:
        place.at("declaration").fail(error.got, error.needed)
