"""The text of the standard against the code: generated parts, formulas."""

from __future__ import annotations

import dataclasses
import json
import re

import numpy as np
import pytest
from click.testing import CliRunner

from fp4ref import rules
from fp4ref.arithmetic import ARITHMETIC
from fp4ref.catalogue import PROFILES
from fp4ref.cli.rules import rules as command
from fp4ref.errors import DomainError
from fp4ref.model.quantize import constants
from fp4ref.spec import SPEC_VERSION
from fp4ref.spec_root import spec_root
from fp4ref.specs import OWN
from fp4ref.standard import examples, formulas, history, made, tables
from fp4ref.standard.levels import LEVELS

F = np.float32
CHAPTER_12 = (spec_root() / "12-specs.md").read_text("utf-8")


def rows(text, head):
    """The rows of the first table after a text, by the words of its head."""
    lines = text[text.index(head) :].splitlines()
    names = [cell.strip() for cell in lines[0].strip("|").split("|")]
    table = []
    for line in lines[2:]:
        if not line.startswith("|"):
            break
        table.append(dict(zip(names, (cell.strip() for cell in line.strip("|").split("|")), strict=True)))
    return table


@pytest.fixture
def chapter(tmp_path):
    """A chapter with one generated part for each function, as it should be."""
    parts = [f"<!-- made: {name} -->\n{make()}<!-- end -->\n" for name, make in made.PARTS.items()]
    path = tmp_path / "01-things.md"
    path.write_text("\n".join(["# 01 · Things (AAA)\n", *parts]), "utf-8")
    return path


def test_generated_parts_are_checked_and_written(chapter):
    right = chapter.read_text("utf-8")
    assert made.gaps(chapter.parent) == []
    assert made.write(chapter.parent) == []
    chapter.write_text(right.replace("0x3E2AAAAB", "0x3E2AAAAC"), "utf-8")
    assert made.gaps(chapter.parent) == ["01-things.md:3: the part constants has drifted; fp4ref rules --write"]
    assert made.write(chapter.parent) == ["01-things.md"]
    assert chapter.read_text("utf-8") == right


@pytest.mark.parametrize(
    ("old", "new", "gap"),
    [
        ("<!-- made: constants -->", "<!-- made: constant -->", "no function makes the part constant"),
        ("<!-- made: constants -->\n", "", "a mark of a generated part has no partner"),
        ("<!-- end -->", "", "a mark of a generated part has no partner"),
        ("<!-- made: constants -->", "<!-- made: constant -->", "the part constants is in no chapter"),
    ],
)
def test_a_broken_mark_is_a_gap(chapter, old, new, gap):
    chapter.write_text(chapter.read_text("utf-8").replace(old, new, 1), "utf-8")
    assert [line for line in made.gaps(chapter.parent) if gap in line]


def test_the_command_writes_parts(monkeypatch, chapter):
    monkeypatch.setattr(made, "spec_root", lambda: chapter.parent)
    assert CliRunner().invoke(command, ["--write"]).output == "no chapter changed\n"


def test_rules_since_a_version(monkeypatch):
    index = rules.Index(rules=rules.defined())
    monkeypatch.setattr(rules, "read", lambda **_: index)
    record = json.loads(CliRunner().invoke(command, ["FOS", "--since", "0.1", "--json"]).output)
    assert record["added"] == ["FOS-9", "FOS-8"]
    changed = [change["rule"] for change in record["changes"] if change["version"] == "1.0"]
    assert changed == ["FOS-1", "FOS-3", "FOS-5", "FOS-8", "FOS-7"]
    assert "290 of 192,000" in record["changes"][0]["bytes"]
    assert "1.0  new  FOS-8 ·" in CliRunner().invoke(command, ["FOS", "--since", "0.1"]).output
    assert CliRunner().invoke(command, ["--since", "1.1", "--json"]).output == '{\n "added": [],\n "changes": []\n}\n'
    assert "1.1  correction  RES-3: " in CliRunner().invoke(command, ["RES", "--since", "1.0"]).output
    assert "version '9', need one of 0.1, 1.0, 1.1" in str(CliRunner().invoke(command, ["--since", "9"]).exception)
    assert "since: 0.1" in CliRunner().invoke(command, ["E2M1-3"]).output
    spec = spec_root()
    assert history.gaps(index.rules, spec) == []
    fewer = {name: rule for name, rule in index.rules.items() if name != "FOS-1"}
    assert history.gaps(fewer, spec) == ["history.json: FOS-1 is in the history and in no chapter"]
    *closed, draft = history.versions()
    assert (closed[-1].version, closed[-1].draft, draft.draft) == (SPEC_VERSION, False, True)
    volume_1 = {path.stem for path in spec_root().glob("[0-9][0-9]-*.md")}
    known = {name for name, rule in index.rules.items() if rule.chapter in volume_1}
    assert set(closed[-1].texts) == {name for name in known if history.first_version(name) != draft.version}


