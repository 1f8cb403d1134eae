"""The order of operations of each arithmetic: what a cell of PRO-3 says, against what the golden model computes."""

from __future__ import annotations

import functools
import math
import re

import ml_dtypes
import numpy as np
import pytest

import fp4ref
from fp4ref.arithmetic import ARITHMETIC
from fp4ref.arithmetic_xla import logarithm
from fp4ref.model.quantize import constants
from fp4ref.reciprocal import reciprocal_approx
from standard_rules import RULES, rows_of

F = np.float32
FLT_MAX, TINY = np.finfo(F).max, np.finfo(F).tiny
TYPES = (np.dtype(F), np.dtype(ml_dtypes.bfloat16), np.dtype(np.float16))
WORDS = {cell.partition("(")[0].strip("` ,"): meaning for cell, meaning in rows_of("PRO-3")}


class Two:
    """The 2 of 2^e, whose power is exact."""

    def __pow__(self, exponent):
        return np.exp2(np.asarray(exponent, np.float64)).astype(F)


def text_numbers(text):
    return F([float(eval(word.replace("^", "**"))) for word in re.findall(r"-?\d+(?:\.\d+)?(?:\^-?\d+)?", text)])


def far(v):
    """v below 2^24, or NaN; the first of a list that is nearest to its magnitude beyond, with its sign."""
    limit, values = re.search(r"below (2\^\d+) .*the first of (.*?) whose", WORDS["far"]).groups()
    choices = text_numbers(values)
    nearest = choices[np.argmin(np.abs(choices - np.abs(v)[..., None]), axis=-1)]
    return np.where(np.isnan(v) | (np.abs(v) < text_numbers(limit)[0]), v, np.copysign(nearest, v))


def listed(v, d):
    """m / 2 for the first m of a list for which abs(m * d - v) is the smallest; 0 if each is NaN."""
    choices = text_numbers(re.search(r"first m of (.*?) for which", WORDS["list"])[1])
    distance = np.abs(choices * np.asarray(d, F)[..., None] - v[..., None])
    nearest = np.argmin(np.where(np.isnan(distance), np.inf, distance), axis=-1)
    nearest = np.where(np.all(np.isnan(distance) | np.isinf(distance), axis=-1), first_number(distance), nearest)
    return np.where(np.all(np.isnan(distance), axis=-1), F(0), choices[nearest] / F(2))


def first_number(distance):
    return np.argmax(~np.isnan(distance), axis=-1)


def bits(v):
    return np.asarray(v, F).view(np.uint32).astype(np.int64)


def pow2(e):
    low, high = map(int, re.search(r"e held within (-?\d+) to (\d+), and NaN taken as 0", WORDS["pow2"]).groups())
    return np.exp2(np.where(np.isnan(e), 0, np.clip(e, low, high)).astype(np.float64)).astype(F)


def up(v):
    formula = re.fullmatch(r"`2\^\(\((.*)\) - 127\)`; v itself if not finite", WORDS["up"])[1]
    return np.where(np.isfinite(v), np.exp2(eval(formula, {"bits": bits, "v": v}) - 127.0).astype(F), v)


def power_below(v):
    """The power of two of a number, from the bits of its exponent."""
    return np.exp2((bits(v) >> 23) - 127.0).astype(F)


def half_up(v, mantissa=1):
    """A number rounded half up to some bits of mantissa, as far as its power of two goes."""
    with np.errstate(all="ignore"):
        return (bits(v) + (1 << (22 - mantissa))).astype(np.uint32).view(F)


def ln(v):
    return logarithm(np.asarray(v, F))  # PRO-8 has tests of its own


