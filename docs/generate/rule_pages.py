"""Write a page for each rule: its text, figures, functions, tests, vectors and certificates; and a list of all.

python docs/generate/rule_pages.py FOLDER
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from fp4ref import rules
from fp4ref.diagrams import catalogue
from fp4ref.proof.catalogue import claims_of
from fp4ref.rules import Citation, Index, Rule

MOST = 3  # figures on a page
PLACES = {
    "golden model": "fp4ref/",
    "C++ header": "backends/fp4ref_numerics/",
    "cpu backend": "backends/fp4ref_cpu/",
    "torch backend": "backends/fp4ref_torch/",
    "CUDA backend": "backends/fp4ref_cuda/",
}
APART = ("fp4ref/diagrams/", "fp4ref/explorer/", "fp4ref/conformance/", "fp4ref/proof/", "fp4ref/cli/")


def main(folder: Path) -> None:
    """Write a page for each rule, and the list of all."""
    folder.mkdir(parents=True)
    index = rules.read()
    names = [*catalogue.FIGURES, *(variant for variant, _, _ in catalogue.VARIANTS)]
    cited = {name: catalogue.cited(name) for name in names}
    for rule in index.rules.values():
        # A rule's own figures are those that show it most of all; if there are none, one that shows it too.
        own = [name for name in names if cited[name][:1] == (rule.id,)] or [n for n in names if rule.id in cited[n]][:1]
        text = "\n".join(page(index, rule, own[:MOST]))
        (folder / f"{rule.id.lower()}.md").write_text(text + "\n", "utf-8")
    (folder / "index.md").write_text("\n".join(listed(index)) + "\n", "utf-8")


def page(index: Index, rule: Rule, figures: Sequence[str]) -> Iterator[str]:
    """Yield the lines of a rule's page. The index entry makes the search find it under its ID."""
    yield f"---\norphan: true\n---\n\n```{{index}} ! {rule.id}\n```\n\n# {rule.id} · {rule.title}\n"
    yield f"Kind: {rule.kind.value}. In chapter {rule.chapter}: {rule.id}. In a terminal: `fp4ref rules {rule.id}`.\n"
    yield rule.text + "\n"
    for name in figures:
        yield f"```{{drawn}} {name}\n```\n"
    citing = index.citing(rule.id)
    functions = [found for found in citing["functions"] if not found.place.startswith(APART)] + citing["backends"]
    kit = [found for found in citing["functions"] if found.place.startswith("fp4ref/conformance/")]
    yield "## Functions\n"
    for title, place in PLACES.items():
        yield from places(title, [found for found in functions if found.place.startswith(place)])
    yield from places("conformance kit", kit)
    yield "\n## Tests and vectors\n"
    yield from places("tests", citing["tests"])
    yield from places("vectors", citing["vectors"])
    claims = claims_of(rule.id)
    if claims:
        yield "\n## Certificates\n"
        yield from (f"* `{claim.name}`: {claim.statement}" for claim in claims)
    yield "\nPeers that differ: [how the public implementations differ](../differences.md)."


def places(title: str, found: Sequence[Citation]) -> Iterator[str]:
    """Yield one line of a list: names, and the file of each."""
    if found:
        each = ", ".join(f"`{one.name}` ({one.place.rpartition(':')[0]})" for one in found)
        yield f"* {title}: {each}"


def listed(index: Index) -> Iterator[str]:
    """Yield a list of all rules, chapter by chapter."""
    yield "# All rules\n\nEach rule has a page: its text, figures, functions, tests and certificates.\n"
    chapter = ""
    for rule in index.rules.values():
        if rule.chapter != chapter:
            chapter = rule.chapter
            yield f"\n## {chapter}\n"
        yield f"* [{rule.id}]({rule.id.lower()}.md) · {rule.title}"


if __name__ == "__main__":
    main(Path(sys.argv[1]))
