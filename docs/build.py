"""Build the documentation: python docs/build.py [OUT]  (pip install 'fp4ref[docs,torch]').

Pages are written in docs/site; the standard's chapters, the figures, the explorer, the reference, the pages of
differences, of layouts, of conventions and of performance are made here, beside copies of those pages, and Sphinx turns
all of them into HTML. A warning is an error; so is a link of the result that leads nowhere, and an image that nobody
can hear described, or that does not link to its full size.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import click

from fp4ref import SPEC_VERSION, __version__, processors, rules
from fp4ref.explorer.page import html as explorer

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path.insert(0, str(HERE / "generate"))
from chapter_figures import sections  # noqa: E402 - a neighbour of the generators
from printed import browser  # noqa: E402

THEMES = ("light", "dark")
JOBS = os.cpu_count() or 1
# Of JOBS + 1 processes Sphinx has one wait for the others while pages are written.
SPHINX = ("-m", "sphinx", "-b", "html", "-W", "--keep-going", "-n", "-q", "-j", str(JOBS + 1))
VERSIONS = f"""# Versions of this manual

These pages describe **fp4ref {__version__}**, which implements
[version {SPEC_VERSION} of the standard](standard/VERSIONS.md).

<p id="other-versions">Where several versions are published, they are listed here and in the side bar.</p>

A checkout of a release builds the pages of that release:

```text
git checkout v{__version__} && python docs/build.py --site public
```

`--site` keeps each version in a folder of its own, and the folder's first page leads to the newest one.
"""


@click.command()
@click.argument("out", type=click.Path(path_type=Path), default=ROOT / "build/docs")
@click.option(
    "--results", type=click.Path(path_type=Path, exists=True, resolve_path=True), help="JSON files of benchmarks."
)
@click.option(
    "--site", type=click.Path(path_type=Path), help="Publish the result in this folder, beside other versions."
)
def main(out: Path, results: Path | None, site: Path | None) -> None:
    r"""Write the site's HTML to OUT/html.

    \b
    Examples:
      python docs/build.py build/docs
      python docs/build.py build/docs --site public
    """
    out = out.resolve()
    source, html = out / "source", out / "html"
    for old in (source, html, out / "explorer"):
        shutil.rmtree(old, ignore_errors=True)
    copy_pages(source)
    html.mkdir(parents=True)
    with processors.shared(JOBS):
        with ThreadPoolExecutor(JOBS) as pool:
            list(pool.map(run, [*generators(source, results), *on_one_page(html)]))
        write_explorer(out / "explorer", source)
        run([*SPHINX, "-d", out / "doctrees", source, html])
    wrong = list(faults(html))
    if wrong:
        raise click.ClickException("\n".join(wrong))
    click.echo(f"{(html if site is None else publish(html, site)) / 'index.html'}")


def copy_pages(source: Path) -> None:
    """Copy the pages that are written by hand, with their examples, and write the chapters and the page of versions."""
    shutil.copytree(HERE / "site", source, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(HERE / "examples", source / "examples", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(HERE / "diagnosis.svg", source)
    chapters(source / "standard")
    sheet = source / "cheat-sheet.md"
    sheet.write_text(printable(sheet.read_text("utf-8")), "utf-8")
    (source / "versions.md").write_text(VERSIONS, "utf-8")


def generators(source: Path, results: Path | None) -> list[list[object]]:
    """Return the commands that write the other pages and the figures, the longest first."""
    return [
        *(["-m", "fp4ref", "diagram", "--all", source / "figures" / theme, "--theme", theme] for theme in THEMES),
        ["docs/generate/differences.py", source / "differences.md"],
        ["docs/generate/reference.py", source / "reference"],
        ["docs/generate/charts.py", source / "figures"],
        ["docs/generate/checkpoint_howtos.py", source / "howto/checkpoint-garbage.md"],
        ["docs/generate/proved.py", source / "how-we-know.md"],
        ["docs/generate/rule_pages.py", source / "rule"],
        ["docs/generate/notebooks.py", source / "notebooks"],
        ["docs/generate/conventions.py", source / "conventions.md"],
        ["docs/generate/field_layouts.py", source / "field-layouts.md"],
        ["docs/generate/performance.py", source / "performance.md", *([results] if results else [])],
        ["docs/generate/gallery.py", source / "gallery.md"],
    ]


def on_one_page(html: Path) -> list[list[object]]:
    """Return the commands that write volume 1, and with a browser its PDF and that of the cheat sheet."""
    if not browser():
        return [["docs/generate/volume_1.py", html / "volume-1.html"]]
    return [
        ["docs/generate/volume_1.py", html / "volume-1.html", html / "volume-1.pdf"],
        ["docs/generate/printed.py", html / "cheat-sheet.pdf"],
    ]


def write_explorer(target: Path, source: Path) -> None:
    """Write the explorer, with the figures at the full size that the pages' images link to."""
    target.mkdir()
    (target / "explorer.html").write_text(explorer(site="./"), "utf-8")
    shutil.copytree(source / "figures", target / "figures")
    for picture in ("diagnosis.svg", "losses.svg"):
        shutil.copy(source / picture, target)