PLAIN = {
    "TWO": Two(),
    "min": np.fmin,
    "max": np.fmax,
    "min_nan": np.minimum,
    "max_nan": np.maximum,
    "clamp_nan": lambda v, low, high: np.minimum(np.maximum(v, F(low)), F(high)),
    "abs": np.abs,
    "floor": np.floor,
    "ceil": np.ceil,
    "fp32": F,
    "bf16": lambda v: np.asarray(v, F).astype(ml_dtypes.bfloat16).astype(F),
    "fma": lambda a, b, c: np.where((a * b == 0) & ((a == 0) | (b == 0)), F(0), a * b),
    "rcp": lambda v: reciprocal_approx(np.asarray(v, F)),
    "far": far,
    "list": listed,
    "up": up,
    "bits": bits,
    "pow2": pow2,
    "ln": ln,
    "log2": lambda v: np.log2(np.asarray(v, np.float64)).astype(F),
    "FLT_MAX": FLT_MAX,
    "largest_bfloat16": np.array(0x7F7F, np.uint16).view(ml_dtypes.bfloat16).astype(F),
    "Inf": F(np.inf),
    "LN2": math.log(2),
}


class Case:
    """Values for the letters of PRO-3: maxima, elements and what a block of each has."""

    def __init__(self, spec, dtype):
        k = constants(spec, dtype)
        self.k, self.spec, self.wide = k, spec, dtype == F
        form = spec.element.format
        constant = re.search(r"`c` is (\S+) for E2M1 and (\S+) for the FP8", RULES["PRO-3"].text).groups()
        self.names = PLAIN | {
            "n": lambda v: k.narrow(np.asarray(v, F)),
            "f": lambda v: np.where(np.abs(v) < TINY, np.copysign(F(0), v), v),
            "E": k.element_max,
            "T": F(float(k.scale_max) * float(k.element_max)) if spec.global_scale != "none" else F(1),
            "scale_max": k.scale_max,
            "emax": form.emax,
            "c": eval(constant[form.name != "e2m1"]),
            "largest": {2: F(65504), 4: FLT_MAX}.get(dtype.itemsize),
        }
        if dtype == ml_dtypes.bfloat16:
            self.names["largest"] = PLAIN["largest_bfloat16"]
        self.mbits = form.mantissa_bits
        self.bias = form.bias

    def __call__(self, formula, **local):
        text = formula.replace("largest bfloat16", "largest_bfloat16").replace("2^", "TWO ** ").replace(" mod ", " % ")
        return eval(text.replace("ln 2", "LN2"), {}, self.names | local)

    def __getattr__(self, name):
        return self.names[name]

    def with_(self, **changed):
        """The same with other values of letters."""
        made = object.__new__(Case)
        made.__dict__.update(self.__dict__)
        made.names = self.names | changed
        return made

    def defined(self, equation):
        """The letter that an equation defines, and its value."""
        name, formula = equation.split(" = ", 1)
        return name, self(formula)


where, nan, inf = np.where, F(np.nan), F(np.inf)


def mxs(number, a, e):
    """t of MXS-2 to MXS-4, whatever a is: a power of two from the bits of its exponent."""
    carried = {2: bits(a), 3: bits(a) + 0x7FFFFF, 4: bits(a) + (1 << (22 - e.mbits))}[number]
    return np.exp2(np.clip((carried >> 23) - e.emax, 0, 254) - 127.0).astype(F)


def carries(a, e):
    return bits(a) + (1 << (22 - e.mbits)) >> 23 == 255


def local(e, equation, formula):
    name, value = e.defined(equation)
    return e(formula, **{name: value})


def modelopt(e, f0, f1):
    name, value = e.defined(f1)
    return e(f0, **{name: where(value == 0, F(1), value)})


def inverse(e, formula, equation):
    return e(formula, w=lambda v: where(v == 0, F(1e-8), 1 / v) if equation == "w(v) = 1 / v" else None)


def on_grid(e, f0, f1):
    """min(a / 6, 448) on the grid of E4M3."""
    _, v = e.defined(f0)
    step = np.exp2(np.maximum(np.frexp(v.astype(np.float64))[1] - 4, -9)).astype(F)
    coarse = np.floor(v / step + F(0.5)) * step
    found = where(v < F(2.0**-6), e(f1, v=v) * F(2.0**-9), coarse)
    return where(v >= 248, F(448), found)


