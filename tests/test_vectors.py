from __future__ import annotations

import copy
import json
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
from click.testing import CliRunner

from fp4ref.catalogue import PROFILES, PROMISES
from fp4ref.cli import main
from fp4ref.conformance.vectors import files as vectors
from fp4ref.conformance.vectors import vector_runs
from fp4ref.conformance.vectors import write as write_vectors
from fp4ref.conformance.vectors.subjects import ApiSubject, GoldenSubject
from fp4ref.errors import FileError
from fp4ref.promise import Checked

RECORDINGS = Path(__file__).parent / "data"
ROOT = vectors.vector_root()
FILES = {file.name: file for file in vectors.load()}
BACKEND = ApiSubject("numpy")
LIMIT = 1_000_000  # bytes that may be in the wheel


def content(name: str) -> dict:
    return json.loads((ROOT / f"{name}.json").read_text("utf-8"))


@pytest.fixture(scope="module")
def schema() -> jsonschema.Draft202012Validator:
    found = json.loads((ROOT / vectors.SCHEMA).read_text("utf-8"))
    jsonschema.Draft202012Validator.check_schema(found)
    return jsonschema.Draft202012Validator(found)


@pytest.mark.rule("CNF-1")
@pytest.mark.parametrize("name", FILES)
def test_every_vector_holds_on_the_golden_model(name):
    subject = GoldenSubject()
    wrong = {test.id: str(found[0]) for test in FILES[name].tests if (found := vector_runs.run(test, subject))}
    assert not wrong


@pytest.mark.rule("CNF-1")
@pytest.mark.parametrize("name", FILES)
def test_every_vector_reaches_a_backend_and_holds(name):
    tests = [test for test in FILES[name].tests if not BACKEND.reasons(test)]
    assert tests or FILES[name].operation in {"group_offsets", "row_range", "philox", "random_map"}
    wrong = {test.id: str(found[0]) for test in tests if (found := vector_runs.run(test, BACKEND))}
    assert not wrong


@pytest.mark.heavy  # by default every vector holds on the golden model
@pytest.mark.slow
def test_files_are_what_their_sources_give():
    plan = write_vectors.plan(ROOT, RECORDINGS)
    assert not plan.kept
    assert not plan.stale, "run: fp4ref vectors write"
    assert set(plan.texts) == {f"{name}.json" for name in FILES}


@pytest.mark.parametrize("name", FILES)
def test_schema_accepts_every_file(schema, name):
    assert not [f"{error.json_path}: {error.message}" for error in schema.iter_errors(content(name))]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda file: file.update(surplus=1),
        lambda file: file.pop("notes"),
        lambda file: file.update(operation="decode"),
        lambda file: file["groups"][0].update(surplus=1),
        lambda file: file["groups"][0].pop("source"),
        lambda file: file["groups"][0].update(rules=[]),
        lambda file: file["groups"][0]["tests"][0].update(surplus=1),
        lambda file: file["groups"][0]["tests"][0].pop("flags"),
        lambda file: file["groups"][0]["tests"][0].update(codes=["xy"]),
        lambda file: file["groups"][0]["tests"][0].update(values=["3f8000"]),
        lambda file: file["groups"][0]["tests"][0].update(id=0),
    ],
)
def test_schema_refuses(schema, spoil):
    spoiled = content("encode")
    spoil(spoiled)
    assert not schema.is_valid(spoiled)


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda file: file.update(surplus=1), "keys"),
        (lambda file: file.update(operation="other"), "operation"),
        (lambda file: file["groups"][0].update(surplus=1), "keys"),
        (lambda file: file["groups"][0].update(rules=["encode"]), "rules"),
        (lambda file: file["groups"][0]["tests"][0].pop("comment"), "without comment"),
        (lambda file: file["groups"][0]["tests"][1].update(id=1), "an id twice"),
        (lambda file: file.update(last_id=1), "past last_id"),
        (lambda file: file["notes"].pop("MinusZero"), "MinusZero"),
        (lambda file: file["groups"][0]["tests"][0].update(input="none"), "unknown input"),
    ],
)
def test_loading_finds_what_is_wrong(tmp_path, spoil, says):
    spoiled = content("encode")
    spoil(spoiled)
    (tmp_path / "encode.json").write_text(json.dumps(spoiled), "utf-8")
    with pytest.raises(FileError, match=says):
        vectors.load(tmp_path)


