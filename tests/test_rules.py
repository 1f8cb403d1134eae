from __future__ import annotations

import dataclasses
import json
import re

import pytest
from click.testing import CliRunner

from commands import fp4
from fp4ref import rules, source_files, spec_root
from fp4ref.arithmetic import ARITHMETIC
from fp4ref.catalogue import PROFILES, PROMISES
from fp4ref.cli import main
from fp4ref.cli.rules import rules as command
from fp4ref.conformance.families.rules import NEAREST
from fp4ref.errors import FileError, UnknownNameError
from fp4ref.proof import records
from fp4ref.proof.catalogue import claims_of
from fp4ref.spec import from_json
from fp4ref.specs import NVFP4, OWN
from fp4ref.standard.places import by_room

CHAPTER = """# 01 · Things (AAA, BBB)

#### AAA-1 · First (shall)

It shall. See BBB-1.

```
#### not a heading
```

#### BBB-1 · Second (choice)

Either.
"""
MODEL = '''"""A module."""


class Thing:
    """A thing."""

    def first(self):
        """Do it. Rules: AAA-1."""
'''
TESTS = """import pytest


@pytest.mark.rule("AAA-1", "BBB-1")
def test_first():
    pass
"""
HEADER = """// Things.
#pragma once

// Do it, in two
// lines. Rules: AAA-1, BBB-1.
inline int first(int x) { return x; }
"""


@pytest.fixture
def tree(tmp_path):
    """A checkout without gaps."""
    files = {
        "spec/01-things.md": CHAPTER,
        "spec/history.json": json.dumps(
            {"versions": [{"version": "0.1", "state": "draft", "rules": {}, "changes": []}]}
        ),
        "spec/vectors/things.json": json.dumps({"groups": [{"rules": ["AAA-1"], "tests": []}]}),
        "package/model.py": MODEL,
        "backends/native/first.h": HEADER,
        "tests/test_things.py": TESTS,
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, "utf-8")
    backends = (tmp_path / "backends/native",)
    return rules.Tree(tmp_path / "spec", tmp_path / "package", backends, tmp_path / "tests")


@pytest.mark.heavy  # `fp4ref rules --check` finds the same, in a step of its own
def test_every_rule_is_defined_once_and_covered(rules_of_the_checkout):
    assert rules_of_the_checkout.gaps == []


def test_the_real_tree_is_read(rules_of_the_checkout):
    index = rules_of_the_checkout
    assert {"NUM", "E2M1", "BLK", "LAY", "FIL", "CNF"} <= {rule.prefix for rule in index.rules.values()}
    assert index.rules["E2M1-3"].kind is rules.RuleKind.SHALL
    assert "shall" in index.rules["E2M1-3"].text
    assert any(found.name == "Codec.encode" for found in index.citing("E2M1-3")["functions"])


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("template <class S> FP4_API bool reaches(unsigned k)\n{", "reaches"),
        ("template <class In, int = sizeof(list<In>)> struct flushing : In {", "flushing"),
        ("using hardware = Codec<e2m1, 7>;\nusing other = int;", "hardware"),
        ("#define ANY(x) x", ""),
    ],
)
def test_a_comment_belongs_to_the_name_that_is_declared_behind_it(source, name):
    assert source_files.declared("\n" + source) == name


def test_rules_that_oblige_have_one_shall_each(rules_of_the_checkout):
    known = [rule for rule in rules_of_the_checkout.rules.values() if rule.kind is rules.RuleKind.SHALL]
    assert len(known) > 600
    assert [rule.id for rule in known if len(re.findall(r"\bshall\b", rule.text)) != 1] == []


def test_a_tree_without_gaps(tree):
    index = rules.read(tree)
    assert index.gaps == index.notes == []
    assert list(index.rules) == ["AAA-1", "BBB-1"]
    assert index.functions == [("AAA-1", "package/model.py:7", "Thing.first")]
    assert index.backends == [(rule, "backends/native/first.h:4", "first") for rule in ("AAA-1", "BBB-1")]
    assert index.vectors == [("AAA-1", "spec/vectors/things.json:1", "group 0")]
    assert [found.name for found in index.tests] == ["test_first", "test_first"]


