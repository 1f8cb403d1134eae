"""The output of `fp4ref report`: a row per tensor, printed and drawn."""

from __future__ import annotations

from typing import NamedTuple

from fp4ref.analysis import ErrorStatistics


class Row(NamedTuple):
    """A tensor, and the statistics or the refusal of each specification."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    results: dict[str, ErrorStatistics | str]


def numbers(result: ErrorStatistics) -> tuple[str, ...]:
    """Return SQNR, relative errors, shares, as text."""
    percents = [100 * result.share(count) for count in (result.saturated, result.underflowed)]
    shares = (f"{percent:.{3 if percent >= 0.01 else 2}g} %" for percent in percents)
    return (f"{result.sqnr:.2f}", f"{result.relative_mean:.4f}", f"{result.relative_max:.3g}", *shares)
