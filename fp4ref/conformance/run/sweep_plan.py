"""The plan of a sweep: block maxima that give every scale byte, and the golden model's codes of all patterns.

For a type of 16 bits the golden model quantizes every pattern. For float32 it quantizes all patterns that end in 0000
or FFFF; where the codes of two neighbours differ, bisection finds the place. This rests on one argument: a product with
a positive number, a quotient by one and a rounding never fall as the element grows. Certificates: theorem-order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fp4ref.arrays import INPUT_DTYPES
from fp4ref.conformance.run.sweep_call import EXPONENTS
from fp4ref.conformance.run.sweep_trial import Sweep, SweepPart, SweepSteps
from fp4ref.conformance.subjects.subject import Declaration, global_scales
from fp4ref.errors import DomainError
from fp4ref.formats import Codes, F
from fp4ref.kernels import SCALES_OF
from fp4ref.model import quantize as model
from fp4ref.packing import unpack
from fp4ref.packings import CANONICAL
from fp4ref.spec import Amax, Granularity, Spec

OPERATION = "verify --exhaustive"
SIGNIFICANDS = 128  # global maxima of a 16-bit type: those of bfloat16 in one binade
ONE = 1.6015625  # the global maximum for float32
LOW = 0xFFFF  # the lower half of a float32
GOLDEN = (5**0.5 - 1) / 2  # whose multiples are spread over one
Patterns = NDArray[np.int64]


def require_served(spec: Spec, declared: Declaration, dtype: str) -> None:
    """Refuse what a sweep cannot arrange or decide.

    Errors: DomainError.

    Rules: CNF-58.
    """
    for served, got, needed in (
        (declared.operation == "quantize", f"a kernel with operation={declared.operation!r}", "a quantizer"),
        (declared.packing == CANONICAL, f"packing={declared.packing!r}", "the canonical packing"),
        (declared.nibble_order == "low", "the high nibble first", "the low nibble first"),
        (not declared.transposed, "transposed results", "results in rows of their direction"),
        (dtype in declared.dtypes, f"a kernel that does not take {dtype}", f"one of {', '.join(declared.dtypes)}"),
        (not spec.stochastic, f"{spec.name}, which rounds by random bits", "nearest rounding"),
        (spec.four_over_six is None, f"{spec.name}, whose blocks choose a scale", "one scale for a block maximum"),
        (spec.hadamard is None or declared.direction == "row", f"{spec.name} by columns", "no transform"),
        (spec.block.rows == 1, f"blocks of {spec.block.rows} rows", "blocks of one row"),
        (spec.element.format.bits != 6, "elements of 6 bits", "4 or 8 bits"),
        (
            not set(declared.inputs) - {"x", "rows", "columns", *SCALES_OF},
            f"inputs {', '.join(declared.inputs)}",
            "x, a global amax or scale, rows and columns",
        ),
    ):
        if not served:
            raise DomainError(OPERATION, got, needed, "CNF-58")


def maxima(spec: Spec, dtype: str) -> list[int | None]:
    """Return the patterns of the global maxima of a sweep; None stands for a specification without a global scale.

    For a type of 16 bits there are as many as a block has columns, or more, so that every value meets every column.

    Rules: CNF-55.
    """
    if spec.global_scale is Granularity.NONE:
        return [None] * (1 if dtype == "float32" else spec.block.columns)
    values = [ONE] if dtype == "float32" else 1 + np.arange(SIGNIFICANDS) / SIGNIFICANDS
    return [int(pattern) for pattern in _patterns(np.asarray(values).astype(F).astype(INPUT_DTYPES[dtype]))]


@lru_cache(maxsize=1)
def steps_of(spec: Spec, dtype: str, largest: int | None) -> list[SweepSteps]:
    """Return the codes of all patterns under every scale byte that a block can have, by byte. Rules: CNF-46."""
    golden = _GoldenSweep(spec, dtype, largest)
    found = sorted(golden.maxima().items())
    if dtype != "float32":
        return [*golden.steps_of_all(found)]
    return [golden.steps(byte, maximum) for byte, maximum in found]


def ranges(spec: Spec, dtype: str, maximum: int) -> list[tuple[int, int]]:
    """Return the ranges of patterns that a block with a maximum can hold: of either sign, numbers and NaN."""
    sign, infinity = 1 << (8 * INPUT_DTYPES[dtype].itemsize - 1), EXPONENTS[dtype]
    found = [(0, maximum + 1), (sign, sign + maximum + 1)]
    if spec.amax is Amax.IGNORE_NAN:
        found += [(infinity + 1, sign), (sign + infinity + 1, 2 * sign)]
    return found


def elements(spec: Spec, dtype: str, largest: int | None) -> int:
    """Return the number of patterns of all calls under one global maximum."""
    found = steps_of(spec, dtype, largest)
    return sum(stop - start for steps in found for start, stop in ranges(spec, dtype, steps.maximum))


def sweeps(
    spec: Spec, declared: Declaration, dtype: str, largest: int | None, piece: int, turn: int = 0
) -> Iterator[Sweep]:
    """Yield the calls under one global maximum, each of at most about `piece` patterns, those of all bytes by turns.

    turn: the number of columns by which the elements of every block are turned.

    Rules: CNF-46.
    """
    found = steps_of(spec, dtype, largest)
    given, lead = _given(spec, dtype, largest), None
    if largest is not None:
        top = next(steps for steps in found if steps.maximum == largest)
        lead = largest, top.byte, top.of(largest)
    rows, columns = declared.multiple

    def sweep(parts: list[SweepPart]) -> Sweep:
        used = sorted({part.steps for part in parts})
        return Sweep(
            dtype,
            spec.block.columns,
            (rows, columns),
            spec.element.format.bits,
            tuple(part._replace(steps=used.index(part.steps)) for part in parts),
            tuple(found[number] for number in used),
            lead,
            spec.global_scale is Granularity.ROW,
            given,
            turn % spec.block.columns,
        )

    parts: list[SweepPart] = []
    for part in _spread(found, spec, dtype, piece):
        parts.append(part)
        if sum(part.stop - part.start for part in parts) >= piece:
            yield sweep(parts)
            parts = []
    if parts:
        yield sweep(parts)


def _spread(found: list[SweepSteps], spec: Spec, dtype: str, piece: int) -> list[SweepPart]:
    """Return all parts, one of every scale byte after the other, those of a byte from all its magnitudes.

    So a run that ends early has seen some of every byte.
    """
    turns = []
    for number, steps in enumerate(found):
        of_byte = [
            SweepPart(number, begin, min(begin + piece, stop))
            for start, stop in ranges(spec, dtype, steps.maximum)
            for begin in range(start, stop, piece)
        ]
        order = sorted(range(len(of_byte)), key=lambda at: at * GOLDEN % 1)
        turns += [(turn, of_byte[at]) for turn, at in enumerate(order)]
    return [part for _, part in sorted(turns, key=lambda each: each[0])]


def _given(spec: Spec, dtype: str, largest: int | None) -> dict[str, float]:
    """Return the numbers that a kernel may be given, by name."""
    if largest is None:
        return {}
    amax = _values(np.array([largest]), dtype).astype(F)
    encode, decode = global_scales(spec, amax)
    return dict(zip(SCALES_OF, (float(part[0]) for part in (amax, encode, decode)), strict=True))


def _values(patterns: NDArray[Any], dtype: str) -> NDArray[Any]:
    kind = INPUT_DTYPES[dtype]
    return patterns.astype(f"u{kind.itemsize}").view(kind)


def _patterns(values: NDArray[Any]) -> Patterns:
    return values.view(f"u{values.itemsize}").astype(np.int64)


class _GoldenSweep:
    """The golden model on blocks under one global maximum."""

    def __init__(self, spec: Spec, dtype: str, largest: int | None) -> None:
        self.spec, self.dtype, self.largest = spec, dtype, largest
        self.block = spec.block.columns

    def quantized(self, blocks: NDArray[Any]) -> tuple[Codes, Codes]:
        """Return codes and scale byte of blocks of patterns [n, block]."""
        amax = None
        if self.largest is not None:
            count = len(blocks) if self.spec.global_scale is Granularity.ROW else 1
            amax = np.full(count, _values(np.array([self.largest]), self.dtype).astype(F)[0], F)
        made = model.quantize(_values(blocks, self.dtype), self.spec, "row", amax)
        return unpack(made.data, self.block, self.spec.element.format), made.scales[:, 0]

    def byte(self, patterns: Patterns) -> Codes:
        """Return the scale byte of blocks with these maxima."""
        blocks = np.zeros((len(patterns), self.block), np.int64)
        blocks[:, 0] = patterns
        return self.quantized(blocks)[1]

    def maxima(self) -> dict[int, int]:
        """Return the largest block maximum of every scale byte, by byte."""
        last = EXPONENTS[self.dtype] - 1 if self.largest is None else self.largest
        if self.dtype != "float32":
            every = np.arange(last + 1)
            return dict(zip(self.byte(every).tolist(), every.tolist(), strict=True))
        places, found = _refined(np.unique([*range(0, last + 1, LOW + 1), last]), self.byte)
        return dict(zip(found.tolist(), places.tolist(), strict=True))

    def codes(self, patterns: Patterns, maximum: int) -> Codes:
        """Return the codes of patterns in blocks with a maximum."""
        lanes = self.block - 1
        blocks = np.full((-(-len(patterns) // lanes), self.block), maximum)
        blocks[:, 1:] = np.resize(patterns, (len(blocks), lanes))
        return self.quantized(blocks)[0][:, 1:].ravel()[: len(patterns)]

    def steps_of_all(self, maxima: list[tuple[int, int]]) -> Iterator[SweepSteps]:
        """Yield the codes of all patterns under every byte, from one call on all of them."""
        lanes = self.block - 1
        patterns = [np.concatenate([np.arange(*each) for each in self._ranges(maximum)]) for _, maximum in maxima]
        counts = [-(-len(each) // lanes) for each in patterns]
        whole = np.empty((sum(counts), self.block), np.uint16)
        whole[:, 0] = np.repeat([maximum for _, maximum in maxima], counts)
        at = 0
        for each, count in zip(patterns, counts, strict=True):
            whole[at : at + count, 1:] = np.resize(each, (count, lanes))
            at += count
        codes = self.quantized(whole)[0][:, 1:].ravel()
        at = 0
        for (byte, maximum), places, count in zip(maxima, patterns, counts, strict=True):
            yield _steps(byte, maximum, places, codes[at : at + len(places)])
            at += count * lanes

    def steps(self, byte: int, maximum: int) -> SweepSteps:
        """Return the codes of all patterns that a block with a maximum can hold, from those that decide them."""
        found = [
            _refined(_halves(start, stop), lambda patterns: self.codes(patterns, maximum))
            for start, stop in self._ranges(maximum)
        ]
        places, codes = (np.concatenate([pair[i] for pair in found]) for i in (0, 1))
        return _steps(byte, maximum, places, codes)

    def _ranges(self, maximum: int) -> list[tuple[int, int]]:
        return sorted(ranges(self.spec, self.dtype, maximum))


def _steps(byte: int, maximum: int, places: Patterns, codes: Codes) -> SweepSteps:
    """Return the codes of ascending patterns, each where it begins."""
    first = np.append(True, codes[:-1] != codes[1:])
    return SweepSteps(byte, maximum, places[first], codes[first])


def _halves(start: int, stop: int) -> Patterns:
    """Return the float32 patterns of a range that end in 0000 or FFFF, and its ends."""
    places = np.arange(start & ~LOW, stop, LOW + 1)
    places = np.clip(np.stack([places, places + LOW], -1).ravel(), start, stop - 1)
    return np.asarray(places[np.append(True, np.diff(places) > 0)])


def _refined(places: Patterns, of: Callable[[Patterns], Codes]) -> tuple[Patterns, Codes]:
    """Return places and results, with more places until neighbours with different results are adjacent."""
    found = of(places)
    while True:
        (gaps,) = np.nonzero((found[:-1] != found[1:]) & (np.diff(places) > 1))
        if not len(gaps):
            return places, found
        middle = (places[gaps] + places[gaps + 1]) // 2
        places, found = np.insert(places, gaps + 1, middle), np.insert(found, gaps + 1, of(middle))
