"""Scales beside the block scales, with their direction: converted with a proof of what it costs."""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fp4ref.checkpoints.convention import Direction, ScaleWay
from fp4ref.errors import DomainError

F32 = np.float32
Floats = NDArray[np.float32]


M, D, A = ScaleWay.MULTIPLIER, ScaleWay.DIVISOR, ScaleWay.AMAX
# Each with the stored numbers, and the constants of the old and of the new direction.
CHANGES: dict[tuple[ScaleWay, ScaleWay], Callable[[Floats, np.float32, np.float32], Floats]] = {
    (M, D): lambda x, old, new: F32(1) / x,
    (D, M): lambda x, old, new: F32(1) / x,
    (M, A): lambda x, old, new: x * new,
    (A, M): lambda x, old, new: x / old,
    (D, A): lambda x, old, new: new / x,
    (A, D): lambda x, old, new: old / x,
    (A, A): lambda x, old, new: x / old * new,
}


class Cost(IntEnum):
    """The cost of storing a scale in another direction, from none upwards."""

    EXACT = 0  # the stored number means the same factor
    ROUNDED = 1  # another factor, within half a unit in the last place; the way back gives the same bits
    ULP = 2  # the way back gives the neighbour of the number


class StoredScale(NamedTuple):
    """A global or an input scale as it is stored. values: float32, one for the weight or one per matrix."""

    values: Floats
    direction: Direction

    def factors(self) -> NDArray[np.float64]:
        """Return the factors that the stored numbers mean, whatever they are. Rules: CKP-20."""
        numbers = self.values.astype(np.float64)
        with np.errstate(all="ignore"):
            if self.direction.way is ScaleWay.DIVISOR:
                return np.asarray(1 / numbers)
            return np.asarray(numbers / self.direction.constant) if self.direction.way is ScaleWay.AMAX else numbers

    def multipliers(self) -> list[Fraction]:
        """Return the exact factors that the stored numbers mean. Errors: DomainError if one is none. Rules: CKP-20."""
        if not np.isfinite(self.factors()).all():
            raise DomainError("convert", f"a scale of {self.odd()}", "a positive finite number", "CKP-21")
        numbers = [Fraction(float(value)) for value in self.values]
        if self.direction.way is ScaleWay.DIVISOR:
            return [1 / number for number in numbers]
        constant = Fraction(self.direction.constant)
        return [number / constant for number in numbers] if self.direction.way is ScaleWay.AMAX else numbers

    def to(self, direction: Direction) -> StoredScale:
        """Return the scale in another direction: one float32 operation for each number.

        Rules: CNV-3.
        """
        same = self.direction.way is direction.way
        if same and (direction.way is not ScaleWay.AMAX or self.direction.constant == direction.constant):
            return StoredScale(self.values, direction)
        change = CHANGES.get((self.direction.way, direction.way))
        if change is None:
            raise DomainError("convert", f"a scale stored as {direction.way}", "a way to store it", "CNV-3")
        with np.errstate(all="ignore"):
            found = change(self.values, F32(self.direction.constant), F32(direction.constant))
        return StoredScale(np.asarray(found, F32), direction)

    def usable(self) -> bool:
        """Return True if every number is positive and finite."""
        return bool(np.all(np.isfinite(self.values) & (self.values > 0)))

    def odd(self) -> str:
        """Return the first number that is not positive and finite, as text; "" if there is none."""
        wrong = self.values[~(np.isfinite(self.values) & (self.values > 0))]
        return f"{wrong[0]:g}" if wrong.size else ""

    def cost(self, direction: Direction) -> Cost:
        """Return the cost of a direction, found by exact arithmetic and by the way back. Rules: CNV-25."""
        there = self.to(direction)
        if there.values.tobytes() == self.values.tobytes() and direction.way is self.direction.way:
            return Cost.EXACT
        if not (self.usable() and there.usable()):
            return Cost.ULP
        if there.multipliers() == self.multipliers():
            return Cost.EXACT
        return Cost.ROUNDED if there.to(self.direction).values.tobytes() == self.values.tobytes() else Cost.ULP

    def error(self, direction: Direction) -> float:
        """Return the largest relative error of the factors in another direction; 0 for those that are no numbers."""
        there = self.to(direction)
        if not (self.usable() and there.usable()):
            return 0.0
        pairs = zip(there.multipliers(), self.multipliers(), strict=True)
        return max(float(abs(new / old - 1)) for new, old in pairs)

    def to_record(self) -> dict[str, Any]:
        """Return the scale as JSON data; the numbers as the hexadecimal digits of their bytes."""
        return {
            "bits": self.values.astype("<f4").tobytes().hex(),
            "way": self.direction.way.value,
            "constant": self.direction.constant,
        }


def scale_of_record(record: Any) -> StoredScale | None:
    """Return the scale of a record; None if it is not one."""
    try:
        values = np.frombuffer(bytes.fromhex(record["bits"]), "<f4").astype(F32)
        return StoredScale(values, Direction(ScaleWay(record["way"]), float(record["constant"])))
    except (KeyError, TypeError, ValueError):
        return None
