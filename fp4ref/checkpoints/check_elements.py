"""Checks of element codes: saturation, unused range, impossible histograms, NaN, padding."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from fp4ref.checkpoints import bounds
from fp4ref.checkpoints.access import codes_of, padding_bytes, pieces
from fp4ref.checkpoints.bounds import (
    always_reached,
    code_at,
    magnitude,
    most_crowded,
    nan_codes,
    often_reached,
    overshoot,
)
from fp4ref.checkpoints.check_scales import Verdict, is_long, runs
from fp4ref.checkpoints.findings import ERROR, NOTE, WARNING
from fp4ref.checkpoints.measure import FEW, Measured
from fp4ref.checkpoints.origins import is_converted
from fp4ref.checkpoints.scalars import numbers
from fp4ref.formats import FORMATS, grid

LEAST = 1e-6  # below it are the scales that producers give zeros
NARROW, NORMAL = 1.05, 1.4  # octaves, the standard deviation of a uniform distribution's logarithms is 1.44
MANY_CODES = 48  # different codes, of which weights of few values have less
ENOUGH = 512  # elements from which a histogram means something
ONE_SIDED = 0.35  # difference of both signs' histograms that no weight has


def judge_elements(found: Measured) -> Iterator[Verdict]:
    """Yield what is wrong with a group's elements: one cause.

    Rules: CKP-17, CKP-18, CKP-19, CKP-25, CKP-27, CKP-46, CKP-49.
    """
    name = found.group.parts["codes"].name
    total = int(found.codes.sum())
    four = found.group.convention.bits == 4
    if text := _foreign(found):
        yield "unwritten", ERROR, name, text
        return
    strange = _histogram(found, total)
    if strange:
        yield "code-histogram", WARNING, name, strange
        return
    if not four:
        if text := _uniform(found, total):
            yield "unwritten", ERROR, name, text
            return
        nan = int(found.codes[nan_codes(found.group.convention.element)].sum())
        if nan:
            yield "element-nan", ERROR, name, f"{nan} of {total} elements are NaN or infinite"
        if text := _repeated(found):
            yield "unwritten", ERROR, name, text
            return
        yield from _wide_range(found, name, total)
        return
    yield from _narrow_range(found, name, total)
    sign = FORMATS[found.group.convention.element].sign_bit
    if found.group.convention.no_negative_zero and found.codes[sign] and not is_converted(found.group):
        text = f"{int(found.codes[sign])} elements are -0, which {found.group.convention.family} never writes"
        yield "producer-bytes", NOTE, name, text


def _repeated(found: Measured) -> str:
    """Return the evidence for rows of one repeated byte where the scales are numbers; "" if there is none."""
    if found.group.convention.scale or found.group.columns < FEW:
        return ""
    if found.empty_row.all():
        scales = found.group.parts.get("scales")
        ordinary = [value for value in numbers(scales) if LEAST < value < 1]
        return f"every element is 0 under scales up to {max(ordinary):.3g}" if ordinary else ""
    for first, last in runs(found.empty_row):
        if is_long(found, first, last):
            return f"the elements of rows {first} to {last - 1} are 0"
    is_nan = nan_codes(found.group.convention.element)
    rows = np.flatnonzero((found.constant_code >= 0) & ~found.empty_row & ~is_nan[found.constant_code])
    if not len(rows) or len(rows) == found.group.rows:
        return ""
    return f"{len(rows)} rows, the first at {rows[0]}, are one repeated byte, 0x{found.constant_code[rows[0]]:02X}"


def _foreign(found: Measured) -> str:
    """Return the evidence for rows of other numbers' bytes; "" if there is none."""
    for first, last in runs(found.float_row):
        if last - first > 1:
            return f"the bytes of rows {first} to {last - 1} are those of floating-point numbers, which are no elements"
    return ""


def _histogram(found: Measured, total: int) -> str:
    """Return why the codes are no weight's in the declared format; "" if they can be."""
    sign = len(found.codes) // 2
    positive, negative = found.codes[1:sign].astype(float), found.codes[sign + 1 :].astype(float)
    if sign > 8:  # by exponent and its next bit: neighbouring codes of a sample differ by chance
        positive, negative = (np.add.reduceat(each, range(0, sign - 1, 4)) for each in (positive, negative))
    used = positive.sum() + negative.sum()
    if total < ENOUGH or used < total / 50:
        return ""
    largest = int(found.codes.argmax())
    if found.codes[largest] > 0.999 * total and largest % sign:
        return f"{found.codes[largest]} of {total} elements have code {largest}"
    if sign > 8 and (spread := _spread(found)) < NARROW:
        return f"magnitudes vary by {spread:.2f} octaves, those of weights by {NORMAL} and more: another format's codes"
    apart = float(np.abs(positive - negative).sum() / used)
    if apart > max(ONE_SIDED, 6 / np.sqrt(used) * np.sqrt(len(positive))):
        side = "positive" if positive.sum() > negative.sum() else "negative"
        share = max(positive.sum(), negative.sum()) / used
        return f"{share:.0%} of the elements are {side}, and the histograms of both signs differ by {apart:.0%}"
    return ""


def _uniform(found: Measured, total: int) -> str:
    """Return the evidence that elements of eight bits are bytes of anything; "" if there is none."""
    form = FORMATS[found.group.convention.element]
    step = 1 << form.mantissa_bits
    by_exponent = np.add.reduceat(
        found.codes[: form.sign_bit] + found.codes[form.sign_bit :], range(0, form.sign_bit, step)
    )
    if total < ENOUGH * len(by_exponent) // 4 or by_exponent.min() < total / (2 * len(by_exponent)):
        return ""
    return f"all {len(by_exponent)} exponents are as frequent as each other, NaN included: these are no elements"


