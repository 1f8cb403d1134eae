"""Checking a statement: its digest, its schema, and that its counts agree with each other."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from fp4ref.conformance.verdict.statement import SCHEMA, VERSION, digest
from fp4ref.errors import FileError
from fp4ref.spec_root import spec_root

BYTES_MAX = 1 << 26  # of a statement's file
TYPES: dict[str, Callable[[Any], bool]] = {
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "integer": lambda value: type(value) is int,
}


def read(path: Path) -> dict[str, Any]:
    """Read a statement, whatever it states.

    Errors: FileError for what is no JSON, and for JSON that is no statement of a known version.

    Rules: CNF-108.
    """
    with path.open("rb") as file:
        text = file.read(BYTES_MAX + 1)
    if len(text) > BYTES_MAX:
        raise FileError(f"statement {path}", f"more than {BYTES_MAX} bytes", "a statement", "CNF-18")
    try:
        record = json.loads(text.decode(), parse_constant=_no_number)
        json.dumps(record, ensure_ascii=False).encode()  # a lone surrogate has no bytes
    except (ValueError, RecursionError) as error:
        raise FileError(f"statement {path}", " ".join(str(error).split()), "JSON text", "CNF-18") from None
    version = record.get("fp4ref_statement") if isinstance(record, dict) else None
    if version != VERSION or not isinstance(record.get("found"), dict):
        got = "no statement" if version is None else f"version {version!r}"
        raise FileError(f"statement {path}", got, f"a statement of version {VERSION}", "CNF-18")
    return dict(record)


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON")


def problems(record: Mapping[str, Any]) -> list[str]:
    """Return the faults of a statement: its digest, its schema and its sums, a line each.

    Rules: CNF-17, CNF-18, CNF-108.
    """
    right = digest(record["found"])
    found = [] if record.get("digest") == right else [f"digest: {record.get('digest')}, need {right}"]
    shape = [*violations(record, schema())]
    return found + shape + ([] if shape else [*_sums(record["found"])])


def schema() -> dict[str, Any]:
    """Return the JSON Schema of statements."""
    record: dict[str, Any] = json.loads((spec_root() / SCHEMA).read_text(encoding="utf-8"))
    return record


def violations(value: Any, rule: Mapping[str, Any], place: str = "statement") -> Iterator[str]:
    """Return where data breaks a schema.

    rule: a schema of these keywords: type, const, enum, pattern, minimum, required, properties, additionalProperties,
    items.

    Rules: CNF-18.
    """
    if "type" in rule and not TYPES[rule["type"]](value):
        yield f"{place}: {type(value).__name__}, need {rule['type']}"
        return
    if "const" in rule and value != rule["const"]:
        yield f"{place}: {value!r}, need {rule['const']!r}"
    if "enum" in rule and value not in rule["enum"]:
        yield f"{place}: {value!r}, need one of {', '.join(rule['enum'])}"
    if "pattern" in rule and not re.search(rule["pattern"], value):
        yield f"{place}: {value!r}, need {rule['pattern']}"
    if "minimum" in rule and value < rule["minimum"]:
        yield f"{place}: {value}, need at least {rule['minimum']}"
    if isinstance(value, dict):
        yield from (f"{place}: no {name}" for name in rule.get("required", ()) if name not in value)
        known, other = rule.get("properties", {}), rule.get("additionalProperties", True)
        for name, part in value.items():
            inner = known.get(name, other)
            if inner is False:
                yield f"{place}: unknown {name}"
            elif inner is not True:
                yield from violations(part, inner, f"{place}.{name}")
    if isinstance(value, list) and "items" in rule:
        for number, part in enumerate(value):
            yield from violations(part, rule["items"], f"{place}[{number}]")


def _sums(found: Mapping[str, Any]) -> Iterator[str]:
    """Return counts that do not agree. Rules: CNF-18."""
    cases, failing = found["cases"], found["failing"]
    broken = sum(each["count"] for each in found["findings"])
    for group in ("families", "rules"):
        for name, cell in found[group].items():
            if cell["passed"] > cell["total"]:
                yield f"{group}: {name} passed {cell['passed']} of {cell['total']}"
    if len(set(failing)) < len(failing):
        yield "failing: a case is listed twice"
    if len(failing) > cases:
        yield f"failing: {len(failing)} of {cases} cases"
    if not {each["case"] for each in found["known_failures"]} <= set(failing):
        yield "known_failures: a case that does not fail"
    if broken > len(failing):
        yield f"findings: {broken} cases, but {len(failing)} fail"
    if found["conforms"] and (failing or broken or not cases):
        yield f"conforms: true, with {len(failing)} of {cases} cases failing"
    if found.get("levels") and not found["conforms"]:
        yield "levels: cited, but the subject does not conform"
    randomness = found.get("randomness", {"wrong": [], "tests": {}})
    implausible = [name for name, passed in randomness["tests"].items() if not passed]
    if found["conforms"] and (randomness["wrong"] or implausible):
        others = len(randomness["wrong"])
        yield f"conforms: true, with {len(implausible)} implausible counts and {others} other findings"
    if found["families"]:
        yield from _family_sums(found)


def _family_sums(found: Mapping[str, Any]) -> Iterator[str]:
    """Return counts that do not agree with those of the families. Rules: CNF-18."""
    families, basis = found["families"], found["coverage"]
    tried = basis["families"]["tried"]
    total, passed = (sum(cell[what] for cell in families.values()) for what in ("total", "passed"))
    if total != found["cases"]:
        yield f"cases: {found['cases']}, but the families have {total}"
    if total - passed != len(found["failing"]):
        yield f"failing: {len(found['failing'])} cases, but {total - passed} of the families do"
    if any(count > families.get(name, {"total": 0})["total"] for name, count in tried.items()):
        yield "coverage: more cases of a family than were run"
    if sum(tried.values()) != basis.get("cases"):
        yield f"coverage: {basis.get('cases')} cases, but the families have {sum(tried.values())}"
