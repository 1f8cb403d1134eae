"""Operands whose global amaxes tell the orders in which they and the factor may be multiplied."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from fp4ref.conformance.families.products.case import GemmCase, Random, case_of, integers
from fp4ref.formats import F
from fp4ref.operands import alpha_factor
from fp4ref.quantized import Quantized
from fp4ref.spec import Granularity, Spec

PLAIN = "plain"
PAIRS = (
    (9.8125, 0.6171875),
    (4.0, 0.5),
    (1.1, 1.3),
    (0.02, 300.0),
    (1e-20, 3e18),
    (3e4, 4e4),  # results beyond float16
)
NOTHING = (1e-23, 1e-23)  # alpha is 0: results are zeros, which keep their signs unless a zero is added
SHAPES = ((13, 23, -3, ""), (135, 149, 0, "-wide"), (1, 21, 0, "-row"), (19, 1, 1, "-column"))  # M, N, elements of K
# Found by search: alpha is a tie of bfloat16 or float16, or next to one, so that another order shows in each type. Of
# the orders of the amaxes and the factor, its root or parts of it, divided or by reciprocals, each gives another result
# for some pair than either pick of GEM-6, and the known ones than each other. By the root of the factor.
TELLING = {
    (2688.0, Granularity.TENSOR): (
        (1647.43433, 3962.86768),
        (2730.9375, 5157.12109),
        (3595.94458, 4316.86279),
        (2600.07812, 12043.6865),
        (1944.02637, 28281.6895),
        (1147.3772, 41731.7148),
        (3809.46191, 521.634338),
        (1314.85852, 24985.7559),
        (1110.88806, 24237.9883),
    ),
    (2688.0, Granularity.ROW): (
        (888.627686, 53994.2695),
        (3882.10352, 7406.60303),
        (3423.86475, 1138.0929),
        (2895.34961, 5439.40918),
        (1740.23865, 1455.60718),
        (3145.30713, 2939.8999),
        (801.602539, 9260.08984),
        (2346.62573, 6203.17383),
    ),
    (1536.0, Granularity.TENSOR): (
        (3429.61768, 5332.70898),
        (2385.51538, 5980.41309),
        (647.019348, 10821.71),
        (3179.02563, 3490.39795),
        (1934.22656, 2358.52393),
        (3088.08936, 5555.40381),
        (3646.05664, 1078.99561),
        (3332.04736, 1186.55701),
        (461.864838, 16267.4092),
    ),
    (1536.0, Granularity.ROW): (
        (3710.85156, 1231.51892),
        (1252.5072, 7799.52441),
        (1869.23865, 584.708618),
        (755.872314, 1676.47351),
        (950.865356, 3395.91284),
        (1714.64038, 4891.14795),
        (3595.33813, 5181.75),
        (1987.42737, 460.237213),
        (3646.05664, 1078.99561),
    ),
}


def alpha(family: str, spec: Spec, random: Random) -> Iterator[GemmCase]:
    """Global amaxes whose products round differently in other orders; one for each row where rows have their own.

    A first case with the same elements and scales, but an alpha of one, shows their sums.

    Rules: GEM-5, GEM-6, GEM-7.
    """
    if spec.global_scale is Granularity.NONE:
        return
    for m, n, more, size in SHAPES:
        a, b = (integers(spec, random, rows, 4 * spec.block.columns + more) for rows in (m, n))
        yield GemmCase(family, f"{PLAIN}{size}", a, b)
        # with amaxes of rows nothing tells whether a product that is nearly zero was fused with the addition of a zero
        for amaxes in PAIRS if spec.global_scale is Granularity.ROW else (*PAIRS, NOTHING):
            yield _scaled(family, f"{amaxes[0]:g}-{amaxes[1]:g}{size}", a, b, amaxes, PLAIN + size)
    plain = _powers_of_two(family, spec)
    yield plain
    factor = alpha_factor(spec, spec)
    assert factor is not None
    root = float(np.sqrt(factor))
    given = TELLING.get((root, spec.global_scale), TELLING[2688.0, spec.global_scale])
    for number, amaxes in enumerate(given):
        yield _scaled(family, f"order-{number}", plain.a, plain.b, amaxes, plain.name, spread=0)


def _powers_of_two(family: str, spec: Spec) -> GemmCase:
    """Return a product whose sums are powers of two of both signs, so that its results show alpha."""
    sides = []
    for rows, least in ((13, -1), (11, 0)):
        values = np.zeros((rows, spec.block.columns + 3))
        values[:, -1] = np.ldexp(np.where(np.arange(rows) % 2, -1.0, 1.0), least + np.arange(rows) % 3)
        sides.append((values, np.ones((rows, 2))))
    return case_of(family, f"{PLAIN}-order", spec, *sides)


def _scaled(
    family: str, name: str, a: Quantized, b: Quantized, amaxes: tuple[float, float], plain: str, spread: float = 1 / 7
) -> GemmCase:
    """Return operands with other amaxes; those of rows grow by a spread."""
    sides = []
    for q, amax in zip((a, b), amaxes, strict=True):
        assert q.row is not None
        grown = 1 + np.arange(q.row.amax.size) * spread
        sides.append(replace(q, row=q.row._replace(amax=(amax * grown).astype(F))))
    return GemmCase(family, name, sides[0], sides[1], plain=plain)
