"""Statements of what was tried and found: their digest, and what a check of them sees."""

from __future__ import annotations

import copy
import hashlib
import json
import re
from collections import Counter
from pathlib import Path

import jsonschema
import numpy as np
import pytest

import fp4ref
from commands import folder_with, printed
from fp4ref.catalogue import PROFILES
from fp4ref.cli import verify_backends
from fp4ref.conformance.selfcheck.report import SelfCheckReport
from fp4ref.conformance.vectors.text import Mismatch
from fp4ref.conformance.verdict.levels import cited
from fp4ref.conformance.verdict.statement import digest
from fp4ref.conformance.verdict.statement_check import problems, read, schema, violations
from fp4ref.errors import FileError
from fp4ref.kernels import Declaration
from fp4ref.standard.levels import LEVELS
from standard_rules import rows_of, text_of

KERNELS = """
import numpy as np
import fp4ref

def good(x):
    q = fp4ref.quantize(x, "nvfp4", backend="numpy")
    return q.row.data, q.row.scales, q.row.amax

def wrong(x):
    if x.shape[-1] % 16:
        raise ValueError("K")
    data, scales, amax = good(x)
    return data << 4 | data >> 4, scales, amax

def rare(x):
    data, scales, amax = good(x)
    if x.dtype.name == "bfloat16" and int(x.view(np.uint16).astype(np.int64).sum()) % 2:
        data = data ^ 1
    return data, scales, amax

@fp4ref.kernel(operation="gemm", inputs=("a_data", "a_scales", "a_amax", "b_data", "b_scales", "b_amax"),
               outputs=("values",), multiple=(1, 16))
def gemm(a, sa, ma, b, sb, mb):
    raise ValueError("no")
"""
FEW = "--family normal --family axes --family minus-zero --no-diagnosis"


here = folder_with(KERNELS)


def stated(name: str, status: int, more: str = FEW, spec: str = "nvfp4") -> dict:
    printed(f"verify --kernel kernels.py:{name} --spec {spec} {more} --statement s.json", status)
    return json.loads(Path("s.json").read_text(encoding="utf-8"))


@pytest.mark.example("CNF-64")
@pytest.mark.slow  # four runs of a few cases
@pytest.mark.rule("CNF-41", "CNF-21", "CNF-64")
def test_a_statement_does_not_depend_on_what_failed_before(here, monkeypatch):
    monkeypatch.setenv("FP4REF_CACHE_DIR", str(here / "cache"))
    ((cell, result),) = rows_of("CNF-64")
    zero, seed, again = map(int, re.findall(r"seed (\d+)", cell))
    assert (zero, again, result) == (0, 0, "the third is that of the first")
    first = stated("rare", 1)
    assert first["found"]["failing"]
    printed(f"verify --kernel kernels.py:rare --spec nvfp4 {FEW} --seed {seed}", 1)
    assert stated("rare", 1)["digest"] == first["digest"]
    other = stated("rare", 1, f"{FEW} --seed {seed}")
    assert [(record["found"]["seed"], record["found"]["seeds"]) for record in (first, other)] == [(0, 1), (seed, 1)]
    assert problems(other) == []


