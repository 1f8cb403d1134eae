"""Figures of the element and scale formats: bit fields, every value on a number line, rounding intervals and ties."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np

from fp4ref.catalogue import PROFILES
from fp4ref.diagrams.canvas import MARGIN, Canvas
from fp4ref.diagrams.codec_words import ROUNDED
from fp4ref.diagrams.format_words import layout_words, number, range_words, special_words, value_formula
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

SHOWN = 9  # codes whose rounding intervals are drawn
LIMITS = {  # where an input goes that is a limit between two codes
    Rounding.EVEN: "A tie goes to the even code",
    Rounding.DOWN: "A tie goes to the lower code",
    Rounding.AWAY: "A tie goes to the upper code",
    Rounding.TRUNCATE: "A limit goes to the upper code: rounding is toward zero",
    Rounding.UP: "A limit goes to the lower code: rounding is up",
}
BIT = 46
Axis = Callable[[float], float]


def e2m1(request: Request) -> str:
    """E2M1. Rules: E2M1-1, E2M1-3, E2M1-4, E2M1-5."""
    return of_codec(CUDA_E2M1, request)


def e4m3(request: Request) -> str:
    """E4M3. Rules: E4M3-1, E4M3-2, E4M3-3, E4M3-4."""
    return of_codec(CUDA_E4M3, request)


def e5m2(request: Request) -> str:
    """E5M2. Rules: E5M2-1, E5M2-2, E5M2-3, E5M2-4."""
    return of_codec(CUDA_E5M2, request)


def e2m3(request: Request) -> str:
    """E2M3. Rules: E2M3-1, E2M3-2, E2M3-3, E2M3-4."""
    return of_codec(CUDA_E2M3, request)


def e3m2(request: Request) -> str:
    """E3M2. Rules: E3M2-1, E3M2-2, E3M2-3, E3M2-4."""
    return of_codec(CUDA_E3M2, request)


def e8m0(request: Request) -> str:
    """E8M0. Rules: E8M0-1, E8M0-2, E8M0-3, E8M0-4."""
    return of_codec(CUDA_E8M0, request)


def int8(request: Request) -> str:
    """INT8. Rules: INT8-1, INT8-2, INT8-3, INT8-4."""
    return of_codec(OCP_INT8, request)


def ue4m3(request: Request) -> str:
    """UE4M3. Rules: UE4M3-1, UE4M3-2."""
    return of_codec(GGML_UE4M3, request)


def ue5m3(request: Request) -> str:
    """UE5M3. Rules: UE5M3-1, UE5M3-2, UE5M3-3."""
    return of_codec(CUDA_UE5M3, request)


def registered(request: Request) -> str:
    """Return the figure of a registered format, as the first specification that uses it encodes.

    Where none does, codes are the nearest ones, ties to the even code. Rules: SPC-7.
    """
    form = request.format
    assert form is not None  # its figure gives it
    codecs = (codec for spec in PROFILES.values() for codec in (spec.element, spec.scale))
    return of_codec(next((codec for codec in codecs if codec.format == form), form), request)


def of_codec(made: Codec | Format, request: Request) -> str:
    """Bit fields of a format, all its values, and which inputs round to which code.

    window: the codes (its first range) whose rounding intervals are drawn.

    Rules: E2M1-6.
    """
    codec = Codec(format=made, nan=(0, 0)) if isinstance(made, Format) else made
    form = codec.format
    first, last = _codes(codec, request)
    title = f"{form.name.upper()}: {form.bits} bits, values to {number(form.max)}"
    rounding = {Rounding.UP: "up", Rounding.EVEN: "to nearest, ties to the even code"}
    rounds = rounding.get(codec.rounding) or ROUNDED[codec.rounding]
    page = Canvas(title, f"{layout_words(form)}. {range_words(form)}. Encoding rounds {rounds}.", request.theme)
    y = page.heading(title)
    y = _bits(page, y + 6, form)
    y = _all_values(page, y + 34, form)
    nan = f"; NaN: {codec.nan[0]:#x}" if made is codec else ""
    _intervals(page, y + 34, codec, first, last, nan)
    return page.svg()


def _codes(codec: Codec, request: Request) -> tuple[int, int]:
    """First and last code whose intervals are drawn: all of a small format, else those from 1.0 on."""
    form = codec.format
    codes = form.codes
    if request.window:
        (first, stop), _ = request.window
        if stop > codes or stop - first > SHOWN:
            got = f"codes {first}:{stop} of {form.name}"
            raise DomainError("diagram", got, f"at most {SHOWN} codes below {codes}, like --window 0:{SHOWN},0:1")
        return first, stop - 1
    if codes <= SHOWN:
        zero = not form.mantissa_bits and not form.powers_of_two  # it has no place on a logarithmic line
        return int(zero), codes - 1
    one = min(int(codec.encode(np.ones(1, F))[0]), codes - SHOWN)
    return one, one + SHOWN - 1


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
    notes = [value_formula(form), *special_words(form)]
    page.lines(MARGIN + form.bits * BIT + 40, y + 22, notes, size=11)
    return y + 84


def _all_values(page: Canvas, y: float, form: Format) -> float:
    """Every finite value as a tick; codes below, values above."""
    small = form.codes <= SHOWN and form.mantissa_bits > 0
    page.text(
        MARGIN, y, "All values" if small else "All positive values, one tick each, on a logarithmic line", bold=True
    )
    y += 40
    left, right = MARGIN + 14, page.width - MARGIN - 14
    values = grid(form)[:-1]
    if small:
        lowest = -form.max if form.signed else 0.0
        axis: Axis = lambda v: left + (v - lowest) / (form.max - lowest) * (right - left)  # noqa: E731
        for sign in (-1, 1)[not form.signed :]:
            for code, value in enumerate(values):
                x = axis(sign * value)
                full = code | (form.sign_bit if sign < 0 else 0)
                page.line([(x, y - 7), (x, y + 7)], stroke="A")
                if code:
                    page.text(
                        x, y - 12, number(float(sign * value)).replace("-", "−"), size=10, anchor="middle", mono=True
                    )
                    page.text(x, y + 20, f"{full:x}", size=11, anchor="middle", mono=True, kind="A")
        page.text(axis(0), y - 12, "±0" if form.signed else "0", size=10, anchor="middle", mono=True)
        zeros = f"0,{form.sign_bit:x}" if form.signed else "0"
        page.text(axis(0), y + 20, zeros, size=11, anchor="middle", mono=True, kind="A")
        page.text(MARGIN, y + 36, "below: the code in hex", size=10, kind="muted")
    else:
        low = math.log2(values[values > 0][0])
        span = math.log2(form.max) - low or 1.0
        axis = lambda v: left + (math.log2(v) - low) / span * (right - left)  # noqa: E731
        every = next(n for n in (1, 2, 4, 8, 16, 32) if span / n <= 16)
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
        whole_line = form.mantissa_bits or every == 1
        ticks = "powers of two" if whole_line else f"those whose exponent is a multiple of {every}"
        page.text(MARGIN, y + 38, f"below: the code in hex; long ticks are {ticks}", size=10, kind="muted")
    page.line([(left, y), (right, y)])
    return y + 38


def _intervals(page: Canvas, y: float, codec: Codec, first: int, last: int, nan: str) -> None:
    """One bar per code over the inputs that it takes; a tie's arrow points at the code it goes to."""
    form, values = codec.format, grid(codec.format)
    page.text(MARGIN, y, "Which inputs become which code", bold=True)
    edges = _edges(codec, first, last)
    axis = _axis(form, edges, MARGIN + 8, page.width - MARGIN - 8)
    y += 16
    marks = [(axis(float(values[code])), number(float(values[code]))) for code in range(first, last + 1)]
    for code, (x, value) in enumerate(marks, first):
        low, high = edges[code - first], edges[code - first + 1]
        title = f"code {code:#x} = {value}: inputs from {low:.9g} to {high:.9g}"
        page.cell(axis(low), y, axis(high) - axis(low), 26, f"{code:x}", "ab"[code % 2], size=12, title=title)
        page.line([(x, y + 26), (x, y + 34)], stroke="A")
    y = _staggered(page, y + 46, marks, 10)
    page.text(
        MARGIN, y + 20, "the value of each code, to scale; below: the limits between codes", size=10, kind="muted"
    )
    y += 30
    limits = edges[1:] if last == form.codes - 1 and codec.rounding is Rounding.UP else edges[1:-1]
    reached = [int(code) for code in codec.encode(np.array(limits, F))]
    for at, (edge, to) in enumerate(zip(limits, reached, strict=True)):
        x = axis(edge)
        side = -1 if to == first + at else 1
        page.line([(x, y), (x, y + 10)], stroke="D")
        page.line([(x, y + 10), (x + 12 * side, y + 10)], stroke="D", head=True)
    arrows = [(axis(edge), f"→ {to:x}") for edge, to in zip(limits, reached, strict=True)]
    y = _staggered(page, y + 25, arrows, 10, kind="D")
    y = _staggered(page, y + 13, [(axis(edge), f"{edge:.9g}") for edge in limits], 9)
    past = int(codec.encode(np.array([np.inf], F))[0])
    tail = f"past {number(form.max)}, infinity too: {past:#x}{nan}"
    page.text(MARGIN, y + 22, f"{LIMITS[codec.rounding]}; {tail}.", size=11, kind="muted")


