"""A format in words: its fields, its values, and what its special codes mean."""

from __future__ import annotations

import math

from fp4ref.formats import Format, grid


def number(value: float) -> str:
    """Return a value as a figure writes it: decimal where that is short, else a power of two."""
    text = f"{value:g}"
    if float(text) == value and len(text) <= 7 and "e" not in text:
        return text
    fraction, exponent = math.frexp(value)
    if exponent == 1 and fraction != 0.5:
        return f"{value:.9g}"
    return f"2^{exponent - 1}" if fraction == 0.5 else f"{fraction * 2:g}·2^{exponent - 1}"


def layout_words(form: Format) -> str:
    """Return the fields of a code, in words."""
    if form.complement:
        return f"two's complement of {form.bits} bits, in steps of {number(2.0 ** (1 - form.mantissa_bits))}"
    sign = "1 sign bit, " if form.signed else "1 bit without a meaning, " if form.second_zero else "no sign, "
    plural = "" if form.mantissa_bits == 1 else "s"
    return f"{sign}{form.exponent_bits} exponent bits with bias {form.bias}, {form.mantissa_bits} mantissa bit{plural}"


def range_words(form: Format) -> str:
    """Return the number of values, the smallest above zero and the largest."""
    values = grid(form)
    count = 2 * form.codes - 1 + form.complement if form.signed else form.codes
    return (
        f"{count} finite values, smallest above zero {number(float(values[values > 0][0]))}, largest {number(form.max)}"
    )


def value_formula(form: Format) -> str:
    """Return the formula of the value of a code with exponent E and mantissa M."""
    if form.powers_of_two:
        return f"value = 2^(E − {form.bias})"
    if form.complement:
        return f"value = the integer · 2^{1 - form.mantissa_bits}"
    sign = "± " if form.signed else ""
    return f"value = {sign}2^(E − {form.bias}) · 1.M;   E = 0: {sign}2^{1 - form.bias} · 0.M"


def special_words(form: Format) -> list[str]:
    """Return the meaning of the codes past the largest finite one."""
    past = range(form.codes, form.sign_bit if form.signed else 1 << form.bits)
    if form.second_zero:
        return [range_words(form).split(",")[0], f"{form.codes:#04x} = 0, and is never written", "no infinity, no NaN"]
    if not past:
        return [range_words(form).split(",")[0], "no infinity, no NaN"]
    nan = past[1:] if form.infinity else past
    names = ", ".join(f"{code:#04x}" for code in nan) if len(nan) <= 4 else f"{nan[0]:#04x} to {nan[-1]:#04x}"
    infinity = f"{past[0]:#04x} = infinity, " if form.infinity else "no infinity, "
    sign = " (and with the sign bit)" if form.signed else ""
    return [range_words(form).split(",")[0], f"{infinity}{f'NaN = {names}' if nan else 'no NaN'}{sign}"]
