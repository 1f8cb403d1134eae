"""In which order a sum of floats is added up.

A sum of floats is a binary tree. Put 2^24 at one leaf, 1 at two others and 0 elsewhere: the sum is 2^24 + 2 if the two
are added to each other before they meet the first, else 2^24, for 2^24 + 1 is a tie that rounds to 2^24. The answers
for all three leaves determine the tree up to the order of operands, and no count is negative.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, reduce
from itertools import combinations, product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fp4ref import four_over_six as golden
from fp4ref.formats import F, Floats
from fp4ref.proof import native
from fp4ref.proof.claims import ClaimSubject, Replayed, Tell
from fp4ref.proof.header_scales import HELPERS

Tree = Any  # an index of a leaf, or two trees
ABSORBS = 2.0**24
SHAPES = ((1, 16), (4, 16), (16, 2))  # rows and columns of blocks


def _chain(parts: list[Tree]) -> Tree:
    return reduce(lambda total, part: (total, part), parts)


def _rows(rows: int, columns: int) -> list[list[int]]:
    return [[r * columns + c for c in range(columns)] for r in range(rows)]


def _sequential(rows: int, columns: int) -> Tree:
    return _chain([_chain([*row]) for row in _rows(rows, columns)])


def _halves(rows: int, columns: int) -> Tree:
    half = columns // 2
    return _chain([_chain([*zip(row[:half], row[half:], strict=True)]) for row in _rows(rows, columns)])


def _rows_by_tree(rows: int, columns: int) -> Tree:
    sums: list[Tree] = [_chain([*row]) for row in _rows(rows, columns)]
    while len(sums) > 1:
        half = len(sums) // 2
        sums = [*zip(sums[:half], sums[half:], strict=True)]
    return sums[0]


def _lanes(rows: int, columns: int) -> Tree:
    vectors = [[*range(start, start + 8)] for start in range(0, rows * columns, 8)]
    return _chain(
        [_chain([_chain([v[lane] for v in vectors[j::4]]) for j in range(4) if vectors[j:]]) for lane in range(8)]
    )


ORDERS: dict[str, Callable[[int, int], Tree]] = {  # Rules: FOS-8.
    "sequential": _sequential,
    "halves": _halves,
    "rows_by_tree": _rows_by_tree,
    "lanes": _lanes,
}
IN_BACKENDS = ("sequential", "halves", "rows_by_tree")  # the others serve no specification with `lanes`


def _leaves(tree: Tree) -> list[int]:
    return [tree] if isinstance(tree, int) else [*_leaves(tree[0]), *_leaves(tree[1])]


def _sizes(tree: Tree, found: NDArray[np.int64]) -> None:
    """Write the leaves of the smallest subtree with both of two leaves, for every two."""
    if isinstance(tree, int):
        return
    left, right = _leaves(tree[0]), _leaves(tree[1])
    for one, other in ((left, right), (right, left)):
        found[np.ix_(one, other)] = len(left) + len(right)
    for part in tree:
        _sizes(part, found)


@lru_cache
def probes(rows: int, columns: int) -> NDArray[np.int64]:
    """Return all leaves with two others, [n, 3]: the one with 2^24 first."""
    count = rows * columns
    pairs = np.array([*combinations(range(count), 2)])
    leaf = np.repeat(np.arange(count), len(pairs))
    three = np.concatenate([leaf[:, None], np.tile(pairs, (count, 1))], axis=1)
    return np.asarray(three[(three[:, 0] != three[:, 1]) & (three[:, 0] != three[:, 2])])


@lru_cache
def sums(order: str, rows: int, columns: int) -> Floats:
    """Return the sums of the probes in an order: 2^24, and 2 more where the two ones meet first."""
    size = np.zeros((rows * columns,) * 2, np.int64)
    _sizes(ORDERS[order](rows, columns), size)
    big, one, other = probes(rows, columns).T
    return np.asarray(ABSORBS + 2.0 * (size[one, other] < size[big, one]), F)


def _counts(rows: int, columns: int) -> Floats:
    """Return the counts of the probes, [n, rows, columns]."""
    three = probes(rows, columns)
    found = np.zeros((len(three), rows * columns), F)
    np.put_along_axis(found, three, F(1), axis=1)
    np.put_along_axis(found, three[:, :1], F(ABSORBS), axis=1)
    return found.reshape(-1, rows, columns)


def _summed(subject: ClaimSubject, order: str, counts: Floats) -> Floats:
    if subject is ClaimSubject.GOLDEN:
        return np.asarray(golden.RULES[order](counts))
    import torch

    from fp4ref_torch import four_over_six

    blocks_of = torch.from_numpy(counts)[:, :, None, :]  # [down, R, across, C]
    return np.asarray(four_over_six._total(order, blocks_of)).reshape(-1)


def added(subject: ClaimSubject, tell: Tell) -> Replayed:
    """Add the probes up in each order, and compare with the sums that its tree gives."""
    done = 0
    for order in served(subject):
        for rows, columns in SHAPES:
            got, want = _summed(subject, order, _counts(rows, columns)), sums(order, rows, columns)
            (wrong,) = np.nonzero(got != want)
            if len(wrong):
                return Replayed(done + int(wrong[0]), _told_probe(order, rows, columns, int(wrong[0])))
            done += len(want)
        tell(done / probed(subject))
    return Replayed(done)


def served(subject: ClaimSubject) -> tuple[str, ...]:
    """Return the orders of additions that a subject has."""
    return tuple(ORDERS) if subject is ClaimSubject.GOLDEN else IN_BACKENDS


def probed(subject: ClaimSubject) -> int:
    """Return the number of probes of a subject."""
    return len(served(subject)) * sum(len(probes(*shape)) for shape in SHAPES)


def _told_probe(order: str, rows: int, columns: int, at: int) -> str:
    big, one, other = probes(rows, columns)[at].tolist()
    first = "first" if sums(order, rows, columns)[at] > ABSORBS else "not first"
    return f"{order} of {rows} x {columns}: 2^24 at {big} and 1 at {one} and {other}, which are added {first}"


# The two ones of a probe are numbers 0 to n (n - 1) / 2 - 1 among all pairs of the other n leaves.
ORDER = """
    const unsigned big = (unsigned)a[3 * i], one = (unsigned)a[3 * i + 1], other = (unsigned)a[3 * i + 2];
    float rows[ROWS][1], error[1];
    for (unsigned r = 0; r < ROWS; ++r)
        sum_row<Of>([&](int c, int) {
            const unsigned leaf = r * COLUMNS + (unsigned)c;
            return leaf == big ? BIG : leaf == one || leaf == other ? 1.0f : 0.0f;
        }, rows[r]);
    block_errors<Of>(rows, error);
    return error[0] != (float)a[3 * COUNT + i];