def compressed(e, f0, f1, f2):
    """The power of two of a, rounded half up, in the input's type; of that the power of two of FLOOR."""
    assert (f0, f1, f2) == ("n(FLOOR of p)", "n(2^e)", "2^e")
    p = e.n(power_below(half_up(e.a)))
    smallest = e.k.smallest_normal
    p = where(e.a < smallest, where(e.a >= smallest * F(0.75), smallest, F(0)), p)
    found = e.n(mxs(2, p, e))
    return where(np.isfinite(e.a) & np.isfinite(p), where(found == 0, F(1), found), inf)


def qwix(e, equation, first, second=None):
    name, value = e.defined(equation)
    d = where(value < F(2.0**-63), F(1), value)
    with_d = {name: d}
    found = e(first if e.wide or second is None else second, **with_d)
    return where(np.isfinite(e.a), found, e.a)


def ggml(e, equation):
    safe = e.with_(a=where(np.isfinite(e.a) & (e.a > 0), e.a, F(1)))
    _, b = safe.defined(equation)
    found = where(b == 255, nan, np.exp2(b.astype(np.float64) - 127).astype(F))
    return where(np.isfinite(e.a) & (e.a > 0), found, F(2.0**-127))


def exponent_of(e):
    """The e of mlx, exact; 0 for 0 and for what is not finite."""
    quotient = e("n(a / E)")
    some = np.isfinite(e.a) & (quotient > 0)
    mantissa, exponent = np.frexp(where(some, quotient, 1).astype(np.float64))
    return where(some, where(mantissa == 0.5, exponent - 1, exponent), 0)


def mlx(e, equation):
    assert equation == "e = ceil(log2(n(a / E)))"
    byte = (exponent_of(e) + 127) % 256
    return where(byte == 255, nan, np.exp2(np.minimum(byte, 254) - 127.0).astype(F))


def grid(e, formula, less=None):
    z = e("n(x / s)")
    p = where(z == 0, F(0), np.floor(e.n(e.log2(np.abs(where(z == 0, F(1), z))))))
    p = np.maximum(p, 1 - e.bias)
    v = (np.abs(z) * np.exp2(e.mbits - p.astype(np.float64)).astype(F)).astype(F)
    whole = e(formula, v=v)
    if less:
        half = e(less, v=v)
        whole = whole - where((half % 2) == 0, F(1), F(0))
    assert "and the sign of z, is y, and +0 for z = 0." in RULES["PRO-3"].text
    found = np.copysign(whole * np.exp2(p.astype(np.float64) - e.mbits).astype(F), z)
    return where(z == 0, F(0), found)


def microxcaling(e, equation, formula):
    safe = e.with_(a=where(e.a == 0, F(2.0**-126), e.a))
    name, value = safe.defined(equation)
    value = value - e.emax
    return where(value <= 127, safe(formula, **{name: value}), nan)


def by_bits(e, number):
    """MXS-2 to MXS-4 with the exponent bits of infinity; NaN stays."""
    return where(np.isnan(e.a), nan, mxs(number, e.a, e))


def trace(e, formula, equation):
    _, v = e.defined(equation)
    found = e(formula, v=where((v > 0) & np.isfinite(v), v, F(1)))
    return where(np.isinf(v), F(2.0**-127), found)


def of_aiter(e, equation, a):
    v = e.with_(a=a).defined(equation)[1]
    return where(np.isfinite(a), where(v < TINY, F(2.0**-127), power_below(v)), nan)


def quark(e):
    a = where(e.a == 0, F(2.0**-126), e.a)
    return where(np.isnan(a), nan, where(carries(a, e) | np.isinf(a), F(2.0**127), mxs(4, a, e)))


