"""The figure of the Hadamard transform: the sixteen by sixteen matrix with its signs."""

from __future__ import annotations

import numpy as np

from fp4ref.diagrams.canvas import MARGIN, Canvas
from fp4ref.diagrams.request import Request
from fp4ref.errors import DomainError
from fp4ref.formats import F
from fp4ref.hadamard import NORM, POINTS, STRIDES, sign_vector, transform
from fp4ref.specs import NVFP4_RHT

CELL = 27


def hadamard(request: Request) -> str:
    """Every entry of diag(signs) * H16 / 4 as the transform itself computes it. Rules: HAD-1, HAD-2, HAD-3."""
    if request.spec.hadamard is None:
        got = f"{request.spec.name}, which has no transform"
        raise DomainError("diagram hadamard", got, f"a specification with one, like {NVFP4_RHT.name}", "HAD-1")
    mask = request.spec.hadamard.signs
    matrix = transform(np.eye(POINTS, dtype=F), mask)  # row j: what x_j contributes to every y_i
    title = f"Hadamard transform of {POINTS} values, signs {mask:#06x}"
    page = Canvas(title, f"y = x · diag(d) · H16 / 4; every entry is plus or minus {NORM:g}.", request.theme)
    y, x = page.heading(title) + 40, MARGIN + 74.0
    for j, sign in enumerate(sign_vector(mask)):
        negative = sign < 0
        top = y + j * CELL
        page.text(x - 34, top + 18, f"x{j}", size=11, anchor="end", mono=True)
        page.cell(
            x - 30,
            top + 3,
            24,
            CELL - 6,
            "−" if negative else "+",
            "b" if negative else "paper",
            size=13,
            title=f"d{j}",
        )
        for i in range(POINTS):
            negative = matrix[j, i] < 0
            kind = "a" if negative else "paper"
            title_ = f"x{j} in y{i}: {matrix[j, i]:+g}"
            page.cell(x + i * CELL, top, CELL, CELL, "−" if negative else "+", kind, size=14, title=title_)
    for i in range(POINTS):
        page.text(x + (i + 0.5) * CELL, y - 8, f"y{i}", size=10, anchor="middle", mono=True)
    page.text(x - 18, y - 8, "d", size=12, anchor="middle", mono=True)
    notes = [
        f"cell: {NORM:g} with its sign",
        "row: one input x_j",
        "column: one output y_i",
        "",
        "d: the sign of each input,",
        f"bit j of {mask:#06x} set: −",
        "",
        "Order of operations:",
        "1. x_j · (d_j / 4), exact",
        *(f"{n + 2}. pairs {stride} apart: a + b, a − b" for n, stride in enumerate(STRIDES)),
        f"{len(STRIDES) + 2}. + 0.0, then to bfloat16",
        "",
        "Every sum is one float32",
        "operation, nearest even",
        "(HAD-2, HAD-3).",
    ]
    page.lines(x + POINTS * CELL + 24, y + 14, notes, size=12)
    return page.svg()