def test_a_changed_rule_needs_a_line_in_the_history():
    known, draft = rules.defined(), history.versions()[-1]
    same, said = known["BLK-4"], draft.changes[0].rule
    for text in (
        f"{same.text}\n> Why: a reason is no part of the rule.",
        same.text.replace("shall be computed", "shall\nbe computed"),
    ):
        assert history.gaps(known | {same.id: dataclasses.replace(same, text=text)}, spec_root()) == []
    for rule in (same, known[said]):
        for change in ({"text": rule.text.replace("shall", "may")}, {"title": "Another"}):
            found = history.gaps(known | {rule.id: dataclasses.replace(rule, **change)}, spec_root())
            line = f"history.json: {rule.id} changed since {SPEC_VERSION}, and no later version says how"
            assert found == ([] if rule.id == said else [line])


@pytest.mark.parametrize("rule", ["LAY-13", "LAY-18", "PACK-8", "PACK-9", "SPC-8"])
def test_a_changed_name_needs_a_line_in_the_history_that_names_it(rule, monkeypatch):
    """Another change of the same rule says nothing of the name."""
    known, record = rules.defined(), history.versions()
    closed, now = record[-2].names[rule], history.named(known[rule])
    assert history.gaps(known, spec_root()) == []  # names that the draft adds or changes, it says
    rows = [line for line in known[rule].text.splitlines() if line.startswith("| `")]
    name, row = next((name, row) for row in rows for name in [row.split("`")[1]] if closed.get(name) == now[name])
    for line in (
        f"{row}\n{row.replace(name, 'acme.rows')}",
        row.replace("| `", "| `acme.", 1),
        row[:-1] + "; pad m 1 |",
    ):
        changed = known | {rule: dataclasses.replace(known[rule], text=known[rule].text.replace(row, line, 1))}
        moved = [each for each in ("acme.rows", f"acme.{name}", name) if f"`{each}`" in line or each == name]
        moved = [each for each in moved if history.named(changed[rule]).get(each) != record[-2].names[rule].get(each)]
        assert moved
        for words, lines in (("one fact", len(moved)), (" and ".join(f"`{each}`" for each in moved), 0)):
            said = history.RuleChange("1.1", rule, "addition", "none", words)
            draft = record[-1]._replace(changes=(*record[-1].changes, said))
            monkeypatch.setattr(history, "versions", lambda spec=None, draft=draft: (*record[:-1], draft))
            found = history.gaps(changed, spec_root())
            assert [each for each in found if each.startswith("history.json: `")] == found
            assert len(found) == lines, found


CHAPTER = """# 01 · Things (AAA)

#### AAA-1 · First (shall)

| a |
|---|
| 1 |

#### AAA-2 · Second (shall)

No table.
"""


def test_numbers_that_no_test_reads_are_a_gap(tmp_path):
    for name in ("spec", "package", "tests"):
        (tmp_path / name).mkdir()
    chapter = tmp_path / "spec/01-things.md"
    chapter.write_text(CHAPTER, "utf-8")
    tree = rules.Tree(tmp_path / "spec", tmp_path / "package", (), tmp_path / "tests")
    assert examples.gaps(tree) == ["AAA-1: no test reads its numbers"]
    text = 'import pytest\n\n@pytest.mark.example("AAA-1", "AAA-9")\ndef test(): pass\n'
    (tmp_path / "tests/test_things.py").write_text(text, "utf-8")
    assert examples.gaps(tree) == ["AAA-9: a test reads the numbers of a rule that is not defined"]
    chapter.write_text(f"{CHAPTER}\nSee AAA-1.\n\n> Why: 7 is odd.\n", "utf-8")
    assert examples.gaps(tree) == ["AAA-9: a test reads the numbers of a rule that is not defined"]
    chapter.write_text(f"{CHAPTER}\nWith 8 columns it is 3.\n", "utf-8")
    assert examples.gaps(tree)[1:] == ["AAA-2: no test reads its numbers"]