@pytest.mark.example("CNF-63")
@pytest.mark.slow
@pytest.mark.rule("CNF-17", "CNF-18", "CNF-62", "CNF-63")
def test_statements_of_kernels(here):
    record = stated("good", 0)
    found = record["found"]
    text = json.dumps(found, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    assert record["digest"] == f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"
    assert found["levels"] == {"fp4ref spec 1.0, nvfp4, quantize, row": ["an amax that a caller gives"]}
    assert found["subject"] == {"kind": "kernel", "name": "kernels.py:good"}
    assert (found["conforms"], found["failing"], found["known_failures"]) == (True, [], [])
    assert found["coverage"]["cases"] == found["cases"] > 5
    (facts, where), *_ = rows_of("CNF-63")
    keys = {fact if fact in {"time", "processor"} else f"{fact}s" for fact in facts.split(", ")[:4]}
    assert where == "`beside`"
    assert keys <= set(record["beside"])
    assert not keys & set(found)
    assert record["beside"]["files"] == {"kernels.py": hashlib.sha256(KERNELS.encode()).hexdigest()}
    text = printed("statement check s.json")
    assert text.startswith(f"s.json: holds; kernels.py:good conforms to nvfp4: {found['cases']} cases, 0 fail\n")
    assert (
        "as far as was tried: fp4ref spec 1.0, nvfp4, quantize, row\n    but for an amax that a caller gives\n" in text
    )
    (here / "other").mkdir()
    (here / "other" / "kernels.py").write_text("# the same\n" + KERNELS)
    printed(f"verify --kernel other/kernels.py:good --spec nvfp4 {FEW} --statement t.json")
    assert json.loads((here / "t.json").read_text())["digest"] == record["digest"]


@pytest.mark.slow
@pytest.mark.rule("CNF-17", "CNF-18", "CNF-62")
def test_statements_of_wrong_kernels_name_what_fails(here):
    (here / "known.txt").write_text(
        "wrong nvfp4 axes/* K must be whole\n* nvfp4 normal/1/f32/row nibbles\n* mxfp4 minus-zero/* no\n"
    )
    found = stated("wrong", 1, f"{FEW} --known-failures known.txt --subject-version 2.1")["found"]
    assert (found["subject"]["version"], found["levels"]) == ("2.1", {})
    families = found["families"]
    assert len(found["failing"]) == sum(cell["total"] - cell["passed"] for cell in families.values())
    reasons = {each["case"]: each["reason"] for each in found["known_failures"]}
    assert reasons["normal/1/f32/row"] == "nibbles"
    assert set(reasons.values()) <= {"nibbles", "K must be whole"}
    assert "does not conform to nvfp4" in printed("statement check s.json")
    assert json.loads(printed("statement check s.json --json"))["problems"] == []


@pytest.mark.slow
@pytest.mark.rule("CNF-17", "CNF-18")
def test_statements_of_products_and_dumps(here):
    found = stated("gemm", 1, "--no-diagnosis --seed 5")["found"]
    assert (found["seed"], found["seeds"]) == (5, 1)
    assert [each["kind"] for each in found["findings"]] == ["raised"]
    assert found["findings"][0]["count"] == found["cases"] == len(found["failing"])
    assert "holds" in printed("statement check s.json")
    x = np.random.default_rng(0).standard_normal((32, 48)).astype(np.float32)
    q = fp4ref.quantize(x, "nvfp4")
    for name, data, status in (("right", q.row.data, 0), ("wrong", q.row.data ^ 1, 1)):
        np.savez(f"{name}.npz", x=x, data=data, scales=q.row.scales, amax=q.row.amax)
        printed(f"verify {name}.npz --spec nvfp4 --layout linear --no-diagnosis --statement s.json", status)
        found = json.loads((here / "s.json").read_text())["found"]
        assert found["subject"]["sha256"] == hashlib.sha256((here / f"{name}.npz").read_bytes()).hexdigest()
        assert (found["conforms"], found["cases"], len(found["failing"])) == (not status, 1, status)
        assert "holds" in printed("statement check s.json")


@pytest.mark.rule("CNF-18")
@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("verify --kernel kernels.py:good --spec nvfp4 --statement no/s.json", "no such file or directory"),
        ("verify --kernel kernels.py:good --spec nvfp4 --statement kernels.py", "write kernels.py: "),
        ("verify --kernel kernels.py:good --spec nvfp4 --statement known.txt", "write known.txt: "),
        ("verify --kernel kernels.py:good --spec nvfp4 --statement s.json --junit s.json", "two files"),
        ("verify --kernel kernels.py:good --spec nvfp4 --subject-version 1", "need --statement"),
        ("verify --kernel kernels.py:good --spec nvfp4 --statement s.json --case x", "is for whole reports"),
        ("verify --statement s.json --known-failures known.txt", "--known-failures: not without PATH"),
        ("statement check absent.json", "absent.json"),
        ("statement check kernels.py", "need JSON text"),
        ("statement check list.json", "no statement, need a statement of version 1"),
        ("statement check later.json", "version 2, need a statement of version 1"),
        ("statement check nan.json", "NaN is no number of JSON"),
        ("verify unread.npz --statement s.json --known-failures known.txt", "--known-failures is for kernels"),
    ],
)
def test_what_is_refused(here, line, message):
    (here / "list.json").write_text("[]")
    (here / "known.txt").write_text("a text of another kind")
    (here / "later.json").write_text('{"fp4ref_statement": 2, "found": {}}')
    (here / "nan.json").write_text('{"fp4ref_statement": 1, "found": {"a": NaN}}')
    text = printed(line, 2)
    assert message in text
    assert len(text.splitlines()) <= 4


