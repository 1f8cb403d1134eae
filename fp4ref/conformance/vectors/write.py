"""Writing the vectors: build every file from its sources, keep the ids of tests that exist, format canonically."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fp4ref.conformance.vectors.files import ANSWERS, SCHEMA, problems, read
from fp4ref.conformance.vectors.sources import (
    codecs,
    dequantization,
    draws,
    four_over_six,
    layouts,
    mx,
    nvfp4,
    products,
    recorded,
    refusals,
    worked,
)
from fp4ref.conformance.vectors.sources.parts import NOTES, Json
from fp4ref.errors import FileError
from fp4ref.files.kinds import JSON
from fp4ref.files.targets import write_bytes

BUILT: dict[str, tuple[str, Callable[[], list[Json]]]] = {
    "encode": ("encode", lambda: [*worked.encode_groups(), *codecs.encode_groups()]),
    "decode": ("decode", codecs.decode_groups),
    "pack": ("pack", lambda: [*worked.pack_groups(), *codecs.pack_groups()]),
    "hadamard": ("hadamard", lambda: [*worked.hadamard_groups(), *codecs.hadamard_groups()]),
    "nvfp4": ("quantize", lambda: [*worked.nvfp4_groups(), *nvfp4.nvfp4_groups()]),
    "mx": ("quantize", lambda: [*worked.mx_groups(), *mx.mx_groups()]),
    "four_over_six": ("quantize", lambda: [*worked.four_over_six_groups(), *four_over_six.four_over_six_groups()]),
    "stochastic": ("quantize", four_over_six.stochastic_groups),
    "refused": ("quantize", refusals.refused_groups),
    "dequantize": ("dequantize", lambda: [*worked.dequantize_groups(), *dequantization.dequantize_groups()]),
    "layout": ("layout", lambda: [*worked.layout_groups(), *layouts.layout_groups()]),
    "group_offsets": ("group_offsets", layouts.group_offset_groups),
    "row_range": ("row_range", layouts.row_range_groups),
    "gemm": ("gemm", products.gemm_groups),
    "philox": ("philox", draws.philox_groups),
    "random_bits": ("random_bits", draws.random_bits_groups),
    "random_map": ("random_map", draws.random_map_groups),
}


# From recordings; without these the files stay as they are.
RECORDED: dict[str, tuple[str, Callable[[recorded.Archive], list[Json]]]] = {
    "profiles": (recorded.PEERS, recorded.peer_groups),
    "transformer_engine": (recorded.TRANSFORMER_ENGINE, recorded.te_groups),
}


@dataclass
class VectorPlan:
    """The changes that writing would make.

    texts: of every file, by name. stale: names of files whose text would change. changed: ids of tests whose inputs
    stay, but whose expected bits would change. kept: names of files whose recording is not here.
    """

    texts: dict[str, str] = field(default_factory=dict)
    stale: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)


def plan(directory: Path, recordings: Path | None = None) -> VectorPlan:
    """Build every file; nothing is written.

    directory: where the files of earlier times lie, whose ids are kept. recordings: a folder with the archives of
    recorded outputs; None, or a folder without them, leaves the files cut from them alone.
    """
    made = VectorPlan()
    for name, (operation, groups) in BUILT.items():
        _add(made, directory, name, operation, groups())
    for name, (archive, cut) in RECORDED.items():
        path = recordings / archive if recordings else None
        if path is None or not path.is_file():
            made.kept.append(f"{name}.json")
            continue
        with np.load(path, allow_pickle=False) as members:
            _add(made, directory, name, "quantize", cut({key: members[key] for key in members.files}))
    return made


def write(made: VectorPlan, directory: Path, *, force: bool = False) -> None:
    """Write the files that would change. force: replace files that are not JSON. Rules: FIL-4, FIL-6."""
    directory.mkdir(parents=True, exist_ok=True)
    for name in made.stale:
        write_bytes(directory / name, made.texts[name].encode(), JSON, force=force)


def _add(made: VectorPlan, directory: Path, name: str, operation: str, groups: list[Json]) -> None:
    path = directory / f"{name}.json"
    old = read(path) if path.is_file() else None
    content = numbered(operation, groups, old)
    wrong = next(problems(content), None)
    if wrong:
        raise FileError(f"vectors {path.name}", wrong, f"what {SCHEMA} says")
    made.texts[path.name] = text = layout_text(content)
    if old is None or text != path.read_text("utf-8"):
        made.stale.append(path.name)
    answers = _answers(old) if old else {}
    made.changed += [
        f"{name}:{number}" for number, answer in _answers(content).items() if answers.get(number, answer) != answer
    ]


def numbered(operation: str, groups: list[Json], old: Json | None) -> Json:
    """Return the content of a file: tests that exist keep their ids, others get the next ones; no id is used again.

    A test that names an input shares it: its tensor moves to the file's `inputs`.
    """
    known = {_key(old, group, test): test["id"] for group in old["groups"] for test in group["tests"]} if old else {}
    content: Json = {"schema": SCHEMA, "operation": operation, "last_id": old["last_id"] if old else 0}
    inputs: Json = {}
    made, written = [], set()
    for group in groups:
        tests = []
        for test in group["tests"]:
            key = _key(content, group, test)
            if key in written:  # two sources aim at the same edge: the first one counts
                continue
            written.add(key)
            number = known.get(key)
            if number is None:
                content["last_id"] = number = content["last_id"] + 1
            tests.append({"id": number, **_sharing(test, inputs)})
        made.append({**group, "tests": tests})
    flags = sorted({flag for group in made for test in group["tests"] for flag in test["flags"]})
    content["notes"] = {flag: NOTES[flag] for flag in flags}
    return {**content, **({"inputs": inputs} if inputs else {}), "groups": made}


TENSOR = ("dtype", "shape", "x")


def _sharing(test: Json, inputs: Json) -> Json:
    if "input" not in test:
        return test
    tensor = {name: test[name] for name in TENSOR}
    assert inputs.setdefault(test["input"], tensor) == tensor, test["input"]
    return {name: value for name, value in test.items() if name not in TENSOR}


def _key(content: Json, group: Json, test: Json) -> str:
    """Return a test's inputs and its group's settings as one text, equal for equal tests."""
    settings = {name: value for name, value in group.items() if name not in {"rules", "source", "tests"}}
    given = {name: value for name, value in test.items() if name not in {"id", "flags", "comment", "input"}}
    for answer in ANSWERS[content["operation"]]:
        given.pop(answer, None)
    shared = content.get("inputs", {}).get(test.get("input"), {})
    return json.dumps([settings, {**shared, **given}], sort_keys=True)


def _answers(content: Json) -> dict[int, Json]:
    """Return the expected answers of a file's tests, by id."""
    return {
        test["id"]: {name: test.get(name) for name in ANSWERS[content["operation"]]}
        for group in content["groups"]
        for test in group["tests"]
    }


def layout_text(content: Json) -> str:
    """Canonical text: one line per note, input and test."""
    parts = [f" {_dump(name)}: {_dump(content[name])}" for name in ("schema", "operation", "last_id")]
    for name in ("notes", "inputs"):
        if name in content:
            rows = [f"  {_dump(key)}: {_dump(value)}" for key, value in content[name].items()]
            parts.append(f" {_dump(name)}: {{\n" + ",\n".join(rows) + "\n }")
    groups = []
    for group in content["groups"]:
        head = [f"   {_dump(key)}: {_dump(value)}" for key, value in group.items() if key != "tests"]
        tests = ",\n".join(f"    {_dump(test)}" for test in group["tests"])
        groups.append("  {\n" + ",\n".join([*head, f'   "tests": [\n{tests}\n   ]']) + "\n  }")
    parts.append(' "groups": [\n' + ",\n".join(groups) + "\n ]")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _dump(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