@pytest.mark.rule("RES-3")
@pytest.mark.example("RES-3")
def test_the_rules_of_a_level(monkeypatch):
    index = rules.Index(rules=rules.defined())
    monkeypatch.setattr(rules, "read", lambda **_: index)
    shown = {row["level"] for row in rows(rules.defined()["RES-3"].text, "| level | rules of chapters |")}
    assert shown == set(LEVELS)
    output = CliRunner().invoke(command, ["--level", "dequantize", "--json"]).output
    assert {"DEQ-1", "PACK-1", "E4M3-1"} <= {record["id"] for record in json.loads(output)}
    assert not {"BLK-1", "LAY-1", "GEM-1"} & {record["id"] for record in json.loads(output)}
    error = CliRunner().invoke(command, ["--level", "all"]).exception
    assert "level 'all', need one of element codecs; quantize, row;" in str(error)


@pytest.mark.rule("SPC-8")
@pytest.mark.example("SPC-8")
def test_the_table_of_own_specs_names_each_with_its_fields():
    table = rows(CHAPTER_12, "| spec | element |")
    assert [row["spec"].strip("`") for row in table] == [spec.name for spec in OWN]
    for row in table:
        spec = PROFILES[row["spec"].strip("`")]
        assert row["element"].split(",")[0].lower() == spec.element.format.name
        assert row["scale"].lower() == spec.scale.format.name
        assert tuple(map(int, row["block"].split(" x "))) == spec.block
        assert row["global scale"].strip("`") == spec.global_scale.value
        assert row["arithmetic"].strip("`") == spec.arithmetic.name
        assert (row["Hadamard signs"] == "none") == (spec.hadamard is None)
        assert (row["4over6"] == "none") == (spec.four_over_six is None)
        assert ("stochastic" in row["element"]) == spec.stochastic


def samples(seed, special):
    """Positive float32 numbers of all exponents, and special ones."""
    bits = np.random.default_rng(seed).integers(0, 0x7F800000, 4000, dtype=np.uint32)
    return np.concatenate([bits.view(F), F(special)])


WORDS = {
    "": lambda computed, names: computed,
    "; 1 if G or the quotient is 0": lambda computed, names: np.where(
        (names["G"] == 0) | (computed == 0), F(1), computed
    ),
}


def computed(table, name, column, names):
    cell = next(row for row in table if row["arithmetic"] == f"`{name}`")[column]
    if as_other := re.fullmatch("as `(.*)`", cell):
        return computed(table, as_other[1], column, names)
    formula, words = re.fullmatch(r"`?([^`;]*)`?(.*)", cell).groups()
    return np.broadcast_to(WORDS[words](formulas.value(formula, names), names), names["x"].shape)


@pytest.mark.example("SPC-9")
@pytest.mark.rule("SPC-9", "GLB-2", "GLB-3", "BLK-3", "BLK-4", "BLK-5", "BLK-10", "BLK-11", "MXS-1")
@pytest.mark.parametrize("name", ["te", "te-division", "te-fast", "rceil", "ocp-floor"])
def test_the_formulas_of_the_own_arithmetics_are_what_they_compute(name):
    table = rows(CHAPTER_12, "| arithmetic | g | t | y | rules |")
    spec = next(spec for spec in OWN if spec.arithmetic.name == name)
    k = constants(spec, np.dtype(F))
    special = [0, 1e-45, 1e-38, 448, 6, np.finfo(F).max, np.inf, 1]
    a, amax, x = (samples(seed, special) for seed in (1, 2, 3))
    x = np.where(np.arange(x.size) % 2, -x, x)
    scales = spec.scale.decode(np.arange(spec.scale.format.codes, dtype=np.uint8))
    s = np.resize(scales, x.shape)
    with np.errstate(all="ignore"):
        names = {"a": a, "G": amax, "x": x, "s": s, "T": k.scale_max * k.element_max, "element_max": k.element_max}
        g = ARITHMETIC[name].global_scale(amax, k)
        expected = {"g": g, "t": ARITHMETIC[name].block_scale(a, g, k), "y": ARITHMETIC[name].scaled(x, s, g, k)}
    for column in "gty":
        if name == "ocp-floor" and column == "t":
            continue  # MXS-2 has the formula
        got = computed(table, name, column, names | {"g": g})
        np.testing.assert_array_equal(np.isnan(got), np.isnan(expected[column]))
        same = np.isnan(got) | (np.asarray(got, F).view(np.uint32) == np.asarray(expected[column], F).view(np.uint32))
        assert same.all(), (name, column, np.flatnonzero(~same)[:3])


