"""Hypothesis strategies that aim where kernels go wrong; needs the package hypothesis.

Random numbers almost never lie on a tie, make a scale underflow or fill a block with -0. These do.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

try:
    from hypothesis import strategies as st
except ImportError as error:  # pragma: no cover
    raise ImportError("fp4ref.strategies needs hypothesis: pip install 'fp4ref[hypothesis]'") from error

from fp4ref.formats import E2M1, E4M3, F, Format, grid
from fp4ref.spec import Block

Matrix = NDArray[np.float32]
DTYPES = tuple(np.dtype(kind) for kind in (np.float32, ml_dtypes.bfloat16, np.float16))
EDGES = (1, 2, 15, 16, 17, 31, 32, 33, 47, 48, 63, 64, 65)
SPECIALS = tuple(map(F, (np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0)))


def near(values: NDArray[np.float64], ulps: int = 1) -> st.SearchStrategy[np.float32]:
    """Return a strategy for float32 values up to a number of steps from some given ones, of either sign."""
    start = np.asarray(values, F).view(np.int32)
    around = (start[:, None] + np.arange(-ulps, ulps + 1)).ravel()
    magnitudes = np.unique(around[around >= 0]).astype(np.int32).view(F)
    return st.sampled_from(np.concatenate([magnitudes, -magnitudes]).tolist()).map(F)


@cache
def near_midpoints(form: Format, ulps: int = 1) -> st.SearchStrategy[np.float32]:
    """Ties between neighbouring values of a format, the overflow tie among them, and their float32 neighbours."""
    return near((grid(form)[1:] + grid(form)[:-1]) / 2, ulps)


@cache
def near_values(form: Format, ulps: int = 1) -> st.SearchStrategy[np.float32]:
    """Values of a format and their float32 neighbours."""
    return near(grid(form)[:-1], ulps)


@cache
def amax_at_powers_of_two(ulps: int = 1, lowest: int = -149, highest: int = 127) -> st.SearchStrategy[np.float32]:
    """Positive powers of two and their float32 neighbours: there the exponent of an MX scale steps."""
    return near(np.ldexp(1.0, np.arange(lowest, highest + 1)), ulps).map(abs)


@cache
def subnormals() -> st.SearchStrategy[np.float32]:
    """Subnormal float32 of either sign."""
    patterns = st.integers(1, (1 << 23) - 1).map(lambda bits: np.uint32(bits).view(F))
    return st.builds(np.copysign, patterns, st.sampled_from((F(1), F(-1))))


@cache
def float32s(*, finite: bool = False) -> st.SearchStrategy[np.float32]:
    """Every float32 bit pattern, NaN payloads included."""
    patterns = st.integers(0, (1 << 32) - 1).map(lambda bits: np.uint32(bits).view(F))
    return patterns.filter(lambda v: bool(np.isfinite(v))) if finite else patterns


def zero_blocks(block: Block | tuple[int, int]) -> st.SearchStrategy[Matrix]:
    """Blocks of +0 and -0 only, float32 [rows, columns]."""
    return _filled(block, st.sampled_from((F(0), F(-0.0))))


@cache
def shapes(rows: int = 65, columns: int = 65, *, empty: bool = False) -> st.SearchStrategy[tuple[int, int]]:
    """Matrix shapes at and around multiples of 16 and 32, and 1; no larger than given."""
    sizes = (0, *EDGES) if empty else EDGES
    below = [[size for size in sizes if size <= limit] for limit in (rows, columns)]
    return st.tuples(st.sampled_from(below[0]), st.sampled_from(below[1]))


@st.composite
def blocks(draw: st.DrawFn, block: Block | tuple[int, int], element: Format = E2M1, *, finite: bool = True) -> Matrix:
    """Draw an aimed block, float32 [rows, columns], in a unit that is a power of two.

    Element ties; a maximum that puts the block's scale on a tie of E4M3; a maximum at a power of two; zeros;
    subnormals; one outlier; one value repeated; any bit patterns; NaN and infinities among small values.
    """
    unit = np.ldexp(1.0, draw(st.sampled_from((0, 0, 0, -1, 3, -6, -12, -30, -133, 20, 100))))
    ties = _ties(element)
    largest: st.SearchStrategy[np.float32] = st.nothing()
    match draw(st.sampled_from(("ties", "scale", "power", "zero", "subnormal", "outlier", "same", "bits", "special"))):
        case "zero":
            return draw(zero_blocks(block))
        case "subnormal":
            values, unit = subnormals(), np.float64(1)
        case "same":
            values = st.just(draw(ties))
        case "bits":
            values, unit = float32s(finite=finite), np.float64(1)
        case "special" if not finite:
            values = st.sampled_from(SPECIALS) | ties
        case "scale":
            values, largest = ties, _under_scale_ties()
        case "power":
            values, largest = ties, amax_at_powers_of_two(lowest=2, highest=10)
        case "outlier":
            values, largest = ties, st.just(F(3000))
        case _:
            values = ties
    found = draw(_filled(block, values))
    if not largest.is_empty:
        found.flat[draw(st.integers(0, found.size - 1))] = draw(largest)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        scaled: Matrix = (found.astype(np.float64) * unit).astype(F)
    return _clipped(scaled, F) if finite else scaled


@st.composite
def matrices(
    draw: st.DrawFn,
    block: Block | tuple[int, int] = (1, 16),
    element: Format = E2M1,
    *,
    dtype: np.dtype[Any] | type | None = None,
    shape: st.SearchStrategy[tuple[int, int]] | None = None,
    finite: bool = True,
) -> NDArray[Any]:
    """Matrices [M, K] of a few aimed blocks, each used several times, whole blocks and ragged tails.

    dtype: float32, bfloat16 or float16; drawn if not given. A narrower type's own overflow is kept out where `finite`.
    """
    rows, columns = draw(shapes() if shape is None else shape)
    kind = np.dtype(draw(st.sampled_from(DTYPES)) if dtype is None else dtype)
    motifs = draw(st.lists(blocks(block, element, finite=finite), min_size=1, max_size=4))
    down, across = -(-rows // block[0]), -(-columns // block[1])
    plan = draw(st.lists(st.integers(0, len(motifs) - 1), min_size=1, max_size=7))
    picked = [[motifs[plan[(i * across + j) % len(plan)]] for j in range(across)] for i in range(down)]
    whole = np.block(picked) if down and across else np.zeros((rows, columns), F)
    matrix = np.ascontiguousarray(whole[:rows, :columns])
    if finite:
        matrix = _clipped(matrix, kind)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        return matrix.astype(kind)


# A strategy is validated once: those that every block draws from are made once.


@cache
def _ties(element: Format) -> st.SearchStrategy[np.float32]:
    return near_midpoints(element) | near_values(element)


@cache
def _under_scale_ties() -> st.SearchStrategy[np.float32]:
    """Return a strategy for maxima of a block whose E4M3 scale is a tie."""
    return near_midpoints(E4M3).map(lambda scale: F(6) * scale)


def _filled(block: Block | tuple[int, int], values: st.SearchStrategy[np.float32]) -> st.SearchStrategy[Matrix]:
    """Return a block of at most 16 values of their own; a larger one repeats them, every row from another start."""
    count = min(block[0] * block[1], 16)

    def filled(found: list[np.float32]) -> Matrix:
        return np.stack([np.roll(np.resize(np.array(found, F), block[1]), 5 * i) for i in range(block[0])])

    return st.lists(values, min_size=count, max_size=count).map(filled)


def _clipped(values: Matrix, kind: Any) -> Matrix:
    """Finite values held within the range of a type."""
    limit = F(ml_dtypes.finfo(kind).max)  # type: ignore[no-untyped-call]
    return np.clip(values, -limit, limit)