def publish(html: Path, site: Path) -> Path:
    """Copy the pages to the folder of their version in SITE, list the versions there, and return the folder.

    SITE/index.html leads to the newest version; each page reads SITE/versions.js, and links the others.
    """
    target = site / __version__
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(html, target)
    found = [path.name for path in site.iterdir() if (path / "index.html").is_file()]
    found.sort(key=lambda name: [int(part) for part in re.findall(r"\d+", name)], reverse=True)
    (site / "versions.js").write_text(f"const VERSIONS = {json.dumps(found)};\n", "utf-8")
    first = f"{found[0]}/index.html"
    lines = [
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>fp4ref</title>',
        f'<meta http-equiv="refresh" content="0; url={first}"><p><a href="{first}">fp4ref {found[0]}</a></p></html>',
    ]
    (site / "index.html").write_text("\n".join([*lines, ""]), "utf-8")
    return target


def run(command: Sequence[object]) -> None:
    """Run a generator, or a module, by this interpreter in the repository."""
    subprocess.run([sys.executable, *map(str, command)], check=True, stdout=subprocess.DEVNULL, cwd=ROOT)


def chapters(target: Path) -> None:
    """Write the standard's chapters, volume by volume: each figure after its rule, an anchor at every rule.

    A rule's heading is followed by a link to the rule's own page.
    """
    spec = ROOT / "spec"
    names = []
    for path in rules.chapters(spec):
        chapter = path.relative_to(spec)
        up = "../" * len(chapter.parts)
        text = "".join(anchored(section, up) for section in sections(path, "```{{drawn}} {}\n```".format))
        (target / chapter).parent.mkdir(parents=True, exist_ok=True)
        (target / chapter).write_text(text, "utf-8")
        names.append(chapter.with_suffix("").as_posix())
    shutil.copyfile(spec / "VERSIONS.md", target / "VERSIONS.md")
    names.append("VERSIONS")
    readme = (spec / "README.md").read_text("utf-8")
    toc = "\n".join(["```{toctree}", ":hidden:", "", *names, "```"])
    whole = '\nVolume 1 <a href="../volume-1.html">on one page</a>, and <a href="../volume-1.pdf">as PDF</a>.\n'
    (target / "index.md").write_text(f"{readme}{printable(whole)}\n{toc}\n", "utf-8")


def printable(text: str) -> str:
    """Return the text of a page, without its link to a PDF where no browser is installed that prints it."""
    return text if browser() else re.sub(r', and <a href="[^"]*\.pdf">[^<]*</a>', "", text)


def anchored(section: str, up: str) -> str:
    """Return a section of a chapter; that of a rule with an anchor, and a link to the rule's own page."""
    heading = re.match(r"(#### ([A-Z][A-Z0-9]*-\d+) · .*)\n", section)
    if heading is None:
        return section
    link = f"[functions and tests]({up}rule/{heading[2].lower()}.md)"
    return f"({heading[2]})=\n{heading[1]}\n\n{link}\n{section[heading.end() :]}"


class Page(HTMLParser):
    """The links and anchors of a page, its images with their links, and those without a description."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.silent: list[str] = []
        self.images: list[tuple[str, str]] = []
        self.around: list[str] = []  # addresses of the links that are open
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect from one tag."""
        found = {name: value or "" for name, value in attrs}
        self.links += [found[name] for name in ("href", "src") if name in found]
        if "id" in found:
            self.anchors.add(found["id"])
        if tag == "a":
            self.around.append(found.get("href", ""))
        if tag == "img":
            self.images.append((found.get("src", ""), self.around[-1] if self.around else ""))
            if len(found.get("alt", "")) < 20:
                self.silent.append(found.get("src", ""))

    def handle_endtag(self, tag: str) -> None:
        """Leave a link."""
        if tag == "a" and self.around:
            self.around.pop()


def faults(html: Path) -> list[str]:
    """Links of the site that lead nowhere, and images without a description or a link to the same picture alone."""
    pages = {path: Page(path.read_text("utf-8")) for path in sorted(html.rglob("*.html"))}
    found = []
    for path, page in pages.items():
        where = path.relative_to(html)
        found += [f"{where}: image {source} has no description" for source in page.silent]
        found += [
            f"{where}: image {one[0]} has no link to its full size" for one in page.images if not whole(path, *one)
        ]
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            anchors = pages[target].anchors if target in pages else None
            asked = "" if target.name == "explorer.html" else unquote(parts.fragment)  # whose fragments are settings
            missing = asked and anchors is not None and asked not in anchors
            if not target.exists() or missing:
                found.append(f"{where}: {link} leads nowhere")
    return found


def whole(page: Path, source: str, link: str) -> bool:
    """Return True if an image is part of the page itself, or links to a file that is the same picture."""
    shown, alone = page.parent / unquote(source), page.parent / unquote(link)
    return source.startswith("data:") or (
        alone.is_file() and shown.is_file() and alone.read_bytes() == shown.read_bytes()
    )


if __name__ == "__main__":
    main()