def test_every_own_arithmetic_is_in_the_table():
    table = rows(CHAPTER_12, "| arithmetic | g | t | y | rules |")
    assert {row["arithmetic"].strip("`") for row in table} == {spec.arithmetic.name for spec in OWN}
    for row in table:
        assert set(row["rules"].split(", ")) <= set(rules.defined())


@pytest.mark.parametrize("text", ["", "import os", "a.b", "f(1)", "a if a else b", "[1]", "'a'", "q"])
def test_text_that_is_not_a_formula_is_refused(text):
    with pytest.raises(DomainError, match="the notation of chapter 01"):
        formulas.value(text, {"a": F(1)})


def test_formulas_by_hand():
    assert formulas.value("fp32(1/6)").view(np.uint32) == 0x3E2AAAAB
    assert formulas.value("0x3DCCCCCD") == F(0.1)
    assert formulas.value("2^-9") == F(2) ** -9
    assert formulas.value("min(1 / a, FLT_MAX)", {"a": F(0)}) == np.finfo(F).max
    assert np.signbit(formulas.value("fma(a, 1, +0)", {"a": F(-0.0)})) == False  # noqa: E712
    assert formulas.value("fma(a, b, c)", dict.fromkeys("abc", F([1 + 2**-23])))[0] == F(2 + 3 * 2**-23 + 2**-46)


def test_the_index_of_chapters_has_the_prefixes_of_each():
    text = (spec_root() / "README.md").read_text("utf-8")
    listed = dict(re.findall(r"\| \[\d\d\]\((.*?)\) \| (.*?) \|", text))
    found = {}
    for path in rules.chapters(spec_root()):
        first = rules.FIRST_LINE.fullmatch(path.read_text("utf-8").splitlines()[0])
        found[path.relative_to(spec_root()).as_posix()] = first["prefixes"]
    assert listed == found


def test_every_row_has_the_cells_of_its_head():
    """A bar that is not escaped ends a cell, and a page shows nothing of the cells past the last column."""
    for path in spec_root().rglob("*.md"):
        for head, *rows in tables.tables(path.read_text("utf-8")):
            assert [row for row in rows if len(row) != len(head)] == [], path


@pytest.mark.parametrize("page", ["README.md", "VERSIONS.md"])
def test_every_point_that_a_page_of_the_standard_names_is_there(page):
    spec = spec_root()
    text = (spec / page).read_text("utf-8")
    links = re.findall(r"\]\((.*?)\)", text)
    assert len(links) > 1
    assert [link for link in links if not (spec / link).is_file()] == []
    defined = rules.defined()
    for rule, place in re.findall(r"\[([A-Z0-9]+-\d+)\]\((.*?)\)", text):
        assert f"#### {rule} · " in (spec / place).read_text("utf-8"), rule
    assert [rule for rule in re.findall(r"\b[A-Z][A-Z0-9]*-[1-9]\d*\b", text) if rule not in {*defined, "UTF-8"}] == []
    for name in re.findall(r"`((?:docs|vectors)/[\w./-]*)`", text):
        assert (spec / name).exists() or (spec.parent / name).exists() or spec.name == "_spec", name
    for option in re.findall(r"`fp4ref rules (--?\w+)", text):
        assert any(option in found.opts for found in command.params), option
