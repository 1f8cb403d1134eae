"""Figures of the element and scale formats: bit fields, every value on a number line, rounding intervals and ties."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np

from fp4ref.diagrams.canvas import MARGIN, Canvas
from fp4ref.diagrams.request import Request
from fp4ref.diagrams.text_width import text_width
from fp4ref.errors import DomainError
from fp4ref.formats import (
    CUDA_E2M1,
    CUDA_E2M3,
    CUDA_E3M2,
    CUDA_E4M3,
    CUDA_E5M2,
    CUDA_E8M0,
    CUDA_UE5M3,
    GGML_UE4M3,
    OCP_INT8,
    Codec,
    F,
    Format,
    Rounding,
    grid,
)

ELEMENTS = (CUDA_E2M1, CUDA_E2M3, CUDA_E3M2, CUDA_E4M3, CUDA_E5M2, OCP_INT8)
STANDARD = (*ELEMENTS, CUDA_E8M0, GGML_UE4M3, CUDA_UE5M3)
CODECS = {codec.format.name: codec for codec in STANDARD}
SHOWN = 9  # codes whose rounding intervals are drawn
BIT = 46
Axis = Callable[[float], float]


def e2m1(request: Request) -> str:
    """E2M1. Rules: E2M1-1, E2M1-3, E2M1-4, E2M1-5."""
    return element_format("e2m1", request)


def e4m3(request: Request) -> str:
    """E4M3. Rules: E4M3-1, E4M3-2, E4M3-3, E4M3-4."""
    return element_format("e4m3", request)


def e5m2(request: Request) -> str:
    """E5M2. Rules: E5M2-1, E5M2-2, E5M2-3, E5M2-4."""
    return element_format("e5m2", request)


def e2m3(request: Request) -> str:
    """E2M3. Rules: E2M3-1, E2M3-2, E2M3-3, E2M3-4."""
    return element_format("e2m3", request)


def e3m2(request: Request) -> str:
    """E3M2. Rules: E3M2-1, E3M2-2, E3M2-3, E3M2-4."""
    return element_format("e3m2", request)


def e8m0(request: Request) -> str:
    """E8M0. Rules: E8M0-1, E8M0-2, E8M0-3, E8M0-4."""
    return element_format("e8m0", request)


def int8(request: Request) -> str:
    """INT8. Rules: INT8-1, INT8-2, INT8-3, INT8-4."""
    return element_format("int8", request)


def ue4m3(request: Request) -> str:
    """UE4M3. Rules: UE4M3-1, UE4M3-2."""
    return element_format("ue4m3", request)


def ue5m3(request: Request) -> str:
    """UE5M3. Rules: UE5M3-1, UE5M3-2, UE5M3-3."""
    return element_format("ue5m3", request)


def element_format(name: str, request: Request) -> str:
    """Bit fields of a format, all its values, and which inputs round to which code.

    window: the codes (its first range) whose rounding intervals are drawn.
    """
    codec = CODECS[name]
    form = codec.format
    first, last = _codes(codec, request)
    title = f"{form.name.upper()}: {form.bits} bits, values to {number(form.max)}"
    rounding = "rounds up" if codec.rounding is Rounding.UP else "rounds to nearest, ties to the even code"
    page = Canvas(title, f"{_layout_words(form)}. {_range_words(form)}. Encoding {rounding}.", request.theme)
    y = page.heading(title)
    y = _bits(page, y + 6, form)
    y = _all_values(page, y + 34, form)
    _intervals(page, y + 34, codec, first, last)
    return page.svg()


def _codes(codec: Codec, request: Request) -> tuple[int, int]:
    """First and last code whose intervals are drawn: all of a small format, else those from 1.0 on."""
    codes = codec.format.codes
    if request.window:
        (first, stop), _ = request.window
        if stop > codes or stop - first > SHOWN:
            got = f"codes {first}:{stop} of {codec.format.name}"
            raise DomainError("diagram", got, f"at most {SHOWN} codes below {codes}, like --window 0:{SHOWN},0:1")
        return first, stop - 1
    if codes <= SHOWN:
        return 0, codes - 1
    one = int(codec.encode(np.ones(1, F))[0])
    return one, one + SHOWN - 1


def number(value: float) -> str:
    """Return a value as a figure writes it: decimal where that is short, else a power of two."""
    text = f"{value:g}"
    if float(text) == value and len(text) <= 7 and "e" not in text:
        return text
    fraction, exponent = math.frexp(value)
    if exponent == 1 and fraction != 0.5:
        return f"{value:.9g}"
    return f"2^{exponent - 1}" if fraction == 0.5 else f"{fraction * 2:g}·2^{exponent - 1}"


def _layout_words(form: Format) -> str:
    if form.complement:
        return f"two's complement of {form.bits} bits, in steps of {number(2.0 ** (1 - form.mantissa_bits))}"
    sign = "1 sign bit, " if form.signed else "1 bit without a meaning, " if form.second_zero else "no sign, "
    return f"{sign}{form.exponent_bits} exponent bits with bias {form.bias}, {form.mantissa_bits} mantissa bits"


def _range_words(form: Format) -> str:
    values = grid(form)
    count = 2 * form.codes - 1 + form.complement if form.signed else form.codes
    return (
        f"{count} finite values, smallest above zero {number(float(values[values > 0][0]))}, largest {number(form.max)}"
    )


def _bits(page: Canvas, y: float, form: Format) -> float:
    """Fields of a code, highest bit first, with the largest code as the example."""
    code = form.codes - 1
    first = [("sign", 1, "d")] * form.signed + [("unused", 1, "pad")] * form.second_zero
    rest = "integer" if form.complement else "mantissa"
    fields = [*first, ("exponent", form.exponent_bits, "a"), (rest, form.mantissa_bits, "b")]
    x, bit = MARGIN, form.bits - 1
    for name, count, kind in fields:
        for _ in range(count):
            page.text(x + BIT / 2, y + 10, f"{bit}", size=10, anchor="middle", kind="muted", mono=True)
            page.cell(x, y + 14, BIT, 30, str(code >> bit & 1), kind, size=15)
            x, bit = x + BIT, bit - 1
        if count:
            page.text(x - count * BIT / 2, y + 60, name, size=11, anchor="middle")
    page.text(
        MARGIN, y + 80, f"code 0x{code:0{form.bits // 4}x} = {number(form.max)}", size=11, mono=True, kind="muted"
    )
    notes = [_value_formula(form), *_special_words(form)]
    page.lines(MARGIN + form.bits * BIT + 40, y + 22, notes, size=11)
    return y + 84


def _value_formula(form: Format) -> str:
    if form.powers_of_two:
        return f"value = 2^(E − {form.bias})"
    if form.complement:
        return f"value = the integer · 2^{1 - form.mantissa_bits}"
    sign = "± " if form.signed else ""
    return f"value = {sign}2^(E − {form.bias}) · 1.M;   E = 0: {sign}2^{1 - form.bias} · 0.M"


def _special_words(form: Format) -> list[str]:
    """Return what the codes past the largest finite one mean."""
    past = range(form.codes, form.sign_bit if form.signed else 1 << form.bits)
    if form.second_zero:
        return [_range_words(form).split(",")[0], f"{form.codes:#04x} = 0, and is never written", "no infinity, no NaN"]
    if not past:
        return [_range_words(form).split(",")[0], "no infinity, no NaN"]
    nan = past[1:] if form.infinity else past
    names = [f"{code:#04x}" for code in nan]
    infinity = f"{past[0]:#04x} = infinity, " if form.infinity else "no infinity, "
    sign = " (and with the sign bit)" if form.signed else ""
    return [_range_words(form).split(",")[0], f"{infinity}NaN = {', '.join(names)}{sign}"]


def _all_values(page: Canvas, y: float, form: Format) -> float:
    """Every finite value as a tick; codes below, values above."""
    small = form.codes <= SHOWN
    page.text(
        MARGIN, y, "All values" if small else "All positive values, one tick each, on a logarithmic line", bold=True
    )
    y += 40
    left, right = MARGIN + 14, page.width - MARGIN - 14
    values = grid(form)[:-1]
    if small:
        axis: Axis = lambda v: left + (v + form.max) / (2 * form.max) * (right - left)  # noqa: E731
        for sign in (-1, 1):
            for code, value in enumerate(values):
                x = axis(sign * value)
                full = code | (form.sign_bit if sign < 0 else 0)
                page.line([(x, y - 7), (x, y + 7)], stroke="A")
                if code:
                    page.text(
                        x, y - 12, number(float(sign * value)).replace("-", "−"), size=10, anchor="middle", mono=True
                    )
                    page.text(x, y + 20, f"{full:x}", size=11, anchor="middle", mono=True, kind="A")
        page.text(axis(0), y - 12, "±0", size=10, anchor="middle", mono=True)
        page.text(axis(0), y + 20, f"0,{form.sign_bit:x}", size=11, anchor="middle", mono=True, kind="A")
        page.text(MARGIN, y + 36, "below: the code in hex", size=10, kind="muted")
    else:
        low, high = math.log2(values[values > 0][0]), math.log2(form.max)
        axis = lambda v: left + (math.log2(v) - low) / (high - low) * (right - left)  # noqa: E731
        every = next(n for n in (1, 2, 4, 8, 16, 32) if (high - low) / n <= 16)
        for code, value in enumerate(values):
            if value == 0:
                continue
            exponent = math.log2(value)
            whole = exponent == int(exponent)
            named = whole and int(exponent) % every == 0
            x = axis(float(value))
            long = whole if form.mantissa_bits else named
            page.line([(x, y - (9 if long else 4)), (x, y + (9 if long else 4))], stroke="A" if long else "edge")
            if named:
                page.text(x, y - 14, f"2^{int(exponent)}", size=10, anchor="middle", mono=True)
                page.text(x, y + 22, f"{code:02x}", size=10, anchor="middle", mono=True, kind="A")
        ticks = "powers of two" if form.mantissa_bits else f"those whose exponent is a multiple of {every}"
        page.text(MARGIN, y + 38, f"below: the code in hex; long ticks are {ticks}", size=10, kind="muted")
    page.line([(left, y), (right, y)])
    return y + 38


def _intervals(page: Canvas, y: float, codec: Codec, first: int, last: int) -> None:
    """One bar per code over the inputs that it takes; a tie's arrow points at the code it goes to."""
    form, values = codec.format, grid(codec.format)
    page.text(MARGIN, y, "Which inputs become which code", bold=True)
    edges = _edges(codec, first, last)
    axis = _axis(form, edges, MARGIN + 8, page.width - MARGIN - 8)
    y += 16
    marks = [(axis(float(values[code])), number(float(values[code]))) for code in range(first, last + 1)]
    for code, (x, value) in enumerate(marks, first):
        low, high = edges[code - first], edges[code - first + 1]
        title = f"code {code:#x} = {value}: inputs from {low:g} to {high:g}"
        page.cell(axis(low), y, axis(high) - axis(low), 26, f"{code:x}", "ab"[code % 2], size=12, title=title)
        page.line([(x, y + 26), (x, y + 34)], stroke="A")
    y = _staggered(page, y + 46, marks, 10)
    page.text(
        MARGIN, y + 20, "the value of each code, to scale; below: the limits between codes", size=10, kind="muted"
    )
    y += 30
    limits = edges[1:-1] if last < form.codes - 1 or form.signed else edges[1:]
    for at, edge in enumerate(limits):
        x, to = axis(edge), int(codec.encode(np.array([edge], F))[0])
        side = -1 if to == first + at else 1
        page.line([(x, y), (x, y + 10)], stroke="D")
        page.line([(x, y + 10), (x + 12 * side, y + 10)], stroke="D", head=True)
        page.text(x, y + 25, f"→ {to:x}", size=10, anchor="middle", mono=True, kind="D")
    y = _staggered(page, y + 38, [(axis(edge), f"{edge:.6g}") for edge in limits], 9)
    up = codec.rounding is Rounding.UP
    words = "A limit goes to the lower code: rounding is up" if up else "A tie goes to the even code"
    past = int(codec.encode(np.array([np.inf], F))[0])
    tail = f"past {number(form.max)}, infinity too: {past:#x}; NaN: {codec.nan[0]:#x}"
    page.text(MARGIN, y + 22, f"{words}; {tail}.", size=11, kind="muted")


