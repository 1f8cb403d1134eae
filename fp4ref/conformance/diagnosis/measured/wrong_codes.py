"""The evidence about wrong codes that no mistake explains: they are ties, or always one code instead of another.

For example, a kernel rounds ties away from zero in blocks with large scales. No known mistake makes its bytes, but its
wrong codes are ties, each goes away from zero, and each is under a scale of at least 128, while such ties under smaller
scales are right.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fp4ref.formats import Codec, Codes, F, Floats, grid

Bools = NDArray[np.bool_]
RIGHT = 8  # ties that are right, below which no bound between them and the wrong ones is claimed


class Ties(NamedTuple):
    """Numbers amid two values of a format: the number, its block's scale, and whether its code is wrong.

    larger: its right code has the smaller magnitude of the two, so that the other one is larger.
    """

    y: Floats
    scale: Floats
    wrong: Bools
    larger: Bools

    @property
    def rises(self) -> Bools:
        """True where the code that is not right is that of the larger number."""
        return np.asarray(self.larger != np.signbit(self.y))


class WrongCodes:
    """The wrong codes of several cases. one, many: words for codes. number: for what they encode."""

    def __init__(self, codec: Codec, one: str, many: str, number: str) -> None:
        self.codec, self.one, self.many, self.number = codec, one, many, number
        self.count = 0
        self.all_ties = True
        self.pairs: set[tuple[int, int]] = set()
        self._ties: list[Ties] = []
        self._least, self._most = float("inf"), 0.0

    @property
    def possible(self) -> bool:
        """True as long as there is something to say."""
        return self.all_ties or self._alike

    @property
    def _alike(self) -> bool:
        """True if every wrong code is written instead of the same one, but for the sign of either."""
        mask = self.codec.format.sign_bit - 1
        return len({(right & mask, got & mask) for right, got in self.pairs}) <= 1

    def add(self, y: Floats, got: Codes, scale: Floats | None = None) -> None:
        """Look at the codes of a case. y: numbers that are rounded, [n]; got: their codes; scale: of their blocks."""
        if not self.possible:
            return
        right = self.codec.encode(np.ascontiguousarray(y))
        wrong = got != right
        self.count += int(np.count_nonzero(wrong))
        self.pairs |= {divmod(both, 256) for both in np.unique(right[wrong] * np.int64(256) + got[wrong]).tolist()}
        far = np.abs(y[wrong])
        self._least = min(self._least, float(far.min(initial=np.inf)))
        self._most = max(self._most, float(far.max(initial=0)))
        values = grid(self.codec.format)
        amid = (values[:-1] + values[1:]) / 2
        place = np.minimum(np.searchsorted(amid, np.abs(y)), len(amid) - 1)
        tie = np.abs(y) == amid[place]
        other = self.codec.decode(got[tie])
        neighbour = (np.abs(other) == values[place[tie]]) | (np.abs(other) == values[place[tie] + 1])
        if (wrong & ~tie).any() or (wrong[tie] & ~(neighbour & (np.signbit(other) == np.signbit(y[tie])))).any():
            self.all_ties = False
            self._ties = []
            return
        larger = np.abs(self.codec.decode(right[tie])) == values[place[tie]]
        scales = np.ones(len(other), F) if scale is None else scale[tie]
        self._ties.append(Ties(y[tie], scales, wrong[tie], larger))

    @property
    def of_ties(self) -> str:
        """Say that every wrong code is a tie, which way it goes, and where; empty if some are not. Rules: CNF-132."""
        if not self.all_ties or not self.count:
            return ""
        ties = Ties(*(np.concatenate(parts) for parts in zip(*self._ties, strict=True)))
        ways = [
            (int((may & ~ties.wrong).sum()), text, may) for text, may in _ways(ties) if not (ties.wrong & ~may).any()
        ]
        others, text, may = min(ways, key=lambda way: way[0])
        where = self._where(ties, may, others)
        return f"every wrong {self.one} is a tie that goes {text} ({self.count:,} {self.many}{where})"

    def _where(self, ties: Ties, may: Bools, others: int) -> str:
        """Say what separates the wrong ties from those of the kind that are right, or how many are."""
        if not others:
            return ", and no such tie is right"
        wrong, right = ties.wrong & may, may & ~ties.wrong
        if others >= RIGHT:
            for text, value in ((f"{self.number}s of magnitude", np.abs(ties.y)), ("a block scale of", ties.scale)):
                least, most = value[wrong].min(), value[wrong].max()
                bound = f"at least {least:.9g}" if least > value[right].max() else ""
                bound = bound or (f"at most {most:.9g}" if most < value[right].min() else "")
                if bound:
                    under = "all under" if value is ties.scale else "all of"
                    return f", {under} {text} {bound}; {others:,} other such ties are right"
            signs = np.signbit(ties.y)
            own = signs[wrong][0]
            if (signs[wrong] == own).all() and (signs[right] != own).all():
                sign = "negative" if own else "positive"
                return f", all of {sign} numbers; {others:,} other such ties are right"
        return f"; {others:,} other such ties are right"

    @property
    def of_pairs(self) -> str:
        """Say that every wrong code is written instead of the same one; empty if that is not so. Rules: CNF-133."""
        if not self.count or not self._alike:
            return ""
        each = " or ".join(f"{got:#x} instead of {right:#x}" for right, got in sorted(self.pairs))
        least, most = (f"{magnitude:.9g}" for magnitude in (self._least, self._most))
        numbers = f"{self.number}s of magnitude {least}" + (f" to {most}" if most != least else "")
        return f"every wrong {self.one} is {each} ({self.count:,} {self.many}, of {numbers})"


def _ways(ties: Ties) -> Iterator[tuple[str, Bools]]:
    """Yield the ways in which ties may be broken, and which ties have the other code then."""
    yield "away from zero", ties.larger
    yield "towards zero", ~ties.larger
    yield "up", ties.rises
    yield "down", ~ties.rises
    yield "to the odd code", np.ones(ties.wrong.shape, np.bool_)