"""
SEARCHING = """
struct Of : Plain<448> {
    using Search = four_over_six<Metric::METRIC, difference::dequantized, total::ORDER>;
    static constexpr int rows = ROWS, columns = COLUMNS;
};
"""


def added_in_header(tell: Tell) -> Replayed:
    """Add the probes up by the header's errors of rows and of blocks, by both metrics, and compare the sums."""
    done = 0
    for order, (rows, columns), metric in product(IN_BACKENDS, SHAPES, ("mae", "mse")):
        three, want = probes(rows, columns), sums(order, rows, columns)
        words = {"ROWS": str(rows), "COLUMNS": str(columns), "COUNT": str(len(three)), "METRIC": metric}
        helpers, body = HELPERS + SEARCHING.replace("ORDER", order), ORDER
        for word, value in (*words.items(), ("BIG", "0x1p24f" if metric == "mae" else "0x1p12f")):
            helpers, body = helpers.replace(word, value), body.replace(word, value)
        numbers = [*three.ravel().tolist(), *want.astype(np.int64).tolist()]
        _, first = native.sweep(native.text({"order": body}, helpers), "order", len(three), tell, numbers)
        if first is not None:
            return Replayed(done + first, f"{metric}: {_told_probe(order, rows, columns, first)}")
        done += len(three)
    return Replayed(done)
