"""Tables and numbers as the chapters write them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import numpy as np

from fp4ref.formats import F
from fp4ref.standard import formulas

BAR = re.compile(r"(?<!\\)\|")  # that is not escaped


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown; a bar within a cell is escaped, or what follows it would be lost."""
    escaped = [[BAR.sub(r"\|", cell) for cell in cells] for cells in (head, *rows)]
    lines = [f"| {' | '.join(cells)} |" for cells in escaped]
    return "\n".join([lines[0], f"|{'---|' * len(head)}", *lines[1:]]) + "\n"


def hexadecimal(value: np.float32) -> str:
    """Return the bits of a float32, as the chapters write them."""
    return f"`0x{int(np.asarray(value, F).view(np.uint32)):08X}`"


def number(value: float) -> str:
    """Return a number in full, without a fraction of zero."""
    return repr(float(value)).removesuffix(".0")


def tables(text: str) -> list[list[list[str]]]:
    """Return the tables of a rule's text: rows of cells, the head first. Tables inside code do not count."""
    found: list[list[list[str]]] = []
    before, fenced = "", False
    for line in text.splitlines():
        fenced ^= line.startswith("```")
        if line.startswith("|") and not fenced:
            if not before.startswith("|"):
                found.append([])
            if not re.fullmatch(r"(\|-+)+\|", line):
                found[-1].append([cell.strip().replace(r"\|", "|") for cell in BAR.split(line)[1:-1]])
        before = line
    return found


def number_of(cell: str) -> np.float32:
    """Return the float32 that a cell of a table means, such as `0x3E2AAAAB`, 7 * 2^-9, 1/64 or "next above 17".

    Errors: DomainError for a cell that means none.
    """
    text = cell.strip().strip("`")
    bits = re.search(r"`?(0x[0-9A-F]{8})`?", text)
    neighbour = re.fullmatch(r"next (above|below) (.*)", text)
    if neighbour:
        toward = F(np.inf if neighbour[1] == "above" else -np.inf)
        return F(np.nextafter(number_of(neighbour[2]), toward))
    return F(formulas.value(bits[1] if bits else re.sub(r"^-0(\.0)?$", "-0.0", text)))


def codes_of(cell: str) -> list[int]:
    """Return the codes of a cell: `7E`, or 7 5 0, or C hex; each word is hexadecimal."""
    return [int(word, 16) for word in cell.replace("`", "").split()]
