"""The result of a comparison: where bytes differ, and which differences are excused."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from fp4ref.conformance.judge.excuses import Excuse
from fp4ref.quantized import Direction

# Whether bytes are right by a bound: (tile of one block, its scale byte, its codes) -> bool.


@dataclass(frozen=True)
class Difference:
    """The first differing code of a block, or its differing scale.

    row, column, block: in the matrix of the direction; row is the first one of the block that differs. bits, value: of
    the quantizer's input at (row, column), in the input's type. got, expected: code, None where only the scale differs.
    codes: count of differing codes in the block.
    """

    row: int
    column: int
    block: int
    bits: str
    value: float
    got_scale: int
    expected_scale: int
    got: int | None
    expected: int | None
    codes: int
    excuse: Excuse | None


@dataclass(frozen=True)
class StrayByte:
    """A difference outside the blocks: its place, the byte, and the byte that is needed."""

    index: int
    got: str
    expected: str


ROWS_WITH_SPARE = "rows with spare bits that are set"


@dataclass
class Comparison:
    """The differences between the bytes of one direction: counts, first places, and excuses.

    codes, scales, amax, spare, padding: counts of differing codes, scale bytes, maxima, rows whose spare bits are set,
    padding bytes. element_bits: of a code.
    excused: count of differing blocks and maxima by class of input. unexcused: count of all other differences. judged:
    whether a block of finite input was compared that no special value reaches. tolerated, refused: blocks that are
    right by a bound, or not; right_by_bound: block row and block of the former. at_fault: stages whose bytes are not
    what the stages before call for. differences: of the first differing blocks. first_amax and first_spare are at a
    row, first_padding at a byte.
    """

    direction: Direction
    shape: tuple[int, int]
    element_bits: int = 4
    codes: int = 0
    scales: int = 0
    amax: int = 0
    spare: int = 0
    padding: int = 0
    unexcused: int = 0
    judged: bool = False
    tolerated: int = 0
    refused: int = 0
    excused: Counter[Excuse] = field(default_factory=Counter)
    right_by_bound: set[tuple[int, int]] = field(default_factory=set)
    at_fault: frozenset[str] = frozenset()
    differences: list[Difference] = field(default_factory=list)
    first_amax: StrayByte | None = None
    first_spare: StrayByte | None = None
    first_padding: StrayByte | None = None

    @property
    def spare_name(self) -> str:
        """The bits of a row's last byte that no code takes, in words. Rules: PACK-2, PACK-5."""
        return "spare nibble" if self.element_bits == 4 else "spare bits"

    @property
    def spare_counted(self) -> str:
        """The kind that is counted if spare bits are set, in the plural. Rules: PACK-2, PACK-5."""
        return "spare nibbles" if self.element_bits == 4 else ROWS_WITH_SPARE

    @property
    def equal(self) -> bool:
        """True if every compared byte is the same. Rules: CNF-1."""
        return not (self.codes or self.scales or self.amax or self.spare or self.padding)