@pytest.mark.example("CNF-63")
@pytest.mark.rule("CNF-17", "CNF-41", "CNF-63")
def test_the_statement_on_backends_leaves_the_machine_out(here, monkeypatch):
    def checked(*_, **__):
        report = SelfCheckReport(subjects=["golden model", "numpy"], unavailable={"cuda": reasons.pop()})
        for name in report.subjects:
            report.add(name, "v/1", ("E2M1-3",), [])
            report.add(name, "v/2", ("E2M1-3", "BLK-1"), [Mismatch("code", (), "", "1", "2")] if name in wrong else [])
        report.unsupported["numpy"] = Counter({"no stream": 2})
        return report

    monkeypatch.setattr(verify_backends.selfcheck, "run", checked)
    wrong, reasons, records = [], ["no driver", "no device", "no driver"], []
    for _ in range(2):
        printed("verify --statement b.json --subject-version 7")
        records.append(read(Path("b.json")))
    wrong.append("numpy")
    printed("verify --statement b.json --subject-version 7", 1)
    records.append(read(Path("b.json")))
    assert [problems(record) for record in records] == [[], [], []]
    assert records[0]["digest"] == records[1]["digest"] != records[2]["digest"]
    found = records[2]["found"]
    assert found["subject"] == {"kind": "backends", "name": "golden model, numpy", "version": "7"}
    assert (found["conforms"], found["cases"], found["failing"]) == (False, 4, ["numpy: v/2"])
    assert found["rules"] == {"BLK-1": {"passed": 1, "total": 2}, "E2M1-3": {"passed": 3, "total": 4}}
    assert found["coverage"]["not_judged"] == {"cuda": "not available"}
    assert records[1]["beside"]["unavailable"] == {"cuda": "no device"}
    assert rows_of("CNF-63")[1] == ["why a backend is not available", "`beside`; its name is in `found`"]


# A statement by hand, and what a change does to it

FOUND = {
    "standard": "1.0",
    "kit": "0.1.0",
    "subject": {"kind": "kernel", "name": "k.py:f"},
    "specs": {"nvfp4": {}},
    "declaration": {},
    "conforms": False,
    "cases": 5,
    "coverage": {
        "cases": 4,
        "elements": 64,
        "dtypes": ["float32"],
        "largest": {"rows": 4, "columns": 4, "elements": 16},
        "families": {"tried": {"a": 3, "b": 1}, "known": 3, "not_tried": {"c": "not asked for"}},
        "not_judged": {},
        "stopped": "",
    },
    "families": {"a": {"passed": 3, "total": 3}, "b": {"passed": 0, "total": 2}},
    "rules": {"E2M1-3": {"passed": 3, "total": 5}},
    "counts": {"codes": 7},
    "differs_on": [],
    "findings": [{"kind": "raised", "count": 1, "first": "b/2"}],
    "skipped": {"takes no amax": 2},
    "failing": ["b/1", "b/2"],
    "known_failures": [{"case": "b/1", "reason": "accepted"}],
}

IMPLAUSIBLE = {
    "level": "bracket",
    "map": "",
    "seed": 0,
    "seeds": 1,
    "tests": {"away at frac 0.5": False, "away at frac 0.25": True},
    "wrong": [],
}


def whole(found=FOUND):
    return {"fp4ref_statement": 1, "digest": digest(found), "found": copy.deepcopy(found), "beside": {"time": "now"}}


@pytest.mark.example("CNF-17")
@pytest.mark.rule("CNF-18", "CNF-41")
def test_a_statement_by_hand_holds_and_its_machine_is_not_covered():
    cells = " ".join(example for _, example in rows_of("CNF-17"))
    found = whole()["found"]
    assert re.match(r"`([\d.]+)`", cells)[1] == found["standard"] == fp4ref.SPEC_VERSION
    (rule, passed, total), (kind, count, first) = (
        re.search(r"`(\w+-\d+)`: (\d+) passed of (\d+)", cells).groups(),
        re.search(r"`(\w+)`, (\d+), first in `(\S+)`", cells).groups(),
    )
    found["rules"] = {rule: {"passed": int(passed), "total": int(total)}}
    found["findings"] = [{"kind": kind, "count": int(count), "first": first}]
    assert problems(whole(found)) == []
    assert re.search(rf"{total} cases of \d+ families, seed 0 ", cells)
    assert f"`{first}`: K must be whole" not in cells
    assert problems(whole()) == []
    assert problems(whole() | {"beside": {"time": "later"}}) == []


