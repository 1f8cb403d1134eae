from __future__ import annotations

import dataclasses
import io
import json
import re
from base64 import b64decode
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree as ET

import numpy as np
import pypdf
import pytest
from click.testing import CliRunner
from rich.console import Console

import fp4ref
from commands import good
from covering import few
from fp4ref.cli import main
from fp4ref.cli.common import print_lines
from fp4ref.cli.verify_text import print_kernel
from fp4ref.conformance.diagnosis.explanations import Diagnosis, Explanation
from fp4ref.conformance.dumps.files import Dump, write_dump
from fp4ref.conformance.families import cases
from fp4ref.conformance.judge.cases import judge
from fp4ref.conformance.mistakes import MISTAKES
from fp4ref.conformance.reports import html, junit
from fp4ref.conformance.reports.picture import pictures, svg
from fp4ref.conformance.reports.view import View, of_backends, of_dump, of_kernel
from fp4ref.conformance.run.runner import run
from fp4ref.conformance.selfcheck.report import SelfCheckReport
from fp4ref.conformance.subjects.subject import Subject
from fp4ref.conformance.vectors.text import Mismatch
from fp4ref.conformance.verdict.dump_report import Cell
from fp4ref.conformance.verdict.dumps import DumpRequest, verify
from fp4ref.conformance.verdict.kernel_report import KernelReport
from fp4ref.conformance.verdict.violated import blame, worst
from fp4ref.diagrams.overview import AWAY
from fp4ref.layout import layout
from fp4ref.spec_root import spec_root
from fp4ref.testing import assert_conforms

NASTY = """<script>alert("&'")</script>\x00\ud800"""
NAME = """layer.<b>0</b>&"w" """
VOID = {"meta", "br", "image", "rect", "path", "link", "img"}


