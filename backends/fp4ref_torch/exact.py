"""float32 operations that round once, the same in eager mode and in code that torch.compile generates.

Operations that a compiler may change are kept away from it. Inductor contracts products and sums (Triton), divides
approximately (Triton), compiles with `-fno-signed-zeros`, so that `x + 0` is x (C++), and drops a conversion to a
narrower type that is followed by one to a wider type. Hence
* sums, differences, products and quotients are one custom operator, `fp4ref::rounded`, which runs the eager kernel;
* every rounding to another type, every NaN and every sign of a zero is made from integer bits;
* everything else keeps its bits and is compiled as it stands: integer operations, reinterpretation (`view(dtype)`),
  comparisons, `where`, maxima of integers, and conversions that are exact.
Operands are tensors of at least one dimension: dividing by a number means a product with its reciprocal on CUDA.
Nothing here sets or survives flush-to-zero: with `torch.set_flush_denormal(True)` a CPU computes other bits, and the
operations refuse to run (CNF-4).

Rules: NUM-1, NUM-2.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

INFINITY = 0x7F80_0000  # float32 bits
MAGNITUDE = 0x7FFF_FFFF
NAN = 0x7FC0_0000
SIGN = -(1 << 31)  # as int32
SMALLEST_NORMAL = 0x0080_0000
FLT_MAX = (2 - 2**-23) * 2.0**127

_KERNELS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "div": torch.div,
}


@torch.library.custom_op("fp4ref::rounded", mutates_args=())
def rounded(operation: str, a: Tensor, b: Tensor) -> Tensor:
    """Compute add, sub, mul or div on float32 by its eager kernel; contiguous. Rules: NUM-1."""
    return _KERNELS[operation](a, b).contiguous()


@rounded.register_fake
def _(operation: str, a: Tensor, b: Tensor) -> Tensor:
    return torch.empty_like(a + b, memory_format=torch.contiguous_format)


def _binary(operation: str, a: Tensor, b: Tensor) -> Tensor:
    if torch.compiler.is_compiling():
        result: Tensor = rounded(operation, a, b)
        return result
    return _KERNELS[operation](a, b)


def add(a: Tensor, b: Tensor) -> Tensor:
    """Return a + b, rounded once."""
    return _binary("add", a, b)


def sub(a: Tensor, b: Tensor) -> Tensor:
    """Return a - b, rounded once."""
    return _binary("sub", a, b)


def mul(a: Tensor, b: Tensor) -> Tensor:
    """Return a * b, rounded once."""
    return _binary("mul", a, b)


def div(a: Tensor, b: Tensor) -> Tensor:
    """Return a / b, rounded once."""
    return _binary("div", a, b)


def constant(like: Tensor, value: float) -> Tensor:
    """Return a value on the device of another tensor, float32 [1, 1, 1, 1]."""
    return torch.full((1, 1, 1, 1), value, dtype=torch.float32, device=like.device)


def bits(x: Tensor) -> Tensor:
    """Return the bits of float32, as int32."""
    return x.view(torch.int32)


def floats(x: Tensor) -> Tensor:
    """Return the float32 that int32 bits mean."""
    return x.view(torch.float32)


def magnitude(x: Tensor) -> Tensor:
    """Return the bits of |x|, which sort as the magnitudes do, NaN last."""
    return bits(x) & MAGNITUDE


def choose(condition: Tensor, a: int, b: int = 0) -> Tensor:
    """Return a where the condition holds, else b; int32, which `torch.where` of two numbers is not."""
    return condition.to(torch.int32) * (a - b) + b


def is_zero(x: Tensor) -> Tensor:
    """Return True if x is a zero of either sign."""
    return magnitude(x) == 0


def is_nan(x: Tensor) -> Tensor:
    """Return True if x is a NaN."""
    return magnitude(x) > INFINITY


def is_finite(x: Tensor) -> Tensor:
    """Return True if x is neither infinite nor NaN."""
    return magnitude(x) < INFINITY


def with_signed_nan(result: Tensor, *operands: Tensor) -> Tensor:
    """Give a NaN the sign of the first operand that is NaN; one that an operation made has its sign bit set.

    Rules: NUM-2.
    """
    sign = torch.full((1,) * result.dim(), SIGN, dtype=torch.int32, device=result.device)
    for operand in reversed(operands):
        sign = torch.where(is_nan(operand), bits(operand) & SIGN, sign)
    return floats(torch.where(is_nan(result), sign | NAN, bits(result)))


def widened(x: Tensor) -> Tensor:
    """float32, bfloat16 or float16 as float32; exact, signs of NaN included. Rules: NUM-10. Certificates: widen-*."""
    if x.dtype is torch.bfloat16:
        return floats(x.view(torch.int16).to(torch.int32) << 16)
    if x.dtype is torch.float16:
        half = x.view(torch.int16).to(torch.int32)
        nan = (half & 0x7FFF) > 0x7C00
        return floats(torch.where(nan, (half << 16 & SIGN) | NAN, bits(x.to(torch.float32))))
    return x


def rounded_bfloat16(x: Tensor) -> Tensor:
    """x rounded to bfloat16, nearest even, as float32."""
    word = bits(x)
    even = (word + 0x7FFF + (word >> 16 & 1)) & -(1 << 16)
    return floats(torch.where(is_nan(x), word & SIGN | NAN, even))


def rounded_float16(x: Tensor) -> Tensor:
    """x rounded to float16, nearest even, as float32."""
    return widened(to_float16(x))


def to_bfloat16(x: Tensor) -> Tensor:
    """x rounded to bfloat16, nearest even; the sign of a NaN is kept. Rules: DEQ-3. Certificates: round-bfloat16."""
    return (bits(rounded_bfloat16(x)) >> 16).to(torch.int16).view(torch.bfloat16)


def to_float16(x: Tensor) -> Tensor:
    """x rounded to float16, nearest even; the sign of a NaN is kept. Rules: DEQ-3. Certificates: round-float16."""
    code = rounded_code(magnitude(x), mantissa_bits=10, bias=15, rounding="even").clamp(max=0x7C00)
    code = torch.where(is_nan(x), 0x7E00, code)
    return torch.where(bits(x) < 0, code - (1 << 15), code).to(torch.int16).view(torch.float16)


def rounded_code(word: Tensor, mantissa_bits: int, bias: int, rounding: str) -> Tensor:
    """Round the bits of magnitudes to the codes of a small format, int32; past its largest value codes go on.

    The significand, its leading one included, is shifted right until one unit is the format's step there; what the
    carry does to mantissa and exponent is what a code means. Infinity and NaN get codes past every finite one.
    rounding: even, down, away, truncate or up.

    Rules: E2M1-3, E2M1-6, E4M3-2, E5M2-2.
    """
    lowest = 128 - bias  # exponent field of the format's smallest normal value
    field = (word >> 23).clamp(min=1)
    significand = (word & 0x7F_FFFF) | choose(word >= SMALLEST_NORMAL, 1 << 23)
    shift = (lowest - field).clamp(0, mantissa_bits + 2) + (23 - mantissa_bits)
    if rounding == "even":
        added = (1 << (shift - 1)) - 1 + (significand >> shift & 1)
    elif rounding == "down":
        added = (1 << (shift - 1)) - 1
    elif rounding == "away":
        added = 1 << (shift - 1)
    else:
        added = (1 << shift) - 1 if rounding == "up" else torch.zeros_like(shift)
    return ((field - lowest).clamp(min=0) << mantissa_bits) + ((significand + added) >> shift)