CHANGES = [
    (lambda found: found["failing"].pop(), "failing: 1 cases, but 2 of the families do"),
    (lambda found: found["failing"].append("b/2"), "failing: a case is listed twice"),
    (lambda found: found.update(conforms=True), "conforms: true, with 2 of 5 cases failing"),
    (
        lambda found: found.update(
            conforms=True, failing=[], known_failures=[], findings=[], families={}, randomness=IMPLAUSIBLE
        ),
        "conforms: true, with 1 implausible counts and 0 other findings",
    ),
    (lambda found: found.update(cases=6), "cases: 6, but the families have 5"),
    (lambda found: found["families"]["a"].update(passed=4), "families: a passed 4 of 3"),
    (lambda found: found["rules"]["E2M1-3"].update(passed=6), "rules: E2M1-3 passed 6 of 5"),
    (lambda found: found["coverage"].update(cases=5), "coverage: 5 cases, but the families have 4"),
    (
        lambda found: found["coverage"]["families"]["tried"].update(b=3),
        "coverage: more cases of a family than were run",
    ),
    (lambda found: found["known_failures"][0].update(case="a/1"), "known_failures: a case that does not fail"),
    (
        lambda found: found.update(levels={"fp4ref spec 1.0, nvfp4, gemm": []}),
        "levels: cited, but the subject does not",
    ),
    (lambda found: found["findings"][0].update(count=3), "findings: 3 cases, but 2 fail"),
    (lambda found: found.update(families={}, failing=["1", "2", "3", "4", "5", "6"]), "failing: 6 of 5 cases"),
]


@pytest.mark.example("CNF-18")
@pytest.mark.rule("CNF-18")
@pytest.mark.parametrize(("change", "problem"), CHANGES)
def test_counts_that_do_not_add_up_are_seen_with_or_without_a_new_digest(change, problem):
    counts = {"the cases of families": "cases: ", "failing cases": "failing: ", "known failures": "known_failures: "}
    counts |= {"a subject that conforms": "conforms: ", "levels": "levels: "}
    assert [count for count, _ in rows_of("CNF-18")] == [*counts]
    assert all(any(said.startswith(start) for _, said in CHANGES) for start in counts.values())
    record = whole()
    change(record["found"])
    assert problems(record)[0].startswith("digest: sha256:")
    record["digest"] = digest(record["found"])
    assert any(line.startswith(problem) for line in problems(record))


DECLARATIONS = [
    ("mxfp4", {}, "quantize, row", []),
    ("nvfp4", {"inputs": ("x", "amax"), "outputs": ("data", "scales")}, "quantize, row",
     ["the amax that quantization finds: it is given", "the stored amax"]),
    ("mxfp4", {"direction": "column", "scale_layout": "tiled_128x4", "dtypes": ("bfloat16", "float16")},
     "quantize, both directions",
     ["inputs of float32", "the row direction", "scales in linear: they are in tiled_128x4"]),
    ("mxfp4", {"multiple": (1, 32), "leading": False, "empty": False, "nibble_order": "high"}, "quantize, row",
     ["tensors of other than two dimensions", "the packing of chapter 04: codes are in high_first",
      "rows and columns that are not multiples of 1 and 32", "tensors without elements"]),
    ("mxfp4", {"operation": "dequantize", "inputs": ("data", "scales"), "outputs": ("values",), "to": "bfloat16",
               "specials": ("inf",)}, "dequantize",
     ["results of float32", "results of float16", "bytes that stand for nan", "the column direction"]),
    ("mxfp4", {"operation": "to_layout", "inputs": ("scales",), "outputs": ("scales",), "scale_layout": "tiled_8x4"},
     "layouts", ["layouts other than linear to tiled_8x4", "groups, ranges of rows and flags"]),
    ("mxfp4", {"operation": "gemm", "inputs": ("a_data", "a_scales", "b_data", "b_scales", "alpha", "bias"),
               "outputs": ("values",)}, "gemm",
     ["results of bfloat16", "results of float16", "the modes exact and blockwise", "the argument accumulate",
      "operands other than the row direction of A and the row direction of B"]),
]  # fmt: skip


@pytest.mark.rule("RES-3", "CNF-62")
@pytest.mark.parametrize(("spec", "fields", "level", "lacks"), DECLARATIONS)
def test_a_declaration_cites_its_level_and_what_it_leaves_out(spec, fields, level, lacks):
    assert cited(PROFILES[spec], Declaration(**fields)) == {f"fp4ref spec 1.0, {spec}, {level}": lacks}
    assert level in LEVELS


