"""Layouts in which a kernel stores scales by mistake, or for a consumer that no registered layout serves.

They are layouts like any other, so that "stored in layout A where B is declared" needs no map of its own. If one of
them is registered under another name, the registry's is used instead.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from fp4ref.layout import Layout, Term

FOREIGN = tuple(
    (words, Layout(name, text))
    for name, text, words in (
        (
            "128x4-inner",
            "m(32,4,*) k(4,*): k0 m0 m1 k1 m2",
            "inside a 128x4 tile the groups of 32 rows come first (the axes 32 and 4 exchanged)",
        ),
        (
            "128x4-column-major",
            "m(32,4,*) k(4,*): m0 m1 k0 k1 m2",
            "inside a 128x4 tile bytes are stored column by column",
        ),
        (
            "128x4-column-inner",
            "m(32,4,*) k(4,*): m1 k0 m0 k1 m2",
            "inside a 128x4 tile the block and the group of 32 rows are exchanged",
        ),
        (
            "128x4-column-outer",
            "m(32,4,*) k(4,*): m1 m0 k0 k1 m2",
            "inside a 128x4 tile blocks come first, groups of 32 rows last",
        ),
        (
            "128x4-rows-4",
            "m(4,32,*) k(4,*): k0 m1 m0 k1 m2",
            "128x4 tiles split rows as row % 4 and row // 4 instead of row % 32 and row // 32",
        ),
        (
            "mn-major",
            "m(*) k(4,*): k0 m0 k1; pad m 4 unspecified",
            "scales are packed in words of four, rows fastest (MN-major)",
        ),
    )
)


def is_tiled(form: Layout) -> bool:
    """Return True if a layout is tiles that follow each other along a row, then down, without gaps."""
    rests = [Term(axis, axis_form.radices.index(None)) for axis, axis_form in enumerate(form.axes)]
    return (
        form.tile != (1, 1)
        and not form.takes_rows
        and not form.has_gaps
        and form.form.order[-2:]
        == (
            rests[1],
            rests[0],
        )
    )


@lru_cache
def tiles_exchanged(form: Layout) -> Layout:
    """Return a tiled layout with its tiles following each other down the rows first. Rules: LAY-13."""
    *inside, across, down = form.form.order
    return Layout(f"{form.name}-down", str(replace(form.form, order=(*inside, down, across))))
