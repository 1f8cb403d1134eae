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
    shares = (f"{100 * result.share(count):.3g} %" for count in (result.saturated, result.underflowed))
    return (f"{result.sqnr:.2f}", f"{result.relative_mean:.4f}", f"{result.relative_max:.4g}", *shares)