class Page(HTMLParser):
    """Every element is closed where it should be; tags, attributes and texts are kept."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)

    def count(self, tag: str) -> int:
        return sum(name == tag for name, _ in self.tags)


@pytest.fixture(scope="module")
def dump(tmp_path_factory) -> Path:
    """Codes that differ in one area, scales in the first tile, and padding at the end."""
    x = np.random.default_rng(0).standard_normal((130, 200)).astype(np.float32)
    q = fp4ref.quantize(x, "nvfp4", scale_layout="tiled_128x4")
    data, scales = q.row.data.copy(), q.row.scales.copy()
    data[128:, 40:44] ^= 0x11
    scales.reshape(-1)[: 32 * 16 : 16] ^= 1
    scales.reshape(-1)[-1] = 9
    path = tmp_path_factory.mktemp("dump") / "d.npz"
    write_dump(path, [Dump(NAME, x, dataclasses.replace(q, row=q.row._replace(data=data, scales=scales)))])
    return path


@pytest.fixture(scope="module")
def view(dump) -> View:
    request = DumpRequest(path=dump, seconds=1)
    return of_dump(verify(request), request)


def kernel_view(function) -> View:
    subject = Subject.of(function)
    report = KernelReport(NASTY, fp4ref.NVFP4, subject.declaration)
    chosen = cases(fp4ref.NVFP4, families=["normal", "ragged"], dtypes=["float32"])
    runs = run(subject, chosen)
    for r in runs:
        report.add(judge(r.case, r.outcome, subject.declaration, r.expected))
    report.explain(seconds=1)
    return of_kernel(report)


def no_sign(x):
    if x.shape[-1] == 17:
        raise ValueError(NASTY)
    q = fp4ref.quantize(x, "nvfp4", backend="numpy")
    return q.row.data & 0x77, q.row.scales, q.row.amax


@pytest.mark.rule("CNF-2")
@pytest.mark.parametrize(
    ("differing", "cells", "expected"),
    [
        # Signs wrong everywhere: cases on rounding, shapes and special maxima fail, too, and are not the cause.
        (
            402,
            {"NUM-1": (0, 27), "BLK-1": (3, 83), "GLB-3": (9, 27), "E2M1-2": (6, 12), "PACK-1": (405, 411)},
            "E2M1-2",
        ),
        # Codes wrong everywhere.
        (384, {"BLK-6": (0, 3), "E2M1-3": (0, 33), "NUM-4": (0, 9), "BLK-4": (27, 411), "BLK-1": (9, 83)}, "BLK-4"),
        # Ties only.
        (33, {"E2M1-3": (0, 33), "BLK-4": (378, 411), "NUM-4": (3, 9)}, "E2M1-3"),
        # Partial blocks only.
        (70, {"BLK-1": (13, 83), "BLK-4": (341, 411), "NUM-1": (20, 27)}, "BLK-1"),
        # A scale that is made otherwise.
        (
            395,
            {"BLK-2": (0, 12), "E4M3-2": (0, 104), "NUM-1": (0, 27), "BLK-3": (16, 399), "GLB-2": (16, 399)},
            "BLK-3",
        ),
    ],
)
def test_no_rule_of_other_inputs_is_named_first(differing, cells, expected):
    found = worst(fp4ref.NVFP4, {rule: Cell(*counts) for rule, counts in cells.items()}, differing)
    assert found[0] == expected
    assert set(found) == set(cells)


@pytest.mark.rule("CNF-2")
@pytest.mark.parametrize(
    ("name", "expected"), [("block-signed", ["BLK-2"]), ("block-2-across", ["BLK-1"]), ("block-2-down", ["BLK-1"])]
)
def test_the_broken_rule_of_a_maximum_is_not_that_of_the_cut(name, expected):
    causes = tuple(mistake.cause for mistake in MISTAKES if mistake.name == name)
    one = Explanation((name,), "block", "", causes=causes)
    diagnosis = Diagnosis(conforms=False, explanations=(one,), first_stage="block")
    assert list(blame(diagnosis, fp4ref.NVFP4, ["BLK-3", "BLK-1", "BLK-2"]).broken) == expected
    assert list(blame(diagnosis, fp4ref.NVFP4, ["BLK-3", "BLK-1"]).broken) == ["BLK-1"]


@pytest.mark.rule("CNF-2")
def test_rules_of_the_first_wrong_stage_are_named_first():
    """Check that two mistakes whose stages are known break the rules of both, and that the first one's come first."""
    cells = {"BLK-4": Cell(0, 45), "E2M1-3": Cell(0, 12), "GLB-2": Cell(0, 45)}
    one = Explanation(("element-clamp-4", "nan-6"), "code", "")
    diagnosis = Diagnosis(conforms=False, explanations=(one,), first_stage="code")
    assert worst(fp4ref.NVFP4, cells, 45)[0] == "BLK-4"
    assert worst(fp4ref.NVFP4, cells, 45, diagnosis)[0] == "E2M1-3"
    assert list(blame(diagnosis, fp4ref.NVFP4, list(cells)).broken) == []
    causes = tuple(mistake.cause for mistake in MISTAKES if mistake.name in {"element-clamp-4", "global-448"})
    both = dataclasses.replace(diagnosis, explanations=(dataclasses.replace(one, causes=causes),))
    assert list(blame(both, fp4ref.NVFP4, list(cells)).broken) == ["E2M1-3", "GLB-2"]


@pytest.mark.rule("CNF-2", "E2M1-3")
def test_violated_rules_are_named_first(capsys):
    """Above the diagnosis on the page, and before the rules that hold in the text."""

    def away(x):
        q = fp4ref.quantize(x, AWAY)
        return q.row.data, q.row.scales, q.row.amax

    subject = Subject.of(away)
    report = KernelReport("mine", fp4ref.NVFP4, subject.declaration)
    for r in run(subject, cases(fp4ref.NVFP4, families=["element-ties", "normal"], dtypes=["float32"])):
        report.add(judge(r.case, r.outcome, subject.declaration, r.expected))
    text = html.page(of_kernel(report))
    assert 'the likeliest first: <b><a href="#E2M1-3">E2M1-3</a></b> Ties go to the even code' in text
    print_kernel(Console(width=200), report, 1)
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].startswith("rules that decide a wrong byte, the likeliest first: E2M1-3 0/")
    report.explain()
    page = html.page(of_kernel(report))
    (said,) = re.findall('<p class="rule">(.*?)</p>', page)
    assert said == 'Broken: <b><a href="#E2M1-3">E2M1-3</a></b> Ties go to the even code.'
    assert page.index(said) < page.index("rests on")
    print_kernel(Console(width=200), report, 1)
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == "broken: E2M1-3 Ties go to the even code"
    others = next(line for line in lines if "this mistake does not break" in line)
    assert "BLK-4 " in others
    assert "E2M1-3" not in others
    held = next(line for line in lines if line.startswith("rules in cases that pass"))
    assert re.search(r"PACK-1 (\d+)/\1\b", held)
    assert "E2M1-3" not in held