@pytest.mark.example("CNF-62")
@pytest.mark.rule("RES-3", "CNF-62")
def test_levels_of_stochastic_kernels_and_of_none():
    (kernel, shown), (_, none) = rows_of("CNF-62")
    types = re.findall(r"b?float\d+", kernel)
    level, _, lacks = shown.partition("`, but for ")
    assert cited(fp4ref.NVFP4, Declaration(dtypes=tuple(types))) == {level.strip("`"): lacks.split(", ")}
    assert none == "none"  # test_statements_of_wrong_kernels_name_what_fails
    given = Declaration(inputs=("x", "random_bits"))
    drawn = Declaration(inputs=("x", "seed", "offset"))
    start = "fp4ref spec 1.0, nvfp4-sr"
    for declared, lacks in ((given, []), (drawn, ["random bits that are given"])):
        levels = cited(fp4ref.NVFP4_SR, declared)
        assert [*levels] == [f"{start}, quantize, row", f"{start}, stochastic"]
        assert levels[f"{start}, stochastic"] == lacks
    transform = Declaration(operation="hadamard", inputs=("x",), outputs=("values",))
    assert cited(fp4ref.NVFP4_RHT, transform) == {}


SHAPES = [
    lambda record: record.pop("beside"),
    lambda record: record.update(more=1),
    lambda record: record.update(digest="sha256:0"),
    lambda record: record["found"].pop("kit"),
    lambda record: record["found"].update(cases=-1),
    lambda record: record["found"].update(cases=True),
    lambda record: record["found"].update(failing=[1]),
    lambda record: record["found"]["subject"].update(kind="other"),
    lambda record: record["found"]["subject"].update(sha256="ABC"),
    lambda record: record["found"]["families"].update(a=3),
    lambda record: record["found"]["coverage"]["families"]["tried"].update(a=0),
    lambda record: record["found"]["known_failures"][0].update(reason=""),
    lambda record: record["found"].update(conforms="yes"),
    lambda record: record["found"].update(levels=["quantize, row"]),
]


@pytest.mark.rule("CNF-18")
@pytest.mark.parametrize("change", SHAPES)
def test_the_form_is_that_of_the_schema(change):
    jsonschema.Draft202012Validator.check_schema(schema())
    validator = jsonschema.Draft202012Validator(schema())
    record = whole()
    assert [*violations(record, schema())] == []
    assert validator.is_valid(record)
    change(record)
    assert [*violations(record, schema())]
    assert not validator.is_valid(record)
    assert problems(record)


@pytest.mark.rule("CNF-108")
def test_a_changed_file_fails_with_1_and_a_cut_one_with_2(here):
    text = json.dumps(whole())
    for content, status in ((text, 0), (text.replace('"codes": 7', '"codes": 8'), 1), (text[:-9], 2)):
        (here / "s.json").write_text(content)
        printed("statement check s.json", status)


@pytest.mark.rule("CNF-41", "CNF-108")
@pytest.mark.example("CNF-41", "CNF-108")
def test_changes_of_a_statement_as_the_standard_lists_them(here):
    def removed(record):
        record["found"]["failing"].pop()

    changes = {
        "none": lambda record: None,
        "the time in `beside`": lambda record: record["beside"].update(time="later"),
        "of the time in `beside`": lambda record: record["beside"].update(time="later"),
        "of a count in `found`": lambda record: record["found"]["counts"].update(codes=8),
        "a case that fails is removed": removed,
    }
    for change, result in rows_of("CNF-41"):
        record = whole()
        changes[change](record)
        assert (digest(record["found"]) == record["digest"]) == (result == "the same")
    text = json.dumps(FOUND, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    (bits,) = re.findall(r"SHA-(\d+) of `found` as canonical JSON", text_of("CNF-41"))
    assert digest(FOUND) == f"sha{bits}:{getattr(hashlib, f'sha{bits}')(text).hexdigest()}"
    for cell, status in rows_of("CNF-108"):
        contents = []
        if cell == "the file is cut":
            contents = [json.dumps(whole())[:-9]]
        for change in re.split(", or |, with or without a new digest", cell) if not contents else ():
            for again in (False, True) if "new digest" in cell else (False,):
                record = whole()
                changes.get(change, lambda record: None)(record)
                assert not change or change in changes
                if again:
                    record["digest"] = digest(record["found"])
                contents += [json.dumps(record)] * bool(change)
        for content in contents:
            (here / "s.json").write_text(content)
            printed("statement check s.json", int(status))
        assert contents
    first = [
        int(number)
        for number in re.findall(
            r"end in (\d) if all of CNF-18 holds, in (\d) if not, and in (\d)", " ".join(text_of("CNF-108").split())
        )[0]
    ]
    assert first == [int(status) for _, status in rows_of("CNF-108")]


@pytest.mark.rule("CNF-108")
def test_a_text_that_has_no_bytes_is_no_statement(tmp_path):
    path = tmp_path / "s.json"
    path.write_text('{"fp4ref_statement": 1, "found": {"a": "\\ud800"}}')
    with pytest.raises(FileError, match="surrogates not allowed, need JSON text"):
        read(path)