@pytest.mark.parametrize(
    ("name", "old", "new", "gap"),
    [
        ("spec/01-things.md", "# 01 · Things (AAA, BBB)", "# Things", "first line is not"),
        ("spec/01-things.md", "# 01 ·", "# 02 ·", "first line is not"),
        ("spec/01-things.md", "First (shall)", "First (must)", "01-things.md:3: heading is not"),
        ("spec/01-things.md", "#### AAA-1 · First", "#### AAA-1: First", "heading is not"),
        ("spec/01-things.md", "#### AAA-1", "##### AAA-1", "heading is not"),
        ("spec/01-things.md", "#### AAA-1", "#### AAA-01", "heading is not"),
        ("spec/01-things.md", "(AAA, BBB)", "(AAA)", "BBB-1 has a prefix that is not its chapter's"),
        ("spec/01-things.md", "#### BBB-1", "#### AAA-1", "AAA-1 is defined twice, also in 01-things"),
        ("spec/01-things.md", "It shall. See", "It shall, and it shall. See", "AAA-1: its text has 2 times the word"),
        (
            "spec/01-things.md",
            "It shall. See",
            "It does. See",
            "AAA-1: its text has 0 times the word `shall`, not once",
        ),
        ("spec/01-things.md", "See BBB-1.", "See BBB-7.", "01-things.md:5: mentions BBB-7, which is not defined"),
        ("package/model.py", "AAA-1.", "AAA-1, AAA-9.", "Thing.first cites AAA-9, which is not defined"),
        ("package/model.py", "AAA-1.", "AAA-1 and BBB-1.", "cites `AAA-1 and BBB-1`, which is not a rule's ID"),
        ("package/model.py", "A thing.", "A thing (AAA-8).", "model.py:5: mentions AAA-8, which is not defined"),
        ("package/model.py", " Rules: AAA-1.", "", "AAA-1: no function of the package implements it"),
        ("backends/native/first.h", "BBB-1.", "BBB-2.", "first.h:4: first cites BBB-2, which is not defined"),
        ("tests/test_things.py", '"BBB-1"', '"BBB-3"', "test_first cites BBB-3, which is not defined"),
        ("spec/vectors/things.json", "AAA-1", "AAA-5", "group 0 cites AAA-5, which is not defined"),
        ("spec/vectors/things.json", '"groups"', '"groups', "not a vector file"),
        ("spec/vectors/things.json", '"rules"', '"rule"', "not a vector file"),
    ],
)
def test_each_kind_of_gap_is_found(tree, name, old, new, gap):
    path = tree.package.parent / name
    text = path.read_text("utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), "utf-8")
    assert [line for line in rules.check(tree) if gap in line]


def test_a_prefix_of_another_chapter(tree):
    (tree.spec / "02-others.md").write_text("# 02 · Others (AAA)\n", "utf-8")
    assert rules.check(tree) == ["02-others.md: prefix AAA belongs to 01-things"]


def test_a_companion_volume_goes_on_with_a_prefix(tree):
    folder = tree.spec / "companion"
    folder.mkdir()
    (folder / "02-more.md").write_text(
        "# 02 · More (AAA)\n\n#### AAA-2 · More (shall)\n\nIt shall.\n\n#### AAA-1 · Again (shall)\n", "utf-8"
    )
    assert [path.name for path in rules.chapters(tree.spec)] == ["01-things.md", "02-more.md"]
    assert rules.check(tree) == [
        "02-more.md:7: AAA-1 is defined twice, also in 01-things",
        "AAA-2: no function of the package implements it",
        "AAA-2: no test or vector covers it",
    ]


def test_a_rule_that_no_test_or_vector_covers(tree):
    (tree.tests / "test_things.py").write_text("", "utf-8")
    assert rules.check(tree) == []  # a vector is enough, and a backend's citation for a choice
    (tree.spec / "vectors/things.json").unlink()
    assert rules.check(tree) == ["AAA-1: no test or vector covers it"]


def test_a_choice_that_nobody_cites(tree):
    (tree.backends[0] / "first.h").unlink()
    (tree.tests / "test_things.py").write_text(TESTS.replace(', "BBB-1"', ""), "utf-8")
    assert rules.check(tree) == ["BBB-1: no function or test cites it"]


def test_without_tests_the_rest_is_checked(tree):
    installed = dataclasses.replace(tree, tests=None)
    (tree.spec / "vectors/things.json").unlink()
    index = rules.read(installed)
    assert index.gaps == []
    assert index.notes == ["tests are not installed here: coverage by tests was not checked"]
    (tree.package / "model.py").write_text("", "utf-8")
    assert rules.check(installed) == ["AAA-1: no function of the package implements it"]


def test_marks_on_classes_parameters_and_modules(tree):
    text = """import pytest
pytestmark = pytest.mark.rule("AAA-1")
@pytest.mark.rule("BBB-1")
class TestThings:
    @pytest.mark.parametrize("x", [pytest.param(1, marks=pytest.mark.rule("AAA-1"))])
    def test_it(self, x): pass
"""
    (tree.tests / "test_things.py").write_text(text, "utf-8")
    found = [(item.rule, item.name) for item in rules.read(tree).tests]
    assert sorted(found) == [("AAA-1", "TestThings.test_it"), ("AAA-1", "test_things"), ("BBB-1", "TestThings")]


def test_the_standard_is_found_in_a_checkout_and_in_an_installation(tmp_path):
    package = tmp_path / "fp4ref"
    with pytest.raises(FileError, match="no chapters"):
        spec_root.spec_root(package)
    for folder in (tmp_path / "spec", package / "_spec"):
        folder.mkdir(parents=True)
        (folder / "01-conventions.md").touch()
        assert spec_root.spec_root(package) == folder
        assert (rules.here(package).tests is None) == (folder.name == "_spec")


def run(*arguments):
    return CliRunner().invoke(command, arguments)


@pytest.mark.usefixtures("rules_read_once")
def test_command_lists_and_filters(tree, monkeypatch):
    assert "E2M1-3" in run("e2m1").output
    listed = run("blk", "--kind", "choice", "--json")
    assert listed.exit_code == 0
    assert [record["id"] for record in json.loads(listed.output)] == ["BLK-16", "BLK-11"]
    monkeypatch.undo()
    monkeypatch.setattr(rules, "here", lambda: tree)  # small: to find the certificates of every rule takes seconds
    assert re.findall(r"(?m)^ *([A-Z]+-\d) ", run().output) == ["AAA-1", "BBB-1"]


@pytest.mark.usefixtures("rules_read_once")
def test_command_shows_a_rule_and_who_cites_it():
    shown = run("e2m1-3").output
    assert shown.startswith("E2M1-3 · Ties go to the even code (shall)\n")
    assert "Codec.encode  fp4ref/formats/codec.py:" in shown


@pytest.mark.skipif(rules.here().tests is None, reason="an installation has no tests to read")
@pytest.mark.usefixtures("rules_read_once")
def test_command_shows_tests_that_only_read_a_table():
    shown, both = run("UE5M3-2").output, run("E2M1-3").output
    assert "examples:\n  test_encoders  tests/test_standard_examples.py:" in shown
    assert both.count("test_ties_of_e2m1  tests/test_standard_examples.py:") == 1


@pytest.mark.usefixtures("rules_read_once")
def test_command_refuses_an_unknown_name():
    assert isinstance(run("ZZZ").exception, UnknownNameError)


def test_a_long_list_reads_chapters_alone(monkeypatch):
    def refused(*_, **__):
        raise AssertionError("sources were read")

    monkeypatch.setattr(rules, "read", refused)
    for arguments, count in ((), len(rules.known())), (("--kind", "shall"), 600):
        lines = run(*arguments).output.splitlines()
        assert len(lines) > count
        assert int(lines[-1].split()[0]) == len(lines) - 2 >= count


def test_what_is_read_for_some_rules_is_what_is_read_of_them(rules_of_the_checkout):
    some = ["E2M1-3", "BLK-1", "CNF-2"]
    found = rules.read(only=some)
    for rule in some:
        assert found.citing(rule) == rules_of_the_checkout.citing(rule)


@pytest.mark.heavy
def test_command_checks(tree, monkeypatch):
    monkeypatch.setattr(rules, "here", lambda: tree)
    monkeypatch.setattr(records, "gaps", list)  # to read what certificates cover takes seconds: CI checks this tree
    assert run("--check").output == "2 rules, 0 gaps\n"
    (tree.package / "model.py").unlink()
    found = run("--check")
    assert (found.exit_code, found.output.splitlines()[-1]) == (1, "2 rules, 1 gaps")
    assert len(json.loads(run("--check", "--json").output)["gaps"]) == 1


# What the chapters of specs and profiles print is what the package holds


def chapter(name):
    return (spec_root.spec_root() / name).read_text("utf-8")


@pytest.mark.rule("PRO-2", "SPC-5", "PRO-12")
def test_the_table_of_profiles_has_each_of_them():
    text = chapter("profiles/22-profiles.md")
    table = text[text.index("| profile | arithmetic | element") :]
    rows = dict(re.findall(r"(?m)^\| `([a-z_0-9]+\.[^`]+)` \| `([^`]+)` \|", table))
    own = {spec.name for spec in OWN}
    assert rows == {name: PROFILES[name].arithmetic.name for name in PROMISES if name not in own}


@pytest.mark.rule("PRO-3")
def test_every_order_of_operations_is_in_a_table():
    rows = re.findall(r"(?m)^\| `([a-z0-9-]+)` \|", chapter("profiles/22-profiles.md"))
    assert set(rows) >= {name for name in ARITHMETIC if "." not in name}


@pytest.mark.rule("SPC-3")
def test_the_json_example_is_the_spec():
    (example,) = re.findall(r"```json\n(.*?)```", chapter("12-specs.md"), re.DOTALL)
    assert from_json(example) == NVFP4
    assert json.loads(example) == json.loads(NVFP4.to_json())


def test_who_changes_a_rounding_is_told_every_place(rules_of_the_checkout):
    for rule in (*NEAREST.values(), "E8M0-2"):
        places = " ".join(found.place for kind in rules_of_the_checkout.citing(rule).values() for found in kind)
        for part in ("fp4ref/formats/", "conformance/oracle/", "fp4ref/proof/", "include/fp4ref/", "fp4ref_torch/"):
            assert part in places, (rule, part)


LISTS = (
    "rules --since 0.1",
    "diagram",
    "layouts",
    "verify --signatures",
    "doctor",
    "mistakes code-*",
    "mistakes amax-inf",
)


@pytest.mark.sampled(4)
@pytest.mark.usefixtures("rules_read_once")
@pytest.mark.parametrize(("rule", "many"), [("BLK-4", True), ("HAD-1", False)])
def test_statements_of_many_certificates_are_left_to_prove(rule: str, many: bool) -> None:
    printed = " ".join(CliRunner(env={"COLUMNS": ""}).invoke(main, ["rules", rule]).stdout.split())
    claims = claims_of(rule)
    assert claims
    for claim in claims:
        assert claim.name.removesuffix(f"/{claim.subject}") in printed
        assert (" ".join(claim.statement.split()) in printed) is not many
    assert (f"`fp4ref prove --list {rule}` states what each certificate proves" in printed) is many


@pytest.mark.usefixtures("rules_read_once")
@pytest.mark.parametrize("line", [*(f"rules {name}" for name in ("BLK-3", "LAY-14", "SR-7", "FIL-3")), *LISTS])
def test_lists_and_texts_are_wrapped_between_words(line: str) -> None:
    """Tables and code of a rule stay as they are, and so does a word that is wider than the terminal."""
    words: list[list[str]] = []
    for columns in ("", "80"):
        result = CliRunner(env={"COLUMNS": columns}).invoke(main, line.split())
        assert result.exit_code == 0, result.output
        words.append(result.stdout.replace("> ", "").split())
    fence = False
    for told in result.stdout.splitlines():
        fence ^= told.startswith("```")
        table = told.startswith("|") or re.search(r"\S {2,}\S", told)
        assert fence or table or len(told) <= 80 or " " not in told.strip(), told
    assert sorted(words[0]) == sorted(words[1])


@pytest.mark.heavy
def test_the_code_of_a_rule_is_listed_by_what_it_is_for() -> None:
    """The golden model's first, with the line of a layout's digits; each citation in one room."""
    index = rules.read(only=["LAY-3", "E2M1-3"])
    rooms = by_room(index, "LAY-3")
    first, *others = rooms["functions"]
    line = (rules.here().package.parent / first.place.partition(":")[0]).read_text().splitlines()
    assert first.name == "TILED_128X4"
    assert "m(32,4,*) k(4,*): k0 m1 m0 k1 m2" in line[int(first.place.partition(":")[2]) - 1]
    assert sorted([*others, *(each for room in list(rooms)[1:] for each in rooms[room])]) == sorted(
        index.citing("LAY-3")["functions"]
    )
    folders = {"oracle": "conformance/oracle", "kit": "conformance", "proofs": "proof", "tools": "standard"}
    for room, folder in folders.items():
        assert rooms[room]
        assert all(each.place.startswith(f"fp4ref/{folder}/") for each in rooms[room])
    assert {each.place.split("/")[1] for each in rooms["figures"]} == {"diagrams", "explorer"}
    assert {each.place.split("/")[1].partition(":")[0] for each in rooms["functions"]} == {"api.py", "layout"}
    shown = fp4("rules", "E2M1-3").output.splitlines()
    headings = ["functions:", "oracle:", "proofs:", "figures:", "backends:", "tests:"]
    assert [line for line in shown if line in headings] == headings[: None if index.citing("E2M1-3")["tests"] else -1]
    model = shown[shown.index("functions:") : shown.index("oracle:")]
    assert any(line.startswith("  Codec._round  fp4ref/formats/codec.py:") for line in model)