@pytest.mark.parametrize("text", ["", "[]", "{", "[" * 100_000])
def test_loading_refuses_other_files(tmp_path, text):
    (tmp_path / "encode.json").write_text(text, "utf-8")
    with pytest.raises(FileError):
        vectors.load(tmp_path)


def test_loading_an_empty_folder_is_an_error(tmp_path):
    with pytest.raises(FileError, match=r"no \*\.json"):
        vectors.load(tmp_path)


def test_there_are_enough_and_not_too_many():
    sizes = [path.stat().st_size for path in ROOT.glob("*.json")]
    assert sum(sizes) <= LIMIT
    recorded = {test.group["spec"] for test in FILES["profiles"].tests}
    assert len(recorded) == 61
    assert recorded <= set(PROFILES)
    assert all(PROMISES[name].checked is Checked.RECORDED for name in recorded)


# Running finds mistakes


SPOILED = [
    ("encode", ("codes", 0), "3"),
    ("decode", ("values", 0), "7fc00000"),
    ("pack", ("packed",), "ff"),
    ("hadamard", ("transformed",), " ".join(["3f80"] * 16)),
    ("nvfp4", ("expected", "data", 0), "00" * 8),
    ("nvfp4", ("expected", "scales", 0), "01"),
    ("nvfp4", ("expected", "scales"), ["01", "01"]),
    ("dequantize", ("expected", "values", 0), " ".join(["3f80"] * 16)),
    ("layout", ("padded",), [1, 1]),
    ("layout", ("offsets", 0), 3),
    ("layout", ("padding",), [0]),
    ("group_offsets", ("starts",), [5]),
    ("row_range", ("expected", "bytes"), [0, 1]),
    ("gemm", ("expected", "values", 0), "00000000 00000000"),
    ("gemm", ("a", "scales", 0), "30"),
    ("gemm", ("expected",), {"error": "ShapeError", "rule": "GEM-22"}),
    ("philox", ("words",), "00000000 00000000 00000000 00000000"),
    ("random_bits", ("expected", "bytes", 0), "00" * 40),
    ("random_bits", ("seed",), "0000000000000001"),
    ("random_map", ("bytes",), "00" * 16),
    ("refused", ("expected", "rule"), "NUM-1"),
    ("refused", ("expected", "error"), "ShapeError"),
    ("nvfp4", ("expected",), {"error": "ShapeError", "rule": "BLK-1"}),
]


@pytest.mark.rule("CNF-1")
@pytest.mark.parametrize("subject", [GoldenSubject(), BACKEND], ids=["golden", "backend"])
@pytest.mark.parametrize(("name", "path", "value"), SPOILED)
def test_a_wrong_expectation_is_found(subject, name, path, value):
    test = FILES[name].tests[0]
    fields = copy.deepcopy(dict(test.fields))
    place = fields
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    spoiled = vectors.VectorTest(test.file, test.operation, test.group, fields, fields if "x" in fields else test.input)
    if not subject.reasons(spoiled):
        assert vector_runs.run(spoiled, subject)


def test_nan_stands_for_every_nan_and_nothing_else():
    test = next(t for t in FILES["decode"].tests if t.fields["values"] == ["nan"])
    assert not vector_runs.run(test, GoldenSubject())
    number = next(t for t in FILES["decode"].tests if t.fields["values"] != ["nan"])
    changed = vectors.VectorTest(number.file, number.operation, number.group, {**number.fields, "values": ["nan"]}, {})
    assert vector_runs.run(changed, GoldenSubject())


# Writing