def _staggered(page: Canvas, y: float, marks: list[tuple[float, str]], size: float, kind: str = "ink") -> float:
    """Labels in one line, or in two where neighbours would touch; returns the last baseline."""
    widths = [text_width(text, size, mono=True) for _, text in marks]
    gaps = [right[0] - left[0] for left, right in itertools.pairwise(marks)]
    tight = any(gap < (a + b) / 2 + 4 for gap, a, b in zip(gaps, widths, widths[1:], strict=False))
    for at, (x, text) in enumerate(marks):
        page.text(
            x, y + (1.2 * size if tight and at % 2 else 0), text, size=size, anchor="middle", mono=True, kind=kind
        )
    return y + 1.2 * size * tight


def _edges(codec: Codec, first: int, last: int) -> list[float]:
    """Limits of the inputs of codes first..last: values where rounding is up or toward zero, else midpoints."""
    values = [float(v) for v in grid(codec.format)]
    if codec.rounding is Rounding.UP:
        inner = values[first : last + 1]
        return [values[first - 1] if first else inner[0] / 2, *inner]
    if codec.rounding is Rounding.TRUNCATE:
        return values[first : last + 2]
    middles = [(a + b) / 2 for a, b in itertools.pairwise(values)]
    low = middles[first - 1] if first else 0.0
    high = middles[last] if last < codec.format.codes - 1 else values[last] + (values[last] - values[last - 1]) / 4
    return [low, *middles[first:last], high]


def _axis(form: Format, edges: list[float], left: float, right: float) -> Axis:
    """Linear, or logarithmic for powers of two."""
    scale: Axis = math.log2 if form.mantissa_bits == 0 and edges[0] > 0 else float
    low, high = scale(edges[0]), scale(edges[-1])
    return lambda value: left + (scale(value) - low) / (high - low) * (right - left)
