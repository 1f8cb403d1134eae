"""The text of a layout: axes with their digits, the order in which digits are stored, padding, unit and base.

`m(32,4,*) k(4,*): k0 m1 m0 k1 m2` splits the index m into m % 32, m / 32 % 4 and the rest m / 128, and k into k % 4
and the rest; k0 is stored fastest, then m1, and so on. Clauses after a `;` say what differs from the default.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from fp4ref.errors import LayoutError

RULE = "LAY-14"
UNITS = (1, 2, 4, 6, 8, 16, 32)  # bits
AXIS = re.compile(r"([a-z]+)\(([\d,* ]+)\)")
PLACE = re.compile(r"([a-z]+)(\d+)(?:\^(?:(\d+)|([a-z]+)(\d+)))?")
NUMBER = 1000  # digits of a number
PADDING = re.compile(r"pad ([a-z]+)(?: (\d+))?(?: (0x[0-9a-fA-F]{1,8}|unspecified|refused))?")


class Axis(NamedTuple):
    """An axis of the array: its digits, fastest first (None is the rest), and its padding.

    multiple: the size is padded to a multiple of it. fill: the value of padding units, None if it is unspecified.
    refused: a size that is not a multiple is refused instead of padded.
    """

    name: str
    radices: tuple[int | None, ...]
    multiple: int
    fill: int | None = 0
    refused: bool = False

    @property
    def tile(self) -> int:
        """The product of the digits other than the rest."""
        return math.prod(radix for radix in self.radices if radix is not None)


class Term(NamedTuple):
    """A digit in the stored order; its value is XORed with `flip`, or with the digit `by`: (axis, digit)."""

    axis: int
    digit: int
    flip: int = 0
    by: tuple[int, int] | None = None


class Product(NamedTuple):
    """A number of units: a number times the padded sizes of axes."""

    number: int
    axes: tuple[int, ...] = ()

    def of(self, sizes: Sequence[int]) -> int:
        """Return the number for given padded sizes."""
        return self.number * math.prod([sizes[axis] for axis in self.axes])  # a generator torch.compile refuses


@dataclass(frozen=True)
class Form:
    """The parsed text of a layout; a `Product` in the order aligns the stride of the next digit.

    repeated: (axis, digit) of those whose values share a place. table: where the units of a run are moved in the end.
    """

    axes: tuple[Axis, ...]
    order: tuple[Term | Product, ...]
    unit: int = 8
    base: Product = Product(0)  # noqa: RUF009 - a tuple
    repeated: tuple[tuple[int, int], ...] = ()
    table: tuple[int, ...] = ()

    @property
    def irregularities(self) -> dict[str, str]:
        """The rules by which an offset is not a sum over the axes, each with the part of the text in words."""
        turned = [item for item in self.order if isinstance(item, Term) and item.by]
        found = {"LAY-19": f"digit {self._item(turned[0])}"} if turned else {}
        if self.repeated:
            found["LAY-20"] = f"digit {self._digit(*self.repeated[0])}, which is repeated"
        if self.table:
            found["LAY-21"] = f"a table of {len(self.table)} units"
        return found

    @property
    def irregular(self) -> str:
        """The first part for which an offset is not a sum over the axes, in words; empty if there is none."""
        return next(iter(self.irregularities.values()), "")

    def __str__(self) -> str:
        """Return the text, which is read as the same parts. Rules: LAY-29."""
        axes = " ".join(
            f"{axis.name}({','.join('*' if radix is None else str(radix) for radix in axis.radices)})"
            for axis in self.axes
        )
        clauses = [f"{axes}: {' '.join(map(self._item, self.order))}"]
        clauses += [] if self.unit == 8 else [f"unit {self.unit}"]
        clauses += filter(None, map(_padding, self.axes))
        clauses += [f"repeat {' '.join(self._digit(*digit) for digit in self.repeated)}"] if self.repeated else []
        clauses += [f"base {self._product(self.base)}"] if self.base.number else []
        clauses += [f"table {','.join(map(str, self.table))}"] if self.table else []
        return "; ".join(clauses)

    def _item(self, item: Term | Product) -> str:
        if isinstance(item, Product):
            return f"|{self._product(item)}"
        other = self._digit(*item.by) if item.by else item.flip
        return self._digit(item.axis, item.digit) + (f"^{other}" if other else "")

    def _digit(self, axis: int, digit: int) -> str:
        return f"{self.axes[axis].name}{digit}"

    def _product(self, product: Product) -> str:
        return "*".join([str(product.number), *(self.axes[axis].name for axis in product.axes)])


def _padding(axis: Axis) -> str:
    multiple = f" {axis.multiple}" if axis.multiple != axis.tile else ""
    word = " refused" if axis.refused else " unspecified" if axis.fill is None else f" 0x{axis.fill:02x}"
    return (
        f"pad {axis.name}{multiple}{word if axis.refused or axis.fill != 0 else ''}"
        if multiple or word != " 0x00"
        else ""
    )


def parse(name: str, text: str) -> Form:
    """Read the text of a layout; LayoutError says which part cannot be one. Rules: LAY-14."""
    if not isinstance(text, str):
        raise LayoutError(
            f"layout {name}", f"a text of type {type(text).__name__}", "a str, as m(8,*) k(4,*): m0 k0 k1 m1", "LAY-14"
        )
    return _Reader(f"layout {name}").form(text)


class _Reader:
    """Reads one text; `operation` begins its messages."""

    def __init__(self, operation: str) -> None:
        self.operation = operation
        self.axes: list[Axis] = []

    def form(self, text: str) -> Form:
        """Read the axes, then the clauses, then the stored order. Rules: LAY-23, LAY-24, LAY-28."""
        if not (text.isascii() and text.isprintable()):
            raise self._error(f"{text!r}", "printable characters of ASCII, and no white space but spaces")
        if re.search(rf"\d{{{NUMBER + 1}}}", text):
            raise self._error("a longer number", f"at most {NUMBER} digits", "LAY-23")
        head, *clauses = (part.strip() for part in re.sub(" +", " ", text).split(";"))
        declared, colon, order = head.partition(":")
        if not colon:
            raise self._error(f"{text!r}", "axes, a colon and the stored order, as in 'm(8,*) k(4,*): k0 m0 k1 m1'")
        self._read_axes(declared)
        unit, base = 8, Product(0)
        repeated: tuple[tuple[int, int], ...] = ()
        table: tuple[int, ...] = ()
        self._require_each_once(clauses)
        for clause in clauses:
            word, _, rest = clause.partition(" ")
            if word == "unit" and rest.isdigit() and int(rest) in UNITS:
                unit = int(rest)
            elif word == "base":
                base = self._product(rest)
            elif word == "table":
                table = self._table(rest)
            elif word == "repeat" and rest:
                repeated = tuple(map(self._repeated, rest.split()))
            elif match := PADDING.fullmatch(clause):
                self._read_padding(match)
            else:
                needed = "pad AXIS, unit BITS, base UNITS, repeat DIGITS or table PLACES"
                raise self._error(f"{clause!r}", needed, "LAY-28" if word == "unit" else RULE)
        for axis in self.axes:
            if axis.fill is not None and axis.fill >> unit:
                raise self._error(f"padding {axis.fill:#x}", f"a value of {unit} bits", "LAY-44")
        return Form(tuple(self.axes), self._order(order, repeated), unit, base, repeated, table)

    def _require_each_once(self, clauses: Sequence[str]) -> None:
        """Refuse a second clause of a kind; the padding of each axis is a kind of its own. Rules: LAY-27."""
        kinds = [" ".join(clause.split()[: 2 if clause.startswith("pad ") else 1]) for clause in clauses]
        for kind in kinds:
            if kinds.count(kind) > 1:
                raise self._error(f"{kinds.count(kind)} clauses {kind!r}", "one", "LAY-27")

    def _read_axes(self, declared: str) -> None:
        """Read the axes with their radices. Rules: LAY-25."""
        if AXIS.sub("", declared).strip() or not declared.strip():
            raise self._error(f"{declared.strip()!r}", "axes such as m(32,4,*)")
        for name, digits in AXIS.findall(declared):
            parts = [part.strip() for part in digits.split(",")]
            radices = tuple(None if part == "*" else int(part) if part.isdigit() else 0 for part in parts)
            if radices.count(None) != 1 or 0 in radices or name in self._names():
                raise self._error(f"{name}({digits})", "one axis of that name, with radices and one *", "LAY-25")
            axis = Axis(name, radices, 1)
            self.axes.append(axis._replace(multiple=axis.tile))

    def _read_padding(self, match: re.Match[str]) -> None:
        """Read the number of an axis and its fill. Rules: LAY-15, LAY-44, LAY-45."""
        name, multiple, word = match.groups()
        index = self._axis(name)
        axis = self.axes[index]
        if multiple:
            if int(multiple) < 1 or int(multiple) % axis.tile:
                raise self._error(f"{match[0]!r}", f"a multiple of {axis.tile}", "LAY-44")
            axis = axis._replace(multiple=int(multiple))
        if word == "refused":
            axis = axis._replace(refused=True)
        elif word:
            axis = axis._replace(fill=None if word == "unspecified" else int(word, 16))
        self.axes[index] = axis

    def _table(self, text: str) -> tuple[int, ...]:
        """Read the places of a table. Rules: LAY-21, LAY-49."""
        places = tuple(int(part) if part.strip().isdigit() else -1 for part in text.split(","))
        if sorted(places) != list(range(len(places))):
            raise self._error(f"'table {text}'", "every place from 0 on once", "LAY-49")
        return places

    def _order(self, text: str, repeated: tuple[tuple[int, int], ...]) -> tuple[Term | Product, ...]:
        """Read the stored order; the digits in it and the repeated ones are all. Rules: LAY-16, LAY-26, LAY-62."""
        items = tuple(self._product(item[1:]) if item[0] == "|" else self._place(item) for item in text.split())
        stored = sorted([*(item[:2] for item in items if isinstance(item, Term)), *repeated])
        wanted = [(index, digit) for index, axis in enumerate(self.axes) for digit in range(len(axis.radices))]
        if stored != wanted:
            raise self._error(f"order {text.strip()!r}", "every digit of every axis once", "LAY-26")
        turned = {item[:2] for item in items if isinstance(item, Term) and item.by}
        if any(isinstance(item, Term) and item.by in {*turned, *repeated} for item in items):
            raise self._error(f"order {text.strip()!r}", "an XOR with a digit that is stored as it is", "LAY-62")
        if any(isinstance(item, Product) and not item.number for item in items):
            raise self._error(f"order {text.strip()!r}", "an alignment above 0", "LAY-16")
        return items

    def _repeated(self, item: str) -> tuple[int, int]:
        if "^" in item:
            raise self._error(f"{item!r}", "a digit such as m0, since one that is repeated is not stored")
        return self._place(item)[:2]

    def _place(self, item: str) -> Term:
        """Read a digit and what flips or turns it. Rules: LAY-17, LAY-19, LAY-61, LAY-62."""
        match = PLACE.fullmatch(item)
        if not match:
            raise self._error(f"{item!r}", "a digit such as m0, m0^1, or an alignment such as |32")
        by = (self._axis(match[4]), int(match[5])) if match[4] else None
        place = Term(self._axis(match[1]), int(match[2]), int(match[3] or 0), by)
        radix, other = self._radix(place.axis, place.digit), self._radix(*by) if by else None
        whole = radix is not None and radix & (radix - 1) == 0
        if place.flip and not (whole and place.flip < (radix or 0)):
            raise self._error(f"{item!r}", "a digit of 2^n values and a constant below that", "LAY-61")
        if by and not (whole and other is not None and other <= (radix or 0)):
            raise self._error(f"{item!r}", "a digit of 2^n values and another of no more values", "LAY-62")
        return place

    def _radix(self, axis: int, digit: int) -> int | None:
        radices = self.axes[axis].radices
        return radices[digit] if digit < len(radices) else None

    def _product(self, text: str) -> Product:
        factors = [part.strip() for part in text.split("*")]
        numbers = [int(part) for part in factors if part.isdigit()]
        return Product(math.prod(numbers), tuple(self._axis(part) for part in factors if not part.isdigit()))

    def _names(self) -> list[str]:
        return [axis.name for axis in self.axes]

    def _axis(self, name: str) -> int:
        if name not in self._names():
            raise self._error(f"axis {name!r}", f"one of {', '.join(self._names())}")
        return self._names().index(name)

    def _error(self, got: str, needed: str, rule: str = RULE) -> LayoutError:
        return LayoutError(self.operation, got, needed, rule)
