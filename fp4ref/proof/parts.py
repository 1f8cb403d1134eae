"""Claims about parts of a matrix: rows cut between blocks have the bytes of those rows in the whole."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import combinations, combinations_with_replacement
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fp4ref import api
from fp4ref.catalogue import resolve
from fp4ref.formats import F
from fp4ref.proof import sources, whole
from fp4ref.proof.claims import ClaimSubject, Method, ProofClaim, Replayed, Tell
from fp4ref.proof.cuts import ON_HOST, matrix
from fp4ref.quantized import DIRECTIONS, Direction, DirectionData
from fp4ref.random_source import random_bits
from fp4ref.spec import Granularity

COLUMNS = 40  # of the whole; some of its last block
SEED, STREAM = 5, 3


class CutParts(NamedTuple):
    """A specification, and at what multiples of rows a cut is between blocks in the row and column directions."""

    name: str
    row: int
    column: int
    value: str  # the reference of the specification

    def cuts(self, direction: Direction, rows: int) -> list[int]:
        """Return the rows at which the whole may be cut. Rules: TEM-8."""
        return [*range(0, rows, self.row if direction == "row" else self.column), rows]


PARTS = (
    CutParts("nvfp4", 1, 16, "fp4ref.specs:NVFP4"),
    CutParts("nvfp4-2d", 16, 16, "fp4ref.specs:NVFP4_2D"),
    CutParts("nvfp4-4over6", 1, 16, "fp4ref.specs:NVFP4_4OVER6"),
    CutParts("nvfp4-sr", 1, 16, "fp4ref.specs:NVFP4_SR"),
    CutParts("mxfp8-e4m3", 1, 32, "fp4ref.specs:MXFP8_E4M3"),
    CutParts("mxfp8-2d", 32, 32, "fp4ref.specs:MXFP8_2D"),
)
ROWS = {1: 5, 16: 35, 32: 67}  # of the whole: two blocks and a part of one, or five rows
SPLIT = 66  # rows, at most, over three processes: two blocks and more
SPLITS = 2 * len(PARTS) * sum((total + 1) * (total + 2) // 2 for total in range(SPLIT + 1))
AMAX = 6.0 * 2**5  # where there is a global scale


def count(spec: CutParts) -> int:
    """Return how many parts a claim quantizes."""
    return sum(len([*_ranges(spec, direction)]) for direction in DIRECTIONS)


def _ranges(spec: CutParts, direction: Direction) -> Iterator[tuple[int, int]]:
    """Yield the first and the last row of every part that is cut between blocks."""
    rows = ROWS[spec.row if direction == "row" else spec.column]
    return combinations(spec.cuts(direction, rows), 2)


def _bytes(
    spec: CutParts, x: NDArray[np.float32], start: int, rows: int, direction: Direction, subject: ClaimSubject
) -> DirectionData:
    """Return the bytes of a part that begins at a row of a whole, under the whole's amax."""
    bits = None
    spec_of = resolve(spec.name)
    if spec_of.stochastic:
        bits = random_bits(x.shape, direction, SEED, STREAM, (start, 0), (rows, COLUMNS), backend="numpy")
        bits = whole._array(bits, subject)
    q = api.quantize(
        whole._array(x, subject),
        spec.name,
        direction,
        amax=AMAX if spec_of.global_scale is not Granularity.NONE else None,
        random_bits=bits,
        backend=whole.BACKENDS[subject],
    )
    return q.direction(direction)[0].mapped(whole._host)


def parts(spec: CutParts, subject: ClaimSubject, tell: Tell) -> Replayed:
    """Quantize every part, and compare its bytes with those of its rows in the whole."""
    done = 0
    for direction in DIRECTIONS:
        rows = ROWS[spec.row if direction == "row" else spec.column]
        x = matrix(rows, COLUMNS) * F(1.09375)
        full = _bytes(spec, x, 0, rows, direction, subject)
        for start, stop in _ranges(spec, direction):
            got = _bytes(spec, np.ascontiguousarray(x[start:stop]), start, rows, direction, subject)
            codes = 8 // resolve(spec.name).element.format.bits  # in a byte
            for name, per in (("data", codes), ("scales", spec.column)):
                mine, its = getattr(got, name), getattr(full, name)
                want = its[start:stop] if direction == "row" else its[:, start // per : -(-stop // per)]
                if not np.array_equal(mine, want):
                    return Replayed(done, f"{direction}: {name} of rows {start} to {stop} of {rows}")
            done += 1
            tell(done / count(spec))
    return Replayed(done)


def refused(tell: Tell) -> Replayed:
    """Split matrices over three processes at every two rows, and compare which splits are refused with the rule."""
    from fp4ref.te.errors import TensorShapeError
    from fp4ref.te.sharded import _require_whole_blocks

    done = 0
    for spec in PARTS:
        for direction in DIRECTIONS:
            for total in range(SPLIT + 1):
                whole_blocks = {*spec.cuts(direction, total)}
                for first, second in combinations_with_replacement(range(total + 1), 2):
                    try:
                        counts = [first, second - first, total - second]
                        _require_whole_blocks(resolve(spec.name), direction, counts)
                        taken = True
                    except TensorShapeError:
                        taken = False
                    if taken is not (whole_blocks >= {first, second}):
                        return Replayed(done, f"{spec.name}, {direction}: parts of {counts} rows")
                    done += 1
        tell(done / SPLITS)
    return Replayed(done)


def claims() -> Iterator[ProofClaim]:
    """Yield the claims about parts."""
    for spec in PARTS:
        for subject in ON_HOST:
            value = f"{sources.LOWERED}{spec.name}" if subject is ClaimSubject.CPU else spec.value
            yield ProofClaim(
                name=f"part-{spec.name}/{subject}",
                rules=("TEM-7", "TEM-9" if resolve(spec.name).stochastic else "THM-9"),
                method=Method.ARGUMENT,
                subject=subject,
                statement=f"In {spec.name}, rows that are cut between blocks have the bytes of the whole.",
                domain="all parts between such cuts of matrices of two blocks down and a part of one, or of five rows",
                size=count(spec),
                decide=partial(parts, spec, subject),
                covers=(*whole.QUANTIZED[subject], value),
                reduction="every number but the global amax and a random byte's place depends on its block alone: "
                "parts that begin and end at each of three blocks decide",
            )
    yield ProofClaim(
        name="part-cuts/golden",
        rules=("TEM-8",),
        method=Method.ARGUMENT,
        subject=ClaimSubject.GOLDEN,
        statement="A split of rows over processes is refused if and only if a cut is inside a block of the direction.",
        domain=f"all splits over three processes of up to {SPLIT} rows, for {len(PARTS)} specifications",
        size=SPLITS,
        decide=refused,
        covers=("fp4ref.te.sharded:_require_whole_blocks",),
        reduction="a cut is legal by its remainder by the block, or as the end; rows of two blocks have all remainders",
        needs="torch",
    )
