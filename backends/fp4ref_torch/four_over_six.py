"""4over6: the errors of two candidates, by which one of them is kept."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

from fp4ref.spec import FourOverSix, Metric
from fp4ref.spec_json import encode
from fp4ref_torch import codecs
from fp4ref_torch.arithmetic import scaled
from fp4ref_torch.exact import add, bits, div, floats, magnitude, mul, rounded_float16, sub
from fp4ref_torch.known import Known


def search(blocks: Tensor, t: Tensor, g: Tensor, amax: Tensor, k: Known) -> tuple[Tensor, Tensor]:
    """Codes [down, R, across, C] and scales [down, 1, across, 1] of the better candidate, the first on a tie.

    Rules: FOS-1, FOS-3, FOS-4, FOS-5, FOS-6.
    """
    first = _candidate(blocks, t, g, amax, k)
    second = _candidate(blocks, mul(t, k.value(1.5)), g, amax, k)
    better = second[2] < first[2]
    return torch.where(better, second[0], first[0]), torch.where(better, second[1], first[1])


def _candidate(blocks: Tensor, t: Tensor, g: Tensor, amax: Tensor, k: Known) -> tuple[Tensor, Tensor, Tensor]:
    """Codes, scales and block errors of one scale before its codec."""
    rule, element = cast(FourOverSix, k.spec.four_over_six), k.spec.element
    scale = codecs.encode(t, k.spec.scale)
    y, s = scaled(blocks, t, scale, g, k), codecs.decode(scale, k.spec.scale.format)
    error = _difference(encode(rule.difference), mul(codecs.nearest(y, element), s), g, amax, blocks, k)
    count = mul(error, error) if rule.metric is Metric.SQUARED else floats(magnitude(error))
    if rule.metric is Metric.LARGEST:
        total = floats(bits(count).amax((1, 3), keepdim=True))
    else:
        total = _total(encode(rule.total), count)
    return codecs.encode(y, element), scale, total


def _difference(name: str, product: Tensor, g: Tensor, amax: Tensor, x: Tensor, k: Known) -> Tensor:
    """Return the error of each element, given q * s. Rules: FOS-3, FOS-4. Certificates: search-errors."""
    if name == "dequantized":
        return sub(div(mul(product, amax), k.total), x)
    if name == "dequantized_by_reciprocal":
        return sub(mul(product, k.over(g)), x)
    if name == "scaled_units_float16":
        product = rounded_float16(product)
    return sub(product, mul(x, g))


def _total(name: str, count: Tensor) -> Tensor:
    """Return sums over a block [down, R, across, C] in a fixed order, kept as [down, 1, across, 1].

    Rules: FOS-5. Certificates: search-order.
    """
    if name == "halves":
        half = count.shape[3] // 2
        count = add(count[..., :half], count[..., half:])
    rows = _from_first_to_last(count, 3)
    if name != "rows_by_tree":
        return _from_first_to_last(rows, 1)
    while rows.shape[1] > 1:
        half = rows.shape[1] // 2
        rows = add(rows[:, :half], rows[:, half:])
    return rows


def _from_first_to_last(count: Tensor, axis: int) -> Tensor:
    total = count.narrow(axis, 0, 1)
    for i in range(1, count.shape[axis]):
        total = add(total, count.narrow(axis, i, 1))
    return total