@pytest.mark.rule("CNF-2", "E2M1-3", "E2M1-5")
@pytest.mark.parametrize(
    "rule, change",
    [("E2M1-3", {"rounding": fp4ref.formats.Rounding.DOWN}), ("E2M1-5", {"nan": (0, 0)})],
)
def test_a_case_with_nan_blames_the_code_of_nan_only_for_it(rule, change):
    """Ordinary elements of the family `nan` fail by a wrong tie, and NaN itself by a wrong code."""
    codec = dataclasses.replace(fp4ref.MXFP4.element, **change)
    spec = fp4ref.MXFP4.replace(name="mine.mxfp4", element=codec)

    def wrong(x):
        q = fp4ref.quantize(x, spec, backend="numpy")
        return q.row.data, q.row.scales

    subject = Subject.of(wrong)
    report = KernelReport("mine", fp4ref.MXFP4, subject.declaration)
    for r in run(subject, cases(fp4ref.MXFP4, families=["element-ties", "nan"], dtypes=["bfloat16"])):
        report.add(judge(r.case, r.outcome, subject.declaration, r.expected))
    cell = report.rules["E2M1-5"]
    assert (cell.passed < cell.total) == (rule == "E2M1-5")
    report.explain()
    assert of_kernel(report).blame.broken == (rule,)


@pytest.mark.sampled(3)
@pytest.mark.rule("CNF-2", "CNF-24")
@pytest.mark.parametrize(
    "rules, change",
    [
        ({"PACK-1"}, lambda q: q._replace(data=q.data << 4 | q.data >> 4)),
        ({"E4M3-2"}, lambda q: q._replace(scales=q.scales + (q.scales > 0))),
        ({"E2M1-2"}, lambda q: q._replace(data=q.data ^ 0x88)),
    ],
)
def test_a_dump_names_the_broken_rule(rules, change, tmp_path, capsys):
    x = np.random.default_rng(0).standard_normal((64, 128)).astype(np.float32)
    q = fp4ref.quantize(x, "nvfp4")
    write_dump(tmp_path / "d.npz", [Dump("w", x, dataclasses.replace(q, row=change(q.row)))])
    result = CliRunner().invoke(main, ["verify", str(tmp_path / "d.npz"), "--spec", "nvfp4"])
    said = result.stdout.splitlines()[1]
    assert said.startswith("broken: ")
    assert set(re.findall(r"[A-Z0-9]+-\d+", said)) == rules


@pytest.mark.rule("CNF-2", "CNF-24")
@pytest.mark.parametrize("rule, value, code", [("E2M1-5", np.nan, 0), ("E2M1-4", np.inf, 3)])
def test_a_dump_names_the_rule_of_special_codes_where_they_are_wrong_alone(rule, value, code, tmp_path):
    x = np.random.default_rng(0).standard_normal((16, 64)).astype(np.float32)
    x[3, 10] = value
    q = fp4ref.quantize(x, "nvfp4")
    data = q.row.data.copy()
    data[3, 5] = data[3, 5] & 0xF0 | code
    write_dump(tmp_path / "d.npz", [Dump("w", x, dataclasses.replace(q, row=q.row._replace(data=data)))])
    said = CliRunner().invoke(main, ["verify", str(tmp_path / "d.npz"), "--spec", "nvfp4"]).stdout.splitlines()[1]
    assert said.startswith(f"broken: {rule} ")


@pytest.mark.rule("CNF-2")
def test_the_page_shows_the_verdict_the_maps_and_every_intermediate(view):
    page = Page(html.page(view))
    text = " ".join(page.texts)
    assert "wrong: " in text
    assert NAME in page.texts
    assert page.count("svg") == page.count("image") == 2
    assert page.count("title") == 1 + 2
    assert "element codes: 16 of 130 x 200 differ, the first at row 128, column 80" in text
    assert "scale bytes, tiled_128x4: 33 of 256 x 16 differ, the first at row 0, column 0" in text
    for step in ("block amax", "global scale g", "scale byte", "scaled value y", "code", "dequantized"):
        assert step in page.texts
    exhibit = view.exhibits[0]
    first = exhibit.compared.differences[0]
    assert f"0x{first.got_scale:02x} = " in text
    assert first.bits in text


