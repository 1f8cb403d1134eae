"""Claims about the sums of products: blocks in the order of k, and exact sums whose last bit decides a tie.

Put 2^24 into one block, 1 into two others and 0 elsewhere: blocks that are added from left to right give 2^24 + 2 only
if both ones stand before the 2^24, for 2^24 + 1 is a tie that rounds to 2^24.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import combinations, product

import numpy as np
from numpy.typing import NDArray

from fp4ref.catalogue import resolve
from fp4ref.formats import F
from fp4ref.proof.blocks import PIPELINES
from fp4ref.proof.claims import ClaimSubject, Method, ProofClaim, Replayed, Tell
from fp4ref.proof.products import BACKENDS, CODE, UNIT, _lowered, _scaled, product_of
from fp4ref.quantized import DirectionData, Quantized

BLOCKS = 40  # more than backends take at a time
PLACES = (0, 1, 14, 15, 16, 17, 31, 32, BLOCKS - 1)  # of the three
ABSORBS = 24  # 2^24 + 1 rounds to 2^24
PROBES = len(PLACES) * (len(PLACES) - 1) * (len(PLACES) - 2) // 2
ONE = {"nvfp4": 0x2, "mxfp4": 0x2, "mxfp8-e4m3": 0x38, "mxfp8-e5m2": 0x3C}
UNIT_BYTE = {"nvfp4": 0x38, "mxfp4": 127, "mxfp8-e4m3": 127, "mxfp8-e5m2": 127}  # of a scale of 1
LONG = (
    (8192, 0x6, 0x78, 1024),
    (1936, 0x7, 0x7E, 2688),
)  # equal elements whose sum 53 bits do not hold, and their value
DIFFERENCES = (-1, 0, 1)  # of a sum from a tie, in steps
CENTRE, LARGEST_BYTE = 127, 254  # of E8M0: the byte of 1, and the last one of a number
LARGEST_E4M3, WIDTH, LONG_BLOCKS = 0x7E, 32, 2043  # the code of 448; elements of a block, and blocks of a long row
DISTANCES = range(26)  # past two windows of integers
WAYS = ("left", "right", "both")  # the operands whose scales are apart
SPREADS = (*range(96), *range(96, LARGEST_BYTE - ABSORBS, 7))  # binades of the smallest element below 1
LARGE = {"mxfp4": (0x6, 2), "mxfp8-e4m3": (0x78, 8)}  # the code of the largest power of two, and its exponent


def _operand(spec: str, codes: NDArray[np.uint8], scales: NDArray[np.uint8]) -> Quantized:
    four = PIPELINES[spec]().element.format.bits == 4
    data = (codes[:, ::2] | codes[:, 1::2] << 4).astype(np.uint8) if four else codes
    amax = None if PIPELINES[spec]().largest is None else np.array([UNIT], F)
    return Quantized(resolve(spec), codes.shape, "float32", "linear", DirectionData(data, scales, amax))


def _probes(spec: str) -> tuple[Quantized, Quantized, NDArray[np.float32]]:
    """Return rows with 2^24 in one block and 1 in two others, what they are multiplied with, and their sums."""
    width = PIPELINES[spec]().block
    rows = [(big, *two) for big in PLACES for two in combinations([b for b in PLACES if b != big], 2)]
    codes = np.zeros((len(rows), BLOCKS * width), np.uint8)
    scales = np.full((len(rows), BLOCKS), UNIT_BYTE[spec], np.uint8)
    other = np.full((1, BLOCKS * width), ONE[spec], np.uint8)
    factors = np.full((1, BLOCKS), UNIT_BYTE[spec], np.uint8)
    if spec == "nvfp4":  # 1024 everywhere on the right; 16 times 1024, and once 2^-10, on the left
        other[:], factors[:] = 0x6, 0x78
    for row, (big, *two) in enumerate(rows):
        for block in two:
            codes[row, block * width + 3] = 0x1 if spec == "nvfp4" else ONE[spec]
            scales[row, block] = 0x01 if spec == "nvfp4" else UNIT_BYTE[spec]
        start = big * width
        codes[row, start : start + (width if spec == "nvfp4" else 1)] = 0x6 if spec == "nvfp4" else ONE[spec]
        scales[row, big] = 0x78 if spec == "nvfp4" else UNIT_BYTE[spec] + ABSORBS
    want = [2.0**ABSORBS + 2 * (one < big and two < big) for big, one, two in rows]
    return _operand(spec, codes, scales), _operand(spec, other, factors), np.array(want, F)


def ordered(spec: str, subject: ClaimSubject, tell: Tell) -> Replayed:
    """Multiply the rows block by block, and compare their sums."""
    left, right, sums = _probes(spec)
    want = _scaled(sums, spec)
    got = product_of(subject, left, right, "blockwise").ravel()
    (wrong,) = np.nonzero(got.view(np.uint32) != want.view(np.uint32))
    tell(1.0)
    return Replayed(len(want), f"row {wrong[0]}: {got[wrong[0]]!s}, needs {want[wrong[0]]!s}" if len(wrong) else None)


def _rounded(number: int) -> int:
    """Return an integer rounded to 24 bits, a tie to even."""
    size = abs(number)
    cut = max(size.bit_length() - 24, 0)
    kept, rest = size >> cut, size & ((1 << cut) - 1)
    half = 1 << cut >> 1
    kept += bool(cut and (rest > half or (rest == half and kept & 1)))
    return (kept << cut) * (-1 if number < 0 else 1)


def tied(subject: ClaimSubject, tell: Tell) -> Replayed:
    """Add long rows of NVFP4 up to sums beside a tie of float32, and compare with integers that are rounded once.

    The steps are 2^-20. A sum is that of many squares, from 2^53 on, one half or three halves of its last place in
    float32, and -1, 0 or 1 step. The shorter row has sums of 2^53 within 2,048 elements.
    """
    width = 16
    cases = [*product((1, 3), DIFFERENCES, (1, -1))]
    for done, (count, code, byte, value) in enumerate(LONG):
        columns, place = count + 6 * width, count // width
        codes, scales = np.zeros((len(cases), columns), np.uint8), np.zeros((len(cases), columns // width), np.uint8)
        other, factors = np.full((1, columns), 0x6, np.uint8), np.full((1, columns // width), 0x78, np.uint8)
        other[0, :count], factors[0, :place] = code, byte
        other[0, -width:], factors[0, -1] = 0x1, 0x01  # 2^-10
        want = []
        for row, (halves, difference, sign) in enumerate(cases):
            minus = 0x8 if sign < 0 else 0
            codes[row, :count], scales[row, :place] = code | minus, byte
            for extra in range(halves):  # 1/2 times 1024 are 2^29 steps
                codes[row, (place + extra) * width], scales[row, place + extra] = 0x1 | minus, 0x38
            if difference:
                codes[row, -width], scales[row, -1] = 0x1 | (minus if difference > 0 else minus ^ 0x8), 0x01
            exact = sign * ((count * value**2 << 20) + halves * (1 << 29) + difference)
            want.append(_rounded(exact) / 2.0**20)
        right = _scaled(np.array(want, F), "nvfp4")
        left = _operand("nvfp4", codes, scales)
        got = product_of(subject, left, _operand("nvfp4", other, factors)).ravel()
        (wrong,) = np.nonzero(got.view(np.uint32) != right.view(np.uint32))
        tell((done + 1) / len(LONG))
        if len(wrong):
            halves, difference, sign = cases[wrong[0]]
            where = f"{sign} times {count} squares of {value}, {halves} times 2^29 steps and {difference}"
            return Replayed(done * len(cases), f"{where}: {got[wrong[0]]!s}, needs {right[wrong[0]]!s}")
    return Replayed(len(LONG) * len(cases))


def spread(spec: str, subject: ClaimSubject, tell: Tell) -> Replayed:
    """Add 2^24, 1 or 3 halves of its last place, and the smallest element that a scale makes, for all scales of it.

    The scales of one operand are apart, or those of both in halves. Every other product has the other sign.
    """
    cases = [*product((1, 3), DIFFERENCES)]
    width, minus = PIPELINES[spec]().block, 1 << PIPELINES[spec]().element.format.bits - 1
    codes, ones = np.zeros((len(cases), 3 * width), np.uint8), np.full((1, 3 * width), ONE[spec], np.uint8)
    large, power = LARGE[spec]
    for row, (halves, difference) in enumerate(cases):
        codes[row, 0], codes[row, width : width + halves] = large, ONE[spec]
        codes[row, -1] = (0, ONE[spec], ONE[spec] | minus)[difference]
    count = 0
    for below, (turn, way) in product(SPREADS, enumerate(WAYS)):
        sign = -1 if (below + turn) % 2 else 1
        exact = [(((1 << ABSORBS) + halves) << below) + difference for halves, difference in cases]
        unit = max(below - CENTRE, 0)  # of the middle block, so that the last byte is at least 0
        want = np.ldexp([sign * (_rounded(number) >> below) for number in exact], unit).astype(F)
        powers = np.array([ABSORBS - power, 0, -below]) + unit
        moved = {"left": powers, "right": 0 * powers, "both": powers // 2}[way]
        signed = codes ^ np.where((codes > 0) & (sign < 0), np.uint8(minus), np.uint8(0))
        left, right = (
            _operand(spec, part, np.tile((CENTRE + apart).astype(np.uint8), (len(part), 1)))
            for part, apart in ((signed, moved), (ones, powers - moved))
        )
        got = product_of(subject, left, right).ravel()
        (wrong,) = np.nonzero(got.view(np.uint32) != want.view(np.uint32))
        count += len(cases)
        if len(wrong):
            halves, difference = cases[wrong[0]]
            where = f"{sign} times (2^24 + {halves} + {difference} times 2^-{below}), scales apart {way}"
            return Replayed(count, f"{where}: {got[wrong[0]]!s}, needs {want[wrong[0]]!s}")
        tell(count / (len(SPREADS) * len(WAYS) * len(cases)))
    return Replayed(count)


def long_sums(subject: ClaimSubject, tell: Tell) -> Replayed:
    """Add the largest squares of MXFP8 in long rows, and one square that is smaller by each distance."""
    codes = np.full((1, (LONG_BLOCKS + 1) * WIDTH), LARGEST_E4M3, np.uint8)
    codes[0, -WIDTH:] = 0
    codes[0, -1] = ONE["mxfp8-e4m3"]
    for below in DISTANCES:
        scales = np.full((1, LONG_BLOCKS + 1), CENTRE, np.uint8)
        scales[0, -1] = CENTRE - below
        q = _operand("mxfp8-e4m3", codes, scales)
        exact = ((LONG_BLOCKS * WIDTH * 448**2) << 2 * below) + 1
        want = F(_rounded(exact) / (1 << 2 * below))
        got = product_of(subject, q, q)[0, 0]
        tell((below + 1) / len(DISTANCES))
        if got != want:
            said = f"{LONG_BLOCKS * WIDTH} squares of 448 and that of 2^-{below}"
            return Replayed(below + 1, f"{said}: {got!s}, needs {want!s}")
    return Replayed(len(DISTANCES))


def claims() -> Iterator[ProofClaim]:
    """Yield the claims about sums."""
    for subject in BACKENDS:
        for spec in PIPELINES:
            yield ProofClaim(
                name=f"gemm-order-{spec}/{subject}",
                rules=("GEM-4",),
                method=Method.ARGUMENT,
                subject=subject,
                statement=f"Blocks of {spec} are added in the order of k.",
                domain=f"all three of {len(PLACES)} places among {BLOCKS} blocks, with 2^24, 1 and 1 in them",
                size=PROBES,
                decide=partial(ordered, spec, subject),
                covers=(*CODE[subject], *_lowered(spec, subject)),
                reduction="a sum of floats is a binary tree; which two of three blocks are added first, for all three, "
                "determines it; more blocks go on in the same loop",
            )
        yield ProofClaim(
            name=f"gemm-long-mx/{subject}",
            rules=("GEM-2",),
            method=Method.ARGUMENT,
            subject=subject,
            statement="A long sum of MXFP8 is rounded once, whatever the distance of its smallest product is.",
            domain=f"sums of {LONG_BLOCKS * WIDTH:,} largest squares, and one {2 * DISTANCES[-1]} binades below",
            size=len(DISTANCES),
            decide=partial(long_sums, subject),
            covers=(*CODE[subject], *_lowered("mxfp8-e4m3", subject)),
            reduction="equal products of one sign make the largest partial sums, and the smallest element decides in "
            "which window or digit they stand",
        )
        for spec in LARGE:
            yield ProofClaim(
                name=f"gemm-spreads-{spec}/{subject}",
                rules=("GEM-2",),
                method=Method.ARGUMENT,
                subject=subject,
                statement=f"A sum of {spec} is rounded once however far its scales are apart.",
                domain="sums at ties and beside them, by an element of which the scales make one down to 2^-"
                f"{SPREADS[-1]}, every one down to 2^-95, of the left, the right and both operands",
                size=len(SPREADS) * len(WAYS) * 2 * len(DIFFERENCES),
                decide=partial(spread, spec, subject),
                covers=(*CODE[subject], *_lowered(spec, subject)),
                reduction="in integers of any number of bits the elements between the largest and the smallest have "
                "places between theirs; so the ends decide whether all fit",
            )
        yield ProofClaim(
            name=f"gemm-ties/{subject}",
            rules=("GEM-2",),
            method=Method.ARGUMENT,
            subject=subject,
            statement="A sum of more than 53 bits is rounded once: its last bit decides a tie.",
            domain="sums of both signs at and beside ties to an even and to an odd number",
            size=2 * 2 * len(LONG) * len(DIFFERENCES),
            decide=partial(tied, subject),
            covers=(*CODE[subject], *_lowered("nvfp4", subject)),
            reduction="below the last place all bits but the first are one sticky bit, and the smallest number sets it",
        )
