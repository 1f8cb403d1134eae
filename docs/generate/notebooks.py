"""Run the notebooks and write each as a page: python docs/generate/notebooks.py FOLDER.

A cell that raises fails the build. A page shows what a notebook would: what is printed, then the value of the last
expression, as HTML where it has a `_repr_html_`.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

NOTEBOOKS = Path(__file__).resolve().parents[1] / "notebooks"


def main(folder: Path) -> None:
    """Write a page for each notebook."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        text = "\n".join(page(json.loads(path.read_text("utf-8"))))
        note = f"This page is `docs/notebooks/{path.name}`, run while the site was built."
        (folder / f"{path.stem}.md").write_text(f"{text}\n\n{note}\n", "utf-8")


def page(notebook: dict[str, Any]) -> Iterator[str]:
    """Yield the parts of a page: text as it is, code in a fence, and its output behind it."""
    names: dict[str, Any] = {}
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] != "code":
            yield source + "\n"
            continue
        yield f"```python\n{source}\n```\n"
        printed, value = run(source, names)
        if printed:
            yield f"```text\n{printed.rstrip()}\n```\n"
        if hasattr(value, "_repr_html_"):
            yield f"```{{raw}} html\n{value._repr_html_()}\n```\n"
        elif value is not None:
            yield f"```text\n{value!r}\n```\n"


def run(source: str, names: dict[str, Any]) -> tuple[str, Any]:
    """Run a cell in a namespace; return what it printed, and the value of its last expression or None."""
    body = ast.parse(source).body
    last = ast.Expression(body.pop().value) if body and isinstance(body[-1], ast.Expr) else None
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(ast.Module(body, []), "<cell>", "exec"), names)
        value = eval(compile(last, "<cell>", "eval"), names) if last else None
    return printed.getvalue(), value


if __name__ == "__main__":
    main(Path(sys.argv[1]))