PHRASES = {
    "1": lambda e: np.ones_like(e.a),
    "none": lambda e: np.ones_like(e.A),
    "<0>": lambda e, f: e(f),
    "<0>; 1 if A or g is 0": lambda e, f: where((e.A == 0) | (e(f) == 0), F(1), e(f)),
    "<0>; 1 if g is 0": lambda e, f: where(e(f) == 0, F(1), e(f)),
    "<0> if A > 0, else 1": lambda e, f: where(e.A > 0, e(f), F(1)),
    "<0>, the largest number of the input's type where that overflows; 1 if A is 0 or infinite": lambda e, f: where(
        (e.A == 0) | np.isinf(e.A), F(1), where(np.isinf(e(f)), e.largest, e(f))
    ),
    "<0>; 1 unless A is positive and finite": lambda e, f: where((e.A > 0) & np.isfinite(e.A), e(f), F(1)),
    "<0>; 1.5 if g is NaN, else 2 if s is, of its sign": lambda e, f: where(
        np.isnan(e.g), F(1.5), where(np.isnan(e.s), np.copysign(F(2), e.s), e(f))
    ),
    "<0>, <1>, 0 taken as 1": modelopt,
    "<0>; 0 becomes 1": lambda e, f: where(e(f) == 0, F(1), e(f)),
    "<0>; 1 if not finite": lambda e, f: where(np.isfinite(e(f)), e(f), F(1)),
    "<0>; 1/8 if its byte means 0": lambda e, f: where(e.decoded(e(f)) == 0, F(1 / 8), e(f)),
    "<0>; 1 if A is 0": lambda e, f: where(e.A == 0, F(1), e(f)),
    "<0>; +0 if s = 0": lambda e, f: where(e.s == 0, F(0), e(f)),
    "with <0>: <1>, <2> if u = 0": lambda e, f, g, h: where(e.defined(f)[1] == 0, e(h), local(e, f, g)),
    "<0>, with 1 for s unless s > 0": lambda e, f: e.with_(s=where(e.s > 0, e.s, F(1)))(f),
    "<0>, <1> if s = 0": lambda e, f, g: where(e.s == 0, e(g), e(f)),
    "<0>, <1> if every element is 0 or NaN": lambda e, f, g: where((e.x == 0) | np.isnan(e.x), e(g), e(f)),
    "<0>; 1 if below 2^-63": lambda e, f: where(e(f) < F(2.0**-63), F(1), e(f)),
    "<0>, <1>, 1e-8 if v is 0": inverse,
    "<0>, 0 if that product is 0; 2 of the sign of s if s is NaN": lambda e, f: where(
        np.isnan(e.s), np.copysign(F(2), e.s), where(e(re.search(r"\((.*)\)", f)[1]) == 0, F(0), e(f))
    ),
    "<0>, of every block, also with power-of-two scales": lambda e, f: e(f),
    "<0>, with Inf for s if the byte is FF; <1> if s = 0": lambda e, f, g: where(
        e.s == 0, e(g), e.with_(s=where(e.byte == 0xFF, inf, e.s) if e.powers else e.s)(f)
    ),
    "<0> on the grid of E4M3: below 2^-6 <1> steps of 2^-9, else three bits of mantissa half up; 448 from 248 on": (
        on_grid
    ),
    "<0> (MXS-1)": lambda e, f: e(f),
    "<0>, p the power of two of <1>; 1 if a is 0 or infinite": lambda e, f, g: where(
        (e.a == 0) | np.isinf(e.a), F(1), e(f, p=where(np.isnan(e.a), nan, power_below(e(g))))
    ),
    "as <0>; NaN if a is not finite": lambda e, f: where(np.isfinite(e.a), e.cell(f), nan),
    "MXS-2; NaN if a is not finite": lambda e: where(np.isfinite(e.a), mxs(2, e.a, e), nan),
    "MXS-3; NaN if a is not finite": lambda e: where(np.isfinite(e.a), mxs(3, e.a, e), nan),
    "MXS-4; NaN if a is not finite": lambda e: where(np.isfinite(e.a), mxs(4, e.a, e), nan),
    "<0>, with 1 for s if the byte is 0": lambda e, f: e.with_(s=where(e.byte == 0, F(1), e.s))(f),
    "<0>, with 0 for rcp(s) if the byte is 0": lambda e, f: e(
        f, rcp=lambda s: where(e.byte == 0, F(0), reciprocal_approx(np.asarray(s, F)))
    ),
    "MXS-2, with the exponent bits of infinity as they are; NaN if a is NaN": lambda e: by_bits(e, 2),
    "as <0>, by MXS-3": lambda e, f: by_bits(e, 3) if f == "torchao-floor" else None,
    "as <0>, by MXS-4": lambda e, f: by_bits(e, 4) if f == "torchao-floor" else None,
    "<0>, with 2^-126 for s if the byte is 0, Inf if it is FF": lambda e, f: e.with_(
        s=where(e.byte == 0, F(2.0**-126), where(e.byte == 0xFF, inf, e.s))
    )(f),
    "<0>, also of 0 and infinity; NaN if a is NaN": lambda e, f: where(np.isnan(e.a), nan, e(f)),
    "<0>, 1 if that is 0; p is <1>, <2> the power of two of a rounded half up to one bit of mantissa; if a is below "
    "the smallest normal number of the type, p is that number from 3/4 of it on, else 0; Inf if a or p is not "
    "finite": compressed,
    "<0>, with Inf for s if t is infinite": lambda e, f: e.with_(s=where(np.isinf(e.t), inf, e.s))(f),
    "MXS-4; NaN if a is not finite, or carries into infinity": lambda e: where(
        np.isfinite(e.a) & ~carries(e.a, e), mxs(4, e.a, e), nan
    ),
    "<0>; Inf if a is NaN": lambda e, f: where(np.isnan(e.a), inf, e(f)),
    "<0>; 0 if a is NaN": lambda e, f: where(np.isnan(e.a), F(0), e(f)),
    "<0>, +0 if the byte is 0, with Inf for s if t is infinite": lambda e, f: where(
        e.byte == 0, F(0), e.with_(s=where(np.isinf(e.t), inf, e.s))(f)
    ),
    "<0>, with 0 for s if the byte is 0, Inf if t is infinite": lambda e, f: e.with_(
        s=where(np.isinf(e.t), inf, where(e.byte == 0, F(0), e.s))
    )(f),
    "<0>, <1> if the byte is 0, with Inf for s if t is infinite": lambda e, f, g: where(
        e.byte == 0, e(g), e.with_(s=where(np.isinf(e.t), inf, e.s))(f)
    ),
    "<0>; NaN if a is not finite": lambda e, f: where(np.isfinite(e.a), e(f), nan),
    "<0>; 2^-127 unless a > 0": lambda e, f: where(e.a > 0, e(f), F(2.0**-127)),
    "<0>, <1>, or 1 unless v > 0; 2^-127 if v is infinite": trace,
    "<0>; to four bits <1>": lambda e, f, g: e(g if e.spec.element.format.bits == 4 else f),
    "with <0>, 1 if below 2^-63: <1>; a if a is not finite": qwix,
    "with <0>, 1 if below 2^-63: <1> from float32, else <2>, ln by PRO-8; a if a is not finite": qwix,
    "2^(b - 127), <0>, NaN for b = 255; 2^-127 if a is 0 or not finite": ggml,
    "with <0>, exact, 0 for 0: 2^e, byte (e + 127) mod 256; if a is not finite, byte 80 from float32 and 00 from 16 "
    "bits, with 0 for s": lambda e, f: where(np.isfinite(e.a), mlx(e, f), F(2.0) if e.wide else F(2.0**-127)),
    "<0>, <1> if the byte is 0 or t is infinite": lambda e, f, g: where((e.byte == 0) | np.isinf(e.t), e(g), e(f)),
    "the power of two of <0>, 2^-127 if that is subnormal; Inf if a is not finite": lambda e, f: where(
        np.isfinite(e.a), where(power_below(e(f)) < TINY, F(2.0**-127), power_below(e(f))), inf
    ),
    "<0>; NaN stays": lambda e, f: where(np.isnan(e.a), nan, e(f)),
    "<0>, NaN if t is NaN": lambda e, f: where(np.isnan(e.t), nan, e(f)),
    "the power of two of v, <0>, 2^-127 if v is subnormal; NaN if a is not finite": lambda e, f: of_aiter(e, f, e.a),
    "as <0>, with the power of two of a rounded half up to one bit of mantissa for a; NaN if that is not finite": (
        lambda e, f: of_aiter(e, "v = a / 4", power_below(half_up(e.a))) if f == "aiter-round-down" else None
    ),
    "MXS-4 of a, 2^-126 for a if a is 0; 2^127 if it carries into infinity; NaN stays": quark,
    "<0>; 2^-23 if that is 0": lambda e, f: where(e(f) == 0, F(2.0**-23), e(f)),
    "as <0>, with ceil": lambda e, f: e.cell(f, change=("floor", "ceil")),
    "<0>; 2^-127 if a is not finite, 0 if a is 0": lambda e, f: where(
        np.isfinite(e.a), where(e.a == 0, F(0), e(f)), F(2.0**-127)
    ),
    "<0>, with 0 for s if the byte is 0; +0 if a is 0": lambda e, f: where(
        e.a == 0, F(0), e.with_(s=where(e.byte == 0, F(0), e.s))(f)
    ),
    "with <0> - emax, 2^-126 for a if a is 0: <1>, NaN unless e <= 127": microxcaling,
    "grid, <0>": grid,
    "grid, the same, less 1 if <0> is an even integer": lambda e, f: grid(e, "floor(n(v + 0.5))", f),
    "as <0>": lambda e, f: e.cell(f),
    "<0> if s = 0, else as <1>": lambda e, f, g: where(e.s == 0, e(f), e.cell(g)),
}