def _spread(found: Measured) -> float:
    """Return the standard deviation of the magnitudes' logarithms, in octaves; infinite if that says nothing."""
    values = bounds.values(found.group.convention.element)
    known = np.flatnonzero(np.isfinite(values) & (values != 0) & (found.codes > 0))
    if len(known) < MANY_CODES or found.codes[known].max() > found.codes.sum() / 10:  # or cut off at the largest
        return math.inf
    logs, counts = np.log2(np.abs(values[known])), found.codes[known]
    return float(np.sqrt(np.average((logs - np.average(logs, weights=counts)) ** 2, weights=counts)))


def _narrow_range(found: Measured, name: str, total: int) -> Iterator[Verdict]:
    """Judge the largest codes of four-bit elements. Rules: CKP-19."""
    convention = found.group.convention
    form = FORMATS[convention.element]
    magnitudes = found.codes[: form.sign_bit] + found.codes[form.sign_bit :]
    top, second = int(magnitudes[form.codes - 1]), int(magnitudes[form.codes - 2])
    lower = total - top - second - int(magnitudes[0])
    crowded = top > most_crowded(convention) * total and top > 1.35 * second and lower > total / 5
    if total >= ENOUGH and crowded:
        text = f"{top / total:.0%} of the elements have the largest code, {second / total:.0%} the next"
        yield "saturation", WARNING, name, f"{text}: the scales are too small"
        return
    blocks = int(found.tops.sum())
    if blocks < 16:
        return
    below = int(found.tops[: always_reached(convention)].sum())
    if int(found.tops[often_reached(convention) :].sum()) < blocks / 200:
        highest = int(np.flatnonzero(found.tops)[-1])
        text = f"the largest code in {blocks} blocks of {convention.block[1]} is {highest}"
        yield "range-unused", WARNING, name, f"{text}: the scales are too large"
    elif 0 < below <= max(blocks // 500, 1) and blocks >= 256 and below < 8:
        text = f"{below} of {blocks} blocks do not reach the codes that all the others reach"
        yield "bit-damage", WARNING, name, text


def suspect_saturation(measured: list[Measured]) -> Iterator[Verdict]:
    """Yield groups whose largest code is far more frequent than in the others of the convention, and than the next.

    Magnitudes of weights are the rarer the larger they are, but for one in each block that its scale is made of.

    Rules: CKP-47.
    """
    shares: dict[str, list[tuple[Measured, float, float]]] = {}
    for each in measured:
        form = FORMATS[each.group.convention.element]
        total = int(each.codes.sum())
        if each.group.convention.bits == 4 and each.group.convention.scale and total >= ENOUGH:
            counts = each.codes[: form.sign_bit] + each.codes[form.sign_bit :]
            top, second = (int(counts[form.codes - index]) / total for index in (1, 2))
            shares.setdefault(each.group.convention.name, []).append((each, top, second))
    for entries in shares.values():
        usual = float(np.median([top for _, top, _ in entries]))
        for each, top, second in entries:
            convention, form = each.group.convention, FORMATS[each.group.convention.element]
            last = grid(form)[form.codes - 3 : form.codes]
            wide = (last[2] * overshoot(convention) - last[1:].mean()) / (last[2] - last[0]) * 2
            most = 1.1 * (second * wide + 1 / convention.block[1])
            if top > max(3 * usual, most, 0.25):
                text = f"{top:.0%} of the elements have the largest code, {second:.0%} the next"
                text += f", {usual:.0%} in other modules: the scales are too small"
                yield "saturation", WARNING, each.group.parts["codes"].name, text


def _wide_range(found: Measured, name: str, total: int) -> Iterator[Verdict]:
    """Judge the largest codes of eight-bit elements. Rules: CKP-46."""
    if total < ENOUGH:
        return
    form = FORMATS[found.group.convention.element]
    magnitudes = found.codes[: form.sign_bit] + found.codes[form.sign_bit :]
    top = int(magnitudes[form.codes - 1])
    near = int(magnitudes[code_at(form, 2.0**form.emax) : form.codes - 1].sum())
    if top > total / 10 and top > near:
        yield "saturation", WARNING, name, f"{top / total:.0%} of the elements have the largest code"
        return
    highest = int(np.flatnonzero(magnitudes)[-1])
    blocks = int(found.tops.sum())
    least = 2.0 ** (form.emax - (1 if found.group.convention.scale else 4))
    if found.group.convention.scale and blocks >= 16 and not found.tops[code_at(form, least) :].any():
        text = f"no block of {blocks} has an element of magnitude {least:g} or more"
        yield "range-unused", WARNING, name, text
    elif not found.group.convention.scale and 0 < highest < code_at(form, least):
        text = f"no element has a magnitude of {least:g} or more, of at most {form.max:g}"
        yield "range-unused", WARNING, name, text


def judge_padding(found: Measured) -> Iterator[Verdict]:
    """Check the bytes outside the logical shape, where padding and a bias show it. Rules: CKP-26, CKP-62, CKP-63."""
    group = found.group
    if "scales" in group.parts and len(group.shape) == 2 and group.convention.scale:
        count = padding_bytes(group)
        if count:
            yield "padding", WARNING, group.parts["scales"].name, f"{count} bytes of the padding of tiles are not zero"
    if group.unpadded == group.shape:
        return
    rows = group.unpadded[0]
    mask = magnitude(FORMATS[group.convention.element])
    below = (codes_of(piece.packed[max(rows - piece.row, 0) :], group.convention.bits) for piece in pieces(group))
    count = sum(int(np.count_nonzero(codes & mask)) for codes in below)
    if count:
        text = f"{count} elements below row {rows}, the length of the bias, are not zero"
        yield "padding", WARNING, group.parts["codes"].name, text
