"""Maps that are measured: what becomes of each right code or scale byte, and the factor of the elements."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fp4ref.conformance.diagnosis.evidence import Part
from fp4ref.conformance.diagnosis.measured.scales import nicest
from fp4ref.conformance.mistakes.data_readers import DataReader
from fp4ref.conformance.mistakes.kernel import Kernel, ScaleSide, after
from fp4ref.conformance.mistakes.readers import ScaleReader
from fp4ref.conformance.mistakes.record import Mistake, Slot, known
from fp4ref.conformance.mistakes.sides import before_codec, code_side
from fp4ref.formats import Codes, F, Format, grid
from fp4ref.model.tiles import join

ENOUGH = 64  # elements or blocks that a map must be seen on, in all
TWICE = 2  # times that a changed code must be seen at least, on average
SHOWN = 4  # changes that are said
CLOSE = 5e-7  # of several roundings of float32, as a share of the result

Table = NDArray[np.uint8]


def mapped(got: Codes, wanted: Codes) -> Table | None:
    """Return the table [256] from right codes to stored ones, if each is always stored alike and some are changed."""
    if got.size < ENOUGH:
        return None
    low, high = np.full(256, 255, np.uint8), np.zeros(256, np.uint8)
    np.minimum.at(low, wanted, got)
    np.maximum.at(high, wanted, got)
    seen = np.bincount(wanted, minlength=256)
    if (low[seen > 0] != high[seen > 0]).any():
        return None
    table = np.where(seen > 0, low, np.arange(256)).astype(np.uint8)
    changed = table != np.arange(256)
    return table if changed.any() and seen[changed].sum() >= TWICE * changed.sum() else None


def _said(table: Table, names: NDArray[np.floating[Any]] | None) -> str:
    changed = np.flatnonzero(table != np.arange(256))
    said = [f"{i:#04x} becomes {table[i]:#04x}" + _meaning(i, int(table[i]), names) for i in changed[:SHOWN]]
    return ", ".join(said) + (f" and {len(changed) - SHOWN} more" if len(changed) > SHOWN else "")


def _meaning(old: Any, new: int, values: NDArray[np.floating[Any]] | None) -> str:
    if values is None or max(old, new) >= len(values):
        return ""
    return f" ({values[old]:g} becomes {values[new]:g})"


# Codes


def code_map(kernel: Kernel, pairs: Sequence[tuple[Part, ScaleSide]], reader: DataReader) -> Mistake | None:
    """Codes that are those of other values, if the candidate's follow from the right ones."""
    got, wanted = [np.zeros(0, np.uint8)], [np.zeros(0, np.uint8)]
    for part, side in pairs:
        codes = part.item.codes(reader)
        if codes is None or part.elements is None:
            return None
        own, right = codes[part.rows, part.columns], code_side(kernel, side)
        use = part.elements & (own < 1 << kernel.codec.format.bits)
        got.append(own[use].astype(np.uint8))
        wanted.append(right[use])
    table = mapped(np.concatenate(got), np.concatenate(wanted))
    if table is None:
        return None
    return known(
        Slot.CODE,
        "element-inferred-codes",
        f"codes are stored as others: {_said(table, _signed_values(kernel.codec.format))}",
        measured=True,
        code=after(kernel.code, table.__getitem__),
    )


def _signed_values(form: Format) -> NDArray[np.float64]:
    values = np.full(2 * form.sign_bit, np.nan)
    values[: form.codes] = grid(form)[: form.codes]
    values[form.sign_bit : form.sign_bit + form.codes] = -grid(form)[: form.codes]
    return values


# The factor of the elements


@np.errstate(all="ignore")
def factor_of_elements(kernel: Kernel, pairs: Sequence[tuple[Part, ScaleSide]], reader: DataReader) -> Mistake | None:
    """Return a factor that all elements have too much, if the candidate's codes allow one."""
    values, sign = (
        grid(kernel.codec.format)[: kernel.codec.format.codes].astype(np.float64),
        kernel.codec.format.sign_bit,
    )
    middles = (values[:-1] + values[1:]) / 2
    least, most = np.concatenate([[0], middles]), np.append(middles, np.inf)
    low, high = 0.0, math.inf
    for part, side in pairs:
        codes = part.item.codes(reader)
        if codes is None or part.elements is None:
            return None
        y, own = np.abs(join(before_codec(kernel, side), side.shape)), codes[part.rows, part.columns]
        magnitude = own & (sign - 1)
        use = part.elements & np.isfinite(y) & (y > 0) & (magnitude < kernel.codec.format.codes - 1)
        if not use.any():
            continue
        exact, code = y[use].astype(np.float64), magnitude[use].astype(np.intp)
        low = max(low, float((least[code] / exact).max()) * (1 - CLOSE))
        high = min(high, float((most[code] / exact).min()) * (1 + CLOSE))
        if low >= high:
            return None
    if low == 0 or high == math.inf or low <= 1 <= high:
        return None
    number = nicest(low, high)
    return known(
        Slot.ENCODE,
        f"encode-inferred-{number:g}",
        f"elements are {number:g} times what they should be before they are rounded",
        value=after(partial(np.multiply, F(number)), kernel.value),
    )


# Scale bytes


def byte_maps(kernel: Kernel, parts: Sequence[Part], reader: ScaleReader) -> list[Mistake]:
    """Scale bytes that become others, for the elements as well or only where they are stored."""
    got, wanted = [np.zeros(0, np.uint8)], [np.zeros(0, np.uint8)]
    for part in parts:
        side, stored = part.side(kernel), part.item.scales(reader)
        if side is None or stored is None or part.blocks is None or kernel.search is not None:
            return []
        own = stored[part.rows, part.across]
        if own.shape != side.scales.shape:
            return []
        got.append(own[part.blocks])
        wanted.append(side.scales[part.blocks])
    table = mapped(np.concatenate(got), np.concatenate(wanted))
    if table is None:
        return []
    codec = kernel.scale_codec
    said = _said(table, grid(codec.format)[: codec.format.codes])
    return [
        known(
            Slot.SCALE_CODEC,
            "scale-inferred-bytes",
            f"scale bytes become others: {said}",
            measured=True,
            scale_byte=after(kernel.scale_byte, table.__getitem__),
        ),
        known(
            Slot.SCALE_CODEC,
            "scale-inferred-stored",
            f"scale bytes are stored as others, which the elements are not divided by: {said}",
            measured=True,
            scales=after(kernel.scales, table.__getitem__),
        ),
    ]
