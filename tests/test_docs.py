"""The pages of the documentation: their blocks run in order, page by page, each page in a directory of its own.

The examples in C and C++ are compiled and run by the tests of the stream, of the vectors and of the numerics header.
"""

from __future__ import annotations

import doctest
import importlib.util
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pypdf
import pytest
from click.testing import CliRunner

import fp4ref
from fp4ref import rules
from fp4ref.cli import main
from fp4ref.diagrams import catalogue
from fp4ref.diagrams.catalogue import FIGURES, VARIANTS
from fp4ref.spec_root import spec_root
from scripts import load

DOCS = Path(__file__).parents[1] / "docs"
PAGES = sorted((DOCS / "site").rglob("*.md"))
EXAMPLES = DOCS / "examples"
BIN = Path(sys.executable).parent
FENCE = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


class Block(NamedTuple):
    """A fence of a page: what it is of, its text, and its first line."""

    kind: str
    text: str
    line: int


def blocks(path: Path) -> list[Block]:
    text = path.read_text("utf-8")
    return [Block(m[1].strip(), m[2], text[: m.start()].count("\n") + 1) for m in FENCE.finditer(text)]


def name(path: Path) -> str:
    return str(path.relative_to(DOCS / "site"))


@cache
def environment() -> dict[str, str]:
    """The commands of this interpreter first."""
    return {**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", "COLUMNS": "120"}


def run_python(block: Block, names: dict[str, object], page: str) -> None:
    test = doctest.DocTestParser().get_doctest(block.text, names, page, page, block.line)
    report: list[str] = []
    assert test.examples, f"{page}:{block.line}: no example"
    runner = doctest.DocTestRunner(optionflags=FLAGS)
    assert runner.run(test, out=report.append, clear_globs=False).failed == 0, "".join(report)
    names.update(test.globs)


def run_shell(block: Block, page: str) -> None:
    for line in block.text.splitlines():
        ran = subprocess.run(["bash", "-c", line], env=environment(), capture_output=True, text=True, check=False)
        expected = int((re.findall(r"  # exit status (\d)$", line) or [0])[0])
        assert ran.returncode == expected, f"{page}:{block.line}: {line}\n{ran.stdout}{ran.stderr}"


def forget_values(monkeypatch):
    """Let what examples register end with the test."""
    for known in fp4ref.catalogue.KINDS.values():
        monkeypatch.setattr(known, "_values", dict(known._values), raising=True)


PLAIN = [page for page in PAGES if any(block.kind in {"python", "sh"} for block in blocks(page))]


@pytest.mark.slow  # runs what a reader would
@pytest.mark.filterwarnings("ignore::UserWarning")  # torch's own
@pytest.mark.parametrize("page", PLAIN, ids=name)
def test_blocks_run(page, tmp_path, monkeypatch):
    if "import torch" in page.read_text("utf-8"):
        pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    shutil.copytree(EXAMPLES, tmp_path, dirs_exist_ok=True)
    forget_values(monkeypatch)
    names: dict[str, object] = {}
    for block in blocks(page):
        if block.kind == "python":
            run_python(block, names, name(page))
        elif block.kind == "sh":
            run_shell(block, name(page))


CONSUMERS = [pytest.param(page, id=name(page)) for page in PAGES if any(" with " in b.kind for b in blocks(page))]


@pytest.mark.release  # where the consumers are installed
@pytest.mark.filterwarnings("ignore")  # theirs
@pytest.mark.parametrize("page", CONSUMERS)
def test_blocks_that_call_a_consumer_run(page, tmp_path, monkeypatch):
    """A fence `python with NAME` needs the module NAME."""
    found = [block for block in blocks(page) if block.kind == "python" or " with " in block.kind]
    for module in {block.kind.split()[-1] for block in found if " with " in block.kind}:
        pytest.importorskip(module)
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for block in found:
        run_python(block, names, name(page))


GPU = [pytest.param(p, b, id=f"{name(p)}:{b.line}") for p in PAGES for b in blocks(p) if b.kind == "python gpu"]


@pytest.mark.parametrize(("page", "block"), GPU)
def test_blocks_for_a_gpu_compile(page, block):
    examples = doctest.DocTestParser().get_examples(block.text)
    assert examples
    for example in examples:
        compile(example.source, name(page), "single")


@pytest.mark.gpu
@pytest.mark.parametrize(("page", "block"), GPU)
def test_blocks_for_a_gpu_run(page, block, tmp_path, monkeypatch):
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    monkeypatch.chdir(tmp_path)
    run_python(block, {}, name(page))


def test_figures_of_pages_exist():
    known = {*FIGURES, *(variant for variant, _, _ in VARIANTS)}
    used = {block.kind.split()[1] for page in PAGES for block in blocks(page) if block.kind.startswith("{drawn}")}
    used |= {figure for figures in load(DOCS / "generate/chapter_figures.py").IN_CHAPTER.values() for figure in figures}
    assert used - set(load(DOCS / "generate/charts.py").CHARTS) <= known
    assert len(used) >= 15
    assert not [page for page in PAGES if re.search(r"!\[|\{image\}|<img", page.read_text("utf-8"))]


@pytest.mark.parametrize("page", sorted((DOCS / "site/howto").glob("*.md")), ids=lambda path: path.stem)
def test_how_tos_name_profiles_and_layouts(page):
    rows = dict(re.findall(r"^\| (profile|scale layout) \| (.*) \|$", page.read_text("utf-8"), re.MULTILINE))
    names = re.findall(r"`([^`]+)`", rows["profile"])
    assert names
    assert not [
        one for one in names if not one.endswith("...") and not one.startswith("..") and one not in fp4ref.profiles
    ]
    assert set(re.findall(r"`(\w+_\w+x\w+|linear\w*)`", rows["scale layout"])) <= set(fp4ref.LAYOUTS)


@pytest.mark.slow  # a run of pytest
def test_collecting_tests_imports_no_example(tmp_path):
    program = """if True:
        import sys
        import pytest

        docs, settings = sys.argv[1:]
        status = pytest.main([docs, "-c", settings, "--collect-only", "-q", "-p", "no:cacheprovider"])
        files = {str(getattr(module, "__file__", None)) for module in list(sys.modules.values())}
        imported = sorted(file for file in files if file.startswith(docs) and "conftest" not in file)
        sys.exit(f"status {status}, imported {imported}" if imported or status != 5 else 0)  # 5: no tests
    """
    command = [sys.executable, "-c", program, f"{DOCS}{os.sep}", str(DOCS.parent / "pyproject.toml")]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr


def test_pages_are_in_the_index():
    index = (DOCS / "site/index.md").read_text("utf-8")
    trees = [block for block in blocks(DOCS / "site/index.md") if block.kind == "{toctree}"]
    listed = {line for block in trees for line in block.text.splitlines()}
    generated = {"standard/index", "reference/index", "differences", "performance", "field-layouts"}
    generated |= {f"notebooks/{path.stem}" for path in (DOCS / "notebooks").glob("*.ipynb")}
    generated |= {"howto/checkpoint-garbage", "conventions", "gallery", "rule/index", "versions"}
    pages = [page for page in PAGES if not page.read_text("utf-8").startswith("---\norphan: true")]
    assert {name(page)[:-3] for page in pages} - {"index"} == {
        line for line in listed if line and not line.startswith(":")
    } - generated
    assert 'href="explorer.html"' in index


@pytest.fixture(scope="module")
def rule_pages():
    """The generator of the rules' pages, which remembers what the profiles do otherwise."""
    return load(DOCS / "generate/rule_pages.py")


def test_profiles_that_do_otherwise_were_run(rule_pages):
    """A function that cites other rules but computes the same is no departure; one of another order is."""
    found = rule_pages.departing()
    assert "te.python_reference" not in found["GLB-2"]
    assert "torchao.nvfp4_2lvl" in found["GLB-2"]
    assert "torchao.nvfp4_2lvl" in found["GLB-3"]
    assert not {name for name in found["GLB-3"] if fp4ref.profiles[name].global_scale == "none"}
    assert "" not in found
    of_sign = {name for name, spec in fp4ref.profiles.items() if "." in name and spec.element.format == fp4ref.E2M1}
    of_sign = {name for name in of_sign if fp4ref.profiles[name].element.sign != "bit"}
    assert set(found["E2M1-2"]) == of_sign != set()  # an encoder by another comparison loses the sign of -0
    assert "gfloat.mxfp8_e4m3" not in found["E4M3-2"]  # it overflows to NaN, and rounds what is in range alike
    assert "gfloat.mxfp8_e4m3" in found["E4M3-5"]


@pytest.mark.usefixtures("rules_read_once")
def test_every_rule_has_a_page(tmp_path, rule_pages):
    """With its text, those who cite it, and figures that exist; the index entry is what a search finds first."""
    rule_pages.main(tmp_path / "rule")
    found = {path.stem: path.read_text("utf-8") for path in (tmp_path / "rule").glob("*-*.md")}
    found = {rule: found[rule.lower()] for rule in rules.defined()}
    index = rules.read()
    assert set(found) == set(index.rules)
    known = {*FIGURES, *(variant for variant, _, _ in VARIANTS)}
    for rule, text in found.items():
        assert f"```{{index}} ! {rule}\n" in text
        assert index.rules[rule].text in text
        assert set(re.findall(r"^```\{drawn\} (\S+)$", text, re.MULTILINE)) <= known
        assert all(f"`{one.name}`" in text for one in index.citing(rule)["tests"])
    assert "```{drawn} tiled_128x4\n" in found["LAY-3"]
    assert "```{drawn} blocks-2d\n" in found["LAY-10"]
    assert "```{drawn} packing-6-bit\n" in found["PACK-4"]
    assert "In chapter 08 · Layouts and padding: LAY-10." in found["LAY-10"]
    assert "C++ header: `" in found["E2M1-3"]
    assert "`block_scale` in `backends/fp4ref_numerics/include/fp4ref/block.h`" in found["BLK-10"]
    assert "groups 0 to 17 in `spec/vectors/mx.json`" in found["BLK-10"]
    apart = {
        rule: set(re.findall(r"`([^`]+)`", text.partition("## Profiles that do otherwise")[2]))
        for rule, text in found.items()
    }
    assert "mlx.nvfp4" in apart["E2M1-3"]  # ties go down
    assert "torchao.nvfp4_2lvl" in apart["BLK-3"] - apart["E2M1-3"]
    assert "torchao.mxfp4_floor" in apart["MXS-1"]
    assert not apart["PACK-1"]


def test_chapters_have_figures_behind_their_rules(tmp_path):
    build = load(DOCS / "build.py")
    build.chapters(tmp_path / "standard")
    text = (tmp_path / "standard/08-layouts.md").read_text("utf-8")
    assert text.index("(LAY-3)=") < text.index("{drawn} tiled_128x4-element") < text.index("(LAY-4)=")
    assert "[functions and tests](../rule/lay-3.md)" in text
    links = re.findall(r"\]\(([\w/.-]+\.md)\)", (tmp_path / "standard/index.md").read_text("utf-8"))
    assert [link for link in links if not (tmp_path / "standard" / link).is_file()] == []
    whole = "".join(path.read_text("utf-8") for path in (tmp_path / "standard").rglob("*.md"))
    figures = load(DOCS / "generate/chapter_figures.py").IN_CHAPTER
    assert {name for names in figures.values() for name in names} <= set(re.findall(r"\{drawn\} (\S+)", whole))


RAN = [(page, block) for page in PAGES for block in blocks(page) if block.kind == "{ran}"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("page", "block"), RAN, ids=lambda part: str(part.line) if isinstance(part, Block) else name(part)
)
def test_commands_that_the_site_runs(page, block, tmp_path, monkeypatch):
    """In a copy of the examples, as the site does it."""
    for needed in " ".join(re.findall(r"^:needs: (.+)$", block.text, re.MULTILINE)).split():
        if not (shutil.which(needed) or importlib.util.find_spec(needed)):
            pytest.skip(f"no {needed} here")
    monkeypatch.chdir(tmp_path)
    shutil.copytree(EXAMPLES, tmp_path, dirs_exist_ok=True)
    forget_values(monkeypatch)
    for line in [line for line in block.text.splitlines() if line and not line.startswith(":")]:
        expected = int((re.findall(r"  # exit status (\d)$", line) or [0])[0])
        if not line.startswith("fp4ref ") or " | " in line:
            assert subprocess.run(["sh", "-c", line], check=False, env=environment()).returncode == expected, line
            continue
        result = CliRunner().invoke(main, shlex.split(line, comments=True)[1:])
        assert result.exit_code == expected, result.output


PHONE = '<wbr class="phone">'


def test_cells_break_at_the_parts_of_names_and_never_in_numbers():
    breaks = load(DOCS / "site" / "breaks.py")
    code = '<td><code><span class="pre">{}</span></code></td>'

    for given, expected in (
        ("torchao.mxfp6_e2m3_rceil", "torchao.<wbr>mxfp6_<wbr>e2m3_<wbr>rceil"),
        ("1.1, draft", '<span class="whole">1.1, draft</span>'),
        ("docs/examples/standard.c", "docs/<wbr>examples/<wbr>standard.c"),
        ("te.fp8_block@2.9", "te.<wbr>fp8_<wbr>block@<wbr>2.9"),
        ("element_max", f"element_{PHONE}max"),
        ("__metadata__", "__metadata__"),
        ("mxfp8-e4m3, -0", '<span class="whole">mxfp8-e4m3</span>, -0'),
        ("nvfp4-row-scaled", "nvfp4-<wbr>row-<wbr>scaled"),
        ("-0.10009765625", "-0.10009765625"),
        ("1,835,008", "1,835,008"),
        ("-o", "-o"),
        ("--start-timeout", "--start-<wbr>timeout"),
        ("-1e-45 -0", '<span class="whole">-1e-45</span> -0'),
        ("36 (NVFP4)", "36 (NVFP4)"),
        ("fp16(v)", "fp16(v)"),
        ("B^T A^T", "B^T A^T"),
        ("6, -NaN", '6, <span class="whole">-NaN</span>'),
        ("clamp(x, -E, E)", 'clamp(x, <span class="whole">-E</span>, E)'),
        ("read: 2026-08", 'read: <span class="whole">2026-08</span>'),
        ("fn(NVFP4)", f"fn({PHONE}NVFP4)"),
        ("100.0 % of 4096", '<span class="whole">100.0 %</span> of 4096'),
        (
            "no result after 1 s, 64 MB",
            'no result after <span class="whole">1 s</span>, <span class="whole">64 MB</span>',
        ),
        ("6 seeds, 2 msgs", "6 seeds, 2 msgs"),
        ("16 x 16 and more", '<span class="whole">16 x 16</span> and more'),
        ("8192 x 10240", "8192 x 10240"),
        ("E2M1, nan 7F FF", 'E2M1, <span class="whole">nan 7F FF</span>'),
        ("v_proj nibble-order", f'v_{PHONE}proj <span class="whole">nibble-order</span>'),
        ("F8_E8M0", f"F8_{PHONE}E8M0"),
        ("m(32,4,*) k(4,*): k0 m1 m0 k1 m2", "m(32,<wbr>4,*) k(4,*): k0 m1 m0 k1 m2"),
        ("9.529 % and 11.2 %", '<span class="whole">9.529 %</span> and <span class="whole">11.2 %</span>'),
        ("exhaustive: 2.1 * 10^9, 1", 'exhaustive: <span class="whole">2.1 * 10^9</span>, 1'),
        ("64.7 / 68.8", '<span class="whole">64.7 / 68.8</span>'),
        ("amax / 2688", "amax / 2688"),
        ("7e: 7 0", '<span class="whole">7e: 7 0</span>'),
        ("00: 7e 7e", '<span class="whole">00: 7e 7e</span>'),
        ("scale nan 7e/fe", 'scale nan <span class="whole">7e/fe</span>'),
        ("3/b 7/7", '<span class="whole">3/b</span> <span class="whole">7/7</span>'),
    ):
        assert breaks.cells(code.format(given)).replace(' class="whole "', "") == code.format(expected)
    dense = f"<table>{'<th>a</th>' * 9}{code}</table>"  # no room: any name breaks
    assert breaks.cells(dense.format("element_max")) == dense.format("element_<wbr>max")
    long = "exhaustive: 3,941,944, 2026-11-23; table 6,7,8,15,22,23"
    said = breaks.cells(f"<td>{long}</td>")
    assert "3,941,944" in said
    assert '<span class="whole">2026-11-23</span>' in said
    assert "6,<wbr>7,<wbr>8,<wbr>15" in said
    outside = '<p>a.bed_c</p><td><a href="rule/a_bed.html#a.bed">x.yes</a></td>'
    assert breaks.cells(outside) == f'<p>a.bed_c</p><td><a href="rule/a_bed.html#a.bed">x.{PHONE}yes</a></td>'


def test_short_cells_with_numbers_stay_on_one_line():
    breaks = load(DOCS / "site" / "breaks.py")
    codes = "<p><code>7</code> <code>7</code> <code>5</code> <code>7</code></p>"
    for text in (codes, "row 0, 0", "[2, 3, 40]"):
        assert breaks.cells(f'<td role="cell">{text}</td>') == f'<td class="whole " role="cell">{text}</td>'
    assert breaks.cells('<td class="text-right">row 1, 6</td>') == '<td class="whole text-right">row 1, 6</td>'
    for text in ("a stored member", "1234567890123 bytes", "448"):
        assert breaks.cells(f"<td>{text}</td>") == f"<td>{text}</td>"
    css = (DOCS / "site" / "_static" / "site.css").read_text("utf-8")
    assert re.search(r"^\.whole, .*td\.whole code \.pre \{ white-space: nowrap; \}", css, re.MULTILINE)


def test_names_and_dates_beside_a_page_break_where_a_reader_would():
    breaks = load(DOCS / "site" / "breaks.py")
    link = '<li><a href="#get_align">{}</a></li>'
    context = {
        "toc": link.format("get_align_size"),
        "furo_navigation_tree": link.format("Peers, executed on 2026-11-23"),
    }
    context["toc"] += link.format("get_align_size_for_quantization")
    breaks.sides(None, "", "", context, None)
    assert link.format("get_<wbr>align_<wbr>size_<wbr>for_<wbr>quantization") in context["toc"]
    assert link.format(f"get_{PHONE}align_{PHONE}size") in context["toc"]
    assert 'on <span class="whole">2026-11-23</span></a>' in context["furo_navigation_tree"]


def test_long_names_break_at_their_parts_on_a_phone_alone():
    breaks = load(DOCS / "site" / "breaks.py")
    name = "test_squares_have_the_size_of_the_convention"
    split = '<wbr class="phone">'
    said = f'<code><span class="pre">{name}</span></code> <code><span class="pre">scale_zero</span></code>'
    said += "<h3>moe_permute_and_pad_with_probs</h3><script>const a_name_that_a_script_has_for_it = 1;</script>"
    call = '<span class="n">get_random_sign_mask</span><span class="p">(</span><span class="n">scale_layout</span>'
    block = f'<div class="highlight-python notranslate"><div class="highlight"><pre>{call}</pre></div></div>'
    plain = block.replace("python", "text").replace(call, "x = cuda.current.wait(stream_of_it, one_name)")
    context = {"body": said + block + plain}
    breaks.page(None, "", "", context, None)
    assert context["body"].count("scale_zero") == 1
    assert (
        f"<h3>moe_{split}permute_{split}and_{split}pad_{split}with_{split}probs</h3><script>const a_name_that"
        in context["body"]
    )
    assert (
        f"test_{split}squares_{split}have_{split}the_{split}size_{split}of_{split}the_{split}convention"
        in context["body"]
    )
    assert context["body"].count(f"get_{split}random_{split}sign_{split}mask</span>") == 1
    assert context["body"].count(f"(</span>{split}<span") == 1
    assert context["body"].count("scale_layout") == 1
    assert f"cuda.{split}current.{split}wait({split}stream_{split}of_it, one_name)" in context["body"]
    assert re.sub("<wbr[^>]*>", "", context["body"]) == said + block + plain
    site = (DOCS / "site" / "_static" / "site.css").read_text("utf-8")
    assert "@media not screen, (min-width: 46.01em) { wbr.phone { display: none; } }" in site
    assert not re.search(r"@media not \w+ or ", site)  # which no browser reads


def test_a_table_of_sentences_is_marked_to_stand_in_lines_on_a_phone():
    """Each cell then has its column's name, and each element the role that its display takes from it."""
    breaks = load(DOCS / "site" / "breaks.py")

    def table(*cells: str) -> str:
        names = "".join(f'<th class="head"><p>{name}</p></th>' for name in 'a"bcde'[: len(cells)])
        rows = f"<tr>{names}</tr><tr>{''.join(f'<td><p>{cell}</p></td>' for cell in cells)}</tr>"
        return f'<table class="docutils align-default">{rows}</table>'

    sentence = "this cell says in a whole sentence what the others of its row can only point at"
    assert breaks.needs_lines(table("1", sentence, "3", "4", "5", "6"))
    found = breaks.stacked(table("1", sentence, "3", "4", "5", "6"))
    assert '<table role="table" class="stacked docutils align-default">' in found
    assert '<td role="cell" data-label="a"><p>1</p>' in found
    assert '<td role="cell" data-label="&quot;"><p>this' in found
    assert found.count('role="columnheader"') == 6
    assert found.count('role="row"') == 2
    for fits in (table(*"123456"), table(sentence, *"23456"), table("1", sentence, "3"), table("1", sentence)):
        assert not breaks.needs_lines(fits)
    assert breaks.needs_lines(table("1", *["a text of eighteen"] * 5))
    assert not breaks.needs_lines(table("1", *["3141592653 2718281828"] * 5))
    code = "<code>CUDA_R_4F_E2M1</code>"
    assert breaks.needs_lines(table("1", f"{code} {sentence}", code))
    assert breaks.needs_lines(table("1", "2", "", "", "5", "6"))  # a phone shows 2 or nothing
    assert not breaks.needs_lines(table("1", "2", "", "4", "5", "6"))
    context = {"body": table("1", sentence, *"3456") + table(*"123456") + table(*"12345")}
    breaks.page(None, "", "", context, None)
    assert context["body"].count('data-label="e"') == 2  # the second one has the columns of the first
    assert context["body"].count('data-label="d"') == 2
    site = (DOCS / "site" / "_static" / "site.css").read_text("utf-8")
    assert "attr(data-label)" in site[site.index("max-width: 46em") :]


def test_plain_text_scrolls_only_where_its_columns_are_aligned():
    """Sentences and commands wrap on a phone, so that no answer is cut off; options never break at their hyphens."""
    breaks = load(DOCS / "site" / "breaks.py")
    block = '<div class="highlight-text notranslate"><div class="highlight"><pre><span></span>{}\n</pre></div></div>'

    def marks(text):
        context = {"body": block.format(text)}
        breaks.page(None, "", "", context, None)
        return re.match(r'<div class="highlight-text(.*?) notranslate">', context["body"])[1].split()

    assert marks("$ fp4ref where 37 130\nelement (37, 130)\n  tiled byte = 1108") == []
    assert marks("  spec   SQNR dB\n  nvfp4  20.41") == ["columns"]
    assert marks(f"  t = block_scale(a, g)   BLK-3{' ' * 90}") == ["columns", "long"]
    assert marks(f"  spec   SQNR dB\nrests on {'cases ' * 20}") == ["columns"]
    assert marks("step(x)  # forward and backward") == []
    context = {"body": block.format(f"$ fp4ref lint --source x\n  spec   SQNR dB\n\n  it is cut\n{' ' * 16}goes on")}
    breaks.page(None, "", "", context, None)
    option = '<span class="whole">--source</span>'
    command = f'<span class="said" style="--indent: 2ch"><span></span>$ fp4ref lint {option} x</span>'
    said = '<span class="said" style="--indent: 4ch">  it is cut</span>'
    assert f"{command}\n  spec   SQNR dB\n\n{said}\n{' ' * 16}goes on\n" in context["body"]
    code = '<code><span class="pre">fp4ref</span> <span class="pre">{}</span></code>'
    context = {"body": code.format("--source") + code.format("UE5M3-3")}
    breaks.page(None, "", "", context, None)
    assert '<span class="pre whole">--source</span>' in context["body"]
    assert '<span class="pre whole">UE5M3-3</span>' in context["body"]
    assert '<span class="pre">fp4ref</span>' in context["body"]
    context = {"body": '<td><code><span class="pre">fp4ref</span> <span class="pre">-o</span></code></td>'}
    breaks.page(None, "", "", context, None)
    assert '<span class="pre whole">-o</span>' in context["body"]


def test_versions_of_the_site_stand_side_by_side(tmp_path):
    """The newest is the one that a reader gets first; each older one keeps its folder and is listed."""
    build, html, site = load(DOCS / "build.py"), tmp_path / "html", tmp_path / "public"
    html.mkdir()
    (html / "index.html").write_text("this", "utf-8")
    for older in ("0.0.9", "0.0.10"):
        (site / older).mkdir(parents=True)
        (site / older / "index.html").write_text("other", "utf-8")
    for _ in range(2):  # a version is written again where it is
        assert build.publish(html, site) == site / fp4ref.__version__
    listed = (site / "versions.js").read_text("utf-8")
    assert listed == f'const VERSIONS = ["{fp4ref.__version__}", "0.0.10", "0.0.9"];\n'
    assert f'url={fp4ref.__version__}/index.html"' in (site / "index.html").read_text("utf-8")
    assert (site / "0.0.9/index.html").read_text("utf-8") == "other"
    assert f"**fp4ref {fp4ref.__version__}**" in build.VERSIONS


def test_reference_has_no_address_and_no_long_default(tmp_path):
    load(DOCS / "generate/reference.py").main(tmp_path / "reference")
    for path in (tmp_path / "reference").glob("*.md"):
        for fence in re.findall(r"^```python\n(.*?)^```$", path.read_text("utf-8"), re.MULTILINE | re.DOTALL):
            assert " at 0x" not in fence
            assert max(map(len, fence.splitlines())) < 500, fence[:200]
            assert "ForwardRef" not in fence
    te, core = ((tmp_path / "reference" / name).read_text("utf-8") for name in ("fp4ref.te.md", "fp4ref.md"))
    assert "### Linear\n\n```python\nLinear(\n    in_features: int,\n    out_features: int,\n" in te
    assert "```python\nAlphaRule.RECIPROCAL\nAlphaRule.DIVISION\n```" in core
    assert '= fp4ref.profiles["mxfp4"]\n```\n\nMXFP4: E2M1 codes, and one E8M0 scale for 32 elements of a row;' in core
    assert re.search(r"Values by name: `linear`, `linear\\?_padded`, .* and \d+ others\.", core)


def test_examples_of_a_docstring_can_be_copied(tmp_path):
    """An example is one block without the docstring's indent; text that is no program is plain."""
    reference = load(DOCS / "generate" / "reference.py")
    program = "    from x import y\n\n    def test():\n        y()\n"
    table = "    # KERNEL  SPEC\n    *         nvfp4"
    said = list(reference.prose(f"Said.\n\n{program}\nIn a file:\n\n{table}\n\n>>> 1 + 1\n2"))
    assert said == [
        "Said.\n",
        "```python\nfrom x import y\n\ndef test():\n    y()\n```\n",
        "In a file:\n",
        "```text\n# KERNEL  SPEC\n*         nvfp4\n```\n",
        "```python\n>>> 1 + 1\n2\n```\n",
    ]
    for name in reference.MODULES:
        for block in re.findall(r"```python\n(.*?)```", "\n".join(reference.page(name, "x")), re.DOTALL):
            assert not block.startswith(" "), block


def test_no_help_of_a_command_is_cut_short():
    reference = load(DOCS / "generate" / "reference.py")
    cut = [line for line in "\n".join(reference.commands()).splitlines() if re.search(r"^  \w+  .*\w\.\.\.$", line)]
    assert cut == []


@pytest.mark.usefixtures("rules_read_once")
def test_help_is_prose_between_how_a_command_is_called_and_its_options():
    """A block of code keeps its lines, which a phone would break a second time."""
    reference = load(DOCS / "generate/reference.py")
    text = "\n".join(reference.commands())
    assert "\nCompare dumps byte by byte with the golden model, or a kernel's bytes on aimed cases.\n" in text
    assert "case ID; `--case` shows that case alone." in text
    assert 'declared with `operation="gemm"` gets' in text
    assert "unless `--include` is given" in text
    fences = re.findall(r"^```text\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert {fence.split(maxsplit=1)[0].strip() for fence in fences[::2]} == {"Usage:"}
    assert all(re.match(r"[A-Z][a-z ]+:\n", fence) for fence in fences[1::2])


def test_lines_of_code_fit_a_block():
    """A longer line is broken at any place, and the next prompt is hard to find."""
    wide = load(DOCS / "generate/checkpoint_howtos.py").WIDTH
    ran = (DOCS / "site/ran.py").read_text("utf-8")  # which needs docutils to be loaded
    assert re.findall(r"^WIDTH = (\d+)", ran, re.MULTILINE) == [str(wide)]
    for path in sorted((DOCS / "site").glob("**/*.md")):
        for name, fence in re.findall(r"^```([^\n]*)\n(.*?)^```$", path.read_text("utf-8"), re.MULTILINE | re.DOTALL):
            long = [line for line in fence.splitlines() if len(line) > wide]
            assert name.startswith("{") or not long, (path.name, long)


def test_the_page_on_trust_ends_in_tables_made_of_the_records(tmp_path, monkeypatch):
    page = load(DOCS / "generate/proved.py")
    held = page.proved()
    kept = [(claim, record) for claim, record in held if claim.name != "block-all/header"]
    monkeypatch.setattr(page, "proved", lambda: kept)
    page.main(tmp_path / "page.md")
    text = (tmp_path / "page.md").read_text("utf-8")
    written = (DOCS / "site/how-we-know.md").read_text("utf-8")
    assert text.startswith(written)
    tables = text[len(written) :]
    headings = [
        "## What is proved",
        "### By rule",
        "### Every rule",
        "### Subjects without a certificate",
        "### By certificate",
        "### Claims without a record",
    ]
    assert re.findall(r"^#+ .*", tables, re.MULTILINE) == headings
    assert tables.index("| rule | golden | header |") < tables.index("| BLK-3 |") < tables.index("| certificate |")
    assert tables.index("| BLK-3 |") > tables.index("### By rule")
    assert "](how-we-know.md)" in (DOCS / "site/proved.md").read_text("utf-8")  # where older links lead
    every = tables[tables.index("### Every rule") : tables.index("### Subjects without a certificate")]
    assert len(re.findall(r"^\| [A-Z]\S* \|.*\| (?:proved|tests) \| `.*` \|$", every, re.MULTILINE)) > 300
    assert "| proved | `block-scale`, " in every
    assert "| open |" not in every
    by_rule = tables[: tables.index("### Every rule")]
    (row,) = [line for line in by_rule.splitlines() if line.startswith("| BLK-3 |")]
    assert len(re.findall(r"\| exhaustive: [\d,]+, 2\d{3}-\d\d-\d\d[ ;]", row)) >= 2, row
    assert "| `encode-e2m1/header` |" in text
    assert "| 2^32 | 2^32 |" in text
    assert "`block-all/header`" in tables[tables.index(headings[-1]) :]
    monkeypatch.setattr(
        page, "proved", lambda: [(claim, {"inputs_computed": 1, "date": ""}) for claim in page.claims().values()]
    )
    assert not [*page.without_record()]


def test_performance_page_takes_what_the_benchmarks_write(tmp_path):
    """A file's rows tell its kind; peers, spread and shapes are shown whatever the cases are called."""
    page, results = load(DOCS / "generate/performance.py"), tmp_path / "results"
    page.main(tmp_path / "none.md", results)
    assert "no recorded results" in (tmp_path / "none.md").read_text("utf-8")
    results.mkdir()
    cases = [{"case": "nvfp4", "ratio": 1.25, "goal": None, "seconds": [0.5]}]
    cpu = {"processors": 2, "elements": 64, "command": "run --json", "ratios": {"one / two": 0.57}}
    copy = {"median": 4e12, "lowest": 3.5e12, "highest": 4.2e12}
    (results / "cpu.json").write_text(json.dumps({**cpu, "results": cases}))
    for name, rows in RECORDED.items():
        record = {"setting": {"device": "H", "date": "2026-01-02"}, "copy": copy, "results": rows}
        (results / f"{name}.json").write_text(json.dumps(rows if name == "linear" else record))
    rows = [*RECORDED["linear"], {"case": "mxfp8", "seconds": 1.5, "ratio": 1.5}]
    for name, size in (("large", "64 x 8"), ("small", "8 x 8")):
        record = {"setting": {"device": "B", "date": "2026-01-02", "size": size}, "results": rows}
        (results / f"{name}.json").write_text(json.dumps(record))
    taken = {"quantize": 0.75, "quantize, start": 0.5, "other": 20.5, "other, start": 0.25}
    rows_of_checkpoints = [{"case": case, "processor": seconds} for case, seconds in taken.items()]
    (results / "peer.json").write_text(json.dumps({"megabytes": 64, "results": rows_of_checkpoints}))
    for name, rows in OTHERS.items():
        (results / f"{name}.json").write_text(json.dumps({"against": "product", "results": rows}))
    clocks = {"driver, clocks of SM and memory, highest of SM": "580.1, 1900 MHz, 3201 MHz, 1980 MHz"}
    (results / "checkpoints_11gb.json").write_text(json.dumps({"setting": clocks, "results": rows_of_checkpoints}))
    native = {"seconds": 0.5, "of_plain": 1.0, "gigabytes_per_second": 8.0}
    judged = [("nvfp4", 1.5, "1.2 copies", False), ("fresh", 1.0, "1.2 copies", True), ("column", 5.0, "", None)]
    rows_of_cpu = [{"case": name, "ratio": by, **native, "goal": goal, "met": met} for name, by, goal, met in judged]
    (results / "native.json").write_text(json.dumps({"setting": {"device": "2 processors"}, "results": rows_of_cpu}))
    page.main(tmp_path / "page.md", results)
    text = (tmp_path / "page.md").read_text("utf-8")
    lines = text.splitlines()
    assert (
        "driver: 580.1; clocks: 1900 MHz of at most 1980 MHz, memory 3201 MHz; file: `checkpoints_11gb.json`" in lines
    )
    assert [line for line in lines if line.startswith("## ")] == [
        "## Kernels on a GPU: H",
        "## Kernels on a CPU: 2 processors",
        "## Calls from Python: H",
        "## Modules: linear",
        "## Modules: B, 8 x 8",
        "## Modules: B, 64 x 8",
        "## Products of quantized matrices: gemm",
        "## Checkpoints: 11 GB",
        "## Checkpoints: 64 MB",
        "## Narrow matrices: narrow",
        "## Other measurements: cpu",
    ]
    assert "processors: 2; elements: 64; command: `run --json`; file: `cpu.json`" in lines
    assert "device: H; date: 2026-01-02; copy: 4.00 TB/s (3.50 to 4.20); file: `gpu.json`" in lines
    assert "| one / two | 0.57 |" in lines
    assert "| nvfp4 | 1.25 |  |" in lines
    assert "At 16x32, 1 of 2 cases reach 90% of the copy bandwidth. Furthest below: `new case` 40%." in text
    assert "varies by up to 25%." in text
    assert "`torchao amax + row` takes 0.50 to 3.00 times as long as `nvfp4 amax + row`; it is faster at 8x8." in text
    assert "| case | 8 x 8 | 16 x 32 |" in lines
    assert "| nvfp4 amax + row | 80 | 95 |" in lines
    assert "1 of 2 cases with a goal meet it." in text
    assert "Slower than their goal: `nvfp4` 1.50 copies, 1.00 plain, 8.00 GB/s (1.2 copies)." in text
    assert "A call takes the host 3.5 to 3.5 times as long" in text
    assert "`torchao nvfp4 row` takes 0.80 times as long as `quantize nvfp4 row`; it is faster at 8x8." in text
    assert "`nvfp4` takes 1.64 times as long as `torch`." in text
    assert "`mxfp8` takes least, 1.50 times as long as `torch`; `nvfp4` most, 1.64 times." in text
    assert "start where it was measured: `quantize` 0.25 s, `other` 20.25 s." in text
    assert "takes 1.00 (`k1`) to 4.00 (`k4`) times as long as a wide one; by block, 0.50 to 2.00 times." in text
    assert "`cuda` takes 2 to 3 times as long as the product. `torch` takes 8 times as long as `cuda`." in text


RECORDED = {
    "gpu": [
        {"shape": "8x8", "case": "nvfp4 amax + row", "us": 10.0, "of_copy_bandwidth": 0.8, "path": ""},
        {"shape": "8x8", "case": "torchao amax + row", "us": 5.0, "of_copy_bandwidth": 1.6},
        {"shape": "16x32", "case": "copy", "us": 9.0, "of_copy_bandwidth": 1.0},
        {
            "shape": "16x32",
            "case": "nvfp4 amax + row",
            "us": 10.0,
            "us_lowest": 9.0,
            "us_highest": 11.25,
            "of_copy_bandwidth": 0.952,
        },
        {"shape": "16x32", "case": "new case", "us": 22.0, "of_copy_bandwidth": 0.4},
        {"shape": "16x32", "case": "torchao amax + row", "us": 30.0, "of_copy_bandwidth": 0.3},
        {"shape": "16x32", "case": "nvfp4 amax + row against torchao amax + row", "ratio": 3.0, "goal": 2.7},
    ],
    "host": [
        {"shape": "8x8", "call": "clone", "host_us": 10.0, "waited_us": 20.0, "clones": 1.0},
        {"shape": "8x8", "call": "quantize nvfp4 row", "host_us": 35.0, "waited_us": 60.0, "clones": 3.5},
        {"shape": "8x8", "call": "torchao nvfp4 row", "host_us": 28.0, "waited_us": 60.0, "clones": 2.8},
    ],
    "linear": [{"case": "torch", "seconds": 1.0, "ratio": 1.0}, {"case": "nvfp4", "seconds": 1.64, "ratio": 1.64}],
}

OTHERS = {  # of which a page is not told the device
    "narrow": [
        {"case": f"k{ratio}", "ratio": ratio, "ratio_by_block": ratio / 2, "wide_seconds": 1} for ratio in (4, 1, 2)
    ],
    "gemm": [
        {"backend": "cuda", "spec": "mxfp4", "mode": "exact", "seconds": 0.5, "ratio": 2.0},
        {"backend": "torch", "spec": "mxfp4", "mode": "exact", "seconds": 4.0, "ratio": 16.0},
        {"backend": "cuda", "spec": "mxfp4", "mode": "fast", "seconds": 0.75, "ratio": 3.0},
    ],
}


@pytest.mark.parametrize("name", [*RECORDED, *OTHERS])
def test_charts_of_any_results_stay_inside_and_name_every_case(name, tmp_path):
    charts = load(DOCS / "generate/charts.py")
    rows = (RECORDED | OTHERS)[name]
    (tmp_path / f"{name}.json").write_text(json.dumps({"setting": {"date": "2026-01-02"}, "results": rows}))
    (result,) = charts.files(tmp_path)
    root = ET.fromstring(charts.DRAWN[result.kind](result, "light"))
    svg = "{http://www.w3.org/2000/svg}"
    said = root.findtext(f"{svg}desc")
    assert "2026-01-02" in said
    shape = max((row.get("shape", "") for row in rows), key=len)
    for row in rows:
        if row.get("shape", "") == shape and "case" in row and row["case"] != "torch" and "goal" not in row:
            assert f"{row['case']}: " in said
    assert name != "gemm" or ("mxfp4, fast: 3.00" in said and "16.00" not in said)  # of the first backend alone
    for rect in root.iter(f"{svg}rect"):
        assert float(rect.get("x", 0)) + float(rect.get("width")) <= 800
    hatched = [rect for rect in root.iter(f"{svg}rect") if "fp-fill-pad" in rect.get("class", "")]
    assert len(hatched) == sum(
        "torchao" in str(row.get("case", row.get("call"))) and row.get("shape") == shape and "goal" not in row
        for row in rows
    )


def words(svg: str) -> str:
    """What a drawn terminal says, without its spaces."""
    texts = [element.text or "" for element in ET.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]
    return "".join("".join(texts).split())


@pytest.mark.slow  # runs the kit on a kernel
@pytest.mark.rule("E2M1-3", "CNF-2")
def test_picture_of_a_diagnosis_is_what_the_command_prints():
    screenshot = load(DOCS / "generate/screenshot.py")
    shown = (DOCS / "diagnosis.svg").read_text("utf-8")
    assert words(shown) == words(screenshot.svg(screenshot.output()))
    assert "".join(screenshot.COMMAND.split()) in words(shown)
    assert "http://" not in shown.replace("http://www.w3.org/", "")
    assert re.search(r"!\[[^]]{100,}\]\(docs/diagnosis\.svg\)", (DOCS.parent / "README.md").read_text("utf-8"))


@pytest.mark.heavy  # the simulator takes seconds
@pytest.mark.rule("E4M3-2", "E2M1-3", "PACK-1")
def test_verilog_example_conforms_and_a_wrong_tie_is_named(tmp_path):
    """In CI the simulator is the distribution's package; elsewhere its lack is a reason to skip."""
    if shutil.which("iverilog") is None:
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)("no iverilog here: apt-get install iverilog")
    shutil.copytree(EXAMPLES, tmp_path, dirs_exist_ok=True)
    command = ["verify", "--kernel", "rtl_nvfp4.py:quantize", "--spec", "torchao.nvfp4_1lvl", "--level", "1"]
    for family in ("nan", "inf", "element-ties", "minus-zero", "subnormals"):
        command += ["--family", family]

    def run():
        return subprocess.run(
            ["fp4ref", *command], env=environment(), capture_output=True, text=True, check=False, cwd=tmp_path
        )

    ran = run()
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "conforms to torchao.nvfp4_1lvl" in ran.stdout
    design = tmp_path / "nvfp4_block.v"
    text = design.read_text("utf-8")
    assert "(y >= 14 * quarter)" in text
    design.write_text(re.sub(r"y >= ", "y > ", text), "utf-8")
    ran = run()
    assert ran.returncode == 1, ran.stdout + ran.stderr
    assert "ties go toward zero when elements are rounded" in ran.stdout


@pytest.mark.slow  # Triton's interpreter takes seconds
@pytest.mark.rule("MXS-1", "E8M0-2", "E4M3-2", "BLK-10")
def test_triton_example_conforms(tmp_path):
    pytest.importorskip("torch")
    pytest.importorskip("triton", reason="Triton is not installed")
    families = ["element-ties", "nan", "inf", "minus-zero"]
    command = ["fp4ref", "verify", "--kernel", f"{EXAMPLES / 'triton_mxfp8.py'}:quantize", "--spec", "mxfp8-e4m3"]
    for family in families:
        command += ["--family", family]
    ran = subprocess.run(
        command,
        env={**environment(), "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "conforms to mxfp8-e4m3" in ran.stdout


def test_volume_1_is_one_page_with_an_anchor_for_each_rule(tmp_path):
    target = tmp_path / "volume-1.html"
    subprocess.run([sys.executable, DOCS / "generate/volume_1.py", target], check=True)
    text = target.read_text("utf-8")
    anchors = re.findall(r'<h[2-4] id="([A-Z0-9]+-\d+)">', text)
    volume = [rule.id for rule in rules.defined().values() if (spec_root() / f"{rule.chapter}.md").exists()]
    assert anchors == volume
    links = set(re.findall(r'href="#([^"]+)"', text))
    assert links <= {*anchors, *re.findall(r'<section id="([^"]+)">', text)}
    assert "BLK-3" in links
    assert text.count('<a class="rule" href="#GEM-8">GEM-8</a>') > 1
    assert "a.rule { white-space: nowrap }" in text
    assert "vllm.<wbr>kv_<wbr>page_<wbr>v_<wbr>scale_<wbr>linear" in text
    assert "(max-width: 46em) { figure { overflow-x: auto } figure img { width: 44rem; max-width: none } }" in text
    assert "<!-- made" not in text
    figures = load(DOCS / "generate/chapter_figures.py").IN_CHAPTER
    in_volume = [
        name for chapter, names in figures.items() if (spec_root() / f"{chapter}.md").exists() for name in names
    ]
    assert text.count('<figure><img src="data:image/svg+xml;base64,') == len(in_volume) > 15
    drawn = text.index("<figcaption>The byte of scale (m, k) in tiled_128x4")
    assert text.index('id="LAY-3"') < drawn < text.index('id="LAY-4"')


@pytest.mark.usefixtures("chromium")
def test_the_cheat_sheet_is_one_page_of_pdf_with_its_text(tmp_path):
    """Every text of the figure is in the PDF, as text."""
    subprocess.run([sys.executable, DOCS / "generate/printed.py", tmp_path / "sheet.pdf"], check=True)
    (page,) = pypdf.PdfReader(tmp_path / "sheet.pdf").pages
    found = "".join(page.extract_text().split())
    svg = ET.fromstring(catalogue.draw("cheat-sheet", theme="light"))
    drawn = ["".join(text.itertext()) for text in svg.iter("{http://www.w3.org/2000/svg}text")]
    assert len(drawn) > 80
    assert [text for text in drawn if "".join(text.split()) not in found] == []


@pytest.mark.parametrize("installed", [True, False])
def test_pages_link_a_pdf_where_a_browser_prints_it(installed, tmp_path, monkeypatch):
    build = load(DOCS / "build.py")
    monkeypatch.setattr(build, "browser", lambda: "/usr/bin/chromium" if installed else None)
    build.copy_pages(tmp_path / "source")
    for page, name in (("cheat-sheet.md", "cheat-sheet.pdf"), ("standard/index.md", "volume-1.pdf")):
        assert (f'<a href="{"../" * page.count("/")}{name}">' in (tmp_path / "source" / page).read_text()) == installed


def test_an_image_without_a_link_to_its_full_size_fails_the_build(tmp_path):
    """The link leads to the same picture; volume 1 holds its pictures itself."""
    build = load(DOCS / "build.py")
    for name, text in (("light.svg", "<svg/>"), ("copy.svg", "<svg/>"), ("dark.svg", "<svg></svg>")):
        (tmp_path / name).write_text(text, "utf-8")
    described = 'alt="a picture that is described in words"'
    for shown, wrong in (
        (f'<a href="copy.svg"><img src="light.svg" {described}></a>', 0),
        (f'<a href="dark.svg"><img src="light.svg" {described}></a>', 1),
        (f'<a href="copy.svg"></a><img src="light.svg" {described}>', 1),
        (f'<img src="data:image/svg+xml;base64,AA==" {described}>', 0),
    ):
        (tmp_path / "page.html").write_text(shown, "utf-8")
        assert sum("has no link to its full size" in fault for fault in build.faults(tmp_path)) == wrong


def test_charts_have_the_recorded_numbers(tmp_path):
    """Every series is named in the description with its last value, and stays inside the drawing."""
    load(DOCS / "generate/charts.py").main(tmp_path)
    losses = json.loads((DOCS / "recorded/te_gpt.json").read_text("utf-8"))["losses"]
    for theme in ("light", "dark"):
        assert {path.stem for path in (tmp_path / theme).glob("*.svg")} >= {"training-loss", "measured-gpu_h200"}
        for path in (tmp_path / theme).glob("*.svg"):
            root = ET.fromstring(path.read_text("utf-8"))
            assert float(root.get("width")) == 800
            for line in root.iter("{http://www.w3.org/2000/svg}path"):
                assert max(map(float, re.findall(r"[ML]([\d.]+)", line.get("d", "")))) <= 800
    said = ET.parse(tmp_path / "light/training-loss.svg").getroot().findtext("{http://www.w3.org/2000/svg}desc")
    for name, values in losses.items():
        assert f"{name} {sum(values[-10:]) / 10:.3f}" in said


def test_notebooks_run_and_show_their_results(tmp_path):
    """Outputs are made here: the files contain none. A cell that raises is an error."""
    script = load(DOCS / "generate/notebooks.py")
    for path in (DOCS / "notebooks").glob("*.ipynb"):
        assert not any(cell.get("outputs") for cell in json.loads(path.read_text("utf-8"))["cells"])
    script.main(tmp_path)
    shown = {path.stem: path.read_text("utf-8") for path in tmp_path.glob("*.md")}
    assert "<td>uint8 [384, 20]</td>" in shown["quantize-notebook"]
    assert "(1108, (37, 8))" in shown["quantize-notebook"]
    assert "the high nibble comes first" in shown["check-notebook"]
    assert shown["check-notebook"].count("```text\nconforms\n```") == 1
    with pytest.raises(ZeroDivisionError):
        script.run("1 / 0", {})
