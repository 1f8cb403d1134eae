"""Exact sums of products whose exponents spread too far for 64-bit integers: those of MX operands.

An operand is cut into windows by the exponents of its values: window p holds, over 2^(lowest + 12 p), integers below
2^20, and 0 where a value is in another window. The product of two windows is one matrix product of float64, exact in
every order; those with equal p + q are added in int64, as digit p + q of the sum. Digits are carried and rounded once
at the end. Certificates: gemm-spreads-*, gemm-long-mx.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fp4ref.errors import BackendError

SIGNIFICANT = 8  # bits of code * scale, at most: two E4M3 significands
DIGIT = 12  # bits of a window, and of a digit once carried
CHUNK = 1 << 13  # elements of K whose products, below 2^40 each, stay below 2^53
MOST = 1 << 22  # elements of K whose products stay below 2^62
KEPT = 4  # digits that are rounded, at least 37 bits; what lies below them is one bit
SPARE = 6  # digits past the last one, for carries and the sign: 62 bits


def sums(left: Tensor, right: Tensor) -> Tensor:
    """Return the true sums over k of left[m, k] * right[n, k], each rounded once to float32, [M, N].

    left, right: float64 [rows, K] with at most SIGNIFICANT significant bits, of magnitude 2^-200 to 2^200 or 0;
    infinities and NaN as GEM-3 says. Reads minima and maxima back from the device.

    Rules: GEM-2, GEM-3. Certificates: gemm-spreads-*.
    """
    if left.shape[1] > MOST:
        raise BackendError("gemm on backend torch", f"K = {left.shape[1]}", f"K <= {MOST} or backend numpy", "GEM-2")
    finite = [torch.where(part.isfinite(), part, 0.0) for part in (left, right)]
    (low_a, of_a), (low_b, of_b) = (_windows(part) for part in finite)
    digits = _digits(of_a, of_b, (left.shape[0], right.shape[0]))
    result = _rounded(digits, low_a + low_b)
    if not (left.isfinite().all() and right.isfinite().all()):
        special = torch.mm(_signs(left), _signs(right).T)
        result = torch.where(special.isfinite(), result, special.to(torch.float32))
    return result


def _windows(values: Tensor) -> tuple[int, dict[int, Tensor]]:
    """Return the exponent of a step, and for each window its integers, float64 [rows, K], over 2^(DIGIT * p) steps."""
    exponent = torch.frexp(values).exponent.to(torch.int64) - SIGNIFICANT
    there = exponent[values != 0]
    if not there.numel():
        return 0, {}
    low, high = (int(limit) for limit in torch.aminmax(there))
    window = torch.where(values != 0, (exponent - low) // DIGIT, -1)
    parts = {}
    for p in range((high - low) // DIGIT + 1):
        inside = window == p
        if inside.any():
            parts[p] = torch.where(inside, values, 0.0) * 2.0 ** -(low + DIGIT * p)
    return low, parts


def _digits(of_a: dict[int, Tensor], of_b: dict[int, Tensor], shape: tuple[int, int]) -> list[Tensor]:
    """Digit i of every sum, int64 [M, N], below 2^62 in magnitude; KEPT - 1 zeros come first."""
    count = max(of_a, default=0) + max(of_b, default=0) + 1 + SPARE
    device = next((part.device for part in (*of_a.values(), *of_b.values())), None)
    digits = [torch.zeros(shape, dtype=torch.int64, device=device) for _ in range(KEPT - 1 + count)]
    for p, left in of_a.items():
        for q, right in of_b.items():
            for start in range(0, left.shape[1], CHUNK):
                part = slice(start, start + CHUNK)
                digits[KEPT - 1 + p + q] += torch.mm(left[:, part], right[:, part].T).to(torch.int64)
    return digits


def _rounded(digits: list[Tensor], low: int) -> Tensor:
    """float32 of the sum of digits[i] * 2^(low + DIGIT * (i - KEPT + 1)), nearest even. Rules: GEM-2."""
    negative = _carried(digits)[-1] < 0
    stack = torch.stack(_carried([torch.where(negative, -digit, digit) for digit in digits]))
    place = torch.arange(len(digits), device=stack.device)[:, None, None]
    top = torch.where(stack != 0, place, KEPT - 1).amax(dim=0).clamp(min=KEPT - 1)
    kept = torch.zeros_like(top)
    for i in range(KEPT):
        kept = kept << DIGIT | torch.gather(stack, 0, (top - i)[None])[0]
    kept |= ((stack != 0) & (place < top - (KEPT - 1))).any(dim=0)
    exponent = low + DIGIT * (top - 2 * (KEPT - 1))
    scale = (exponent + 1023 << 52).view(torch.float64)
    magnitude = (kept.to(torch.float64) * scale).to(torch.float32)
    return torch.where(negative, -magnitude, magnitude)


def _carried(digits: list[Tensor]) -> list[Tensor]:
    """Return the same number with digits of DIGIT bits; the last one is -1 or 0, the sign."""
    result, carry = [], torch.zeros_like(digits[0])
    for digit in digits[:-1]:
        whole = digit + carry
        carry = whole >> DIGIT
        result.append(whole & ((1 << DIGIT) - 1))
    return [*result, digits[-1] + carry]


def _signs(values: Tensor) -> Tensor:
    """-1, 0 and 1 for finite values, which cannot overflow; infinities and NaN themselves. Rules: GEM-3."""
    return torch.where(values.isfinite(), torch.sign(values), values)
