"""The options of a figure: a specification, a shape, a direction, a layout, an element, a window."""

from __future__ import annotations

import re
from dataclasses import dataclass

from fp4ref.errors import DomainError, ShapeError
from fp4ref.formats import Format
from fp4ref.layout import Layout
from fp4ref.quantized import Direction
from fp4ref.spec import Spec
from fp4ref.specs import NVFP4

Range = tuple[int, int]  # start and stop
DIGITS = 9  # of a size


@dataclass(frozen=True, kw_only=True)
class Request:
    """The options of one figure; None means the figure's own choice.

    shape: (M, K) of the tensor. element: (row, column) of the tensor, in either direction. window: the part to draw,
    as ranges of rows and columns of what the figure shows (scales in the figures of layouts, codes of a format). sizes:
    of the array whose buffer is drawn, one for each axis of its layout.
    """

    spec: Spec = NVFP4
    shape: tuple[int, int] | None = None
    direction: Direction = "row"
    layout: Layout | None = None
    format: Format | None = None
    element: tuple[int, int] | None = None
    window: tuple[Range, Range] | None = None
    sizes: tuple[int, ...] | None = None
    theme: str = "auto"


def parse_shape(text: str, operation: str = "diagram") -> tuple[int, int]:
    """Read "128x256" as (128, 256); operation: named by an error. Rules: NUM-4."""
    match = re.fullmatch(r"(\d+)x(\d+)", text.strip().lower().replace("×", "x"))
    if match is None or not all(0 < len(size.lstrip("0")) <= DIGITS for size in match.groups()):
        needed = f"MxK with both at least 1 and of at most {DIGITS} digits, like 128x256"
        raise ShapeError(operation, f"shape {text!r}", needed, "NUM-4")
    return int(match[1]), int(match[2])


def parse_sizes(text: str) -> tuple[int, ...]:
    """Read "2x9x5" as (2, 9, 5). Rules: LAY-32."""
    if re.fullmatch(r"\d{1,9}(x\d{1,9})*", lowered := text.strip().lower().replace("×", "x")) is None:
        raise ShapeError("diagram", f"shape {text!r}", "a size for each axis, like 2x9x5", "LAY-32")
    return tuple(map(int, lowered.split("x")))


def parse_element(text: str) -> tuple[int, int]:
    """Read "37,130" as (37, 130)."""
    match = re.fullmatch(r"(\d{1,9}),\s*(\d{1,9})", text.strip())
    if match is None:
        raise DomainError("diagram", f"element {text!r}", "ROW,COLUMN, like 37,130")
    return int(match[1]), int(match[2])


def parse_window(text: str) -> tuple[Range, Range]:
    """Read "0:256,4:12" as ((0, 256), (4, 12)): rows, then columns."""
    match = re.fullmatch(r"(\d{1,9}):(\d{1,9}),(\d{1,9}):(\d{1,9})", text.replace(" ", ""))
    if match is not None:
        top, bottom, left, right = map(int, match.groups())
        if top < bottom and left < right:
            return (top, bottom), (left, right)
    raise DomainError("diagram", f"window {text!r}", "ROWS,COLUMNS as ranges that are not empty, like 0:256,4:12")


def require_element(element: tuple[int, int], shape: tuple[int, int], operation: str = "diagram") -> None:
    """Require that an element is in its tensor; operation: named by an error. Rules: NUM-4."""
    if not (0 <= element[0] < shape[0] and 0 <= element[1] < shape[1]):
        got = f"element ({element[0]}, {element[1]}) of a tensor of {shape[0]} x {shape[1]}"
        raise DomainError(operation, got, f"row < {shape[0]} and column < {shape[1]}", "NUM-4")


def around_place(place: tuple[int, int], size: tuple[int, int], most: tuple[int, int]) -> tuple[Range, Range]:
    """Return a part of a grid with a place in it: whole multiples of `most`, or all of an axis that is short enough."""
    down, across = (
        (0, whole) if whole <= limit else (at // limit * limit, min((at // limit + 1) * limit, whole))
        for at, whole, limit in zip(place, size, most, strict=True)
    )
    return down, across


def clipped(
    operation: str,
    window: tuple[Range, Range] | None,
    size: tuple[int, int],
    most: tuple[int, int],
    around: tuple[int, int] | None = None,
    near: tuple[int, int] | None = None,
) -> tuple[Range, Range]:
    """Return the window. Without one, return everything, or of a large grid the part with the place `around`.

    near: the size of that part, `most` if not given. More than can be drawn is an error that offers a window, with that
    place in it if there is one.
    """
    large = size[0] > most[0] or size[1] > most[1]
    if window is None:
        window = around_place(around, size, near or most) if around and large else ((0, size[0]), (0, size[1]))
    (top, bottom), (left, right) = window
    bottom, right = min(bottom, size[0]), min(right, size[1])
    if top >= bottom or left >= right:
        raise DomainError(operation, f"window {top}:{bottom},{left}:{right}", f"a part of {size[0]} x {size[1]}")
    if bottom - top > most[0] or right - left > most[1]:
        got = f"{bottom - top} x {right - left} is too large to draw"
        (top, bottom), (left, right) = around_place(around or (top, left), size, most)
        example = f"--window {top}:{bottom},{left}:{right}"
        needed = f"at most {most[0]} x {most[1]}; choose a part, like {example}"
        raise ShapeError(operation, got, needed if around else f"{needed}, or an --element")
    return (top, bottom), (left, right)