HIDDEN = """
return [...document.querySelectorAll("details[open] td")]
  .filter((cell) => cell.getBoundingClientRect().right > innerWidth + 1).map((cell) => cell.textContent);
"""


def test_a_phone_shows_every_intermediate_without_scrolling(view, chromium, tmp_path):
    path = tmp_path / "page.html"
    path.write_text(html.page(view), encoding="utf-8")
    phone = {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": True}
    chromium.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", phone)
    try:
        chromium.get(path.as_uri())
        assert chromium.execute_script("return document.querySelectorAll('details[open] td').length") > 60
        assert chromium.execute_script(HIDDEN) == []
    finally:
        chromium.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_paper_keeps_headings_with_what_they_are_about_and_rows_whole(view, chromium, tmp_path):
    path = tmp_path / "page.html"
    path.write_text(html.page(view), encoding="utf-8")
    chromium.get(path.as_uri())
    headings = chromium.execute_script("return [...document.querySelectorAll('h2, h3')].map((one) => one.innerText)")
    printed = b64decode(chromium.execute_cdp_cmd("Page.printToPDF", {})["data"])
    pages = [page.extract_text().strip().splitlines() for page in pypdf.PdfReader(io.BytesIO(printed)).pages]
    assert len(pages) > 2
    for lines in pages[:-1]:
        assert lines[-1] not in headings
    for lines in pages[1:]:  # a row of steps that was torn would go on with its other rules
        assert not re.match(r"[A-Z0-9]+-\d+$", lines[1])


def test_the_page_needs_nothing_else_and_runs_nothing(view):
    text = html.page(view)
    addresses = [value for _, attrs in Page(text).tags for name, value in attrs.items() if name in {"href", "src"}]
    assert addresses
    inside = {attrs.get("id") for _, attrs in Page(text).tags}
    assert all(a.startswith("data:image/png;base64,") or a.removeprefix("#") in inside for a in addresses)
    assert "<script" not in text
    assert "http" not in re.sub(r"http-equiv", "", text)
    assert "prefers-color-scheme: dark" in text


def test_each_rule_of_the_page_leads_to_its_text(view):
    """In the steps, in the verdict and in the table of rules; the texts are those of the standard, once each."""
    text = html.page(view)
    linked = {attrs["href"][1:] for tag, attrs in Page(text).tags if tag == "a" and attrs["href"].startswith("#")}
    assert {"BLK-3", "E2M1-3", "PACK-1"} <= linked
    texts = dict(re.findall(r'<div class="text" id="([A-Z0-9-]+)">(.*?)</div>', text, re.DOTALL))
    assert set(texts) == linked
    chapter = (spec_root() / "05-block-scaling.md").read_text("utf-8")
    assert unescape(texts["BLK-3"]) in chapter
    assert not re.search(r"<td>[A-Z][A-Z0-9]*-\d+</td>", text)


def test_what_a_user_wrote_is_text_on_the_page_and_in_the_xml(tmp_path):
    found = kernel_view(no_sign)
    page = Page(html.page(found))
    assert page.count("script") == 0
    assert any("<script>" in text for text in page.texts)
    html.write(tmp_path / "page.html", found)
    junit.write(tmp_path / "report.xml", [found])
    root = ET.parse(tmp_path / "report.xml").getroot()
    assert any("<script>" in (failure.text or "") for failure in root.iter("failure"))


@pytest.mark.rule("CNF-2", "CNF-9")
def test_xml_counts_what_it_holds(tmp_path):
    junit.write(tmp_path / "report.xml", [kernel_view(no_sign)])
    root = ET.parse(tmp_path / "report.xml").getroot()
    tests = list(root.iter("testcase"))
    assert int(root.get("tests")) == len(tests)
    assert int(root.get("failures")) == sum(test.find("failure") is not None for test in tests) > 2
    assert int(root.get("skipped")) == sum(test.find("skipped") is not None for test in tests)
    assert {test.get("classname") for test in tests} >= {"verdict", "families", "findings"}
    verdict = tests[0].find("failure")
    assert verdict.get("message").startswith("wrong: raised")


def test_a_kernel_that_conforms_has_no_failure(tmp_path):
    found = kernel_view(good)
    junit.write(tmp_path / "report.xml", [found])
    root = ET.parse(tmp_path / "report.xml").getroot()
    assert root.get("failures") == "0"
    page = Page(html.page(found))
    assert page.count("svg") == 0
    assert any("conforms to nvfp4" in text for text in page.texts)
    assert any(re.search(r"\d+ of \d+ rules were exercised", text) for text in page.texts)


@pytest.mark.rule("LAY-3", "LAY-5")
def test_tiles_count_every_difference_once(view):
    codes, scales, tiles = pictures(view.exhibits[0])
    assert (codes.count, scales.count) == (16, 33)
    assert sum(tile.codes for tile in tiles) == codes.count
    assert sum(tile.scales for tile in tiles) == scales.count
    by_place = {(tile.row, tile.column): (tile.codes, tile.scales) for tile in tiles}
    assert by_place == {(0, 0): (0, 32), (1, 1): (16, 0), (1, 3): (0, 1)}
    assert np.isnan(scales.shares[131:, :13]).all()
    assert codes.text in svg(codes)


@pytest.mark.rule("LAY-1", "LAY-2", "LAY-3", "LAY-4")
@pytest.mark.parametrize("name", few(["linear", "linear_padded", "tiled_128x4", "tiled_8x4"], 2))
def test_one_wrong_scale_is_shown_in_its_place(name, tmp_path):
    x = np.random.default_rng(1).standard_normal((300, 1100)).astype(np.float32)
    q = fp4ref.quantize(x, "nvfp4", scale_layout=name)
    scales = q.row.scales.copy()
    scales.reshape(-1)[layout(name).offset(200, 61, 69)] ^= 2
    write_dump(tmp_path / "d.npz", [Dump("", x, dataclasses.replace(q, row=q.row._replace(scales=scales)))])
    request = DumpRequest(path=tmp_path / "d.npz", seconds=0)
    codes, found, _ = pictures(of_dump(verify(request), request).exhibits[0])
    assert (codes.count, found.count, found.first) == (0, 1, (200, 61))


@pytest.mark.heavy
def test_a_tensor_of_any_size_becomes_a_small_picture(view):
    x = np.zeros((5000, 4096), np.float32)
    q = fp4ref.quantize(x, "mxfp4", backend="numpy").row
    exhibit = dataclasses.replace(
        view.exhibits[0],
        x=x,
        spec=fp4ref.MXFP4,
        scale_layout="linear",
        got=q._replace(data=q.data ^ 1),
        expected=q,
        compared=dataclasses.replace(view.exhibits[0].compared, shape=x.shape),
    )
    codes, scales, _ = pictures(exhibit)
    assert max(codes.shares.shape) <= 256
    assert (codes.count, scales.count) == (5000 * 4096 // 2, 0)
    assert len(svg(codes)) < 20_000


def test_backends_have_a_report_too(tmp_path):
    report = SelfCheckReport(subjects=["golden model", "mine"])
    report.add("golden model", "a:1", ["BLK-3"], [])
    report.add("mine", "a:1", ["BLK-3"], [Mismatch("code", (0, 1), "3f800000", "02", "03")])
    report.unavailable["cuda"] = "no device"
    found = of_backends(report)
    page = Page(html.page(found))
    assert "\N{MULTIPLICATION SIGN} 0/1" in page.texts
    assert "1/1" in page.texts
    junit.write(tmp_path / "report.xml", [found])
    root = ET.parse(tmp_path / "report.xml").getroot()
    assert (root.get("tests"), root.get("failures"), root.get("skipped")) == ("4", "2", "1")


@pytest.mark.rule("CNF-2")
def test_verify_writes_the_files_beside_what_it_prints(tmp_path):
    x = np.random.default_rng(2).standard_normal((4, 64)).astype(np.float32)
    q = fp4ref.quantize(x, "nvfp4")
    swapped = q.row._replace(data=q.row.data << 4 | q.row.data >> 4)
    dump = tmp_path / "d.npz"
    write_dump(dump, [Dump("", x, dataclasses.replace(q, row=swapped))])
    files = ["--html", str(tmp_path / "page.html"), "--junit", str(tmp_path / "report.xml")]
    result = CliRunner().invoke(main, ["verify", str(dump), *files, "--json"])
    assert result.exit_code == 1
    assert json.loads(result.stdout)["files"][0]["verdict"] == "wrong"
    told = json.loads(result.stdout)["files"][0]["explained"]
    assert {step["step"]: step["got"] for step in told[0]["steps"]}["code"].startswith("0x")
    assert result.stderr.count("wrote ") == 2
    Page((tmp_path / "page.html").read_text("utf-8"))
    assert ET.parse(tmp_path / "report.xml").getroot().get("failures") == "2"


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["DUMP", "DUMP", "--html", "x.html"], "--html and --statement take one file"),
        (["DUMP", "--case", "row:0:0", "--junit", "x.xml"], "whole reports"),
        (["DUMP", "--html", "nowhere/x.html"], "nowhere/x.html"),
    ],
)
def test_what_cannot_be_written_is_refused(dump, arguments, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(main, ["verify", *(str(dump) if word == "DUMP" else word for word in arguments)])
    assert result.exit_code == 2
    assert words in result.stderr


@pytest.mark.heavy
@pytest.mark.rule("GEM-13", "CNF-2")
def test_a_kernel_that_multiplies_has_the_same_reports(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("product.py").write_text(
        "import fp4ref, numpy as np\n"
        "@fp4ref.kernel(operation='gemm', inputs=('a_data', 'b_data', 'rows', 'columns'), outputs=('values',))\n"
        "def zeros(a, b, rows, columns):\n"
        "    return np.zeros((rows, columns), np.float32)\n"
    )
    files = ["--html", "page.html", "--junit", "report.xml"]
    result = CliRunner().invoke(main, ["verify", "--kernel", "product.py:zeros", "--spec", "mxfp4", *files])
    assert result.exit_code == 1, result.output
    page = Page(Path("page.html").read_text("utf-8"))
    assert any("GEMM of mxfp4" in text for text in page.texts)
    root = ET.parse("report.xml").getroot()
    assert int(root.get("failures")) > 1
    failures = {case.get("name"): case.find("failure") for case in root.iter("testcase")}
    told = failures["dense"].text
    assert "dense-160x136x" in told  # a family lists its own wrong results
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(AssertionError, match="product.py:zeros: wrong"):
        assert_conforms("product.py:zeros", "mxfp4")


def test_an_assertion_has_its_message_in_a_notebook_too(monkeypatch):
    """There rich shows what it is given, and writes nothing."""

    class ZMQInteractiveShell:
        """The shell of a notebook, by whose name rich knows it."""

    def high_first(x):
        q = fp4ref.quantize(x, "nvfp4")
        return q.row.data << 4 | q.row.data >> 4, q.row.scales, q.row.amax

    monkeypatch.setattr("builtins.get_ipython", ZMQInteractiveShell, raising=False)
    assert Console().is_jupyter
    with pytest.raises(
        AssertionError, match=r"high_first: wrong: the high nibble comes first; 6 of 6 cases fail\nbroken: PACK-1 "
    ):
        assert_conforms(high_first, "nvfp4", families=["normal"])


@pytest.mark.heavy
def test_lines_are_wrapped_between_words_on_a_terminal_only():
    """A name that is wider than the terminal stays whole, so that it can be copied."""
    sentence = "  not judged: " + "strides (x is always contiguous), " * 4 + "a/very/long/name/of/one/case" * 3
    told = {}
    for terminal in (True, False):
        out = Console(file=io.StringIO(), width=80, force_terminal=terminal, color_system=None)
        print_lines(out, [sentence])
        told[terminal] = out.file.getvalue().splitlines()
    assert told[False] == [sentence]
    assert " ".join(line.strip() for line in told[True]) == sentence.strip()
    assert len(told[True]) == 4
    assert all(line.startswith("  ") for line in told[True])
    assert all(len(line) <= 80 for line in told[True][:-1])