def _staggered(page: Canvas, y: float, marks: list[tuple[float, str]], size: float) -> float:
    """Labels in one line, or in two where neighbours would touch; returns the last baseline."""
    widths = [text_width(text, size, mono=True) for _, text in marks]
    gaps = [right[0] - left[0] for left, right in itertools.pairwise(marks)]
    tight = any(gap < (a + b) / 2 + 4 for gap, a, b in zip(gaps, widths, widths[1:], strict=False))
    for at, (x, text) in enumerate(marks):
        page.text(x, y + (1.2 * size if tight and at % 2 else 0), text, size=size, anchor="middle", mono=True)
    return y + 1.2 * size * tight


def _edges(codec: Codec, first: int, last: int) -> list[float]:
    """Limits of the inputs of codes first..last: values where rounding is up, else midpoints."""
    values = [float(v) for v in grid(codec.format)]
    if codec.rounding is Rounding.UP:
        inner = values[first : last + 1]
        return [values[first - 1] if first else inner[0] / 2, *inner]
    middles = [(a + b) / 2 for a, b in itertools.pairwise(values)]
    low = middles[first - 1] if first else 0.0
    high = middles[last] if last < codec.format.codes - 1 else values[last] + (values[last] - values[last - 1]) / 4
    return [low, *middles[first:last], high]


def _axis(form: Format, edges: list[float], left: float, right: float) -> Axis:
    """Linear, or logarithmic for powers of two."""
    scale: Axis = math.log2 if form.mantissa_bits == 0 else float
    low, high = scale(edges[0]), scale(edges[-1])
    return lambda value: left + (scale(value) - low) / (high - low) * (right - left)
