"""Comments that rest on claims: `Certificates: NAME, NAME.` in a docstring or a comment beside the code.

A name without a subject stands for that claim about every subject, and `*` for any text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

from fp4ref.errors import UnknownNameError
from fp4ref.proof import cpp_sources, sources
from fp4ref.proof.catalogue import claims
from fp4ref.proof.claims import ClaimSubject, ProofClaim
from fp4ref.proof.python_sources import find_module
from fp4ref.rules import NATIVE, Tree, here

CITED = re.compile(r"\bCertificates:\s([^.]*)\.")
NEXT_LINE = re.compile(r"\s*\n\s*(?://|#)?\s*")  # of a comment
SUFFIXES = (".py", *NATIVE)


class CertificateCitation(NamedTuple):
    """A name in a comment. place: path:line, the path from the folder of the packages."""

    name: str
    path: Path
    place: str

    def means(self, claim: ProofClaim) -> bool:
        """Return True if a claim has the name."""
        return fnmatchcase(claim.name if "/" in self.name else claim.name.rpartition("/")[0], self.name)


def citations(tree: Tree | None = None) -> Iterator[CertificateCitation]:
    """Yield the names that comments of the packages cite."""
    tree = tree or here()
    for folder in (tree.package, *tree.backends):
        for path in sorted(path for path in folder.rglob("*") if path.suffix in SUFFIXES):
            text = path.read_text("utf-8")
            for match in CITED.finditer(text) if path != Path(__file__) else ():
                place = (
                    f"{path.relative_to(tree.package.parent).as_posix()}:{text.count(chr(10), 0, match.start()) + 1}"
                )
                for name in match[1].split(","):
                    yield CertificateCitation(NEXT_LINE.sub(" ", name).strip(), path, place)


def gaps(tree: Tree | None = None) -> list[str]:
    """Return one line for each cited name that no claim has, and each claim that its code does not cite."""
    found = [*citations(tree)]
    lines = [
        f"{cited.place}: certificate {cited.name or 'without a name'}: no claim has this name"
        for cited in found
        if not any(cited.means(claim) for claim in claims().values())
    ]
    for claim in claims().values():
        places = {cited.path for cited in found if cited.means(claim)}
        own = homes(claim)
        if claim.subject is ClaimSubject.FORMULA:
            if not places:
                lines.append(f"certificate {claim.name}: no code cites it")
        elif own and not places & own:
            names = ", ".join(sorted(path.name for path in own))
            lines.append(f"certificate {claim.name}: its code does not cite it ({names})")
    return lines


def homes(claim: ProofClaim) -> set[Path]:
    """Return the files with the definitions that a claim names, its checks and specifications apart."""
    named = {reference.partition(":")[0] for reference in claim.covers if not reference.startswith(sources.LOWERED)}
    return {_path(place) for place in named if not place.startswith(sources.CHECKS)}


def _path(place: str) -> Path:
    """Return the path of a module, of a file of the shared header, or of a package."""
    if place.endswith(".h") and "/" not in place:
        return cpp_sources.folder() / place
    package, _, inside = place.partition("/")
    found = find_module(package)
    if found is None or found.origin is None:
        raise UnknownNameError("prove", f"no {place}", "a module or file of an installed package")
    return Path(found.origin).parent / inside if inside else Path(found.origin)