TABLES = [{name.strip("`"): cells for name, *cells in rows_of("PRO-3", number)} for number in (1, 2)]


def cell_of(e, name, column, change=None):
    """Compute what a cell says."""
    table = next(table for table in TABLES if name in table)
    cell = table[name][column]
    formulas = re.findall("`(.*?)`", cell)
    count = iter(range(len(formulas)))
    phrase = re.sub("`.*?`", lambda _: f"<{next(count)}>", cell)
    if change:
        formulas = [each.replace(*change) for each in formulas]
    return PHRASES[phrase](e.with_(cell=functools.partial(cell_of, e, column=column)), *formulas)


def same(got, wanted):
    got, wanted = np.broadcast_arrays(np.asarray(got, F), np.asarray(wanted, F))
    return (got.view(np.uint32) == wanted.view(np.uint32)) | (np.isnan(got) & np.isnan(wanted))


SPECIAL = F([0, 2.0**-149, 2.0**-127, 2.0**-126, 1e-4, 0.75 * 2.0**-14, 2.0**-24, 448, 2688, 65504, 3e38, FLT_MAX])
SPECIAL = np.concatenate([SPECIAL, F([np.inf, np.nan])])


def maxima(dtype):
    """Maxima of an input's type: powers of two and their neighbours, special ones, and others."""
    random = np.random.default_rng(3)
    powers = np.exp2(np.arange(-149.0, 128)).astype(F)
    values = [powers, np.nextafter(powers, F(0)), np.nextafter(powers, F(np.inf)), F(1.5) * powers, F(1.75) * powers]
    values += [
        np.exp2(random.uniform(-60, 60, 500)).astype(F),
        np.exp2(random.uniform(-149, 128, 500)).astype(F),
        SPECIAL,
    ]
    with np.errstate(all="ignore"):
        return np.unique(np.concatenate(values).astype(dtype).astype(F))


