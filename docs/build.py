"""Build the documentation: python docs/build.py [OUT]  (pip install 'fp4ref[docs]').

Pages are written in docs/site; the standard's chapters, the figures, the explorer, the page of differences and the
performance page are made here, beside copies of those pages, and Sphinx turns all of them into HTML. A warning is an
error, a link that leads nowhere too.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import click

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
THEMES = ("light", "dark")
IN_CHAPTER = {
    "02-element-formats": ("e2m1", "e4m3", "e5m2"),
    "03-scale-formats": ("e8m0", "mxfp8-scales"),
    "04-packing": ("packing",),
    "05-block-scaling": ("blocks", "directions"),
    "06-global-scaling": ("hierarchy",),
    "07-hadamard": ("hadamard",),
    "08-layouts": ("tiled_128x4", "tiled_8x4", "linear-tiled"),
    "09-stochastic-rounding": ("stochastic",),
    "12-spec-and-profiles": ("pipeline",),
    "15-gemm": ("gemm",),
}


@click.command()
@click.argument("out", type=click.Path(path_type=Path), default=ROOT / "build/docs")
@click.option("--results", type=click.Path(path_type=Path, exists=True), help="JSON files of benchmarks.")
def main(out: Path, results: Path | None) -> None:
    """Write the site's HTML to OUT/html.

    Example: python docs/build.py build/docs
    """
    source = out / "source"
    shutil.rmtree(out, ignore_errors=True)
    shutil.copytree(HERE / "site", source)
    figures(source / "figures")
    chapters(source / "standard")
    run("docs/generate/differences.py", source / "differences.md")
    run("docs/generate/performance.py", source / "performance.md", *([results] if results else []))
    run("docs/generate/reference.py", source / "reference")
    fp4ref("explore", "-o", source / "explorer.html")
    subprocess.run(
        [sys.executable, "-m", "sphinx", "-b", "html", "-W", "--keep-going", "-n", "-q", source, out / "html"], check=True
    )
    click.echo(f"{out / 'html' / 'index.html'}")


def run(script: str, *arguments: object) -> None:
    """Run one of the generators."""
    subprocess.run([sys.executable, ROOT / script, *map(str, arguments)], check=True, cwd=ROOT)


def fp4ref(*arguments: object) -> None:
    """Run the command line of this interpreter's fp4ref."""
    subprocess.run([sys.executable, "-m", "fp4ref", *map(str, arguments)], check=True)


def figures(target: Path) -> None:
    """Every figure as SVG."""
    fp4ref("diagram", "--all", target)


def chapters(target: Path) -> None:
    """The standard's chapters with their figures, and an anchor at every rule."""
    target.mkdir()
    names = []
    for path in sorted((ROOT / "spec").glob("[0-9][0-9]-*.md")):
        text = re.sub(r"^(#### ([A-Z][A-Z0-9]*-\d+) ·)", r"(\2)=\n\1", path.read_text("utf-8"), flags=re.MULTILINE)
        drawn = "\n\n".join(figure(name) for name in IN_CHAPTER.get(path.stem, ()))
        first, rest = re.split(r"(?m)^(?=#{2,4} |\(\w+-\d+\)=)", text, maxsplit=1)
        (target / path.name).write_text(first + (drawn + "\n\n" if drawn else "") + rest, "utf-8")
        names.append(path.stem)
    readme = (ROOT / "spec/README.md").read_text("utf-8")
    toc = "\n".join(["```{toctree}", ":hidden:", "", *names, "```"])
    (target / "index.md").write_text(f"{readme}\n{toc}\n", "utf-8")


def figure(name: str) -> str:
    """A figure with the description that the drawing has itself."""
    return f"```{{image}} ../figures/{name}.svg\n:alt: {name}, drawn from the code's own values\n:width: 100%\n```"


if __name__ == "__main__":
    main()