def small(*values: str) -> list[dict]:
    tests = [{"flags": ["NaN"], "comment": v, "codes": [v], "values": ["00000000"]} for v in values]
    return [{"rules": ["E2M1-1"], "source": {"name": "s", "version": "1"}, "codec": {}, "tests": tests}]


def ids(file: dict) -> dict[str, int]:
    return {test["comment"]: test["id"] for group in file["groups"] for test in group["tests"]}


def test_ids_stay_and_are_never_used_again():
    old = write_vectors.numbered("decode", small("1", "2", "3"), None)
    assert ids(old) == {"1": 1, "2": 2, "3": 3}
    fewer = write_vectors.numbered("decode", small("2"), old)
    assert (ids(fewer), fewer["last_id"]) == ({"2": 2}, 3)
    more = write_vectors.numbered("decode", small("4", "2", "3"), fewer)
    assert ids(more) == {"4": 4, "2": 2, "3": 5}


def test_the_same_test_is_written_once():
    assert ids(write_vectors.numbered("decode", small("1", "1"), None)) == {"1": 1}


def test_inputs_that_tests_share_count_as_inputs():
    tests = [
        {
            "flags": ["NaN"],
            "comment": str(i),
            "input": "a",
            "dtype": "float32",
            "shape": [1, i],
            "x": ["0"],
            "expected": {},
        }
        for i in (1, 1)
    ]
    groups = [{"rules": ["E2M1-1"], "source": {"name": "s", "version": "1"}, "spec": "nvfp4", "tests": tests}]
    written = write_vectors.numbered("quantize", groups, None)
    assert written["inputs"] == {"a": {"dtype": "float32", "shape": [1, 1], "x": ["0"]}}
    assert ids(write_vectors.numbered("quantize", groups, written)) == {"1": 1}


def spoil_codes(path: Path) -> None:
    """Another code in the first test."""
    file = json.loads(path.read_text("utf-8"))
    file["groups"][0]["tests"][0]["codes"] = ["5"]
    path.write_text(json.dumps(file), "utf-8")


@pytest.mark.slow
def test_write_keeps_what_it_cannot_cut_and_refuses_silent_changes(tmp_path, monkeypatch):
    monkeypatch.setattr(write_vectors, "BUILT", {name: write_vectors.BUILT[name] for name in ("encode", "pack")})
    options = ["--dir", str(tmp_path), "--recordings", str(tmp_path)]

    def invoke(*more: str):
        return CliRunner().invoke(main, ["vectors", "write", *options, *more])

    assert invoke("--check").exit_code == 1
    assert not list(tmp_path.iterdir())
    result = invoke()
    assert result.exit_code == 0, result.output
    assert "profiles.json: kept" in result.output
    assert sorted(path.name for path in tmp_path.iterdir()) == ["encode.json", "pack.json"]
    assert invoke("--check").exit_code == 0

    spoil_codes(tmp_path / "encode.json")
    assert invoke("--check").exit_code == 1
    result = invoke()
    assert result.exit_code == 2
    assert "encode:1" in result.output
    assert invoke("--change").exit_code == 0
    assert invoke("--check").exit_code == 0


def test_list_shows_files_tests_and_rules():
    run = CliRunner().invoke
    files = json.loads(run(main, ["vectors", "list", "--json"]).output)
    assert {row["file"]: int(row["tests"]) for row in files} == {name: len(f.tests) for name, f in FILES.items()}
    tests = json.loads(run(main, ["vectors", "list", "pack", "--json"]).output)
    assert [row["test"] for row in tests] == [test.id for test in FILES["pack"].tests]
    chosen = json.loads(run(main, ["vectors", "list", "--rule", "LAY-9", "--json"]).output)
    assert {row["test"].split(":")[0] for row in chosen} == {"row_range"}
    assert "NibbleOrder" in run(main, ["vectors", "list", "pack"]).output
    assert run(main, ["vectors", "list", "nothing"]).exit_code == 2


def test_checking_needs_no_torch():
    module = "fp4ref.conformance.selfcheck.implementations"
    code = f"import sys, {module} as s; s.run([]); sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
