"""Claims about random bytes: their counters and keys, parts of a matrix, and the intervals of a judge's counts."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from functools import partial
from itertools import product
from math import comb
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fp4ref import random_source
from fp4ref.conformance.judge import binomial, hypergeometric
from fp4ref.errors import ShapeError
from fp4ref.proof import whole
from fp4ref.proof.claims import ClaimSubject, Method, ProofClaim, Replayed, Tell, formula
from fp4ref.proof.transforms import _defined
from fp4ref.quantized import DIRECTIONS, Direction

ROUNDS = 10
MATRIX = (5, 40)  # a whole with a last block of 8
LONG = 64  # bits of a seed, and of a block's number
KEYS = ((3, 1 << 33), (1 << 40, 5))  # seed and stream where the others vary
LARGE = (  # parts of several units of work: in rows, in columns, and in what one array may hold
    *(((3, 16401), (2, 32), (9, 20000)), ((66, 600), (1, 16), (80, 700))),
    *(((300, 500), (3, 16), (400, 700)), ((2060, 512), (2, 32), (3000, 800))),
)
CROSSING = (  # parts whose blocks are on both sides of number 2^32, or of a multiple of it
    *(
        ((1, 320), (0, 16 * ((1 << 32) - 3)), (2, 16 * ((1 << 32) + 40))),
        ((3, 40), (65534, 16 << 16), (65540, 48 + (16 << 16))),
    ),
    ((2, 600), (1, 16 * ((5 << 32) - 20)), (3, 16 * ((6 << 32) - 1))),
)
LAST = 80  # rows of a part that are compared
DEVICES = {ClaimSubject.TORCH: "cpu", ClaimSubject.CUDA: "cuda"}
TRIALS = (*range(1, 21), 90)
PAIRS = range(1, 15)
ALPHAS = (Fraction(1, 1000), Fraction(1, 10**12))


def stated(shape: tuple[int, int], first: tuple[int, int], columns: int, seed: int, upper: int) -> NDArray[np.uint8]:
    """Return the bytes of a part of a direction's matrix, element by element, by the definition. Rules: SR-7."""
    made: dict[int, bytes] = {}
    found = np.zeros(shape, np.uint8)
    for r, c in product(range(shape[0]), range(shape[1])):
        row, column = first[0] + r, first[1] + c
        block = row * -(-columns // 16) + column // 16
        if block not in made:
            words = _defined(block | upper << 64, seed, ROUNDS)
            made[block] = b"".join(word.to_bytes(4, "little") for word in words)
        found[r, c] = made[block][column % 16]
    return found


Place = tuple[tuple[int, int], tuple[int, int], tuple[int, int], int, int]  # part, origin, whole, seed, stream


def places() -> list[Place]:
    """Return parts of a row direction with one bit in a seed, in a stream, or in the number of a block."""
    seeds = [0, (1 << LONG) - 1, *(1 << bit for bit in range(LONG))]
    streams = [0, (1 << LONG - 1) - 1, *(1 << bit for bit in range(LONG - 1))]
    found: list[Place] = [((2, 40), (0, 0), (2, 40), seed, KEYS[0][1]) for seed in seeds]
    found += [((2, 40), (0, 0), (2, 40), KEYS[1][0], stream) for stream in streams]
    for i, j in product(range(LONG), repeat=2):
        if i + j < LONG - 1:
            tall, wide = (1 << i) + 1, 16 << j
            found.append(((1, 9), ((1 << i), wide - 16), (tall, wide), *KEYS[(i + j) % 2]))
    return [*found, *((*large, *KEYS[0]) for large in (*LARGE, *CROSSING))]


def counted(subject: ClaimSubject, tell: Tell) -> Replayed:
    """Compare the random bytes of these parts with those of their counters and keys, in both directions."""
    tried = places()
    for count, (part, origin, of, seed, stream) in enumerate(tried):
        for number, direction in enumerate(DIRECTIONS):
            got = _bytes(part, direction, origin, of, seed, stream, subject)
            compared = min(part[0], LAST)
            first = origin[0] + part[0] - compared, origin[1]
            want = stated((compared, part[1]), first, of[1], seed, 2 * stream + number)
            if got.shape != part or (got[part[0] - compared :] != want).any():
                told = f"{list(part)} at {list(origin)} of {list(of)}, seed {seed}, stream {stream}"
                return Replayed(2 * count + number, f"{direction}: {told}: {got.ravel()[:4]}, needs {want.ravel()[:4]}")
        tell((count + 1) / len(tried))
    return Replayed(2 * len(tried))


def _bytes(
    part: Any, direction: Direction, origin: Any, of: Any, seed: int, stream: int, subject: ClaimSubject
) -> NDArray[np.uint8]:
    """Return random bytes [rows, columns] of a part that is given as one of the direction's matrix."""
    part, origin, of = (size if direction == "row" else size[::-1] for size in (part, origin, of))
    device = DEVICES.get(subject)
    bits = random_source.random_bits(part, direction, seed, stream, origin, of, device, whole.BACKENDS[subject])
    return whole._host(bits)


def parts() -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Return all parts of the matrix and their first elements: those without elements too."""
    high, wide = MATRIX
    return [
        ((stop - start, end - first), (start, first))
        for start in range(high + 1)
        for stop in range(start, high + 1)
        for first in range(wide + 1)
        for end in range(first, wide + 1)
        if end - first < 18 or end == wide
    ]


def cut(subject: ClaimSubject, tell: Tell) -> Replayed:
    """Compare the random bytes of every part with those of its place in the whole, and have other parts refused."""
    tried = parts()
    wholes = [stated(MATRIX, (0, 0), MATRIX[1], 7, 2 * 9 + number) for number in range(2)]
    for count, (part, origin) in enumerate(tried):
        for direction, full in zip(DIRECTIONS, wholes, strict=True):
            try:
                got = _bytes(part, direction, origin, MATRIX, 7, 9, subject)
            except ShapeError:
                got = None
            start, first = origin
            want = None if first % 16 else full[start : start + part[0], first : first + part[1]]
            if (got is None) is not (want is None) or (
                got is not None and want is not None and not np.array_equal(got, want)
            ):
                return Replayed(count, f"{direction}: {list(part)} at {list(origin)} of {list(MATRIX)}")
        tell((count + 1) / len(tried))
    return Replayed(len(tried))


def intervals(tell: Tell) -> Replayed:
    """Compare intervals with exact tails: each is below half of alpha outside, and not below it two counts inside.

    Trials with unlike probabilities have tails between those of the smallest and of the largest, because a tail never
    falls as one of the probabilities grows.
    """
    count = 0
    for number, n in enumerate(TRIALS):
        for j in range(257):
            weights = [comb(n, k) * j**k * (256 - j) ** (n - k) for k in range(n + 1)]
            for alpha in ALPHAS:
                count += 1
                found = binomial.interval(n, j / 256, j / 256, float(alpha))
                witness = _outside(weights, 0, found, alpha)
                if witness:
                    return Replayed(count, f"{n} trials of probability {j}/256: {witness}")
        tell(number / len(TRIALS) / 2)
    for number, n in enumerate(PAIRS):
        for first, second in product(range(n + 1), repeat=2):
            least = max(0, first + second - n)
            weights = [comb(first, x) * comb(n - first, second - x) for x in range(least, min(first, second) + 1)]
            for alpha in ALPHAS:
                count += 1
                witness = _outside(weights, least, hypergeometric.interval(n, first, second, float(alpha)), alpha)
                if witness:
                    return Replayed(count, f"{n} pairs, {first} and {second} of them: {witness}")
        tell(0.5 + number / len(PAIRS) / 2)
    return Replayed(count)


def _outside(weights: list[int], least: int, found: tuple[int, int], alpha: Fraction) -> str:
    """Return why an interval is not that of these weights of counts from `least` on; empty if it is."""
    total, (low, high) = sum(weights), found
    tails = (("above", weights[high - least + 1 :]), ("below", weights[: max(low - least, 0)]))
    for side, tail in tails:
        if 2 * sum(tail) >= alpha * total:
            return f"{found} leaves out {float(Fraction(sum(tail), total)):.3g} {side}"
    inside = (
        (high > least, weights[max(high - least - 1, 0) :]),
        (low < least + len(weights) - 1, weights[: low - least + 2]),
    )
    for more, tail in inside:
        if more and 2 * sum(tail) < alpha * total:
            return f"{found} is wider by two counts"
    return ""


def claims() -> Iterator[ProofClaim]:
    """Yield the claims about random bytes."""
    drawn = {
        ClaimSubject.GOLDEN: ("fp4ref.model.backend:random_bits",),
        ClaimSubject.CPU: (f"{whole.CPU}/random.h", *whole.FLAGS),
        ClaimSubject.TORCH: ("fp4ref_torch.operations:random_bits",),
    }
    for subject, covers in drawn.items():
        both = (*covers, "fp4ref.random_source:random_bits")
        yield ProofClaim(
            name=f"random-counters/{subject}",
            rules=("SR-7",),
            method=Method.ARGUMENT,
            subject=subject,
            statement="A random byte is that of its block's counter and the seed's key, by Philox as it is defined.",
            domain="seeds, streams, rows and blocks across with one bit, and the largest; parts of several units, and "
            "with blocks on both sides of a multiple of 2^32",
            size=2 * len(places()),
            decide=partial(counted, subject),
            covers=both,
            reduction="a counter and a key are made of their numbers by products, sums and words of 32 bits, and each "
            "bit of these words has one place; so numbers with one bit, and those that carry, find a misplaced word",
            rests_on=("philox-bits/golden", "philox-bijection/formula"),
        )
        yield ProofClaim(
            name=f"random-parts/{subject}",
            rules=("SR-8", "SR-15"),
            method=Method.ARGUMENT,
            subject=subject,
            statement="A part has the random bytes of its place in the whole, and no part begins inside a block.",
            domain="all parts of a matrix of 5 x 40, of up to 17 columns or up to its end, in both directions",
            size=len(parts()),
            decide=partial(cut, subject),
            covers=both,
            reduction="a part enters by its first row, its first block and its size; three blocks of which one is "
            "partial have every way to begin and to end",
            rests_on=(f"random-counters/{subject}",),
        )
    yield formula(
        "count-intervals",
        "SR-11",
        intervals,
        "A right kernel leaves an interval of counts with a probability below half of alpha on each side.",
        domain="up to 20 trials, and 90, of probability j/256, and up to 14 pairs with all counts, for two alphas",
        size=len(ALPHAS) * (len(TRIALS) * 257 + sum((n + 1) ** 2 for n in PAIRS)),
        covers=("fp4ref.conformance.judge.binomial:interval", "fp4ref.conformance.judge.hypergeometric:interval"),
        method=Method.ARGUMENT,
    )
