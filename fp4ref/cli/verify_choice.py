"""What the options of `fp4ref verify` ask for, where a kernel is on trial."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fp4ref.cli.verify_pages import Pages
from fp4ref.cli.verify_statement import Statement


@dataclass(frozen=True)
class Choice:
    """The wishes that options express.

    case: the name of a case, or of a block of one. seconds: of processor time for a diagnosis; None for the default, 0
    for no diagnosis. signature: the name or file of that of a C function. require: families, or "all". forever: go on
    with the next seed until something fails or the run is interrupted. given: the options on the command line, each as
    `--seed`.
    """

    spec: str | None
    scale_layout: str | None
    nibbles: str | None
    case: str | None
    save_case: Path | None
    as_json: bool
    limit: int
    pages: Pages = Pages()  # noqa: RUF009 - it is frozen
    seconds: float | None = None
    signature: str | None = None
    direction: str | None = None
    require: tuple[str, ...] = ()
    statement: Statement | None = None
    forever: bool = False
    given: frozenset[str] = frozenset()
    huge: bool = False

    @property
    def changes(self) -> dict[str, Any]:
        """Fields of a declaration that options set."""
        given = {"scale_layout": self.scale_layout, "nibble_order": self.nibbles, "direction": self.direction}
        return {name: value for name, value in given.items() if value is not None}