def cases():
    """A profile for each arithmetic, element format and format of scales."""
    found = {}
    for spec in fp4ref.profiles.values():
        found.setdefault((spec.arithmetic.name, spec.element.format.name, spec.scale.format.name), spec)
    for arithmetic in (*TABLES[0], *TABLES[1]):
        if not any(name == arithmetic for name, *_ in found):
            spec = fp4ref.MXFP4.replace(name=f"{arithmetic} in a test", arithmetic=ARITHMETIC[arithmetic])
            found[arithmetic, "e2m1", "e8m0"] = spec
    return found


CASES = cases()


@pytest.mark.sampled(3)
@pytest.mark.rule("PRO-3")
@pytest.mark.example("PRO-3")
@pytest.mark.parametrize("key", CASES, ids="-".join)
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_operations_of_an_arithmetic(key, dtype):
    spec, name = CASES[key], key[0]
    arithmetic = spec.arithmetic
    e = Case(spec, dtype)
    a = maxima(dtype)
    a = a[~np.isnan(a)] if spec.amax is fp4ref.Amax.IGNORE_NAN else a
    random = np.random.default_rng(4)
    whole = a if spec.global_scale == "none" else random.permutation(a)
    number = 0 if name in TABLES[0] else 1
    columns = {"g": 0, "t": 1, "y": 2} if number == 0 else {"t": 0, "y": 1}
    with np.errstate(all="ignore"):
        x = (a * random.uniform(-1, 1, a.shape)).astype(dtype).astype(F)
        x[::7], x[3::11] = a[::7], -a[3::11]
        x[::13] = 0
        x[5::17] = -0.0
        x = where(np.abs(x) <= a, x, a)
        a, whole, x = (each.reshape(-1, 1, 1, 1) for each in (a, whole, x))
        e = e.with_(a=a, A=np.fmax(whole, a) if spec.global_scale != "none" else a, x=x)
        e = e.with_(decoded=lambda v: spec.scale.decode(spec.scale.encode(v)), powers=spec.scale.format.name == "e8m0")
        g = arithmetic.global_scale(e.A, e.k) if spec.global_scale != "none" else np.ones_like(a)
        if "g" in columns and spec.global_scale != "none":
            assert same(cell_of(e, name, 0), g).all(), ("g", e.A[~same(cell_of(e, name, 0), g)][:5])
        e = e.with_(g=g)
        t = np.broadcast_to(np.asarray(arithmetic.block_scale(a, g, e.k), F), a.shape)
        told = np.broadcast_to(cell_of(e, name, columns["t"]), a.shape)
        wrong = ~same(told, t)
        byte, said = spec.scale.encode(t), spec.scale.encode(np.asarray(told, F))
        if name.startswith("mlx") and number:  # whose model marks a byte that wraps in the sign of t
            wrong = byte != said
        assert not wrong.any(), ("t", a[wrong][:5], told[wrong][:5], t[wrong][:5], said[wrong][:5], byte[wrong][:5])
        s = spec.scale.decode(byte).astype(F)
        e = e.with_(t=t, byte=byte, s=s)
        if name in {"mlx", "mlx-fp8"}:  # whose 2^e is 0 where "with 0 for s" is said
            e = e.with_(e=where(np.isfinite(a), exponent_of(e), -np.inf))
        y = np.broadcast_to(np.asarray(arithmetic.scaled(x, arithmetic.working_scale(t, s), g, e.k), F), a.shape)
        told = np.broadcast_to(np.asarray(cell_of(e, name, columns["y"]), F), a.shape)
        wrong = ~same(told, y)
        assert not wrong.any(), ("y", x[wrong][:5], s[wrong][:5], told[wrong][:5], y[wrong][:5], a[wrong][:5])


@pytest.mark.rule("PRO-3")
def test_every_arithmetic_has_a_row():
    own = {name for name in ARITHMETIC if "." not in name}
    assert own == {*TABLES[0], *TABLES[1]}
